//! Answers of the engine, in its own types: the adapter turns these into protocol structs.

use std::sync::Arc;

use fsstack_pool::{Handle, Ino};
use fsstack_sys::Stat;

use crate::files::OpenFile;
use crate::files::route::Route;

/// Attributes of an object, as the branch gave them, under the pool's own inode number.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// `st_ino`: the same as the number the kernel calls the inode by.
    pub ino: Ino,
    /// How long the kernel may use them without asking again.
    pub validity: Validity,
    /// All other attributes; `stat.ino` and `stat.dev` are the branch's and are not shown.
    pub stat: Stat,
}

/// How long the kernel may keep attributes.
///
/// By passthrough a store into a shared mapping changes a file's times on its branch without any request: neither the daemon
/// nor the FUSE layer notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validity {
    /// Kept as long as the mount's `attr-timeout` says.
    #[default]
    Full,
    /// A second at most: the file was open so that it could be mapped, and a mapping outlives its descriptor.
    Brief,
    /// A millisecond at most: the file was made by this request and is open so that it can be mapped and stored into.
    /// The kernel checks the rights of the open by them, and would ask for them again.
    Instant,
    /// Not at all: the file is open so that it can be mapped and stored into.
    None,
}

/// A name that was found or made: the kernel holds one more lookup of its inode.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The number that the kernel calls the inode by.
    pub ino: Ino,
    /// Tells apart two objects that have the same number one after the other.
    pub generation: u64,
    /// Its attributes.
    pub attr: Attr,
}

/// A file that was opened.
#[derive(Debug)]
pub struct Opened {
    /// The handle of this open.
    pub handle: Handle,
    /// The open file, shared by all handles of the inode.
    pub file: Arc<OpenFile>,
    /// How the kernel reaches its bytes.
    pub route: Route,
    /// Closing it has something to report.
    pub flushes: bool,
}

/// Result of `create`: the new entry and the handle already open on it.
#[derive(Debug)]
pub struct Created {
    /// The new entry.
    pub entry: Entry,
    /// The handle.
    pub opened: Opened,
}

/// One entry of a listing.
#[derive(Debug)]
pub struct Listed<'a> {
    /// `d_ino`: the pool's own number.
    pub ino: Ino,
    /// Where a listing goes on after this entry.
    pub cookie: u64,
    /// `d_type`.
    pub dtype: u32,
    /// The name.
    pub name: &'a std::ffi::CStr,
}

/// The pool's size: sums over the distinct file systems of its branches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Unit of the block counts, bytes.
    pub block_size: u32,
    /// Size, in blocks.
    pub blocks: u64,
    /// Free, in blocks.
    pub free: u64,
    /// Free for unprivileged users, in blocks.
    pub available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name, bytes.
    pub name_max: u32,
}
