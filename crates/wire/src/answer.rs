//! Builds a reply in the caller's buffer.

use std::time::Duration;

use zerocopy::{Immutable, IntoBytes};

use crate::abi;
use crate::attr::{Attr, Entry, Opened, Statx};
use crate::dirent::DirentWriter;
use crate::operation::{CopyWidth, FileLock};

/// Header of every reply, as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutHeader(abi::RawOutHeader);

impl OutHeader {
    /// Size of the header.
    pub const LEN: usize = size_of::<abi::RawOutHeader>();

    /// Makes the header of a reply with `payload_len` bytes after it. A length beyond 32 bits is truncated, and the
    /// kernel, which compares it, refuses the reply.
    pub fn answered(unique: u64, payload_len: usize) -> Self {
        let len = u32::try_from(Self::LEN.saturating_add(payload_len)).unwrap_or(u32::MAX);
        Self(abi::RawOutHeader { len, error: 0, unique })
    }

    /// Makes a complete reply with an error. An errno outside 1 to 511, which the kernel would refuse, becomes EIO.
    pub fn refused(unique: u64, errno: i32) -> Self {
        const EIO: i32 = 5;
        let errno = if (1..512).contains(&errno) { errno } else { EIO };
        Self(abi::RawOutHeader { len: 16, error: -errno, unique })
    }

    /// Bytes on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// The reply does not fit into its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer does not fit into its buffer")]
pub struct NoRoom;

/// Content of a STATFS reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields bear statvfs(3)'s names")]
pub struct Statfs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
}

/// Payload of a reply, after the header. An addition that does not fit leaves it unchanged.
#[derive(Debug)]
pub struct Answer<'b> {
    buf: &'b mut [u8],
    len: usize,
}

impl<'b> Answer<'b> {
    /// Starts an empty payload in `buf`.
    pub fn new(buf: &'b mut [u8]) -> Self {
        Self { buf, len: 0 }
    }

    /// Bytes built so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if only a header is to be sent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes its header.
    pub fn header(&self, unique: u64) -> OutHeader {
        OutHeader::answered(unique, self.len)
    }

    /// Bytes built so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    /// Unused part of the buffer, for reading into; followed by `filled`.
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.buf[self.len..]
    }

    /// Adds the first `count` bytes of `spare` to the reply.
    pub fn filled(&mut self, count: usize) -> Result<(), NoRoom> {
        let len = self.len.checked_add(count).filter(|len| *len <= self.buf.len()).ok_or(NoRoom)?;
        self.len = len;
        Ok(())
    }

    /// Raw bytes: READ, READLINK, GETXATTR, LISTXATTR.
    pub fn data(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        self.spare().get_mut(..bytes.len()).ok_or(NoRoom)?.copy_from_slice(bytes);
        self.filled(bytes.len())
    }

    /// READDIR, READDIRPLUS: the rows that `list` writes, within the request's `size`.
    pub fn dirents<T>(&mut self, size: u32, list: impl FnOnce(&mut DirentWriter<'_>) -> T) -> T {
        let mut rows = DirentWriter::new(self.spare(), size);
        let listed = list(&mut rows);
        self.len += rows.len();
        listed
    }

    fn put(&mut self, out: &(impl IntoBytes + Immutable)) -> Result<(), NoRoom> {
        self.data(out.as_bytes())
    }

    /// LOOKUP, MKNOD, MKDIR, SYMLINK, LINK.
    pub fn entry(&mut self, entry: &Entry) -> Result<(), NoRoom> {
        self.put(&abi::EntryOut::from(entry))
    }

    /// LOOKUP of a missing name, which the kernel may cache for `valid`.
    pub fn missing(&mut self, valid: Duration) -> Result<(), NoRoom> {
        self.entry(&Entry { entry_valid: valid, ..Entry::default() })
    }

    /// CREATE, TMPFILE.
    pub fn created(&mut self, entry: &Entry, opened: Opened) -> Result<(), NoRoom> {
        if self.spare().len() < size_of::<abi::EntryOut>() + size_of::<abi::OpenOut>() {
            return Err(NoRoom);
        }
        self.entry(entry)?;
        self.opened(opened)
    }

    /// OPEN, OPENDIR.
    pub fn opened(&mut self, opened: Opened) -> Result<(), NoRoom> {
        self.put(&abi::OpenOut::from(opened))
    }

    /// GETATTR, SETATTR.
    pub fn attr(&mut self, attr: &Attr, valid: Duration) -> Result<(), NoRoom> {
        let (attr_valid, attr_valid_nsec) = (valid.as_secs(), valid.subsec_nanos());
        self.put(&abi::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attr.into() })
    }

    /// STATX.
    pub fn statx(&mut self, stat: &Statx, valid: Duration) -> Result<(), NoRoom> {
        let (attr_valid, attr_valid_nsec) = (valid.as_secs(), valid.subsec_nanos());
        let stat = abi::RawStatx::from(stat);
        self.put(&abi::StatxOut { attr_valid, attr_valid_nsec, stat, ..abi::StatxOut::default() })
    }

    /// WRITE.
    pub fn written(&mut self, size: u32) -> Result<(), NoRoom> {
        self.put(&abi::WriteOut { size, padding: 0 })
    }

    /// COPY_FILE_RANGE of that width. `bytes` is at most the requested length, so it fits.
    pub fn copied(&mut self, width: CopyWidth, bytes: u64) -> Result<(), NoRoom> {
        match width {
            CopyWidth::Bits32 => self.written(u32::try_from(bytes).map_err(|_| NoRoom)?),
            CopyWidth::Bits64 => self.put(&abi::CopyFileRangeOut { bytes_copied: bytes }),
        }
    }

    /// STATFS.
    pub fn statfs(&mut self, outcome: &Statfs) -> Result<(), NoRoom> {
        let Statfs { blocks, bfree, bavail, files, ffree, bsize, namelen, frsize } = *outcome;
        let out = abi::Kstatfs {
            blocks,
            bfree,
            bavail,
            files,
            ffree,
            bsize,
            namelen,
            frsize,
            ..Default::default()
        };
        self.put(&out)
    }

    /// LSEEK.
    pub fn sought(&mut self, offset: u64) -> Result<(), NoRoom> {
        self.put(&abi::LseekOut { offset })
    }

    /// GETLK: the conflicting lock, or one of kind `F_UNLCK`.
    pub fn lock(&mut self, lock: FileLock) -> Result<(), NoRoom> {
        let FileLock { start, end, kind, pid } = lock;
        self.put(&abi::LkOut { lk: abi::RawFileLock { start, end, kind, pid } })
    }

    /// GETXATTR, LISTXATTR of size 0.
    pub fn xattr_size(&mut self, size: u32) -> Result<(), NoRoom> {
        self.put(&abi::GetxattrOut { size, padding: 0 })
    }

    /// IOCTL: its return value and output.
    pub fn ioctl(&mut self, result: i32, output: &[u8]) -> Result<(), NoRoom> {
        let head = abi::IoctlOut { result, ..abi::IoctlOut::default() };
        if self.spare().len().checked_sub(size_of_val(&head)).is_none_or(|room| room < output.len()) {
            return Err(NoRoom);
        }
        self.put(&head)?;
        self.data(output)
    }

    /// POLL.
    pub fn polled(&mut self, revents: u32) -> Result<(), NoRoom> {
        self.put(&abi::PollOut { revents, padding: 0 })
    }

    /// BMAP.
    pub fn block(&mut self, block: u64) -> Result<(), NoRoom> {
        self.put(&abi::BmapOut { block })
    }
}
