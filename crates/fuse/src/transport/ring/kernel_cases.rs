//! Promises of the kernel about entries whose ring is closed: what an upgrade over io_uring would rest on (decision 153).
//!
//! A failure here is news of the kernel, not of the pool. One entry in each queue, served by this thread; callers are on one CPU, so
//! that their requests go to one queue.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use fsstack_lab::{Skip, needs};
use fsstack_sync::mpsc::{Receiver, RecvTimeoutError, channel};
use fsstack_sys::mounts::{self, MountFlags, mount_fuse};
use fsstack_sys::{Errno, fusectl};
use rustix::mount::UnmountFlags;
use tempfile::TempDir;

use super::entry::{Entry, Fetched};
use crate::transport::{Transport, queues};

/// How long an event is waited for that comes at once.
const LIMIT: Duration = Duration::from_secs(60);
/// How long nothing is waited for.
const MOMENT: Duration = Duration::from_millis(200);
const PAYLOAD: usize = 1 << 20;

/// Opcodes, and flags of FUSE_INIT (`linux/fuse.h`).
const LOOKUP: u32 = 1;
const INIT_EXT: u32 = 1 << 30;
const PARALLEL_DIROPS: u32 = 1 << 18;
/// `FUSE_OVER_IO_URING` in the second word of flags.
const OVER_IO_URING: u32 = 1 << (41 - 32);

/// A mount of which each name is missing.
struct Connection {
    device: OwnedFd,
    target: TempDir,
    cpu: usize,
}

impl Connection {
    /// None, which is announced: the kernel grants no FUSE over io_uring to this process.
    fn granted() -> Option<Self> {
        let ring = || Transport::Ring.settled().map(drop).map_err(Skip::because);
        match needs::root().and_then(|()| needs::fuse()).and_then(|()| ring()) {
            Ok(()) => Some(Self::new()),
            Err(skip) => {
                skip.announce();
                None
            }
        }
    }

    fn new() -> Self {
        let device: OwnedFd = File::options().read(true).write(true).open("/dev/fuse").unwrap().into();
        let target = tempfile::tempdir().unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        mount_fuse("ring-cases".as_ref(), target.path(), "fuse", MountFlags::NOSUID, &data).unwrap();
        let mut init = vec![0; 1 << 20];
        rustix::io::read(&device, &mut init[..]).unwrap();
        let words =
            [7, 42, 0, INIT_EXT | PARALLEL_DIROPS, 0, 1 << 20, 1, 0, OVER_IO_URING, 0, 0, 0, 0, 0, 0, 0];
        let body: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        rustix::io::write(&device, &[&header(body.len(), 0, &init[8..16])[..], &body].concat()).unwrap();
        let cpu = fsstack_sys::thread::allowed_cpus()[0];
        Self { device, target, cpu }
    }

    /// An entry in each queue. That of the callers' queue is first.
    fn entries(&self) -> Vec<Entry> {
        let own = u16::try_from(self.cpu).unwrap();
        let others = (0..u16::try_from(queues()).unwrap()).filter(|queue| *queue != own);
        let register = |queue| {
            let mut entry = Entry::new(self.device.as_raw_fd(), queue, PAYLOAD).unwrap();
            assert!(matches!(entry.register(), Ok(Fetched::Nothing)), "queue {queue}");
            entry
        };
        std::iter::once(own).chain(others).map(register).collect()
    }

    /// A program that looks for a name.
    fn looks_for(&self, name: &str) -> Caller {
        let (path, cpu) = (self.target.path().join(name), self.cpu);
        let (sender, receiver) = channel();
        fsstack_sync::thread::spawn(move || {
            let mut only = rustix::thread::CpuSet::new();
            only.set(cpu);
            rustix::thread::sched_setaffinity(None, &only).unwrap();
            sender.send(std::fs::symlink_metadata(path).map(drop))
        });
        Caller(receiver)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mounts = mounts::list().unwrap_or_default();
        let own = mounts.iter().find(|mount| mount.mount_point == self.target.path());
        let _aborted = own.map(|own| fusectl::abort(fusectl::connection_of(own.device())));
        let _gone = rustix::mount::unmount(self.target.path(), UnmountFlags::DETACH);
    }
}

/// `struct fuse_out_header`.
fn header(body: usize, errno: i32, unique: &[u8]) -> Vec<u8> {
    let len = u32::try_from(16 + body).unwrap();
    [&len.to_ne_bytes()[..], &(-errno).to_ne_bytes(), unique].concat()
}

struct Caller(Receiver<io::Result<()>>);

impl Caller {
    #[track_caller]
    fn waits(&self) {
        assert_eq!(self.0.recv_timeout(MOMENT).err(), Some(RecvTimeoutError::Timeout));
    }

    #[track_caller]
    fn ends_with(&self, errno: Errno) {
        let ended = self.0.recv_timeout(LIMIT).expect("the call waits");
        assert_eq!(ended.unwrap_err().raw_os_error(), Some(errno.raw_os_error()));
    }
}

/// The name that is looked for by the next request.
#[track_caller]
fn name_in(entry: &mut Entry) -> String {
    let fetched = entry.fetch_within(LIMIT).unwrap();
    assert!(matches!(fetched, Fetched::Request), "no request comes");
    let [header, _, rest] = entry.slot.request();
    assert_eq!(header[4..8], LOOKUP.to_ne_bytes());
    String::from_utf8_lossy(rest).trim_end_matches('\0').to_owned()
}

/// Answers the request `unique` by `entry`, which waits for the next.
fn answer(entry: &mut Entry, unique: u64) {
    entry.slot.put(&header(0, libc::ENOENT, &unique.to_ne_bytes()), &[]);
    entry.commit_to(unique).unwrap();
}

#[test]
fn the_entries_of_a_new_ring_serve_the_connection() {
    let Some(connection) = Connection::granted() else { return };
    drop(connection.entries());
    let mut entries = connection.entries();
    let caller = connection.looks_for("a");
    assert_eq!(name_in(&mut entries[0]), "a");
    let unique = entries[0].slot.unique();
    answer(&mut entries[0], unique);
    caller.ends_with(Errno::NOENT);
}

/// An upgrade would lose it: no call tells that a request is on its way to an entry.
#[test]
fn a_request_fails_if_the_ring_of_its_entry_is_closed_before_it_is_read() {
    let Some(connection) = Connection::granted() else { return };
    let entries = connection.entries();
    let caller = connection.looks_for("a");
    caller.waits();
    drop(entries);
    caller.ends_with(Errno::CANCELED);
}

/// The way out: an entry that has a request takes no other.
#[test]
fn requests_behind_entries_that_are_all_taken_wait_for_another_ring() {
    let Some(connection) = Connection::granted() else { return };
    let mut entries = connection.entries();
    let taken = connection.looks_for("taken");
    assert_eq!(name_in(&mut entries[0]), "taken");
    let unique = entries[0].slot.unique();
    let waiting = connection.looks_for("waiting");
    waiting.waits();
    // The rings close; the buffers stay.
    let mut slots: Vec<_> = entries.into_iter().map(|entry| entry.slot).collect();
    let mut entries = connection.entries();
    taken.waits();
    waiting.waits();
    // A new entry takes a new request only, and those that wait behind it.
    let next = connection.looks_for("next");
    for name in ["next", "waiting"] {
        assert_eq!(name_in(&mut entries[0]), name);
        let unique = entries[0].slot.unique();
        answer(&mut entries[0], unique);
    }
    [next, waiting].iter().for_each(|caller| caller.ends_with(Errno::NOENT));
    // Any ring may answer it: from the buffers of the entry that has it, which the kernel uses again.
    slots[0].put(&header(0, libc::ENOENT, &unique.to_ne_bytes()), &[]);
    entries[0].commit_to(unique).unwrap();
    taken.ends_with(Errno::NOENT);
    drop((connection, slots));
}
