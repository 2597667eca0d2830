//! Promises of the kernel that a change of daemons rests on, without the daemon: a server of a few lines at /dev/fuse.
//!
//! A failure here is news of the kernel, not of the pool: upgrades and `restart=keep` need another way then.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fsstack_engine::files::route::Backings as _;
use fsstack_fuse::notify::send_again;
use fsstack_fuse::transport::device::{DeviceBackings, clone_device};
use fsstack_lab::{mounts, needs};
use fsstack_sys::mounts::{MountFlags, mount_fuse};
use fsstack_wire::abi::{FOPEN_DIRECT_IO, FOPEN_NOFLUSH, FOPEN_PASSTHROUGH, ROOT_ID, UNIQUE_RESEND};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tempfile::TempDir;

/// How long an event is waited for that comes at once.
const LIMIT: Duration = Duration::from_secs(60);

/// Numbers of the requests that the server knows (`linux/fuse.h`).
mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const BATCH_FORGET: u32 = 42;
}

const INIT_EXT: u32 = 1 << 30;
/// Names of one directory are looked up side by side.
const PARALLEL_DIROPS: u32 = 1 << 18;
/// `FUSE_HANDLE_KILLPRIV_V2`, as the pool has it: the kernel remembers which inodes have no capabilities.
const KILLS_PRIVILEGES: u32 = 1 << 28;
/// `FUSE_PASSTHROUGH` and `FUSE_HAS_RESEND` in the second word of flags.
const PASSTHROUGH: u32 = 1 << (37 - 32);
const HAS_RESEND: u32 = 1 << (39 - 32);
const SIZE: u64 = 4096;
/// Seconds for which names and attributes are cached.
const VALID: u64 = 10_000;

/// A request as it was read.
struct Request {
    opcode: u32,
    unique: u64,
    node: u64,
    body: Vec<u8>,
}

/// Little structs of the protocol.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn words(mut self, words: &[u32]) -> Self {
        words.iter().for_each(|word| self.0.extend(word.to_ne_bytes()));
        self
    }

    fn longs(mut self, longs: &[u64]) -> Self {
        longs.iter().for_each(|long| self.0.extend(long.to_ne_bytes()));
        self
    }

    /// `struct fuse_attr`.
    fn attr(self, node: u64) -> Self {
        let mode = if node == ROOT_ID { 0o040_755 } else { 0o100_644 };
        self.longs(&[node, SIZE, 8, 0, 0, 0]).words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])
    }
}

/// A mount that nobody serves but the test. It goes when this is dropped, with all callers that wait.
struct Connection {
    device: OwnedFd,
    target: TempDir,
}

impl Connection {
    fn new() -> Self {
        let device: OwnedFd = File::options().read(true).write(true).open("/dev/fuse").unwrap().into();
        let target = tempfile::tempdir().unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount_fuse("kernel-cases".as_ref(), target.path(), "fuse", flags, &data).unwrap();
        let connection = Self { device, target };
        let init = connection.next();
        assert_eq!(init.opcode, opcode::INIT);
        let [major, minor] = [0, 4].map(|at| u32::from_ne_bytes(init.body[at..at + 4].try_into().unwrap()));
        let answer = Bytes::default().words(&[
            major,
            minor,
            0,
            INIT_EXT | PARALLEL_DIROPS | KILLS_PRIVILEGES,
            0,
            1 << 20,
            1,
            0,
        ]);
        let answer = answer.words(&[PASSTHROUGH | HAS_RESEND, 1]).longs(&[0, 0, 0]);
        reply(&connection.device, init.unique, &answer.0).unwrap();
        connection
    }

    fn at(&self, name: &str) -> PathBuf {
        self.target.path().join(name)
    }

    /// The next request.
    fn next(&self) -> Request {
        next(&self.device)
    }

    /// A further descriptor.
    fn another(&self) -> OwnedFd {
        clone_device(self.device.as_fd()).unwrap()
    }

    /// A program that looks for this name.
    fn looks_for(&self, name: &str) -> WaitingCaller<io::Result<()>> {
        let path = self.at(name);
        WaitingCaller::new(move || fs::metadata(path).map(drop))
    }

    fn serve(&self, opens: Opens) -> Server {
        Server::start(self.device.try_clone().unwrap(), opens)
    }

    fn register(&self, file: &File) -> u32 {
        DeviceBackings::new(self.device.as_fd()).unwrap().open(file.as_fd()).unwrap()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let found = mounts::at(self.target.path()).ok().flatten();
        found.map(|found| fsstack_sys::fusectl::abort(found.connection().into()));
        let _gone = rustix::mount::unmount(self.target.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// A program in a call, which may wait for ever.
struct WaitingCaller<T>(Receiver<T>);

impl<T: Send + 'static> WaitingCaller<T> {
    fn new(call: impl FnOnce() -> T + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        std::thread::spawn(move || sender.send(call()));
        Self(receiver)
    }

    #[track_caller]
    fn waits(&self) {
        assert!(self.0.try_recv().is_err(), "the call has ended");
    }

    #[track_caller]
    fn ends(self) -> T {
        self.0.recv_timeout(LIMIT).expect("the call waits")
    }
}

fn is_readable(device: &OwnedFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    let mut polled = [PollFd::new(device, PollFlags::IN)];
    poll(&mut polled, Some(&limit)).unwrap() > 0 && polled[0].revents().contains(PollFlags::IN)
}

/// The next request that is to be answered.
#[track_caller]
fn next(device: &OwnedFd) -> Request {
    loop {
        assert!(is_readable(device, LIMIT), "no request comes");
        let request = read(device);
        if !matches!(request.opcode, opcode::FORGET | opcode::BATCH_FORGET) {
            return request;
        }
    }
}

fn read(device: &OwnedFd) -> Request {
    let mut buffer = vec![0; (1 << 20) + 4096];
    let len = rustix::io::read(device, &mut buffer[..]).unwrap();
    let word = |at: usize| u32::from_ne_bytes(buffer[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_ne_bytes(buffer[at..at + 8].try_into().unwrap());
    Request { opcode: word(4), unique: long(8), node: long(16), body: buffer[40..len].to_vec() }
}

fn answer(device: &OwnedFd, unique: u64, errno: i32, body: &[u8]) -> rustix::io::Result<()> {
    let len = u32::try_from(16 + body.len()).unwrap();
    let header = Bytes::default().words(&[len, errno.wrapping_neg().cast_unsigned()]).longs(&[unique]);
    rustix::io::write(device, &[&header.0, body].concat()).map(drop)
}

fn reply(device: &OwnedFd, unique: u64, body: &[u8]) -> rustix::io::Result<()> {
    answer(device, unique, 0, body)
}

/// Flags and backing id that a server opens files with.
#[derive(Clone, Copy)]
struct Opens(u32, u32);

const DIRECT: Opens = Opens(FOPEN_DIRECT_IO, 0);

/// A thread that answers requests. What it reads is "served".
struct Server {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(device: OwnedFd, opens: Opens) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let told = ends.clone();
        let thread = std::thread::spawn(move || {
            while !told.load(SeqCst) {
                if is_readable(&device, Duration::from_millis(20)) {
                    serve(&device, &read(&device), opens);
                }
            }
        });
        Self { ends, thread: Some(thread) }
    }

    /// Ends it between two requests.
    fn stop(mut self) {
        self.ends.store(true, SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, SeqCst);
    }
}

/// Answers one request. Each name is a file, whose number its first letter gives. A close waits for no server (`FOPEN_NOFLUSH`).
fn serve(device: &OwnedFd, request: &Request, opens: Opens) {
    let Request { opcode, unique, node, body } = request;
    let done = match *opcode {
        opcode::FORGET | opcode::BATCH_FORGET => return,
        opcode::LOOKUP => {
            let node = u64::from(body[0]);
            let entry = Bytes::default().longs(&[node, 0, VALID, VALID]).words(&[0, 0]).attr(node);
            reply(device, *unique, &entry.0)
        }
        opcode::GETATTR => {
            reply(device, *unique, &Bytes::default().longs(&[VALID]).words(&[0, 0]).attr(*node).0)
        }
        opcode::OPEN => {
            reply(device, *unique, &Bytes::default().longs(&[7]).words(&[opens.0 | FOPEN_NOFLUSH, opens.1]).0)
        }
        opcode::READ => reply(device, *unique, b"served"),
        opcode::WRITE => {
            let size = u32::from_ne_bytes(body[16..20].try_into().unwrap());
            reply(device, *unique, &Bytes::default().words(&[size, 0]).0)
        }
        opcode::FLUSH | opcode::RELEASE => reply(device, *unique, &[]),
        opcode::GETXATTR => answer(device, *unique, Errno::NODATA.raw_os_error(), &[]),
        _ => answer(device, *unique, Errno::NOSYS.raw_os_error(), &[]),
    };
    // ENOENT: its caller was interrupted.
    assert!(matches!(done, Ok(()) | Err(Errno::NOENT)), "{opcode}: {done:?}");
}

/// A file of a branch.
fn backing() -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    file.write_all_at(b"branch", 0).unwrap();
    file
}

fn open(path: PathBuf) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn text(file: &File) -> io::Result<Vec<u8>> {
    let mut text = vec![0; 6];
    file.read_exact_at(&mut text, 0)?;
    Ok(text)
}

#[test]
fn requests_wait_while_nobody_serves() {
    needs!(root(), fuse());
    let connection = Connection::new();
    let caller = connection.looks_for("a");
    assert!(is_readable(&connection.device, LIMIT));
    caller.waits();
    let _server = connection.serve(DIRECT);
    caller.ends().unwrap();
}

#[test]
fn a_request_that_was_read_by_a_closed_clone_fails_and_the_mount_goes_on() {
    needs!(root(), fuse());
    let connection = Connection::new();
    let clone = connection.another();
    let caller = connection.looks_for("a");
    assert_eq!(next(&clone).opcode, opcode::LOOKUP);
    caller.waits();
    drop(clone);
    assert_eq!(caller.ends().unwrap_err().raw_os_error(), Some(Errno::CONNABORTED.raw_os_error()));
    let _server = connection.serve(DIRECT);
    connection.looks_for("b").ends().unwrap();
}

#[test]
fn an_answer_is_taken_by_the_descriptor_that_read_the_request_alone() {
    needs!(root(), fuse());
    let connection = Connection::new();
    let clone = connection.another();
    let caller = connection.looks_for("a");
    let request = next(&clone);
    let refused = answer(&connection.device, request.unique, Errno::NOENT.raw_os_error(), &[]);
    assert_eq!(refused, Err(Errno::NOENT));
    caller.waits();
    answer(&clone, request.unique, Errno::NOENT.raw_os_error(), &[]).unwrap();
    assert_eq!(caller.ends().unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_request_that_was_read_and_not_answered_comes_again_when_it_is_asked_for() {
    needs!(root(), fuse());
    let connection = Connection::new();
    let clone = connection.another();
    let caller = connection.looks_for("a");
    let request = next(&clone);
    let server = connection.serve(DIRECT);
    connection.looks_for("b").ends().unwrap();
    // The next server does not get it by itself.
    server.stop();
    assert!(!is_readable(&connection.device, Duration::ZERO));
    caller.waits();
    send_again(connection.device.as_fd()).unwrap();
    let again = connection.next();
    assert_eq!((again.unique, again.opcode), (request.unique | UNIQUE_RESEND, request.opcode));
    assert_eq!(again.body, request.body);
    // The old number is no more: neither by the one descriptor nor by the other.
    assert_eq!(reply(&connection.device, request.unique, &[]), Err(Errno::NOENT));
    assert_eq!(reply(&clone, request.unique, &[]), Err(Errno::NOENT));
    drop(clone);
    serve(&connection.device, &again, DIRECT);
    caller.ends().unwrap();
}

#[test]
fn open_passthrough_files_are_read_and_written_while_nobody_serves() {
    needs!(root(), fuse());
    let connection = Connection::new();
    let files = [backing(), backing()];
    let ids = [0, 1].map(|at| connection.register(&files[at]));
    let open = |name: &str, id: u32| {
        let server = connection.serve(Opens(FOPEN_PASSTHROUGH, id));
        let file = Arc::new(open(connection.at(name)).unwrap());
        (server, file)
    };
    let (server, written) = open("a", ids[0]);
    written.write_all_at(b"first!", 0).unwrap();
    server.stop();
    let (server, unwritten) = open("b", ids[1]);
    server.stop();
    let file = written.clone();
    let went_on = WaitingCaller::new(move || file.write_all_at(b"second", 0).and_then(|()| text(&file)));
    assert_eq!(went_on.ends().unwrap(), b"second");
    assert_eq!(text(&files[0]).unwrap(), b"second");
    let file = unwritten.clone();
    assert_eq!(WaitingCaller::new(move || text(&file)).ends().unwrap(), b"branch");
    // The first write of an inode asks for its capabilities.
    let file = unwritten.clone();
    let first = WaitingCaller::new(move || file.write_all_at(b"first!", 0));
    let asked = connection.next();
    assert_eq!(asked.opcode, opcode::GETXATTR);
    assert!(asked.body.windows(19).any(|part| part == b"security.capability"));
    first.waits();
    serve(&connection.device, &asked, DIRECT);
    first.ends().unwrap();
    assert_eq!(text(&files[1]).unwrap(), b"first!");
    let _server = connection.serve(DIRECT);
    drop((written, unwritten));
}

#[test]
fn an_open_inode_is_opened_by_its_backing_id_alone_whoever_registered_it() {
    needs!(root(), fuse());
    let connection = Connection::new();
    let file = backing();
    let clone = connection.another();
    let id = DeviceBackings::new(clone.as_fd()).unwrap().open(file.as_fd()).unwrap();
    // It belongs to the connection.
    drop(clone);
    let open_as = |opens: Opens| {
        let server = connection.serve(opens);
        let opened = open(connection.at("a"));
        (server, opened)
    };
    let is_refused = |opens: Opens| {
        let (server, refused) = open_as(opens);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
        server.stop();
    };
    let (server, first) = open_as(Opens(FOPEN_PASSTHROUGH, id));
    let first = first.unwrap();
    server.stop();
    let (server, second) = open_as(Opens(FOPEN_PASSTHROUGH, id));
    assert_eq!(text(&second.unwrap()).unwrap(), b"branch");
    server.stop();
    let another = connection.register(&file);
    assert_ne!(another, id);
    is_refused(Opens(FOPEN_PASSTHROUGH, another));
    is_refused(DIRECT);
    let (server, beside) = open_as(Opens(FOPEN_PASSTHROUGH | FOPEN_DIRECT_IO, id));
    let beside = beside.unwrap();
    assert_eq!(text(&beside).unwrap(), b"served");
    drop((beside, first));
    server.stop();
    // After the last close the inode is bound to nothing.
    let (server, opened) = open_as(Opens(FOPEN_PASSTHROUGH, another));
    assert_eq!(text(&opened.unwrap()).unwrap(), b"branch");
    server.stop();
}
