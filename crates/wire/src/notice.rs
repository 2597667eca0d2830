//! Notices that tell the kernel to drop cached names, attributes or data, or to send a request.

use std::ffi::CStr;

use zerocopy::{Immutable, IntoBytes};

use crate::abi;

/// A notice as bytes for the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice(Vec<u8>);

/// `FUSE_NOTIFY_INVAL_INODE`, `_INVAL_ENTRY`, `_RETRIEVE`, `_RESEND`, `_INC_EPOCH`.
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const RETRIEVE: i32 = 5;
const RESEND: i32 = 7;
const INC_EPOCH: i32 = 8;
/// `FUSE_EXPIRE_ONLY`: the entry is looked up again at its next use. Kernels before 6.2 drop it at once.
const EXPIRE_ONLY: u32 = 1;

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct InodeNotice {
    ino: u64,
    offset: i64,
    len: i64,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct RetrieveNotice {
    unique: u64,
    ino: u64,
    offset: u64,
    size: u32,
    padding: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct EntryNotice {
    parent: u64,
    name_len: u32,
    flags: u32,
}

impl Notice {
    /// Expires `name` in `parent`.
    #[must_use]
    pub fn name(parent: u64, name: &CStr) -> Self {
        let name_len = u32::try_from(name.count_bytes()).unwrap_or(u32::MAX);
        let entry = EntryNotice { parent, name_len, flags: EXPIRE_ONLY };
        Self::new(INVAL_ENTRY, &[entry.as_bytes(), name.to_bytes_with_nul()])
    }

    /// Invalidates the attributes of `ino`.
    #[must_use]
    pub fn attributes(ino: u64) -> Self {
        Self::new(INVAL_INODE, &[InodeNotice { ino, offset: -1, len: 0 }.as_bytes()])
    }

    /// Invalidates the attributes and data of `ino`.
    #[must_use]
    pub fn data(ino: u64) -> Self {
        Self::new(INVAL_INODE, &[InodeNotice { ino, offset: 0, len: 0 }.as_bytes()])
    }

    /// Expires every name (Linux 6.16).
    #[must_use]
    pub fn all_names() -> Self {
        Self::new(INC_EPOCH, &[])
    }

    /// Has the kernel send all requests again that were read and not answered (Linux 6.9).
    #[must_use]
    pub fn resend() -> Self {
        Self::new(RESEND, &[])
    }

    /// Makes the kernel send a request, `NOTIFY_REPLY`, with the number `unique`: no bytes of the cached data of `ino`.
    #[must_use]
    pub fn request(ino: u64, unique: u64) -> Self {
        Self::new(RETRIEVE, &[RetrieveNotice { unique, ino, offset: 0, size: 0, padding: 0 }.as_bytes()])
    }

    fn new(code: i32, parts: &[&[u8]]) -> Self {
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let len = u32::try_from(size_of::<abi::RawOutHeader>() + body).unwrap_or(u32::MAX);
        let header = abi::RawOutHeader { len, error: code, unique: 0 };
        Self([&[header.as_bytes()], parts].concat().concat())
    }

    /// Bytes on the wire.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Notice;

    #[test]
    fn notices_are_laid_out_as_the_kernel_reads_them() {
        let name = Notice::name(7, c"film");
        assert_eq!(name.as_bytes().len(), 16 + 16 + 5);
        assert_eq!(name.as_bytes()[..8], [37, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(name.as_bytes()[16..], *b"\x07\0\0\0\0\0\0\0\x04\0\0\0\x01\0\0\0film\0");
        assert_eq!(Notice::attributes(7).as_bytes()[16..32], [[7, 0, 0, 0, 0, 0, 0, 0], [255; 8]].concat());
        assert_eq!(Notice::data(7).as_bytes().len(), 40);
        assert_eq!(Notice::all_names().as_bytes().len(), 16);
        assert_eq!(Notice::resend().as_bytes()[..8], [16, 0, 0, 0, 7, 0, 0, 0]);
        let request = Notice::request(1, 0x99);
        assert_eq!(request.as_bytes()[..8], [48, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(request.as_bytes()[16..32], [0x99, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
}
