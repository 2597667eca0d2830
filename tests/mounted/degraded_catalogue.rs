//! `degraded=catalogue`: names of a branch that is out of reach are shown from the catalogue, and nothing else is done with them.

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;

use fsstack_lab::pool::Pool;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, MiB, needs, until};

use crate::catalogue::until_complete;
use crate::command::{at, output_of, refused};
use crate::dead_branches::{errno, listed};

const EIO: Option<i32> = Some(5);

/// Owner of `alone`, and another user.
const OWNER: u32 = 1000;
const OTHER: u32 = 1001;

/// `a`, a disk that can be taken away, and `b`, a plain directory. The catalogue is complete.
fn pool(options: &[&str]) -> Pool {
    let pool =
        lab::pool().xfs_branch("a", MiB(300)).tmp_branch("b").option("create=ff").option("catalogue=on");
    let mut pool = options.iter().fold(pool, |pool, option| pool.option(option)).unmounted();
    let (a, b) = (pool.branch("a").path().to_owned(), pool.branch("b").path().to_owned());
    for (home, name) in [
        (&a, "both/on-a"),
        (&b, "both/on-b"),
        (&a, "alone/deep/file"),
        (&a, "same"),
        (&b, "same"),
        (&b, "b/on-b"),
    ] {
        fs::create_dir_all(home.join(name).parent().unwrap()).unwrap();
        fs::write(home.join(name), name).unwrap();
    }
    symlink("nowhere", a.join("link")).unwrap();
    chown(a.join("alone"), Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(a.join("alone"), stat_mode(0o755)).unwrap();
    pool.remount();
    until_complete(&pool);
    pool
}

fn take_away(pool: &mut Pool) {
    pool.branch_mut("a").unmount_lazily();
    until("the branch to be gone", || fs::read(pool.at("both/on-a")).is_err());
}

/// Attributes of a name that the catalogue keeps.
fn kept(meta: &Metadata) -> (u32, u32, u32, u64, i64, i64) {
    let size = if meta.is_dir() { 0 } else { meta.size() };
    (meta.mode(), meta.uid(), meta.gid(), size, meta.mtime(), meta.mtime_nsec())
}

#[test]
fn names_of_a_branch_that_is_away_are_listed_with_their_attributes_and_come_back_with_it() {
    needs!(mounting(), loops());
    let mut pool = pool(&["degraded=catalogue", "attr-timeout=0", "entry-timeout=0"]);
    let names = ["alone", "alone/deep", "alone/deep/file", "both/on-a", "link"];
    let stat = |pool: &Pool, name: &str| fs::symlink_metadata(pool.at(name)).unwrap();
    let before: Vec<_> = names.iter().map(|name| kept(&stat(&pool, name))).collect();
    take_away(&mut pool);
    for _ in 0..2 {
        let now: Vec<_> = names.iter().map(|name| kept(&stat(&pool, name))).collect();
        assert_eq!(now, before);
        assert_eq!(listed(pool.path()).unwrap(), ["alone", "b", "both", "link", "same"]);
        assert_eq!(listed(&pool.at("both")).unwrap(), ["on-a", "on-b"]);
        assert_eq!(listed(&pool.at("alone")).unwrap(), ["deep"]);
        assert_eq!(listed(&pool.at("alone/deep")).unwrap(), ["file"]);
    }
    assert_eq!(pool.read("both/on-b"), b"both/on-b");
    pool.branch_mut("a").remount();
    until("the branch to be back", || fs::read(pool.at("alone/deep/file")).is_ok());
    assert_eq!(pool.read("both/on-a"), b"both/on-a");
    assert_eq!(fs::read_link(pool.at("link")).unwrap(), Path::new("nowhere"));
    assert_eq!(listed(&pool.at("alone")).unwrap(), ["deep"]);
    pool.write("alone/new", b"new");
    fs::remove_dir_all(pool.at("alone")).unwrap();
}

/// The kernel knows nothing of the names yet: their numbers are made of their paths, and are the same at each look.
#[test]
fn names_that_were_not_seen_before_have_numbers_that_stay() {
    needs!(mounting(), loops());
    let mut pool = pool(&["degraded=catalogue", "attr-timeout=0", "entry-timeout=0"]);
    take_away(&mut pool);
    let number = |name: &str| fs::symlink_metadata(pool.at(name)).unwrap().ino();
    let numbers = ["alone", "alone/deep", "alone/deep/file", "link"].map(number);
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    assert_eq!(["alone", "alone/deep", "alone/deep/file", "link"].map(number), numbers);
    let listed = fs::read_dir(pool.at("alone/deep")).unwrap().next().unwrap().unwrap();
    assert_eq!(std::os::unix::fs::DirEntryExt::ino(&listed), numbers[2], "of the listing");
}

/// View of the user [`OTHER`]: directories on `a`, on both branches, and of a file.
fn seen_by_another(pool: &Pool) -> String {
    let by_them = |program: &str, arguments: &[&str]| {
        let run = command(program).args(arguments).dir(pool.path()).as_user(OTHER, OTHER);
        run.run().unwrap().stdout
    };
    by_them("ls", &["alone", "alone/deep", "both"])
        + &by_them("stat", &["-c", "%u %a %n", "alone", "alone/deep/file"])
}

/// The kernel asks for the ACL of what it knows before it lets in a user who does not own it.
#[test]
fn users_see_what_the_kernel_knew_before() {
    needs!(mounting(), loops());
    let mut pool = pool(&["degraded=catalogue", "attr-timeout=0", "entry-timeout=0"]);
    let before = seen_by_another(&pool);
    assert!(before.contains("deep") && before.contains("1000 755 alone\n"), "{before}");
    take_away(&mut pool);
    for _ in 0..2 {
        assert_eq!(seen_by_another(&pool), before);
    }
    let acl = rustix::fs::getxattr(pool.at("alone"), c"system.posix_acl_access", &mut [0_u8; 64][..]);
    assert_eq!(acl, Err(rustix::io::Errno::NODATA));
}

/// The catalogue has no ACLs: where there is one, the mode's group bits are its mask.
#[test]
fn an_acl_is_not_lifted_with_its_branch_away() {
    needs!(mounting(), loops(), program("setfacl"));
    for is_known in [false, true] {
        let mut pool = pool(&["degraded=catalogue", "attr-timeout=0", "entry-timeout=0"]);
        let dir = pool.branch("a").path().join("alone");
        chown(&dir, Some(OWNER), Some(OTHER)).unwrap();
        let acl = format!("g::---,u:{}:rwx,m::rwx,o::r-x", OTHER + 1);
        command("setfacl").args(["-m", &acl]).arg(&dir).run().unwrap();
        pool.remount();
        until_complete(&pool);
        let listed = |pool: &Pool| {
            command("ls").arg("alone").dir(pool.path()).as_user(OTHER + 2, OTHER).output().unwrap().code
        };
        if is_known {
            assert_ne!(listed(&pool), 0, "as the ACL says");
        }
        take_away(&mut pool);
        (0..3).for_each(|_| assert_ne!(listed(&pool), 0, "{is_known}"));
        assert!(fs::read_dir(pool.at("alone")).is_ok(), "root may");
    }
}

#[test]
fn nothing_is_opened_made_changed_or_removed_there() {
    needs!(mounting(), loops());
    let mut pool = pool(&["degraded=catalogue", "attr-timeout=0", "entry-timeout=0"]);
    // The pool learns that only one branch has it.
    assert_eq!(listed(&pool.at("b")).unwrap(), ["on-b"]);
    take_away(&mut pool);
    assert_eq!(errno(fs::read(pool.at("alone/deep/file"))), EIO);
    assert_eq!(errno(fs::read_link(pool.at("link"))), EIO);
    for name in ["alone/new", "alone/deep/new", "both/new", "new"] {
        assert_eq!(errno(fs::write(pool.at(name), "new")), EIO, "{name}");
        assert_eq!(errno(fs::create_dir(pool.at(name))), EIO, "{name}");
    }
    assert_eq!(errno(fs::remove_file(pool.at("alone/deep/file"))), EIO);
    assert_eq!(errno(fs::remove_file(pool.at("both/on-a"))), EIO);
    assert_eq!(errno(fs::remove_dir(pool.at("alone/deep"))), EIO);
    assert_eq!(errno(fs::rename(pool.at("link"), pool.at("b/link"))), EIO);
    assert_eq!(errno(fs::rename(pool.at("b/on-b"), pool.at("alone/on-b"))), EIO);
    assert_eq!(errno(fs::set_permissions(pool.at("both/on-a"), stat_mode(0o600))), EIO);
    assert_eq!(errno(fs::hard_link(pool.at("link"), pool.at("b/link"))), EIO);
    // A name that is not in the catalogue may be newer.
    assert_eq!(errno(fs::read(pool.at("alone/nowhere"))), EIO);
    // Directories that are on reachable branches only.
    pool.write("b/new", b"new");
    fs::remove_file(pool.at("b/new")).unwrap();
    assert_eq!(listed(&pool.at("b")).unwrap(), ["on-b"]);
}

fn stat_mode(mode: u32) -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(mode)
}

#[test]
fn it_is_switched_at_run_time_and_needs_the_catalogue() {
    needs!(mounting(), loops());
    let mut pool = pool(&["attr-timeout=0", "entry-timeout=0"]);
    take_away(&mut pool);
    assert_eq!(errno(fs::symlink_metadata(pool.at("alone/deep/file"))), EIO);
    assert_eq!(errno(listed(pool.path())), EIO);
    output_of(&["set", &at(&pool), "degraded=catalogue"]);
    assert_eq!(listed(pool.path()).unwrap(), ["alone", "b", "both", "link", "same"]);
    assert!(fs::symlink_metadata(pool.at("alone/deep/file")).is_ok());
    output_of(&["set", &at(&pool), "degraded=strict"]);
    assert_eq!(errno(listed(pool.path())), EIO);
    let mut without = lab::pool().tmp_branch("a").mount();
    let (code, why) = refused(&["set", &at(&without), "degraded=catalogue"]);
    assert!(code != 0 && why.contains("add catalogue=on"), "{code} {why}");
    without.unmount();
}
