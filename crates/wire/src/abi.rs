//! The kernel's structs and numbers (`linux/fuse.h`), under its own names without the `FUSE_` prefix.
#![allow(missing_docs, reason = "fields and constants are those of linux/fuse.h, documented there")]

mod inbound;
mod outbound;

pub use inbound::*;
pub use outbound::*;

/// The nodeid of the root directory.
pub const ROOT_ID: u64 = 1;
/// Longest name that the kernel accepts in a directory listing.
pub const NAME_MAX: usize = 1024;
/// Bit in `unique` of a request that the kernel sends again.
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// Alignment of records of variable length.
pub const RECORD_ALIGN: usize = 8;

pub const FATTR_MODE: u32 = 1 << 0;
pub const FATTR_UID: u32 = 1 << 1;
pub const FATTR_GID: u32 = 1 << 2;
pub const FATTR_SIZE: u32 = 1 << 3;
pub const FATTR_ATIME: u32 = 1 << 4;
pub const FATTR_MTIME: u32 = 1 << 5;
pub const FATTR_FH: u32 = 1 << 6;
pub const FATTR_ATIME_NOW: u32 = 1 << 7;
pub const FATTR_MTIME_NOW: u32 = 1 << 8;
pub const FATTR_LOCKOWNER: u32 = 1 << 9;
pub const FATTR_CTIME: u32 = 1 << 10;
pub const FATTR_KILL_SUIDGID: u32 = 1 << 11;

pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
pub const FOPEN_CACHE_DIR: u32 = 1 << 3;
pub const FOPEN_NOFLUSH: u32 = 1 << 5;
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
pub const FOPEN_PASSTHROUGH: u32 = 1 << 7;

pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub const GETATTR_FH: u32 = 1 << 0;
pub const LK_FLOCK: u32 = 1 << 0;

pub const WRITE_CACHE: u32 = 1 << 0;
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub const READ_LOCKOWNER: u32 = 1 << 1;

pub const FSYNC_FDATASYNC: u32 = 1 << 0;
pub const ATTR_SUBMOUNT: u32 = 1 << 0;
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// The extension that carries supplementary groups.
pub const EXT_GROUPS: u32 = 32;
