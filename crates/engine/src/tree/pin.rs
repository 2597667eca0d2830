//! Holding an inode by descriptor, sure that it is the right one.
//!
//! A name can come to mean another file between two calls. So whatever is done to an inode by more than one
//! call, or cannot be verified afterwards, is done to a descriptor whose identity was checked.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_pool::BranchIx;
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, Kind, OFlags, Stat};

use crate::files::{Access, OpenFile};
use crate::inode::{Inode, InodeName};
use crate::pool::Pool;
use crate::tree::Tree;

/// A file held for a call or two.
pub(crate) enum Pin {
    /// The file is open anyway.
    Open(Arc<OpenFile>),
    /// Opened for this, by its name only (`O_PATH`).
    Here(BranchIx, MountedFd),
    /// Opened for this, to be read.
    Read(BranchIx, MountedFd),
    /// It has no name that is known any more.
    Removed(BranchIx, Arc<DirFd>),
}

impl Pin {
    /// Runs a call on the file; its error carries the branch.
    pub(crate) fn ask<T>(
        &self,
        pool: &Pool,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<T, sys::SysError>,
    ) -> Result<T> {
        match self {
            Self::Open(file) => file.ask(call),
            Self::Here(at, fd) | Self::Read(at, fd) => pool.branch(*at).ask(|| call(fd.as_fd())),
            Self::Removed(at, fd) => pool.branch(*at).ask(|| call(fd.as_fd())),
        }
    }
}

impl Pin {
    /// The object of `fd`, which a call on this file was given, for a call on its extended attributes.
    pub(crate) fn on<'fd>(&self, fd: BorrowedFd<'fd>) -> On<'fd> {
        match self {
            Self::Open(_) | Self::Read(..) => On::Fd(fd),
            Self::Here(..) | Self::Removed(..) => On::Path(fd),
        }
    }

    /// Like [`Self::ask`], for a call that changes the file.
    pub(crate) fn change<T>(
        &self,
        pool: &Pool,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<T, sys::SysError>,
    ) -> Result<T> {
        match self {
            Self::Open(file) => file.change(CallKind::Short, call),
            Self::Here(..) | Self::Read(..) | Self::Removed(..) => self.ask(pool, call),
        }
    }

    /// Like [`Self::ask`], for a call that may take long on a branch in good order.
    pub(crate) fn ask_long<T>(
        &self,
        pool: &Pool,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<T, sys::SysError>,
    ) -> Result<T> {
        match self {
            Self::Open(file) => file.ask_long(call),
            Self::Here(at, fd) | Self::Read(at, fd) => pool.branch(*at).ask_long(|| call(fd.as_fd())),
            Self::Removed(at, fd) => pool.branch(*at).ask_long(|| call(fd.as_fd())),
        }
    }
}

impl Tree {
    /// Holds the file `inode` (not a directory).
    ///
    /// # Errors
    /// ESTALE if none of its known names leads to it any more.
    pub(crate) fn pin(&self, pool: &Pool, inode: &Arc<Inode>) -> Result<Pin> {
        if let Some(file) = inode.open_file() {
            self.freshen(inode, &file)?;
            if inode.kind == Kind::File {
                return Ok(Pin::Open(file));
            }
            // A symbolic link, fifo, socket or device is held open by a move of it only, which this calls off.
            drop(file.hold()?);
        }
        match self.open_checked(pool, inode, OFlags::PATH) {
            Ok((at, fd, _)) => Ok(Pin::Here(at, fd)),
            Err(error) => match unlinked_fd(pool, inode) {
                Some((at, fd)) if error.errno() == Errno::STALE => Ok(Pin::Removed(at, fd)),
                _ => self.file_by_number(pool, inode, error).map(|reached| Pin::Here(reached.at, reached.fd)),
            },
        }
    }

    /// Like [`Self::pin`], for questions about extended attributes. A descriptor to read spares the path through /proc, which
    /// takes longer than the question. Only where no other program has the file: it might have a lease on it.
    ///
    /// # Errors
    /// Those of [`Self::pin`].
    pub(crate) fn pin_to_ask(&self, pool: &Pool, inode: &Arc<Inode>) -> Result<Pin> {
        let at = inode.branch().map(|at| pool.branch(at));
        let is_plain = pool.settings.exclusive
            && inode.kind == Kind::File
            && at.is_some_and(|branch| branch.kind.is_local())
            && inode.open_file().is_none();
        if is_plain && let Ok((at, fd, _)) = self.open_checked(pool, inode, Access::Read.flags()) {
            return Ok(Pin::Read(at, fd));
        }
        self.pin(pool, inode)
    }

    /// Opens the file `inode`: by one of its names, checked to lead to it, or if it was removed since the caller
    /// came to it, as it is.
    pub(crate) fn open_inode(
        &self,
        pool: &Pool,
        inode: &Arc<Inode>,
        flags: OFlags,
    ) -> Result<(BranchIx, MountedFd, Stat)> {
        let open = |flags| self.open_now(pool, inode, flags);
        match inode.branch() {
            Some(at) => pool.branch(at).past_leases(flags, open),
            None => open(flags),
        }
    }

    fn open_now(
        &self,
        pool: &Pool,
        inode: &Arc<Inode>,
        flags: OFlags,
    ) -> Result<(BranchIx, MountedFd, Stat)> {
        match (self.open_checked(pool, inode, flags), unlinked_fd(pool, inode)) {
            (Err(error), Some((at, removed))) if error.errno() == Errno::STALE => {
                let branch = pool.branch(at);
                let fd = removed.opened(branch.ask(|| sys::at::reopen(removed.as_fd(), flags))?);
                let stat = branch.ask(|| branch.stat_fd(fd.as_fd()))?;
                Ok((at, fd, stat))
            }
            (Err(error), ..) => {
                let reached = self.file_by_number(pool, inode, error)?;
                let fd = pool.branch(reached.at).ask(|| sys::at::reopen(reached.fd.as_fd(), flags))?;
                Ok((reached.at, reached.fd.opened(fd), reached.stat))
            }
            (opened, ..) => opened,
        }
    }

    /// Opens the file `inode` by one of its names, and checks that it is the same.
    fn open_checked(
        &self,
        pool: &Pool,
        inode: &Arc<Inode>,
        flags: OFlags,
    ) -> Result<(BranchIx, MountedFd, Stat)> {
        self.by_name(pool, inode, |dir, name, at| {
            let branch = pool.branch(at);
            let opened = branch.ask(|| sys::at::open(dir.as_fd(), &name.name, flags, 0, branch.mounts))?;
            let fd = dir.opened(opened);
            let stat = branch.ask(|| branch.stat_fd(fd.as_fd()))?;
            if self.identity(pool, branch, &stat) == inode.id {
                Ok((at, fd, stat))
            } else {
                Err(OpError::STALE)
            }
        })
    }

    /// The file's attributes, asked by one of its names.
    pub(crate) fn stat_by_name(&self, pool: &Pool, inode: &Arc<Inode>) -> Result<Stat> {
        self.by_name(pool, inode, |dir, name, at| {
            let branch = pool.branch(at);
            let stat = branch.ask(|| branch.stat(dir.as_fd(), &name.name))?;
            if self.identity(pool, branch, &stat) == inode.id { Ok(stat) } else { Err(OpError::STALE) }
        })
    }

    /// Tries `act` with each known name of a file until one leads to it.
    fn by_name<T>(
        &self,
        pool: &Pool,
        inode: &Arc<Inode>,
        act: impl Fn(&DirFd, &InodeName, BranchIx) -> Result<T>,
    ) -> Result<T> {
        let mut last = OpError::STALE;
        // A second round: a rename may have moved the names on after they were read.
        for _ in 0..2 {
            let at = inode.branch().ok_or(OpError::STALE)?;
            for name in inode.names() {
                let done = self.dirfd(pool, &name.parent, at).and_then(|dir| act(&dir, &name, at));
                match done {
                    Err(error) if is_elsewhere(error) => last = error,
                    settled => return settled,
                }
            }
        }
        // The object is not at its place: gone, or replaced out of band.
        Err(if last.is_fault() { last } else { OpError::STALE })
    }
}

/// The file itself, which was removed, on the branch where it was; not on a mount that was replaced since.
pub(crate) fn unlinked_fd(pool: &Pool, inode: &Inode) -> Option<(BranchIx, Arc<DirFd>)> {
    let (at, fd) = inode.branch().zip(inode.unlinked_fd())?;
    (fd.mount_generation == pool.branch(at).mount_generation()).then_some((at, fd))
}

fn is_elsewhere(error: OpError) -> bool {
    match error {
        OpError::Refused(errno) => errno == Errno::STALE || errno == Errno::NOENT,
        OpError::Branch { sys, .. } | OpError::Sys(sys) => {
            matches!(sys.errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
        }
        OpError::NoBranch(_) => false,
    }
}
