//! Rows of READDIR and READDIRPLUS, written into the reply's buffer.

use zerocopy::IntoBytes;

use crate::abi;
use crate::attr::Entry;

/// Fills a buffer with rows until one does not fit.
#[derive(Debug)]
pub struct DirentWriter<'b> {
    buf: &'b mut [u8],
    len: usize,
}

impl<'b> DirentWriter<'b> {
    /// Writes into the first `size` bytes of `buf` (the request's `size`), or into all of it if it is shorter.
    pub fn new(buf: &'b mut [u8], size: u32) -> Self {
        let limit = usize::try_from(size).map_or(buf.len(), |size| size.min(buf.len()));
        let (buf, _) = buf.split_at_mut(limit);
        Self { buf, len: 0 }
    }

    /// Adds a READDIR row; false, and nothing written, if it does not fit. `off` is the position after it.
    #[must_use = "a row that did not fit belongs to the next answer"]
    pub fn plain(&mut self, ino: u64, off: u64, kind: u32, name: &[u8]) -> bool {
        self.row(&[], ino, off, kind, name)
    }

    /// Adds a READDIRPLUS row; false, and nothing written, if it does not fit. Without an entry (always for `.` and
    /// `..`) the kernel counts no lookup.
    #[must_use = "a row that did not fit belongs to the next answer, and counts no lookup"]
    pub fn plus(&mut self, entry: Option<&Entry>, ino: u64, off: u64, kind: u32, name: &[u8]) -> bool {
        let entry = entry.map(abi::EntryOut::from).unwrap_or_default();
        self.row(entry.as_bytes(), ino, off, kind, name)
    }

    /// True if a READDIRPLUS row with a name of that many bytes fits; checked before its lookup is made.
    pub fn plus_fits(&self, name_len: usize) -> bool {
        row_len(size_of::<abi::EntryOut>(), name_len).is_some_and(|len| len <= self.buf.len() - self.len)
    }

    /// True if a READDIR row with a name of that many bytes fits.
    pub fn plain_fits(&self, name_len: usize) -> bool {
        row_len(0, name_len).is_some_and(|len| len <= self.buf.len() - self.len)
    }

    fn row(&mut self, entry: &[u8], ino: u64, off: u64, kind: u32, name: &[u8]) -> bool {
        let Ok(namelen) = u32::try_from(name.len()) else { return false };
        let dirent = abi::Dirent { ino, off, namelen, kind };
        let parts = [entry, dirent.as_bytes(), name];
        let Some(len) = row_len(entry.len(), name.len()) else { return false };
        let Some(mut free) = self.buf.get_mut(self.len..).and_then(|free| free.get_mut(..len)) else {
            return false;
        };
        for part in parts {
            let (at, after) = free.split_at_mut(part.len());
            at.copy_from_slice(part);
            free = after;
        }
        free.fill(0);
        self.len += len;
        true
    }

    /// Bytes written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no row has been written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn row_len(entry_len: usize, name_len: usize) -> Option<usize> {
    (entry_len + size_of::<abi::Dirent>()).checked_add(name_len)?.checked_next_multiple_of(abi::RECORD_ALIGN)
}
