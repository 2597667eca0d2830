//! Inode flags, project and extent sizes (`chattr`, `chattr -p`, `xfs_io`), and the part of them that a copy on another
//! branch gets.
//!
//! Flags that the other file system takes are added to those that the copy has from its directory. A project from there
//! stays, since quotas of that branch count by it. Refused flags are left out, as by cp(1), except promises to the writers
//! of the file ([`PROMISES`]).
//!
//! Most must be set before the content. btrfs overwrites in place only files that were empty when the flag was set, XFS fixes
//! the size of extents early, and a project's limit holds for later writes only. SYNC comes last: it would slow the copying.

use std::os::fd::BorrowedFd;

use fsstack_branch::error::is_branch_fault;
use fsstack_sys::ioctl::{self, Extended, FsXattr};
use fsstack_sys::{self as sys, Errno, SysError};

/// Flags of a file that its copy gets. Append-only and immutable are not among them: such a file is not moved, and a
/// directory is about to be filled.
const CARRIED: u32 = (ioctl::FS_FL_USER_MODIFIABLE & !ioctl::FREEZING)
    | ioctl::FS_NOCOMP_FL
    | ioctl::FS_JOURNAL_DATA_FL
    | ioctl::FS_NOCOW_FL
    | ioctl::FS_DAX_FL
    | ioctl::FS_PROJINHERIT_FL
    | ioctl::FS_CASEFOLD_FL;

/// Flags that are set after the content.
const LAST: u32 = ioctl::FS_SYNC_FL;

/// Promises to the user: data on disk when a write, or a change of names, is answered; unreadable without a key; checked at
/// each read. A directory passes the first and the third on to new entries.
const PROMISES: u32 = ioctl::FS_SYNC_FL | ioctl::FS_DIRSYNC_FL | ioctl::FS_ENCRYPT_FL | ioctl::FS_VERITY_FL;

/// Sizes of extents, in blocks that another file system may not have.
const SIZES: u32 = ioctl::FS_XFLAG_EXTSIZE | ioctl::FS_XFLAG_EXTSZINHERIT | ioctl::FS_XFLAG_COWEXTSIZE;

/// Extended flags that a copy gets, besides the others.
const EXTENDED: u32 = SIZES
    | ioctl::FS_XFLAG_PROJINHERIT
    | ioctl::FS_XFLAG_NOSYMLINKS
    | ioctl::FS_XFLAG_NODEFRAG
    | ioctl::FS_XFLAG_FILESTREAM;

/// The flags, project and sizes of extents of a file or a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags {
    flags: u32,
    extended: Extended,
}

impl InodeFlags {
    /// Reads the flags of `of`, which is open to be read; none where the file system has none.
    ///
    /// # Errors
    /// The branch is out of order.
    pub fn of(of: BorrowedFd<'_>) -> Result<Self, SysError> {
        let flags = where_known(ioctl::getflags(of))?.unwrap_or_default();
        let extended = where_known(ioctl::fsgetxattr(of))?;
        Ok(Self { flags, extended: extended.map_or_else(Extended::default, |raw| Extended::of(&raw)) })
    }

    /// Without the project, which has a meaning only where it was given.
    #[must_use]
    pub fn without_project(mut self) -> Self {
        self.extended.project = 0;
        self.flags &= !ioctl::FS_PROJINHERIT_FL;
        self.extended.flags &= !ioctl::FS_XFLAG_PROJINHERIT;
        self
    }

    /// Promises to the user, and the flags that make a file unchangeable: no two copies of a directory may differ in them.
    pub fn promises(&self) -> u32 {
        self.flags & (PROMISES | ioctl::FREEZING)
    }

    /// The flags that make a file unchangeable, and so are set last.
    pub fn freezing(&self) -> u32 {
        self.flags & ioctl::FREEZING
    }

    /// Gives an empty `to` the flags that must precede its content.
    ///
    /// # Errors
    /// The branch is out of order, or has no room for one more file of the project.
    pub fn begin(&self, to: BorrowedFd<'_>) -> Result<(), SysError> {
        add_flags(to, self.flags & CARRIED & !LAST)?;
        let Some(own) = where_known(ioctl::fsgetxattr(to))? else { return Ok(()) };
        for (extended, project) in [(EXTENDED, true), (EXTENDED & !SIZES, true), (0, true), (EXTENDED, false)]
        {
            let wanted = self.extended_for(&own, extended, project);
            if wanted == Extended::of(&own) {
                continue;
            }
            match ioctl::fssetxattr(to, &wanted.within(own)) {
                Err(error) if matches!(error.errno, Errno::NOSPC | Errno::DQUOT) => return Err(error),
                set => {
                    if where_known(set)?.is_some() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Result of `own` with the extended flags in `mask` and, if it has none, the project.
    fn extended_for(&self, own: &FsXattr, mask: u32, project: bool) -> Extended {
        let (own, from) = (Extended::of(own), self.extended);
        let flags = from.flags & mask;
        let size = |flag, from, own| if flags & flag == 0 { own } else { from };
        Extended {
            flags: own.flags | flags,
            extent_size: size(
                ioctl::FS_XFLAG_EXTSIZE | ioctl::FS_XFLAG_EXTSZINHERIT,
                from.extent_size,
                own.extent_size,
            ),
            project: if project && own.project == 0 { from.project } else { own.project },
            cow_extent_size: size(ioctl::FS_XFLAG_COWEXTSIZE, from.cow_extent_size, own.cow_extent_size),
        }
    }

    /// Gives `to`, which has its content, the remaining flags.
    ///
    /// # Errors
    /// The branch is out of order.
    pub fn finish(&self, to: BorrowedFd<'_>) -> Result<(), SysError> {
        add_flags(to, self.flags & LAST)
    }

    /// Checks that `to`, which has no content yet, can keep the promises. Nothing of [`LAST`] stays set.
    ///
    /// # Errors
    /// EOPNOTSUPP if it cannot; the branch is out of order.
    pub fn try_promises(&self, to: BorrowedFd<'_>) -> Result<(), SysError> {
        if self.flags & PROMISES == 0 {
            return Ok(());
        }
        self.finish(to)?;
        self.check_promises(to)?;
        if self.flags & LAST == 0 { Ok(()) } else { ioctl::setflags(to, ioctl::getflags(to)? & !LAST) }
    }

    /// Checks that `to` keeps the promises.
    ///
    /// # Errors
    /// EOPNOTSUPP if it does not; the branch is out of order.
    pub fn check_promises(&self, to: BorrowedFd<'_>) -> Result<(), SysError> {
        let promised = self.flags & PROMISES;
        if promised == 0 {
            return Ok(());
        }
        let kept = where_known(ioctl::getflags(to))?.unwrap_or_default();
        if promised & !kept == 0 {
            return Ok(());
        }
        Err(SysError { call: sys::Call::Ioctl, errno: Errno::OPNOTSUPP })
    }
}

/// Sets those of `wanted` that the file system takes, and keeps the others: ext4 has flags for the layout of a file's
/// blocks, and could not find them without.
///
/// # Errors
/// The branch is out of order.
fn add_flags(to: BorrowedFd<'_>, wanted: u32) -> Result<(), SysError> {
    if wanted == 0 {
        return Ok(());
    }
    let Some(mut own) = where_known(ioctl::getflags(to))? else { return Ok(()) };
    if wanted & !own == 0 || where_known(ioctl::setflags(to, own | wanted))?.is_some() {
        return Ok(());
    }
    let missing = wanted & !own;
    for flag in (0..u32::BITS).map(|bit| 1 << bit).filter(|flag| missing & flag != 0) {
        if where_known(ioctl::setflags(to, own | flag))?.is_some() {
            own |= flag;
        } else {
            tracing::debug!(flag = format_args!("{flag:#x}"), "a flag of an inode did not come along");
        }
    }
    Ok(())
}

/// Counts the space of `file` for the project of `dir` from now on.
///
/// # Errors
/// One of them has no projects.
pub(crate) fn put_into_project_of(dir: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), SysError> {
    let project = Extended::of(&ioctl::fsgetxattr(dir)?).project;
    let own = ioctl::fsgetxattr(file)?;
    ioctl::fssetxattr(file, &Extended { project, ..Extended::of(&own) }.within(own))
}

/// None if the file system, or this caller, has no such flags.
///
/// # Errors
/// The branch is out of order.
fn where_known<T>(answer: Result<T, SysError>) -> Result<Option<T>, SysError> {
    match answer {
        Ok(reported) => Ok(Some(reported)),
        Err(error) if is_branch_fault(error.errno) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Values that `chattr` reads and sets: inode flags, or the flags, project and sizes that `xfs_io` and `chattr -p` know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagsRequest {
    Flags(u32),
    Extended(FsXattr),
}

impl FlagsRequest {
    /// The same sort of flags, of `fd`.
    pub(crate) fn of(self, fd: BorrowedFd<'_>) -> Result<Self, SysError> {
        match self {
            Self::Flags(_) => ioctl::getflags(fd).map(Self::Flags),
            Self::Extended(_) => ioctl::fsgetxattr(fd).map(Self::Extended),
        }
    }

    pub(crate) fn set(self, fd: BorrowedFd<'_>) -> Result<(), SysError> {
        match self {
            Self::Flags(flags) => ioctl::setflags(fd, flags),
            Self::Extended(raw) => ioctl::fssetxattr(fd, &raw),
        }
    }

    /// Applies to `fd`, a further copy of a directory, the change of the shown copy from `was` to these: it may be on
    /// another file system, and have flags of its own. Refused flags are left out, except those that keep a directory from
    /// being filled or emptied. Returns its former flags, if any were changed.
    ///
    /// # Errors
    /// It refuses that; the branch is out of order.
    pub(crate) fn follow(self, fd: BorrowedFd<'_>, was: Self) -> Result<Option<Self>, SysError> {
        let own = match self.of(fd) {
            Err(error) if is_branch_fault(error.errno) || self.freezes(was) => return Err(error),
            Err(_) => return Ok(None), // it has no such thing
            Ok(own) => own,
        };
        let mut now = own;
        for piece in 0..=PIECES {
            // All at once first.
            let wanted = now.with(piece.checked_sub(1), self, was);
            if wanted == now {
                continue;
            }
            match wanted.set(fd) {
                Ok(()) => now = wanted,
                Err(error) if is_branch_fault(error.errno) => return Err(error),
                Err(error) if piece > 0 && wanted.freezes(now) => {
                    now.set_back(own, fd);
                    return Err(error);
                }
                Err(error) => tracing::debug!(%error, piece, "not all flags are changed on a hidden copy"),
            }
        }
        Ok((now != own).then_some(own))
    }

    /// Restores the flags to `was`.
    pub(crate) fn set_back(self, was: Self, fd: BorrowedFd<'_>) {
        if self != was
            && let Err(error) = was.set(fd)
        {
            tracing::warn!(%error, "directory flags: rollback failed; they stay changed on this branch only");
        }
    }

    /// True if it makes a directory unchangeable in a way that `was` did not.
    fn freezes(self, was: Self) -> bool {
        match (self, was) {
            (Self::Flags(now), Self::Flags(was)) => now & !was & ioctl::FREEZING != 0,
            (Self::Extended(now), Self::Extended(was)) => {
                Extended::of(&now).flags & !Extended::of(&was).flags & ioctl::FS_XFLAG_FREEZING != 0
            }
            _ => false,
        }
    }

    /// This, with the `nth` piece (None: all) of the difference between `old` and `new` as in `new`.
    fn with(self, nth: Option<u32>, new: Self, old: Self) -> Self {
        let one = |own: u32, new: u32, old: u32| if new == old { own } else { new };
        let flags = |own: u32, new: u32, old: u32| {
            let changed = (new ^ old) & nth.map_or(u32::MAX, |nth| 1_u32.checked_shl(nth).unwrap_or(0));
            own & !changed | new & changed
        };
        match (self, new, old) {
            (Self::Flags(own), Self::Flags(new), Self::Flags(old)) => Self::Flags(flags(own, new, old)),
            (Self::Extended(raw), Self::Extended(new), Self::Extended(old)) => {
                let (own, new, old) = (Extended::of(&raw), Extended::of(&new), Extended::of(&old));
                let mut now = Extended { flags: flags(own.flags, new.flags, old.flags), ..own };
                if nth.is_none_or(|nth| nth == PROJECT) {
                    now.project = one(own.project, new.project, old.project);
                }
                // A size goes with its flag, where that is changed.
                if nth
                    .is_none_or(|nth| nth == PROJECT + 1 || SIZES & 1_u32.checked_shl(nth).unwrap_or(0) != 0)
                {
                    now.extent_size = one(own.extent_size, new.extent_size, old.extent_size);
                    now.cow_extent_size = one(own.cow_extent_size, new.cow_extent_size, old.cow_extent_size);
                }
                Self::Extended(now.within(raw))
            }
            _ => self,
        }
    }
}

/// The pieces of [`FlagsRequest`]: a flag each, the project, the sizes.
const PROJECT: u32 = u32::BITS;
const PIECES: u32 = PROJECT + 2;
