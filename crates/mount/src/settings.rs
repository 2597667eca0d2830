//! Settings of a pool: every default filled in, every path checked, nothing left to decide.

use crate::log::LogSettings;
use crate::registry::DirectoryId;
use fsstack_engine::poolid::PoolId;
use fsstack_engine::rules::Rules;
use fsstack_pool::{BranchSpec, Chain, Floor, Size};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

/// A mount that was found right in every way that can be checked before it is made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The branches as typed.
    pub source: OsString,
    /// The branches in order.
    pub branches: Vec<Branch>,
    /// The directory to mount on, canonical.
    pub mount_point: PathBuf,
    /// How branches are ranked for new files.
    pub create: Chain,
    /// Free space below which a branch comes last, where it has no floor of its own.
    pub floor: Floor,
    /// Free inodes below which a branch comes last, where it has no count of its own.
    pub min_inodes: u64,
    /// Handling of a file that outgrows its branch.
    pub relocate: Relocate,
    /// How the branches with room for it are ranked.
    pub relocate_policy: Chain,
    /// Check before the old copy is removed.
    pub relocate_verify: Verify,
    /// Bytes moved a second at most.
    pub relocate_speed: Option<NonZeroU64>,
    /// How bytes reach a branch.
    pub write_path: WritePath,
    /// The FUSE layer's own cache.
    pub page_cache: PageCache,
    /// Free space below which `auto` writes through the daemon.
    pub passthrough_headroom: Size,
    /// How long a call may stay inside a branch that others serve.
    pub branch_timeout: Duration,
    /// Calls that are let into such a branch at once.
    pub branch_inflight: usize,
    /// Answers while a branch is out of reach.
    pub degraded: Degraded,
    /// How long the kernel may keep attributes.
    pub attr_timeout: Duration,
    /// How long the kernel may keep a name.
    pub entry_timeout: Duration,
    /// How long the kernel may keep that a name is missing.
    pub negative_timeout: Duration,
    /// Handling of out-of-band changes.
    pub out_of_band: OutOfBand,
    /// Timeouts of names and of missing names while notices come for every change.
    pub watched_timeouts: (Duration, Duration),
    /// Transport of the requests.
    pub transport: Transport,
    /// Scheduling of the worker threads.
    pub transport_scheduling: TransportScheduling,
    /// Handling of a system call outside the daemon's list.
    pub seccomp: Seccomp,
    /// The most worker threads; `None` leaves it to the transport.
    pub max_threads: Option<NonZeroUsize>,
    /// The largest request in bytes.
    pub max_write: u32,
    /// Free space that statfs shows.
    pub statfs: StatfsView,
    /// How far locks reach.
    pub locks: Locks,
    /// Whether the pool can be exported by NFS.
    pub nfs_export: bool,
    /// The UUID of the block device that the pool is mounted as, if it is.
    pub nfs_identity: Option<PoolId>,
    /// Where pools keep what outlives them; `None` for a user who may not write there.
    pub state_dir: Option<PathBuf>,
    /// The flags of the mount itself.
    pub flags: MountFlags,
    /// The source that the mount table shows.
    pub fsname: OsString,
    /// The type that it shows behind `fuse.`.
    pub subtype: String,
    /// Whether other users may enter.
    pub allow_other: bool,
    /// Whether the kernel checks permissions.
    pub default_permissions: bool,
    /// Privilege of the mounting user.
    pub privilege: Privilege,
    /// Whether the daemon detaches.
    pub run_in: RunIn,
    /// Where and what it logs.
    pub log: LogSettings,
    /// Demands on branches, at the mount and when one is added.
    pub require: Require,
    /// Where it is listed while it lives, and can be asked; `None`: there is no such place for this user.
    pub registry: Option<PathBuf>,
    /// The config file that changes can be written to.
    pub config: Option<PathBuf>,
    /// The options that were typed behind `-o`, which go before the config file.
    pub given: Vec<&'static str>,
    /// Where the figures can be had by TCP.
    pub metrics: Option<SocketAddr>,
    /// Directories with a write path of their own.
    pub write_rules: Rules,
    /// Notices for the user: printed by the helper, logged by the daemon.
    pub notices: Vec<String>,
    /// Remarks that the daemon logs and the helper does not print: they follow from the options.
    pub remarks: Vec<String>,
}

/// A branch whose directory was seen.
#[derive(Clone, Debug)]
pub struct Branch {
    /// Its settings, with a canonical path and no pattern.
    pub spec: BranchSpec,
    /// Which directory was found there: what is opened later must be the same.
    pub id: DirectoryId,
}

/// How bytes reach a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePath {
    /// Passthrough where kernel, privilege, branch and file allow it.
    Auto,
    /// Passthrough, or no mount.
    Passthrough,
    /// The daemon reads and writes.
    Stacked,
}

impl WritePath {
    /// The words that stand for them.
    pub const NAMES: [(&str, Self); 3] =
        [("auto", Self::Auto), ("passthrough", Self::Passthrough), ("stacked", Self::Stacked)];

    /// The word for it.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, path)| *path == self).map_or("", |(name, _)| name)
    }

    /// The engine's word for it.
    pub(crate) fn for_engine(self) -> fsstack_engine::settings::WritePath {
        use fsstack_engine::settings::WritePath as Engine;
        match self {
            Self::Auto => Engine::Auto,
            Self::Passthrough => Engine::Passthrough,
            Self::Stacked => Engine::Stacked,
        }
    }

    /// Parses the word.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, path)| *path)
    }
}

/// Whether branches are changed out of band, and how that is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfBand {
    /// The system tells of it.
    Watch,
    /// Cached names and attributes expire.
    Timeout,
    /// They are not.
    Never,
}

/// Transport of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// io_uring where the kernel has it switched on, else the device.
    Auto,
    /// io_uring, switched on if need be, or no mount.
    Ring,
    /// The device.
    Dev,
}

/// Handling of a system call outside the daemon's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seccomp {
    /// It fails.
    On,
    /// It ends the daemon.
    Kill,
    /// It is made, and the kernel tells.
    Log,
    /// There is no filter.
    Off,
}

impl Seccomp {
    /// The word of `seccomp=`.
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Kill => "kill",
            Self::Log => "log",
            Self::Off => "off",
        }
    }
}

/// Scheduling of worker threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportScheduling {
    /// `Idle` in a scheduling group of its own, else `Nice`.
    Auto,
    /// `SCHED_IDLE`.
    Idle,
    /// Ordinary, a little before others.
    Nice,
    /// Scheduled as the helper was started.
    Plain,
}

/// The FUSE layer's own cache of stacked files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// None: the branch has one below.
    Off,
    /// Reads are cached, writes go through.
    On,
    /// Writes are gathered too; the kernel then has no passthrough.
    Writeback,
}

/// Answers while a branch is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// An error for all that might be on it.
    Strict,
    /// Reachable objects, as if they were all.
    Read,
}

/// Which free space statfs tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatfsView {
    /// That of every branch.
    All,
    /// That which the placement policy would use.
    AsPlaced,
}

/// How far locks reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locks {
    /// This mount.
    Local,
    /// The branch, where others see them too.
    Branch,
}

/// Handling of a file that outgrows its branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relocate {
    /// The write answers "no space".
    Off,
    /// It is moved to a branch with room for it.
    On,
}

/// Check before the old copy of a moved file is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Its size.
    Size,
    /// Its content too.
    Content,
}

/// Demands on a branch's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Require {
    /// Same as when a pool last used it: a mount point must be one again.
    Same,
    /// Any directory.
    Directory,
    /// The root of a mount.
    MountPoint,
}

/// Whether the daemon detaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunIn {
    /// The helper returns when the mount answers.
    Background,
    /// The helper is the daemon.
    Foreground,
}

/// Privilege of the mounting user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// Root, by mount(2).
    Root,
    /// Any user, by fusermount3.
    User,
}

/// The flags of the mount itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountFlags {
    /// Nothing can be changed.
    pub read_only: bool,
    /// When reading changes access times.
    pub access_times: AccessTimes,
    /// Whether listing changes those of directories.
    pub directory_access_times: bool,
    /// Whether set-uid programs work.
    pub suid: bool,
    /// Whether device nodes work.
    pub devices: bool,
    /// Whether programs run.
    pub execute: bool,
    /// Whether every write waits for the disk.
    pub synchronous: bool,
    /// Whether every change of a directory does.
    pub synchronous_directories: bool,
}

/// When reading changes an access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTimes {
    /// When it is older than the last change, or a day.
    Relative,
    /// Always.
    Strict,
    /// Never.
    Never,
}
