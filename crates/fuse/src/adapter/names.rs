//! Requests about names.

use std::ffi::CStr;

use fsstack_engine::OpError;
use fsstack_engine::ops::New;
use fsstack_pool::Ino;
use fsstack_sys::Errno;
use fsstack_sys::at::RenameFlags;
use fsstack_wire::{self as wire, Answer, Operation, Request};

use super::{Adapter, Served, entry_name, errno, full};

impl Adapter {
    pub(super) fn lookup(&self, request: &Request<'_>, name: &CStr, answer: &mut Answer<'_>) -> Served {
        let parent = Ino(request.header.nodeid);
        let found = match name.to_bytes() {
            // From an NFS server, for an object that the kernel has forgotten.
            b"." => self.union.lookup_self(parent),
            b".." => self.union.lookup_parent(parent),
            _ => self.union.lookup(parent, entry_name(name)?),
        };
        match found {
            Ok(entry) => full(answer.entry(&self.entry(&entry))),
            Err(error) if matches!(name.to_bytes(), b"." | b"..") => Err(unopened(error)),
            Err(error) if error.is_missing_for_sure() && !self.timeouts().negative.is_zero() => {
                full(answer.missing(self.timeouts().negative))
            }
            Err(error) => Err(errno(error)),
        }
    }

    pub(super) fn make(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Served {
        let (name, new, umask) = match request.op {
            Operation::Symlink { name, target } => (name, New::Symlink(target), 0),
            Operation::Mkdir { name, mode, umask } => (name, New::Dir(mode & 0o7777), umask),
            Operation::Mknod { name, mode, rdev, umask } => {
                let (major, minor) = wire::decode_dev(rdev);
                (name, New::Node(mode, rustix::fs::makedev(major, minor)), umask)
            }
            _ => return Err(Errno::NOSYS),
        };
        let parent = Ino(request.header.nodeid);
        let made =
            self.union.make(parent, entry_name(name)?, new, self.caller(request, umask)).map_err(errno)?;
        full(answer.entry(&self.entry(&made)))
    }

    pub(super) fn rename(&self, from: (Ino, &CStr), to: (Ino, &CStr), flags: u32) -> Served {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let (from, to) = ((from.0, entry_name(from.1)?), (to.0, entry_name(to.1)?));
        self.union.rename(from, to, flags).map_err(errno)
    }

    pub(super) fn link(&self, old: Ino, parent: Ino, name: &CStr, answer: &mut Answer<'_>) -> Served {
        let linked = self.union.link(old, parent, entry_name(name)?).map_err(errno)?;
        full(answer.entry(&self.entry(&linked)))
    }
}

/// Errno for opening a file handle. The kernel passes few errors on and turns all others into ESTALE, after which the
/// client gives up an object that is only unreachable, or for which the daemon has no descriptor left. ENOMEM makes the
/// kernel's NFS server tell clients to try again; only open_by_handle_at(2) passes it on.
fn unopened(error: OpError) -> Errno {
    match errno(error) {
        Errno::STALE => Errno::STALE,
        _ if error.is_missing_for_sure() => Errno::NOENT, // an object above the root
        _ => Errno::NOMEM,
    }
}
