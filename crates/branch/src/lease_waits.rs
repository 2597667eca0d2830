//! Opens of files that another program has a lease on.
//!
//! A lease (fcntl(2), F_SETLEASE) lets its holder finish before another program opens the file: the open waits in the kernel,
//! for up to 45 seconds (`/proc/sys/fs/lease-break-time`). Any user may have leases on files of their own. On a local disk
//! no monitor answers for a thread that is inside a call, so a user with a lease on each of many files could stop them all.
//! An open is therefore tried without waiting first, and few threads wait: on a branch, and on all branches together. Another thread of the daemon itself may have a lease
//! for some microseconds, to look for mappings: opens beyond those few are tried for a moment before they are refused.

use fsstack_sync::atomic::{AtomicUsize, Ordering::Relaxed};
use fsstack_sync::time::Duration;
use fsstack_sys::{Errno, OFlags};

use crate::branch::Branch;
use crate::error::OpError;
use crate::health::reply_takeover;

/// So many opens wait for leases on one branch at a time, and on all branches.
const MOST_WAITS: usize = 4;
const MOST_OF_ALL: usize = 8;
/// Tries of an open beyond those.
const TRIES: u32 = 50;
/// Pause before each further try of an open that waits for a lease.
const LEASE_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Number of opens that wait for leases on any branch.
static ALL: LeaseWaits = LeaseWaits(AtomicUsize::new(0));

/// Number of opens that wait for leases.
#[derive(Debug, Default)]
pub(crate) struct LeaseWaits(AtomicUsize);

/// One of them, until this drops.
struct LeaseWait<'a>(&'a LeaseWaits);

impl LeaseWaits {
    fn begin(&self, most: usize) -> Option<LeaseWait<'_>> {
        let more = |waits| (waits < most).then_some(waits + 1);
        self.0.fetch_update(Relaxed, Relaxed, more).ok().map(|_| LeaseWait(self))
    }
}

impl Drop for LeaseWait<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

impl Branch {
    /// Opens a file by `open`, which is called with `flags`, on a local disk also with `O_NONBLOCK`. Waits aside for another
    /// program's lease.
    ///
    /// # Errors
    ///
    /// EAGAIN if too many opens wait for leases already; those of `open`.
    pub fn past_leases<T, E: Into<OpError> + Copy>(
        &self,
        flags: OFlags,
        open: impl Fn(OFlags) -> Result<T, E>,
    ) -> Result<T, E> {
        let opens_only = self.kind.is_local() && !flags.contains(OFlags::PATH);
        let at_once = if opens_only { flags | OFlags::NONBLOCK } else { flags };
        let is_leased = |opened: &Result<T, E>| {
            at_once.contains(OFlags::NONBLOCK)
                && matches!(opened, Err(error) if Into::<OpError>::into(*error).errno() == Errno::AGAIN)
        };
        let opened = open(at_once);
        if !is_leased(&opened) {
            return opened;
        }
        reply_takeover::aside(|| {
            let wait = self.lease_waits.begin(MOST_WAITS);
            if let Some(_waits) = wait.and_then(|wait| Some((wait, ALL.begin(MOST_OF_ALL)?))) {
                return open(flags - OFlags::NONBLOCK);
            }
            let mut opened = opened;
            for _ in 0..TRIES {
                fsstack_sync::thread::sleep(LEASE_RETRY_PAUSE);
                opened = open(at_once);
                if !is_leased(&opened) {
                    break;
                }
            }
            opened
        })
    }
}
