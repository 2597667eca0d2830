//! The end of a transport: the mount is gone, or is about to be taken from programs that still use it.
//!
//! A mount that goes while it is in use loses nothing that was acknowledged, because its transport is closed first. From
//! then on only the kernel's write-back and releases are served; every other request gets ENOTCONN, as after the end.
//! Requests that came before are answered.

use std::io;
use std::sync::Arc;

use fsstack_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use fsstack_sync::thread::JoinHandle;
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Condvar, Mutex};
use fsstack_wire::{Operation, abi};
use rustix::io::Errno;

use super::workers::Workers;

/// Time without anything written back after which the kernel counts as done with it.
const WRITE_BACK_QUIET_FOR: Duration = Duration::from_millis(100);
/// Pause between two looks whether the kernel writes something back.
const WRITE_BACK_LOOK_PAUSE: Duration = Duration::from_millis(5);
/// Pause before a device that cannot be read is read again.
const DEVICE_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How far a transport's end has come.
#[derive(Debug, Default)]
pub(super) struct Ending {
    closing: AtomicBool,
    gone: AtomicBool,
    ended: (Mutex<()>, Condvar),
    /// Requests by which the kernel wrote something back since the transport was closed.
    written_back: AtomicU64,
}

impl Ending {
    /// Errno of a request that comes too late. (Other requests are on the list of workers by now, or are not waited for.)
    pub(super) fn refusal(&self, op: &Operation<'_>) -> Option<i32> {
        if !self.closing.load(SeqCst) {
            return None;
        }
        match op {
            Operation::Write { write_flags, .. } if write_flags & abi::WRITE_CACHE != 0 => {}
            // The kernel writes times back so.
            Operation::Setattr(change) if change.ctime.is_some() => {}
            Operation::Flush { .. }
            | Operation::Fsync { .. }
            | Operation::Fsyncdir { .. }
            | Operation::Release { .. }
            | Operation::Releasedir { .. }
            | Operation::Forget { .. }
            | Operation::BatchForget(_)
            | Operation::Interrupt { .. }
            | Operation::Destroy => return None,
            _ => return Some(Errno::NOTCONN.raw_os_error()),
        }
        self.written_back.fetch_add(1, Relaxed);
        None
    }

    /// Whether the mount is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(SeqCst)
    }

    /// The mount is gone.
    pub(super) fn end(&self) {
        let ended = self.ended.0.lock();
        self.gone.store(true, SeqCst);
        drop(ended);
        self.ended.1.notify_all();
    }

    /// Waits until the mount is gone and the threads on `workers` have left. A request that takes long, or waits for another
    /// one, has until `timeout` is over.
    pub(super) fn wait(&self, workers: &Workers, threads: Vec<JoinHandle<()>>, timeout: Duration) {
        let mut ended = self.ended.0.lock();
        while !self.is_gone() {
            self.ended.1.wait(&mut ended);
        }
        drop(ended);
        workers.wait_until_ended(timeout);
        for thread in threads.into_iter().filter(JoinHandle::is_finished) {
            if thread.join().is_err() {
                tracing::error!("transport: a thread panicked; the others go on");
            }
        }
    }

    /// Waits for a while before the device, whose read failed with `error`, is read again; false: the mount is gone.
    pub(super) fn outlasts(&self, error: &io::Error) -> bool {
        if !self.is_gone() {
            tracing::error!(%error, "/dev/fuse cannot be read; it is tried again every second");
        }
        self.pause()
    }

    /// Waits for [`DEVICE_RETRY_PAUSE`]; false: the mount is gone.
    pub(super) fn pause(&self) -> bool {
        let mut ended = self.ended.0.lock();
        if !self.is_gone() {
            self.ended.1.wait_for(&mut ended, DEVICE_RETRY_PAUSE);
        }
        !self.is_gone()
    }
}

/// Closes a transport before its mount is taken from programs that use it.
#[derive(Debug)]
pub struct Closer {
    ending: Arc<Ending>,
    workers: Arc<Workers>,
}

impl Closer {
    pub(super) fn new(ending: &Arc<Ending>, workers: &Arc<Workers>) -> Self {
        Self { ending: ending.clone(), workers: workers.clone() }
    }

    /// Closes the transport: nothing new is begun.
    pub fn close(&self) {
        self.ending.closing.store(true, SeqCst);
    }

    /// Waits until the requests that are inside have been answered and the kernel writes nothing back any more. False: that
    /// takes longer than until `deadline`.
    pub fn is_drained(&self, deadline: Instant) -> bool {
        let (mut calm_since, mut last) = (Instant::now(), self.ending.written_back.load(Relaxed));
        loop {
            fsstack_sync::thread::sleep(WRITE_BACK_LOOK_PAUSE);
            let now = self.ending.written_back.load(Relaxed);
            let inside = self.workers.look() > 0;
            if inside || last != now {
                (calm_since, last) = (Instant::now(), now);
            }
            if self.ending.is_gone() || WRITE_BACK_QUIET_FOR <= calm_since.elapsed() {
                return true;
            }
            if deadline <= Instant::now() {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cannot_be_read_is_read_again_until_its_mount_is_gone() {
        let ending = Arc::new(Ending::default());
        let failed = || io::Error::from(Errno::NOMEM);
        assert!(ending.outlasts(&failed()), "a thread ended though its mount is there");
        let waits = fsstack_sync::thread::spawn({
            let ending = ending.clone();
            move || (0..1000).take_while(|_| ending.outlasts(&failed())).count()
        });
        ending.end();
        assert!(waits.join().unwrap() < 1000, "a thread went on without a mount");
        assert!(!ending.outlasts(&failed()));
    }
}
