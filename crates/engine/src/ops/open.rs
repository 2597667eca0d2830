//! Opening and closing files.

use std::sync::Arc;

use fsstack_branch::caller::Caller;
use fsstack_branch::error::Result;
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_branch::metrics::PoolCounter;
use fsstack_pool::{Handle, Ino};
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Errno, Kind, OFlags};

use crate::answer::{Opened, Validity};
use crate::files::capability::CAPABILITY;
use crate::files::decision::StackedReason;
use crate::files::route::{Route, Writer};
use crate::files::write_back_errors::{ReportTo, Reporter};
use crate::files::{OpenFile, SET_ID, Sync};
use crate::inode::Inode;
use crate::kept::rows::OwedInRows;
use crate::kept::slots;
use crate::opened::FileHandle;
use crate::opened::choose::{Facts, stacked_route};
use crate::ops::setattr::claim_mode;
use crate::pool::Pool;
use crate::union::Union;

impl Union {
    /// Opens `ino` as `flags` say.
    ///
    /// # Errors
    /// ESTALE if the file is gone; what the branch answered.
    pub fn open(&self, ino: Ino, flags: OFlags, caller: Caller) -> Result<Opened> {
        let pool = self.tree.pool.load();
        let inode = self.tree.inode(ino)?;
        match inode.kind {
            Kind::Dir => return Err(Errno::ISDIR.into()),
            Kind::Symlink => return Err(Errno::LOOP.into()),
            Kind::File | Kind::Fifo | Kind::Socket | Kind::Char | Kind::Block => {}
        }
        let write = flags.intersects(OFlags::WRONLY | OFlags::RDWR) || flags.contains(OFlags::TRUNC);
        let join = |file: &OpenFile| {
            self.tree.freshen(&inode, file)?;
            if !write {
                return Ok(());
            }
            // Existing writers continue when the branch is set RO; no new one begins.
            file.branch().check_mode()?;
            file.check_fixed(flags.contains(OFlags::APPEND) && !flags.contains(OFlags::TRUNC))?;
            file.make_writable_for(flags)
        };
        self.files.await_close(&inode);
        let file =
            inode.open_with(join, || self.files.open_on_branch(&self.tree, &pool, &inode, write, flags))?;
        if flags.contains(OFlags::TRUNC)
            && let Err(error) = file
                .change(CallKind::Long, |fd| sys::file::truncate(fd, 0))
                .and_then(|()| self.strip(&inode, &file, caller))
        {
            inode.close_handle();
            return Err(error);
        }
        let before = inode.validity();
        let opened = self.hand_out(&pool, inode.clone(), file, flags, caller);
        // The kernel keeps attributes from before the file could be stored into unseen.
        if before != Validity::None
            && inode.validity() == Validity::None
            && let Some(invalidator) = self.invalidator.get()
        {
            invalidator.attributes(ino);
        }
        Ok(opened)
    }

    /// One more handle on `file`, which `inode` already counts.
    pub(crate) fn hand_out(
        &self,
        pool: &Pool,
        inode: Arc<Inode>,
        file: Arc<OpenFile>,
        flags: OFlags,
        caller: Caller,
    ) -> Opened {
        let write = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let write_only = flags.contains(OFlags::WRONLY);
        let writer = write.then(|| Writer::of(caller));
        let branch = file.branch();
        let (strips, appends) = (file.strips(), file.is_append_only());
        let wished = self
            .files
            .choose(pool, Facts { inode: &inode, branch: &branch, write, strips, append_only: appends });
        // A set-id bit may have come since.
        let wish_now = || {
            let stays = !(write && file.strips() && wished.is_passthrough());
            let wished = wished.clone();
            if stays { wished } else { wished.refused(stacked_route(pool), StackedReason::Strips) }
        };
        let route = file.io_mode(wish_now, writer, inode.was_past());
        let past_us = matches!(route, Route::Passthrough(_));
        let maps_past_us = past_us || matches!(route, Route::DirectBeside(_));
        if maps_past_us {
            inode.opened_past();
        }
        self.tree.metrics.note(if past_us { PoolCounter::OpenPassthrough } else { PoolCounter::OpenStacked });
        let handle = self.files.new_handle();
        // A local disk has nothing to say at close; a network file system, to which the file may move, reports late errors there.
        let may_report = match write {
            true => pool.branches.iter().any(|branch| !branch.kind.is_local()),
            false => !branch.kind.is_local(),
        };
        let flushes = may_report || pool.settings.locks == crate::settings::Locks::Branch;
        let write_back_errors = ReportTo { handle, since: file.write_back_errors.so_far() };
        let noatime = flags.contains(OFlags::NOATIME) || self.noatime_scope().files;
        if !past_us && !write_only {
            file.has_reader(noatime);
        }
        let (sync, kept) = (Sync::of(flags), file.clone());
        let mappable = maps_past_us && flags.contains(OFlags::RDWR);
        if mappable {
            inode.opened_mappable();
        }
        let mut open = FileHandle {
            inode,
            file: kept,
            route,
            writer,
            sync,
            write_back_errors,
            mappable,
            noatime,
            appends,
            row: None,
        };
        // Before the row: what has one is known by its handle.
        slots::opens(handle.0);
        open.row = self.kept().and_then(|kept| {
            file.write_back_errors.note_in(|| OwedInRows::of(kept, open.inode.id.ino));
            kept.note_file(handle, &open)
        });
        self.files.handles.insert(handle.0, open);
        Opened { handle, file, route, flushes }
    }

    /// The last use of a handle is over.
    pub fn release(&self, handle: Handle) {
        if let Some((_, open)) = self.files.handles.remove(&handle.0) {
            if let Some((kept, row)) = self.kept().zip(open.row) {
                kept.drop_row(row);
            }
            if open.writer.is_some() {
                self.tree.catalogue_attributes(&self.tree.pool.load(), &open.inode);
            }
            open.file.leave_io_mode(open.route, open.writer);
            if open.mappable {
                open.inode.closed_mappable();
            }
            open.file.write_back_errors.closed(handle);
            open.file.unlock_closed(handle);
            self.jobs.list.has_closed(open.inode.id.ino, &open.file);
            // The last one closes the file, which a branch that others serve is asked for.
            if let Some(last) = open.inode.close_handle() {
                drop(open);
                OpenFile::dispose(last);
                self.files.making_way.note_close();
            }
        }
    }

    /// A descriptor of the file was closed: reports what the branch has to say about earlier writes.
    ///
    /// # Errors
    /// A delayed write error.
    pub fn flush(&self, handle: Handle) -> Result<()> {
        let open = self.file(handle)?;
        if open.writer.is_none() {
            return Ok(());
        }
        // A local disk reports nothing at close, nor does a branch that all was synced to; errors that others got may be
        // pending.
        if open.file.branch().kind.is_local() || !open.file.may_have_unreported_error() {
            return open.file.write_back_errors.tell(open.write_back_errors);
        }
        open.file.settle((open.write_back_errors, Reporter::Close), sys::file::flush)
    }

    /// Clears what an unprivileged write must clear: set-uid, set-gid where the group may
    /// execute or the writer is not of it, and file capabilities, as the kernel does on a local file system
    /// (`file_remove_privs`; the group of the writer since Linux 6.2).
    ///
    /// # Errors
    /// The branch did not take the new mode: the write must not be answered as done.
    pub(crate) fn strip(&self, inode: &Inode, file: &OpenFile, caller: Caller) -> Result<()> {
        if !file.strips() || caller.is_root() { Ok(()) } else { self.strip_now(inode, file, caller) }
    }

    /// Like [`Self::strip`], when the kernel has decided that it must be.
    pub(crate) fn strip_now(&self, inode: &Inode, file: &OpenFile, caller: Caller) -> Result<()> {
        let _mode = claim_mode(&self.tree.pool.load(), inode)?;
        let reasons = file.reasons_to_strip();
        let kept = file.change(CallKind::Short, |fd| strip_fd(fd, caller))?;
        // Set-gid stays for a writer in the group; the next writer may not be in it.
        if kept & SET_ID == 0 {
            file.stripped(reasons);
        }
        // The kernel keeps the mode for as long as attributes may be kept, and would start the program with the bit.
        if let Some(invalidator) = self.invalidator.get() {
            invalidator.attributes(inode.id.ino);
        }
        Ok(())
    }
}

/// Clears set-uid, set-gid (where the group may execute, or `caller` is not of it) and capabilities of the file: its mode then.
pub(crate) fn strip_fd(fd: std::os::fd::BorrowedFd<'_>, caller: Caller) -> Result<u32, sys::SysError> {
    let stat = sys::at::stat_fd(fd)?;
    let mode = stat.mode & 0o7777;
    let mut kept = mode & !0o4000;
    if mode & 0o2010 == 0o2010 || mode & 0o2000 != 0 && !caller.is_of(stat.gid) {
        kept &= !0o2000;
    }
    if kept != mode {
        sys::at::chmod_fd(fd, kept)?;
    }
    match xattr::remove(On::Fd(fd), CAPABILITY) {
        Err(error) if !matches!(error.errno, Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => Err(error),
        Ok(()) | Err(_) => Ok(kept),
    }
}
