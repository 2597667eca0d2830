//! A copy between two branches of which one hangs in the middle: its caller gets an error, and the file on the other branch is as
//! good as any.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use fsstack_lab::{self as lab, MiB, Pool, needs, until};

use crate::hung_branches::{FrozenDaemon, described, no_file_is_open};
use crate::relocate::{assert_clean, assert_mibs, mib, writer};

const SIZE: usize = 48 << 20;
/// Bytes copied when the branch begins to hang, at least.
const BEGUN: u64 = 2 << 20;
const ROUNDS: usize = 100;

/// `a` has the file `on-a` and `b` the file `on-b`, both large.
fn filled() -> Pool {
    let mut pool = described().unmounted();
    for branch in ["a", "b"] {
        fs::write(pool.branch(branch).path().join(format!("on-{branch}")), vec![1; SIZE]).unwrap();
    }
    pool.remount();
    pool
}

fn copied(from: &File, to: &File) -> io::Result<()> {
    let mut done = 0;
    while done < SIZE {
        match rustix::fs::copy_file_range(from, None, to, None, SIZE - done)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(())
}

/// Copies until `a` hangs in the middle of it. `target` is where the file `to` is below the pool.
fn hung_copy(pool: &Pool, from: &str, to: &str, target: &Path) -> FrozenDaemon {
    for _ in 0..ROUNDS {
        let source = File::open(pool.at(from)).unwrap();
        let opened = OpenOptions::new().write(true).truncate(true).open(pool.at(to)).unwrap();
        let copying = thread::spawn(move || copied(&source, &opened));
        until("the copy has begun", || {
            copying.is_finished() || fs::metadata(target).unwrap().blocks() * 512 >= BEGUN
        });
        let frozen = FrozenDaemon::new(pool.branch("a").daemon());
        match copying.join().unwrap() {
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5));
                return frozen;
            }
            Ok(()) => drop(frozen), // it was too fast
        }
        until("the branch answers", || fs::metadata(pool.at("on-a")).is_ok());
    }
    panic!("no copy was interrupted");
}

/// Its caller got an error, and writes something else.
#[test]
fn a_copy_that_was_given_up_writes_nothing_more() {
    needs!(mounting(), program("mergerfs"));
    let pool = filled();
    let frozen = hung_copy(&pool, "on-a", "on-b", &pool.branch("b").path().join("on-b"));
    pool.write("on-b", b"newer");
    drop(frozen);
    until("the copy's thread is back", || no_file_is_open(&pool));
    assert_eq!(pool.read("on-b"), b"newer");
}

/// The copy's thread has the place of the file that it reads, too, which another program has open.
#[test]
fn a_file_that_a_hung_copy_reads_is_opened_or_refused() {
    needs!(mounting(), program("mergerfs"));
    let pool = filled();
    let reader = File::open(pool.at("on-b")).unwrap();
    let frozen = hung_copy(&pool, "on-b", "on-a", &pool.branch("a").below().join("on-a"));
    let (tell, told) = channel();
    let path = pool.at("on-b");
    let writer = thread::spawn(move || {
        let opened = OpenOptions::new().write(true).open(path);
        tell.send(opened.map(drop).map_err(|error| error.raw_os_error())).unwrap();
    });
    let opened = told.recv_timeout(Duration::from_secs(60));
    drop(frozen);
    writer.join().unwrap();
    assert!(matches!(opened, Ok(Ok(()) | Err(Some(5)))), "{opened:?}");
    until("it is opened", || OpenOptions::new().write(true).open(pool.at("on-b")).is_ok());
    drop(reader);
}

/// It hangs in the sync of another branch, which goes before it.
#[test]
fn a_synced_write_that_was_given_up_on_its_way_writes_nothing_later() {
    needs!(mounting(), program("mergerfs"));
    let mut pool = described().option("write-path=stacked").unmounted();
    for branch in ["a", "b"] {
        fs::create_dir(pool.branch(branch).path().join("d")).unwrap();
    }
    fs::write(pool.branch("b").path().join("d/file"), "first").unwrap();
    pool.remount();
    fs::set_permissions(pool.at("d"), Permissions::from_mode(0o750)).unwrap();
    let dsync = i32::try_from(rustix::fs::OFlags::DSYNC.bits()).unwrap();
    let synced = OpenOptions::new().write(true).custom_flags(dsync).open(pool.at("d/file")).unwrap();
    let other = OpenOptions::new().write(true).open(pool.at("d/file")).unwrap();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    assert_eq!(synced.write_at(b"older", 0).unwrap_err().raw_os_error(), Some(5));
    other.write_all_at(b"newer", 0).unwrap();
    drop(frozen);
    drop((synced, other));
    until("the write's thread is back", || no_file_is_open(&pool));
    until("the branch answers", || fs::metadata(pool.at("d")).is_ok());
    assert_eq!(pool.read("d/file"), b"newer");
}

/// Two branches have the directory `d`, and `b` the files `d/file` and `d/aside`.
fn in_two_copies() -> Pool {
    let mut pool = described().unmounted();
    for branch in ["a", "b"] {
        fs::create_dir(pool.branch(branch).path().join("d")).unwrap();
    }
    for name in ["d/file", "d/aside"] {
        fs::write(pool.branch("b").path().join(name), "older").unwrap();
    }
    pool.remount();
    // The files and their directory are known.
    assert_eq!(pool.read("d/file"), b"older");
    assert_eq!(pool.read("d/aside"), b"older");
    pool
}

/// `change` takes away the content of `d/file`. It is given up as `a` hangs, which is asked for a file of that name; what the program
/// writes then stays.
#[track_caller]
fn newer_content_stays(change: impl FnOnce(&Pool) -> io::Result<()>) {
    let pool = in_two_copies();
    let opened = OpenOptions::new().write(true).truncate(true).open(pool.at("d/file")).unwrap();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    assert_eq!(change(&pool).unwrap_err().raw_os_error(), Some(5));
    opened.write_all_at(b"newer", 0).unwrap();
    opened.sync_all().unwrap();
    drop((opened, frozen));
    until("the branch answers", || fs::metadata(pool.at("d")).is_ok());
    // The rename of a directory waits for other changes of names.
    until("a directory is made", || fs::create_dir(pool.at("other")).is_ok());
    until("it is renamed", || fs::rename(pool.at("other"), pool.at("renamed")).is_ok());
    assert_eq!(pool.read("d/file"), b"newer");
}

#[test]
fn a_removal_that_was_given_up_on_its_way_removes_no_newer_file() {
    needs!(mounting(), program("mergerfs"));
    newer_content_stays(|pool| fs::remove_file(pool.at("d/file")));
}

#[test]
fn a_rename_that_was_given_up_on_its_way_replaces_no_newer_file() {
    needs!(mounting(), program("mergerfs"));
    newer_content_stays(|pool| fs::rename(pool.at("d/aside"), pool.at("d/file")));
}

/// Its branch is full, and the one that it moves to hangs in the middle of the copy: all who use the file are answered, and it
/// stays as it was. `write` is the write that has it move.
#[test]
fn a_file_that_moves_to_a_branch_that_hangs_is_answered_for() {
    needs!(mounting(), loops(), program("mergerfs"));
    let options =
        ["create=ff", "write-path=stacked", "relocate-speed=8M", "branch-timeout=1", "minfreespace=4M"];
    let pool = lab::pool().xfs_branch("a", MiB(310)).served_branch("b");
    let mut pool = options.iter().fold(pool, |pool, option| pool.option(option)).mount();
    pool.branch("a").fill_until_free(MiB(24));
    let (film, other) = (writer(pool.at("film")), writer(pool.at("other")));
    other.write_all_at(b"text", 0).unwrap();
    let took = (0..20).map(|n| film.write_all_at(&mib(n), n << 20)).take_while(Result::is_ok).count() as u64;
    assert!(took > 4, "{took}");
    let grown = thread::spawn({
        let film = film.try_clone().unwrap();
        move || (took..40).try_for_each(|n| film.write_all_at(&mib(n), n << 20))
    });
    let staged = pool.branch("b").below().join(".fsstack.moving");
    let bytes = || {
        let copies = fs::read_dir(&staged).into_iter().flatten().flatten();
        copies.filter_map(|copy| Some(copy.metadata().ok()?.blocks() * 512)).sum::<u64>()
    };
    until("the copy has begun", || bytes() >= BEGUN);
    let frozen = FrozenDaemon::new(pool.branch("b").daemon());
    // Each is answered, with whatever answer.
    let (told, answers) = channel();
    for step in ["stat", "read", "append", "list", "rename"] {
        let (told, path, to) = (told.clone(), pool.at("film"), pool.at("film-2"));
        thread::spawn(move || {
            let answer = match step {
                "stat" => fs::metadata(path).map(drop),
                "read" => File::open(path).and_then(|file| file.read_exact_at(&mut [0; 10], 0)),
                "append" => writer_of(&path).and_then(|file| file.write_all_at(b"more", 60 << 20)),
                "list" => fs::read_dir(path.parent().unwrap()).map(|entries| assert!(entries.count() > 0)),
                _ => fs::rename(&path, &to).and_then(|()| fs::rename(&to, &path)),
            };
            told.send((step, answer.map_err(|error| error.to_string())))
        });
    }
    drop(told);
    let mut left = 5;
    until("all who use it are answered", || {
        left -= answers.try_iter().inspect(|answer| println!("{answer:?}")).count();
        left == 0
    });
    let answer = grown.join().unwrap();
    assert!(answer.is_err(), "a write of the file went on without its branch");
    other.write_all_at(b"more", 4).unwrap();
    drop((frozen, film, other));
    until("the branch answers again", || {
        fs::read_dir(pool.path()).is_ok_and(|mut names| names.all(|name| name.is_ok()))
    });
    pool.unmount();
    pool.remount();
    let kept = fs::metadata(pool.at("film")).unwrap().len();
    assert!(kept >= took << 20, "{kept}");
    assert_eq!(pool.holders("film"), ["a"]);
    let _whole = File::options().write(true).open(pool.at("film")).unwrap().set_len(took << 20);
    assert_mibs(&pool, "film", took);
    assert_clean(&pool);
}

fn writer_of(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}
