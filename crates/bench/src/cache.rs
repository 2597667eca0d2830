//! Empties caches for a cold cell, as far as each layer allows, and waits for quiet disks.

use std::fs::{self, File};
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise, syncfs};
use serde::{Deserialize, Serialize};

use crate::serving::{BRICK, Layer};
use crate::stack::Used;

/// Time after which a client of GlusterFS asks its bricks again: its `performance.md-cache-timeout`, 1 s unless set
/// otherwise, and a tenth.
const CLIENT_TIMEOUT: Duration = Duration::from_millis(1100);

/// Longest wait for disks to become quiet: other programs may write on.
const LONGEST_CACHE_WAIT: Duration = Duration::from_secs(5);

/// Bytes under writeback that count as quiet.
const QUIET: u64 = 1 << 20;

/// How far the caches of a cold cell were emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Cold {
    /// All clean pages, names and inodes of the machine were dropped, and no layer has a cache of its own.
    Dropped,
    /// Dropped, and then the time was waited out for which clients of GlusterFS believe what they know.
    Waited,
    /// Dropped, but a layer is a FUSE server that may have a cache of its own.
    ServerKept,
    /// Dropped on this machine; what a server elsewhere has in memory stayed.
    RemoteKept,
    /// Not root: only the file's own pages were dropped.
    PagesOnly,
    /// GlusterFS answered without any CPU time of a brick: from a cache above them.
    AnsweredAbove,
}

impl Cold {
    /// True if nothing is known that could have answered from memory.
    pub(crate) fn is_cold(self) -> bool {
        matches!(self, Self::Dropped | Self::Waited)
    }

    /// The same with what the CPU times show.
    pub(crate) fn answered(self, used: &[Used]) -> Self {
        let bricks = used.iter().any(|used| used.program == BRICK && 0.0 < used.cpu_seconds);
        if self == Self::Waited && !bricks { Self::AnsweredAbove } else { self }
    }
}

impl std::fmt::Display for Cold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dropped => "cold: dropped",
            Self::Waited => "cold: dropped and waited out",
            Self::ServerKept => "not cold: a FUSE server's own cache stayed",
            Self::RemoteKept => "not cold: the server's memory stayed",
            Self::PagesOnly => "not cold: only the file's pages were dropped (not root)",
            Self::AnsweredAbove => "not cold: answered above the bricks",
        })
    }
}

/// FUSE file systems that keep no data and no attributes in their daemons.
const WITHOUT_CACHE: &[&str] = &["fuse.fsstack", "fuse.mhddfs", "fuse.mergerfs"];

/// File systems of other machines.
const REMOTE: &[&str] =
    &["nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "9p", "afs", "beegfs", "fuse.sshfs"];

const GLUSTERFS: &str = "fuse.glusterfs";

/// How cold a stack of these file system types is after the machine's caches were dropped.
fn after_drop(layers: &[Layer]) -> Cold {
    let has = |which: &dyn Fn(&str) -> bool| layers.iter().any(|layer| which(&layer.fs_type));
    let known = |layer: &str| WITHOUT_CACHE.contains(&layer) || layer == GLUSTERFS;
    match () {
        () if has(&|layer| REMOTE.contains(&layer)) => Cold::RemoteKept,
        () if has(&|layer| layer.starts_with("fuse") && !known(layer)) => Cold::ServerKept,
        () if has(&|layer| layer == GLUSTERFS) => Cold::Waited,
        () => Cold::Dropped,
    }
}

/// Empties caches as far as permitted; `files` will be read from a stack of these file system types.
pub(crate) fn empty(files: &[File], layers: &[Layer]) -> io::Result<Cold> {
    for file in files {
        // Dirty pages cannot be dropped, so they are written first.
        file.sync_data()?;
        fadvise(file, 0, None, Advice::DontNeed)?;
    }
    let cold = after_drop(layers);
    if layers.iter().any(|layer| layer.fs_type == GLUSTERFS) {
        // Before the drop: what the client fetches meanwhile is dropped too.
        sleep(CLIENT_TIMEOUT);
    }
    let whole = fs::write("/proc/sys/vm/drop_caches", "3\n");
    Ok(if whole.is_ok() { cold } else { Cold::PagesOnly })
}

/// Writes what is dirty on the file systems of a stack, and waits until disks have it. On the whole machine if a FUSE daemon
/// is among them whose files lie elsewhere: bricks, and the disks of zfs-fuse.
pub(crate) fn quiet(layers: &[Layer]) -> io::Result<()> {
    for layer in layers {
        syncfs(File::open(&layer.dir)?)?;
    }
    let elsewhere =
        |layer: &Layer| layer.fs_type.starts_with("fuse") && !WITHOUT_CACHE.contains(&layer.fs_type.as_str());
    if !layers.iter().any(elsewhere) {
        return Ok(());
    }
    rustix::fs::sync();
    let began = Instant::now();
    while QUIET < under_writeback() && began.elapsed() < LONGEST_CACHE_WAIT {
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn under_writeback() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("Writeback:")?.trim().strip_suffix(" kB"));
    line.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_word_cold_is_refused_where_a_layer_may_remember() {
        let layer = |fs_type: &&str| Layer { fs_type: (*fs_type).to_owned(), dir: PathBuf::new() };
        let of = |types: &[&str]| after_drop(&types.iter().map(layer).collect::<Vec<_>>());
        assert_eq!(of(&["xfs"]), Cold::Dropped);
        assert_eq!(of(&["fuse.fsstack", "xfs", "ext4"]), Cold::Dropped);
        assert_eq!(of(&["fuse.mergerfs", "fuse.glusterfs"]), Cold::Waited);
        assert_eq!(of(&["fuse.fsstack", "fuse.zfs"]), Cold::ServerKept);
        assert_eq!(of(&["fuse.glusterfs", "nfs4"]), Cold::RemoteKept);
        assert!(Cold::Waited.is_cold() && !Cold::ServerKept.is_cold());
    }

    #[test]
    fn a_volume_that_answers_without_its_bricks_is_not_cold() {
        let used = |program: &str, cpu_seconds| Used {
            program: program.to_owned(),
            processes: 1,
            cpu_seconds,
            voluntary_switches: 0,
            involuntary_switches: 0,
        };
        assert_eq!(Cold::Waited.answered(&[used(BRICK, 0.1)]), Cold::Waited);
        assert_eq!(Cold::Waited.answered(&[used("fsstack", 0.1), used(BRICK, 0.0)]), Cold::AnsweredAbove);
        assert_eq!(Cold::Dropped.answered(&[]), Cold::Dropped);
    }
}
