//! File handles when branches are added, removed, reordered or do not answer.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, Kind, MiB, Pool, needs, until};
use fsstack_sys::{Errno, OFlags};

use crate::command::{output_of, refused};
use crate::handles::{
    HeldHandle, check, check_stale, fill, forget, forget_everywhere, hold, hold_all, moved, open, over,
};
use crate::handles_elsewhere::index;
use crate::hung_branches::{FrozenDaemon, lasting_a_second};
use crate::script::{passthrough, sh};

/// Error for a handle that cannot be resolved now: the kernel turns most errors into ESTALE, but not this one.
const OUT_OF_REACH: Option<Errno> = Some(Errno::NOMEM);

/// Objects on both branches: those of `fill` on `x`.
fn pool() -> (Pool, HeldHandle) {
    let pool = lab::pool().xfs_branch("x", MiB(300)).ext4_branch("e", MiB(100)).xfs_branch("new", MiB(300));
    let mut pool = pool.option("create=ff").option("nfs-export").unmounted();
    pool.remount_of(&["x", "e"]);
    fill(&pool);
    fs::write(pool.branch("e").path().join("elsewhere"), "elsewhere").unwrap();
    let elsewhere = hold(&pool, "elsewhere");
    (pool, elsewhere)
}

#[test]
fn handles_outlive_another_order_and_further_branches() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, elsewhere) = pool();
    for order in [&["e", "x"][..], &["e", "new", "x"], &["x", "e"]] {
        over(&mut pool, |pool| pool.remount_of(order));
        check(&pool, &elsewhere);
    }
    // At run time: a branch is added and removed again.
    let new = pool.branch("new").path().display().to_string();
    let at = pool.path().display().to_string();
    over(&mut pool, |_| {
        output_of(&["branch", "add", &at, &new]);
    });
    over(&mut pool, |_| {
        output_of(&["branch", "remove", &at, &new]);
    });
    check(&pool, &elsewhere);
}

#[test]
fn handles_outlive_a_reboot() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, elsewhere) = pool();
    over(&mut pool, Pool::reboot);
    check(&pool, &elsewhere);
}

#[test]
fn a_handle_of_a_branch_that_is_not_in_the_pool_is_an_error_until_it_is() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, elsewhere) = pool();
    let held = hold_all(&pool);
    pool.remount_of(&["e"]);
    for held in &held {
        assert_eq!(open(&pool, held, OFlags::PATH).err(), OUT_OF_REACH);
    }
    check(&pool, &elsewhere);
    pool.remount_of(&["x", "e"]);
    held.iter().for_each(|held| check(&pool, held));
}

/// A moved file is on another branch than its number says: that branch is missing, and the index is complete.
#[test]
fn a_handle_of_a_moved_file_is_an_error_while_its_branch_is_not_in_the_pool() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    for _ in 0..2 {
        pool.remount_of(&["x"]);
        until("the index is complete", || index(&pool).starts_with("complete"));
        for _ in 0..2 {
            forget();
            assert_eq!(open(&pool, &held, OFlags::PATH).err(), OUT_OF_REACH);
        }
        pool.remount_of(&["x", "y"]);
        check(&pool, &held);
    }
    // The branch in its number does not matter.
    pool.remount_of(&["y"]);
    forget();
    check(&pool, &held);
}

/// No request waits longer than the branch's timeout. The branch is another pool, so its numbers are stable.
#[test]
fn a_handle_of_a_branch_that_hangs_is_an_error_in_time() {
    needs!(mounting(), drop_caches());
    let below = lab::pool().tmp_branch("brick").no_others().mount();
    sh(below.path(), "mkdir -p d/sub; echo file > d/file; ln -s file d/link");
    let pool = lab::pool().tmp_branch("t").over(&[below.path().to_str().unwrap()]);
    let pool = lasting_a_second(pool).option("nfs-export").mount();
    let held = ["d/file", "d/sub", "d/link", "d"].map(|path| hold(&pool, path));
    forget();
    let frozen = FrozenDaemon::new(below.daemon());
    for held in &held {
        let began = Instant::now();
        assert_eq!(open(&pool, held, OFlags::PATH).err(), OUT_OF_REACH, "{held:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{held:?}: {:?}", began.elapsed());
    }
    drop(frozen);
    for held in &held {
        until("the branch is back", || match open(&pool, held, OFlags::PATH).err() {
            None => true,
            error => {
                assert_eq!(error, OUT_OF_REACH, "{held:?}");
                false
            }
        });
        check(&pool, held);
    }
}

/// Handles of a branch that was given up are stale, after a remount too, until the branch is back.
#[test]
fn a_handle_of_a_branch_that_was_given_up_is_stale() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, elsewhere) = pool();
    let at = pool.path().display().to_string();
    let [x, e] = ["x", "e"].map(|name| pool.branch(name).path().display().to_string());
    let held = hold_all(&pool);
    let (code, why) = refused(&["branch", "forget", &at, &x]);
    assert!(code == 1 && why.contains("what is in the pool is not forgotten"), "{code}: {why}");
    pool.remount_of(&["e"]);
    assert_eq!(open(&pool, &held[0], OFlags::PATH).err(), OUT_OF_REACH);
    let checked = output_of(&["nfs", "check", &at]);
    let away = checked.lines().find(|line| line.contains("warn  away: branch")).unwrap();
    let id = away.split_whitespace().last().unwrap().to_owned();
    assert!(away.contains(&format!("branch {id} ({x}) is not in the pool")), "{checked}");
    let (code, why) = refused(&["branch", "forget", &at, "/nowhere"]);
    assert!(code == 3 && why.contains(&format!("there are: {id} ({x})")), "{code}: {why}");
    for wrong in ["0", "32768", "65536"] {
        assert_eq!(refused(&["branch", "forget", &at, wrong]).0, 3, "{wrong}");
    }
    let forgotten = output_of(&["branch", "forget", &at, &x]);
    assert_eq!(forgotten, format!("branch {id} ({x}) is forgotten: handles of what was there are stale\n"));
    for held in &held {
        check_stale(&pool, held);
    }
    check(&pool, &elsewhere);
    assert!(!output_of(&["nfs", "check", &at]).contains("away:"));
    // That is stored on disk.
    pool.kill_daemon();
    pool.remount();
    check_stale(&pool, &held[0]);
    // A branch that is back is used again.
    output_of(&["branch", "add", &at, &x]);
    held.iter().for_each(|held| check(&pool, held));
    // By its id, which may be unknown, as after a loss of the index.
    pool.remount_of(&["e"]);
    output_of(&["branch", "forget", &at, &id]);
    check_stale(&pool, &held[0]);
    output_of(&["branch", "forget", &at, "7"]);
    let (code, why) = refused(&["branch", "forget", &at, &e]);
    assert!(code == 1 && why.contains("a branch of this pool"), "{code}: {why}");
}

/// Without `nfs-export` no handle waits.
#[test]
fn a_pool_that_is_not_exported_has_no_branch_to_forget() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").mount();
    let (code, why) = refused(&["branch", "forget", &pool.path().display().to_string(), "7"]);
    assert!(code == 2 && why.contains("without nfs-export"), "{code}: {why}");
}

/// A file system that was shut down under the pool, and one that is back.
#[test]
fn a_handle_of_a_dead_branch_is_an_error_until_it_is_back() {
    needs!(mounting(), loops(), drop_caches(), program("xfs_io"));
    let (mut pool, elsewhere) = pool();
    let held = hold_all(&pool);
    rustix::fs::sync();
    forget();
    sh("/", &format!("xfs_io -x -c shutdown '{}'", pool.branch("x").path().display()));
    for held in &held {
        assert_eq!(open(&pool, held, OFlags::PATH).err(), OUT_OF_REACH);
        forget();
    }
    check(&pool, &elsewhere);
    pool.reboot();
    held.iter().for_each(|held| check(&pool, held));
}

/// The kernel finds the name of a directory whose handle is opened in its parent's listing, which is short.
#[test]
fn a_handle_of_a_directory_is_good_while_another_branch_is_dead() {
    needs!(mounting(), loops(), drop_caches(), program("xfs_io"));
    for order in [["x", "e"], ["e", "x"]] {
        let (mut pool, _) = pool();
        pool.remount_of(&order);
        fs::create_dir_all(pool.branch("e").path().join("own/sub")).unwrap();
        fs::create_dir_all(pool.branch("e").path().join("d/beside")).unwrap();
        let held = ["own", "own/sub", "d/beside"].map(|dir| hold(&pool, dir));
        rustix::fs::sync();
        forget();
        sh("/", &format!("xfs_io -x -c shutdown '{}'", pool.branch("x").path().display()));
        for held in held.iter().chain(held.iter().rev()) {
            check(&pool, held);
            forget();
        }
    }
}

/// A broken connection (ENOTCONN, ECONNABORTED of another FUSE) is an I/O error for clients.
#[test]
fn a_handle_of_a_branch_whose_daemon_is_dead_is_an_error_that_servers_know() {
    needs!(mounting(), drop_caches(), program("mergerfs"));
    // Numbered: handles on a branch that numbers files anew when its kernel forgets them do not last (docs/nfs.md).
    let pool = lab::pool().branch("s", Kind::Numbered).tmp_branch("t");
    let pool = pool.option("create=ff").option("nfs-export").mount();
    fill(&pool);
    let held = hold_all(&pool);
    forget();
    pool.branch("s").daemon().kill().unwrap();
    for held in &held {
        assert_eq!(open(&pool, held, OFlags::PATH).err(), OUT_OF_REACH, "{held:?}");
        forget();
    }
}

/// Passthrough reads and writes return the errno of the branch's file system: an error, never that the file is gone.
/// Requests to the daemon are answered as usual.
#[test]
fn a_file_that_is_open_by_passthrough_when_its_branch_dies_is_not_stale() {
    needs!(mounting(), drop_caches(), program("mergerfs"));
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool =
        lab::pool().branch("s", Kind::Numbered).tmp_branch("t").option("create=ff").option("nfs-export");
    let pool = pool.option("write-path=passthrough").option("attr-timeout=0").mount();
    pool.write("f", &[b'f'; 1 << 16]);
    let mut held = hold(&pool, "f");
    held.content = None;
    let file = File::from(open(&pool, &held, OFlags::RDWR).unwrap());
    pool.branch("s").daemon().kill().unwrap();
    let errno_of = |done: std::io::Result<()>| done.err().and_then(|error| error.raw_os_error());
    let dead = [Errno::IO, Errno::NOTCONN, Errno::CONNABORTED].map(|errno| Some(errno.raw_os_error()));
    let mut bytes = [0; 4096];
    let read = errno_of(file.read_exact_at(&mut bytes, 0));
    let written = errno_of(file.write_all_at(&bytes, 1 << 15).and_then(|()| file.sync_all()));
    assert!(read.is_none() || dead.contains(&read), "{read:?}"); // it may be cached
    assert!(dead.contains(&written), "{written:?}");
    assert_eq!(errno_of(file.metadata().map(drop)), Some(Errno::IO.raw_os_error()));
    drop(file);
    forget_everywhere(&pool);
    assert_eq!(open(&pool, &held, OFlags::PATH).err(), OUT_OF_REACH);
}

/// 64-bit numbers do not contain the branch: GlusterFS has such, and here another pool that looks like a volume.
#[test]
fn a_handle_of_a_branch_with_long_numbers_that_is_not_in_the_pool_is_an_error_until_it_is() {
    needs!(mounting(), drop_caches());
    let below = lab::pool().tmp_branch("brick").option("subtype=glusterfs").no_others().mount();
    let volume = below.path().to_str().unwrap();
    sh(below.path(), "mkdir -p d/sub; echo file > d/file; ln -s file d/link; echo gone > gone");
    let pool = lab::pool().tmp_branch("t").over(&[volume]).option("create=ff").option("nfs-export");
    let mut pool = pool.mount();
    pool.write("here", b"here");
    let held = ["d/file", "d", "d/link", "d/sub"].map(|path| hold(&pool, path));
    let (here, gone) = (hold(&pool, "here"), hold(&pool, "gone"));
    assert!(held.iter().all(|held| held.ino >> 63 == 1), "{held:?}");
    pool.remount_of(&["t"]);
    for held in &held {
        assert_eq!(open(&pool, held, OFlags::PATH).err(), OUT_OF_REACH, "{held:?}");
    }
    check(&pool, &here);
    // Its number does not say where the object was: a branch that was given up is not searched.
    output_of(&["branch", "forget", pool.path().to_str().unwrap(), volume]);
    held.iter().for_each(|held| check_stale(&pool, held));
    output_of(&["branch", "add", pool.path().to_str().unwrap(), volume]);
    held.iter().for_each(|held| check(&pool, held));
    fs::remove_file(pool.at("gone")).unwrap();
    forget();
    check_stale(&pool, &gone);
}

/// Two directories of one file system without xattrs: they must not be distinguished by their order.
#[test]
fn handles_outlive_another_order_of_branches_that_cannot_be_written() {
    needs!(mounting(), drop_caches());
    let base = lab::pool().tmpfs_branch("base", MiB(10)).unmounted();
    let shelf = base.branch("base").path();
    sh(shelf, "mkdir a b; echo of a > a/f; echo of b > b/f; echo a > a/only-a; echo b > b/only-b");
    // Directories of one tmpfs made in turn: their inode numbers are alike too.
    sh("/", &format!("mount -o remount,ro '{}'", shelf.display()));
    let branches = ["a", "b"].map(|dir| shelf.join(dir).display().to_string());
    let mounted = |branches: &[String]| lab::pool().over(branches).option("nfs-export").no_others().mount();
    let pool = mounted(&branches);
    let held = ["f", "only-a", "only-b"].map(|path| hold(&pool, path));
    drop(pool);
    for order in [[0, 1], [1, 0]] {
        let pool = mounted(&order.map(|n| branches[n].clone()));
        for held in &held {
            let file = File::from(open(&pool, held, OFlags::RDONLY).unwrap());
            assert_eq!(&std::io::read_to_string(file).unwrap(), held.content.as_ref().unwrap(), "{order:?}");
        }
    }
    sh("/", &format!("mount -o remount,rw '{}'", shelf.display()));
}
