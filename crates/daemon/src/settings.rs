//! Settings of a pool: every default filled in, every path checked, nothing left to decide.

use crate::log::{LogSettings, LogTarget};
use fsstack_control::registry::DirectoryId;
use fsstack_engine::settings::Settings as EngineSettings;
use fsstack_fuse::{Scheduling, Transport};
use fsstack_identity::poolid::PoolId;
use fsstack_pool::BranchSpec;
use fsstack_pool::settings::{OutOfBand, Require, Restart, Seccomp, Xattrs};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Value of each option.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options that the engine acts on.
    pub engine: EngineSettings,
    /// Demands on branches, at the mount and when one is added.
    pub require: Require,
    /// How long the mount waits for branches.
    pub branches_timeout: Duration,
    /// How long the kernel may keep attributes.
    pub attr_timeout: Duration,
    /// How long the kernel may keep a name.
    pub entry_timeout: Duration,
    /// How long the kernel may keep that a name is missing.
    pub negative_timeout: Duration,
    /// Timeouts of names and of missing names while notices come for every change.
    pub watched_timeouts: (Duration, Duration),
    /// Handling of out-of-band changes.
    pub out_of_band: OutOfBand,
    /// Whether files have extended attributes.
    pub xattrs: Xattrs,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// How the worker threads are scheduled.
    pub scheduling: Scheduling,
    /// Handling of a system call outside the daemon's list.
    pub seccomp: Seccomp,
    /// Consequence of the daemon's death.
    pub restart: Restart,
    /// Maximum worker threads; None leaves it to the transport.
    pub max_threads: Option<NonZeroUsize>,
    /// The largest request in bytes.
    pub max_write: u32,
    /// The UUID of the block device that the pool is mounted as, if it is.
    pub nfs_identity: Option<PoolId>,
    /// The source that the mount table shows.
    pub fsname: OsString,
    /// The type that it shows behind `fuse.`.
    pub subtype: String,
    /// Whether other users may enter.
    pub allow_other: bool,
    /// Whether the kernel checks permissions.
    pub default_permissions: bool,
    /// Whether the pool may have idmapped mounts.
    pub idmap: bool,
    /// Whether the mount point may have entries.
    pub nonempty: bool,
    /// Whether the daemon detaches.
    pub run_in: RunIn,
    /// Where and what it logs.
    pub log: LogSettings,
    /// Config files as given; changes can be written to the last.
    pub config: Vec<PathBuf>,
    /// Where the figures can be had by TCP.
    pub metrics: Option<SocketAddr>,
}

impl Options {
    /// Values before the defaults of the option table are put in.
    pub(crate) fn unset() -> Self {
        Self {
            engine: EngineSettings::plain(),
            require: Require::default(),
            branches_timeout: Duration::ZERO,
            attr_timeout: Duration::ZERO,
            entry_timeout: Duration::ZERO,
            negative_timeout: Duration::ZERO,
            watched_timeouts: (Duration::ZERO, Duration::ZERO),
            out_of_band: OutOfBand::default(),
            xattrs: Xattrs::default(),
            transport: Transport::default(),
            scheduling: Scheduling::default(),
            seccomp: Seccomp::default(),
            restart: Restart::default(),
            max_threads: None,
            max_write: 0,
            nfs_identity: None,
            fsname: OsString::new(),
            subtype: String::new(),
            allow_other: false,
            default_permissions: false,
            idmap: false,
            nonempty: false,
            run_in: RunIn::Background,
            log: LogSettings { target: LogTarget::Syslog, level: tracing::Level::INFO },
            config: Vec::new(),
            metrics: None,
        }
    }
}

/// A mount that was found right in every way that can be checked before it is made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The branches as typed.
    pub source: OsString,
    /// The branches in order.
    pub branches: Vec<Branch>,
    /// The directory to mount on, canonical.
    pub mount_point: PathBuf,
    /// Value of each option.
    pub options: Options,
    /// The flags of the mount itself.
    pub flags: MountFlags,
    /// Privilege of the mounting user.
    pub privilege: Privilege,
    /// Where it is listed while it lives, and can be asked; `None`: there is no such place for this user.
    pub registry: Option<PathBuf>,
    /// The options that were typed behind `-o`, which go before the config file.
    pub given: Vec<&'static str>,
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

/// The flags of the mount itself. The state that an upgrade hands over holds them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// When reading changes an access time. The state that an upgrade hands over holds the index of the variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessTimes {
    /// When it is older than the last change, or a day.
    Relative,
    /// Always.
    Strict,
    /// Never.
    Never,
}
