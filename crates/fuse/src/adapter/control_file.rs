//! mergerfs's control file: an empty file in the root that is in no listing and answers for the pool by its xattrs.
//!
//! It belongs to no branch, so the engine does not know it, except that it hides whatever a branch has under the name.

use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

use fsstack_pool::Ino;
use fsstack_pool::settings::ControlFile as Presence;
use fsstack_sys::Errno;
use fsstack_wire::{self as wire, Answer, Operation, Request};

use super::callers::uid_of;
use super::{Adapter, Served, Timeouts, full};

/// Prefix of its attributes.
const PREFIX: &[u8] = b"user.mergerfs.";

/// Keys behind the control file; names are without the prefix `user.mergerfs.`.
pub trait ControlKeys: Send + Sync + fmt::Debug {
    /// The value of `key`; None if there is no such key.
    fn get(&self, key: &[u8]) -> Option<Vec<u8>>;
    /// The names of all keys.
    fn names(&self) -> Vec<&'static str>;
    /// Sets `key`. May wait.
    ///
    /// # Errors
    /// ENODATA: no such key; EPERM: `setter` may not; otherwise the value or the state of the pool is in the way.
    fn set(&self, key: &[u8], value: &[u8], setter: Setter) -> Result<(), Errno>;
}

/// The thread that sets a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setter {
    /// Its file-system user.
    pub uid: u32,
    /// Its id, as the daemon sees it; 0 if the daemon cannot see it.
    pub pid: u32,
}

/// The control file of a pool.
#[derive(Debug)]
pub struct ControlFile {
    keys: Arc<dyn ControlKeys>,
    attr: wire::Attr,
}

impl ControlFile {
    /// A file of this owner, born now, for `keys`.
    pub fn new(keys: Arc<dyn ControlKeys>, (uid, gid): (u32, u32), now: wire::Timestamp) -> Self {
        let attr = wire::Attr {
            ino: Ino::CONTROL_FILE.0,
            atime: now,
            mtime: now,
            ctime: now,
            mode: REGULAR | 0o644,
            nlink: 1,
            uid,
            gid,
            blksize: 4096,
            ..wire::Attr::default()
        };
        Self { keys, attr }
    }

    /// Serves a request that means this file.
    pub(super) fn serve(
        &self,
        request: &Request<'_>,
        timeouts: &Timeouts,
        answer: &mut Answer<'_>,
    ) -> Served {
        match request.op {
            // From an NFS server: the object of a handle, and the directory above it.
            Operation::Lookup { name } if name == c".." => Err(Errno::STALE),
            Operation::Lookup { .. } => full(answer.entry(&wire::Entry {
                nodeid: Ino::CONTROL_FILE.0,
                generation: 0,
                entry_valid: timeouts.entry,
                attr_valid: timeouts.attr,
                attr: self.attr,
            })),
            Operation::Getattr { .. } => full(answer.attr(&self.attr, timeouts.attr)),
            Operation::Statx { .. } => full(answer.statx(&self.statx(), timeouts.attr)),
            Operation::Getxattr { name, size } => {
                let value = key_of(name).and_then(|key| self.keys.get(key)).ok_or(Errno::NODATA)?;
                put(&value, size, answer)
            }
            Operation::Listxattr { size } => put(&self.list(), size, answer),
            Operation::Setxattr { name, value, flags, .. } => {
                let key = key_of(name).ok_or(Errno::NODATA)?;
                // No key can be added: one that must exist, by XATTR_REPLACE, is missing without it too.
                if flags & XATTR_CREATE != 0 && self.keys.get(key).is_some() {
                    return Err(Errno::EXIST);
                }
                let setter = Setter { uid: uid_of(&request.header), pid: request.header.pid };
                self.keys.set(key, value, setter)
            }
            Operation::Removexattr { .. } => Err(Errno::NODATA),
            Operation::Access { .. } | Operation::Bmap { .. } | Operation::Poll { .. } => Err(Errno::NOSYS),
            // It has no content, and is neither changed nor moved.
            _ => Err(Errno::PERM),
        }
    }

    fn list(&self) -> Vec<u8> {
        let names = self.keys.names();
        names.iter().flat_map(|name| [PREFIX, name.as_bytes(), b"\0"]).flatten().copied().collect()
    }

    fn statx(&self) -> wire::Statx {
        const BASIC: u32 = 0x7ff;
        let attr = &self.attr;
        wire::Statx {
            mask: BASIC,
            blksize: attr.blksize,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: u16::try_from(attr.mode).unwrap_or(0),
            ino: attr.ino,
            atime: attr.atime,
            ctime: attr.ctime,
            mtime: attr.mtime,
            ..wire::Statx::default()
        }
    }
}

impl Adapter {
    /// Puts the control file into the root; the first one stays.
    pub fn put_control_file(&self, file: ControlFile) {
        let _first = self.control_file.set(file);
    }

    /// Gives back lookups of `ino`.
    pub(super) fn forget(&self, ino: Ino, count: u64) {
        if ino != Ino::CONTROL_FILE {
            self.union.forget(ino, count);
        }
    }
}

/// `XATTR_CREATE` of setxattr(2): the attribute must not exist.
const XATTR_CREATE: u32 = 1;
/// `S_IFREG` of stat(2).
const REGULAR: u32 = 0o100_000;

/// Whether `request` means the control file: by its number, by its name in the root, or as the target of a new link.
pub(super) fn is_meant(request: &Request<'_>) -> bool {
    match request.op {
        // The size of the pool, by whichever name.
        Operation::Statfs => false,
        _ if request.header.nodeid == Ino::CONTROL_FILE.0 => true,
        // The kernel knows the name, so it passes on what would change it; a branch may have something of the name.
        Operation::Lookup { name } | Operation::Unlink { name } | Operation::Rmdir { name } => {
            is_its_name(request.header.nodeid, name)
        }
        Operation::Rename { name, newdir, newname, .. } => {
            is_its_name(request.header.nodeid, name) || is_its_name(newdir, newname)
        }
        Operation::Link { oldnode, .. } => oldnode == Ino::CONTROL_FILE.0,
        _ => false,
    }
}

fn is_its_name(dir: u64, name: &CStr) -> bool {
    dir == Ino::ROOT.0 && name == Presence::NAME
}

fn key_of(name: &CStr) -> Option<&[u8]> {
    name.to_bytes().strip_prefix(PREFIX)
}

/// Answers with `value`, or with its length where `size` is 0.
fn put(value: &[u8], size: u32, answer: &mut Answer<'_>) -> Served {
    let len = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
    match size {
        0 => full(answer.xattr_size(len)),
        _ if size < len => Err(Errno::RANGE),
        _ => full(answer.data(value)),
    }
}
