//! From a number to the object, when no name is known that leads to it. After a restart an NFS server holds a number and a
//! generation, and names may have changed meanwhile.
//!
//! The number contains branch and inode number (`crates/identity/src/number.rs`), and the branch's file system opens an inode by its
//! number. The opened object must have that very number in the pool. The requester compares the generation: the kernel has
//! it, or the caller here, which has the inode. So a reused number leads to the new object under its own generation, never
//! to the old one under a wrong name.
//!
//! A branch that cannot be asked, or is not in the pool now, makes "gone" unknowable: an I/O error, never ESTALE.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fsstack_branch::entries::Entries;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_identity::index::IndexEntry;
use fsstack_identity::number::{self, Identity};
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::Mutex;
use fsstack_sys::at::Whereabouts;
use fsstack_sys::{self as sys, Errno, Kind, OFlags, Stat};

use crate::inode::{Copies, Inode};
use crate::member::Member;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::resolve::{DirStats, Found};

/// Tries for a path that changes under renames while it is read.
const ATTEMPTS: usize = 8;

fsstack_sync::thread_local! {
    /// This thread looks for a directory that is not under its name: the path to it is walked by name.
    static REJOINS: Cell<bool> = const { Cell::new(false) };
}

/// Directories by their paths, of which one was found already. A hint: what is looked up in them is checked.
#[derive(Debug, Default)]
pub(crate) struct KnownDirs(Mutex<HashMap<Vec<u8>, Arc<Inode>>>);

impl KnownDirs {
    fn find(&self, path: &[u8], look: impl FnOnce() -> Option<Arc<Inode>>) -> Option<Arc<Inode>> {
        let known = self.0.lock().get(path).cloned();
        known.or_else(|| {
            // With no lock held: a branch is asked.
            let found = look()?;
            self.0.lock().insert(path.to_vec(), found.clone());
            Some(found)
        })
    }
}

/// An object that was found by its number.
#[derive(Debug)]
pub(crate) enum ResolvedNumber {
    File(ByNumber),
    Dir(ConnectedDir),
}

/// A file (anything but a directory) that was found by its number.
#[derive(Debug)]
pub(crate) struct ByNumber {
    pub(crate) at: BranchIx,
    /// `O_PATH`.
    pub(crate) fd: MountedFd,
    pub(crate) stat: Stat,
    pub(crate) id: Identity,
}

/// A directory as its path leads to it.
#[derive(Debug)]
pub(crate) struct ConnectedDir {
    pub(crate) parent: Arc<Inode>,
    pub(crate) name: CString,
    pub(crate) stats: DirStats,
    pub(crate) copies: Copies,
    pub(crate) id: Identity,
}

impl Tree {
    /// The object that has the number `ino` now.
    ///
    /// # Errors
    /// ESTALE if none has; EIO if that cannot be known.
    pub(crate) fn resolve_number(&self, pool: &Pool, ino: Ino) -> Result<ResolvedNumber> {
        // For moved objects, where the index says; then where the number says. For a directory that is its first copy: the index's
        // copy may have been parted from it.
        let places = self.index.places(ino);
        let own_first = places.iter().any(IndexEntry::is_dir)
            && pool.branch_of(ino).is_some_and(|at| pool.branch(at).by_number.is_some());
        let indexed = places.into_iter().flat_map(|place| place.naturals);
        let (before, after) = if own_first { (Some(ino), None) } else { (None, Some(ino)) };
        let mut unsure = None;
        let mut tried = 0;
        for natural in before.into_iter().chain(indexed).chain(after) {
            tried += 1;
            match self.resolve_number_at(pool, ino, natural) {
                Ok(reached) => return Ok(reached),
                Err(error) if error.errno() == Errno::STALE => {}
                Err(error) => unsure = Some(error),
            }
        }
        // A copy of a directory on an absent branch may not be the only one.
        let known = pool.branches.iter().all(|branch| branch.marks.are_known())
            && !self.index.lacks_away(|id| pool.has(id));
        tracing::debug!(%ino, tried, known, "nothing has the number");
        Err(unsure.unwrap_or(if known { OpError::STALE } else { OpError::UNSURE }))
    }

    fn resolve_number_at(&self, pool: &Pool, ino: Ino, natural: Ino) -> Result<ResolvedNumber> {
        let (at, fd, stat) = self.open_natural(pool, natural)?;
        if stat.is_dir() {
            let dir = self.connect(pool, at, fd.as_fd(), stat.ino)?;
            return match dir.id.ino == ino {
                true => Ok(ResolvedNumber::Dir(dir)),
                // A copy that could not be asked may have its identity.
                false if dir.copies.unsure != 0 => Err(OpError::UNSURE),
                false => Err(OpError::STALE),
            };
        }
        self.check_inside(pool, at, fd.as_fd(), &stat)?;
        let id = self.identity(pool, pool.branch(at), &stat);
        if id.ino == ino {
            Ok(ResolvedNumber::File(ByNumber { at, fd, stat, id }))
        } else {
            Err(OpError::STALE)
        }
    }

    /// Error for a number `natural` that no branch of the pool could have made.
    pub(crate) fn of_no_branch(&self, natural: Ino) -> OpError {
        if self.index.is_of_a_gone_branch(natural) { OpError::STALE } else { OpError::UNSURE }
    }

    /// Branch and inode number in the number `natural`, a descriptor of the object, and its attributes.
    fn open_natural(&self, pool: &Pool, natural: Ino) -> Result<(BranchIx, MountedFd, Stat)> {
        let exported = self.searches(pool);
        let Some(inode) = number::inode_of(natural) else {
            let found = if exported { self.search_all(pool, natural)? } else { None };
            // It may be of an object on a branch that is not in the pool now.
            return found.ok_or_else(|| match self.index.lacks_hashed(|id| pool.has(id)) {
                true => OpError::UNSURE,
                false => OpError::STALE,
            });
        };
        // A branch that is not in the pool now may come back with the object on it.
        let at = pool.branch_of(natural).ok_or_else(|| self.of_no_branch(natural))?;
        let branch = pool.branch(at);
        let opened = match branch.by_number {
            Some(_) => self.open_raw(branch, inode)?,
            None if exported => self.search(branch, natural)?,
            None => None,
        };
        opened.map(|(fd, stat)| (at, fd, stat)).ok_or(OpError::STALE)
    }

    /// Opens the object with the inode number `inode` on `branch`; returns its attributes too.
    pub(crate) fn open_raw(&self, branch: &Member, inode: u64) -> Result<Option<(MountedFd, Stat)>> {
        let Some(how) = branch.by_number else { return Ok(None) };
        let root = branch.root();
        let Some(fd) = branch.ask(|| how.open(root.as_fd(), inode))? else { return Ok(None) };
        let stat = branch.ask(|| branch.stat_fd(fd.as_fd()))?;
        Ok((stat.nlink > 0 && stat.ino == inode).then_some((root.opened(fd), stat)))
    }

    /// Place in the pool of the directory `fd` of the branch `at`, by the path that the kernel knows.
    ///
    /// # Errors
    /// ESTALE if it is not in the pool; EIO if that cannot be known.
    pub(crate) fn connect(
        &self,
        pool: &Pool,
        at: BranchIx,
        fd: BorrowedFd<'_>,
        inode: u64,
    ) -> Result<ConnectedDir> {
        let (mut last, mut unsure) = (None, false);
        let branch = pool.branch(at);
        for _ in 0..ATTEMPTS {
            let Some(path) = self.path_of(branch, fd)? else { return Err(OpError::STALE) };
            if is_in_hidden_folder(pool, &path) {
                return Err(OpError::STALE);
            }
            match self.walk_to_dir(pool, &path) {
                Ok(Some(found)) if found.copies.found.contains(&(at, inode)) => return Ok(found),
                Ok(found) => unsure |= found.is_some_and(|found| found.copies.is_unsure_of(at)),
                Err(error) if !error.is_missing() => return Err(error),
                // The branch had that path a moment ago: a directory on it was renamed since.
                Err(_) => unsure = true,
            }
            unsure |= last.replace(path.clone()).is_some_and(|last| last != path);
        }
        // It stays where the pool has another object, or is renamed faster than the walk, or its branch did not answer.
        Err(if unsure { OpError::UNSURE } else { OpError::STALE })
    }

    /// Checks that `fd` is an object of the pool. A file system opens any of its inodes by number, also outside of a branch that
    /// is a directory in it, and the pool's own files. The path that the kernel knows decides. After a restart it may know
    /// none: the hidden folders are looked through then, and docs/nfs.md, "Not promised", names the rest.
    ///
    /// # Errors
    /// ESTALE if it is no object of the pool.
    fn check_inside(&self, pool: &Pool, at: BranchIx, fd: BorrowedFd<'_>, stat: &Stat) -> Result<()> {
        let branch = pool.branch(at);
        if branch.by_number.is_none() {
            return Ok(()); // it was found by its name
        }
        let whereabouts = branch.ask(|| sys::at::whereabouts(branch.root().as_fd(), fd))?;
        let outside = match whereabouts {
            Whereabouts::Below(path) => is_in_hidden_folder(pool, &path),
            // One that has several names may have another below the root.
            Whereabouts::Elsewhere => stat.nlink == 1,
            Whereabouts::Unknown => self.is_hidden(pool, branch, stat.ino)?,
        };
        if outside { Err(OpError::STALE) } else { Ok(()) }
    }

    /// Whether the file with the inode number `ino` lies in a hidden folder of the pool on `branch`.
    fn is_hidden(&self, pool: &Pool, branch: &Member, ino: u64) -> Result<bool> {
        let root = branch.root();
        let open = |dir: BorrowedFd<'_>, name: &CStr| {
            match branch.ask(|| sys::at::open_dir(dir, name, branch.mounts)) {
                // A user may have made something else of that name.
                Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
                opened => opened.map(Some),
            }
        };
        let mut dirs = Vec::new();
        for folder in pool.hidden_folders() {
            dirs.extend(open(root.as_fd(), folder)?);
        }
        while let Some(dir) = dirs.pop() {
            let mut entries = Entries::of(branch, dir.as_fd())?;
            while let Some(listed) = entries.next_entry()? {
                // It may get its name in the pool meanwhile.
                let is_there = || branch.ask(|| sys::at::stat(dir.as_fd(), &listed.name));
                if listed.ino == ino && is_there().is_ok_and(|there| there.ino == ino) {
                    return Ok(true);
                }
                if listed.kind == Some(Kind::Dir) {
                    dirs.extend(open(dir.as_fd(), &listed.name)?);
                }
            }
        }
        Ok(false)
    }

    /// The name that a file has, if the kernel knows one and it leads there.
    pub(crate) fn name_of(&self, pool: &Pool, reached: &ByNumber) -> Option<(Arc<Inode>, CString)> {
        self.name_among(pool, reached, &KnownDirs::default())
    }

    /// Like [`Self::name_of`], for many files at a time: directories are looked up once.
    pub(crate) fn name_among(
        &self,
        pool: &Pool,
        reached: &ByNumber,
        known: &KnownDirs,
    ) -> Option<(Arc<Inode>, CString)> {
        let branch = pool.branch(reached.at);
        let path = self.path_of(branch, reached.fd.as_fd()).ok()??;
        if is_in_hidden_folder(pool, &path) {
            return None;
        }
        let (dir, last) = split(&path);
        let name = CString::new(last).ok().filter(|name| !name.is_empty())?;
        let parent = match dir {
            [] => self.inodes.root().clone(),
            dir => known.find(dir, || Some(self.pass_by(&self.walk_to_dir(pool, dir).ok()??)))?,
        };
        let there = self.stat_in(pool, &parent, reached.at, &name).ok()?;
        (self.identity(pool, branch, &there) == reached.id).then_some((parent, name))
    }

    /// The path below the branch's root that the kernel knows. The kernel gives at most a page: for a deeper directory the last
    /// names are read, each in the directory above.
    ///
    /// # Errors
    /// The branch's error; EIO if a directory on the path is renamed faster than the names are read.
    pub(crate) fn path_of(&self, branch: &Member, fd: BorrowedFd<'_>) -> Result<Option<Vec<u8>>> {
        let (mut climbed, mut below) = (None::<OwnedFd>, Vec::new());
        let mut attempts = ATTEMPTS;
        loop {
            let at = climbed.as_ref().map_or(fd, OwnedFd::as_fd);
            match branch.ask(|| sys::at::path_below(branch.root().as_fd(), at)) {
                Err(error) if error.errno() == Errno::NAMETOOLONG => {}
                path => return Ok(path?.map(|path| join(path, &below))),
            }
            match name_above(branch, at)? {
                ParentOf::Named(name, above) => {
                    below.push(name);
                    climbed = Some(above);
                }
                ParentOf::Nothing => return Ok(None),
                ParentOf::Moved if attempts > 0 => {
                    attempts -= 1;
                    (climbed, below) = (None, Vec::new());
                }
                ParentOf::Moved => return Err(OpError::UNSURE),
            }
        }
    }

    /// The directory at `path`. None: another object is there, or on the way.
    fn walk_to_dir(&self, pool: &Pool, path: &[u8]) -> Result<Option<ConnectedDir>> {
        let mut parent = self.inodes.root().clone();
        let mut names = path.split(|byte| *byte == b'/').peekable();
        while let Some(raw) = names.next() {
            let name = CString::new(raw).map_err(|_| OpError::MISSING)?;
            if name.is_empty() {
                break; // a branch's root, which is the pool's
            }
            let Found::Dir(stats, copies) = self.find(pool, &parent, &name)? else { break };
            let id = self.dir_identity(pool, &parent, &name, &stats)?;
            let here = ConnectedDir { parent, name, stats, copies, id };
            if names.peek().is_none() {
                return Ok(Some(here));
            }
            parent = self.pass_by(&here);
        }
        Ok(None)
    }

    /// The inode of a directory on the way.
    pub(crate) fn pass_by(&self, dir: &ConnectedDir) -> Arc<Inode> {
        let inode = self.inodes.passed_by(dir.id, || Inode::dir(dir.id, &dir.copies));
        inode.update_copies(&dir.copies);
        inode.note_name(&dir.parent, &dir.name, 1, dir.copies.asked());
        inode
    }

    /// The directory `dir`, whose known name is missing or means another object, is searched by its number: its names and
    /// copies are as they are now.
    ///
    /// # Errors
    /// ESTALE if it is gone; EIO if that cannot be known.
    pub(crate) fn reconnect(&self, pool: &Pool, dir: &Arc<Inode>) -> Result<()> {
        let ResolvedNumber::Dir(found) = self.resolve_number(pool, dir.id.ino)? else {
            return Err(OpError::STALE);
        };
        if found.id != dir.id || found.parent.lies_in(dir) {
            return Err(OpError::STALE);
        }
        dir.update_copies(&found.copies);
        dir.note_name(&found.parent, &found.name, 1, found.copies.asked());
        Ok(())
    }

    /// Like [`Self::reconnect`]; None while this thread is doing that already, for a directory below.
    pub(crate) fn reconnected(&self, pool: &Pool, dir: &Arc<Inode>) -> Option<()> {
        if REJOINS.replace(true) {
            return None;
        }
        let done = self.reconnect(pool, dir);
        REJOINS.set(false);
        done.ok()
    }

    /// Whether `name` in `parent` leads to the directory `dir` on a branch that holds it.
    pub(crate) fn leads_to(&self, pool: &Pool, parent: &Arc<Inode>, name: &CStr, dir: &Inode) -> bool {
        dir.copies().into_iter().any(|at| {
            self.stat_in(pool, parent, at, name).is_ok_and(|there| dir.copy_ino(at) == Some(there.ino))
        })
    }

    /// Whether objects are searched by their numbers where no branch opens them so: for NFS servers, and for a kernel that knows
    /// more than this daemon.
    fn searches(&self, pool: &Pool) -> bool {
        pool.settings.nfs_export || self.inodes.is_uncertain()
    }

    /// A file by its number where none of its names is known any more, for pools that search.
    pub(crate) fn file_by_number(&self, pool: &Pool, inode: &Inode, failed: OpError) -> Result<ByNumber> {
        if failed.errno() != Errno::STALE || !self.searches(pool) {
            return Err(failed);
        }
        match self.resolve_number(pool, inode.id.ino)? {
            ResolvedNumber::File(file) if file.id == inode.id && file.stat.kind() == inode.kind => {
                inode.found_on(file.at);
                Ok(file)
            }
            ResolvedNumber::File(_) | ResolvedNumber::Dir(_) => Err(OpError::STALE),
        }
    }
}

/// Where a directory lies.
enum ParentOf {
    /// It has this name in that one.
    Named(CString, OwnedFd),
    /// It is no directory, or was removed.
    Nothing,
    /// It was moved while the one that had it was read.
    Moved,
}

/// The name of the directory `fd`, and the one that has it.
fn name_above(branch: &Member, fd: BorrowedFd<'_>) -> Result<ParentOf> {
    let stat = branch.ask(|| sys::at::stat_fd(fd))?;
    if !stat.is_dir() {
        return Ok(ParentOf::Nothing);
    }
    let above = branch.ask(|| sys::at::open_follow(fd, c"..", OFlags::PATH | OFlags::DIRECTORY))?;
    let mut entries = Entries::of(branch, above.as_fd())?;
    while let Some(listed) = entries.next_entry()? {
        if listed.ino == stat.ino {
            return Ok(ParentOf::Named(listed.name, above));
        }
    }
    let is_gone = branch.ask(|| sys::at::stat_fd(fd))?.nlink == 0;
    Ok(if is_gone { ParentOf::Nothing } else { ParentOf::Moved })
}

/// `path`, and below it the names, the last one first.
fn join(mut path: Vec<u8>, below: &[CString]) -> Vec<u8> {
    for name in below.iter().rev() {
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
    }
    path
}

/// Whether `path`, below a branch's root, leads to something that the pool keeps there for itself.
fn is_in_hidden_folder(pool: &Pool, path: &[u8]) -> bool {
    let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    CString::new(first).is_ok_and(|first| pool.hides(&first))
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}
