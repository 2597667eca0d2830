//! Pools mounted as block devices: ownership of the device, and no leftovers.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, Pool, mounts, needs, until};
use fsstack_sys::loop_device::LoopDevice;
use rustix::fs::OFlags;
use rustix::process::Signal;

use super::{at, output_of, run};
use crate::hung_branches::FrozenDaemon;
use crate::script::sh;

/// An identity that no other test uses.
pub(crate) fn fresh_identity() -> String {
    fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned()
}

fn mounted(identity: &str) -> Pool {
    exported(identity).mount()
}

fn exported(identity: &str) -> lab::Builder {
    lab::pool().tmp_branch("a").option("nfs-export").option(&format!("nfs-identity={identity}"))
}

/// The file below the device, if it has one.
fn backing(device: &Path) -> Option<PathBuf> {
    let backing_file = fs::read_to_string(attribute(device, "backing_file")).ok()?;
    Some(backing_file.trim_end().into())
}

fn attribute(device: &Path, name: &str) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap()).join("loop").join(name)
}

/// So it is detached with a killed process, whatever that was about to do.
#[test]
fn a_device_is_detached_with_its_last_user() {
    needs!(root(), loops());
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let file = File::options().read(true).write(true).create_new(true).open(&image).unwrap();
    file.set_len(1 << 20).unwrap();
    let before = fs::metadata(&image).unwrap().modified().unwrap();
    let device = LoopDevice::over(&file).unwrap();
    let path = device.path().to_owned();
    // libblkid's cached data of the device number is older.
    assert!(fs::metadata(&path).unwrap().modified().unwrap() >= before, "{}", path.display());
    assert_eq!(backing(&path), Some(image.clone()));
    assert_eq!(fs::read_to_string(attribute(&path, "autoclear")).unwrap(), "1\n");
    drop((file, device));
    // Programs that inspect new devices (udev) may hold it for a moment; another device may be there at once.
    until("the device is free", || backing(&path) != Some(image.clone()));
}

/// A process holds the free device open exclusively, and no other device is reported as free meanwhile.
#[test]
fn a_device_that_another_process_holds_exclusively_is_skipped() {
    needs!(root(), loops());
    let free = PathBuf::from(sh("/", "losetup -f").trim());
    let alone = i32::try_from(OFlags::EXCL.bits()).unwrap();
    // If other processes take or free devices meanwhile, the obstacle is smaller.
    let _held = File::options().read(true).write(true).custom_flags(alone).open(&free);
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let file = File::options().read(true).write(true).create_new(true).open(&image).unwrap();
    file.set_len(1 << 20).unwrap();
    let device = LoopDevice::over(&file).unwrap();
    assert_eq!(backing(device.path()), Some(image));
}

#[test]
fn a_device_goes_with_the_mount_and_with_a_daemon_that_was_killed() {
    needs!(mounting(), loops(), program("mkfs.ext4"));
    let identity = fresh_identity();
    let mut pool = mounted(&identity);
    let device = |pool: &Pool| PathBuf::from(sh("/", &format!("findmnt -no SOURCE {}", at(pool))));
    let image = pool.state_dir().join(format!("identity-{identity}.img"));
    let first = device(&pool);
    assert_eq!(backing(&first), Some(image.clone()));
    pool.unmount();
    until("the device is free", || backing(&first) != Some(image.clone()));
    pool.remount();
    let second = device(&pool);
    let daemon = pool.daemon();
    pool.kill_daemon();
    daemon.wait(Duration::from_secs(60)).unwrap();
    // A mount without a daemon is found by its other type too.
    let checked = run(&["doctor"]).stdout;
    let dead = format!("fail  leftovers: {}: a dead mount", at(&pool));
    assert!(checked.contains(&dead), "{checked}");
    command("umount").arg(pool.path()).run().unwrap();
    until("the device is free", || backing(&second) != Some(image.clone()));
}

/// Otherwise a server would confuse the handles of the two.
#[test]
fn two_pools_do_not_share_an_identity() {
    needs!(mounting(), loops(), program("mkfs.ext4"));
    let identity = fresh_identity();
    let mut first = mounted(&identity);
    let shared = format!("state-dir={}", first.state_dir().display());
    // With the same file, and with another one.
    for builder in [exported(&identity).option(&shared), exported(&identity)] {
        let refused = builder.try_mount().unwrap_err().to_string();
        let why = format!("nfs-identity={identity}: {} has it", at(&first));
        assert!(refused.contains(&why), "{refused}");
    }
    first.unmount();
    let second = exported(&identity).option(&shared).mount();
    let shown = output_of(&["nfs", "show", &at(&second)]);
    assert!(shown.contains(&format!("# The pool has nfs-identity={identity}")), "{shown}");
    assert!(!shown.contains("NOT YET") && !shown.contains("Mount the pool with nfs-identity"), "{shown}");
}

/// The kernel names its connection by the whole number of the block device, and another one may have the minor number alone.
#[test]
fn a_daemon_ends_with_a_branch_hung_that_is_such_a_pool() {
    needs!(mounting(), loops());
    // By the ring the kernel ends no request of an aborted connection before its server runs again.
    let mut below = exported(&fresh_identity()).option("transport=dev").mount();
    below.write("file", b"content");
    let connection = mounts::at(below.path()).unwrap().unwrap().connection();
    assert!(connection >= 1 << 20, "{connection}: not a block device");
    let pool = lab::pool().over(&[below.path().display().to_string()]).option("branch-timeout=1").mount();
    let daemon = pool.daemon();
    let frozen = FrozenDaemon::new(below.daemon());
    // A thread of the daemon stays inside.
    assert!(fs::read(pool.at("file")).is_err());
    daemon.signal(Signal::TERM).unwrap();
    daemon.wait(Duration::from_secs(60)).unwrap();
    drop(pool);
    drop(frozen);
    until("the one below ends with its connection", || !below.daemon().lives());
    sh("/", &format!("umount -l '{}'", below.path().display()));
    below.unmount();
}
