//! Dirty data of an open file: acknowledged writes that no fsync has covered.
//!
//! A branch that others serve may say of earlier writes that they did not fit when it is asked for another one; a mount
//! that is gone takes with it what it had not stored. Neither may pass as if nothing had been written.

use std::os::fd::{AsFd, BorrowedFd};

use fsstack_branch::branch::Branch;
use fsstack_branch::caller::taking_space;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_branch::health::reply_takeover;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use fsstack_sync::mpsc::channel;
use fsstack_sys::{self as sys, Call, Errno, SysError};

use super::write_back_errors::{ReportTo, Reporter};
use super::{Access, FdOrigin, OLD_MOUNT_TIMEOUT, OpenFile, Sync};

/// Checks that the request of the calling thread was not given up while it was in another call: its program may have written since.
///
/// # Errors
/// EIO if it was.
pub(crate) fn check_not_given_up() -> Result<()> {
    if reply_takeover::is_given_up() { Err(OpError::UNSURE) } else { Ok(()) }
}

/// Something was acknowledged since the last fsync that went well.
#[derive(Debug, Default)]
pub(super) struct DirtyFlag(AtomicBool);

impl OpenFile {
    /// Like [`Self::ask`], for writes of the user `uid` with the durability `sync`: the space on the branch is counted.
    ///
    /// # Errors
    /// What the call answered.
    pub fn ask_to_write(
        &self,
        uid: u32,
        sync: Option<Sync>,
        call: impl Fn(BorrowedFd<'_>) -> Result<usize, SysError>,
    ) -> Result<usize> {
        self.touched.store(true, Relaxed);
        let placed = self.settled(Self::placed)?;
        check_not_given_up()?;
        // A write that waits for the disk may take as long as an fsync.
        let kind = if sync.is_some() { CallKind::Long } else { CallKind::Short };
        let written =
            placed.branch.ask_for(kind, || taking_space(&placed.branch, uid, || call(placed.fd.as_fd()))?)?;
        placed.branch.note_placed(written);
        if sync.is_none() {
            self.note_written();
        }
        Ok(written)
    }

    /// A write is about to be acknowledged. The file's place is held: an exclusive holder knows of all of them.
    pub(crate) fn note_written(&self) {
        if !self.unsynced.0.load(Relaxed) {
            self.unsynced.0.store(true, Relaxed);
        }
    }

    /// Attributes, or the size or the blocks of the file, were changed: acknowledged as a write is.
    pub(crate) fn note_changed(&self) {
        let _placed = self.hold();
        self.note_written();
    }

    /// Whether the daemon acknowledged anything that no fsync has covered. For an exclusive holder.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.unsynced.0.load(SeqCst)
    }

    /// All acknowledged writes are stored, or the handles have their errors. For an exclusive holder.
    pub(crate) fn is_synced(&self) {
        self.unsynced.0.store(false, Relaxed);
    }

    /// Like [`Self::settle`], by an fsync.
    ///
    /// # Errors
    /// What the call answered, to this handle or to another one while this was open.
    pub(crate) fn sync(
        &self,
        to: ReportTo,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<(), SysError>,
    ) -> Result<()> {
        self.syncing.fetch_add(1, SeqCst);
        // Later acknowledged writes set these flags again.
        let unsynced = self.unsynced.0.swap(false, SeqCst);
        let touched = self.touched.swap(false, SeqCst);
        let synced = self.settle((to, Reporter::Sync), call).inspect_err(|_| {
            if unsynced {
                self.note_written();
            }
            self.touched.fetch_or(touched, Relaxed);
        });
        self.syncing.fetch_sub(1, SeqCst);
        synced
    }

    /// Whether the error of `branch` at one write may be about earlier ones, and would not be reported otherwise.
    pub(crate) fn was_late(&self, branch: &Branch, error: OpError) -> bool {
        matches!(error.errno(), Errno::NOSPC | Errno::DQUOT | Errno::FBIG)
            && branch.tells_at_writes()
            && self.hold_exclusively().map_or(true, |_alone| self.has_unsynced())
    }

    /// Before the file is moved off `branch`, a remote one: its writes are stored there. The caller has the file, `fd`,
    /// exclusively.
    ///
    /// # Errors
    /// It is not stored, or that is unknown; the handles of the file get the error.
    pub(crate) fn store_all(&self, branch: &Branch, fd: BorrowedFd<'_>) -> Result<()> {
        if !self.has_unsynced() {
            return Ok(());
        }
        if branch.tells_at_writes() {
            return Err(lost(branch, Errno::NOSPC)); // reported when the write answered so
        }
        // The kernel counts what was acknowledged.
        let size = branch.ask(|| sys::at::stat_kept(fd))?.size;
        self.write_back_errors.ask(None, OpError::is_of_a_sync, || {
            branch.ask_long(|| sys::file::fsync(fd))?;
            let stored = branch.ask(|| sys::at::stat_now(fd))?.size;
            if stored < size { Err(lost(branch, Errno::IO)) } else { Ok(()) }
        })?;
        self.is_synced();
        Ok(())
    }

    /// Like [`Self::replace`], when the branch was mounted again: losses of the old mount, of writes acknowledged or made
    /// past the daemon, are reported to all handles of the file.
    ///
    /// # Errors
    /// The errors of [`Self::hold_exclusively`].
    pub(crate) fn replace_mount(&self, was: FdOrigin, access: Access, fd: MountedFd) -> Result<()> {
        if !(self.has_unsynced() || self.is_past_us() && was.access.writes()) {
            return self.replace(was, access, fd);
        }
        let mut replaced = Ok(());
        // Calls on the new mount wait meanwhile for the old one's answer.
        let reported = self.write_back_errors.ask(None, OpError::is_of_a_sync, || {
            let (branch, gone) = match self.put(was, access, fd) {
                Ok(put) => put,
                Err(error) => {
                    replaced = Err(error);
                    return Ok(());
                }
            };
            if gone.is_new {
                branch.dispose(gone.fd.mount_generation, gone.fd);
                return Ok(());
            }
            self.last_word(&branch, gone.fd)
        });
        if let Err(error) = reported {
            tracing::warn!(%error, "write-back error on a file's old mount; its next fsync fails with EIO");
        }
        replaced
    }

    /// Answer of an old mount of `branch` to an fsync of `gone`, which is closed.
    fn last_word(&self, branch: &Branch, gone: MountedFd) -> Result<()> {
        let reported = |reported: Result<(), SysError>| reported.map_err(|error| lost(branch, error.errno));
        if !branch.is_remote() {
            return reported(sys::file::fsync(gone.as_fd()));
        }
        // No responder answers for a thread stuck in a mount that is gone.
        let (tell, said) = channel();
        branch.have_closed(gone.mount_generation, move || {
            let _heard = tell.send(sys::file::fsync(gone.as_fd()));
        });
        let synced = reply_takeover::aside(|| said.recv_timeout(OLD_MOUNT_TIMEOUT));
        reported(synced.unwrap_or(Err(SysError::new(Call::Fsync, Errno::IO))))
    }
}

/// Acknowledged writes may not be on `branch`, which is not at fault by that.
fn lost(branch: &Branch, errno: Errno) -> OpError {
    OpError::Branch { branch: branch.ix, sys: SysError::new(Call::Fsync, errno) }
}
