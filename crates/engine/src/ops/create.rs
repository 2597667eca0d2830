//! Creating a file and opening it in one.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::caller::Caller;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_pool::EntryName;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Call, Errno, OFlags, Stat, SysError};

use crate::answer::{Created, Opened, Validity};
use crate::files::{Access, OpenFile};
use crate::inode::Inode;
use crate::inode::clock::Moment;
use crate::kept::slots;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::resolve::entry;
use crate::tree::unsynced_dirs::NameEvent;
use crate::union::Union;

/// A file that was just made on a branch.
struct Made {
    at: BranchIx,
    fd: MountedFd,
    stat: Stat,
}

impl Union {
    /// Creates the file `name` in `parent` with `mode`, and opens it as `flags` say. The kernel holds one
    /// lookup of it, and a handle.
    ///
    /// # Errors
    /// If any branch has the name: EEXIST with `O_EXCL`, else ESTALE, for it is to be looked up and opened. The most telling
    /// reason if no branch takes it.
    pub fn create(
        &self,
        parent: Ino,
        name: EntryName<'_>,
        mode: u32,
        flags: OFlags,
        caller: Caller,
    ) -> Result<Created> {
        let pool = self.tree.pool.load();
        let parent = self.tree.dir(parent)?;
        let missing = self.tree.must_be_missing(&pool, &parent, name.as_cstr());
        let made = missing.and_then(|create_guard| {
            let made = self
                .tree
                .place(&pool, &parent, |at| self.tree.create_on(&pool, &parent, name, mode, at, caller))?;
            Ok((made, create_guard))
        });
        let (made, create_guard) = made.map_err(|error| {
            let by_another_way = error.errno() == Errno::EXIST && !flags.contains(OFlags::EXCL);
            if !by_another_way {
                return error;
            }
            // The kernel does not know of it, and would take it for new: whether the caller may open it is checked by
            // nobody then. Informed that its entry is stale, it looks the name up and opens it as any other.
            parent.has_new(name.as_cstr());
            OpError::STALE
        })?;
        parent.has_new(name.as_cstr());
        drop(create_guard);
        self.tree.changed(&pool, made.at, (&parent, name.as_cstr()), NameEvent::Came);
        self.tree.sync_changed(&pool, &parent)?;
        let branch = pool.branch(made.at);
        if !made.fd.is_of_present_mount(branch) {
            // The mount that is there now may have given its number to another object.
            branch.dispose(made.fd.mount_generation, made.fd);
            return Err(OpError::UNSURE);
        }
        let id = self.tree.new_identity(&pool, branch, &made.stat, On::Fd(made.fd.as_fd()));
        let inode =
            self.tree.admit_file_as(id, &parent, name.as_cstr(), (made.at, &made.stat), Moment::KNOWN);
        self.open_made(&pool, &inode, made, flags, caller)
    }

    /// Creates a file without a name, as open(2) with `O_TMPFILE` in `parent`.
    ///
    /// # Errors
    /// EOPNOTSUPP where the branch cannot; the most telling reason if no branch takes it.
    pub fn tmpfile(&self, parent: Ino, mode: u32, flags: OFlags, caller: Caller) -> Result<Created> {
        let pool = self.tree.pool.load();
        let parent = self.tree.dir(parent)?;
        let made = self.tree.place(&pool, &parent, |at| {
            let dir = self.tree.skeleton(&pool, &parent, at)?;
            let branch = pool.branch(at);
            // O_EXCL would keep it from ever getting a name.
            let how = OFlags::RDWR | flags & OFlags::EXCL;
            let make = || sys::at::tmpfile(dir.as_fd(), how, mode & 0o7777);
            let fd = dir.opened(branch.ask_as(caller, make)?);
            let stat = branch.ask(|| branch.stat_fd(fd.as_fd()))?;
            Ok(Made { at, fd, stat })
        })?;
        let Made { at, stat, .. } = made;
        let id = self.tree.new_identity(&pool, pool.branch(at), &stat, On::Fd(made.fd.as_fd()));
        let inode = self.tree.inodes.looked_up(id, stat.kind(), || Inode::file(id, stat.kind(), at));
        if flags.contains(OFlags::EXCL) {
            inode.gets_no_name();
        }
        self.open_made(&pool, &inode, made, flags, caller)
    }

    /// Opens the new object `inode`; if that fails its lookup, which the kernel never received, is released.
    fn open_made(
        &self,
        pool: &Pool,
        inode: &Arc<Inode>,
        made: Made,
        flags: OFlags,
        caller: Caller,
    ) -> Result<Created> {
        let mut entry = entry(inode, made.stat);
        let opened = self.hand_out_made(pool, inode.clone(), made, flags, caller);
        let opened = opened.inspect_err(|_| self.forget(entry.ino, 1))?;
        entry.attr.validity = match inode.validity() {
            Validity::None => Validity::Instant,
            longer => longer,
        };
        Ok(Created { entry, opened })
    }

    fn hand_out_made(
        &self,
        pool: &Pool,
        inode: Arc<Inode>,
        made: Made,
        flags: OFlags,
        caller: Caller,
    ) -> Result<Opened> {
        let branch = pool.branch(made.at).acquire()?;
        let file = OpenFile::new(branch, made.fd, Access::Write, &made.stat, self.files.backings.clone());
        let mut file = Some(Arc::new(file));
        let open = || {
            file.take().map_or_else(|| self.files.open_on_branch(&self.tree, pool, &inode, true, flags), Ok)
        };
        let file = inode.open_since(0, |_| Ok::<_, OpError>(()), open)?;
        Ok(self.hand_out(pool, inode, file, flags, caller))
    }
}

impl Tree {
    fn create_on(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: EntryName<'_>,
        mode: u32,
        at: BranchIx,
        caller: Caller,
    ) -> Result<Made> {
        let dir = self.skeleton(pool, parent, at)?;
        self.sync_renamed(pool, (parent, name.as_cstr()), &[at]);
        let branch = pool.branch(at);
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let make = || sys::at::open(dir.as_fd(), name.as_cstr(), how, mode & 0o7777, branch.mounts);
        slots::acts(0);
        let fd = dir.opened(branch.ask_as(caller, make)?);
        // Another branch may be tried next: this one must not keep the name.
        let stat = branch.ask(|| branch.stat_fd(fd.as_fd())).map_err(|error| {
            let removed = branch.ask(|| sys::at::unlink(dir.as_fd(), name.as_cstr()));
            take_back(branch, name.as_cstr(), error, removed)
        })?;
        Ok(Made { at, fd, stat })
    }
}

/// The error of a create whose object was `removed` again after `error`; if that failed, one after which no other branch is tried:
/// this one may show the object later.
pub(crate) fn take_back(branch: &Branch, name: &CStr, error: OpError, removed: Result<()>) -> OpError {
    let Err(rollback_error) = removed else { return error };
    if rollback_error.is_missing() {
        return error;
    }
    let path = branch.path.display();
    tracing::error!(error = %rollback_error, branch = %path, ?name, "create: rollback failed; an incomplete object stays on the branch");
    OpError::Sys(SysError::new(Call::Unlink, Errno::IO))
}
