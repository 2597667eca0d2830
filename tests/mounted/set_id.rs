//! Set-uid, set-gid and capabilities are cleared by other users' writes, on every write path.

use std::fs;
use std::os::unix::fs::MetadataExt;

use fsstack_lab::{self as lab, needs};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::script::{refused, sh, sh_as_stranger, ways};

fn mode(pool: &lab::Pool, name: &str) -> String {
    format!("{:o}", fs::metadata(pool.at(name)).unwrap().mode() & 0o7777)
}

#[test]
fn a_write_by_a_stranger_takes_set_uid_away() {
    needs!(mounting());
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(way);
        for (write, before, after) in [
            ("echo more >> file", "6777", "777"),
            ("echo over | dd of=file conv=notrunc status=none", "4777", "777"),
            (": > file", "6777", "777"),
            ("truncate -s 1 file", "6777", "777"),
            ("fallocate -l 9000 file", "6777", "777"),
            // Without group execution the bit stays for writers in the group.
            ("echo more >> file", "2767", "767"),
            ("truncate -s 1 file", "2666", "666"),
            ("fallocate -l 9000 file", "6766", "766"),
            ("fallocate --punch-hole -l 4096 file", "2666", "666"),
        ] {
            sh(pool.path(), &format!("rm -f file; echo some > file; chmod {before} file"));
            sh_as_stranger(pool.path(), write);
            assert_eq!(mode(&pool, "file"), after, "{way:?}: {write} on {before}");
            let stored = fs::metadata(pool.branch("a").path().join("file")).unwrap().mode() & 0o7777;
            assert_eq!(format!("{stored:o}"), after, "on the branch, {way:?}: {write} on {before}");
        }
    }
}

#[test]
fn a_member_of_the_group_leaves_set_gid_where_the_group_may_not_execute() {
    needs!(mounting(), program("setpriv"));
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(way);
        let member = "setpriv --reuid 65534 --regid 65534 --groups 100,7";
        for (write, before, after) in [
            ("echo more >> file", "6766", "2766"),
            ("truncate -s 1 file", "2666", "2666"),
            ("fallocate -l 9000 file", "2777", "777"),
        ] {
            sh(pool.path(), &format!("rm -f file; echo some > file; chgrp 7 file; chmod {before} file"));
            sh(pool.path(), &format!("{member} bash -c '{write}'"));
            assert_eq!(mode(&pool, "file"), after, "{way:?}: {write} on {before}");
            sh(pool.path(), "chmod g+s,g-x file");
            let both = format!(
                "exec 8<> file; {member} bash -c '{write}'; setpriv --reuid 65534 --regid 65534 --clear-groups bash -c '{write}'"
            );
            sh(pool.path(), &both);
            assert!(!mode(&pool, "file").starts_with('2'), "{way:?}: {write} by a member and a stranger");
        }
    }
}

#[test]
fn the_kernel_does_not_go_on_with_a_bit_that_a_stranger_has_written_away() {
    needs!(mounting(), program("xfs_io"));
    // Checked as when the kernel executes the program: without a request to the pool.
    let kept = |pool: &lab::Pool| {
        let (at, flags) = (pool.at("file"), AtFlags::empty());
        format!("{:o}", statx(CWD, &at, flags, StatxFlags::MODE).unwrap().stx_mode & 0o7777)
    };
    for write in [
        "echo more >> file",
        ": > file",
        "fallocate -l 9000 file",
        "xfs_io -c 'copy_range other' file > /dev/null",
    ] {
        let pool = lab::pool().tmp_branch("a").option("attr-timeout=60").option("write-path=stacked").mount();
        sh(pool.path(), "echo some > file; cp file other; chmod 4777 file");
        assert_eq!(kept(&pool), "4777");
        sh_as_stranger(pool.path(), write);
        assert_eq!(kept(&pool), "777", "{write}");
    }
}

#[test]
fn a_write_by_root_leaves_them() {
    needs!(mounting());
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(way);
        sh(pool.path(), "echo some > file; chmod 6755 file; echo more >> file");
        assert_eq!(mode(&pool, "file"), "6755", "{way:?}");
    }
}

#[test]
fn chown_takes_them_away() {
    needs!(mounting());
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(way);
        // Root's too, as on any local file system.
        sh(pool.path(), "echo some > file; chmod 6755 file; chown 1000:1000 file");
        assert_eq!(mode(&pool, "file"), "755", "{way:?}");
        // chown(2) with -1 and -1.
        sh(pool.path(), "chmod 6755 file; perl -e 'chown(-1, -1, \"file\") or die'");
        assert_eq!(mode(&pool, "file"), "755", "{way:?}: to nobody");
        sh(pool.path(), "chmod 644 file; perl -e 'chown(-1, -1, \"file\") or die'");
        assert_eq!(mode(&pool, "file"), "644", "{way:?}: to nobody");
    }
}

#[test]
fn a_capability_goes_with_a_strangers_write() {
    needs!(mounting(), program("setcap"), not_on_gluster("it stores no capabilities"));
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(way);
        sh(
            pool.path(),
            "cp /bin/true prog; chmod 777 prog; setcap cap_net_raw+ep prog; getcap prog | grep -q net_raw",
        );
        sh_as_stranger(pool.path(), "echo >> prog");
        assert_eq!(sh(pool.path(), "getcap prog"), "", "{way:?}");
        // The first opener only reads.
        sh(pool.path(), "setcap cap_net_raw+ep prog");
        sh_as_stranger(pool.path(), "exec 8< prog; echo >> prog");
        assert_eq!(sh(pool.path(), "getcap prog"), "", "open for reading before, {way:?}");
        sh(pool.path(), "setcap cap_net_raw+ep prog; chown 1000 prog");
        assert_eq!(sh(pool.path(), "getcap prog"), "", "after chown, {way:?}");
    }
}

#[test]
fn set_uid_is_refused_only_while_a_stranger_writes_past_the_daemon() {
    needs!(mounting(), program("python3"), program("setpriv"));
    if let Err(skip) = crate::script::passthrough() {
        return skip.announce();
    }
    let pool = lab::pool().tmp_branch("a").option("write-path=passthrough").mount();
    let held_by = |who: &str| {
        format!(
            "rm -f file; echo some > file; chmod 666 file
             {who} bash -c 'exec 7>> file; echo > ../open; cd /; sleep 3 7>&-; :' & until [ -e ../open ]; do sleep 0.02; done; rm ../open
             chmod u+s file && code=0 || code=$?; kill $!; wait || :; exit $code"
        )
    };
    let stranger = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    sh(pool.path(), "chmod 777 .; chmod 777 ..");
    let said = refused(pool.path(), &held_by(stranger));
    assert!(said.contains("busy"), "{said}");
    assert_eq!(mode(&pool, "file"), "666");
    sh(pool.path(), "sleep 0.1; chmod u+s file");
    sh(pool.path(), &held_by(""));
    assert_eq!(mode(&pool, "file"), "4666");
}
