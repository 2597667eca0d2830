//! Branches that fail under the pool: killed, aborted, unmounted, removed and restored. Their names are errors, never
//! missing; the other branches work; and they recover by themselves.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use fsstack_lab::pool::Pool;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, Kind, MiB, Skip, mounts, needs, until};

use crate::command::{at, branch, json, output_of};
use crate::handles::forget_everywhere;

const EIO: Option<i32> = Some(5);

pub(crate) fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

pub(crate) fn listed(path: &Path) -> io::Result<Vec<String>> {
    let names: io::Result<Vec<_>> =
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect();
    names.map(|mut names| {
        names.sort();
        names
    })
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// `a` is served by another daemon and comes first, `b` is a plain directory; the kernel caches nothing.
fn pool_of_two() -> Pool {
    pool_of(Kind::Served)
}

/// Like [`pool_of_two`]; `a` is of that kind.
fn pool_of(kind: Kind) -> Pool {
    let pool = lab::pool()
        .branch("a", kind)
        .tmp_branch("b")
        .option("create=ff")
        .option("write-path=stacked")
        .option("attr-timeout=0")
        .option("entry-timeout=0")
        .unmounted();
    let (a, b) = (pool.branch("a").path().to_owned(), pool.branch("b").path().to_owned());
    for (home, name) in
        [(&a, "both/on-a"), (&b, "both/on-b"), (&b, "alone/on-b"), (&a, "top-a"), (&b, "top-b")]
    {
        fs::create_dir_all(home.join(name).parent().unwrap()).unwrap();
        fs::write(home.join(name), name).unwrap();
    }
    let mut pool = pool;
    pool.remount();
    pool
}

#[test]
fn names_that_a_dead_branch_may_have_are_an_error_and_the_rest_works() {
    needs!(mounting(), program("mergerfs"));
    let pool = pool_of_two();
    assert_eq!(listed(&pool.at("alone")).unwrap(), ["on-b"]);
    assert_eq!(pool.read("both/on-a"), b"both/on-a");
    pool.branch("a").daemon().kill().unwrap();

    for name in ["top-a", "both/on-a", "nowhere", "both/nowhere"] {
        assert_eq!(errno(fs::read(pool.at(name))), EIO, "{name}");
    }
    for name in ["top-a", "nowhere", "both/on-a", "both/nowhere"] {
        assert_eq!(errno(create_new(&pool.at(name))), EIO, "{name}");
    }
    assert_eq!(errno(listed(&pool.at(""))), EIO);
    assert_eq!(errno(listed(&pool.at("both"))), EIO);
    assert_eq!(errno(fs::create_dir(pool.at("new"))), EIO);
    // Names known to be on reachable branches only.
    assert_eq!(pool.read("both/on-b"), b"both/on-b");
    assert_eq!(listed(&pool.at("alone")).unwrap(), ["on-b"]);
    pool.write("alone/new", b"new");
    fs::rename(pool.at("alone/new"), pool.at("alone/newer")).unwrap();
    fs::remove_file(pool.at("alone/newer")).unwrap();
    assert_eq!(errno(fs::read(pool.at("alone/nowhere"))), Some(2));
    assert!(!pool.branch("b").path().join("new").exists());
    // The branch is known to be down, and statfs counts the other.
    let reply = rustix::fs::statvfs(pool.path()).unwrap();
    assert!(reply.f_blocks > 0);
}

/// The kernel asks for a directory's ACL before it lets in a user who does not own it: the other copy tells.
#[test]
fn users_reach_directories_whose_first_copy_is_on_a_dead_branch() {
    needs!(mounting(), program("mergerfs"));
    let pool = pool_of_two();
    let read = "cat both/on-b";
    assert_eq!(crate::script::sh_as_stranger(pool.path(), read), "both/on-b");
    pool.branch("a").daemon().kill().unwrap();
    assert_eq!(errno(fs::read(pool.at("top-a"))), EIO);
    until("the branch is down", || {
        json("status", &["status", &at(&pool)])["pools"][0]["branches"][0]["state"] == "down"
    });
    assert_eq!(crate::script::sh_as_stranger(pool.path(), read), "both/on-b");
}

/// Neither directory was known before the branch was dead: what it may have of the one below is not known either.
#[test]
fn names_two_levels_below_what_a_dead_branch_may_have_are_an_error() {
    needs!(mounting(), program("mergerfs"));
    let mut pool = pool_of_two();
    for branch in ["a", "b"] {
        let deep = pool.branch(branch).path().join("outer/middle/deep");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join(format!("on-{branch}")), branch).unwrap();
    }
    pool.remount();
    pool.branch("a").daemon().kill().unwrap();
    for name in ["outer/middle/deep/on-a", "outer/middle/nowhere", "outer/middle/deep/nowhere"] {
        assert_eq!(errno(fs::read(pool.at(name))), EIO, "{name}");
        assert_eq!(errno(create_new(&pool.at(name))), EIO, "{name}");
    }
    assert_eq!(errno(listed(&pool.at("outer/middle/deep"))), EIO);
    assert_eq!(pool.read("outer/middle/deep/on-b"), b"b");
}

/// Waits until the pool knows that a branch is down, and neither kernel nor daemon know of any object.
fn is_down_and_all_is_forgotten(pool: &Pool) {
    until("the branch is down", || {
        json("status", &["status", &at(pool)])["pools"][0]["branches"][0]["state"] == "down"
    });
    forget_everywhere(pool);
}

/// Also where a number does not say which branch it is of.
#[test]
fn a_name_that_was_seen_on_a_dead_branch_is_not_anothers_file() {
    needs!(mounting(), drop_caches(), program("mergerfs"));
    for kind in [Kind::Served, Kind::Numbered] {
        let pool = pool_of(kind);
        fs::write(pool.branch("a").path().join("twice"), "right").unwrap();
        fs::write(pool.branch("b").path().join("twice"), "hidden").unwrap();
        assert_eq!(pool.read("twice"), b"right");
        pool.branch("a").daemon().kill().unwrap();
        assert_eq!(errno(fs::read(pool.at("twice"))), EIO);
        is_down_and_all_is_forgotten(&pool);
        assert_eq!(errno(fs::read(pool.at("twice"))), EIO, "{kind:?}");
        assert_eq!(pool.read("top-b"), b"top-b");
    }
}

/// Its number says that it was on the branch that is dead now.
#[test]
fn a_file_that_was_moved_off_a_dead_branch_is_there() {
    needs!(mounting(), loops(), drop_caches());
    let mut pool = lab::pool().xfs_branch("a", MiB(300)).tmp_branch("b").option("create=ff").mount();
    pool.write("film", b"film");
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    assert_eq!(pool.read("film"), b"film");
    pool.branch_mut("a").unmount_lazily();
    is_down_and_all_is_forgotten(&pool);
    assert_eq!(pool.read("film"), b"film");
}

#[test]
fn with_degraded_read_what_can_be_reached_is_served() {
    needs!(mounting(), program("mergerfs"));
    let mut pool = pool_of_two();
    pool.remount_with(&[
        "create=ff",
        "degraded=read",
        "attr-timeout=0",
        "entry-timeout=0",
        "negative-timeout=60",
    ]);
    pool.branch("a").daemon().kill().unwrap();
    assert_eq!(listed(&pool.at("")).unwrap(), ["alone", "both", "top-b"]);
    assert_eq!(listed(&pool.at("both")).unwrap(), ["on-b"]);
    assert_eq!(errno(fs::read(pool.at("top-a"))), Some(2));
    assert_eq!(pool.read("top-b"), b"top-b");
    // A name that may be taken cannot be created.
    assert_eq!(errno(create_new(&pool.at("top-a"))), EIO);
    pool.branch_mut("a").unmount_by_force();
    pool.branch_mut("a").remount();
    // That it was missing is not cached.
    until("the branch comes back", || fs::read(pool.at("top-a")).is_ok());
}

#[test]
fn degraded_mode_is_switched_at_run_time() {
    needs!(mounting(), program("mergerfs"));
    let pool = pool_of_two();
    let at = crate::command::at(&pool);
    pool.branch("a").daemon().kill().unwrap();
    assert_eq!(errno(fs::read(pool.at("top-a"))), EIO);
    assert_eq!(errno(listed(&pool.at("both"))), EIO);
    crate::command::output_of(&["set", &at, "degraded=read"]);
    assert_eq!(errno(fs::read(pool.at("top-a"))), Some(2));
    assert_eq!(listed(&pool.at("both")).unwrap(), ["on-b"]);
    crate::command::output_of(&["set", &at, "degraded=strict"]);
    assert_eq!(errno(fs::read(pool.at("top-a"))), EIO);
    assert_eq!(errno(listed(&pool.at("both"))), EIO);
}

#[test]
fn a_branch_whose_daemon_is_started_again_comes_back_by_itself() {
    needs!(mounting(), program("mergerfs"));
    // Otherwise its numbers depend on which name is asked for first.
    let mut pool = pool_of(Kind::Numbered);
    let mut open = OpenOptions::new().read(true).write(true).open(pool.at("both/on-a")).unwrap();
    pool.branch("a").daemon().kill().unwrap();
    assert_eq!(errno(open.read(&mut [0; 4])), EIO);
    assert_eq!(errno(fs::read(pool.at("both/on-a"))), EIO);
    // The bare directory below is not used as the branch.
    pool.branch_mut("a").unmount_by_force();
    assert_eq!(errno(fs::write(pool.at("both/on-a"), "lost")), EIO);
    assert_eq!(errno(create_new(&pool.at("fresh"))), EIO);
    sleep(Duration::from_millis(1500));
    assert_eq!(listed(pool.branch("a").path()).unwrap(), [""; 0]);

    pool.branch_mut("a").remount();
    until("the branch comes back", || fs::read(pool.at("both/on-a")).is_ok());
    assert_eq!(pool.read("both/on-a"), b"both/on-a");
    // The same descriptor, opened anew below.
    open.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "both/on-a");
    open.write_all_at(b"BOTH", 0).unwrap();
    assert_eq!(pool.read("both/on-a"), b"BOTH/on-a");
    assert_eq!(listed(&pool.at("both")).unwrap(), ["on-a", "on-b"]);
    pool.write("fresh", b"fresh");
    assert_eq!(pool.holders("fresh"), ["a"]);
}

#[test]
fn interrupted_operations_are_cleared_when_the_branch_is_back() {
    needs!(mounting(), program("mergerfs"));
    let mut pool = pool_of_two();
    let folder = pool.branch("a").below().join(".fsstack.moving");
    pool.branch("a").daemon().kill().unwrap();
    assert_eq!(errno(fs::read(pool.at("top-a"))), EIO);
    // As left by an interrupted move.
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(folder.join("0123456789abcdef.part"), "half").unwrap();
    pool.branch_mut("a").unmount_by_force();
    pool.branch_mut("a").remount();
    until("the branch is back", || fs::read(pool.at("top-a")).is_ok_and(|bytes| bytes == b"top-a"));
    assert!(!folder.exists(), "it was let in before it was cleared");
}

#[test]
fn an_aborted_connection_is_a_dead_branch() {
    needs!(mounting(), program("mergerfs"));
    let mut pool = pool_of_two();
    let connection = mounts::at(pool.branch("a").path()).unwrap().unwrap().connection();
    mounts::abort(connection).unwrap();
    assert_eq!(errno(fs::read(pool.at("top-a"))), EIO);
    assert_eq!(pool.read("top-b"), b"top-b");
    pool.branch_mut("a").unmount_by_force();
    pool.branch_mut("a").remount();
    until("the branch comes back", || fs::read(pool.at("top-a")).is_ok());
}

#[test]
fn a_directory_that_a_branch_brings_back_with_it_is_merged() {
    needs!(mounting(), program("mergerfs"));
    let mut pool = lab::pool()
        .served_branch("a")
        .tmp_branch("b")
        .option("create=ff")
        .option("attr-timeout=60")
        .option("entry-timeout=60")
        .option("negative-timeout=60")
        .mount();
    pool.write("kept", b"kept");
    fs::create_dir(pool.branch("b").path().join("d")).unwrap();
    fs::write(pool.branch("b").path().join("d/here"), b"here").unwrap();
    assert_eq!(listed(&pool.at("d")).unwrap(), ["here"]);
    pool.branch("a").daemon().kill().unwrap();
    until("the branch is down", || errno(fs::read(pool.at("kept"))) == EIO);
    // Another program works on it while the pool cannot see it.
    fs::create_dir(pool.branch("a").below().join("d")).unwrap();
    fs::write(pool.branch("a").below().join("d/brought"), b"brought").unwrap();
    pool.branch_mut("a").unmount_by_force();
    pool.branch_mut("a").remount();
    until("the branch comes back", || fs::read(pool.at("kept")).is_ok());
    assert_eq!(pool.read("d/brought"), b"brought");
    assert_eq!(listed(&pool.at("d")).unwrap(), ["brought", "here"]);
    assert_eq!(errno(fs::remove_dir(pool.at("d"))), Some(39));
}

#[test]
fn a_disk_that_is_unmounted_is_down_until_it_is_mounted_again() {
    needs!(mounting(), loops());
    let mut pool = lab::pool()
        .xfs_branch("a", MiB(300))
        .tmp_branch("b")
        .option("create=ff")
        .option("attr-timeout=0")
        .option("entry-timeout=0")
        .mount();
    pool.write("kept", b"kept");
    let number = fs::metadata(pool.at("kept")).unwrap().ino();
    pool.branch_mut("a").unmount_lazily();
    // The descriptors still work: only the mount table shows that the mount is gone.
    until("the branch is down", || errno(fs::read(pool.at("kept"))) == EIO);
    assert_eq!(errno(create_new(&pool.at("new"))), EIO);
    assert_eq!(listed(pool.branch("a").path()).unwrap(), [""; 0]);
    pool.branch_mut("a").remount();
    until("the branch comes back", || fs::read(pool.at("kept")).is_ok());
    assert_eq!(pool.read("kept"), b"kept");
    assert_eq!(fs::metadata(pool.at("kept")).unwrap().ino(), number);
    pool.write("new", b"new");
    assert_eq!(pool.holders("new"), ["a"]);
}

#[test]
fn another_disk_at_the_branchs_path_is_not_the_branch() {
    needs!(mounting(), loops());
    let mut pool = lab::pool()
        .xfs_branch("a", MiB(300))
        .tmp_branch("b")
        .option("create=ff")
        .option("entry-timeout=0")
        .mount();
    pool.write("kept", b"kept");
    pool.branch_mut("a").unmount_lazily();
    until("the branch is down", || errno(fs::read(pool.at("kept"))) == EIO);
    let stranger = pool.branch("a").path().to_owned();
    crate::script::sh("/", &format!("mount -t tmpfs stranger '{}'", stranger.display()));
    sleep(Duration::from_millis(2500));
    assert_eq!(errno(create_new(&pool.at("new"))), EIO);
    assert_eq!(errno(fs::read(pool.at("kept"))), EIO);
    assert_eq!(listed(&stranger).unwrap(), [""; 0]);
    crate::script::sh("/", &format!("umount '{}'", stranger.display()));
    pool.branch_mut("a").remount();
    until("the branch comes back", || fs::read(pool.at("kept")).is_ok());
}

#[test]
fn a_disk_that_was_shut_down_comes_back_when_it_is_mounted_anew() {
    needs!(mounting(), loops(), program("xfs_io"));
    let mut pool = lab::pool()
        .xfs_branch("a", MiB(300))
        .tmp_branch("b")
        .option("create=ff")
        .option("entry-timeout=0")
        .mount();
    pool.write("kept", b"kept");
    File::open(pool.at("kept")).unwrap().sync_all().unwrap();
    let home = pool.branch("a").path().display().to_string();
    crate::script::sh("/", &format!("xfs_io -x -c shutdown '{home}'"));
    assert_eq!(errno(fs::read(pool.at("kept"))), EIO);
    pool.branch_mut("a").revive();
    until("the branch comes back", || fs::read(pool.at("kept")).is_ok());
    assert_eq!(pool.read("kept"), b"kept");
}

/// The device number of a vanished file system is reused by the next one: that must not block a mount, though the old
/// path does not answer.
#[test]
fn the_number_of_a_branch_that_is_gone_is_free() {
    needs!(mounting());
    let device = |pool: &Pool| fs::metadata(pool.path()).unwrap().dev();
    let mut branch = lab::pool().tmp_branch("a").no_others().mount();
    branch.write("film", b"frames");
    let first = device(&branch);
    let over = |branch: &Pool| lab::pool().tmp_branch("b").over(&[branch.path().to_str().unwrap()]);
    let pool = over(&branch).option("attr-timeout=0").option("entry-timeout=0").mount();
    branch.kill_daemon();
    // The pool over it uses it, so it is unmounted lazily.
    command("umount").arg("-l").arg(branch.path()).run().unwrap();
    branch.remount();
    until("the branch is found again", || fs::read(pool.at("film")).is_ok());
    branch.kill_daemon();
    // Only the tests beside this one take device numbers.
    let others: Vec<_> = (0..4).map(|_| lab::pool().tmp_branch("a").no_others().mount()).collect();
    let Some(other) = others.iter().find(|other| device(other) == first) else {
        return Skip::because("the number of what is gone was given to somebody else").announce();
    };
    drop(over(other).mount());
}
