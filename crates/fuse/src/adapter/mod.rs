//! Maps each parsed request to one engine method, and its result to a reply. Nothing else.

mod again;
mod caller_rows;
mod callers;
mod calls;
mod control_file;
mod errnos;
mod files;
mod listing;
mod names;
mod shown_attrs;
mod timeouts;
mod undelivered;
mod xattr;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use fsstack_engine::Union;
use fsstack_engine::answer::{Attr, Entry};
use fsstack_engine::inode::KeptListing;
use fsstack_engine::kept::Kept;
use fsstack_engine::ops::Change;
use fsstack_pool::settings::{Locks, Xattrs};
use fsstack_pool::{EntryName, Handle, Ino};
use fsstack_sys::{Errno, OFlags};
use fsstack_wire::{self as wire, Abi, Answer, Operation, Request};

pub(crate) use again::is_once;
pub use caller_rows::{CallProfile, CallTotals, CallerKey, CallerRow};
pub use calls::{CallWatch, LONGEST_PATH, LoggedCalls, SlowCall};
pub use control_file::{ControlFile, ControlKeys, Setter};

use crate::convert;
use crate::transport::interrupts::Interrupts;
use errnos::{errno, for_export};
use shown_attrs::ShownAttrs;
pub use timeouts::Timeouts;

/// Action of a transport after the adapter has handled a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Send the reply that was built.
    Answered,
    /// Reply with this errno.
    Refused(i32),
    /// No reply: this kind of request has none.
    Silent,
}

/// Server behind a transport: the adapter, or in the benches a file system that does nothing.
pub trait Serve: Send + Sync + fmt::Debug {
    /// Negotiated form of requests.
    fn abi(&self) -> Abi;
    /// Serves one request.
    fn serve(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Outcome;
    /// True if serving may never end, so that another thread must be able to reply.
    fn may_hang(&self) -> bool;
    /// Number of requests that may never end at once, at most.
    fn most_hanging(&self) -> usize {
        0
    }
    /// Request `unique` was read and will wait for a lock: it can be interrupted from now on.
    fn will_wait(&self, _unique: u64) {}
    /// Request `unique` will not wait after all.
    fn will_not_wait(&self, _unique: u64) {}
    /// Requests that wait for locks, if any does.
    fn interrupts(&self) -> Option<&Interrupts> {
        None
    }
    /// Memory that outlives the daemon, if there is any.
    fn kept(&self) -> Option<&Arc<Kept>> {
        None
    }
    /// Rolls back the grants of `answer`, which the kernel has not received because another thread replied.
    fn take_back(&self, request: &Request<'_>, answer: &[u8]);
    /// Numbers of up to `most` regular files that the kernel probably knows.
    fn some_files(&self, most: usize) -> Vec<u64>;
}

/// The adapter between the protocol and the engine: one for all transports.
#[derive(Debug)]
pub struct Adapter {
    union: Arc<Union>,
    timeouts: ArcSwap<Timeouts>,
    abi: Abi,
    xattrs: Xattrs,
    interrupts: Interrupts,
    control_file: OnceLock<ControlFile>,
    calls: CallWatch,
    /// Callers may use idmapped mounts.
    maps_callers: bool,
}

/// Result of serving a request, with an errno as error.
type Served = Result<(), Errno>;

impl Serve for Adapter {
    fn abi(&self) -> Abi {
        self.abi
    }

    fn serve(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Outcome {
        match request.op {
            Operation::Forget { nlookup } => {
                self.forget(Ino(request.header.nodeid), nlookup);
                return Outcome::Silent;
            }
            Operation::BatchForget(forgets) => {
                forgets.for_each(|(nodeid, count)| self.forget(Ino(nodeid), count));
                return Outcome::Silent;
            }
            Operation::Interrupt { unique } => {
                // Where the kernel keeps the locks, nothing waits that could be given up.
                if self.union.pool().settings.locks == Locks::Branch {
                    self.interrupts.interrupt(unique);
                }
                return Outcome::Silent;
            }
            _ => {}
        }
        let watched = self.calls.begin();
        let served = match self.control_file.get().filter(|_| control_file::is_meant(request)) {
            Some(file) => file.serve(request, &self.timeouts(), answer),
            None => self.serve_noted(request, answer),
        };
        self.may_have_changed_names(request);
        if let Some(began) = watched {
            self.calls.end(began, &self.union, request, (served.err(), answer.len()));
        }
        match served {
            Ok(()) => Outcome::Answered,
            Err(errno) if self.union.is_for_export() => {
                Outcome::Refused(for_export(errno, request).raw_os_error())
            }
            Err(errno) => Outcome::Refused(errno.raw_os_error()),
        }
    }

    fn may_hang(&self) -> bool {
        self.union.may_hang()
    }

    fn most_hanging(&self) -> usize {
        self.union.pool().most_hanging()
    }

    fn some_files(&self, most: usize) -> Vec<u64> {
        self.union.some_files(most).into_iter().map(|file| file.0).collect()
    }

    fn will_wait(&self, unique: u64) {
        self.interrupts.expect(unique);
    }

    fn will_not_wait(&self, unique: u64) {
        self.interrupts.dismiss(unique);
    }

    fn interrupts(&self) -> Option<&Interrupts> {
        Some(&self.interrupts)
    }

    fn kept(&self) -> Option<&Arc<Kept>> {
        self.union.kept()
    }

    fn take_back(&self, request: &Request<'_>, answer: &[u8]) {
        self.may_have_changed_names(request);
        self.give_up(request, answer);
    }
}

impl Adapter {
    /// Makes an adapter to `union`; `abi` is what the kernel granted.
    pub fn new(union: Arc<Union>, timeouts: Timeouts, abi: Abi, xattrs: Xattrs) -> Self {
        Self {
            union,
            timeouts: ArcSwap::from_pointee(timeouts),
            abi,
            xattrs,
            interrupts: Interrupts::default(),
            control_file: OnceLock::new(),
            calls: CallWatch::default(),
            maps_callers: false,
        }
    }

    /// Sets the timeouts of later replies; earlier replies keep theirs.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.timeouts.store(Arc::new(timeouts));
    }

    /// Watched calls.
    pub fn calls(&self) -> &CallWatch {
        &self.calls
    }

    /// The engine.
    pub fn union(&self) -> &Arc<Union> {
        &self.union
    }

    /// Returns the timeouts for a reply sent now.
    fn timeouts(&self) -> Timeouts {
        let now = **self.timeouts.load();
        let (entry, negative) = now.watched;
        if self.union.is_watched() { Timeouts { entry, negative, ..now } } else { now }
    }

    #[expect(clippy::too_many_lines, reason = "one row an operation")]
    fn dispatch(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Served {
        let ino = Ino(request.header.nodeid);
        match request.op {
            Operation::Lookup { name } => self.lookup(request, name, answer),
            Operation::Getattr { fh } => self.getattr(ino, fh, answer),
            Operation::Statx { fh, .. } => self.statx(ino, fh, answer),
            Operation::Setattr(change) => self.setattr(request, &change, answer),
            Operation::Readlink => full(answer.data(&self.union.readlink(ino).map_err(errno)?)),
            Operation::Symlink { .. } | Operation::Mknod { .. } | Operation::Mkdir { .. } => {
                self.make(request, answer)
            }
            Operation::Unlink { name } => self.union.unlink(ino, entry_name(name)?).map_err(errno),
            Operation::Rmdir { name } => self.union.rmdir(ino, entry_name(name)?).map_err(errno),
            Operation::Rename { name, newdir, newname, flags } => {
                self.rename((ino, name), (Ino(newdir), newname), flags)
            }
            Operation::Link { oldnode, name } => self.link(Ino(oldnode), ino, name, answer),
            Operation::Open { flags, .. } => self.open(request, flags, answer),
            Operation::Create(creation) => self.create(request, &creation, answer),
            Operation::Tmpfile(creation) => self.tmpfile(request, &creation, answer),
            // The kernel marks the lock owner as valid only where a caller reads.
            Operation::Read { fh, offset, size, lock_owner, .. } => {
                self.read(fh, offset, size, lock_owner.is_some(), answer)
            }
            Operation::Write { fh, offset, write_flags, flags, data, .. } => {
                self.write(request, fh, offset, data, (write_flags, flags), answer)
            }
            Operation::Statfs => self.statfs(answer),
            Operation::Release { fh, release_flags, lock_owner, .. } => {
                if release_flags & wire::abi::RELEASE_FLOCK_UNLOCK != 0 {
                    self.union.unlock_all(Handle(fh), lock_owner);
                }
                self.union.release(Handle(fh));
                Ok(())
            }
            Operation::Flush { fh, lock_owner } => {
                self.union.unlock_all(Handle(fh), lock_owner);
                self.union.flush(Handle(fh)).map_err(errno)
            }
            Operation::Fsync { fh, datasync } => self.union.fsync(Handle(fh), datasync).map_err(errno),
            Operation::Fsyncdir { fh, datasync } => {
                self.union.fsyncdir(ino, Handle(fh), datasync).map_err(errno)
            }
            Operation::Syncfs => self.union.syncfs().map_err(errno),
            Operation::Opendir { flags, .. } => {
                let flags = OFlags::from_bits_retain(flags);
                let handle = self.union.opendir(ino, flags).map_err(errno)?;
                let open_flags = match self.union.kept_listing(handle, self.timeouts().fresh()) {
                    KeptListing::None => 0,
                    KeptListing::Beside => wire::abi::FOPEN_KEEP_CACHE,
                    KeptListing::Fill => wire::abi::FOPEN_CACHE_DIR,
                    KeptListing::Valid => wire::abi::FOPEN_CACHE_DIR | wire::abi::FOPEN_KEEP_CACHE,
                };
                full(answer.opened(wire::Opened { fh: handle.0, open_flags, backing_id: 0 }))
            }
            Operation::Readdir { fh, offset, size } => self.readdir(fh, offset, size, false, answer),
            Operation::Readdirplus { fh, offset, size } => self.readdir(fh, offset, size, true, answer),
            Operation::Releasedir { fh, .. } => {
                self.union.releasedir(Handle(fh));
                Ok(())
            }
            // The kernel sends no request of this kind again.
            Operation::Setxattr { .. }
            | Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Removexattr { .. }
                if self.xattrs == Xattrs::Off =>
            {
                Err(Errno::NOSYS)
            }
            Operation::Setxattr { name, value, flags, setxattr_flags } => {
                let kill_sgid = setxattr_flags & wire::abi::SETXATTR_ACL_KILL_SGID != 0;
                let caller = self.caller(request, 0);
                self.union.setxattr(ino, name, value, flags, kill_sgid, caller).map_err(errno)
            }
            Operation::Getxattr { name, size } => self.getxattr(request, name, size, answer),
            Operation::Listxattr { size } => self.listxattr(request, size, answer),
            Operation::Removexattr { name } => {
                self.union.removexattr(ino, name, self.caller(request, 0)).map_err(errno)
            }
            Operation::Getlk(lk) => self.getlk(&lk, answer),
            Operation::Setlk(lk) => self.setlk(request, &lk, false),
            Operation::Setlkw(lk) => self.setlk(request, &lk, true),
            Operation::Fallocate { fh, offset, length, mode } => {
                self.union.fallocate(Handle(fh), mode, offset, length, self.caller(request, 0)).map_err(errno)
            }
            Operation::Lseek { fh, offset, whence } => self.lseek(fh, offset, whence, answer),
            Operation::CopyFileRange { fh_in, off_in, fh_out, off_out, len, width, .. } => {
                let (from, to) = ((Handle(fh_in), off_in), (Handle(fh_out), off_out));
                let copied = self.union.copy_range(from, to, len, self.caller(request, 0)).map_err(errno)?;
                full(answer.copied(width, copied))
            }
            Operation::Ioctl { fh, cmd, data, out_size, .. } => {
                self.ioctl(ino, fh, cmd, data, out_size, answer)
            }
            Operation::Destroy => Ok(()),
            // With default_permissions the kernel checks access, and it maps blocks and polls without the daemon.
            Operation::Access { .. } | Operation::Bmap { .. } | Operation::Poll { .. } => Err(Errno::NOSYS),
            Operation::Forget { .. } | Operation::BatchForget(_) | Operation::Interrupt { .. } => Ok(()),
        }
    }

    fn getattr(&self, ino: Ino, fh: Option<u64>, answer: &mut Answer<'_>) -> Served {
        let attr = self.shown_attrs().attr(self.union.getattr(ino, fh.map(Handle)).map_err(errno)?);
        full(answer.attr(&convert::attr(&attr), self.attr_valid(&attr)))
    }

    fn statx(&self, ino: Ino, fh: Option<u64>, answer: &mut Answer<'_>) -> Served {
        let attr = self.shown_attrs().attr(self.union.getattr(ino, fh.map(Handle)).map_err(errno)?);
        full(answer.statx(&convert::statx(&attr), self.attr_valid(&attr)))
    }

    fn setattr(&self, request: &Request<'_>, change: &wire::SetAttr, answer: &mut Answer<'_>) -> Served {
        let wanted = Change {
            mode: change.mode,
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            atime: change.atime.map(convert::set_time),
            mtime: change.mtime.map(convert::set_time),
            strips: change.kill_suidgid,
            held: change.ctime.is_some(),
        };
        let ino = Ino(request.header.nodeid);
        let attr =
            self.union.setattr(ino, change.fh.map(Handle), wanted, self.caller(request, 0)).map_err(errno)?;
        let attr = self.shown_attrs().attr(attr);
        full(answer.attr(&convert::attr(&attr), self.attr_valid(&attr)))
    }

    /// Returns the maker of the attributes in replies.
    fn shown_attrs(&self) -> ShownAttrs<'_> {
        ShownAttrs::new(&self.union, self.xattrs)
    }

    /// Converts an entry for a reply.
    fn entry(&self, entry: &Entry) -> wire::Entry {
        convert::entry(&self.shown_attrs().entry(*entry), &self.timeouts())
    }

    fn attr_valid(&self, attr: &Attr) -> Duration {
        convert::attr_valid(attr, self.timeouts.load().attr)
    }

    fn statfs(&self, answer: &mut Answer<'_>) -> Served {
        let of = self.union.statfs().map_err(errno)?;
        full(answer.statfs(&wire::Statfs {
            blocks: of.blocks,
            bfree: of.free,
            bavail: of.available,
            files: of.files,
            ffree: of.files_free,
            bsize: of.block_size,
            namelen: of.name_max,
            frsize: of.block_size,
        }))
    }
}

fn room<'a>(answer: &'a mut Answer<'_>, size: u32) -> Result<&'a mut [u8], Errno> {
    let spare = answer.spare();
    let len = spare.len().min(usize::try_from(size).unwrap_or(usize::MAX));
    spare.get_mut(..len).ok_or(Errno::RANGE)
}

/// A reply that does not fit means that the request's buffer was too small.
fn full(put: Result<(), wire::NoRoom>) -> Served {
    put.map_err(|wire::NoRoom| Errno::RANGE)
}

fn entry_name(name: &std::ffi::CStr) -> Result<EntryName<'_>, Errno> {
    EntryName::new(name).map_err(|bad| match bad {
        fsstack_pool::BadName::TooLong => Errno::NAMETOOLONG,
        fsstack_pool::BadName::Reserved | fsstack_pool::BadName::Separator | fsstack_pool::BadName::Nul => {
            Errno::INVAL
        }
    })
}
