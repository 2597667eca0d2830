//! Files whose last close a job waits for.
//!
//! A job that can go on only when a file is closed or unlocked sleeps longer and longer between its walks. The close, or the
//! unlock, wakes it.

use std::collections::HashSet;

use fsstack_pool::Ino;
use fsstack_sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::{Job, JobList};
use crate::files::OpenFile;

/// Files that a job remembers so; the close of any further one is found by a walk.
const MOST: usize = 4096;

/// Files that a job waits for.
#[derive(Debug, Default)]
pub(super) struct Awaited(HashSet<Ino>);

impl Awaited {
    /// False: there are too many.
    fn add(&mut self, ino: Ino) -> bool {
        if self.0.len() < MOST {
            self.0.insert(ino);
        }
        self.0.contains(&ino)
    }
}

/// Whether any job waits for a close: each close of the pool asks.
#[derive(Debug, Default)]
pub(super) struct AnyAwaited(AtomicBool);

impl JobList {
    /// A handle of the open file `ino` was closed, or its locks were given up.
    pub(crate) fn has_closed(&self, ino: Ino, file: &OpenFile) {
        if self.awaited.0.load(SeqCst) && !is_kept(file) {
            self.wake_for(ino);
        }
    }

    fn wake_for(&self, ino: Ino) {
        for job in &self.state.lock().jobs {
            let mut progress = job.progress.lock();
            if progress.awaited.0.contains(&ino) {
                progress.woken = true;
                job.changed.notify_all();
            }
        }
    }

    /// Number of files whose close jobs wait for, and the most that there may be.
    pub(crate) fn awaited_size(&self) -> (usize, usize) {
        let state = self.state.lock();
        let awaited = state.jobs.iter().map(|job| job.progress.lock().awaited.0.len()).sum();
        (awaited, MOST * state.jobs.len())
    }

    /// `job` waits for the last close of the open file `ino`, which `is_open` then.
    pub(super) fn awaits(&self, job: &Job, ino: Ino, is_open: impl FnOnce() -> bool) {
        if job.progress.lock().awaited.add(ino) {
            self.awaited.0.store(true, SeqCst);
            // Closed since it was looked at.
            if !is_open() {
                self.wake_for(ino);
            }
        }
    }

    /// `job` looks at all files again.
    pub(super) fn awaits_none(&self, job: &Job) {
        let state = self.state.lock();
        {
            let mut progress = job.progress.lock();
            (progress.awaited, progress.woken) = (Awaited::default(), false);
        }
        let any = state.jobs.iter().any(|job| !job.progress.lock().awaited.0.is_empty());
        self.awaited.0.store(any, SeqCst);
    }
}

/// Whether the file may not be moved until a handle of it is closed, or its locks are given up.
pub(super) fn is_kept(file: &OpenFile) -> bool {
    file.is_past_us() || file.is_locked()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fsstack_pool::BranchIx;

    use super::super::clock::SystemDay;
    use super::super::{DrainOrder, HiddenCopies, Manner, Work};
    use super::*;

    fn list_with_a_job() -> (JobList, Arc<Job>) {
        let list = JobList::default();
        let (hidden, manner) = (HiddenCopies::Stop, Manner::default());
        let order = DrainOrder { from: BranchIx(0), to: Vec::new(), hidden, manner, window: None };
        let job = list.state.lock().add(Work::Drain(order), "a branch".into(), Arc::new(SystemDay)).unwrap();
        (list, job)
    }

    #[test]
    fn the_last_close_of_an_awaited_file_ends_a_jobs_pause() {
        let (list, job) = list_with_a_job();
        list.awaits(&job, Ino(7), || false); // it is closed by now
        job.pause(Duration::MAX);
        list.awaits_none(&job);
        job.progress.lock().awaited.add(Ino(8));
        let sleeper = fsstack_sync::thread::spawn({
            let job = job.clone();
            move || job.pause(Duration::MAX)
        });
        list.wake_for(Ino(8));
        sleeper.join().unwrap();
    }

    #[test]
    fn other_files_wake_no_job_and_none_is_asked_for_where_none_is_awaited() {
        let (list, job) = list_with_a_job();
        assert!(!list.awaited.0.load(SeqCst));
        job.progress.lock().awaited.add(Ino(7));
        list.wake_for(Ino(8));
        assert!(!job.progress.lock().woken);
        list.awaits_none(&job);
        list.wake_for(Ino(7));
        assert!(!job.progress.lock().woken);
    }

    #[test]
    fn no_more_files_are_remembered_than_there_may_be() {
        let mut awaited = Awaited::default();
        let added = (0..2 * MOST as u64).filter(|ino| awaited.add(Ino(*ino)));
        assert_eq!(added.count(), MOST);
        assert!(awaited.add(Ino(0)));
    }
}
