//! Which threads of the /dev/fuse door wait at the device.
//!
//! The device wakes its waiters first in, first out. With one client and two threads, the thread that has just
//! answered is preempted by the client it woke, so that at the next request only the thread of the *other* CPU
//! waits: it is woken there for nothing, or serves the request from the wrong CPU. So while all requests come from
//! one task, only the thread on that task's CPU reads, and the others are parked. As soon as tasks take turns, or a
//! request may take long, or the one thread is stuck, all of them read again.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::{Condvar, Mutex};

/// Requests of one task in a row after which it is served by one thread, and between two looks at its CPU: it is moved
/// dozens of times a second, and a request that is served from the wrong CPU costs several times the look.
const STREAK: u32 = 16;
/// Changes of task, without a streak of [`CALM`] between them, after which all threads read.
const CHANGES: u32 = 3;
/// Requests of one task in a row that make earlier changes forgotten.
const CALM: u32 = 16;

/// The threads of a door, by number.
#[derive(Debug, Default)]
pub(super) struct Crew {
    /// The one that reads, plus 1; 0: all of them.
    sole: AtomicUsize,
    task: AtomicU32,
    streak: AtomicU32,
    changes: AtomicU32,
    parked: Mutex<()>,
    bell: Condvar,
}

impl Crew {
    /// A request of `task` (a thread id; 0 is the kernel itself) was read. `cpus` has each thread's CPU.
    pub(super) fn seen(&self, task: u32, cpus: &[usize]) {
        if task == 0 || cpus.len() < 2 {
            return;
        }
        if self.task.load(Relaxed) != task {
            self.task.store(task, Relaxed);
            self.streak.store(0, Relaxed);
            if self.changes.fetch_add(1, Relaxed) >= CHANGES && self.is_solo() {
                self.all_read();
            }
            return;
        }
        let streak = self.streak.fetch_add(1, Relaxed) + 1;
        if streak == CALM {
            self.changes.store(0, Relaxed);
        }
        if streak.is_multiple_of(STREAK) {
            let thread = cpu_of(task).and_then(|cpu| cpus.iter().position(|own| *own == cpu));
            if let Some(thread) = thread {
                self.set_sole(thread + 1);
            }
        }
    }

    /// Waits until thread `number` is one of those that read.
    pub(super) fn wait_for_turn(&self, number: usize) {
        let not_mine = || !matches!(self.sole.load(SeqCst), 0) && self.sole.load(SeqCst) != number + 1;
        if not_mine() {
            let mut parked = self.parked.lock();
            while not_mine() {
                self.bell.wait(&mut parked);
            }
        }
    }

    /// Whether only one thread reads.
    pub(super) fn is_solo(&self) -> bool {
        self.sole.load(SeqCst) != 0
    }

    /// All threads read from now on.
    pub(super) fn all_read(&self) {
        self.streak.store(0, Relaxed);
        self.set_sole(0);
    }

    fn set_sole(&self, sole: usize) {
        if self.sole.swap(sole, SeqCst) != sole {
            // Whoever is about to park holds the lock between its look and its wait.
            drop(self.parked.lock());
            self.bell.notify_all();
        }
    }
}

/// The CPU that the task ran on last: the 39th field of proc(5)'s stat.
fn cpu_of(task: u32) -> Option<usize> {
    let stat = std::fs::read_to_string(format!("/proc/{task}/stat")).ok()?;
    // The name, in brackets, may have spaces and brackets of its own.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_is_served_by_the_thread_on_its_cpu_until_tasks_take_turns() {
        let crew = Crew::default();
        let here = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0);
        let cpu = cpu_of(here).expect("this thread runs somewhere");
        let cpus = [cpu + 1, cpu];
        for _ in 0..=STREAK {
            crew.seen(here, &cpus);
        }
        assert_eq!(crew.sole.load(SeqCst), 2);
        crew.wait_for_turn(1);
        for other in 1..=CHANGES + 1 {
            crew.seen(here + other, &cpus);
        }
        assert!(!crew.is_solo());
        crew.wait_for_turn(0);
    }

    #[test]
    fn tasks_that_take_turns_are_served_by_all() {
        let crew = Crew::default();
        for n in 0..10 * STREAK {
            crew.seen(1 + n % 2, &[0, 1]);
        }
        assert!(!crew.is_solo());
    }
}
