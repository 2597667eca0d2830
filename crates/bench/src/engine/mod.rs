//! Engines, which make the calls: an engine takes an operation and reports its end.

mod mapped;
mod nfs;
mod null;
mod psync;
mod ring;

use std::fs::File;
use std::io;

use crate::buffers::Aligned;
use crate::workload::{Engine, Op, Workload};

pub(crate) use nfs::Route;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From a file.
    Read,
    /// Into a file.
    Write,
}

impl Direction {
    /// The way of a workload that moves data.
    pub(crate) fn of(op: Op) -> Self {
        if op == Op::Read { Self::Read } else { Self::Write }
    }
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Io {
    /// Which of the task's operations in flight it is.
    pub(crate) slot: usize,
    /// Where in the file.
    pub(crate) offset: u64,
    /// Where in the source what is written lies; of no meaning for a read.
    pub(crate) from: usize,
}

/// Result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// It is done.
    Done,
    /// `reap` will tell.
    Queued,
}

/// An engine at work on one file.
pub(crate) trait IoEngine {
    /// Starts an operation on a slot that is free.
    fn submit(&mut self, io: Io) -> io::Result<Submitted>;
    /// Waits until that many of the queued are done, and appends the slots of all that are.
    fn reap(&mut self, at_least: usize, done: &mut Vec<usize>) -> io::Result<()>;
}

/// File that an engine works on.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    /// The file, open as `workload` asks; none for `null` and `nfs`.
    pub(crate) file: Option<File>,
    /// How the file is reached by `nfs`.
    pub(crate) route: Option<Route<'a>>,
    /// The first byte of the task's part, and how long it is.
    pub(crate) part: (u64, u64),
    pub(crate) direction: Direction,
    /// Bytes of one operation.
    pub(crate) block: usize,
    /// A source for writes; as long as all slots' blocks for reads.
    pub(crate) memory: Aligned,
}

/// The engine a workload asks for, ready to begin.
pub(crate) fn begin(workload: &Workload, job: Job<'_>) -> io::Result<Box<dyn IoEngine>> {
    let need_file = |file: Option<File>| file.ok_or_else(|| io::Error::other("no file"));
    match workload.engine {
        Engine::Null => Ok(Box::new(null::Null::default())),
        Engine::Psync => {
            let Job { file, direction, block, memory, .. } = job;
            Ok(Box::new(psync::Psync { file: need_file(file)?, direction, block, memory }))
        }
        Engine::Mmap => {
            let Job { file, part, direction, block, memory, .. } = job;
            Ok(Box::new(mapped::MemoryMap::new(&need_file(file)?, part, direction, block, memory)?))
        }
        Engine::IoUring => {
            let Job { file, direction, block, memory, .. } = job;
            let plan = ring::RingPlan {
                depth: workload.depth.get(),
                registered: workload.registered,
                direction,
                block,
            };
            Ok(Box::new(ring::Ring::new(need_file(file)?, memory, plan)?))
        }
        Engine::Nfs => {
            let route = job.route.ok_or_else(|| io::Error::other("no NFS server has this target"))?;
            Ok(Box::new(nfs::Nfs::new(&route, job.block)?))
        }
        Engine::Metadata | Engine::Copy => {
            Err(io::Error::other(format!("the engine {} makes no single calls on data", workload.engine)))
        }
    }
}
