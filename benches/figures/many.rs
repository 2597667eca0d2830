//! Many callers on the engine, without a kernel between: what an operation costs when other CPUs do the same, and a model of
//! more CPUs than there are.
//!
//! Each caller is a thread that does what a worker thread of a transport does for its requests. Callers work in directories
//! of their own, or all in one. What they share then are cache lines, which docs/dev/threads.md names.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use fsstack_bench::turns;
use fsstack_engine::answer::Entry;
use fsstack_engine::files::route::NoBackings;
use fsstack_engine::ops::New;
use fsstack_engine::settings::Settings;
use fsstack_engine::{Caller, Pool, Union};
use fsstack_pool::{BranchSpec, Chain, EntryName, Handle, Ino};
use fsstack_sys::{OFlags, identity, thread};
use rustix::time::{ClockId, Timespec, clock_gettime};
use tempfile::TempDir;

use crate::queues;
use crate::report::{Sense, Table, median};

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManyAmount {
    pub(crate) rounds: usize,
    /// Number of names of all callers together.
    pub(crate) names: usize,
}

/// Callers at the same time, and where they work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) callers: usize,
    pub(crate) together: bool,
}

pub(crate) const SETTINGS: &[Setting] = &[
    Setting { name: "1 caller", callers: 1, together: false },
    Setting { name: "2, apart", callers: 2, together: false },
    Setting { name: "2, one directory", callers: 2, together: true },
    Setting { name: "64, apart", callers: 64, together: false },
    Setting { name: "64, one directory", callers: 64, together: true },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Missing,
    Create,
    DirAttributes,
    Release,
    Known,
    Attributes,
    OpenClose,
    Unlink,
}

pub(crate) const ACTS: &[(Act, &str)] = &[
    (Act::Missing, "lookup of a missing name"),
    (Act::Create, "create"),
    (Act::DirAttributes, "getattr of the directory"),
    (Act::Release, "release"),
    (Act::Known, "lookup of a known name"),
    (Act::Attributes, "getattr of a file"),
    (Act::OpenClose, "open, release"),
    (Act::Unlink, "unlink, forget"),
];

pub(crate) fn run(amount: ManyAmount, tables: &mut Vec<Table>) -> Result<()> {
    let mut cpu = Table::new("Microseconds of CPU an operation, callers on the engine", Sense::LessIsBetter);
    cpu.compare("2, apart", &["1 caller"], "1 to 2, apart");
    cpu.compare("2, one directory", &["1 caller"], "1 to 2, one directory");
    let mut rate = Table::new("The same, operations a second, all callers", Sense::MoreIsBetter);
    let mut queued =
        Table::new("Microseconds of a worker thread's CPU a request, simulated queues", Sense::LessIsBetter);
    queued.compare("64, apart", &["1 caller"], "1 to 64, apart");
    queued.compare("64, one directory", &["1 caller"], "1 to 64, one directory");
    queued.notes.push("with what taking the request from its caller costs, and waking the caller".into());
    let mut queue_rate = Table::new("The same, operations a second, all queues", Sense::MoreIsBetter);
    // Created files stay open until all are there.
    let limit = usize::try_from(thread::raise_nofile_limit()).unwrap_or(usize::MAX);
    let names = amount.names.min(limit / 2);
    for round in 0..amount.rounds {
        for &setting in turns::of(SETTINGS, round) {
            measure(setting, names, &mut cpu, &mut rate)?;
        }
        queues::round(round, names, &mut queued, &mut queue_rate)?;
    }
    cpu.notes.push(format!("{names} names of all callers together"));
    cpu.notes.push("the engine's code and the branches' calls, over two directories in memory".into());
    let transfer = transfer(amount.rounds)?;
    cpu.notes
        .push(format!("an addition to a cache line that another CPU adds to, too: {transfer:.0} ns more"));
    let models =
        [("2, apart", "each in a directory of its own"), ("2, one directory", "all in one directory")]
            .map(|(column, place)| model(&cpu, column, place));
    tables.extend([cpu, rate, queued, queue_rate]);
    tables.extend(models);
    Ok(())
}

/// An engine over two directories in memory.
pub(crate) struct EngineBed {
    pub(crate) union: Arc<Union>,
    _homes: Vec<TempDir>,
}

impl EngineBed {
    pub(crate) fn new(dirs: usize) -> Result<(Self, Vec<Ino>)> {
        let homes: Vec<TempDir> =
            (0..2).map(|_| tempfile::tempdir_in("/dev/shm")).collect::<std::io::Result<_>>()?;
        let specs: Vec<BranchSpec> =
            homes.iter().map(|home| BranchSpec::new(PathBuf::from(home.path()))).collect();
        let settings = Settings {
            create: Chain::default_create(),
            recheck: Duration::from_secs(60),
            privileged: identity::is_root(),
            ..Settings::plain()
        };
        let union = Arc::new(Union::new(Pool::open(&specs, settings)?, Arc::new(NoBackings)));
        let make = |n| {
            let name = CString::new(format!("dir-{n}"))?;
            let made = union.make(Ino::ROOT, entry_name(&name)?, New::Dir(0o755), Caller::DAEMON)?;
            Ok(made.ino)
        };
        let dirs = (0..dirs).map(make).collect::<Result<_>>()?;
        Ok((Self { union, _homes: homes }, dirs))
    }
}

fn entry_name(name: &CString) -> Result<EntryName<'_>> {
    EntryName::new(name).map_err(|_| anyhow!("{name:?} is no name"))
}

/// One round with `setting`. Afterwards nothing may be left in the engine's tables.
fn measure(setting: Setting, names: usize, cpu: &mut Table, rate: &mut Table) -> Result<()> {
    let dirs = if setting.together { 1 } else { setting.callers };
    let (bed, dirs) = EngineBed::new(dirs)?;
    let each = names / setting.callers;
    let gate = Barrier::new(setting.callers);
    let spans = std::thread::scope(|scope| {
        let start = |n: usize| {
            let (union, dir, gate) = (&bed.union, dirs[n % dirs.len()], &gate);
            scope.spawn(move || {
                if setting.callers == 2 {
                    thread::pin_to_cpu(n)?;
                }
                CallerThread::new(union, dir, n, each)?.run(gate)
            })
        };
        let threads: Vec<_> = (0..setting.callers).map(start).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a caller panicked"))?);
        joined.collect::<Result<Vec<_>>>()
    })?;
    Span::put(setting, &spans, each, cpu, rate)?;
    let held = bed.union.held();
    ensure!((held.files, held.inodes) == (0, dirs.len()), "left in the tables: {held:?}");
    bed.union.destroy();
    Ok(())
}

/// An act of one caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) used: Duration,
}

impl Span {
    /// Puts the acts of all callers, `each` times each, into the tables.
    pub(crate) fn put(
        setting: Setting,
        spans: &[Vec<Self>],
        each: usize,
        cpu: &mut Table,
        rate: &mut Table,
    ) -> Result<()> {
        let count = f64::from(u32::try_from(each * setting.callers)?);
        for (at, (_, label)) in ACTS.iter().enumerate() {
            let here = || spans.iter().map(|spans| spans[at]);
            let used: Duration = here().map(|span| span.used).sum();
            cpu.put(label, setting.name, used.as_secs_f64() * 1e6 / count);
            let (began, ended) = (here().map(|span| span.began).min(), here().map(|span| span.ended).max());
            let took = ended.context("no caller")? - began.context("no caller")?;
            rate.put(label, setting.name, count / took.as_secs_f64());
        }
        Ok(())
    }
}

struct CallerThread<'a> {
    union: &'a Union,
    dir: Ino,
    names: Vec<CString>,
    made: Vec<(Entry, Handle)>,
}

impl<'a> CallerThread<'a> {
    fn new(union: &'a Union, dir: Ino, number: usize, names: usize) -> Result<Self> {
        identity::keep_capabilities()?;
        let names = (0..names).map(|n| CString::new(format!("caller-{number}-{n}")));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { union, dir, made: Vec::with_capacity(names.len()), names })
    }

    fn run(mut self, gate: &Barrier) -> Result<Vec<Span>> {
        let mut spans = Vec::new();
        let mut failed = None;
        for (act, label) in ACTS {
            gate.wait();
            let (began, before) = (Instant::now(), cpu_time());
            if failed.is_none() {
                failed = self.act(*act).context(*label).err();
            }
            let used = cpu_time().saturating_sub(before);
            spans.push(Span { began, ended: Instant::now(), used });
            gate.wait();
        }
        failed.map_or(Ok(spans), Err)
    }

    fn act(&mut self, act: Act) -> Result<()> {
        for (n, name) in self.names.iter().enumerate() {
            let name = entry_name(name)?;
            match act {
                Act::Missing => ensure!(self.union.lookup(self.dir, name).is_err(), "there is such a name"),
                Act::Create => {
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                    let made = self.union.create(self.dir, name, 0o644, flags, Caller::DAEMON)?;
                    self.made.push((made.entry, made.opened.handle));
                }
                Act::DirAttributes => drop(self.union.getattr(self.dir, None)?),
                Act::Release => self.union.release(self.made[n].1),
                Act::Known => {
                    let entry = self.union.lookup(self.dir, name)?;
                    ensure!(entry.ino == self.made[n].0.ino, "another number");
                }
                Act::Attributes => drop(self.union.getattr(self.made[n].0.ino, None)?),
                Act::OpenClose => {
                    let opened = self.union.open(self.made[n].0.ino, OFlags::RDONLY, Caller::DAEMON)?;
                    self.union.release(opened.handle);
                }
                Act::Unlink => {
                    self.union.unlink(self.dir, name)?;
                    self.union.forget(self.made[n].0.ino, 2);
                }
            }
        }
        Ok(())
    }
}

/// CPU time of the calling thread.
pub(crate) fn cpu_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(tv_sec).unwrap_or(0), u32::try_from(tv_nsec).unwrap_or(0))
}

/// A counter in a cache line of its own, and of the one that is fetched with it.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line(AtomicU64);

/// Nanoseconds that an addition to a line takes longer when another CPU adds to it, too: the median of the rounds.
fn transfer(rounds: usize) -> Result<f64> {
    const ADDITIONS: u32 = 1_000_000;
    let lines = [Line::default(), Line::default()];
    let mut longer = Vec::new();
    for _ in 0..rounds.max(5) {
        let mut took = [0.0; 2];
        for (together, took) in took.iter_mut().enumerate() {
            let gate = Barrier::new(2);
            let add = |cpu: usize| {
                let line = &lines[if together == 1 { 0 } else { cpu }].0;
                thread::pin_to_cpu(cpu)?;
                gate.wait();
                let before = cpu_time();
                (0..ADDITIONS).for_each(|_| _ = line.fetch_add(1, Relaxed));
                anyhow::Ok((cpu_time() - before).as_secs_f64() * 1e9 / f64::from(ADDITIONS))
            };
            let each = std::thread::scope(|scope| {
                let add = &add;
                let threads: Vec<_> = (0..2).map(|cpu| scope.spawn(move || add(cpu))).collect();
                let joined =
                    threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("panicked"))?);
                joined.collect::<Result<Vec<f64>>>()
            })?;
            *took = each.iter().sum::<f64>() / 2.0;
        }
        longer.push(took[1] - took[0]);
    }
    median(&longer).context("no rounds")
}

/// Microseconds of a request over the ring without an engine: the null file system's stat of a missing name.
const ROUND_TRIP: f64 = 13.0;
/// Numbers of CPUs in the model's table, each with a program and its worker thread.
const CPUS: &[(u32, &str)] =
    &[(1, "1 CPU"), (2, "2"), (4, "4"), (8, "8"), (16, "16"), (32, "32"), (64, "64")];

/// Requests a second by a closed queueing network: each CPU's request takes the round trip and the engine's time of one
/// caller, and then queues for the shared lines, which are one server.
///
/// The lines' time is what two callers take longer than one, doubled: with two, half of the accesses find a line where it
/// was. Where they take no longer, the model knows no bound.
fn model(cpu: &Table, column: &str, place: &str) -> Table {
    let mut table =
        Table::new(&format!("Model: requests a second by the ring, {place}"), Sense::MoreIsBetter);
    for (act, label) in ACTS.iter().filter(|(act, _)| *act != Act::OpenClose && *act != Act::Unlink) {
        let (Some(alone), Some(beside)) = (cpu.median_of(label, "1 caller"), cpu.median_of(label, column))
        else {
            continue;
        };
        let lines = 2.0 * (beside - alone).max(0.0);
        // Nobody waits for a RELEASE.
        let delay = alone + if *act == Act::Release { 0.0 } else { ROUND_TRIP };
        for (cpus, heading) in CPUS {
            table.put(label, heading, throughput(*cpus, delay, lines) * 1e6);
        }
        if lines > 0.0 {
            table.put(label, "bound", 1e6 / lines);
        }
    }
    table.notes.push(format!(
        "closed network: a delay of {ROUND_TRIP} us and the engine's time, one server for the lines"
    ));
    table
}

/// Requests a microsecond of `cpus` callers that each take `delay` and then `service` of one server, by the mean value
/// analysis of Reiser and Lavenberg: a request finds the queue as it is on average with one caller less.
fn throughput(cpus: u32, delay: f64, service: f64) -> f64 {
    let (mut rate, mut queue) = (0.0, 0.0);
    for callers in 1..=cpus {
        let waits = service * (1.0 + queue);
        rate = f64::from(callers) / (delay + waits);
        queue = rate * waits;
    }
    rate
}
