//! Requests for working branches while callers are stuck in a frozen one: everything that does not need the frozen
//! branch is answered.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::Duration;

use fsstack_lab::pool::Builder;
use fsstack_lab::{self as lab, needs, until};
use rustix::fs::{OFlags, copy_file_range};
use rustix::io::Errno;

use crate::hung_branches::{FrozenDaemon, callers_waiting, described, filled, lasting_a_second, waiting};

/// The parent directories are on the frozen branch too. A stuck caller waits, and then gets the other branch's data:
/// names and attributes that were known, and names that were not.
fn names_of_other_branches_are_answered_while_callers_are_stuck(builder: Builder) {
    let mut pool = filled(builder);
    pool.unmount();
    for branch in ["a", "b"] {
        fs::create_dir(pool.branch(branch).path().join("both")).unwrap();
    }
    for n in 0..40 {
        fs::write(pool.branch("b").path().join(format!("both/{n}")), "on b").unwrap();
    }
    for round in 0..4 {
        pool.remount();
        // The first one's location is cached, the others' are not.
        assert_eq!(pool.read("both/0"), b"on b");
        assert_eq!(pool.read("on-b/0"), b"on-b/0");
        let caught: Vec<_> = {
            let frozen = FrozenDaemon::new(pool.branch("a").daemon());
            let ask = |what: &'static str, at: &str, act: fn(&Path) -> io::Result<()>| {
                let at = pool.at(at);
                thread::spawn(move || {
                    act(&at).map_err(|error| format!("{what} of {}: {error}", at.display()))
                })
            };
            let mut asked = Vec::new();
            for n in 0..2 {
                asked.push(ask("attributes", "", |at| fs::symlink_metadata(at).map(drop)));
                asked.push(ask("attributes", "both", |at| fs::symlink_metadata(at).map(drop)));
                asked.push(ask("a known file", "both/0", |at| fs::read(at).map(drop)));
                asked.push(ask("a known file", "on-b/0", |at| fs::read(at).map(drop)));
                asked.push(ask("a file", &format!("both/{}", 10 * round + n), |at| fs::read(at).map(drop)));
                asked.push(ask("a file", &format!("on-b/{}", 10 * round + n), |at| fs::read(at).map(drop)));
                asked.push(ask("a change", "both/0", |at| {
                    OpenOptions::new().append(true).open(at)?.set_modified(std::time::SystemTime::now())
                }));
                asked.push(ask("space", "", |at| rustix::fs::statvfs(at).map(drop).map_err(io::Error::from)));
            }
            let failure = asked.into_iter().filter_map(|asked| asked.join().unwrap().err()).collect();
            drop(frozen);
            failure
        };
        assert!(caught.is_empty(), "round {round}: {caught:#?}");
        until("the branch answers again", || fs::read(pool.at("on-a/30")).is_ok());
        pool.unmount();
    }
}

#[test]
fn names_of_other_branches_are_answered_while_callers_are_stuck_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    names_of_other_branches_are_answered_while_callers_are_stuck(described().option("transport=dev"));
}

#[test]
fn names_of_other_branches_are_answered_while_callers_are_stuck_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    names_of_other_branches_are_answered_while_callers_are_stuck(described().option("transport=ring"));
}

/// The frozen branch is the first: its copies are those that the pool shows.
#[test]
fn names_of_another_branch_are_answered_if_the_first_is_frozen() {
    needs!(mounting(), program("mergerfs"));
    let first = lab::pool().served_branch("a").tmp_branch("b");
    names_of_other_branches_are_answered_while_callers_are_stuck(lasting_a_second(first));
}

/// More callers are stuck than the branch admits: callers that do not need it are not blocked. Over /dev/fuse, because
/// the kernel does not pass requests that arrived while a ring queue had no entry to an entry that is added later.
#[test]
fn names_of_another_branch_are_answered_while_all_permits_of_the_frozen_one_are_taken() {
    needs!(mounting(), program("mergerfs"));
    let builder = described().option("transport=dev").option("branch-timeout=60").option("branch-inflight=4");
    let pool = Arc::new(filled(builder));
    fs::write(pool.at("here"), "on b").unwrap();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let caught: Vec<_> = (0..12)
        .map(|n| {
            let pool = pool.clone();
            thread::spawn(move || fs::metadata(pool.at(format!("on-a/{n}"))).is_ok())
        })
        .collect();
    until("the callers wait", || callers_waiting() >= 12);
    assert_eq!(fs::read(pool.at("here")).unwrap(), b"on b");
    assert!(caught.iter().all(|caller| !caller.is_finished()), "answered before any call was given up");
    drop(frozen);
    assert!(caught.into_iter().all(|caller| caller.join().unwrap()), "thawed in time: nobody is refused");
}

/// More than 64 requests in the background. With a page cache direct reads are such; of cached ones the kernel sends fewer.
fn background_requests_to_the_frozen_branch_hold_nobody_up(builder: Builder) {
    const READERS: usize = 100;
    let pool = filled(builder.option("page-cache=on,branch-timeout=3600,attr-timeout=60"));
    let opened = |branch: &str, at: &str| {
        File::create(pool.branch(branch).path().join(at)).unwrap().set_len(1 << 20).unwrap();
        OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::DIRECT.bits().cast_signed())
            .open(pool.at(at))
            .unwrap()
    };
    let large: Vec<_> = (0..READERS).map(|n| opened("a", &format!("on-a/large-{n}"))).collect();
    let other = opened("b", "on-b/large");
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let read = |file: File| thread::spawn(move || file.read_exact_at(&mut vec![0; 1 << 20], 0));
    let readers: Vec<_> = large.into_iter().map(read).collect();
    until("all readers wait", || waiting(pool.path()) >= READERS);
    let other = read(other);
    until("the file of the other branch is read", || other.is_finished());
    other.join().unwrap().unwrap();
    drop(frozen);
    readers.into_iter().for_each(|reader| reader.join().unwrap().unwrap());
}

#[test]
fn background_requests_to_the_frozen_branch_hold_nobody_up_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    background_requests_to_the_frozen_branch_hold_nobody_up(described().option("transport=dev"));
}

#[test]
fn background_requests_to_the_frozen_branch_hold_nobody_up_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    background_requests_to_the_frozen_branch_hold_nobody_up(described().option("transport=ring"));
}

/// New objects go to a working branch without knowing the frozen one's space.
#[test]
fn files_are_made_on_another_branch_while_callers_are_stuck() {
    needs!(mounting(), program("mergerfs"));
    let pool = filled(described());
    // The cached space is too old to be used.
    sleep(Duration::from_millis(1500));
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    for n in 0..5 {
        fs::write(pool.at(format!("on-b/new-{n}")), "new").unwrap();
        fs::create_dir(pool.at(format!("on-b/dir-{n}"))).unwrap();
    }
    drop(frozen);
    assert_eq!(pool.holders("on-b/new-4"), ["b"]);
}

/// Copies between the branches, with the frozen one as source or target.
#[test]
fn a_copy_between_branches_ends_if_either_hangs() {
    needs!(mounting(), program("mergerfs"));
    let pool = filled(described());
    for (from, to) in [("on-a/1", "on-b/1"), ("on-b/2", "on-a/2")] {
        let source = File::open(pool.at(from)).unwrap();
        let target = OpenOptions::new().write(true).open(pool.at(to)).unwrap();
        let frozen = FrozenDaemon::new(pool.branch("a").daemon());
        let copy = thread::spawn(move || copy_file_range(&source, None, &target, None, 6));
        until("the copy ends", || copy.is_finished());
        assert_eq!(copy.join().unwrap(), Err(Errno::IO), "{from} to {to}");
        drop(frozen);
        until("the branch answers again", || fs::read(pool.at("on-a/30")).is_ok());
    }
}
