//! Reading and writing by the stacked path, allocating, and finding holes.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::branch::Branch;
use fsstack_branch::caller::{Caller, UNKNOWN, taking_space};
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_branch::health::reply_takeover;
use fsstack_pool::Handle;
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sys::file::WriteFlags;
use fsstack_sys::{self as sys, Errno, SysError};

use crate::files::route::{Route, Writer};
use crate::files::{OpenFile, Sync};
use crate::inode::Inode;
use crate::kept::slots;
use crate::opened::FileHandle;
use crate::settings::PageCache;
use crate::union::Union;

/// Modes of fallocate(2) that take no space: FALLOC_FL_PUNCH_HOLE, _COLLAPSE_RANGE and _INSERT_RANGE.
const TAKES_NONE: u32 = 0x02 | 0x08 | 0x20;

/// How often an append waits at most for the bytes before it.
const EARLY_APPEND_PAUSES: u32 = 500;
/// How long an append waits at a time for the bytes before it.
const EARLY_APPEND_PAUSE: Duration = Duration::from_millis(1);

/// The part of a file that [`Union::seek`] looks for.
pub use fsstack_sys::file::Whence;

/// Terms of one write, from the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteTerms {
    /// The writer, if it has no right to keep the file's privileges.
    pub strips: Option<Caller>,
    /// It is answered when it is on the disk (`RWF_DSYNC`, `RWF_SYNC`, a mount with `sync`), whatever the handle is open for.
    pub sync: Option<Sync>,
    /// It goes to the file's end as the branch knows it, whatever the offset: the handle has O_APPEND now.
    pub appends: bool,
    /// The handle has O_DIRECT now.
    pub direct: bool,
}

/// Reporter of an error at one write to the other handles of the file, if it may be about earlier writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LateErrors {
    /// Each handle's next fsync.
    Recorded,
    /// The kernel: of an error of its write-back it tells each handle that is open, at the next fsync and before that reaches
    /// the daemon.
    KernelReports,
}

impl Union {
    /// Reads at `offset` into `into`: the number of bytes, fewer at the end of the file, or before what cannot be read.
    ///
    /// # Errors
    /// EBADF if the handle is not open; what the branch answered before the first byte.
    pub fn read(&self, handle: Handle, offset: u64, into: &mut [u8]) -> Result<usize> {
        match self.read_until(handle, offset, into)? {
            // What was read is right: the error comes again with the next read.
            (0, Some(error)) => Err(error),
            (done, _) => Ok(done),
        }
    }

    /// Like [`Self::read`], but a short count means end of file; any error before that is returned.
    ///
    /// # Errors
    /// EBADF if the handle is not open; the branch's error before the last byte.
    pub fn fill(&self, handle: Handle, offset: u64, into: &mut [u8]) -> Result<usize> {
        let (done, then) = self.read_until(handle, offset, into)?;
        then.map_or(Ok(done), Err)
    }

    /// The number of bytes, and the error that came behind them.
    fn read_until(&self, handle: Handle, offset: u64, into: &mut [u8]) -> Result<(usize, Option<OpError>)> {
        let open = self.file(handle)?;
        let mut done = 0;
        while done < into.len() {
            let read = open.file.ask_to_read(open.noatime, |fd| {
                sys::file::read_at(fd, &mut into[done..], offset + done as u64)
            });
            match read {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) => return Ok((done, Some(error))),
            }
        }
        Ok((done, None))
    }

    /// Writes `data` at `offset`, under `terms`, those of this one write: the number of bytes, fewer only if the branch took no
    /// more. Direct I/O beside the page cache is written whole or fails: the kernel sends it as asynchronous requests, and
    /// makes EIO of a short count.
    ///
    /// # Errors
    /// EBADF if the handle may not write; EPERM if it gave O_APPEND up, and was opened on a file that may only be added to;
    /// what the branch answered before the first byte.
    pub fn write(&self, handle: Handle, offset: u64, data: &[u8], terms: WriteTerms) -> Result<usize> {
        let open = self.file(handle)?;
        if !terms.appends {
            if open.must_append() {
                return Err(Errno::PERM.into());
            }
            // What others opened to append appends.
            open.file.check_stored()?;
        }
        let written = self.write_until(&open, offset, data, (terms, LateErrors::Recorded))?;
        if terms.direct && open.route == Route::Cached {
            return all_of(data, written);
        }
        match written {
            (0, Some(error)) => Err(error),
            (done, _) => Ok(done),
        }
    }

    /// How many bytes of `data` were appended to a file that was `before` bytes long, by a daemon that has died since.
    ///
    /// # Errors
    /// EBADF if the handle is not open; EIO if something else was written there; what the branch answered.
    pub fn written_before(&self, handle: Handle, before: u64, data: &[u8]) -> Result<usize> {
        let open = self.file(handle)?;
        let mut there = vec![0; data.len()];
        let mut done = 0;
        while done < data.len() {
            let at = before + done as u64;
            match open.file.ask_to_read(true, |fd| sys::file::read_at(fd, &mut there[done..], at))? {
                0 => break,
                count => done += count,
            }
        }
        if there[..done] == data[..done] { Ok(done) } else { Err(OpError::UNSURE) }
    }

    /// Page-cache write-back: writes all of `data` or fails, because the kernel ignores short counts.
    ///
    /// # Errors
    /// EBADF if the handle may not write; EPERM if the file is append-only; the branch's error before the last byte; ENOSPC
    /// if the branch takes no more.
    pub fn write_back(&self, handle: Handle, offset: u64, data: &[u8], terms: WriteTerms) -> Result<usize> {
        let open = self.file(handle)?;
        open.file.check_stored()?;
        all_of(data, self.write_until(&open, offset, data, (terms, LateErrors::KernelReports))?)
    }

    /// The number of bytes, and the error that came behind them.
    fn write_until(
        &self,
        open: &FileHandle,
        offset: u64,
        data: &[u8],
        (terms, late_errors): (WriteTerms, LateErrors),
    ) -> Result<(usize, Option<OpError>)> {
        if let Some(stranger) = terms.strips
            && open.file.strips()
        {
            self.strip_now(&open.inode, &open.file, stranger)?;
        }
        let sync = terms.sync.max(open.sync);
        if sync.is_some() {
            self.tree.sync_way(&self.tree.pool.load(), &open.inode, open.inode.branch())?;
        }
        // A write-back of the page cache may come by a handle that was opened for reading.
        open.file.make_writable()?;
        // The kernel's offset of an append is the size that it knows: others may have appended since, on the branch or by way of
        // another host. The branch appends under its own lock. A kernel that holds writes back knows more than the branch.
        let appends = terms.appends && self.tree.pool.load().settings.page_cache != PageCache::WriteBack;
        let how = flags_of(sync, appends);
        let early = EarlyAppend::of(&open.file);
        let uid = open.writer.map_or(UNKNOWN, Writer::user);
        let (mut done, mut moves) = (0, 0);
        while done < data.len() {
            let at = offset + done as u64;
            let rest = &data[done..];
            let branch = open.file.branch();
            let write = || {
                open.file.ask_to_write(uid, sync, |fd| {
                    if appends && done == 0 && early.comes_before(size_at(fd, branch.is_remote())?, at) {
                        return Ok(0);
                    }
                    sys::file::write_at_flags(fd, rest, at, how)
                })
            };
            // The branch may tell of others' writes now, or of earlier ones. (What was not even asked has lost nothing.)
            let written = match sync {
                _ if late_errors == LateErrors::KernelReports => write(),
                None if !branch.is_remote() => write(),
                None => open.file.write_back_errors.ask(None, |e| open.file.was_late(&branch, e), write),
                Some(_) => {
                    let late =
                        |e: OpError| e.is_fault() && e.is_of_a_sync() || open.file.was_late(&branch, e);
                    open.file.write_back_errors.ask(Some(open.write_back_errors), late, write)
                }
            };
            match written {
                Ok(0) if early.waits() => {}
                Ok(0) => break,
                Ok(count) => done += count,
                // A quota may be exceeded on every branch: not round and round.
                Err(error) if is_full(error) && moves < self.tree.pool.load().branches.len() => {
                    let moved = self.moves.relocate(
                        &self.tree.pool.load(),
                        &open.inode,
                        &open.file,
                        branch.ix,
                        rest.len() as u64,
                    );
                    if let Err(why) = moved {
                        return Ok((done, Some(unmoved(why, error))));
                    }
                    moves += usize::from(is_a_try(error, &open.file, &branch));
                }
                Err(error) => return Ok((done, Some(error))),
            }
        }
        Ok((done, None))
    }

    /// Like fallocate(2).
    ///
    /// # Errors
    /// EOPNOTSUPP for a mode that the branch does not have; what the branch answered.
    pub fn fallocate(&self, handle: Handle, mode: u32, offset: u64, len: u64, caller: Caller) -> Result<()> {
        let open = self.file(handle)?;
        open.file.make_writable()?;
        self.strip(&open.inode, &open.file, caller)?;
        let blocks = || open.file.stat().map(|stat| stat.blocks);
        let before = if mode & TAKES_NONE == 0 { blocks()? } else { 0 };
        // A branch without room for all of it keeps what it has allocated.
        let lacking = || len.saturating_sub(blocks().map_or(0, |now| now.saturating_sub(before)) * 512);
        self.with_room(&open.inode, &open.file, lacking, || {
            open.file.change(CallKind::Long, |fd| {
                let allocate = || sys::file::fallocate(fd, mode, offset, len);
                taking_space(&open.file.branch(), caller.uid, allocate)?
            })
        })?;
        open.file.note_changed();
        if mode & TAKES_NONE == 0 {
            open.file.branch().note_placed_beside(len);
        }
        self.sync_if_asked(handle, &open)
    }

    /// Runs `act`, which may lack `more` bytes when it has failed; if the file's branch has no room for them, on another branch.
    pub(crate) fn with_room<T>(
        &self,
        inode: &Arc<Inode>,
        file: &Arc<OpenFile>,
        more: impl Fn() -> u64,
        act: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let mut moves = 0;
        loop {
            let branch = file.branch();
            let done = match branch.is_remote() {
                false => act(),
                true => file.write_back_errors.ask(None, |error| file.was_late(&branch, error), &act),
            };
            match done {
                // A quota may be exceeded on every branch: not round and round.
                Err(error) if is_full(error) && moves < self.tree.pool.load().branches.len() => {
                    let moved = self.moves.relocate(&self.tree.pool.load(), inode, file, branch.ix, more());
                    moved.map_err(|why| unmoved(why, error))?;
                    moves += usize::from(is_a_try(error, file, &branch));
                }
                done => return done,
            }
        }
    }

    /// The next data or hole at or after `offset`. Of a file that goes through the FUSE layer's page cache all is data: a page
    /// that was stored into may not be on the branch yet.
    ///
    /// # Errors
    /// ENXIO past the end of the file; ENOSYS if the kernel holds writes back, which then says the same from the size it knows.
    pub fn seek(&self, handle: Handle, offset: u64, whence: Whence) -> Result<u64> {
        let open = self.file(handle)?;
        if i64::try_from(offset).is_err() {
            return Err(Errno::NXIO.into());
        }
        if self.tree.pool.load().settings.page_cache == PageCache::WriteBack {
            return Err(Errno::NOSYS.into());
        }
        match open.file.route() {
            Some(Route::Cached) => {
                let size = open.file.stat()?.size;
                match whence {
                    _ if size <= offset => Err(Errno::NXIO.into()),
                    Whence::Data => Ok(offset),
                    Whence::Hole => Ok(size),
                }
            }
            _ => open.file.ask(|fd| sys::file::seek(fd, offset, whence)),
        }
    }
}

/// The number of bytes that were written if they are all of `data`, else the error that came behind them.
fn all_of(data: &[u8], written: (usize, Option<OpError>)) -> Result<usize> {
    match written {
        (_, Some(error)) => Err(error),
        (done, None) if done < data.len() => Err(Errno::NOSPC.into()),
        (done, None) => Ok(done),
    }
}

/// The size of a file that is about to grow. A remote branch's client appends at the size that it has kept, until it asks the
/// server.
fn size_at(fd: BorrowedFd<'_>, is_remote: bool) -> Result<u64, SysError> {
    Ok(if is_remote { sys::at::stat_now(fd) } else { sys::at::stat_fd(fd) }?.size)
}

/// An append that the kernel puts behind the end of the file. It sends a large asynchronous one as several requests without
/// waiting for their answers, and another thread may be slower with an earlier one. Or others have cut the file, and the kernel
/// does not know: that is found out once.
#[derive(Debug)]
struct EarlyAppend<'a> {
    file: &'a OpenFile,
    /// The bytes that it lacks before it.
    lacking: Cell<u64>,
    waited: Cell<u32>,
}

impl<'a> EarlyAppend<'a> {
    fn of(file: &'a OpenFile) -> Self {
        Self { file, lacking: Cell::new(0), waited: Cell::new(0) }
    }

    /// Whether a write at `offset` has to wait, as the file has only `size` bytes yet.
    fn comes_before(&self, size: u64, offset: u64) -> bool {
        let lacking = offset.saturating_sub(size);
        let cut = self.file.cut_off.fetch_min(lacking, Relaxed).min(lacking);
        let waits = lacking > cut && self.waited.get() < EARLY_APPEND_PAUSES;
        if lacking > cut && !waits {
            self.file.cut_off.store(lacking, Relaxed);
        }
        self.lacking.set(if waits { lacking } else { 0 });
        if !waits && slots::is_noted() {
            slots::acts(size);
        }
        waits
    }

    /// Waits if it has to. False: it had not.
    fn waits(&self) -> bool {
        if self.lacking.replace(0) == 0 {
            return false;
        }
        self.waited.set(self.waited.get() + 1);
        reply_takeover::aside(|| fsstack_sync::thread::sleep(EARLY_APPEND_PAUSE));
        true
    }
}

/// Whether `error` counts against the moves that a writer may cause: if the file has left `branch` for it. Where another file made
/// room the writer tries again, as often as files leave, since others may take the room first; a quota does not grow by that.
fn is_a_try(error: OpError, file: &OpenFile, branch: &Branch) -> bool {
    file.branch().ix != branch.ix || error.errno() == Errno::DQUOT
}

/// Error for a caller whose file did not leave its `full` branch: ENOSPC, unless the file's place is unknown.
fn unmoved(why: OpError, full: OpError) -> OpError {
    if why.is_fault() { why } else { full }
}

/// The branch has no room, for this user at least.
pub(crate) fn is_full(error: OpError) -> bool {
    matches!(error.errno(), Errno::NOSPC | Errno::DQUOT)
}

fn flags_of(sync: Option<Sync>, append: bool) -> WriteFlags {
    WriteFlags { dsync: sync == Some(Sync::Data), sync: sync == Some(Sync::All), append }
}
