//! Real loop-mounted branches, mounted pools and rivals, as objects that clean up in Drop.
//!
//! A test reads as a scenario; the lab hides images, loop devices, daemons and cleanup:
//!
//! ```no_run
//! use fsstack_lab::{self as lab, MiB, zeros};
//!
//! let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount();
//! pool.branch("a").fill_until_free(MiB(1));
//! pool.write("film.mkv", &zeros(MiB(8)));
//! assert_eq!(pool.holders("film.mkv"), ["b"]);
//! ```
//!
//! Whatever is made is first written into the cleanup journal (`cleanup`), so that what a killed run left is
//! taken down by the next one. Linux only.

pub mod branch;
pub mod browser;
pub mod cgroup;
pub mod cleanup;
pub mod daemon;
pub mod debian;
pub mod disk_limit;
pub mod disks;
pub mod ganesha;
pub mod gluster;
pub mod guest;
pub mod mounts;
pub mod needs;
pub mod network;
pub mod nfs4;
pub mod pool;
pub mod programs;
pub mod requests;
pub mod rival;
pub mod shell;
pub mod test_bed;
pub mod trace;
mod wait;
mod watchdog;

pub use branch::{Branch, Kind, Layout};
pub use cgroup::{CpuGroup, MemoryGroup, PidsGroup};
pub use cleanup::{sweep, take_down};
pub use disks::Disks;
pub use gluster::Gluster;
pub use guest::{Guest, GuestDisks};
pub use needs::{RingSwitch, Skip};
pub use pool::{Builder, MountRefused, Pool};
pub use requests::Requests;
pub use rival::Rival;
pub use trace::Trace;
pub use wait::{until, until_within};

/// A size in mebibytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MiB(pub u64);

impl MiB {
    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0 << 20
    }
}

/// Starts the description of a pool; its `mount` makes it.
pub fn pool() -> Builder {
    Builder::default()
}

/// That many zero bytes.
#[must_use]
pub fn zeros(size: MiB) -> Vec<u8> {
    vec![0; usize::try_from(size.bytes()).unwrap_or(usize::MAX)]
}

/// Returns the value, or ends a test whose setup failed.
#[track_caller]
fn must<T>(result: anyhow::Result<T>, what: &str) -> T {
    result.unwrap_or_else(|e| panic!("{what}: {e:#}"))
}
