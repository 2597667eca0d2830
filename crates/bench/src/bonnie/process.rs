//! Processes of bonnie++, alone or in step. All end together: at the first failure, at a stop of the run, or at their time limit.

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{ScopedJoinHandle, scope, sleep};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use fsstack_lab::needs;
use fsstack_lab::shell::{Run, command, which};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{NAMES_UNIT, PROGRAM, Told, name_units};
use crate::measure::Bench;
use crate::target::with_dir;
use crate::workload::Workload;

/// Part of the time limit that does not depend on sizes: a busy machine starts processes late.
const BONNIE_BASE_TIMEOUT: Duration = Duration::from_secs(600);

/// Part of the time limit for each seek, and for each operation on a name.
const BONNIE_CALL_TIMEOUT: Duration = Duration::from_millis(100);

/// Lowest rate that the time limit allows for, in bytes a second of all processes together.
const LOWEST_RATE: u64 = 4 << 20;

/// Times that a file is moved: written, read and written over, read.
const TRANSFERS: u64 = 4;

/// Seeks of a process.
const SEEKS: u64 = 8192;

/// Operations on each name: create, stat, delete, each in two orders.
const CALLS_PER_NAME: u64 = 6;

/// Pause between two looks at the lock of another run.
const BONNIE_TURN_PAUSE: Duration = Duration::from_millis(20);

/// Time limit of a run: only one that hangs reaches it.
fn time_limit(workload: &Workload) -> Duration {
    let tasks = u64::from(workload.tasks.get());
    let bytes = tasks.saturating_mul(workload.file_size.0).saturating_mul(TRANSFERS);
    let names = u64::from(name_units(workload)) * u64::from(NAMES_UNIT);
    let calls = tasks.saturating_mul(SEEKS + CALLS_PER_NAME * names);
    let of_calls = BONNIE_CALL_TIMEOUT.saturating_mul(u32::try_from(calls).unwrap_or(u32::MAX));
    BONNIE_BASE_TIMEOUT + Duration::from_secs(bytes / LOWEST_RATE) + of_calls
}

/// Semaphores of processes that run in step, of which a machine has one set; removed on drop.
struct Semaphores {
    /// Lock on the program's file: other runs wait.
    _turn: File,
}

impl Semaphores {
    /// Makes them once no other run has any; `None` if this run is stopped meanwhile.
    fn of(processes: u32, stop: &AtomicBool) -> Result<Option<Self>> {
        let turn = File::open(which(PROGRAM).context("it is gone")?)?;
        loop {
            match flock(&turn, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if stop.load(Ordering::Relaxed) => return Ok(None),
                Err(Errno::WOULDBLOCK) => sleep(BONNIE_TURN_PAUSE),
                Err(e) => return Err(e).context(format!("the turn of {PROGRAM}")),
            }
        }
        let made = program().args(["-p", &processes.to_string()]).run();
        made.with_context(|| format!("semaphores of {PROGRAM}; `{PROGRAM} -p -1` removes left ones"))?;
        Ok(Some(Self { _turn: turn }))
    }
}

impl Drop for Semaphores {
    fn drop(&mut self) {
        if let Err(e) = program().args(["-p", "-1"]).run() {
            eprintln!("fsstack-bench: removing the semaphores of {PROGRAM}: {e:#}");
        }
    }
}

/// The program; it refuses root without a user.
fn program() -> Run {
    let user: &[&str] = if needs::root().is_ok() { &["-u", "root"] } else { &[] };
    command(which(PROGRAM).unwrap_or_else(|| PROGRAM.into())).args(user)
}

/// Runs it in a directory of its own in the target, in as many processes as the workload has tasks. Returns `None` if the
/// run is stopped.
pub(crate) fn run(bench: &Bench<'_>) -> Result<Option<Told>> {
    let dir = bench.work.join("bonnie");
    with_dir(&dir, || in_step(bench, &dir))
}

fn in_step(bench: &Bench<'_>, dir: &Path) -> Result<Option<Told>> {
    let tasks = bench.workload.tasks.get();
    let semaphores = if tasks == 1 { None } else { Semaphores::of(tasks, bench.stop)? };
    if tasks != 1 && semaphores.is_none() {
        return Ok(None);
    }
    let failure = OnceLock::new();
    // A process waits for all others at each test, so it would wait for a failed one without an end.
    let stopped = || failure.get().is_some() || bench.stop.load(Ordering::Relaxed);
    let process = || {
        let figures = one(bench.workload, dir, &stopped);
        figures.unwrap_or_else(|e| {
            // The later failures may follow from the first.
            let _later = failure.set(e);
            None
        })
    };
    let figures: Option<Vec<Told>> = scope(|scope| {
        let started: Vec<_> = (0..tasks).map(|_| scope.spawn(process)).collect();
        let join = |thread: ScopedJoinHandle<'_, Option<Told>>| {
            thread.join().unwrap_or_else(|_| {
                let _later = failure.set(anyhow!("a thread panicked"));
                None
            })
        };
        started.into_iter().map(join).collect()
    });
    match failure.into_inner() {
        Some(e) => Err(e),
        None => figures.map(|all| Told::sum(&all)).transpose(),
    }
}

/// One process: as published, without tests of single characters, with fsync. Returns `None` if it was stopped.
fn one(workload: &Workload, dir: &Path, stopped: &dyn Fn() -> bool) -> Result<Option<Told>> {
    let mebibytes = workload.file_size.0 >> 20;
    let run = program().arg("-d").arg(dir).args(["-q", "-f", "-b"]);
    let run = run.args(["-s", &format!("{mebibytes}:{}", workload.block.0)]);
    // The machine's memory, which must be less than half of the file: a tenth, as published.
    let run = run.args(["-r", &(mebibytes / 10).max(1).to_string()]);
    let run = run.args(["-n", &name_units(workload).to_string()]);
    let run = if workload.tasks.get() == 1 { run } else { run.args(["-y", "s"]) };
    let Some(done) = run.limit(time_limit(workload)).output_unless(stopped)? else { return Ok(None) };
    let done = done.check()?;
    Told::of_csv(&done.stdout).with_context(|| done.stderr.trim().to_owned()).map(Some)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::num::NonZeroU32;
    use std::sync::Arc;
    use std::thread::spawn;

    use fsstack_lab::branch::{Branch, Kind, Layout};
    use fsstack_lab::cleanup::{self, Entry};
    use fsstack_lab::{MiB, needs, until};

    use super::*;
    use crate::bonnie::Test;
    use crate::bonnie::tests::workload;
    use crate::workload::Bytes;

    /// Key of the program's semaphores.
    const KEY: &str = "4711";

    /// Runs a workload.
    fn ran(workload: &Workload, work: &Path, stop: &AtomicBool) -> Result<Option<Told>> {
        run(&Bench { workload, work, seed: 1, stop, export: None, copied: None })
    }

    /// Checks that neither files nor semaphores are left.
    fn leaves_nothing(work: &Path) {
        assert_eq!(fs::read_dir(work).unwrap().count(), 0);
        // Another test may use them at the moment.
        let turn = File::open(which(PROGRAM).unwrap()).unwrap();
        flock(&turn, FlockOperation::LockExclusive).unwrap();
        let all = fs::read_to_string("/proc/sysvipc/sem").unwrap();
        assert!(!all.lines().any(|line| line.split_whitespace().next() == Some(KEY)), "{all}");
    }

    #[test]
    fn the_program_itself_runs_alone_and_in_step_and_leaves_nothing() {
        needs!(program(PROGRAM));
        let (work, stop) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        for tasks in [1, 2] {
            assert_eq!(ran(&workload(Test::Write, tasks), work.path(), &stop).unwrap().unwrap().seeks, SEEKS);
            leaves_nothing(work.path());
        }
    }

    #[test]
    fn a_process_that_fails_ends_the_others_and_its_reason_is_reported() {
        needs!(root(), program(PROGRAM));
        let home = cleanup::fresh("bonnie").unwrap();
        let _home = Entry::dir(&home).unwrap();
        // Too small for all files: a failed process removes its own, and the others then wait for it.
        let small = Branch::make("small", Kind::Tmpfs(MiB(14)), Layout::Sparse, &home).unwrap();
        let failure = ran(&workload(Test::Write, 4), small.path(), &AtomicBool::new(false)).unwrap_err();
        // After a short write its errno is another one.
        assert!(format!("{failure:#}").contains("ended with 1: Can't write block"), "{failure:#}");
        leaves_nothing(small.path());
    }

    #[test]
    fn a_stop_of_the_run_ends_all_processes() {
        needs!(program(PROGRAM));
        let work = tempfile::tempdir().unwrap();
        for tasks in [1, 2] {
            let large = Workload { file_size: Bytes(2 << 30), ..workload(Test::Write, tasks) };
            let stop = Arc::new(AtomicBool::new(false));
            let (at, flag) = (work.path().join("bonnie"), Arc::clone(&stop));
            let stopping = spawn(move || {
                until("a file of the program", || {
                    fs::read_dir(&at).is_ok_and(|mut all| all.next().is_some())
                });
                flag.store(true, Ordering::Relaxed);
            });
            assert_eq!(ran(&large, work.path(), &stop).unwrap(), None);
            stopping.join().unwrap();
            leaves_nothing(work.path());
        }
    }

    #[test]
    fn a_stopped_run_does_not_wait_for_another_ones_semaphores() {
        needs!(program(PROGRAM));
        let turn = File::open(which(PROGRAM).unwrap()).unwrap();
        flock(&turn, FlockOperation::LockExclusive).unwrap();
        assert!(Semaphores::of(2, &AtomicBool::new(true)).unwrap().is_none());
    }

    #[test]
    fn the_time_limit_grows_with_files_names_and_processes() {
        let small = workload(Test::Write, 1);
        let limit = |change: &dyn Fn(&mut Workload)| {
            let mut changed = small.clone();
            change(&mut changed);
            time_limit(&changed)
        };
        let least = limit(&|_| {});
        assert!(BONNIE_BASE_TIMEOUT < least);
        assert!(least < limit(&|w| w.file_size = Bytes(80 << 30)));
        assert!(least < limit(&|w| w.tasks = NonZeroU32::new(4).unwrap()));
        assert!(limit(&|w| w.entries = NonZeroU32::MIN) < least);
        assert!(least < limit(&|w| w.entries = NonZeroU32::new(4 * NAMES_UNIT).unwrap()));
        // The largest numbers have one, too.
        limit(&|w| (w.file_size, w.tasks, w.entries) = (Bytes(u64::MAX), NonZeroU32::MAX, NonZeroU32::MAX));
    }
}
