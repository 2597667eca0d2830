//! The mark on a directory's copies: which number the directory has.
//!
//! A directory takes its number from its first copy. Copies that the pool makes later carry a mark with that
//! number, so that it stays the same when the branches are put in another order or the first copy is lost.
//! The mark also names the inode it was put on: a mark that was carried elsewhere by a copying program
//! means nothing.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use fsstack_pool::Ino;
use fsstack_sys::xattr::{self, On};

use super::number::Identity;

/// The attribute that has the mark; only root can set it, and it does not show in the pool.
const MARK: &CStr = c"trusted.fsstack.dir";
/// All our own attributes begin so.
pub const OWN_PREFIX: &[u8] = b"trusted.fsstack.";
const LEN: usize = 20;

/// Marks the copy `dir`, whose inode number on the branch is `own`, as a copy of the directory `id`.
/// A file system without such attributes goes unmarked: the number then follows the lowest branch id.
pub fn put(dir: BorrowedFd<'_>, id: Identity, own: u64) {
    let mut value = [0_u8; LEN];
    value[..8].copy_from_slice(&id.ino.0.to_le_bytes());
    value[8..12].copy_from_slice(&id.generation.to_le_bytes());
    value[12..].copy_from_slice(&own.to_le_bytes());
    if let Err(error) = xattr::set(On::Fd(dir), MARK, &value, 0) {
        tracing::debug!(%error, "a directory's copy stays unmarked");
    }
}

/// The directory that the copy `dir` belongs to, if it is marked.
pub fn get(on: On<'_>, own: u64) -> Option<Identity> {
    let mut value = [0_u8; LEN];
    if !matches!(xattr::get(on, MARK, &mut value), Ok(LEN)) {
        return None;
    }
    let number = u64::from_le_bytes(value[..8].try_into().ok()?);
    let generation = u32::from_le_bytes(value[8..12].try_into().ok()?);
    let put_on = u64::from_le_bytes(value[12..].try_into().ok()?);
    (put_on == own && number > Ino::ROOT.0).then_some(Identity { ino: Ino(number), generation })
}
