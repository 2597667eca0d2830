//! The daemon is replaced, or dies, under nfs-ganesha, which runs on with what its clients hold.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use fsstack_lab::ganesha::Ganesha;
use fsstack_lab::nfs4::{Client, HeldLock, How, NfsError, Opened};
use fsstack_lab::shell::command;
use fsstack_lab::{Pool, daemon, needs, until};
use fsstack_sys::Errno;
use fsstack_sys::locks::{Lock, LockType, try_lock};

use crate::ganesha::needs_ganesha;
use crate::test_bed::{TestBed, builder, forget};

/// Writes of a client beside each event.
const WRITES: usize = 200;

fn upgrade(pool: &Pool) {
    let fsstack = daemon::helper().unwrap().with_file_name("fsstack");
    let said = command(fsstack).arg("upgrade").arg(pool.path()).run().unwrap().stdout;
    assert!(said.contains("pause"), "{said}");
}

/// Kills the daemon of a pool with `restart=keep`.
fn crash(pool: &Pool) {
    let serves = || pool.daemon().child();
    let dies = serves().unwrap();
    dies.kill().unwrap();
    until("the keeper starts another daemon", || serves().is_some_and(|next| next != dies));
}

/// Open files of a client, one of which has no name any more.
struct HeldFiles {
    client: Client,
    root: Vec<u8>,
    open: Opened,
    removed: Opened,
    /// Lock of the first bytes of the open file.
    lock: HeldLock,
    round: u64,
}

/// Range of the lock.
const LOCKED: (u64, u64) = (0, 8);

impl HeldFiles {
    fn of(test_bed: &TestBed) -> Self {
        let mut client = test_bed.client();
        let root = client.handle("").unwrap();
        let open = client.open(&root, "open", How::Made).unwrap();
        let removed = client.open(&root, "removed", How::Made).unwrap();
        client.write(&removed, 0, b"removed").unwrap();
        // By another program: the server still has it open.
        fs::remove_file(test_bed.pool.at("removed")).unwrap();
        let lock = client.lock(&open, LOCKED).unwrap();
        Self { client, root, open, removed, lock, round: 0 }
    }

    /// Whether another client, and a program on the server's machine, may lock what this one has locked.
    fn others_may_lock(&self, test_bed: &TestBed) -> [bool; 2] {
        let mut other = test_bed.client();
        let open = other.open(&self.root, "open", How::Existing).unwrap();
        let by_client = match other.lock(&open, LOCKED) {
            Ok(lock) => {
                other.unlock(&open, &lock).unwrap();
                true
            }
            Err(error) => {
                assert_eq!(error, NfsError::DENIED);
                false
            }
        };
        other.close(&open).unwrap();
        [by_client, locked_here(&test_bed.pool.at("open"))]
    }

    /// Checks that they go on where they were.
    fn go_on(&mut self) {
        let (client, at) = (&mut self.client, self.round * 8);
        let text = format!("{:08}", self.round);
        client.write(&self.open, at, text.as_bytes()).unwrap();
        client.commit(&self.open).unwrap();
        assert_eq!(client.read_open(&self.open, at, 8).unwrap(), text.as_bytes());
        assert_eq!(client.size(&self.open.handle), Ok(at + 8));
        assert_eq!(client.read_open(&self.removed, 0, 100).unwrap(), b"removed");
        assert_eq!(client.stat(&self.root, "removed"), Err(NfsError::NOENT));
        self.round += 1;
    }
}

/// Whether a program on this machine may lock the first bytes of the file. The lock goes with the descriptor.
fn locked_here(path: &Path) -> bool {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (start, length) = LOCKED;
    match try_lock(file.as_fd(), Lock { kind: LockType::Write, start, end: start + length - 1, pid: 0 }) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.errno, Errno::AGAIN);
            false
        }
    }
}

/// Files that a client makes, writes, reads and removes.
fn work(mut client: Client, root: &[u8]) {
    for n in 0..WRITES {
        let name = format!("work{}", n % 10);
        let made = client.open(root, &name, How::Made).unwrap();
        client.write(&made, 0, name.as_bytes()).unwrap();
        client.commit(&made).unwrap();
        assert_eq!(client.read(&made.handle, 0, 100).unwrap(), name.as_bytes());
        client.close(&made).unwrap();
        client.remove(root, &name).unwrap();
    }
}

/// Name of an event, and the event.
type Event = (&'static str, fn(&Pool));

fn go_on_over(pool: Pool, events: &[Event]) {
    let mut test_bed = TestBed::over(pool);
    let mut held = HeldFiles::of(&test_bed);
    held.go_on();
    for (event, happen) in events {
        let (client, root) = (test_bed.client(), held.root.clone());
        std::thread::scope(|scope| {
            let works = scope.spawn(|| work(client, &root));
            happen(&test_bed.pool);
            works.join().unwrap();
        });
        held.go_on();
        test_bed.check(event);
        assert_eq!(held.others_may_lock(&test_bed), [false; 2], "after {event}");
        // Nobody has its handles in a cache.
        forget();
        happen(&test_bed.pool);
        held.go_on();
        test_bed.check(event);
    }
    held.client.unlock(&held.open, &held.lock).unwrap();
    assert_eq!(held.others_may_lock(&test_bed), [true; 2]);
    held.client.close(&held.open).unwrap();
    held.client.close(&held.removed).unwrap();
    assert_eq!(test_bed.pool.read("open").len() as u64, held.round * 8);
}

#[test]
fn handles_and_open_files_go_on_over_upgrades() {
    needs_ganesha!();
    go_on_over(builder().option("transport=dev").mount(), &[("an upgrade", upgrade)]);
}

#[test]
fn handles_and_open_files_go_on_over_deaths_with_a_keeper() {
    needs_ganesha!();
    let pool = builder().option("transport=dev").option("restart=keep").mount();
    // Two deaths: a third one within a minute would end the pool.
    go_on_over(pool, &[("an upgrade beside the keeper", upgrade), ("kill -9 with restart=keep", crash)]);
}
