//! A file on its way to another branch: how it was when it was looked at, and whether it is so still.
//!
//! It is not changed through the pool meanwhile (`OpenFile::settled`); it may be changed out of band, or by another client
//! of the branch's server. Their writes after the copy would be lost with the old name.

use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::{OpError, Result};
use fsstack_pool::BranchIx;
use fsstack_sys::file::MountRestrictions;
use fsstack_sys::{self as sys, Call, Kind, Stat, SysError, Time};
use smallvec::SmallVec;

use crate::files::capability::has_capability;
use crate::files::{OpenFile, SET_ID};
use crate::inode::clock::Moment;
use crate::inode::{Inode, InodeName};
use crate::moves::reasons::{UNREADABLE, UNSYNCED};
use crate::moves::transfer;

/// Names of a file, one or more.
pub(crate) type Names = SmallVec<[InodeName; 1]>;

/// Returns the restrictions of the mount of the branch `from` that `to` has not. A branch that is mounted with `nosuid` or `nodev` is not
/// trusted: what these flags keep from acting does not go where it would act.
///
/// # Errors
/// A branch cannot be asked for its flags.
pub(crate) fn lifted_restrictions(from: &Branch, to: &Branch) -> Result<MountRestrictions> {
    let restrictions = |branch: &Branch| branch.ask(|| sys::file::mount_restrictions(branch.root().as_fd()));
    let here = restrictions(from)?;
    if !here.no_suid && !here.no_devices {
        return Ok(here);
    }
    let there = restrictions(to)?;
    Ok(MountRestrictions {
        no_suid: here.no_suid && !there.no_suid,
        no_devices: here.no_devices && !there.no_devices,
    })
}

/// A file that is being moved.
pub(crate) struct Move<'a> {
    pub(crate) inode: &'a Arc<Inode>,
    /// All its names, one or more.
    pub(crate) names: Names,
    pub(crate) from: Arc<Branch>,
    pub(crate) source: BorrowedFd<'a>,
    /// How it was before it was copied.
    pub(crate) stat: Stat,
    /// Its content could not be read.
    pub(crate) unreadable: Cell<bool>,
    /// Last reported time of change of the copied content.
    modified: Cell<Time>,
}

impl<'a> Move<'a> {
    pub(crate) fn new(
        inode: &'a Arc<Inode>,
        names: Names,
        from: Arc<Branch>,
        source: BorrowedFd<'a>,
        stat: Stat,
    ) -> Self {
        Self {
            inode,
            names,
            from,
            source,
            stat,
            modified: Cell::new(stat.mtime),
            unreadable: Cell::new(false),
        }
    }

    /// Syncs the old copy of a group: after a power cut between the removals it is to look as the record says, or it would count as
    /// changed. A write-back error that is found is for the next fsync of each handle of `file`; the new copy has the content.
    ///
    /// # Errors
    /// Those of fsync(2), of the second one if the first found a write-back error; then it stays.
    pub(crate) fn sync_group(&self, file: &OpenFile) -> Result<()> {
        if !self.is_group() || !self.stat.is_file() {
            return Ok(());
        }
        match self.report_late_error(file, sys::file::fsync) {
            Err(error) if error.is_of_a_sync() => self.from.ask_long(|| sys::file::fsync(self.source)),
            synced => synced,
        }
    }

    /// Has the old copy's file system report a write-back error by `sync`, for the next fsync of each handle of `file`.
    ///
    /// # Errors
    /// That error, which is logged, or why the branch was not asked.
    pub(crate) fn report_late_error(
        &self,
        file: &OpenFile,
        sync: fn(BorrowedFd<'_>) -> Result<(), SysError>,
    ) -> Result<()> {
        let ask = || self.from.ask_long(|| sync(self.source));
        file.write_back_errors.ask(None, OpError::is_of_a_sync, ask).inspect_err(|error| {
            let (name, branch) = (&self.name().name, self.from.path.display());
            tracing::warn!(%error, ?name, %branch, "moving file: write-back error on the old copy; its next fsync fails");
        })
    }

    /// Reason to stay if `error` is of its own branch, where no other target would help.
    pub(crate) fn source_fault(&self, error: OpError) -> Option<&'static str> {
        match error {
            _ if self.unreadable.get() => Some(UNREADABLE),
            OpError::Branch { branch, sys } if branch == self.from.ix && sys.call == Call::Fsync => {
                Some(UNSYNCED)
            }
            _ => None,
        }
    }

    /// It is a file with content, not a symbolic link, fifo, socket or device.
    pub(crate) fn is_content(&self) -> bool {
        self.stat.is_file()
    }

    /// Bytes that it takes on its branch.
    pub(crate) fn taken(&self) -> u64 {
        self.stat.blocks.saturating_mul(512)
    }

    /// It has several hard links, which move together.
    pub(crate) fn is_group(&self) -> bool {
        self.names.len() > 1
    }

    /// Its names are those of the copy on the branch `to` from now on.
    pub(crate) fn has_moved(&self, to: BranchIx) {
        self.inode.moved_to(to);
        if self.is_group() {
            // Lookups meanwhile saw fewer links, and took the other names for gone.
            let note = |name: &InodeName| {
                self.inode.note_name(&name.parent, &name.name, self.stat.nlink, Moment::KNOWN)
            };
            self.names.iter().for_each(note);
        }
    }

    /// The first of its names.
    pub(crate) fn name(&self) -> &InodeName {
        &self.names[0]
    }

    /// The object under `name` on the branch that it comes from. The branch's server is asked: another client may have
    /// written to it.
    pub(crate) fn look(&self, old_dir: &DirFd, name: &CStr) -> Result<Stat> {
        let stat = if self.from.is_remote() { sys::at::stat_by_name_now } else { sys::at::stat };
        self.from.ask(|| stat(old_dir.as_fd(), name))
    }

    /// Whether a name still means the file that was copied, unchanged: not replaced, linked or written to out of band.
    pub(crate) fn is(&self, there: &Stat) -> bool {
        let same = there.ino == self.stat.ino && there.nlink == self.stat.nlink;
        // A server may tell other times of change for old writes.
        let unchanged = self.from.is_remote() || there.ctime == self.stat.ctime;
        same && unchanged && (there.size, there.mtime) == (self.stat.size, self.modified.get())
    }

    /// Whether what its mount keeps from acting does not act where it goes, either.
    pub(crate) fn stays_restricted(&self, lifted: MountRestrictions) -> bool {
        let has_privileges = || self.stat.mode & SET_ID != 0 || has_capability(self.source);
        let program_acts = lifted.no_suid && self.is_content() && has_privileges();
        let is_device = matches!(self.stat.kind(), Kind::Char | Kind::Block);
        let device_acts = lifted.no_devices && is_device;
        !program_acts && !device_acts
    }

    /// It is as it was when `copy` was begun. The caller has a place inside of both branches.
    ///
    /// # Errors
    /// ESTALE if it is not.
    pub(crate) fn check(&self, copy: BorrowedFd<'_>) -> Result<()> {
        if !self.from.is_remote() {
            return Ok(()); // seen by its name
        }
        let now = || self.from.ask_inside(|| sys::at::stat_now(self.source));
        let is_whole = |stat: &Stat| stat.size == self.stat.size;
        let reported = now()?;
        if is_whole(&reported) && reported.mtime == self.modified.get() {
            return Ok(());
        }
        // What others serve may tell new times for old writes: the content says which it is.
        let is_same = || {
            sys::file::drop_cached(self.source)?;
            transfer::is_same_as_copy(self.source, copy)
        };
        let same = is_whole(&reported)
            && self.from.ask_inside(is_same)?
            && now().is_ok_and(|now| is_whole(&now) && now.mtime == reported.mtime);
        self.modified.set(reported.mtime);
        if same { Ok(()) } else { Err(OpError::STALE) }
    }
}
