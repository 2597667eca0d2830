//! Inode attributes in replies, and their conversion to the kernel's form.
#![allow(missing_docs, reason = "fields bear stat(2)'s and statx(2)'s names")]

use std::time::Duration;

use crate::abi;

/// A point in time; `nsec` is below a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    pub sec: i64,
    pub nsec: u32,
}

/// Attributes of an inode. `mode` includes the type's bits; `rdev` is encoded by `encode_dev`; `flags` are
/// `abi::ATTR_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub blksize: u32,
    pub flags: u32,
}

/// A name that was found or made, with the validity of name and attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Each reply with it counts as one lookup, returned by FORGET.
    pub nodeid: u64,
    pub generation: u64,
    pub entry_valid: Duration,
    pub attr_valid: Duration,
    pub attr: Attr,
}

/// A file or directory that was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    pub fh: u64,
    /// `abi::FOPEN_*`.
    pub open_flags: u32,
    /// Id of the backing file, with `abi::FOPEN_PASSTHROUGH`; else 0.
    pub backing_id: i32,
}

/// Content of a STATX answer: `mask` says which fields are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statx {
    pub mask: u32,
    pub blksize: u32,
    pub attributes: u64,
    pub attributes_mask: u64,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: Timestamp,
    pub btime: Timestamp,
    pub ctime: Timestamp,
    pub mtime: Timestamp,
    pub rdev_major: u32,
    pub rdev_minor: u32,
    pub dev_major: u32,
    pub dev_minor: u32,
}

impl From<&Attr> for abi::RawAttr {
    fn from(attr: &Attr) -> Self {
        Self {
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.sec.cast_unsigned(),
            mtime: attr.mtime.sec.cast_unsigned(),
            ctime: attr.ctime.sec.cast_unsigned(),
            atimensec: attr.atime.nsec,
            mtimensec: attr.mtime.nsec,
            ctimensec: attr.ctime.nsec,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: attr.blksize,
            flags: attr.flags,
        }
    }
}

impl From<&Entry> for abi::EntryOut {
    fn from(entry: &Entry) -> Self {
        Self {
            nodeid: entry.nodeid,
            generation: entry.generation,
            entry_valid: entry.entry_valid.as_secs(),
            attr_valid: entry.attr_valid.as_secs(),
            entry_valid_nsec: entry.entry_valid.subsec_nanos(),
            attr_valid_nsec: entry.attr_valid.subsec_nanos(),
            attr: abi::RawAttr::from(&entry.attr),
        }
    }
}

impl From<Opened> for abi::OpenOut {
    fn from(Opened { fh, open_flags, backing_id }: Opened) -> Self {
        Self { fh, open_flags, backing_id }
    }
}

impl From<Timestamp> for abi::SxTime {
    fn from(time: Timestamp) -> Self {
        Self { tv_sec: time.sec, tv_nsec: time.nsec, reserved: 0 }
    }
}

impl From<&Statx> for abi::RawStatx {
    fn from(stat: &Statx) -> Self {
        Self {
            mask: stat.mask,
            blksize: stat.blksize,
            attributes: stat.attributes,
            attributes_mask: stat.attributes_mask,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            mode: stat.mode,
            ino: stat.ino,
            size: stat.size,
            blocks: stat.blocks,
            atime: stat.atime.into(),
            btime: stat.btime.into(),
            ctime: stat.ctime.into(),
            mtime: stat.mtime.into(),
            rdev_major: stat.rdev_major,
            rdev_minor: stat.rdev_minor,
            dev_major: stat.dev_major,
            dev_minor: stat.dev_minor,
            ..Self::default()
        }
    }
}
