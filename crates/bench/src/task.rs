//! A task of a data workload: opens its file, waits for the start, keeps its queue full, reports the result.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::buffers::Aligned;
use crate::engine::{self, Direction, Io, IoEngine, Job, Route, Submitted};
use crate::gate::Gate;
use crate::order::Order;
use crate::pace::Schedule;
use crate::plan::Export;
use crate::workload::{Engine, Files, Op, Sync, Timed, Workload};

/// The longest latency in the histogram, in nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// Result of a task.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    /// Nanoseconds of each operation.
    pub(crate) latencies: Histogram<u64>,
}

/// An empty histogram: three significant digits.
pub(crate) fn histogram() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST, 3).map_err(io::Error::other)
}

/// Notes one latency.
pub(crate) fn note(latencies: &mut Histogram<u64>, took: Duration) {
    latencies.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(LONGEST).max(1));
}

/// A task of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Role<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) number: u32,
    pub(crate) seed: u64,
    /// The directory to work in.
    pub(crate) work: &'a Path,
    pub(crate) gate: &'a Gate,
    /// Set to end the run.
    pub(crate) stop: &'a AtomicBool,
    /// The target's NFS export, and its directory.
    pub(crate) export: Option<(&'a Export, &'a Path)>,
}

/// The file of task `number` in `work`.
pub(crate) fn file_of(workload: &Workload, number: u32, work: &Path) -> PathBuf {
    match workload.files {
        Files::PerTask => work.join(format!("task-{number}")),
        Files::Shared => work.join("shared"),
    }
}

impl Role<'_> {
    /// Runs the task while the gate is open. `None`: another task failed to get ready.
    pub(crate) fn run(&self) -> io::Result<Option<Done>> {
        let done = match self.prepare() {
            Err(e) => {
                self.gate.enter(false);
                Err(e)
            }
            Ok(prepared) => self.gate.enter(true).map(|began| self.work(prepared, began)).transpose(),
        };
        self.gate.leave();
        done
    }

    fn prepare(&self) -> io::Result<Prepared> {
        let Workload { block, file_size, depth, .. } = self.workload;
        let block = usize::try_from(block.0).map_err(io::Error::other)?;
        let depth = usize::try_from(depth.get()).map_err(io::Error::other)?;
        let direction = Direction::of(self.workload.op);
        let memory = match direction {
            _ if self.workload.engine == Engine::Null => Aligned::zeroed(block),
            Direction::Write => {
                Aligned::source(self.workload.data, block, self.seed ^ u64::from(self.number))
            }
            Direction::Read => Aligned::zeroed(block * depth),
        };
        let begins = match self.workload.files {
            Files::PerTask => 0,
            Files::Shared => u64::from(self.number) * file_size.0,
        };
        let mut prepared = Prepared {
            order: Order::of(self.workload, self.seed, self.number),
            memory: Some(memory),
            open: None,
            direction,
            block,
            begins,
            // Allocated before the start: a thread that faults in memory delays others.
            latencies: histogram()?,
            free: (0..depth).rev().collect(),
            started: vec![Instant::now(); depth],
            done: Vec::with_capacity(depth),
        };
        if self.workload.timed == Timed::Data {
            prepared.open = Some(self.open(&mut prepared)?);
        }
        Ok(prepared)
    }

    fn open(&self, prepared: &mut Prepared) -> io::Result<Open> {
        let memory = prepared.memory.take().ok_or_else(|| io::Error::other("opened twice"))?;
        let file = match self.workload.engine {
            Engine::Null | Engine::Nfs => None,
            _ => Some(self.open_file()?),
        };
        let to_sync = file.as_ref().map(File::try_clone).transpose()?;
        let Prepared { direction, block, begins, .. } = *prepared;
        let below = self.below_the_root()?;
        let route = below.as_ref().map(|(export, path)| Route {
            server: export.server,
            network: export.network.as_deref(),
            path,
            connections: self.workload.connections.map_or(1, NonZeroU32::get),
            pace: self.workload.pace.map(|pace| pace.0),
        });
        let job = Job { file, route, part: (begins, self.workload.file_size.0), direction, block, memory };
        Ok(Open { engine: engine::begin(self.workload, job)?, to_sync, source: Aligned::source_len(block) })
    }

    /// Server of an exported target, and the task's file there.
    fn below_the_root(&self) -> io::Result<Option<(&Export, PathBuf)>> {
        let Some((export, dir)) = self.export else { return Ok(None) };
        let file = file_of(self.workload, self.number, self.work);
        let below = file.strip_prefix(dir).map_err(io::Error::other)?;
        Ok(Some((export, export.root.join(below))))
    }

    fn open_file(&self) -> io::Result<File> {
        let Workload { op, engine, direct, sync, .. } = self.workload;
        let mut how = OpenOptions::new();
        how.read(*op == Op::Read || *engine == Engine::Mmap);
        how.write(*op != Op::Read).create(*op == Op::Write);
        let sync_each = if *sync == Sync::Each { libc::O_DSYNC } else { 0 };
        how.custom_flags(sync_each | if *direct { libc::O_DIRECT } else { 0 });
        let file = how.open(file_of(self.workload, self.number, self.work))?;
        if *engine == Engine::Mmap && *op == Op::Write {
            // A map cannot extend past the end of the file. All tasks of a shared file set the same length, so none
            // truncates data.
            file.set_len(self.workload.file_len())?;
        }
        Ok(file)
    }

    fn work(&self, mut prepared: Prepared, began: Instant) -> io::Result<Done> {
        let mut open = match prepared.open.take() {
            Some(open) => open,
            None => self.open(&mut prepared)?,
        };
        let ops = self.drive(&mut open, &mut prepared, began)?;
        let Open { mut engine, to_sync, .. } = open;
        engine.finish()?;
        if let (Some(file), true) = (&to_sync, self.workload.sync == Sync::End) {
            file.sync_all()?;
        }
        // Closing is included: some file systems write, or report errors, only then.
        drop(engine);
        drop(to_sync);
        let ended = Instant::now();
        Ok(Done { began, ended, ops, bytes: ops * prepared.block as u64, latencies: prepared.latencies })
    }

    /// Runs the operations; returns their number.
    fn drive(&self, open: &mut Open, prepared: &mut Prepared, began: Instant) -> io::Result<u64> {
        let Prepared { order, latencies, free, started, done, block, begins, .. } = prepared;
        let (block, begins, depth) = (*block, *begins, started.len());
        let pace = Schedule::of(self.workload.rate, began);
        let deadline = self.workload.seconds.map(|s| began + Duration::from_secs_f64(s));
        let (mut ops, mut now) = (0_u64, Instant::now());
        let (blocks, source_blocks) = (order.blocks(), (open.source / block).max(1) as u64);
        loop {
            let past = match deadline {
                Some(deadline) => deadline <= now,
                None => blocks <= ops,
            };
            if past || self.stop.load(Ordering::Relaxed) {
                break;
            }
            let Some(slot) = free.pop() else {
                open.engine.reap(1, done)?;
                now = settle(done, free, started, latencies);
                continue;
            };
            let turn = ops % blocks;
            started[slot] = pace.await_start(ops, now);
            let from = usize::try_from(ops % source_blocks).unwrap_or(0) * block;
            let io = Io { slot, offset: begins + order.at(turn) * block as u64, from };
            if open.engine.submit(io)? == Submitted::Done {
                done.push(slot);
                now = settle(done, free, started, latencies);
            }
            ops += 1;
            if ops == 1 {
                self.gate.all_begun();
                now = Instant::now();
            }
        }
        while free.len() < depth {
            open.engine.reap(1, done)?;
            settle(done, free, started, latencies);
        }
        Ok(ops)
    }
}

/// Records latencies of completed operations and frees their slots. Returns the time.
fn settle(
    done: &mut Vec<usize>,
    free: &mut Vec<usize>,
    started: &[Instant],
    latencies: &mut Histogram<u64>,
) -> Instant {
    let now = Instant::now();
    for slot in done.drain(..) {
        note(latencies, now.duration_since(started[slot]));
        free.push(slot);
    }
    now
}

/// A task before the start.
struct Prepared {
    order: Order,
    memory: Option<Aligned>,
    open: Option<Open>,
    direction: Direction,
    block: usize,
    begins: u64,
    latencies: Histogram<u64>,
    /// Slots without an operation in flight.
    free: Vec<usize>,
    /// Start of each slot's operation.
    started: Vec<Instant>,
    done: Vec<usize>,
}

/// A task with its file open.
struct Open {
    engine: Box<dyn IoEngine>,
    /// The same open file, for fsync.
    to_sync: Option<File>,
    /// Length of the source for written blocks.
    source: usize,
}
