//! An inode: (parent, name) and the branches that hold it; never a path.
//!
//! Rename changes the parent and the name of one inode; whatever refers to it or lies below it follows.
//! A file is on one branch, the first in order that has the name. A directory has a copy on one or more.

pub mod dirfd;
pub mod locations;
pub mod mark;
pub mod number;
pub mod table;

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::Kind;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::open::OpenFile;
use dirfd::DirFd;
use number::{Identity, hash_name};

/// Names of one hard-linked file that are remembered.
const NAMES: usize = 8;

/// How long a name is believed to be missing: somebody past the pool may make it.
const MISS_AGE: Duration = Duration::from_secs(1);

/// An object that the kernel knows by its number.
#[derive(Debug)]
pub struct Inode {
    /// Number and generation.
    pub id: Identity,
    /// What it is.
    pub kind: Kind,
    /// Its branch has left the pool.
    lost: AtomicBool,
    /// When the kernel was last told about it, on the table's clock of milliseconds, which wraps.
    told: AtomicU32,
    /// Order: one inode's state at a time; no system call that waits for another inode's lock below it.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    names: SmallVec<[Name; 1]>,
    place: Place,
    /// Kept when a name was removed: see [`Inode::outlive`].
    ghost: Option<Arc<DirFd>>,
}

/// A name of an inode.
#[derive(Clone, Debug)]
pub struct Name {
    /// The directory that has it.
    pub parent: Arc<Inode>,
    /// The name there.
    pub name: Arc<CStr>,
}

impl Name {
    /// `name` in `parent`.
    pub fn new(parent: &Arc<Inode>, name: &CStr) -> Self {
        Self { parent: parent.clone(), name: name.into() }
    }

    fn is(&self, parent: &Inode, name: &CStr) -> bool {
        self.parent.id.ino == parent.id.ino && *self.name == *name
    }
}

#[derive(Debug, Default)]
enum Place {
    #[default]
    Nowhere,
    File(FilePlace),
    Dir(DirPlace),
}

#[derive(Debug)]
struct FilePlace {
    branch: BranchIx,
    /// The open file and the number of its handles.
    open: Option<(Arc<OpenFile>, usize)>,
    /// Somebody gave it a set-id bit or a capability: an open that looked at it before that must know.
    guarded: bool,
}

#[derive(Debug)]
struct DirPlace {
    copies: SmallVec<[Copy; 2]>,
    /// Branches that could not be asked for a copy: a bit each.
    unsure: u64,
    /// When all branches were last asked, if they need not be asked again at once.
    checked: Option<Instant>,
    /// Hashes of names that all branches were asked for in vain since `missed`.
    misses: [u64; 2],
    missed: Instant,
    /// What told the state of all copies apart from any later one when the kernel began to keep the listing.
    listed: Option<u64>,
}

#[derive(Debug)]
struct Copy {
    branch: BranchIx,
    ino: u64,
    fd: Option<Arc<DirFd>>,
    used: bool,
}

/// What a lookup found out about a directory's copies.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    /// Branch and the branch's inode number, in the pool's order.
    pub found: SmallVec<[(BranchIx, u64); 4]>,
    /// Branches that could not be asked: a bit each.
    pub unsure: u64,
}

impl Copies {
    /// The branch could not be asked.
    pub fn unsure_of(&mut self, branch: BranchIx) {
        self.unsure |= 1 << (branch.0 & 63);
    }
}

impl Inode {
    /// A file (anything but a directory) on `branch`.
    pub fn file(id: Identity, kind: Kind, branch: BranchIx) -> Self {
        let place = Place::File(FilePlace { branch, open: None, guarded: false });
        Self::new(id, kind, place)
    }

    /// A directory.
    pub fn dir(id: Identity, copies: &Copies) -> Self {
        let now = Instant::now();
        let mut place = DirPlace {
            copies: SmallVec::new(),
            unsure: 0,
            checked: None,
            misses: [0; 2],
            missed: now,
            listed: None,
        };
        place.update(copies);
        Self::new(id, Kind::Dir, Place::Dir(place))
    }

    fn new(id: Identity, kind: Kind, place: Place) -> Self {
        let state = Mutex::new(State { names: SmallVec::new(), place, ghost: None });
        Self { id, kind, lost: AtomicBool::new(false), told: AtomicU32::new(0), state }
    }

    /// The root of the pool, whose copies are the branches' own roots.
    pub fn root(roots: impl Iterator<Item = (BranchIx, u64, Arc<DirFd>)>) -> Self {
        let id = Identity { ino: Ino::ROOT, generation: 0 };
        let root = Self::dir(id, &Copies::default());
        if let Place::Dir(dir) = &mut root.state.lock().place {
            dir.copies =
                roots.map(|(branch, ino, fd)| Copy { branch, ino, fd: Some(fd), used: true }).collect();
        }
        root
    }

    /// The kernel is told about it at `now`.
    pub(crate) fn tell(&self, now: u32) {
        self.told.store(now, Relaxed);
    }

    /// Milliseconds before `now` that the kernel was last told about it.
    pub(crate) fn told_before(&self, now: u32) -> u32 {
        now.wrapping_sub(self.told.load(Relaxed))
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Dir
    }

    /// Whether it is the pool's root.
    pub fn is_root(&self) -> bool {
        self.id.ino == Ino::ROOT
    }

    // ---- names ------------------------------------------------------------------------------------

    /// Its names as far as they are known, the latest seen first.
    pub fn names(&self) -> SmallVec<[Name; 1]> {
        self.state.lock().names.clone()
    }

    /// The name by which it was seen last.
    pub fn name(&self) -> Option<Name> {
        self.state.lock().names.first().cloned()
    }

    /// Whether `name` in `parent` is one of its known names.
    pub fn has_name(&self, parent: &Inode, name: &CStr) -> bool {
        self.state.lock().names.iter().any(|known| known.is(parent, name))
    }

    /// It was seen under `name` in `parent`. Only an object with several links keeps its other names.
    pub fn seen_as(&self, parent: &Arc<Inode>, name: &CStr, links: u32) {
        let mut state = self.state.lock();
        if state.names.first().is_some_and(|first| first.is(parent, name)) {
            return;
        }
        let old =
            state.names.iter().position(|known| known.is(parent, name)).map(|at| state.names.remove(at));
        let seen = old.unwrap_or_else(|| Name::new(parent, name));
        if links <= 1 || self.is_dir() {
            state.names.clear();
        }
        state.names.truncate(NAMES - 1);
        state.names.insert(0, seen);
    }

    /// `name` in `parent` is no name of it any more.
    pub fn lost_name(&self, parent: &Inode, name: &CStr) {
        self.state.lock().names.retain(|known| !known.is(parent, name));
    }

    /// It was renamed.
    pub fn renamed(&self, from: (&Inode, &CStr), to: (&Arc<Inode>, &CStr)) {
        let mut state = self.state.lock();
        state.names.retain(|known| !known.is(from.0, from.1) && !known.is(to.0, to.1));
        state.names.insert(0, Name::new(to.0, to.1));
    }

    /// Keeps `fd`, the object itself, until the kernel forgets the inode. As long as the kernel may ask for it, the
    /// branch must not use its number for another object: a caller that is just opening the old one by its
    /// number would get the new one, or an error that no local disk gives.
    pub(crate) fn outlive(&self, fd: Arc<DirFd>) {
        self.state.lock().ghost = Some(fd);
    }

    /// The object itself, if a name of it was removed.
    pub(crate) fn ghost(&self) -> Option<Arc<DirFd>> {
        self.state.lock().ghost.clone()
    }

    // ---- files ------------------------------------------------------------------------------------

    /// The branch that a file is on.
    pub fn branch(&self) -> Option<BranchIx> {
        match &self.state.lock().place {
            Place::File(file) => Some(file.branch),
            Place::Dir(dir) => dir.copies.first().map(|copy| copy.branch),
            Place::Nowhere => None,
        }
    }

    /// The file was moved to `branch`.
    pub(crate) fn moved_to(&self, branch: BranchIx) {
        if let Place::File(file) = &mut self.state.lock().place {
            file.branch = branch;
        }
    }

    /// The open file, if there is one.
    pub fn open_file(&self) -> Option<Arc<OpenFile>> {
        match &self.state.lock().place {
            Place::File(FilePlace { open: Some((open, _)), .. }) => Some(open.clone()),
            Place::File(_) | Place::Dir(_) | Place::Nowhere => None,
        }
    }

    /// It is about to be given a set-id bit or a capability, which strangers' writes must strip. Whoever opens it from now
    /// on knows, though the open may have looked at the mode before; whoever has it open is told: the open file.
    pub(crate) fn guard_set_id(&self) -> Option<Arc<OpenFile>> {
        let open = match &mut self.state.lock().place {
            Place::File(place) => {
                place.guarded = true;
                place.open.as_ref().map(|(open, _)| open.clone())
            }
            Place::Dir(_) | Place::Nowhere => None,
        };
        open.inspect(|open| open.set_strips(true))
    }

    /// One more handle on the open file; `open` makes it if this is the first.
    ///
    /// # Errors
    /// What `open` or `join` answered.
    pub fn open_with<E>(
        &self,
        join: impl FnOnce(&OpenFile) -> Result<(), E>,
        open: impl FnOnce() -> Result<Arc<OpenFile>, E>,
    ) -> Result<Arc<OpenFile>, E> {
        if let Some(file) = self.join_open(join)? {
            return Ok(file);
        }
        let fresh = open()?;
        let mut state = self.state.lock();
        let Place::File(place) = &mut state.place else { return Ok(fresh) };
        // Two first opens at once: the later one gives its own up. Both looked at the same inode.
        let (file, handles) = place.open.get_or_insert_with(|| (fresh.clone(), 0));
        *handles += 1;
        let file = file.clone();
        if place.guarded {
            file.set_strips(true);
        }
        drop(state);
        Ok(file)
    }

    fn join_open<E>(
        &self,
        join: impl FnOnce(&OpenFile) -> Result<(), E>,
    ) -> Result<Option<Arc<OpenFile>>, E> {
        let file = {
            let mut state = self.state.lock();
            let Place::File(FilePlace { open: Some((file, handles)), .. }) = &mut state.place else {
                return Ok(None);
            };
            *handles += 1;
            file.clone()
        };
        match join(&file) {
            Ok(()) => Ok(Some(file)),
            Err(error) => {
                self.close_handle();
                Err(error)
            }
        }
    }

    /// One handle less: gives the open file back if it was the last.
    pub fn close_handle(&self) -> Option<Arc<OpenFile>> {
        let mut state = self.state.lock();
        let Place::File(place) = &mut state.place else { return None };
        let (_, handles) = place.open.as_mut()?;
        *handles -= 1;
        if *handles == 0 { place.open.take().map(|(file, _)| file) } else { None }
    }

    // ---- directories ------------------------------------------------------------------------------

    /// The branches that have a copy of this directory, in order.
    pub fn copies(&self) -> SmallVec<[BranchIx; 4]> {
        self.with_dir(|dir| dir.copies.iter().map(|copy| copy.branch).collect()).unwrap_or_default()
    }

    /// Whether `branch` has a copy.
    pub fn is_on(&self, branch: BranchIx) -> bool {
        self.with_dir(|dir| dir.copies.iter().any(|copy| copy.branch == branch)).unwrap_or(false)
    }

    /// The branch's inode number of the copy there.
    pub fn copy_ino(&self, branch: BranchIx) -> Option<u64> {
        self.with_dir(|dir| dir.copies.iter().find(|copy| copy.branch == branch).map(|copy| copy.ino))?
    }

    /// Some branch that might have a copy, or a name in it, could not be asked.
    pub fn is_unsure(&self) -> bool {
        self.with_dir(|dir| dir.unsure != 0).unwrap_or(false)
    }

    /// When all branches were last asked for copies.
    pub fn checked(&self) -> Option<Instant> {
        self.with_dir(|dir| dir.checked)?
    }

    /// All branches were asked: these have copies.
    pub fn update_copies(&self, found: &Copies) {
        self.with_dir(|dir| dir.update(found));
    }

    /// A copy was made on `branch`; `order` tells where it belongs.
    pub fn add_copy(
        &self,
        branch: BranchIx,
        ino: u64,
        fd: Option<Arc<DirFd>>,
        order: impl Fn(BranchIx) -> usize,
    ) {
        self.with_dir(|dir| {
            dir.copies.retain(|copy| copy.branch != branch);
            let at = dir.copies.iter().take_while(|copy| order(copy.branch) < order(branch)).count();
            dir.copies.insert(at, Copy { branch, ino, fd, used: true });
        });
    }

    /// The copy on `branch` is gone.
    pub fn drop_copy(&self, branch: BranchIx) {
        self.with_dir(|dir| dir.copies.retain(|copy| copy.branch != branch));
    }

    /// `branch` is leaving the pool: what is remembered of it goes. Whether this was a file there, whose last
    /// knower this then is.
    pub(crate) fn leave(&self, branch: BranchIx) -> bool {
        let mut state = self.state.lock();
        match &mut state.place {
            Place::Dir(dir) => {
                dir.copies.retain(|copy| copy.branch != branch);
                dir.unsure &= !(1 << (branch.0 & 63));
                dir.checked = None;
                false
            }
            Place::File(file) => file.branch == branch,
            Place::Nowhere => false,
        }
    }

    /// It is on no branch any more. Whoever looks its name up again gets another object.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Relaxed);
        let mut state = self.state.lock();
        state.place = Place::Nowhere;
        state.ghost = None;
    }

    /// Whether its branch has left the pool.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// A branch was added: what all branches were asked for is to be asked again.
    pub(crate) fn doubt(&self) {
        self.with_dir(|dir| (dir.checked, dir.misses) = (None, [0; 2]));
    }

    /// The descriptor of the copy on `branch`, if it is open.
    pub fn cached_dirfd(&self, branch: BranchIx) -> Option<Arc<DirFd>> {
        self.with_dir(|dir| {
            let copy = dir.copies.iter_mut().find(|copy| copy.branch == branch)?;
            copy.used = true;
            copy.fd.clone()
        })?
    }

    /// Keeps `fd` as the descriptor of the copy on `branch`.
    pub fn keep_dirfd(&self, branch: BranchIx, fd: &Arc<DirFd>) {
        self.with_dir(|dir| {
            if let Some(copy) = dir.copies.iter_mut().find(|copy| copy.branch == branch) {
                copy.fd = Some(fd.clone());
                copy.used = true;
            }
        });
    }

    /// Closes the descriptor on `branch` unless it was used since the last call; true if it was.
    pub(crate) fn retire_dirfd(&self, branch: BranchIx) -> bool {
        // A locked inode is in use.
        let Some(mut state) = self.state.try_lock() else { return true };
        let Place::Dir(dir) = &mut state.place else { return false };
        let Some(copy) = dir.copies.iter_mut().find(|copy| copy.branch == branch) else { return false };
        if std::mem::take(&mut copy.used) {
            return true;
        }
        copy.fd = None;
        false
    }

    /// All branches were asked for `name` just now, and none has it.
    pub fn note_miss(&self, name: &CStr) {
        let hash = hash_name(self.id.ino, name.to_bytes()) | 1;
        self.with_dir(|dir| {
            if dir.missed.elapsed() >= MISS_AGE {
                (dir.misses, dir.missed) = ([hash, 0], Instant::now());
            } else if dir.misses[0] != hash {
                dir.misses = [hash, dir.misses[0]];
            }
        });
    }

    /// Whether `name` was just found missing everywhere; asked once.
    pub fn take_miss(&self, name: &CStr) -> bool {
        let hash = hash_name(self.id.ino, name.to_bytes()) | 1;
        self.with_dir(|dir| {
            let known = dir.misses.iter_mut().find(|miss| **miss == hash);
            known.map(|miss| *miss = 0).is_some() && dir.missed.elapsed() < MISS_AGE
        })
        .unwrap_or(false)
    }

    /// The directory is opened for listing in the state that `stamp` stands for (None: it cannot be told from later
    /// ones): whether the listing that the kernel keeps is of this state.
    pub(crate) fn keeps_listing(&self, stamp: Option<u64>) -> bool {
        self.with_dir(|dir| stamp.is_some() && std::mem::replace(&mut dir.listed, stamp) == stamp)
            .unwrap_or(false)
    }

    fn with_dir<T>(&self, f: impl FnOnce(&mut DirPlace) -> T) -> Option<T> {
        match &mut self.state.lock().place {
            Place::Dir(dir) => Some(f(dir)),
            Place::File(_) | Place::Nowhere => None,
        }
    }
}

impl Drop for Inode {
    /// Gives up the parents one by one: a chain of directories may be far deeper than a stack.
    fn drop(&mut self) {
        let mut pending: Vec<Name> = self.state.get_mut().names.drain(..).collect();
        while let Some(name) = pending.pop() {
            if let Some(mut last) = Arc::into_inner(name.parent) {
                pending.extend(last.state.get_mut().names.drain(..));
            }
        }
    }
}

impl DirPlace {
    /// Takes over what was found, and keeps the descriptors of copies that are still the same.
    fn update(&mut self, found: &Copies) {
        self.checked = Some(Instant::now());
        self.unsure = found.unsure;
        let same = self.copies.len() == found.found.len()
            && self.copies.iter().zip(&found.found).all(|(copy, new)| (copy.branch, copy.ino) == *new);
        if same {
            return;
        }
        let mut old = std::mem::take(&mut self.copies);
        self.copies = found
            .found
            .iter()
            .map(|&(branch, ino)| {
                let kept = old.iter_mut().find(|copy| copy.branch == branch && copy.ino == ino);
                Copy { branch, ino, fd: kept.and_then(|copy| copy.fd.take()), used: true }
            })
            .collect();
    }
}
