//! The few ioctls that are handed to the branch.
//!
//! A short list: others shut a file system down, trim it or exchange its extents (peers that pass everything
//! on were broken so).

use std::os::fd::{AsFd, BorrowedFd};

use fsstack_pool::{Handle, Ino};
use fsstack_sys::ioctl::{
    FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, FS_IOC_GETFLAGS, FS_IOC_GETVERSION, FS_IOC_SETFLAGS, fsgetxattr,
    fssetxattr, getflags, getversion, setflags,
};
use fsstack_sys::{self as sys, Errno, OFlags, SysError};

use crate::error::Result;
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
                let answered = open.ask(|fd| run(fd, command, input))?;
                if let Ok(stat) = open.stat() {
                    open.set_fixed(&stat);
                }
                answered
            }
            Some(open) => return open.ask(|fd| run(fd, command, input)),
            None if sets => {
                self.on_all_copies(&self.pool.load(), &self.dir(ino)?, |fd| {
                    let fd = sys::at::reopen(fd, OFlags::RDONLY)?;
                    run(fd.as_fd(), command, input).map(|_| ())
                })?;
                ([0; 28], 0)
            }
            None => return self.ask_dir(ino, command, input),
        };
        // The time of change is another now, and the kernel does not know.
        if let Some(doubt) = self.doubt.get() {
            doubt.attributes(ino);
        }
        Ok(answered)
    }

    fn ask_dir(&self, ino: Ino, command: u32, input: &[u8]) -> Result<([u8; 28], usize)> {
        let (pool, dir) = (self.pool.load(), self.dir(ino)?);
        let at = dir.copies().first().copied().ok_or(crate::error::OpError::STALE)?;
        let fd = self.dirfd(&pool, &dir, at)?;
        pool.branch(at).ask(|| {
            let fd = sys::at::reopen(fd.as_fd(), OFlags::RDONLY)?;
            run(fd.as_fd(), command, input)
        })
    }
}

fn run(fd: BorrowedFd<'_>, command: u32, input: &[u8]) -> Result<([u8; 28], usize), SysError> {
    let refuse = |errno| SysError { call: sys::Call::Ioctl, errno };
    let word = |value: u32| {
        // The commands are defined for a long, and everybody passes an int: the upper half is zero.
        let mut out = [0; 28];
        out[..4].copy_from_slice(&value.to_ne_bytes());
        (out, 8)
    };
    match command {
        FS_IOC_GETFLAGS => Ok(word(getflags(fd)?)),
        FS_IOC_GETVERSION => Ok(word(getversion(fd)?)),
        FS_IOC_SETFLAGS => {
            let flags = input.first_chunk().ok_or(refuse(Errno::INVAL))?;
            setflags(fd, u32::from_ne_bytes(*flags))?;
            Ok(([0; 28], 0))
        }
        FS_IOC_FSGETXATTR => Ok((fsgetxattr(fd)?, 28)),
        FS_IOC_FSSETXATTR => {
            fssetxattr(fd, input.first_chunk().ok_or(refuse(Errno::INVAL))?)?;
            Ok(([0; 28], 0))
        }
        _ => Err(refuse(Errno::NOTTY)),
    }
}
