//! Safe system calls relative to a directory descriptor, with labelled errors, EINTR retries, counters and injectable
//! faults.
//!
//! The only crate, besides the transports of `fuse`, with `unsafe`. It contains no policy. Linux only.

pub mod allocations;
pub mod at;
pub mod call;
pub mod capabilities;
pub mod count;
pub mod cpu_group;
pub mod dirents;
pub mod extents;
pub mod fanotify;
#[cfg(feature = "fault")]
pub mod fault;
pub mod file;
pub mod fusectl;
pub mod handle;
pub mod handover;
pub mod identity;
pub mod ioctl;
pub mod keeper;
pub mod local_time;
pub mod locks;
pub mod loop_device;
pub mod mapped;
pub mod mounts;
pub mod process;
pub mod program;
pub mod ring;
pub mod seccomp;
pub mod shared_words;
pub mod stat;
pub mod state;
pub mod thread;
pub mod whole_file;
#[cfg(feature = "fault")]
pub mod witness;
pub mod xattr;

pub use call::{Call, Result, SysError};
pub use rustix::fs::{CWD, OFlags};

/// `O_DSYNC`. rustix's `OFlags::DSYNC` is `O_SYNC`, which has one more bit.
pub const O_DSYNC: OFlags = OFlags::from_bits_retain(0o10000);
pub use rustix::io::Errno;
pub use stat::{Kind, Stat, Time};
