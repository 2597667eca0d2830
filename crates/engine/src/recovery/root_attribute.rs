//! Intents of moves in attributes of a branch's root: a full file system takes no file, but an attribute.
//!
//! They belong to the intent of the same name on the target (`intent.rs`): written after it, and removed after it. Who works on one has a
//! shared lock (flock) on the root, so that another host's mount of the source alone leaves it.
//! Value: the format of the body in 2 bytes, then the body.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_sys::file::sync_dir;
use fsstack_sys::locks::FlockKind;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Errno, OFlags, SysError};

const PREFIX: &[u8] = b"trusted.fsstack.";

/// Attribute of the intent `name`.
fn attribute(name: &CStr) -> CString {
    CString::new([PREFIX, name.to_bytes()].concat()).unwrap_or_default()
}

/// Stores the intent `name`, on disk, in the place of an earlier one.
pub(crate) fn put(on: &Branch, name: &CStr, format: u16, body: &[u8]) -> Result<(), SysError> {
    let root = on.root();
    let value = [&format.to_le_bytes()[..], body].concat();
    xattr::set(On::Fd(root.as_fd()), &attribute(name), &value, 0)?;
    sync_dir(root.as_fd())
}

/// Keeps mounts of other hosts from deciding intents on this root until it is dropped.
pub(crate) fn hold(on: &Branch) -> Result<OwnedFd, SysError> {
    let root = sys::at::reopen(on.root().as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    sys::locks::flock(root.as_fd(), FlockKind::Shared, true)?;
    Ok(root)
}

/// Whether somebody holds an intent on this root. A file system without such locks tells of nobody.
pub(crate) fn is_held(on: &Branch) -> Result<bool, SysError> {
    let root = sys::at::reopen(on.root().as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let locked = sys::locks::flock(root.as_fd(), FlockKind::Exclusive, true);
    Ok(locked.is_err_and(|error| error.errno == Errno::AGAIN))
}

/// Returns the body of the intent `name`. None: there is none of that format.
pub(crate) fn get(on: &Branch, name: &CStr, format: u16) -> Result<Option<Vec<u8>>, SysError> {
    match xattr::get_vec(On::Fd(on.root().as_fd()), &attribute(name)) {
        Ok(value) => Ok(value.strip_prefix(&format.to_le_bytes()).map(<[u8]>::to_vec)),
        Err(error) if is_none(error.errno) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the intent `name`.
pub(crate) fn remove(on: &Branch, name: &CStr) -> Result<(), SysError> {
    match xattr::remove(On::Fd(on.root().as_fd()), &attribute(name)) {
        Err(error) if is_none(error.errno) => Ok(()),
        removed => removed,
    }
}

/// Names of the intents that end with `suffix`.
pub(crate) fn all(on: &Branch, suffix: &CStr) -> Result<Vec<CString>, SysError> {
    let names = match xattr::list_vec(On::Fd(on.root().as_fd())) {
        Err(error) if is_none(error.errno) => return Ok(Vec::new()),
        names => names?,
    };
    let ours = names.split(|byte| *byte == 0).filter_map(|name| name.strip_prefix(PREFIX));
    let intents = ours.filter(|name| name.ends_with(suffix.to_bytes()));
    Ok(intents.filter_map(|name| CString::new(name).ok()).collect())
}

/// There is no such attribute, or can be none.
fn is_none(errno: Errno) -> bool {
    matches!(errno, Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS)
}
