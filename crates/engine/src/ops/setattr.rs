//! Changing attributes.
//!
//! A directory's attributes change on every branch that has a copy, the shown one last.

use std::os::fd::{AsFd, BorrowedFd};

use fsstack_branch::caller::Caller;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_pool::{BranchIx, Handle, Ino};
use fsstack_sys::at::Times;
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError};
use smallvec::SmallVec;

use crate::answer::Attr;
use crate::files::{SET_ID, check_not_given_up};
use crate::inode::{AttributeGuard, Inode, ModeGuard};
use crate::ops::open::strip_fd;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::pin::Pin;
use crate::tree::quiet_dirs::note_given;
use crate::tree::tree_lock::unless_stuck;
use crate::union::Union;
use std::sync::Arc;

pub use fsstack_sys::at::SetTime;

/// Attributes to change; None stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size, bytes.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: Option<SetTime>,
    /// Time of last modification.
    pub mtime: Option<SetTime>,
    /// The kernel has decided that the caller may not keep set-uid, set-gid and capabilities.
    pub strips: bool,
    /// The kernel holds writes back (`page-cache=writeback`), and their times with them.
    pub held: bool,
}

impl Change {
    /// No attribute is named.
    fn is_nothing(self) -> bool {
        let Self { mode, uid, gid, size, atime, mtime, strips, held: _ } = self;
        let named = mode.or(uid).or(gid).is_some() || size.is_some() || atime.or(mtime).is_some();
        !named && !strips
    }

    /// The file's mode may be read and set, or is cleared of set-id bits.
    fn reaches_mode(self) -> bool {
        self.mode.or(self.uid).or(self.gid).is_some() || self.is_nothing()
    }

    fn times(self) -> Times {
        Times { atime: self.atime.unwrap_or(SetTime::Omit), mtime: self.mtime.unwrap_or(SetTime::Omit) }
    }

    /// It may be no more than the time of the last write, which the kernel sends before a close. A call that sets this one time
    /// looks the same.
    fn tells_of_writes(self) -> bool {
        let Self { mode, uid, gid, size, atime, mtime, strips: _, held } = self;
        let more = mode.or(uid).or(gid).is_some() || size.is_some() || atime.is_some();
        held && mtime.is_some() && !more
    }
}

/// Branches that have a copy of a directory.
type CopyBranches = SmallVec<[BranchIx; 4]>;

/// A copy of a directory: its branch, and it.
type CopyFd = (BranchIx, Arc<DirFd>);

/// All copies of a directory, while no further one comes to be.
pub(crate) struct AllCopies<'a> {
    /// The shown one first; never none.
    pub(crate) copies: SmallVec<[CopyFd; 2]>,
    _changes: AttributeGuard<'a>,
}

impl Union {
    /// Changes attributes of `ino`: the attributes then.
    ///
    /// # Errors
    /// ETXTBSY for a set-id bit on a file that a stranger is writing past the daemon; the branch's error.
    pub fn setattr(&self, ino: Ino, handle: Option<Handle>, change: Change, caller: Caller) -> Result<Attr> {
        let pool = self.tree.pool.load();
        let inode = self.tree.inode(ino)?;
        if inode.is_dir() {
            return self.tree.change_dir(&pool, &inode, change);
        }
        let by_handle = self.file_if_open(handle)?;
        let pin = match by_handle {
            Some(file) => Pin::Open(file),
            None => self.tree.pin(&pool, &inode)?,
        };
        pool.branch(inode.branch().ok_or(OpError::STALE)?).check_mode()?;
        if let Some(mode) = change.mode {
            check_set_id(&inode, &pin, &pool, mode)?;
        }
        if let Some(size) = change.size {
            // By its name: the branch is not asked to open it once more.
            if handle.is_none()
                && let Pin::Open(file) = &pin
            {
                file.check_fixed(false)?;
            }
            // An open with O_TRUNC asks for size 0 by name, too, and changes the times of an empty file. On remote branches another client
            // may have changed the size since it was last asked for.
            let is_local = || inode.branch().is_some_and(|at| !pool.branch(at).is_remote());
            let by_name = handle.is_none() && size != 0 && is_local();
            truncate(self, &pool, &inode, &pin, (size, by_name))?;
        }
        // A kernel that decides this itself says so; with one that does not, a stranger's truncation strips.
        let strips = change.strips || change.size.is_some() && !caller.is_root();
        let _mode = match strips || change.reaches_mode() {
            true => Some(claim_mode(&pool, &inode)?),
            false => None,
        };
        if strips && change.mode.is_none() {
            pin.change(&pool, |fd| strip_fd(fd, caller))?;
        }
        if change.is_nothing() {
            chown_to_nobody(&pin, &pool, caller)?;
        }
        pin.change(&pool, |fd| apply(fd, change))?;
        let stat = pin.ask(&pool, changed)?;
        inode.note_changed();
        self.tree.catalogue_attributes(&pool, &inode);
        if let Some(file) = inode.open_file() {
            file.set_strips(stat.mode & SET_ID != 0 || file.strips() && !change.strips);
        }
        Ok(Attr { ino, validity: inode.validity(), stat })
    }
}

/// Lets the caller change the mode of a file, as soon as no other thread does.
///
/// # Errors
/// EIO if the other thread is stuck in a branch that hangs.
pub(crate) fn claim_mode<'a>(pool: &Pool, file: &'a Inode) -> Result<ModeGuard<'a>> {
    unless_stuck(pool, || file.claim_mode(), || file.is_mode_kept_by_stuck())
}

/// Sets the file's size. `by_name`: as truncate(2) does, which keeps the times where the size is this one already, on XFS and
/// ext4.
fn truncate(
    union: &Union,
    pool: &Pool,
    inode: &Arc<Inode>,
    pin: &Pin,
    (size, by_name): (u64, bool),
) -> Result<()> {
    // truncate(2) frees the space that is allocated beyond the end.
    let keeps_all = |stat: &Stat| {
        let block = u64::from(stat.blksize).max(1);
        stat.size == size && stat.blocks.saturating_mul(512) <= size.next_multiple_of(block)
    };
    let cut = |fd: BorrowedFd<'_>| match by_name && keeps_all(&sys::at::stat_fd(fd)?) {
        true => Ok(()),
        false => sys::file::truncate(fd, size),
    };
    match pin {
        Pin::Open(file) => {
            file.make_writable()?;
            let cut = || file.change(CallKind::Long, cut);
            union.with_room(inode, file, || size, cut)
        }
        Pin::Here(at, _) | Pin::Read(at, _) | Pin::Removed(at, _) => {
            let branch = pool.branch(*at);
            let mount_generation = branch.mount_generation();
            let fd =
                pin.ask_long(pool, |fd| branch.past_leases(OFlags::WRONLY, |how| sys::at::reopen(fd, how)))?;
            // Its open may have hung, and its program may have written since.
            let done = check_not_given_up().and_then(|()| branch.ask_long(|| cut(fd.as_fd())));
            branch.dispose(mount_generation, fd);
            done
        }
    }
}

impl Tree {
    fn change_dir(&self, pool: &Pool, dir: &Arc<Inode>, change: Change) -> Result<Attr> {
        if change.size.is_some() {
            return Err(Errno::ISDIR.into());
        }
        let applied = self.on_all_copies(pool, dir, |fd| apply(fd, change));
        if applied.is_ok() && change.atime.or(change.mtime).is_some() {
            dir.copies().into_iter().for_each(|at| note_given(self, pool, (dir, at), change.times()));
        }
        if change.mode.or(change.uid).or(change.gid).is_some() {
            self.attributes_changed(pool, dir);
        }
        applied?;
        self.dir_attr(pool, dir)
    }

    /// Runs `act` on every copy of a directory, the first one last.
    ///
    /// # Errors
    /// EROFS before anything is changed if a copy is read-only; else the first error, at which it ends.
    pub(crate) fn on_all_copies(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        act: impl Fn(BorrowedFd<'_>) -> Result<(), SysError>,
    ) -> Result<()> {
        let all = self.copies_to_change(pool, dir)?;
        for (at, fd) in all.copies.iter().rev() {
            let at = *at;
            let done = pool.branch(at).ask(|| act(fd.as_fd()));
            dir.forget_reported(at);
            done?;
        }
        self.catalogue_attributes(pool, dir);
        Ok(())
    }

    /// The copies of `dir` that a change must reach.
    ///
    /// # Errors
    /// EIO if a branch is out of reach, or if a thread that gives one a copy is stuck in a hung branch; EROFS if the shown copy
    /// cannot be changed; ESTALE.
    pub(crate) fn copies_to_change<'a>(&self, pool: &Pool, dir: &'a Arc<Inode>) -> Result<AllCopies<'a>> {
        loop {
            // The way to a copy may wait for the tree lock, whose holder may wait to give the directory a copy.
            let (listed, copies) = self.changeable(pool, dir)?;
            let changes = unless_stuck(pool, || dir.change(), || dir.is_kept_by_stuck())?;
            unless_stuck(pool, || changes.has_all().then_some(()), || dir.is_grown_by_stuck())?;
            if dir.copies() == listed {
                return Ok(AllCopies { copies, _changes: changes });
            }
        }
    }

    /// The branches that have a copy of `dir` now, and the copies that a change must reach, never none.
    fn changeable(&self, pool: &Pool, dir: &Arc<Inode>) -> Result<(CopyBranches, SmallVec<[CopyFd; 2]>)> {
        self.check_whole(pool, dir)?;
        let copies = dir.copies();
        let fixed = copies.iter().find(|at| !pool.branch(**at).is_writable());
        if let Some(fixed) = fixed
            && copies.first() == Some(fixed)
        {
            // The shown copy. A hidden one may stay as it is.
            let sys = SysError { call: sys::Call::Chmod, errno: Errno::ROFS };
            return Err(pool.branch(*fixed).said(sys));
        }
        let mut found = SmallVec::new();
        for at in copies.iter().copied().filter(|at| pool.branch(*at).is_writable()) {
            match self.dirfd(pool, dir, at) {
                Err(error) if error.is_missing() => {}
                fd => found.push((at, fd?)),
            }
        }
        if found.is_empty() { Err(OpError::STALE) } else { Ok((copies, found)) }
    }
}

/// A set-uid program must not be written by a stranger's open descriptor: the kernel writes past the daemon and would not
/// clear the bit. Root keeps the bit when it writes anyway, and the owner can set it again. A stranger's open under way goes
/// by the daemon: see [`Inode::guard_set_id`].
fn check_set_id(inode: &Inode, pin: &Pin, pool: &Pool, mode: u32) -> Result<()> {
    if mode & SET_ID == 0 {
        return Ok(());
    }
    let Some(file) = inode.guard_set_id() else { return Ok(()) };
    let owner = pin.ask(pool, sys::at::stat_fd)?.uid;
    if file.has_strange_writer(owner) {
        tracing::info!("set-id bit refused: the file is open for writing by passthrough");
        return Err(Errno::TXTBSY.into());
    }
    Ok(())
}

/// A chown(2) with -1 and -1, as the kernel sends it, which clears set-uid and set-gid on any local file system. A
/// stranger would be refused there, but looks like a writer that the kernel cleans up after: nothing is done.
fn chown_to_nobody(pin: &Pin, pool: &Pool, caller: Caller) -> Result<()> {
    let stat = pin.ask(pool, sys::at::stat_fd)?;
    if stat.mode & SET_ID != 0 && (caller.is_root() || caller.uid == stat.uid) {
        pin.change(pool, |fd| sys::at::chown_fd(fd, None, None))?;
    }
    Ok(())
}

fn apply(fd: BorrowedFd<'_>, change: Change) -> Result<(), SysError> {
    // Owner before mode: a change of owner clears the set-uid bit that the new mode may have.
    if change.uid.is_some() || change.gid.is_some() {
        sys::at::chown_fd(fd, change.uid, change.gid)?;
    }
    if let Some(mode) = change.mode {
        sys::at::chmod_fd(fd, mode & 0o7777)?;
    }
    if change.atime.is_some() || change.mtime.is_some() {
        match sys::at::utimens_fd(fd, change.times()) {
            // GlusterFS looks the file up by its number all the same, and does not find a removed one. The kernel sends such times
            // itself, before it truncates what it has written back.
            Err(error) if error.errno == Errno::STALE && is_removed(fd) => {}
            // Append-only, or immutable since: its branch has noted the time of the write itself.
            Err(error) if error.errno == Errno::PERM && change.tells_of_writes() => {}
            done => done?,
        }
    }
    Ok(())
}

/// Asks the kernel's own state: a volume that spreads its files does not find a removed one.
fn is_removed(fd: BorrowedFd<'_>) -> bool {
    sys::at::stat_kept(fd).is_ok_and(|stat| stat.nlink == 0)
}

/// Attributes of a file after a change.
fn changed(fd: BorrowedFd<'_>) -> Result<Stat, SysError> {
    match sys::at::stat_fd(fd) {
        Err(error) if error.errno == Errno::STALE && is_removed(fd) => sys::at::stat_kept(fd),
        reported => reported,
    }
}
