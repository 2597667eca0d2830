//! Copying inside the pool: the branch's own way on one branch, read and write across branches.
//!
//! A copy that may take long steps aside: the transport has another thread meanwhile.
//!
//! A branch may hang in the middle of a copy across branches. The caller is answered then, and may write other content to the
//! target, on a branch that is well. So a thread that comes back from a call which was given up changes nothing more. And it
//! still has the places of both files: a thread that waits for one of them gets EIO.

use std::os::fd::AsFd;

use fsstack_branch::caller::{Caller, taking_space};
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::holder::ThreadInCalls;
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_branch::health::reply_takeover;
use fsstack_pool::Handle;
use fsstack_sys::{self as sys, Errno, SysError};

use crate::files::{OpenFile, check_not_given_up};
use crate::moves::transfer;
use crate::union::Union;

/// Bytes of data copied across branches in one request: the caller asks again for the rest, and can be interrupted.
const PORTION: u64 = 64 << 20;
/// Bytes that are copied by the thread that answers the kernel.
const BRIEF: u64 = 1 << 20;

impl Union {
    /// Like `copy_file_range(2)`: the number of bytes copied.
    ///
    /// # Errors
    /// EBADF if a handle is not open; EPERM if the target is immutable, or may only be added to and its handle, or the
    /// daemon's own descriptor, was opened so; what a branch answered before the first byte.
    pub fn copy_range(
        &self,
        from: (Handle, u64),
        to: (Handle, u64),
        len: u64,
        caller: Caller,
    ) -> Result<u64> {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        if target.must_append() {
            return Err(Errno::PERM.into());
        }
        // What others opened to append appends.
        target.file.check_stored()?;
        target.file.make_writable()?;
        self.strip(&target.inode, &target.file, caller)?;
        let size = source.file.stat()?.size;
        let more = len.min(size.saturating_sub(from.1));
        let copied = self.with_room(
            &target.inode,
            &target.file,
            || more,
            || {
                let copy = || copy((&source.file, from.1), (&target.file, to.1), len, caller.uid);
                let copied = if more > BRIEF { reply_takeover::aside(copy) } else { copy() }?;
                target.file.note_written();
                Ok(copied)
            },
        )?;
        self.sync_if_asked(to.0, &target)?;
        Ok(copied)
    }
}

/// Maximum that the kernel moves in one call (its `MAX_RW_COUNT`).
const AT_MOST: usize = 0x7fff_f000;

/// The branch's own way where both files are on one. The target's place is waited for first, with nothing held: it may be
/// about to move. It takes space as the user `uid` does.
fn copy((source, from): (&OpenFile, u64), (target, to): (&OpenFile, u64), len: u64, uid: u32) -> Result<u64> {
    source.make_readable()?;
    let _copying = [source.copying_here(), target.copying_here()];
    let target = target.settled(OpenFile::readable)?;
    let source = source.held()?;
    let in_pool = |error: OpError| SysError { call: sys::Call::CopyRange, errno: error.errno() };
    let (source_fd, target_fd) = (source.fd.as_fd(), target.fd.as_fd());
    check_not_given_up()?;
    if source.branch.dev() == target.branch.dev() {
        let want = usize::try_from(len).map_or(AT_MOST, |len| len.min(AT_MOST));
        let copied = source.branch.ask_long(|| {
            let copy = || sys::file::copy_range(source_fd, from, target_fd, to, want);
            target.branch.ask_inside(|| taking_space(&target.branch, uid, copy)?).map_err(in_pool)
        });
        match copied {
            Err(error) if matches!(error.errno(), Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            settled => return settled.map(|copied| copied as u64),
        }
    }
    // The branch's own way asks for that; a descriptor from before `chattr +i` can still be written.
    if target.branch.ask(|| sys::at::stat_fd(target_fd))?.is_immutable() {
        return Err(Errno::PERM.into());
    }
    // A permit in both: whichever hangs, the caller is answered. (In the order of the branches, so that a copy the other way
    // does not hold one and wait for the other.)
    let (first, second) = if source.branch.ix <= target.branch.ix {
        (&source.branch, &target.branch)
    } else {
        (&target.branch, &source.branch)
    };
    let copied = || {
        let here = ThreadInCalls::here();
        let is_waited_for = || !here.is_stuck() && !reply_takeover::is_given_up();
        let len = len.min(AT_MOST as u64);
        let copy = || transfer::copy((source_fd, from), (target_fd, to), len, PORTION, &is_waited_for);
        // A server is asked as the daemon only.
        if source.branch.is_remote() { copy() } else { taking_space(&target.branch, uid, copy)? }
    };
    let kind = if first.ix == second.ix { None } else { Some(CallKind::Long) };
    first.ask_long(|| {
        let inside = kind.map_or(Ok(None), |kind| second.come_in(kind)).map_err(in_pool)?;
        let copied = second.ask_inside(copied).map_err(in_pool);
        drop(inside);
        copied
    })
}
