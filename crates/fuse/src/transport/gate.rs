//! Rest of the /dev/fuse transport between two requests, for a handover to another program.
//!
//! Requests that come meanwhile wait in the kernel. A thread that waits for one sits in read(2), and sees the closed gate only when
//! that returns: it is woken by a signal. The signal must not come to a thread that has read a request in that moment and makes a call
//! on a branch. So a thread marks itself as reading, the signal is sent with that mark taken, and the thread waits for the mark before
//! it goes on. A thread that has just marked itself may not be in read(2) yet when the signal comes: it is woken again and again until
//! it rests.
//!
//! A wait for a lock may last for ever. It is put off: its thread ends without an answer, the request is kept, and is served anew when
//! the gate is open, or by the next program. The kernel takes that answer by the same descriptor only, which goes on too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fsstack_sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering::SeqCst};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Condvar, Mutex};
use fsstack_sys::handover;

use super::dev::DevShared;

/// Pause between two looks at threads that are to rest.
const GATE_LOOK_PAUSE: Duration = Duration::from_micros(200);

/// The gate before the device, open at first.
#[derive(Debug, Default)]
pub(super) struct Gate {
    closed: AtomicBool,
    lock: Mutex<()>,
    opened: Condvar,
    /// Waits for locks that were put off.
    waits: Mutex<Vec<LockWait>>,
}

/// A request that waits for a lock, to be served by the next program.
#[derive(Debug)]
pub struct LockWait {
    /// The descriptor that its answer is written to.
    pub device: OwnedFd,
    /// The request as it came.
    pub message: Vec<u8>,
}

const AWAY: u8 = 0;
const READS: u8 = 1;
const IS_WOKEN: u8 = 2;

/// Whether a thread may sit in a read of the device.
#[derive(Debug, Default)]
pub(super) struct Reading {
    state: AtomicU8,
    /// 0 until the thread has begun.
    thread: AtomicI32,
}

impl Reading {
    /// The calling thread is the one that reads.
    pub(super) fn is_mine(&self) {
        self.thread.store(handover::this_thread(), SeqCst);
    }

    /// The thread reads no more: its request is counted, or it has not begun to read. Waits while another thread wakes it, as that one
    /// sets the mark to reading afterwards.
    pub(super) fn is_over(&self) {
        while self.state.compare_exchange(READS, AWAY, SeqCst, SeqCst).is_err() {
            fsstack_sync::thread::yield_now();
        }
    }

    /// Whether the thread may be in the read; wakes it.
    pub(super) fn wake(&self) -> bool {
        if self.state.compare_exchange(READS, IS_WOKEN, SeqCst, SeqCst).is_err() {
            return self.state.load(SeqCst) != AWAY;
        }
        handover::wake(self.thread.load(SeqCst));
        self.state.store(READS, SeqCst);
        true
    }
}

impl Gate {
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// The thread of `reading` is about to read: waits while the gate is closed.
    pub(super) fn pass(&self, reading: &Reading) {
        loop {
            reading.state.store(READS, SeqCst);
            // Who closes the gate looks at the state after that.
            if !self.is_closed() {
                return;
            }
            reading.is_over();
            let mut locked = self.lock.lock();
            while self.is_closed() {
                self.opened.wait(&mut locked);
            }
        }
    }

    /// Keeps a wait that is put off.
    ///
    /// # Errors
    /// The gate is open: it is to go on.
    pub(super) fn put_off(&self, wait: LockWait) -> Result<(), LockWait> {
        let mut waits = self.waits.lock();
        // Who opens the gate takes them after that.
        if !self.is_closed() {
            return Err(wait);
        }
        waits.push(wait);
        Ok(())
    }

    /// Closes it: nobody passes any more.
    pub(super) fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    pub(super) fn open(&self) {
        let locked = self.lock.lock();
        self.closed.store(false, SeqCst);
        drop(locked);
        self.opened.notify_all();
    }
}

/// Brings a transport to rest, and lets it go on.
#[derive(Clone, Debug)]
pub struct Pauser(Arc<DevShared>);

/// Requests that were not answered in time: the transport goes on as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillInside(pub usize);

/// A transport at rest; it goes on when this drops.
#[derive(Debug)]
#[must_use = "the transport goes on when this drops"]
pub struct Paused(Arc<DevShared>);

impl Pauser {
    pub(super) fn new(shared: &Arc<DevShared>) -> Self {
        Self(shared.clone())
    }

    /// Brings it to rest: no request is read any more, and those that were read are answered.
    ///
    /// # Errors
    /// How many are still inside at `deadline`.
    pub fn pause(&self, deadline: Instant) -> Result<Paused, StillInside> {
        let shared = &self.0;
        shared.gate.close();
        shared.put_waits_off(true);
        let paused = Paused(shared.clone());
        loop {
            let (reading, inside) = shared.workers.wake_readers();
            let inside = inside + shared.waiting_for_locks();
            if reading + inside == 0 {
                return Ok(paused);
            }
            if deadline <= Instant::now() {
                return Err(StillInside(inside));
            }
            fsstack_sync::thread::sleep(GATE_LOOK_PAUSE);
        }
    }

    /// A descriptor of the connection.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.0.device.as_fd()
    }
}

impl Paused {
    /// Waits for locks that were put off: copies, to be served by another program.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn lock_waits(&self) -> io::Result<Vec<LockWait>> {
        // The kernel tells that a request is given up once only, so the next program would not hear of it.
        self.0.gate.waits.lock().retain(|wait| !self.0.end_given_up(wait));
        let copy = |wait: &LockWait| {
            Ok(LockWait { device: wait.device.try_clone()?, message: wait.message.clone() })
        };
        self.0.gate.waits.lock().iter().map(copy).collect()
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.put_waits_off(false);
        self.0.gate.open();
        let waits = std::mem::take(&mut *self.0.gate.waits.lock());
        self.0.wait_again(waits);
    }
}
