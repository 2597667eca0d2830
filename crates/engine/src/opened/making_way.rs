//! Files that programs keep open by passthrough, and that a job with `--make-way` waits for.
//!
//! The first open of a file decides its write path for all that join it, and the kernel holds an inode to that for as long as any
//! of them is open. So a file that is reopened whenever it is closed never moves. The next first open of such a file goes stacked,
//! and a stacked file moves under its readers and writers.
//!
//! A program that closes a file and opens it again at once is ahead of the request that tells of the close: such an open waits for
//! that, for a moment. A file that stays open all the same costs its opens such a wait now and then only.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::health::reply_takeover;
use fsstack_pool::Ino;
use fsstack_sync::atomic::{AtomicBool, Ordering::SeqCst};
use fsstack_sync::time::Instant;
use fsstack_sync::{Condvar, Mutex};

use super::tables::Files;
use crate::inode::Inode;

/// Files that make way at a time.
const MOST: usize = 4096;
/// How long an open waits for a close that was made before it.
const CLOSE_WAIT: Duration = Duration::from_millis(20);
/// Least time between two waits for a close of a file that stays open.
const CLOSE_WAITS_APART: Duration = Duration::from_secs(1);

/// Files that make way, with the job that they make way for and the end of the time without waits.
#[derive(Debug, Default)]
pub(crate) struct MakingWay {
    /// Whether there are any: each open of the pool asks.
    any: AtomicBool,
    files: Mutex<HashMap<Ino, (u64, Instant)>>,
    /// Number of last closes of any file while there are some.
    closes: Mutex<u64>,
    has_closed: Condvar,
}

impl MakingWay {
    /// Number of files, and the most that there may be.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.files.lock().len(), MOST)
    }

    /// The file's next first open is to be stacked, for the job.
    pub(crate) fn asks(&self, job: u64, ino: Ino) {
        let mut files = self.files.lock();
        if files.len() < MOST {
            files.entry(ino).or_insert_with(|| (job, Instant::now()));
            self.any.store(true, SeqCst);
        }
    }

    /// The file has moved.
    pub(crate) fn has_moved(&self, ino: Ino) {
        if self.any.load(SeqCst) {
            self.retain(|known, _| known != ino);
        }
    }

    /// The job has ended.
    pub(crate) fn ends(&self, job: u64) {
        self.retain(|_, of| of != job);
    }

    fn retain(&self, stays: impl Fn(Ino, u64) -> bool) {
        let mut files = self.files.lock();
        files.retain(|ino, (job, _)| stays(*ino, *job));
        self.any.store(!files.is_empty(), SeqCst);
    }

    /// Whether a first open of the file is to be stacked, as a job waits for it.
    pub(super) fn has(&self, ino: Ino) -> bool {
        self.any.load(SeqCst) && self.files.lock().contains_key(&ino)
    }

    /// A file was closed by its last user.
    pub(crate) fn note_close(&self) {
        if self.any.load(SeqCst) {
            *self.closes.lock() += 1;
            self.has_closed.notify_all();
        }
    }

    /// Waits until `is_closed`, which a close makes true, or for [`CLOSE_WAIT`].
    fn wait_for_close(&self, is_closed: impl Fn() -> bool) {
        let until = Instant::now() + CLOSE_WAIT;
        let mut seen = *self.closes.lock();
        while !is_closed() {
            let mut closes = self.closes.lock();
            if *closes == seen && self.has_closed.wait_until(&mut closes, until).timed_out() {
                return;
            }
            seen = *closes;
        }
    }

    /// Whether an open of the file may wait for a close now; if so, the next wait is not before [`CLOSE_WAITS_APART`].
    fn may_wait(&self, ino: Ino) -> bool {
        let now = Instant::now();
        let mut files = self.files.lock();
        let Some((_, waits_from)) = files.get_mut(&ino).filter(|(_, waits_from)| *waits_from <= now) else {
            return false;
        };
        *waits_from = now + CLOSE_WAITS_APART;
        true
    }
}

impl Files {
    /// An open of the file begins. If it makes way and is open by passthrough, waits for a close that was made before.
    pub(crate) fn await_close(&self, inode: &Arc<Inode>) {
        let is_past_us = || inode.open_file().is_some_and(|file| file.is_past_us());
        if !self.making_way.has(inode.id.ino) || !is_past_us() || !self.making_way.may_wait(inode.id.ino) {
            return;
        }
        reply_takeover::aside(|| self.making_way.wait_for_close(|| !is_past_us()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_makes_way_until_it_has_moved_or_the_job_ends() {
        let files = MakingWay::default();
        (7..10).for_each(|ino| files.asks(ino % 2, Ino(ino)));
        files.has_moved(Ino(7));
        assert!(!files.has(Ino(7)) && files.has(Ino(8)) && files.has(Ino(9)));
        files.ends(0);
        assert!(!files.has(Ino(8)) && files.any.load(SeqCst));
        files.ends(1);
        assert!(!files.has(Ino(9)) && !files.any.load(SeqCst));
    }

    #[test]
    fn opens_of_a_file_wait_now_and_then_only_and_no_more_files_make_way_than_may() {
        let files = MakingWay::default();
        (0..2 * MOST as u64).for_each(|ino| files.asks(1, Ino(ino)));
        assert_eq!(files.files.lock().len(), MOST);
        assert!(files.may_wait(Ino(1)) && !files.may_wait(Ino(1)) && files.may_wait(Ino(2)));
        assert!(!files.may_wait(Ino(u64::MAX)));
    }
}
