//! Engines make the calls: each starts operations and reports their completion.

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

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From a file.
    Read,
    /// Into a file.
    Write,
}

impl Direction {
    /// Direction of a workload that moves data.
    pub(crate) fn of(op: Op) -> Self {
        if op == Op::Read { Self::Read } else { Self::Write }
    }
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Io {
    /// Number of the operation among those in flight.
    pub(crate) slot: usize,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Offset in the source, for writes.
    pub(crate) from: usize,
}

/// Result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// It is done.
    Done,
    /// In flight; `reap` reports it.
    Queued,
}

/// An engine working on one file.
pub(crate) trait IoEngine {
    /// Starts an operation on a free slot.
    fn submit(&mut self, io: Io) -> io::Result<Submitted>;
    /// Waits until at least that many operations are done, and appends the slots of all that are.
    fn reap(&mut self, at_least: usize, done: &mut Vec<usize>) -> io::Result<()>;
    /// Ends the work on the file after the last operation.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Work for an engine.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    /// The file, opened for `workload`; none for `null` and `nfs`.
    pub(crate) file: Option<File>,
    /// Route to the file for `nfs`.
    pub(crate) route: Option<Route<'a>>,
    /// First byte and length of the task's part.
    pub(crate) part: (u64, u64),
    pub(crate) direction: Direction,
    /// Bytes of one operation.
    pub(crate) block: usize,
    /// Source for writes; for reads, space for all slots' blocks.
    pub(crate) memory: Aligned,
}

/// Makes the workload's engine.
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
            let source = (job.direction == Direction::Write).then_some(job.memory);
            Ok(Box::new(nfs::Nfs::new(&route, job.block, source)?))
        }
        Engine::Metadata | Engine::Copy | Engine::Bonnie => {
            Err(io::Error::other(format!("the engine {} makes no single calls on data", workload.engine)))
        }
    }
}
