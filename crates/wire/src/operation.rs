//! Requests of the kernel: one variant per operation, with names and data borrowed from the request's buffer.
#![allow(
    missing_docs,
    reason = "variants and fields bear the kernel's names; what they do not say is said here"
)]

use std::ffi::CStr;

use zerocopy::FromBytes;

use crate::abi;
use crate::attr::Timestamp;

/// A parsed request. Its inode is the header's `nodeid`; for requests with a name that is the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    Lookup {
        name: &'a CStr,
    },
    Forget {
        nlookup: u64,
    },
    BatchForget(Forgets<'a>),
    Getattr {
        fh: Option<u64>,
    },
    Setattr(SetAttr),
    Readlink,
    Symlink {
        name: &'a CStr,
        target: &'a CStr,
    },
    /// `rdev` is encoded as for `decode_dev`.
    Mknod {
        name: &'a CStr,
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    Mkdir {
        name: &'a CStr,
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a CStr,
    },
    Rmdir {
        name: &'a CStr,
    },
    /// RENAME and RENAME2; `flags` are `renameat2`'s.
    Rename {
        name: &'a CStr,
        newdir: u64,
        newname: &'a CStr,
        flags: u32,
    },
    Link {
        oldnode: u64,
        name: &'a CStr,
    },
    /// `flags` are `open`'s, `open_flags` `abi::OPEN_*`.
    Open {
        flags: u32,
        open_flags: u32,
    },
    Read {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: Option<u64>,
        flags: u32,
    },
    Write {
        fh: u64,
        offset: u64,
        write_flags: u32,
        lock_owner: Option<u64>,
        flags: u32,
        data: &'a [u8],
    },
    Statfs,
    /// `lock_owner` is valid if `release_flags` has one of `abi::RELEASE_*`.
    Release {
        fh: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    },
    Fsync {
        fh: u64,
        datasync: bool,
    },
    /// `setxattr_flags` is 0 unless `Abi::setxattr_ext`.
    Setxattr {
        name: &'a CStr,
        value: &'a [u8],
        flags: u32,
        setxattr_flags: u32,
    },
    /// `size` 0 asks for the length of the value.
    Getxattr {
        name: &'a CStr,
        size: u32,
    },
    /// `size` 0 asks for the length of the list.
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a CStr,
    },
    Flush {
        fh: u64,
        lock_owner: u64,
    },
    Opendir {
        flags: u32,
        open_flags: u32,
    },
    Readdir {
        fh: u64,
        offset: u64,
        size: u32,
    },
    Readdirplus {
        fh: u64,
        offset: u64,
        size: u32,
    },
    Releasedir {
        fh: u64,
        flags: u32,
    },
    Fsyncdir {
        fh: u64,
        datasync: bool,
    },
    Getlk(Lk),
    Setlk(Lk),
    Setlkw(Lk),
    Access {
        mask: u32,
    },
    Create(Creation<'a>),
    /// The name is a placeholder of the kernel ("/"), not one to link.
    Tmpfile(Creation<'a>),
    /// `unique` of the interrupted request; the header's is the INTERRUPT's own.
    Interrupt {
        unique: u64,
    },
    Bmap {
        block: u64,
        blocksize: u32,
    },
    Destroy,
    Ioctl {
        fh: u64,
        flags: u32,
        cmd: u32,
        arg: u64,
        out_size: u32,
        data: &'a [u8],
    },
    Poll {
        fh: u64,
        kh: u64,
        flags: u32,
        events: u32,
    },
    Fallocate {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    Lseek {
        fh: u64,
        offset: i64,
        whence: u32,
    },
    CopyFileRange {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        /// At most what a reply of that `width` can report.
        len: u64,
        flags: u64,
        width: CopyWidth,
    },
    Syncfs,
    /// `sx_flags` are `statx`'s, `mask` its `STATX_*`.
    Statx {
        fh: Option<u64>,
        sx_flags: u32,
        mask: u32,
    },
}

/// Changes of a SETATTR; absent fields stay unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Includes the type's bits.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Sent only with write-back caching.
    pub ctime: Option<Timestamp>,
    pub fh: Option<u64>,
    pub lock_owner: Option<u64>,
    /// The caller lacks CAP_FSETID: clear set-uid and set-gid.
    pub kill_suidgid: bool,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    At(Timestamp),
}

/// Parameters of CREATE and TMPFILE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creation<'a> {
    pub name: &'a CStr,
    pub flags: u32,
    pub mode: u32,
    pub umask: u32,
    pub open_flags: u32,
}

/// A lock to test, set, or wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lk {
    pub fh: u64,
    pub owner: u64,
    pub lock: FileLock,
    /// `abi::LK_FLOCK`: it is `flock`, not `fcntl`.
    pub lk_flags: u32,
}

/// A byte range (`end` included) and its lock: `kind` is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileLock {
    pub start: u64,
    pub end: u64,
    pub kind: u32,
    pub pid: u32,
}

/// Width of the count in a copy's reply, by its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWidth {
    /// COPY_FILE_RANGE.
    Bits32,
    /// COPY_FILE_RANGE_64, since ABI 7.45.
    Bits64,
}

/// The rows of a BATCH_FORGET: (nodeid, nlookup).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a> {
    rows: &'a [u8],
}

impl<'a> Forgets<'a> {
    /// Takes a whole number of rows.
    pub(crate) fn new(rows: &'a [u8]) -> Self {
        Self { rows }
    }
}

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let (row, rows) = abi::ForgetOne::read_from_prefix(self.rows).ok()?;
        self.rows = rows;
        Some((row.nodeid, row.nlookup))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rows.len() / size_of::<abi::ForgetOne>();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Forgets<'_> {}
