//! Block device for mounting a pool as `fuseblk`: NFS servers that identify file systems by their device's content
//! (nfs-ganesha) then keep their handles valid across a remount.
//!
//! It is a loop device over a small sparse file with an empty ext4, which has the UUID that the operator chose. Nothing
//! is ever written to it. It is set to auto-clear from the beginning, so it is detached with the mount, however that
//! ends, or with a daemon that dies before. Only the file stays; it is rebuilt when it is damaged.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fsstack_identity::poolid::PoolId;
use fsstack_pool::Printable;
use fsstack_sys::loop_device::LoopDevice;
use fsstack_sys::mounts::{self, MountInfo};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use fsstack_sys::program::run;

/// Size of the file, which is sparse.
const SIZE: u64 = 64 << 20;

/// Offset of ext4's superblock, and offsets in it of magic number and UUID.
const SUPERBLOCK: u64 = 1024;
const MAGIC: Range<usize> = 0x38..0x3a;
const UUID: Range<usize> = 0x68..0x78;
const EXT4: [u8; 2] = [0x53, 0xef];

/// A loop device, detached with the mount, or on drop if it is not mounted.
#[derive(Debug)]
pub(crate) struct Device {
    device: LoopDevice,
    /// Lock held until the device is mounted.
    _turn: File,
}

impl Device {
    /// Makes a device with `uuid` over a file in `folder`.
    ///
    /// # Errors
    ///
    /// One line: subject, reason and remedy.
    pub(crate) fn make(folder: &Path, uuid: PoolId) -> Result<Self, String> {
        let name = format!("identity-{uuid}.img");
        let image = folder.join(&name);
        let shown = Printable::path(&image);
        let failed = |why: &dyn Display| format!("nfs-identity={uuid}: {shown}: {why}");
        let elsewhere = |error: io::Error| failed(&format!("{error}: choose another state-dir="));
        private(folder).map_err(elsewhere)?;
        // Serialises pools that are mounted at the same time.
        let turn = File::open(folder).map_err(elsewhere)?;
        flock(&turn, FlockOperation::LockExclusive).map_err(|error| elsewhere(error.into()))?;
        if let Some(taken) = mounted_over(OsStr::new(&name)) {
            let taken = Printable::path(&taken);
            return Err(format!(
                "nfs-identity={uuid}: {taken} has it: each pool needs one of its own (uuidgen)"
            ));
        }
        let file = match whole(&image, uuid) {
            Some(file) => file,
            None => {
                make_image(&image, uuid).map_err(|why| failed(&why))?;
                open(&image).map_err(elsewhere)?
            }
        };
        let device = LoopDevice::over(&file).map_err(|error| failed(&format!("no loop device: {error}")))?;
        Ok(Self { device, _turn: turn })
    }

    /// Path to mount.
    pub(crate) fn path(&self) -> OsString {
        self.device.path().as_os_str().to_owned()
    }
}

/// Returns the mount point of a pool whose device is over a file of this name, in any folder.
fn mounted_over(name: &OsStr) -> Option<PathBuf> {
    let is_over = |mount: &MountInfo| {
        let (major, minor) = mount.dev;
        let backing = fs::read(format!("/sys/dev/block/{major}:{minor}/loop/backing_file")).ok()?;
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        Path::new(OsStr::from_bytes(backing)).file_name().filter(|backing| *backing == name).map(drop)
    };
    let table = mounts::list().ok()?;
    table.into_iter().find(|mount| mount.is_fuse() && is_over(mount).is_some()).map(|mount| mount.mount_point)
}

/// Makes a private folder if it is missing; the daemon's umask is 0.
fn private(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Makes a new private file; an existing object of that name is never followed.
fn fresh(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn make_image(image: &Path, uuid: PoolId) -> Result<(), String> {
    let failed = |error: io::Error| format!("{error}: choose another state-dir=");
    // Atomically: complete under its name, or absent.
    let draft = image.with_extension("new");
    let file = fresh(&draft).map_err(failed)?;
    file.set_len(SIZE).map_err(failed)?;
    let text = uuid.to_string();
    run("mkfs.ext4", "e2fsprogs", |mkfs| {
        mkfs.args(["-q", "-F", "-O", "^has_journal", "-U", &text]).arg(&draft)
    })?;
    file.sync_all().and_then(|()| fs::rename(&draft, image)).map_err(failed)
}

fn open(image: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(image, flags, Mode::empty())?))
}

/// Opens the file if it is valid: a crash of the machine may leave an empty one.
fn whole(image: &Path, uuid: PoolId) -> Option<File> {
    let file = open(image).ok()?;
    let meta = file.metadata().ok()?;
    let mut found = [0; UUID.end - MAGIC.start];
    file.read_exact_at(&mut found, SUPERBLOCK + MAGIC.start as u64).ok()?;
    let is_it = meta.is_file() && meta.len() == SIZE && found.starts_with(&EXT4) && found.ends_with(&uuid.0);
    is_it.then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_that_is_not_as_it_was_made_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (image, uuid) = (dir.path().join("identity.img"), PoolId::fresh());
        assert!(whole(&image, uuid).is_none());
        let file = File::create(&image).unwrap();
        file.set_len(SIZE).unwrap();
        assert!(whole(&image, uuid).is_none(), "empty");
        file.write_all_at(&EXT4, SUPERBLOCK + MAGIC.start as u64).unwrap();
        assert!(whole(&image, uuid).is_none(), "another UUID");
        file.write_all_at(&uuid.0, SUPERBLOCK + UUID.start as u64).unwrap();
        assert!(whole(&image, uuid).is_some());
        file.set_len(SIZE / 2).unwrap();
        assert!(whole(&image, uuid).is_none(), "cut off");
    }

    /// Directory for the files of this test's own child process.
    const CHILD: &str = "FSSTACK_TEST_IDENTITY";

    /// The daemon's umask is 0. The test sets that in a child process, because other tests share this one's umask.
    #[test]
    fn a_new_file_is_private_and_follows_no_link() {
        if let Some(folder) = std::env::var_os(CHILD).map(std::path::PathBuf::from) {
            fsstack_sys::process::umask(0);
            private(&folder).unwrap();
            std::os::unix::fs::symlink(folder.with_extension("theirs"), folder.join("x.new")).unwrap();
            return fresh(&folder.join("x.new")).unwrap().write_all_at(b"ours", 0).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let (folder, theirs) = (dir.path().join("above/state"), dir.path().join("above/state.theirs"));
        fs::create_dir(dir.path().join("above")).unwrap();
        fs::write(&theirs, "theirs").unwrap();
        let name = "identity::tests::a_new_file_is_private_and_follows_no_link";
        let ourselves = std::env::current_exe().unwrap();
        let anew = fsstack_sys::program::output(ourselves.to_str().unwrap(), "this test", |child| {
            child.args(["--exact", name]).env(CHILD, &folder)
        });
        let child = anew.unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&folder) & 0o7777, 0o700);
        assert_eq!(mode(&folder.join("x.new")), 0o100_600);
        assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
    }

    #[test]
    fn a_link_under_the_files_name_is_no_file_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let (image, uuid) = (dir.path().join("identity.img"), PoolId::fresh());
        let real = File::create(dir.path().join("real")).unwrap();
        real.set_len(SIZE).unwrap();
        real.write_all_at(&EXT4, SUPERBLOCK + MAGIC.start as u64).unwrap();
        real.write_all_at(&uuid.0, SUPERBLOCK + UUID.start as u64).unwrap();
        assert!(whole(&dir.path().join("real"), uuid).is_some());
        std::os::unix::fs::symlink(dir.path().join("real"), &image).unwrap();
        assert!(whole(&image, uuid).is_none());
    }
}
