//! The marks on directories' copies and on moved files: which number they have in the pool.
//!
//! A directory takes its number from its first copy. Copies that the pool makes later carry a mark with that
//! number, so that it stays the same when the branches are put in another order or the first copy is lost.
//! A file that was moved to another branch carries a mark with the number that it had before.
//! A mark also names the inode it was put on: one that was carried elsewhere by a copying program means nothing.

use std::ffi::CStr;

use fsstack_pool::Ino;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{Errno, SysError};

use super::number::Identity;

/// The attribute of directories' copies; only root can set it, and it does not show in the pool.
pub const DIR: &CStr = c"trusted.fsstack.dir";
/// The attribute of files, alike.
pub const FILE: &CStr = c"trusted.fsstack.id";
/// All our own attributes begin so.
pub const OWN_PREFIX: &[u8] = b"trusted.fsstack.";
const LEN: usize = 20;

/// Marks what `on` stands for, whose inode number on the branch is `own`, as the object `id` of the pool.
/// A file system without such attributes goes unmarked.
pub fn put(on: On<'_>, which: &CStr, id: Identity, own: u64) {
    let mut value = [0_u8; LEN];
    value[..8].copy_from_slice(&id.ino.0.to_le_bytes());
    value[8..12].copy_from_slice(&id.generation.to_le_bytes());
    value[12..].copy_from_slice(&own.to_le_bytes());
    if let Err(error) = xattr::set(on, which, &value, 0) {
        tracing::debug!(%error, "an object stays unmarked");
    }
}

/// The object that the mark names, if there is one and it was put on this inode, whose number is `own`.
pub fn get(on: On<'_>, which: &CStr, own: u64) -> Option<Identity> {
    let mut value = [0_u8; LEN];
    if !matches!(xattr::get(on, which, &mut value), Ok(LEN)) {
        return None;
    }
    let number = u64::from_le_bytes(value[..8].try_into().ok()?);
    let generation = u32::from_le_bytes(value[8..12].try_into().ok()?);
    let put_on = u64::from_le_bytes(value[12..].try_into().ok()?);
    (put_on == own && number > Ino::ROOT.0).then_some(Identity { ino: Ino(number), generation })
}

/// Whether there is a mark, whatever it says.
///
/// # Errors
/// That cannot be told.
pub fn is_there(on: On<'_>, which: &CStr) -> Result<bool, SysError> {
    match xattr::get(on, which, &mut []) {
        Ok(_) => Ok(true),
        Err(error)
            if matches!(error.errno, Errno::NODATA | Errno::OPNOTSUPP | Errno::NOENT | Errno::PERM) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
