//! Requests about open files.

use fsstack_engine::answer::Opened;
use fsstack_engine::files::Sync;
use fsstack_engine::files::route::Route;
use fsstack_engine::ops::{LockKind, LockRequest, LockType, Whence, WriteTerms};
use fsstack_pool::{Handle, Ino};
use fsstack_sys::{Errno, OFlags};
use fsstack_wire::{self as wire, Answer, Request, abi};

use super::{Adapter, Served, entry_name, errno, full, room};

impl Adapter {
    pub(super) fn open(&self, request: &Request<'_>, flags: u32, answer: &mut Answer<'_>) -> Served {
        let flags = OFlags::from_bits_retain(flags);
        let ino = Ino(request.header.nodeid);
        let opened = self.union.open(ino, flags, self.caller(request, 0)).map_err(errno)?;
        full(answer.opened(open_out(&opened)))
    }

    pub(super) fn create(
        &self,
        request: &Request<'_>,
        creation: &wire::Creation<'_>,
        answer: &mut Answer<'_>,
    ) -> Served {
        let flags = OFlags::from_bits_retain(creation.flags);
        let (parent, name) = (Ino(request.header.nodeid), entry_name(creation.name)?);
        let caller = self.caller(request, creation.umask);
        let made = self.union.create(parent, name, creation.mode, flags, caller).map_err(errno)?;
        full(answer.created(&self.entry(&made.entry), open_out(&made.opened)))
    }

    pub(super) fn tmpfile(
        &self,
        request: &Request<'_>,
        creation: &wire::Creation<'_>,
        answer: &mut Answer<'_>,
    ) -> Served {
        let flags = OFlags::from_bits_retain(creation.flags);
        let caller = self.caller(request, creation.umask);
        let parent = Ino(request.header.nodeid);
        let made = self.union.tmpfile(parent, creation.mode, flags, caller).map_err(errno)?;
        full(answer.created(&self.entry(&made.entry), open_out(&made.opened)))
    }

    /// `by_caller`: the data goes to a caller unchanged. Otherwise it fills the page cache, where a short read means
    /// end of file, or zeros from there on.
    pub(super) fn read(
        &self,
        fh: u64,
        offset: u64,
        size: u32,
        by_caller: bool,
        answer: &mut Answer<'_>,
    ) -> Served {
        let (handle, room) = (Handle(fh), room(answer, size)?);
        let read = if by_caller {
            self.union.read(handle, offset, room)
        } else {
            self.union.fill(handle, offset, room)
        };
        full(answer.filled(read.map_err(errno)?))
    }

    pub(super) fn write(
        &self,
        request: &Request<'_>,
        fh: u64,
        offset: u64,
        data: &[u8],
        (write_flags, flags): (u32, u32),
        answer: &mut Answer<'_>,
    ) -> Served {
        let (flags, by_cache) = (OFlags::from_bits_retain(flags), write_flags & abi::WRITE_CACHE != 0);
        let terms = WriteTerms {
            strips: (write_flags & abi::WRITE_KILL_SUIDGID != 0).then(|| self.caller(request, 0)),
            sync: Sync::of(flags),
            appends: flags.contains(OFlags::APPEND) && !by_cache,
            direct: flags.contains(OFlags::DIRECT),
        };
        // The page cache ignores the count in the reply to a write-back, so all of it must be written.
        let written = if by_cache {
            self.union.write_back(Handle(fh), offset, data, terms)
        } else {
            self.union.write(Handle(fh), offset, data, terms)
        };
        let written = written.map_err(errno)?;
        full(answer.written(u32::try_from(written).unwrap_or(u32::MAX)))
    }

    pub(super) fn lseek(&self, fh: u64, offset: i64, whence: u32, answer: &mut Answer<'_>) -> Served {
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        let whence = match whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            _ => return Err(Errno::INVAL), // the kernel handles the others itself
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let found = self.union.seek(Handle(fh), offset, whence).map_err(errno)?;
        full(answer.sought(found))
    }

    pub(super) fn ioctl(
        &self,
        ino: Ino,
        fh: u64,
        command: u32,
        data: &[u8],
        out_size: u32,
        answer: &mut Answer<'_>,
    ) -> Served {
        let (out, len) = self.union.ioctl(ino, Handle(fh), command, data).map_err(errno)?;
        let len = len.min(usize::try_from(out_size).unwrap_or(0));
        full(answer.ioctl(0, &out[..len]))
    }

    pub(super) fn getlk(&self, lk: &wire::Lk, answer: &mut Answer<'_>) -> Served {
        let in_the_way = self.union.test_lock(Handle(lk.fh), lock_request(lk)?).map_err(errno)?;
        let unlocked = u32::try_from(F_UNLCK).unwrap_or(2);
        full(answer.lock(match in_the_way {
            None => wire::FileLock { start: 0, end: 0, kind: unlocked, pid: 0 },
            Some(lock) => wire::FileLock {
                start: lock.start,
                end: lock.end,
                kind: if lock.kind == LockType::Read { 0 } else { 1 },
                pid: lock.pid,
            },
        }))
    }

    pub(super) fn setlk(&self, request: &Request<'_>, lk: &wire::Lk, wait: bool) -> Served {
        let asked = lock_request(lk)?;
        if !wait {
            return self.union.lock(Handle(lk.fh), asked, None).map_err(errno);
        }
        let waiting = self.interrupts.watch(request.header.unique);
        let locked = self.union.lock(Handle(lk.fh), asked, Some(&|| waiting.goes_on()));
        if locked.as_ref().is_err_and(|error| error.errno() == Errno::INTR) {
            waiting.has_ended();
        }
        locked.map_err(errno)
    }
}

const F_UNLCK: i32 = 2;

fn lock_request(lk: &wire::Lk) -> Result<LockRequest, Errno> {
    let how = match lk.lock.kind {
        0 => LockType::Read,
        1 => LockType::Write,
        2 => LockType::Unlock,
        _ => return Err(Errno::INVAL),
    };
    let kind = if lk.lk_flags & abi::LK_FLOCK != 0 {
        LockKind::Whole
    } else {
        LockKind::Range { start: lk.lock.start, end: lk.lock.end }
    };
    Ok(LockRequest { owner: lk.owner, kind, how })
}

pub(super) fn open_out(opened: &Opened) -> wire::Opened {
    const DIRECT: u32 = abi::FOPEN_DIRECT_IO | abi::FOPEN_PARALLEL_DIRECT_WRITES;
    let backing = |id| i32::try_from(id).unwrap_or(0);
    let (flags, backing_id) = match opened.route {
        Route::Passthrough(id) => (abi::FOPEN_PASSTHROUGH, backing(id)),
        // Beside passthrough the kernel accepts no open of another kind; for reads and writes, direct I/O takes
        // precedence.
        Route::DirectBeside(id) => (abi::FOPEN_PASSTHROUGH | DIRECT, backing(id)),
        Route::Direct => (DIRECT, 0),
        Route::Cached => (abi::FOPEN_KEEP_CACHE, 0),
    };
    let flush = if opened.flushes { 0 } else { abi::FOPEN_NOFLUSH };
    wire::Opened { fh: opened.handle.0, open_flags: flags | flush, backing_id }
}
