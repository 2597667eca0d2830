//! Which threads of the /dev/fuse transport wait at the device.
//!
//! The device wakes its waiters first in, first out. With one client and two threads, the thread that has just
//! answered is preempted by the client it woke, so that at the next request only the thread of the *other* CPU
//! waits: it is woken there for nothing, or serves the request from the wrong CPU. So while all requests come from
//! one task, only the thread on that task's CPU reads, and the others are parked. As soon as tasks take turns, or a
//! request may take long, or the one thread is stuck, all of them read again. While another thread is inside a request,
//! which may hold it for seconds, or helpers have been added for those that are, all read: the programs that wait in a slow
//! branch come again, and each of their requests would take the only reader away from everybody else.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use fsstack_sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use fsstack_sync::{Condvar, Mutex};
use fsstack_wire::{Operation, abi};

/// Requests of one task in a row after which it is served by one thread, and between two looks at its CPU: it is moved
/// dozens of times a second, and a request that is served from the wrong CPU costs several times the look.
const STREAK: u32 = 16;
/// Changes of task, without a streak of [`CALM`] between them, after which all threads read.
const CHANGES: u32 = 3;
/// Requests of one task in a row that make earlier changes forgotten.
const CALM: u32 = 16;

/// Room for a line of proc(5)'s stat: 52 numbers of up to 20 digits, and a name of 64 bytes.
const LONGEST_STAT: usize = 1280;

/// Reasons for a worker thread to stay inside a request for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// No branch may hang: only a busy CPU does.
    ForCpus,
    /// A branch that may hang; nobody does now, as far as is known.
    ForBranches,
    /// There are threads that were not there from the start, for those that wait in a branch.
    Helped,
}

/// The threads of a transport, by number: first those that are there from the start, one a CPU.
#[derive(Debug)]
pub(super) struct Readers {
    threads: Vec<Reader>,
    /// One of them may be the only one that reads.
    may_have_single_reader: bool,
    /// The one that reads, plus 1; 0: all of them.
    single: AtomicUsize,
    task: AtomicU32,
    /// The file that tells the CPU of the task that was looked at last.
    stat: Mutex<Option<TaskStat>>,
    streak: AtomicU32,
    changes: AtomicU32,
    parked: Mutex<()>,
    bell: Condvar,
    /// The mount is gone: all threads come to see that.
    ended: AtomicBool,
}

/// A thread that is there from the start. Each has a cache line of its own: it is written to with every request.
#[derive(Debug)]
#[repr(align(128))]
struct Reader {
    cpu: Option<usize>,
    /// It is inside a request, maybe for good.
    inside: AtomicBool,
    /// Another one answered its request, and has come in its place.
    lost: AtomicBool,
}

impl Readers {
    /// `base` threads on the first of `cpus`. One of them may be the only one that reads only if somebody notices when it
    /// is stuck, and `may_have_single_reader` says so.
    pub(super) fn new(base: usize, cpus: &[usize], may_have_single_reader: bool) -> Self {
        let reader = |number| Reader {
            cpu: cpus.get(number).copied(),
            inside: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        };
        Self {
            threads: (0..base.max(1)).map(reader).collect(),
            may_have_single_reader: may_have_single_reader && base > 1,
            single: AtomicUsize::new(0),
            task: AtomicU32::new(0),
            stat: Mutex::default(),
            streak: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            parked: Mutex::default(),
            bell: Condvar::new(),
            ended: AtomicBool::new(false),
        }
    }

    /// Where thread `number` runs: one that came later, beside the one whose number is the same but for the rounds.
    pub(super) fn cpu(&self, number: usize) -> Option<usize> {
        self.threads[number % self.threads.len()].cpu
    }

    /// The number of one that comes in place of thread `number`, on its CPU.
    pub(super) fn number_of_substitute(&self, number: usize) -> usize {
        self.threads.len() + number % self.threads.len()
    }

    /// Thread `number` has read a request.
    pub(super) fn goes_in(&self, number: usize) {
        if let Some(reader) = self.threads.get(number) {
            reader.inside.store(true, Relaxed);
        }
    }

    /// Thread `number` is done with its request.
    pub(super) fn comes_out(&self, number: usize) {
        if let Some(reader) = self.threads.get(number) {
            reader.inside.store(false, Relaxed);
        }
    }

    /// Thread `number` is stuck, and another one is there for it.
    pub(super) fn lost(&self, number: usize) {
        if let Some(reader) = self.threads.get(number) {
            reader.lost.store(true, Relaxed);
        }
    }

    /// Thread `number` is back.
    pub(super) fn found(&self, number: usize) {
        if let Some(reader) = self.threads.get(number) {
            reader.lost.store(false, Relaxed);
        }
    }

    /// Thread `number` has read a request of `task` (a thread id; 0 is the kernel itself).
    pub(super) fn seen(&self, number: usize, task: u32, waits: Waits) {
        if task == 0 || !self.may_have_single_reader {
            return;
        }
        if self.task.load(Relaxed) != task {
            self.task.store(task, Relaxed);
            self.streak.store(0, Relaxed);
            if self.changes.fetch_add(1, Relaxed) >= CHANGES && self.has_single_reader() {
                self.all_read();
            }
            return;
        }
        let streak = self.streak.fetch_add(1, Relaxed) + 1;
        if streak == CALM {
            self.changes.store(0, Relaxed);
        }
        let one_will_do = || match waits {
            Waits::ForCpus => true,
            Waits::ForBranches => !self.others_are_inside(number),
            Waits::Helped => false,
        };
        if streak.is_multiple_of(STREAK) && one_will_do() {
            let cpu = TaskStat::cpu_of(&mut self.stat.lock(), task);
            let here = cpu.and_then(|_| self.threads.iter().position(|reader| reader.cpu == cpu));
            let reads = |chosen: &usize| *chosen == number || !self.threads[*chosen].inside.load(Relaxed);
            if let Some(chosen) = here.filter(reads) {
                self.set_sole(chosen + 1);
            }
        }
    }

    fn others_are_inside(&self, number: usize) -> bool {
        let mut others = self.threads.iter().enumerate().filter(|(other, _)| *other != number);
        others.any(|(_, reader)| reader.inside.load(Relaxed) && !reader.lost.load(Relaxed))
    }

    /// Waits until thread `number` is one of those that read.
    pub(super) fn wait_to_read(&self, number: usize) {
        let not_mine = || {
            let single = self.single.load(SeqCst);
            single != 0 && single != number + 1 && !self.ended.load(SeqCst)
        };
        if not_mine() {
            let mut parked = self.parked.lock();
            while not_mine() {
                self.bell.wait(&mut parked);
            }
        }
    }

    /// Whether only one thread reads.
    pub(super) fn has_single_reader(&self) -> bool {
        self.single.load(SeqCst) != 0
    }

    /// The mount is gone: no thread waits for its turn any more, even if one is chosen.
    pub(super) fn end(&self) {
        self.ended.store(true, SeqCst);
        self.all_read();
        drop(self.parked.lock());
        self.bell.notify_all();
    }

    /// All threads read from now on.
    pub(super) fn all_read(&self) {
        self.streak.store(0, Relaxed);
        self.set_sole(0);
    }

    fn set_sole(&self, single: usize) {
        if self.single.swap(single, SeqCst) != single {
            // A thread about to park holds the lock between its check and its wait.
            drop(self.parked.lock());
            self.bell.notify_all();
        }
    }
}

/// The file of a task in proc(5) that tells where it runs. Kept open from look to look: to open it takes longer than to read it.
#[derive(Debug)]
struct TaskStat {
    task: u32,
    file: File,
}

impl TaskStat {
    /// The CPU that `task` ran on last; `kept` is the file of the task that was looked at before.
    fn cpu_of(kept: &mut Option<Self>, task: u32) -> Option<usize> {
        if let Some(stat) = kept.as_ref().filter(|stat| stat.task == task)
            && let Ok(cpu) = stat.read()
        {
            return cpu;
        }
        // The file of a task that has ended fails, also if another task has its number by now.
        *kept = None;
        let file = File::open(format!("/proc/{task}/stat")).ok()?;
        kept.insert(Self { task, file }).read().ok()?
    }

    /// The 39th field.
    fn read(&self) -> io::Result<Option<usize>> {
        let mut line = [0; LONGEST_STAT];
        let len = self.file.read_at(&mut line, 0)?;
        let line = &line[..len];
        // The name, in brackets, may have spaces and brackets of its own.
        let after = line.iter().rposition(|byte| *byte == b')').map_or(line.len(), |at| at + 1);
        let field = line[after..].split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).nth(36);
        Ok(field.and_then(|cpu| std::str::from_utf8(cpu).ok()?.parse().ok()))
    }
}

/// Requests that the kernel makes for a task that is inside execve(2), where it closes files: unlocks, and what dirty pages owe. Until
/// execve(2) is over proc(5) keeps readers of the task's stat waiting, so a look at it would wait for the answer of the request at hand.
/// FLUSH is not here: it may take long, and none of those is counted.
pub(super) fn may_come_from_execve(op: &Operation<'_>) -> bool {
    match op {
        Operation::Setlk(_) | Operation::Setattr(_) => true,
        Operation::Write { write_flags, .. } => write_flags & abi::WRITE_CACHE != 0,
        _ => false,
    }
}

/// Requests that wait for a disk, a server or another program.
pub(super) fn may_take_long(op: &Operation<'_>) -> bool {
    match op {
        Operation::Fsync { .. }
        | Operation::Fsyncdir { .. }
        | Operation::Syncfs
        | Operation::Flush { .. }
        | Operation::CopyFileRange { .. }
        | Operation::Fallocate { .. } => true,
        Operation::Write { data, .. } => data.len() > 64 << 10,
        Operation::Read { size, .. } => *size > 64 << 10,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This thread, which stays on its CPU from now on, and a readers whose second member is there.
    fn here_and_second() -> (u32, Readers) {
        let here = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0);
        let mut stat = None;
        let cpu = TaskStat::cpu_of(&mut stat, here).expect("this thread runs somewhere");
        fsstack_sys::thread::pin_to_cpu(cpu).expect("it may stay there");
        let cpu = TaskStat::cpu_of(&mut stat, here).expect("this thread runs somewhere");
        (here, Readers::new(2, &[cpu + 1, cpu], true))
    }

    #[test]
    fn the_cpu_of_a_task_is_read_anew_each_time_and_of_one_that_has_ended_there_is_none() {
        let (said, tid) = fsstack_sync::mpsc::channel();
        let (ends, end) = fsstack_sync::mpsc::channel::<()>();
        let other = fsstack_sync::thread::spawn(move || {
            rustix::thread::set_name(c"a ) (b").expect("it is short");
            fsstack_sys::thread::pin_to_cpu(0).expect("the first CPU is there");
            said.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).expect("asked for");
            end.recv().expect("it is ended");
        });
        let task = tid.recv().expect("it runs");
        let mut kept = None;
        assert_eq!([(); 2].map(|()| TaskStat::cpu_of(&mut kept, task)), [Some(0); 2]);
        let here = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0);
        assert!(TaskStat::cpu_of(&mut kept, here).is_some());
        assert_eq!(TaskStat::cpu_of(&mut kept, task), Some(0));
        ends.send(()).expect("it waits");
        other.join().expect("it ends");
        // The kernel takes it off its table a moment after the join.
        let began = fsstack_sync::time::Instant::now();
        while TaskStat::cpu_of(&mut kept, task).is_some() {
            assert!(began.elapsed() < std::time::Duration::from_secs(60));
            fsstack_sync::thread::yield_now();
        }
        assert!(kept.is_none());
    }

    #[test]
    fn one_task_is_served_by_the_thread_on_its_cpu_until_tasks_take_turns() {
        let (here, readers) = here_and_second();
        for _ in 0..=STREAK {
            readers.seen(0, here, Waits::ForBranches);
        }
        assert_eq!(readers.single.load(SeqCst), 2);
        readers.wait_to_read(1);
        for other in 1..=CHANGES + 1 {
            readers.seen(0, here + other, Waits::ForBranches);
        }
        assert!(!readers.has_single_reader());
        readers.wait_to_read(0);
    }

    #[test]
    fn a_thread_that_is_stuck_for_good_does_not_block_others_by_one_thread() {
        let (here, readers) = here_and_second();
        let streak = |by: usize| (0..2 * STREAK).for_each(|_| readers.seen(by, here, Waits::ForBranches));
        readers.goes_in(0);
        streak(1);
        assert!(!readers.has_single_reader());
        readers.lost(0);
        streak(1);
        assert_eq!(readers.single.load(SeqCst), 2);
        readers.all_read();
        // It is never the one that reads.
        readers.goes_in(1);
        readers.lost(1);
        streak(2);
        assert!(!readers.has_single_reader());
    }

    #[test]
    fn tasks_that_take_turns_are_served_by_all() {
        let readers = Readers::new(2, &[0, 1], true);
        for n in 0..10 * STREAK {
            readers.seen(0, 1 + n % 2, Waits::ForBranches);
        }
        assert!(!readers.has_single_reader());
    }

    #[test]
    fn while_another_is_inside_a_request_or_helpers_are_there_all_read() {
        let (here, readers) = here_and_second();
        let streak = |by: usize, waits: Waits| {
            readers.goes_in(by);
            for _ in 0..2 * STREAK {
                readers.seen(by, here, waits);
            }
            readers.comes_out(by);
        };
        // A thread waits for a disk, and another serves the task: one that is there from the start, or one that came later.
        for waits in [0, 1] {
            readers.goes_in(waits);
            streak(1 - waits, Waits::ForBranches);
            assert!(!readers.has_single_reader());
            streak(2, Waits::Helped);
            assert!(!readers.has_single_reader());
            readers.comes_out(waits);
        }
        // It is done, but those that came for it are still there.
        streak(2, Waits::Helped);
        assert!(!readers.has_single_reader());
        streak(0, Waits::Helped);
        assert!(!readers.has_single_reader());
        streak(0, Waits::ForBranches);
        assert_eq!(readers.single.load(SeqCst), 2);
        // The one that serves the task is inside its request, of course.
        readers.all_read();
        streak(1, Waits::ForBranches);
        assert_eq!(readers.single.load(SeqCst), 2);
    }

    #[test]
    fn a_substitute_thread_runs_on_the_same_cpu() {
        for base in 1..5 {
            let readers = Readers::new(base, &[3, 5, 7, 9], false);
            for number in 0..3 * base {
                let next = readers.number_of_substitute(number);
                assert!(base <= next, "{next} would stay for good");
                assert_eq!(readers.cpu(next), readers.cpu(number));
                assert_eq!(readers.cpu(number), Some(3 + 2 * (number % base)));
            }
        }
        assert_eq!(Readers::new(1, &[], false).cpu(1), None);
    }
}
