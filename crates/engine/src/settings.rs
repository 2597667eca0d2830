//! Settings of a pool, as chosen by its administrator.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use fsstack_pool::{Chain, Floor, Policy, Rank, Scope};

use crate::rules::Rules;

/// Path of a file's bytes to its branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePath {
    /// Decided at each file's first open.
    Auto,
    /// The kernel reads and writes the branch's file itself.
    Passthrough,
    /// The daemon reads and writes.
    Stacked,
}

impl std::fmt::Display for WritePath {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Auto => "auto",
            Self::Passthrough => "passthrough",
            Self::Stacked => "stacked",
        })
    }
}

/// Whether stacked files use the page cache of the FUSE layer, besides the branch's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// No: requests go straight to the branch, whose own page cache is below.
    Off,
    /// Yes, writes go through.
    On,
    /// Yes, and writes are kept back.
    WriteBack,
}

/// Space that `statfs` calls available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatfsMode {
    /// All that is free on branches that can be written.
    All,
    /// Only what is free above the floors of branches that take new files.
    AsPlaced,
}

/// Where file locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locks {
    /// In the kernel, for this mount.
    Local,
    /// On the branch's file too, where programs outside the pool see them.
    Branch,
}

/// Check before the old copy of a moved file is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Its size.
    Size,
    /// Its content too, read again from the new branch.
    Content,
}

/// How a file is moved whose branch is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// How the branches that have room for it are ranked.
    pub policy: Chain,
    /// Check before the old copy is removed.
    pub verify: Verify,
    /// Bytes copied a second at most. None: as fast as it goes.
    pub speed: Option<NonZeroU64>,
}

impl Relocation {
    /// To the roomiest branch, as fast as it goes; the size is compared.
    pub fn to_the_roomiest() -> Self {
        let policy = Policy { scope: Scope::AnyBranch, rank: Rank::MostFree };
        Self { policy: Chain::only(policy), verify: Verify::Size, speed: None }
    }
}

/// Answers while a branch is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// An I/O error for names that may be on it; no such name is answered as missing.
    Strict,
    /// Reachable objects, as if there were no more. Nothing is made under a name that might be out of reach.
    Read,
}

/// When changes are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// When a program asks for it.
    ByRequest,
    /// Names before a change of them is answered (`dirsync`); data when a program asks for it.
    Names,
    /// Names and data before a change is answered (`sync`).
    All,
}

/// The settings of a pool. Replaced as a whole, never changed in place: every request sees one.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Placement policy of new objects.
    pub create: Chain,
    /// Free space below which a branch takes no new files, unless it has a floor of its own.
    pub floor: Floor,
    /// Free inodes below which a branch takes no new files, unless it has a number of its own.
    pub min_inodes: u64,
    /// When changes are on disk.
    pub synced: Synced,
    /// How bytes reach the branch.
    pub write_path: WritePath,
    /// Directories whose files have a write path of their own.
    pub rules: Rules,
    /// The FUSE layer's page cache for stacked files.
    pub page_cache: PageCache,
    /// Free bytes below which `auto` writes a file by the stacked path.
    pub passthrough_headroom: u64,
    /// A file whose branch is full under a write is moved to a roomier one.
    pub relocate: bool,
    /// How.
    pub relocation: Relocation,
    /// Space that `statfs` calls available.
    pub statfs: StatfsMode,
    /// Where locks are kept.
    pub locks: Locks,
    /// How long a call may be inside a remote branch before its request is refused; zero: for ever.
    pub branch_timeout: Duration,
    /// Calls that are let into such a branch at once, 1 to 64.
    pub branch_inflight: usize,
    /// Answers while a branch is out of reach.
    pub degraded: Degraded,
    /// How long a directory's set of copies is believed before all branches are asked again.
    pub recheck: Duration,
    /// The daemon may act as its callers and use privileged calls (it runs as root).
    pub privileged: bool,
    /// The pool can be exported by NFS: an object is found by its number alone, whether the kernel knows it or not.
    pub nfs_export: bool,
    /// Where the pool keeps its index of moved files; None: in memory, as long as it is mounted.
    pub state_dir: Option<PathBuf>,
    /// Directory file descriptors kept open at most.
    pub dir_fds: usize,
    /// Names and offsets that open listings keep at most, all together.
    pub listing_entries: usize,
}
