//! Empty files that get their name later.

use std::ffi::CStr;
use std::os::fd::AsFd;

use fsstack_branch::caller::as_owner;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError};

use crate::member::Member;
use crate::member::staged::AtWork;
use crate::recovery::hidden_folder;
use crate::recovery::locked_dir::LockedDir;
use crate::recovery::record;

/// Name of a copy in its [`LockedDir`].
pub(crate) const LOCKED_COPY: &CStr = c"copy";

/// A copy that has a name in the branch's hidden folder until it gets its own.
pub(crate) enum StagedCopy {
    /// A file, on a branch without nameless files. It is locked.
    File(AtWork),
    /// Another object, as [`LOCKED_COPY`].
    Special(LockedDir),
}

impl StagedCopy {
    pub(crate) fn name(&self, to: &Member, dir: &DirFd, name: &CStr) -> Result<(), SysError> {
        // Without such a flag there, and without links: looked at right before is the most there is.
        let how = RenameFlags::NOREPLACE;
        match self {
            Self::File(staged) => {
                let folder = hidden_folder::folder(to)?;
                sys::at::rename_if_free(folder.as_fd(), staged, dir.as_fd(), name, how)
            }
            Self::Special(locked) => {
                sys::at::rename_if_free(locked.dir.as_fd(), LOCKED_COPY, dir.as_fd(), name, how)?;
                tell_left(locked.clear(to));
                Ok(())
            }
        }
    }

    pub(crate) fn discard(&self, to: &Member) {
        // In a permit: the caller may hold locks that others wait for.
        let cleared = to.ask(|| {
            let cleared = match self {
                Self::File(staged) => {
                    hidden_folder::folder(to).and_then(|folder| sys::at::unlink(folder.as_fd(), staged))
                }
                Self::Special(locked) => locked.clear(to),
            };
            hidden_folder::leave(to);
            cleared
        });
        tell_left(cleared);
    }
}

fn tell_left<E: std::fmt::Display>(cleared: Result<(), E>) {
    if let Err(error) = cleared {
        tracing::debug!(%error, "nothing to clear");
    }
}

/// An empty file below `dir` on the branch `to`, which has no name there yet: for a copy of the file with the attributes `stat`.
pub(crate) fn blank(
    to: &Member,
    dir: &DirFd,
    stat: &Stat,
) -> Result<(MountedFd, Option<StagedCopy>), SysError> {
    // Nobody else can open it before it has a name, and a mode that is right need not be set. A server may hold a mode without write
    // permission against its writer.
    let mode = if to.is_remote() { 0o600 } else { stat.mode & 0o777 };
    let tmpfile = || sys::at::tmpfile(dir.as_fd(), OFlags::RDWR, mode);
    // The owner's quota decides on a file more, too. (A server would ask whether the owner may write to the directory.)
    match if to.is_remote() { tmpfile() } else { as_owner(stat, tmpfile) } {
        Err(error)
            if matches!(error.errno, Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOSYS | Errno::INVAL) => {}
        made => return made.map(|fd| (dir.opened(fd), None)),
    }
    let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
    let root = to.root(); // the folder is below this one, or below a later one
    let (_, (name, fd)) = hidden_folder::in_folder(to, |folder| {
        // A new name at each try: the one before may be another host's to clear.
        let name = to.stage(c".part");
        let fd = sys::at::open(folder, &name, how, 0o600, to.mounts)?;
        // Another host's mount leaves it alone.
        record::hold_named(&fd, folder, &name).map(|()| (name, fd))
    })?;
    Ok((root.opened(fd), Some(StagedCopy::File(name))))
}
