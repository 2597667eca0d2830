//! Settings of a pool, as chosen by its administrator.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use fsstack_identity::poolid::PoolId;
use fsstack_pool::{Chain, Floor, PlacementRules, Policy, Rank, Scope, Tiers};

use crate::rules::Rules;

/// `branch-timeout` in [`Settings::plain`].
const PLAIN_BRANCH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long copies of a directory are believed in with [`Settings::plain`].
const PLAIN_RECHECK: Duration = Duration::from_secs(3600);

pub use fsstack_pool::settings::{ControlFile, Degraded, Locks, PageCache, StatfsMode, Verify, WritePath};

/// Branches of one pool at most: a set of them fits one word.
pub const MAX_BRANCHES: usize = 64;

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
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Placement policy of new objects.
    pub create: Chain,
    /// Free space below which a branch takes no new files, unless it has a floor of its own.
    pub floor: Floor,
    /// Free inodes below which a branch takes no new files, unless it has a number of its own.
    pub min_inodes: u64,
    /// When changes are on disk.
    pub synced: Synced,
    /// Directories with a placement of their own.
    pub placement: PlacementRules,
    /// Classes whose files go to another one when they are full.
    pub tiers: Tiers,
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
    /// Nothing but the pool changes its branches.
    pub exclusive: bool,
    /// The daemon may act as its callers and use privileged calls (it runs as root).
    pub privileged: bool,
    /// The pool can be exported by NFS: an object is found by its number alone, whether the kernel knows it or not.
    pub nfs_export: bool,
    /// mergerfs's control file in the root. Where there is one, no object of a branch shows under its name.
    pub control_file: ControlFile,
    /// Where the pool keeps its index of moved files; None: in memory, as long as it is mounted.
    pub state_dir: Option<PathBuf>,
    /// The pool keeps a catalogue of the names on its branches, in `state_dir`.
    pub catalogue: bool,
    /// Id that the pool has where no branch tells one: that of a daemon before this one.
    pub pool_id: Option<PoolId>,
    /// Directory file descriptors kept open at most.
    pub dir_fds: usize,
    /// Names and offsets that open listings keep at most, all together.
    pub listing_entries: usize,
    /// Names of files with several hard links that walks of jobs remember at most, all together.
    pub linked_names: usize,
}

impl Settings {
    /// Settings of a pool that does nothing by itself: the first branch takes all, the daemon reads and writes.
    pub fn plain() -> Self {
        Self {
            create: Chain::only(Policy { scope: Scope::AnyBranch, rank: Rank::InOrder }),
            floor: Floor::NONE,
            min_inodes: 0,
            synced: Synced::ByRequest,
            placement: PlacementRules::default(),
            tiers: Tiers::default(),
            write_path: WritePath::Stacked,
            rules: Rules::default(),
            page_cache: PageCache::Off,
            passthrough_headroom: 0,
            relocate: false,
            relocation: Relocation::to_the_roomiest(),
            statfs: StatfsMode::All,
            locks: Locks::Local,
            branch_timeout: PLAIN_BRANCH_TIMEOUT,
            branch_inflight: 24,
            degraded: Degraded::Strict,
            recheck: PLAIN_RECHECK,
            exclusive: false,
            privileged: false,
            nfs_export: false,
            control_file: ControlFile::Off,
            state_dir: None,
            catalogue: false,
            pool_id: None,
            dir_fds: 512,
            listing_entries: 1 << 20,
            linked_names: 1 << 19,
        }
    }
}
