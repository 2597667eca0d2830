//! Cost of the ring transport on a machine of many CPUs, and failures of opening it and of its device.

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use fsstack_sync::Barrier;
use fsstack_sync::atomic::{AtomicU64, Ordering::SeqCst};
use fsstack_wire::{Abi, Answer, Operation, Request};
use rustix::fs::{MemfdFlags, memfd_create};

use super::entry::{Entry, probe};
use super::{AT_FIRST, RequestCopy, RingShared, UringTransport, forgets};
use crate::adapter::{Outcome, Serve};
use crate::transport::ending::Ending;
use crate::transport::scheduling::Scheduling;
use crate::transport::workers::Workers;

/// Simulated CPUs: Linux is built for more than this machine has.
const POSSIBLE_CPUS: u16 = 64;
const PAYLOAD: usize = 1 << 20;

/// Bytes that are resident in this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(u64::MAX >> 10)
}

#[test]
fn queues_of_64_cpus_wait_in_less_than_64_mib() {
    let threads = usize::from(POSSIBLE_CPUS) * AT_FIRST;
    let (begun, done) = (Arc::new(Barrier::new(threads + 1)), Arc::new(Barrier::new(threads + 1)));
    let before = resident();
    let waiting: Vec<_> = (0..POSSIBLE_CPUS)
        .flat_map(|queue| [queue; AT_FIRST])
        .map(|queue| {
            let (begun, done) = (begun.clone(), done.clone());
            fsstack_sync::thread::spawn(move || {
                // As a thread of the transport waits: a ring, an entry, and nothing kept apart yet.
                let entry = Entry::new(-1, queue, PAYLOAD);
                let copy = RequestCopy::new(PAYLOAD);
                begun.wait();
                done.wait();
                drop(copy);
                entry.map(drop).map_err(|error| error.kind())
            })
        })
        .collect();
    begun.wait();
    let taken = resident().saturating_sub(before);
    done.wait();
    for thread in waiting {
        let made = thread.join();
        // A sandbox may have no io_uring; a pool there has no rings either.
        let fine = matches!(
            made,
            Ok(Ok(()) | Err(std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::Unsupported))
        );
        assert!(fine, "{made:?}");
    }
    assert!(taken <= 64 << 20, "{taken} bytes became resident");
}

/// A server without requests.
#[derive(Debug)]
struct Nobody;

impl Serve for Nobody {
    fn abi(&self) -> Abi {
        Abi { setxattr_ext: false }
    }

    fn serve(&self, _: &Request<'_>, _: &mut Answer<'_>) -> Outcome {
        Outcome::Silent
    }

    fn may_hang(&self) -> bool {
        false
    }

    fn take_back(&self, _: &Request<'_>, _: &[u8]) {}

    fn some_files(&self, _: usize) -> Vec<u64> {
        Vec::new()
    }
}

#[test]
fn a_door_whose_entries_the_kernel_does_not_take_is_not_open() {
    // It knows no entries.
    let device = memfd_create("no-device", MemfdFlags::CLOEXEC).unwrap();
    if probe(1).is_ok() {
        let taken = Entry::new(std::os::fd::AsRawFd::as_raw_fd(&device), 0, PAYLOAD).unwrap().register();
        assert!(taken.is_err());
    }
    let opened = UringTransport::open(Arc::new(Nobody), device, 1 << 20, None, Scheduling::Plain);
    assert!(opened.is_err(), "callers would wait for its first entry for ever");
}

/// Counts what is forgotten.
#[derive(Debug, Default)]
struct Forgets(AtomicU64);

impl Serve for Forgets {
    fn abi(&self) -> Abi {
        Abi { setxattr_ext: false }
    }

    fn serve(&self, request: &Request<'_>, _: &mut Answer<'_>) -> Outcome {
        if let Operation::Forget { nlookup } = request.op {
            self.0.fetch_add(nlookup, SeqCst);
        }
        Outcome::Silent
    }

    fn may_hang(&self) -> bool {
        false
    }

    fn take_back(&self, _: &Request<'_>, _: &[u8]) {}

    fn some_files(&self, _: usize) -> Vec<u64> {
        Vec::new()
    }
}

/// FORGET of `nlookup` lookups.
fn forget(nlookup: u64) -> Vec<u8> {
    let (length, opcode) = (48_u32, 2_u32);
    let mut message = [length.to_ne_bytes(), opcode.to_ne_bytes()].concat();
    message.extend([0; 32]);
    message.extend(nlookup.to_ne_bytes());
    message
}

/// A read error that nobody has foreseen (ECONNRESET: the peer turned to somebody else with a message unread) does not end it.
#[test]
fn a_device_that_fails_once_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let [device, kernel, _other] =
        ["device", "kernel", "other"].map(|name| UnixDatagram::bind(at(name)).unwrap());
    kernel.connect(at("device")).unwrap();
    device.connect(at("kernel")).unwrap();
    device.send(b"unread").unwrap();
    kernel.connect(at("other")).unwrap();

    let adapter = Arc::new(Forgets::default());
    let shared = Arc::new(RingShared {
        adapter: adapter.clone(),
        device: device.into(),
        payload: PAYLOAD,
        scheduling: Scheduling::Plain,
        queues: Vec::new(),
        workers: Workers::new(1),
        max: 1,
        ending: Arc::<Ending>::default(),
        ordered: Default::default(),
        spares: super::spares::Spares::default(),
    });
    let served = shared.clone();
    let reader = fsstack_sync::thread::spawn(move || forgets::serve(&served));
    kernel.connect(at("device")).unwrap();
    kernel.send(&forget(3)).unwrap();
    let began = fsstack_sync::time::Instant::now();
    while adapter.0.load(SeqCst) != 3 {
        assert!(!reader.is_finished() && began.elapsed() < Duration::from_secs(60), "the reader has ended");
        fsstack_sync::thread::sleep(Duration::from_millis(5));
    }
    shared.end();
    // It blocks until there is something to read.
    kernel.send(&forget(1)).unwrap();
    reader.join().unwrap();
}
