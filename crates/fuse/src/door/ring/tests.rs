//! What the door costs a machine of many CPUs, of which it serves none yet; and what becomes of one that cannot open.

use std::sync::{Arc, Barrier};

use fsstack_wire::{Abi, Answer, Request};
use rustix::fs::{MemfdFlags, memfd_create};

use super::entry::{Entry, probe};
use super::{AT_FIRST, Apart, RingDoor};
use crate::adapter::{Outcome, Serve};
use crate::door::scheduling::Scheduling;

/// As many as are simulated: Linux is built for more than this machine has.
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
            std::thread::spawn(move || {
                // As a thread of the door waits: a ring, an entry, and nothing kept apart yet.
                let entry = Entry::new(-1, queue, PAYLOAD);
                let apart = Apart::default();
                begun.wait();
                done.wait();
                drop(apart);
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

/// Whom nobody asks.
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
}

#[test]
fn a_door_whose_entries_the_kernel_does_not_take_is_not_open() {
    // It knows no entries.
    let device = memfd_create("no-device", MemfdFlags::CLOEXEC).unwrap();
    if probe(1).is_ok() {
        let taken = Entry::new(std::os::fd::AsRawFd::as_raw_fd(&device), 0, PAYLOAD).unwrap().register();
        assert!(taken.is_err());
    }
    let opened = RingDoor::open(Arc::new(Nobody), device, 1 << 20, None, Scheduling::Plain);
    assert!(opened.is_err(), "callers would wait for its first entry for ever");
}
