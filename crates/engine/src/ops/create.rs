//! Creating a file and opening it in one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_pool::EntryName;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::{self as sys, Errno, OFlags, Stat};

use crate::answer::{Created, Entry};
use crate::caller::Caller;
use crate::error::Result;
use crate::inode::Inode;
use crate::open::{Access, OpenFile};
use crate::pool::Pool;
use crate::resolve::entry;
use crate::union::Union;

/// A file that was just made on a branch.
struct Made {
    at: BranchIx,
    fd: OwnedFd,
    stat: Stat,
}

impl Union {
    /// Creates the file `name` in `parent` with `mode`, and opens it as `flags` say. The kernel holds one
    /// lookup of it, and a handle.
    ///
    /// # Errors
    /// EEXIST with `O_EXCL` if any branch has the name; the most telling reason if no branch takes it.
    pub fn create(
        &self,
        parent: Ino,
        name: EntryName<'_>,
        mode: u32,
        flags: OFlags,
        caller: Caller,
    ) -> Result<Created> {
        let pool = self.pool.load();
        let parent = self.dir(parent)?;
        match self.must_be_missing(&pool, &parent, name.as_cstr()) {
            Err(error) if error.errno() == Errno::EXIST && !flags.contains(OFlags::EXCL) => {
                // The kernel did not know of it: it came by another way.
                return self.open_existing(parent.id.ino, name, flags, caller);
            }
            checked => checked?,
        }
        let made = self.place(&pool, &parent, |at| self.create_on(&pool, &parent, name, mode, at, caller));
        let made = match made {
            Err(error) if error.errno() == Errno::EXIST && !flags.contains(OFlags::EXCL) => {
                return self.open_existing(parent.id.ino, name, flags, caller);
            }
            made => made?,
        };
        parent.has_new(name.as_cstr());
        let entry = self.admit_file(&pool, &parent, name.as_cstr(), made.at, made.stat);
        let opened = self.open_made(&pool, entry, made, flags, caller);
        if opened.is_err() {
            self.forget(entry.ino, 1);
        }
        Ok(Created { entry, opened: opened? })
    }

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
        let branch = pool.branch(at);
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        caller.act()?;
        let made =
            branch.ask(|| sys::at::open(dir.as_fd(), name.as_cstr(), how, mode & 0o7777, branch.mounts));
        caller.done_in(pool)?;
        let fd = made?;
        // Another branch may be tried next: this one must not keep the name.
        let stat = branch
            .ask(|| branch.stat_fd(fd.as_fd()))
            .inspect_err(|_| take_back(sys::at::unlink(dir.as_fd(), name.as_cstr())))?;
        Ok(Made { at, fd, stat })
    }

    fn open_existing(
        &self,
        parent: Ino,
        name: EntryName<'_>,
        flags: OFlags,
        caller: Caller,
    ) -> Result<Created> {
        let entry = self.lookup(parent, name)?;
        match self.open(entry.ino, flags, caller) {
            Ok(opened) => Ok(Created { entry, opened }),
            Err(error) => {
                self.forget(entry.ino, 1);
                Err(error)
            }
        }
    }

    /// Creates a file without a name, as open(2) with `O_TMPFILE` in `parent`.
    ///
    /// # Errors
    /// EOPNOTSUPP where the branch cannot; the most telling reason if no branch takes it.
    pub fn tmpfile(&self, parent: Ino, mode: u32, flags: OFlags, caller: Caller) -> Result<Created> {
        let pool = self.pool.load();
        let parent = self.dir(parent)?;
        let made = self.place(&pool, &parent, |at| {
            let dir = self.skeleton(&pool, &parent, at)?;
            let branch = pool.branch(at);
            // O_EXCL would keep it from ever getting a name.
            let how = OFlags::RDWR | flags & OFlags::EXCL;
            caller.act()?;
            let made = branch.ask(|| sys::at::tmpfile(dir.as_fd(), how, mode & 0o7777));
            caller.done_in(&pool)?;
            let fd = made?;
            let stat = branch.ask(|| branch.stat_fd(fd.as_fd()))?;
            Ok(Made { at, fd, stat })
        })?;
        let Made { at, stat, .. } = made;
        let id = self.identity(&pool, pool.branch(at), &stat);
        self.inodes.looked_up(id, stat.kind(), || Inode::file(id, stat.kind(), at));
        let entry: Entry = entry(id, stat);
        let opened = self.open_made(&pool, entry, made, flags, caller);
        if opened.is_err() {
            self.forget(entry.ino, 1);
        }
        Ok(Created { entry, opened: opened? })
    }

    fn open_made(
        &self,
        pool: &Pool,
        entry: Entry,
        made: Made,
        flags: OFlags,
        caller: Caller,
    ) -> Result<crate::answer::Opened> {
        let inode = self.inode(entry.ino)?;
        let branch = pool.branch(made.at).move_in()?;
        let file = OpenFile::new(branch, made.fd, Access::Write, &made.stat, self.backings.clone());
        let file = Arc::new(file);
        let file = inode.open_with(|_| Ok::<_, crate::error::OpError>(()), || Ok(file))?;
        Ok(self.hand_out(pool, inode, file, flags, caller))
    }
}

/// What came of removing something that was made a moment ago.
pub(crate) fn take_back(removed: Result<(), sys::SysError>) {
    if let Err(error) = removed {
        tracing::error!(%error, "something that could not be made whole is left on a branch");
    }
}
