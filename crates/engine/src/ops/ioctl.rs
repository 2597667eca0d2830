//! The few ioctls that are handed to the branch.
//!
//! A short list: others shut a file system down, trim it or exchange its extents (peers that pass everything
//! on were broken so).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fsstack_branch::error::Result;
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_pool::{BranchIx, Handle, Ino};
use fsstack_sys::ioctl::{
    FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, FS_IOC_GETFLAGS, FS_IOC_GETVERSION, FS_IOC_SETFLAGS, fsgetxattr,
    getflags, getversion,
};
use fsstack_sys::{self as sys, Errno, OFlags, SysError};

use crate::tree::Tree;
use crate::tree::inode_flags::FlagsRequest;
use crate::union::Union;

impl Union {
    /// The ioctl `command` on the object behind `handle`: what it answered, 28 bytes at most, and their number.
    ///
    /// # Errors
    /// ENOTTY for everything but inode flags, project ids and the inode's version.
    pub fn ioctl(&self, ino: Ino, handle: Handle, command: u32, input: &[u8]) -> Result<([u8; 28], usize)> {
        let known =
            [FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, FS_IOC_GETVERSION];
        if !known.contains(&command) {
            return Err(Errno::NOTTY.into());
        }
        let sets = matches!(command, FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR);
        let answered = match self.file_if_open(Some(handle))? {
            Some(open) if sets => {
                open.branch().check_mode()?;
                let answered = open.change(CallKind::Short, |fd| run(fd, command, input))?;
                if let Ok(stat) = open.stat() {
                    open.set_fixed(&stat);
                }
                answered
            }
            Some(open) => return open.ask(|fd| run(fd, command, input)),
            None if sets => {
                self.tree.set_dir(ino, asked_for(command, input).ok_or(Errno::INVAL)?)?;
                ([0; 28], 0)
            }
            None => return self.tree.ask_dir(ino, command, input),
        };
        // The time of change is another now, and the kernel does not know.
        if let Some(invalidator) = self.invalidator.get() {
            invalidator.attributes(ino);
        }
        Ok(answered)
    }
}

impl Tree {
    /// Gives the shown copy of a directory the flags `wanted`, then applies the same change to the others. If one refuses
    /// that must not, all are rolled back.
    fn set_dir(&self, ino: Ino, wanted: FlagsRequest) -> Result<()> {
        let (pool, dir) = (self.pool.load(), self.dir(ino)?);
        let all = self.copies_to_change(&pool, &dir)?;
        let alone = all.copies.len() == 1;
        let mut was = None;
        let mut done: Vec<(BranchIx, OwnedFd, FlagsRequest)> = Vec::new();
        for (at, fd) in &all.copies {
            let at = *at;
            let changed = pool.branch(at).ask(|| {
                let fd = sys::at::reopen(fd.as_fd(), OFlags::RDONLY)?;
                let before = match was {
                    None if alone => wanted.set(fd.as_fd()).map(|()| None)?,
                    None => {
                        let before = wanted.of(fd.as_fd())?;
                        wanted.set(fd.as_fd())?;
                        was = Some(before);
                        was
                    }
                    Some(was) => wanted.follow(fd.as_fd(), was)?,
                };
                Ok(before.map(|before| (fd, before)))
            });
            dir.forget_reported(at);
            match changed {
                Ok(changed) => done.extend(changed.map(|(fd, before)| (at, fd, before))),
                Err(error) => {
                    for (at, fd, before) in done.into_iter().rev() {
                        let undone = pool.branch(at).ask(|| before.set(fd.as_fd()));
                        if let Err(error) = undone {
                            tracing::warn!(%error, branch = %pool.branch(at).path.display(), "directory flags: rollback failed; they stay changed on this branch only");
                        }
                    }
                    return Err(error);
                }
            }
        }
        self.attributes_changed(&pool, &dir);
        Ok(())
    }

    fn ask_dir(&self, ino: Ino, command: u32, input: &[u8]) -> Result<([u8; 28], usize)> {
        let (pool, dir) = (self.pool.load(), self.dir(ino)?);
        let at = dir.copies().first().copied().ok_or(fsstack_branch::error::OpError::STALE)?;
        let fd = self.dirfd(&pool, &dir, at)?;
        pool.branch(at).ask(|| {
            let fd = sys::at::reopen(fd.as_fd(), OFlags::RDONLY)?;
            run(fd.as_fd(), command, input)
        })
    }
}

/// Values of a command that sets something; None if its input is too short.
fn asked_for(command: u32, input: &[u8]) -> Option<FlagsRequest> {
    match command {
        FS_IOC_SETFLAGS => input.first_chunk().map(|flags| FlagsRequest::Flags(u32::from_ne_bytes(*flags))),
        _ => input.first_chunk().copied().map(FlagsRequest::Extended),
    }
}

fn run(fd: BorrowedFd<'_>, command: u32, input: &[u8]) -> Result<([u8; 28], usize), SysError> {
    let refuse = |errno| SysError { call: sys::Call::Ioctl, errno };
    let word = |value: u32| {
        // The commands are defined for a long, but file systems write an int, and programs have room for no more.
        let mut out = [0; 28];
        out[..4].copy_from_slice(&value.to_ne_bytes());
        (out, 4)
    };
    match command {
        FS_IOC_GETFLAGS => Ok(word(getflags(fd)?)),
        FS_IOC_GETVERSION => Ok(word(getversion(fd)?)),
        FS_IOC_FSGETXATTR => Ok((fsgetxattr(fd)?, 28)),
        FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR => {
            asked_for(command, input).ok_or(refuse(Errno::INVAL))?.set(fd)?;
            Ok(([0; 28], 0))
        }
        _ => Err(refuse(Errno::NOTTY)),
    }
}
