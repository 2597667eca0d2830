//! A request that a daemon before this one may have done, and died before it noted that: `restart=keep`.
//!
//! The kernel lets no other request change the name or the file meanwhile, so what is found was made by the request, or by somebody out
//! of band. A thing that is there is taken for made if it belongs to the caller and is of the kind that was asked for.

use fsstack_engine::answer::Entry;
use fsstack_engine::kept::slots;
use fsstack_engine::settings::Synced;
use fsstack_pool::{Handle, Ino};
use fsstack_sys::{Errno, Kind, OFlags};
use fsstack_wire::{self as wire, Answer, Operation, Request, abi};

use super::{Adapter, Served, entry_name, errno, full};

/// `XATTR_CREATE` of setxattr(2), and `RENAME_EXCHANGE` of renameat2(2).
const XATTR_CREATE: u32 = 1;
const EXCHANGE: u32 = 2;
const TYPE: u32 = 0o170_000;
/// Beginning of the names of the two POSIX ACLs.
const ACLS: &[u8] = b"system.posix_acl_";

/// Whether `op`, done twice, does something else than done once.
pub(crate) fn is_once(op: &Operation<'_>) -> bool {
    match op {
        Operation::Symlink { .. }
        | Operation::Mknod { .. }
        | Operation::Mkdir { .. }
        | Operation::Unlink { .. }
        | Operation::Rmdir { .. }
        | Operation::Rename { .. }
        | Operation::Link { .. }
        | Operation::Open { .. }
        | Operation::Opendir { .. }
        | Operation::Create(_)
        | Operation::Tmpfile(_)
        | Operation::Removexattr { .. }
        // The branch reports an error once: what was answered is answered again.
        | Operation::Fsync { .. } => true,
        Operation::Setxattr { flags, .. } => flags & XATTR_CREATE != 0,
        Operation::Write { write_flags, flags, .. } => {
            OFlags::from_bits_retain(*flags).contains(OFlags::APPEND) && write_flags & abi::WRITE_CACHE == 0
        }
        _ => false,
    }
}

impl Adapter {
    /// Serves `request`, which may come again.
    pub(super) fn serve_noted(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Served {
        if !slots::is_noted() {
            return self.dispatch(request, answer);
        }
        match slots::again() {
            Some(note) => {
                self.sync_what_was_done(&request.op)?;
                self.serve_again(request, note, answer)
            }
            None => {
                self.check_once(request)?;
                self.dispatch(request, answer)
            }
        }
    }

    /// With `sync` and `dirsync`, what the daemon that died may have done for `op` is on disk before it is answered. On which branch
    /// that was is unknown: all are synced.
    fn sync_what_was_done(&self, op: &Operation<'_>) -> Served {
        // An open is done again as a whole, and syncs what it changes.
        let opens = matches!(op, Operation::Open { .. } | Operation::Opendir { .. });
        match self.union.pool().settings.synced {
            Synced::Names | Synced::All if !opens => self.union.syncfs().map_err(errno),
            Synced::ByRequest | Synced::Names | Synced::All => Ok(()),
        }
    }

    /// Serves a request that was about to be done, with the note of who was.
    fn serve_again(&self, request: &Request<'_>, note: u64, answer: &mut Answer<'_>) -> Served {
        let ino = Ino(request.header.nodeid);
        let gone = |done: Served| match done {
            Err(Errno::NOENT) => Ok(()),
            done => done,
        };
        match request.op {
            Operation::Unlink { .. } | Operation::Rmdir { .. } => gone(self.dispatch(request, answer)),
            // Both look the same before and after.
            Operation::Rename { flags, .. } if flags & EXCHANGE != 0 => Err(Errno::IO),
            Operation::Rename { name, newdir, newname, .. } => {
                if self.finds(ino, name)?.is_none() && self.finds(Ino(newdir), newname)?.is_some() {
                    return Ok(());
                }
                self.dispatch(request, answer)
            }
            Operation::Symlink { name, .. }
            | Operation::Mknod { name, .. }
            | Operation::Mkdir { name, .. } => {
                let Some(made) = self.made_before(request, ino, name)? else {
                    return self.dispatch(request, answer);
                };
                full(answer.entry(&self.entry(&made)))
            }
            Operation::Link { name, .. } => match self.made_before(request, ino, name)? {
                Some(made) => full(answer.entry(&self.entry(&made))),
                None => self.dispatch(request, answer),
            },
            Operation::Create(creation) => self.create_again(request, &creation, note, answer),
            // The handle that nobody was given.
            Operation::Open { .. } | Operation::Tmpfile(_) => {
                self.union.release(Handle(note));
                self.dispatch(request, answer)
            }
            Operation::Opendir { .. } => {
                self.union.releasedir(Handle(note));
                self.dispatch(request, answer)
            }
            Operation::Write { fh, data, .. } => {
                let written = self.union.written_before(Handle(fh), note, data).map_err(errno)?;
                match written {
                    0 => self.dispatch(request, answer),
                    // Not all of it, if the daemon died within: as a write that was interrupted.
                    written => full(answer.written(u32::try_from(written).unwrap_or(u32::MAX))),
                }
            }
            Operation::Setxattr { .. } => match self.dispatch(request, answer) {
                Err(Errno::EXIST) => Ok(()),
                done => done,
            },
            Operation::Removexattr { .. } => match self.dispatch(request, answer) {
                Err(Errno::NODATA) => Ok(()),
                done => done,
            },
            _ => self.dispatch(request, answer),
        }
    }

    /// Looks whether these are done at all, before they are noted as about to be done.
    fn check_once(&self, request: &Request<'_>) -> Served {
        let ino = Ino(request.header.nodeid);
        let caller = self.caller(request, 0);
        let is_there = |name| match self.union.getxattr(ino, name, caller, &mut []).map_err(errno) {
            Ok(_) => Ok(true),
            Err(Errno::NODATA) => Ok(false),
            Err(errno) => Err(errno),
        };
        match request.op {
            // An ACL that is not there is removed without an error.
            Operation::Removexattr { name } if !name.to_bytes().starts_with(ACLS) && !is_there(name)? => {
                Err(Errno::NODATA)
            }
            Operation::Setxattr { name, .. } if is_there(name)? => Err(Errno::EXIST),
            Operation::Removexattr { .. } | Operation::Setxattr { .. } => {
                slots::acts(0);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The number of what `name` leads to. The kernel gets no lookup of it.
    fn finds(&self, parent: Ino, name: &std::ffi::CStr) -> Result<Option<Entry>, Errno> {
        match self.union.lookup(parent, entry_name(name)?) {
            Ok(entry) => {
                self.union.forget(entry.ino, 1);
                Ok(Some(entry))
            }
            Err(error) if error.is_missing_for_sure() => Ok(None),
            Err(error) => Err(errno(error)),
        }
    }

    /// The object that `request` has made as `name`, with a lookup for the kernel; None: it was not made.
    fn made_before(
        &self,
        request: &Request<'_>,
        parent: Ino,
        name: &std::ffi::CStr,
    ) -> Result<Option<Entry>, Errno> {
        let found = match self.union.lookup(parent, entry_name(name)?) {
            Ok(entry) => entry,
            Err(error) if error.is_missing_for_sure() => return Ok(None),
            Err(error) => return Err(errno(error)),
        };
        let stat = &found.attr.stat;
        let is_own = stat.uid == request.header.uid;
        let is_it = match request.op {
            Operation::Link { oldnode, .. } => found.ino == Ino(oldnode),
            Operation::Mkdir { .. } => is_own && stat.kind() == Kind::Dir,
            Operation::Create(_) => is_own && stat.kind() == Kind::File,
            // A type of 0 is a regular file.
            Operation::Mknod { mode, .. } => {
                let wanted = if mode & TYPE == 0 { 0o100_000 } else { mode & TYPE };
                is_own && stat.mode & TYPE == wanted
            }
            Operation::Symlink { target, .. } => {
                let leads_there = || self.union.readlink(found.ino).is_ok_and(|to| to == target.to_bytes());
                is_own && stat.kind() == Kind::Symlink && leads_there()
            }
            _ => false,
        };
        if !is_it {
            self.union.forget(found.ino, 1);
        }
        Ok(is_it.then_some(found))
    }

    fn create_again(
        &self,
        request: &Request<'_>,
        creation: &wire::Creation<'_>,
        note: u64,
        answer: &mut Answer<'_>,
    ) -> Served {
        self.union.release(Handle(note));
        let parent = Ino(request.header.nodeid);
        let Some(made) = self.made_before(request, parent, creation.name)? else {
            return self.dispatch(request, answer);
        };
        let flags = OFlags::from_bits_retain(creation.flags) - OFlags::TRUNC;
        match self.union.open(made.ino, flags, self.caller(request, 0)) {
            Ok(opened) => {
                let entry = self.entry(&made);
                full(answer.created(&entry, super::files::open_out(&opened)))
            }
            Err(error) => {
                self.union.forget(made.ino, 1);
                Err(errno(error))
            }
        }
    }
}
