//! An inode: (parent, name) and the branches that hold it; never a path.
//!
//! Rename changes the parent and the name of one inode; whatever refers to it or lies below it follows.
//! A file is on one branch, the first in order that has the name. A directory has a copy on one or more.

mod changes;
pub(crate) mod clock;
mod copies;
mod copy_guards;
mod create_guard;
pub mod dirfd;
mod found_copies;
mod gone_mount;
pub(crate) mod handed;
mod kernel_listing;
pub mod location_cache;
mod mode_guard;
mod name;
pub mod table;
mod unlinked;

use std::sync::Arc;

use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::health::holder::ThreadInCalls;
use fsstack_identity::number::Identity;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use fsstack_sync::ranked::{INODE, Ranked};
use fsstack_sync::time::Instant;
use fsstack_sys::Kind;
use smallvec::SmallVec;

use crate::answer::Validity;
use crate::files::OpenFile;
use clock::Moment;
use copies::{Copy, DirCopies};
pub(crate) use copy_guards::AttributeGuard;
use copy_guards::CopyGuards;
pub(crate) use create_guard::CreateGuard;
pub use found_copies::Copies;
pub use kernel_listing::KeptListing;
use kernel_listing::KernelListing;
pub(crate) use mode_guard::ModeGuard;
pub use name::InodeName;

/// The file was open by passthrough for reading and writing: a shared mapping of it may outlive the descriptor.
const WAS_MAPPABLE: u32 = 1 << 31;

/// An object that the kernel knows by its number.
#[derive(Debug)]
pub struct Inode {
    /// Number and generation.
    pub id: Identity,
    /// Kind of object.
    pub kind: Kind,
    /// Its branch has left the pool.
    lost: AtomicBool,
    /// The file was open by passthrough: a mapping of it may outlive the descriptor. (The kernel does not forget the inode
    /// meanwhile.)
    was_past: AtomicBool,
    /// If it is a file: the branch was asked for an access ACL, and there is none.
    lacks_acl: AtomicBool,
    /// It was last seen with several links, of which some may be unknown.
    has_more_names: AtomicBool,
    /// It was made by `O_TMPFILE` with `O_EXCL`: it never gets a name.
    nameless: AtomicBool,
    /// When its attributes were last sent to the kernel, on the table's clock of milliseconds, which wraps.
    reported: AtomicU32,
    /// Names made in the directory by this daemon.
    born: AtomicU32,
    /// For a directory: how often changes of names in it were lost with a mount of a branch.
    losses: AtomicU32,
    /// Handles by passthrough for reading and writing, if it is a file, and [`WAS_MAPPABLE`].
    mappable: AtomicU32,
    /// Order: one inode's state at a time; no system call that waits for another inode's lock below it.
    state: Ranked<InodeState, INODE>,
}

#[derive(Debug, Default)]
struct InodeState {
    names: SmallVec<[InodeName; 1]>,
    location: Location,
    /// Kept when a name was removed: see [`Inode::keep_unlinked`].
    unlinked_fd: Option<Arc<DirFd>>,
}

#[derive(Debug, Default)]
enum Location {
    #[default]
    Nowhere,
    File(FileLocation),
    /// Apart: there are far more files than directories.
    Dir(Box<DirCopies>),
}

#[derive(Debug)]
struct FileLocation {
    branch: BranchIx,
    /// How often it was moved: what was opened before a move is not the file.
    moves: u32,
    /// The open file and the number of its handles.
    open: Option<(Arc<OpenFile>, usize)>,
    /// It got a set-id bit or a capability, which an open that checked it before must learn.
    guarded: bool,
    /// The thread that changes its mode: see [`Inode::claim_mode`].
    mode_holder: Option<ThreadInCalls>,
}

impl Inode {
    /// A file (anything but a directory) on `branch`.
    pub fn file(id: Identity, kind: Kind, branch: BranchIx) -> Self {
        let location =
            Location::File(FileLocation { branch, moves: 0, open: None, guarded: false, mode_holder: None });
        Self::new(id, kind, location)
    }

    /// A directory.
    pub fn dir(id: Identity, copies: &Copies) -> Self {
        let now = Instant::now();
        let mut location = DirCopies {
            copies: SmallVec::new(),
            unsure: u64::MAX,
            invalidated: Moment::NEVER,
            settled: Moment::NEVER,
            checked: None,
            misses: [0; 2],
            missed: now,
            kept: KernelListing::default(),
            copy_guards: CopyGuards::default(),
            creating: SmallVec::new(),
        };
        location.update(copies);
        Self::new(id, Kind::Dir, Location::Dir(Box::new(location)))
    }

    fn new(id: Identity, kind: Kind, location: Location) -> Self {
        let state = Ranked::new(InodeState { names: SmallVec::new(), location, unlinked_fd: None });
        Self {
            id,
            kind,
            lost: AtomicBool::new(false),
            was_past: AtomicBool::new(false),
            lacks_acl: AtomicBool::new(false),
            has_more_names: AtomicBool::new(false),
            nameless: AtomicBool::new(false),
            reported: AtomicU32::new(0),
            born: AtomicU32::new(0),
            losses: AtomicU32::new(0),
            mappable: AtomicU32::new(0),
            state,
        }
    }

    /// The root of the pool, whose copies are the branches' own roots.
    pub fn root(roots: impl Iterator<Item = (BranchIx, u64, Arc<DirFd>)>) -> Self {
        let id = Identity { ino: Ino::ROOT, generation: 0 };
        let root = Self::dir(id, &Copies::known([]));
        if let Location::Dir(dir) = &mut root.state.lock().location {
            dir.copies = roots
                .map(|(branch, ino, fd)| Copy {
                    branch,
                    ino,
                    fd: Some(fd),
                    used: true,
                    reported: None,
                    given: Moment::NEVER,
                    changed: None,
                    lacks_acl: false,
                })
                .collect();
        }
        root
    }

    /// Records that its attributes are sent to the kernel at `now`.
    pub(crate) fn tell(&self, now: u32) {
        self.reported.store(now, Relaxed);
    }

    /// Milliseconds before `now` since its attributes were last sent to the kernel.
    pub(crate) fn reported_before(&self, now: u32) -> u32 {
        now.wrapping_sub(self.reported.load(Relaxed))
    }

    /// Whether it was last seen with several links, of which some may be unknown.
    pub(crate) fn has_more_names(&self) -> bool {
        self.has_more_names.load(Relaxed)
    }

    /// It was seen with so many links.
    pub(crate) fn note_links(&self, links: u32) {
        self.has_more_names.store(links > 1, Relaxed);
    }

    /// It never gets a name.
    pub(crate) fn gets_no_name(&self) {
        self.nameless.store(true, Relaxed);
    }

    /// Whether [`Self::gets_no_name`] was called.
    pub(crate) fn never_gets_name(&self) -> bool {
        self.nameless.load(Relaxed)
    }

    /// The branch was asked for its access ACL, and there is none.
    pub(crate) fn note_without_acl(&self) {
        self.lacks_acl.store(true, Relaxed);
    }

    /// Whether [`Self::note_without_acl`] was called.
    pub(crate) fn lacks_acl(&self) -> bool {
        self.lacks_acl.load(Relaxed)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Dir
    }

    /// Whether it is the pool's root.
    pub fn is_root(&self) -> bool {
        self.id.ino == Ino::ROOT
    }

    // ---- files ------------------------------------------------------------------------------------

    /// The branch that a file is on.
    pub fn branch(&self) -> Option<BranchIx> {
        match &self.state.lock().location {
            Location::File(file) => Some(file.branch),
            Location::Dir(dir) => dir.copies.first().map(|copy| copy.branch),
            Location::Nowhere => None,
        }
    }

    /// The file was moved to `branch`.
    pub(crate) fn moved_to(&self, branch: BranchIx) {
        let mut state = self.state.lock();
        if let Location::File(file) = &mut state.location {
            file.branch = branch;
            file.moves = file.moves.wrapping_add(1);
            // The object on the former branch is not the file any more.
            state.unlinked_fd = None;
        }
    }

    /// The file was found on `branch` by this thread's lookup: the object that it opens there is the file.
    pub(crate) fn found_on(&self, branch: BranchIx) {
        let mut state = self.state.lock();
        if let Location::File(file) = &mut state.location
            && file.branch != branch
        {
            file.branch = branch;
            state.unlinked_fd = None;
        }
    }

    fn moves(&self) -> u32 {
        match &self.state.lock().location {
            Location::File(file) => file.moves,
            Location::Dir(_) | Location::Nowhere => 0,
        }
    }

    /// A name of the file is about to go: handles that have it open go on with it.
    pub(crate) fn outlives_name(&self) {
        if let Some(file) = self.open_file() {
            file.outlives_name();
        }
    }

    /// The open file, if there is one.
    pub fn open_file(&self) -> Option<Arc<OpenFile>> {
        match &self.state.lock().location {
            Location::File(FileLocation { open: Some((open, _)), .. }) => Some(open.clone()),
            Location::File(_) | Location::Dir(_) | Location::Nowhere => None,
        }
    }

    /// It is about to get a set-id bit or a capability, which strangers' writes must strip. Later opens know, though they
    /// may have read the mode before; for earlier ones the open file is returned, to be informed.
    pub(crate) fn guard_set_id(&self) -> Option<Arc<OpenFile>> {
        let open = match &mut self.state.lock().location {
            Location::File(location) => {
                location.guarded = true;
                location.open.as_ref().map(|(open, _)| open.clone())
            }
            Location::Dir(_) | Location::Nowhere => None,
        };
        open.inspect(|open| open.set_strips(true))
    }

    /// One more handle on the open file; `open` makes it if this is the first, else `join` sees to it that it does for
    /// this one, too. Another thread may open, move and close the file while `open` is at work: its result is then a
    /// file without a name, and it is asked once more.
    ///
    /// # Errors
    /// What `open` or `join` answered.
    pub fn open_with<E>(
        &self,
        join: impl Fn(&OpenFile) -> Result<(), E>,
        open: impl FnMut() -> Result<Arc<OpenFile>, E>,
    ) -> Result<Arc<OpenFile>, E> {
        self.open_since(self.moves(), join, open)
    }

    /// Like [`Self::open_with`]: the first result of `open` was opened when the file had moved `moves` times.
    ///
    /// # Errors
    /// As those of [`Self::open_with`].
    pub(crate) fn open_since<E>(
        &self,
        mut moves: u32,
        join: impl Fn(&OpenFile) -> Result<(), E>,
        mut open: impl FnMut() -> Result<Arc<OpenFile>, E>,
    ) -> Result<Arc<OpenFile>, E> {
        loop {
            if let Some(file) = self.join_open(&join)? {
                return Ok(file);
            }
            let fresh = open()?;
            let mut state = self.state.lock();
            let Location::File(location) = &mut state.location else { return Ok(fresh) };
            if location.open.is_none() && location.moves != moves {
                moves = location.moves;
                drop(state);
                OpenFile::dispose(fresh);
                continue;
            }
            // Two first opens at once: the later one gives its own up. Both looked at the same inode.
            let (file, handles) = location.open.get_or_insert_with(|| (fresh.clone(), 0));
            *handles += 1;
            let file = file.clone();
            if location.guarded {
                file.set_strips(true);
            }
            drop(state);
            return if Arc::ptr_eq(&file, &fresh) { Ok(file) } else { self.joined(file, &join) };
        }
    }

    fn join_open<E>(&self, join: &impl Fn(&OpenFile) -> Result<(), E>) -> Result<Option<Arc<OpenFile>>, E> {
        let file = {
            let mut state = self.state.lock();
            let Location::File(FileLocation { open: Some((file, handles)), .. }) = &mut state.location else {
                return Ok(None);
            };
            *handles += 1;
            file.clone()
        };
        self.joined(file, join).map(Some)
    }

    /// `file` if `join` takes it; else the handle that was counted is closed.
    fn joined<E>(
        &self,
        file: Arc<OpenFile>,
        join: &impl Fn(&OpenFile) -> Result<(), E>,
    ) -> Result<Arc<OpenFile>, E> {
        match join(&file) {
            Ok(()) => Ok(file),
            Err(error) => {
                self.close_handle();
                Err(error)
            }
        }
    }

    /// It is opened by passthrough, or beside it, and can be mapped by the handle past the daemon.
    pub(crate) fn opened_past(&self) {
        self.was_past.store(true, SeqCst);
    }

    /// Whether it was ever open by passthrough.
    pub(crate) fn was_past(&self) -> bool {
        self.was_past.load(SeqCst)
    }

    /// One more handle by passthrough for reading and writing, so that the file can be mapped and stored into.
    pub(crate) fn opened_mappable(&self) {
        self.mappable.fetch_add(1, SeqCst);
    }

    /// One such handle less.
    pub(crate) fn closed_mappable(&self) {
        // The mark first: between the two the kernel must not get permission to keep attributes.
        self.mappable.fetch_or(WAS_MAPPABLE, SeqCst);
        let before = self.mappable.fetch_sub(1, SeqCst);
        debug_assert!(before & !WAS_MAPPABLE > 0, "a handle was closed that was not open");
    }

    /// The kernel may know it from a daemon before this one: it may be open by passthrough or mapped.
    pub(super) fn is_from_before(&self) {
        if self.kind == Kind::File {
            self.was_past.store(true, SeqCst);
            self.mappable.fetch_or(WAS_MAPPABLE, SeqCst);
        }
    }

    /// How long the kernel may keep attributes of it.
    pub(crate) fn validity(&self) -> Validity {
        match self.mappable.load(SeqCst) {
            0 => Validity::Full,
            WAS_MAPPABLE => Validity::Brief,
            _ => Validity::None,
        }
    }

    /// Counts one more handle on `file` if it is the open file: it stays so until [`Self::close_handle`].
    pub(crate) fn keep_open(&self, file: &Arc<OpenFile>) -> bool {
        let mut state = self.state.lock();
        let Location::File(FileLocation { open: Some((open, handles)), .. }) = &mut state.location else {
            return false;
        };
        let is_it = Arc::ptr_eq(open, file);
        *handles += usize::from(is_it);
        is_it
    }

    /// One handle less: gives the open file back if it was the last.
    pub fn close_handle(&self) -> Option<Arc<OpenFile>> {
        let mut state = self.state.lock();
        let Location::File(location) = &mut state.location else { return None };
        let (_, handles) = location.open.as_mut()?;
        *handles -= 1;
        if *handles == 0 { location.open.take().map(|(file, _)| file) } else { None }
    }
}

impl Drop for Inode {
    /// Gives up the parents one by one: a chain of directories may be far deeper than a stack.
    fn drop(&mut self) {
        let mut pending: Vec<InodeName> = self.state.get_mut().names.drain(..).collect();
        while let Some(name) = pending.pop() {
            if let Some(mut last) = Arc::into_inner(name.parent) {
                pending.extend(last.state.get_mut().names.drain(..));
            }
        }
    }
}
