//! What a pool is mounted with, settled: every default filled in, every path checked, nothing left to decide.

use crate::ledger::DirectoryId;
use crate::log::LogSettings;
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
    /// What happens to a file that outgrows its branch.
    pub relocate: Relocate,
    /// How the branches with room for it are ranked.
    pub relocate_policy: Chain,
    /// What is compared before the old copy goes.
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
    /// What is told while a branch is out of reach.
    pub degraded: Degraded,
    /// How long the kernel may keep attributes.
    pub attr_timeout: Duration,
    /// How long the kernel may keep a name.
    pub entry_timeout: Duration,
    /// How long the kernel may keep that a name is missing.
    pub negative_timeout: Duration,
    /// What is done about changes behind the pool's back.
    pub out_of_band: OutOfBand,
    /// How long the kernel may keep a name, and that one is missing, while every change is told of.
    pub watched_timeouts: (Duration, Duration),
    /// Which door requests come through.
    pub transport: Transport,
    /// How the door's threads are scheduled.
    pub door_scheduling: DoorScheduling,
    /// What becomes of a system call that the daemon is not known to make.
    pub seccomp: Seccomp,
    /// The most door threads; `None` leaves it to the door.
    pub max_threads: Option<NonZeroUsize>,
    /// The largest request in bytes.
    pub max_write: u32,
    /// Which free space is told.
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
    /// Who makes the mount.
    pub privilege: Privilege,
    /// Whether the daemon detaches.
    pub stay: Stay,
    /// Where and what it logs.
    pub log: LogSettings,
    /// What branches must be, when the pool is mounted and when one is added.
    pub require: Require,
    /// Where it is listed while it lives, and can be asked; `None`: there is no such place for this user.
    pub ledger: Option<PathBuf>,
    /// The config file that changes can be written to.
    pub config: Option<PathBuf>,
    /// The options that were typed behind `-o`, which go before the config file.
    pub given: Vec<&'static str>,
    /// Where the figures can be had by TCP.
    pub metrics: Option<SocketAddr>,
    /// Directories with a write path of their own.
    pub write_rules: Rules,
    /// What the user should know: printed by the helper, logged by the daemon.
    pub notices: Vec<String>,
    /// What the daemon logs besides, and the helper does not print: it follows from what was asked for.
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

    /// As the engine calls it.
    pub(crate) fn for_engine(self) -> fsstack_engine::settings::WritePath {
        use fsstack_engine::settings::WritePath as Engine;
        match self {
            Self::Auto => Engine::Auto,
            Self::Passthrough => Engine::Passthrough,
            Self::Stacked => Engine::Stacked,
        }
    }

    /// What the word stands for.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, path)| *path)
    }
}

/// Whether branches are changed past the pool, and how that is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfBand {
    /// The system tells of it.
    Watch,
    /// What the kernel knows expires.
    Timeout,
    /// They are not.
    Never,
}

/// Which door requests come through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// io_uring where the kernel has it switched on, else the device.
    Auto,
    /// io_uring, switched on if need be, or no mount.
    Ring,
    /// The device.
    Dev,
}

/// What becomes of a system call that the daemon is not known to make.
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

/// How a door's threads are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorScheduling {
    /// `Idle` in a scheduling group of its own, else `Nice`.
    Auto,
    /// `SCHED_IDLE`.
    Idle,
    /// Ordinary, a little before others.
    Nice,
    /// As the helper was started.
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

/// What is told while a branch is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// An error for all that might be on it.
    Strict,
    /// What can be reached, as if it were all.
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

/// What happens to a file that outgrows its branch.
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

/// What a branch's directory must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Require {
    /// What it was when a pool was last served from it: a mount point must be one again.
    Same,
    /// Any directory.
    Directory,
    /// The root of a mount.
    MountPoint,
}

/// Whether the daemon detaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// The helper returns when the mount answers.
    Background,
    /// The helper is the daemon.
    Foreground,
}

/// Who makes the mount.
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
