//! The marks on directories' copies and on moved files: which number they have in the pool.
//!
//! A directory takes its number from its first copy. Copies that the pool makes later carry a mark with that
//! number, so that it stays the same when the branches are put in another order or the first copy is lost.
//! A file that was moved to another branch carries a mark with the number that it had before.
//! A mark also names the inode it was put on: one that was carried elsewhere by a copying program means nothing.

use std::ffi::CStr;
use std::os::fd::AsFd;

use fsstack_branch::branch::Branch;
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
///
/// # Errors
/// It stays unmarked; a file system may not have such attributes.
pub fn put(on: On<'_>, which: &CStr, id: Identity, own: u64) -> Result<(), SysError> {
    let mut value = [0_u8; LEN];
    value[..8].copy_from_slice(&id.ino.0.to_le_bytes());
    value[8..12].copy_from_slice(&id.generation.to_le_bytes());
    value[12..].copy_from_slice(&own.to_le_bytes());
    xattr::set(on, which, &value, 0).inspect_err(|error| tracing::debug!(%error, "an object stays unmarked"))
}

/// Like [`read`], for an object on `branch`. A branch that hides such attributes even on its root has none.
///
/// # Errors
/// The mark cannot be read: the object may be another than it seems.
pub fn of(branch: &Branch, on: On<'_>, which: &CStr, own: u64) -> Result<Option<Identity>, SysError> {
    match read(on, which, own) {
        Err(error) if is_hidden(error.errno) => {
            let root = xattr::get(On::Fd(branch.root().as_fd()), which, &mut []);
            if root.is_err_and(|root| is_hidden(root.errno)) { Ok(None) } else { Err(error) }
        }
        read => read,
    }
}

/// The object that the mark names, if there is one and it was put on this inode, whose number is `own`.
///
/// # Errors
/// The mark cannot be read: the object may be another than it seems.
pub fn read(on: On<'_>, which: &CStr, own: u64) -> Result<Option<Identity>, SysError> {
    let mut value = [0_u8; LEN];
    match xattr::get(on, which, &mut value) {
        Ok(LEN) => {}
        Ok(_) => return Ok(None),
        Err(error) if matches!(error.errno, Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    let word = |at: usize| value[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let (number, put_on) = (word(0), word(12));
    let generation = value[8..12].try_into().map_or(0, u32::from_le_bytes);
    let counts = put_on == own && number > Ino::ROOT.0;
    Ok(counts.then_some(Identity { ino: Ino(number), generation }))
}

/// Whether there is such an attribute is not for the daemon to know.
fn is_hidden(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::ACCESS)
}

/// There is no such attribute, or can be none.
fn is_none(errno: Errno) -> bool {
    matches!(errno, Errno::NODATA | Errno::OPNOTSUPP) || is_hidden(errno)
}

/// Whether there is a mark, whatever it says.
///
/// # Errors
/// The mark cannot be read.
pub fn is_there(on: On<'_>, which: &CStr) -> Result<bool, SysError> {
    match xattr::get(on, which, &mut []) {
        Ok(_) => Ok(true),
        Err(error) if is_none(error.errno) || error.errno == Errno::NOENT => Ok(false),
        Err(error) => Err(error),
    }
}
