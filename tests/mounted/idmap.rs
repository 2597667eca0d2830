//! Idmapped mounts of a pool: `idmap=on`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use fsstack_lab::cleanup::Entry;
use fsstack_lab::shell::{Finished, command};
use fsstack_lab::{self as lab, MiB, Pool, needs};
use serde_json::json;
use tempfile::TempDir;

use crate::command::{self as operator, at, output_of};
use crate::keep::{self, crash_and_serve};
use crate::script::{STRANGER, python, sh, ways};

/// Makes idmapped mounts, and does in one what programs do.
const SCRIPT: &str = include_str!("idmap.py");

/// Maps of users and groups: inside (on the disk), outside (of programs), count.
const MAPS: [&[&str]; 2] = [&["0:0:1", "1000:2000:10", "100:200:1"], &["0:100000:65536"]];

/// Owners 1000 on the disk are `STRANGER` outside.
const TO_STRANGER: &[&str] = &["0:0:1", "1000:65534:1"];

/// An idmapped mount of a directory, until it is dropped.
struct Idmapped {
    dir: TempDir,
    _mount: Entry,
}

impl Idmapped {
    fn of(source: &Path, maps: &[&str]) -> Result<Self, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mount = Entry::mount(dir.path()).unwrap();
        let bind = command("python3").args(["-c", SCRIPT, "bind"]).arg(source).arg(dir.path()).args(maps);
        let Finished { code, stderr, .. } = bind.output().unwrap();
        if code == 0 { Ok(Self { dir, _mount: mount }) } else { Err(stderr) }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Output of the scene in `scene` of an idmapped mount of `root`.
fn scene(root: &Path, maps: &[&str]) -> String {
    let mapped = Idmapped::of(root, maps).unwrap();
    let args = [mapped.path().join("scene"), root.join("scene")];
    fs::create_dir(root.join("scene")).unwrap();
    let done = command("python3").args(["-c", SCRIPT, "scene"]).args(args).run().unwrap();
    fs::remove_dir(root.join("scene")).unwrap();
    done.stdout
}

#[test]
fn every_call_by_an_idmapped_mount_is_answered_as_on_xfs() {
    needs!(idmaps(), loops());
    let xfs = lab::pool().xfs_branch("a", MiB(310)).unmounted();
    let wanted = MAPS.map(|maps| scene(xfs.branch("a").path(), maps));
    // Something is mapped at all.
    for line in [
        "mapped: create: ok",
        "mapped: tmpfile: 2000:2000",
        "mapped: on the disk: open/mapped.file 644 1000:1000",
        "mapped: on the disk: gives/mapped 640 1000:100",
        "nowhere: create: EOVERFLOW",
        "identical: create: EOVERFLOW",
    ] {
        assert!(wanted[0].lines().any(|found| found == line), "{line}");
    }
    assert!(wanted[1].contains("container: on the disk: open/container.fifo 644 0:0"));
    assert!(wanted[1].contains("tenant: on the disk: open/tenant.symlink 777 1000:1000"));
    for way in ways() {
        let mut pool = lab::pool().xfs_branch("a", MiB(310)).xfs_branch("b", MiB(310)).unmounted();
        pool.remount_with(&[&["idmap=on", "create=rand"], way].concat());
        for (maps, wanted) in MAPS.iter().zip(&wanted) {
            let found = scene(pool.path(), maps);
            let differ = found.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
            assert_eq!(differ, None, "{way:?} {maps:?}");
            assert_eq!(found.lines().count(), wanted.lines().count(), "{way:?} {maps:?}");
        }
    }
}

#[test]
fn without_the_option_the_kernel_refuses_and_the_pool_goes_on() {
    needs!(idmaps());
    let pool = lab::pool().tmp_branch("a").mount();
    let refused = Idmapped::of(pool.path(), MAPS[0]).err().unwrap();
    assert!(refused.contains("mount_setattr: Invalid argument"), "{refused}");
    pool.write("file", b"kept");
    assert_eq!(pool.read("file"), b"kept");
}

/// Owner and mode of `name` on the branch that has it.
fn on_disk(pool: &Pool, name: &str) -> (u32, u32) {
    let [holder] = pool.holders(name)[..] else { panic!("{name} is on {:?}", pool.holders(name)) };
    let found = fs::metadata(pool.branch(holder).path().join(name)).unwrap();
    (found.uid(), found.mode() & 0o7777)
}

#[test]
fn a_mapped_root_that_writes_past_the_daemon_gets_no_set_uid_file_of_another_user() {
    needs!(idmaps());
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(&[&["idmap=on"], way].concat());
        fs::set_permissions(pool.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let mapped = Idmapped::of(pool.path(), MAPS[1]).unwrap();
        // Root inside is user 0 of the pool, and no root to the kernel.
        let writes = format!(
            "
import os
from pathlib import Path
reading, go = os.pipe(); done, writing = os.pipe()
if os.fork() == 0:
    os.close(go)
    os.setgroups([]); os.setresgid(100000, 100000, 100000); os.setresuid(100000, 100000, 100000)
    f = os.open('{at}/file', os.O_CREAT | os.O_WRONLY, 0o755)
    os.write(f, b'first'); os.write(writing, b'x'); os.read(reading, 1); os.write(f, b'evil')
    os._exit(0)
os.read(done, 1)
os.chown('file', 1000, 1000)
try: os.chmod('file', 0o4755)
except OSError as e: print(e.strerror, end=' ')
os.write(go, b'x'); os.wait()
print(oct(os.stat('file').st_mode & 0o7777))
",
            at = mapped.path().display()
        );
        let said = python(pool.path(), &writes);
        // Refused while the kernel writes without the daemon; else cleared with the write.
        assert!(["Text file busy 0o755", "0o755"].contains(&said.as_str()), "{way:?}: {said}");
        assert_eq!(on_disk(&pool, "file"), (1000, 0o755), "{way:?}");
    }
}

#[test]
fn root_and_members_of_a_group_are_known_where_nothing_is_mapped() {
    needs!(idmaps(), program("setpriv"), program("getfattr"));
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(&[&["idmap=on"], way].concat());
        let mode = |name: &str| format!("{:o}", fs::metadata(pool.at(name)).unwrap().mode() & 0o7777);
        sh(
            pool.path(),
            "echo some > file; chmod 6755 file; echo more >> file; exec 8>> file; chmod 6711 file; echo more >&8",
        );
        assert_eq!(mode("file"), "6711", "{way:?}: root");
        let member = "setpriv --reuid 65534 --regid 65534 --groups 100,7";
        sh(pool.path(), &format!("chgrp 7 file; chmod 6766 file; {member} bash -c 'echo more >> file'"));
        assert_eq!(mode("file"), "2766", "{way:?}: a member of the group");
        let names = "setfattr -n trusted.note -v x file; getfattr -m - file 2> /dev/null | grep -c trusted";
        assert_eq!(sh(pool.path(), names), "1", "{way:?}");
        sh(pool.path(), "chmod 666 file");
        let by_stranger = format!("{member} getfattr -m - file 2> /dev/null | grep -c trusted || true");
        assert_eq!(sh(pool.path(), &by_stranger), "0", "{way:?}");
        let sets = "setfattr -n user.mergerfs.minfreespace -v 5M .mergerfs; getfattr --only-values -n user.mergerfs.minfreespace .mergerfs";
        assert!(sh(pool.path(), sets).contains('5'), "{way:?}");
    }
}

/// Makes `name` as a user that the mount maps to 1000 of the pool.
fn make_mapped(pool: &Pool, mapped: &Idmapped, name: &str) {
    let make = format!("umask 022; echo some > {name}");
    let script = command("bash").args(["-ec", &make]).dir(mapped.path());
    script.as_user(STRANGER, STRANGER).run().unwrap();
    assert_eq!(on_disk(pool, name), (1000, 0o644));
    assert_eq!(fs::metadata(mapped.path().join(name)).unwrap().uid(), STRANGER);
}

#[test]
fn an_idmapped_mount_outlives_an_upgrade_and_a_crash() {
    needs!(idmaps());
    let pool = keep::pool(&["idmap=on"]);
    fs::set_permissions(pool.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let mapped = Idmapped::of(pool.path(), TO_STRANGER).unwrap();
    make_mapped(&pool, &mapped, "before");
    crash_and_serve(&pool);
    make_mapped(&pool, &mapped, "after-crash");
    output_of(&["upgrade", &at(&pool)]);
    make_mapped(&pool, &mapped, "after-upgrade");
    assert_eq!(fs::metadata(mapped.path().join("before")).unwrap().uid(), STRANGER);
    assert_eq!(output_of(&["get", &at(&pool), "idmap"]).trim(), "true");
}

#[test]
fn the_log_of_slow_calls_names_the_user_outside() {
    needs!(idmaps());
    let pool = lab::pool().tmp_branch("a").option("idmap=on").mount();
    fs::set_permissions(pool.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let mapped = Idmapped::of(pool.path(), TO_STRANGER).unwrap();
    output_of(&["log", &at(&pool), "--slow", "1us"]);
    let reads = command("bash").args(["-ec", "ls -l; : > x; unlink x"]).dir(mapped.path());
    reads.as_user(STRANGER, STRANGER).run().unwrap();
    let log = operator::json("log", &["log", &at(&pool)]);
    let of = |call: &&serde_json::Value| call["operation"] == "unlink";
    let unlink = log["calls"].as_array().unwrap().iter().find(of).unwrap();
    assert_eq!(unlink["uid"], STRANGER, "{log:#}");
}

/// Runs a shell's script in a container of its own user namespace, by crun, with `volume` at `/mnt` that is idmapped, as podman
/// and Kubernetes ask for.
fn in_container(volume: &Path, script: &str) -> Finished {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let map = json!([{"containerID": 0, "hostID": 100_000, "size": 65_536}]);
    let namespaces = ["pid", "ipc", "uts", "mount", "user"].map(|kind| json!({"type": kind}));
    let may = json!(["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"]);
    let config = json!({
        "ociVersion": "1.0.0",
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["/busybox", "sh", "-ec", script], "cwd": "/", "env": ["PATH=/"],
            "capabilities": {"bounding": may, "effective": may, "permitted": may}},
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/mnt", "type": "bind", "source": volume, "options": ["bind", "rw", "idmap"]},
        ],
        "linux": {"namespaces": namespaces, "uidMappings": map, "gidMappings": map},
    });
    fs::write(home.path().join("config.json"), config.to_string()).unwrap();
    // crun refuses machines with both versions of control groups.
    let prepare =
        "mkdir -p rootfs/proc rootfs/mnt rootfs/dev rootfs/sys; cp \"$(command -v busybox)\" rootfs/busybox
        chown -R 100000:100000 rootfs
        umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup
        crun --cgroup-manager=disabled --root \"$PWD/state\" run \"fsstack-$$\"";
    command("unshare").args(["--mount", "sh", "-ec", prepare]).dir(home.path()).output().unwrap()
}

#[test]
fn a_container_with_the_pool_as_an_idmapped_volume_has_its_owners() {
    needs!(idmaps(), program("crun"), program("busybox"));
    // Old versions of crun have no such volumes, and not every machine has the second version of control groups.
    let local = tempfile::tempdir().unwrap();
    let Finished { code, stderr, .. } = in_container(local.path(), "/busybox true");
    if code != 0 {
        return lab::Skip::because(format!("no container with an idmapped volume: {stderr}")).announce();
    }
    let mut pool =
        lab::pool().tmp_branch("a").tmp_branch("b").option("idmap=on").option("create=rand").mount();
    let script = "for n in 1 2 3 4 5 6; do /busybox mkdir /mnt/d$n; echo $n > /mnt/d$n/file; done
        /busybox chown 7:8 /mnt/d1/file; /busybox cat /mnt/d2/file; /busybox stat -c '%u %g' /mnt/d1/file /mnt/d2";
    let Finished { code, stdout, stderr, .. } = in_container(pool.path(), script);
    assert_eq!((code, stdout.as_str()), (0, "2\n7 8\n0 0\n"), "{stderr}");
    let owners = |path: &str| {
        let meta = fs::metadata(pool.branch(pool.holders(path)[0]).path().join(path)).unwrap();
        (meta.uid(), meta.gid())
    };
    assert_eq!((owners("d1/file"), owners("d2/file"), owners("d3")), ((7, 8), (0, 0), (0, 0)));
    pool.remount_with(&["idmap=off"]);
    let Finished { code, stderr, .. } = in_container(pool.path(), "echo > /mnt/other");
    assert!(code != 0 && !pool.at("other").exists(), "{stderr}");
}
