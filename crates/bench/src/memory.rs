//! Memory that a run is held to, page cache included, so that the end of the cache shows with small files.

use anyhow::{Context, Result, ensure};
use fsstack_lab::cgroup::{Joined, MemoryGroup};

use crate::buffers::Aligned;
use crate::record::Case;
use crate::workload::{Bytes, Engine, Workload};

/// Memory of a run without its buffers: programs, and the daemons of its pools.
const PROGRAMS: u64 = 64 << 20;

/// This process, and what it starts, is held to it until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldMemory {
    // Dropped in this order: the group must be empty when it is removed.
    _joined: Joined,
    _group: MemoryGroup,
}

/// Refuses less than the programs and the buffers of some cases need.
pub(crate) fn check(memory: Bytes, cases: &[Case]) -> Result<()> {
    let buffers = cases.iter().map(|case| buffers(&case.workload)).max().unwrap_or(0);
    let least = Bytes(PROGRAMS + buffers);
    ensure!(least <= memory, "--memory {memory} is less than the {least} that programs and buffers need");
    Ok(())
}

/// Most memory of a workload's buffers in bytes.
fn buffers(workload: &Workload) -> u64 {
    if !workload.op.moves_data() || matches!(workload.engine, Engine::Copy | Engine::Bonnie) {
        return 0;
    }
    let block = workload.block.0;
    let source = Aligned::source_len(usize::try_from(block).unwrap_or(usize::MAX)) as u64;
    let in_flight = block.saturating_mul(workload.depth.get().into());
    u64::from(workload.tasks.get()).saturating_mul(source + in_flight)
}

/// Begins to hold this process to it: after images in memory are allocated, which count for their maker.
pub(crate) fn hold(memory: Bytes) -> Result<HeldMemory> {
    let group = MemoryGroup::new("bench", memory.0).context("--memory")?;
    Ok(HeldMemory { _joined: group.join().context("--memory")?, _group: group })
}
