//! The pool's identity of an object on a branch.
//!
//! Mostly branch and inode number are the identity. A file that was moved here keeps its former one, which the index or its
//! mark tells. The branch that it was moved from may use its inode number again: the new object gets another number in the
//! pool while the moved one lives.

use std::ffi::CStr;
use std::os::fd::AsFd;

use fsstack_branch::branch::Branch;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_identity::index::{IndexEntry, birth, learn_further};
use fsstack_identity::mark;
use fsstack_identity::number::{self, Identity};
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Stat};
use smallvec::SmallVec;

use crate::inode::Inode;
use crate::member::Member;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::resolve::DirStats;

/// Entries that are looked at beside one whose object is gone, and how many of them in turn may be of objects that are not.
const NEIGHBOURS: usize = 256;
const LIVING: usize = 4;

impl Tree {
    /// The identity of the object with the attributes `stat`, as [`Branch::stat`] gave them. For a directory, that of the copy:
    /// see [`Tree::dir_identity`].
    pub(crate) fn identity(&self, pool: &Pool, branch: &Member, stat: &Stat) -> Identity {
        let natural = number::identity(branch, stat);
        if let Some((ino, generation)) = stat.alias {
            let id = Identity { ino: Ino(ino), generation };
            if self.index.known(natural.ino, birth(stat)) != Some(id) {
                self.index.learn_file(id, natural.ino, birth(stat));
            }
            return id;
        }
        // The ordinary case: nothing like it was ever moved.
        if self.index.knows_nothing_of(natural.ino) || stat.is_dir() {
            return natural;
        }
        if let Some(id) = self.index.known(natural.ino, birth(stat)) {
            return id;
        }
        // It may have just failed: then the object is checked again, with its mark.
        if branch.asks_marks()
            && let Ok(Some((_, again))) = self.open_raw(branch, stat.ino)
            && let Some((ino, generation)) = again.alias.filter(|_| birth(&again) == birth(stat))
        {
            let id = Identity { ino: Ino(ino), generation };
            self.index.learn_file(id, natural.ino, birth(stat));
            return id;
        }
        if !self.is_taken(pool, natural, (branch, stat), &[]) {
            return natural;
        }
        let marked = self.open_to_mark(branch, stat, mark::FILE);
        let had = marked.mark();
        // The mark of one whose row was lost by a kill says which number it was given.
        let own = had.filter(|had| branch.by_number.is_some() && number::is_further(natural, *had));
        let further = own.or_else(|| further_number(self, pool, natural, (branch, stat)));
        let other = further.unwrap_or_else(|| number::another(natural));
        // One without a name was just made.
        if matches!(marked, OpenedToMark::Gone) && stat.nlink > 0 {
            return other;
        }
        match further {
            Some(further) => learn_further(&self.index, branch, further, natural.ino, birth(stat)),
            None => _ = self.index.note_files(branch, &[(other, natural.ino, birth(stat))]),
        }
        let is_marked = mark_other(branch, stat, mark::FILE, other, marked);
        if further.is_some() && !is_marked {
            self.index.settle(natural.ino);
        }
        other
    }

    /// Like [`Self::identity`], for the object of `on`, which was just made on `branch` and is unknown.
    pub(crate) fn new_identity(&self, pool: &Pool, branch: &Member, stat: &Stat, on: On<'_>) -> Identity {
        self.other_for_new(pool, branch, stat, on).unwrap_or_else(|| self.identity(pool, branch, stat))
    }

    /// Another number for a new object while not all marks are known: its own may be that of a moved object that is not found
    /// yet. It keeps that number. None: it needs none, or cannot be marked.
    pub(crate) fn other_for_new(
        &self,
        pool: &Pool,
        branch: &Member,
        stat: &Stat,
        on: On<'_>,
    ) -> Option<Identity> {
        if !self.index.may_lack(pool.marked()) {
            return None;
        }
        let natural = number::identity(branch, stat);
        let other = number::another(natural);
        let which = if stat.is_dir() { mark::DIR } else { mark::FILE };
        if stat.is_dir() {
            self.index.note_dir(branch, other, natural.ino);
        } else {
            // On disk before the mark: after a crash a branch counts as one whose marks of files are all in the index.
            self.index.note_files(branch, &[(other, natural.ino, birth(stat))]);
        }
        // The calling thread may have requested it.
        let marked = branch.ask(|| mark::put(on, which, other, stat.ino));
        if marked.is_err() {
            self.index.forget(other, Some(natural.ino));
        }
        marked.is_ok().then_some(other)
    }

    /// Like [`Self::identity`], for a directory whose copies are `siblings`. If the directory is known by this one, [`Self::keep_other`]
    /// records it: a row of a number that nothing is known by would stay when the copy goes.
    pub(crate) fn copy_identity(
        &self,
        pool: &Pool,
        branch: &Member,
        stat: &Stat,
        siblings: &DirStats,
    ) -> Identity {
        let natural = number::identity(branch, stat);
        if self.index.knows_nothing_of(natural.ino) && !is_of_another_live(self, natural, branch, stat) {
            return natural;
        }
        let copies: Vec<Ino> =
            siblings.iter().map(|(at, stat)| number::number(pool.branch(*at), stat.dev, stat.ino)).collect();
        if !self.is_taken(pool, natural, (branch, stat), &copies) {
            return natural;
        }
        number::another(natural)
    }

    /// The directory with the copy `stat` on `branch` is known by `id`. If the copy has that number instead of its own, the index and its
    /// mark keep it.
    pub(crate) fn keep_other(&self, branch: &Member, stat: &Stat, id: Identity) {
        let natural = number::identity(branch, stat);
        if number::another(natural) != id || !self.index.guard_dir(branch, id, natural.ino) {
            return;
        }
        match self.open_to_mark(branch, stat, mark::DIR) {
            // It was removed since it was seen, and the index may have forgotten it before.
            OpenedToMark::Gone => self.index.forget(id, Some(natural.ino)),
            marked => _ = mark_other(branch, stat, mark::DIR, id, marked),
        }
    }

    /// The object of `stat` on `branch`, to be marked.
    fn open_to_mark(&self, branch: &Member, stat: &Stat, which: &CStr) -> OpenedToMark {
        // On a file system that is mounted below the root the number means another object, or none.
        let is_on_root = branch.by_number.is_some() && stat.dev == branch.dev();
        let (fd, there) = match self.open_raw(branch, stat.ino) {
            Ok(Some(found)) => found,
            Ok(None) if is_on_root => return OpenedToMark::Gone,
            Ok(None) | Err(_) => return OpenedToMark::Unknown,
        };
        if birth(&there) != birth(stat) {
            return if is_on_root { OpenedToMark::Gone } else { OpenedToMark::Unknown };
        }
        let marked = branch.ask(|| mark::read(On::Fd(fd.as_fd()), which, stat.ino));
        marked.map_or(OpenedToMark::Unknown, |marked| OpenedToMark::Open(fd, marked))
    }

    /// Another object lives that is known by the number `natural`, other than by being at one of `own`.
    ///
    /// If none does the object gets that number for good. A former one may be on a branch that goes away later, and then it is not
    /// known any more whether it lives: so the index forgets it now, and the number stays with an object that is in use.
    fn is_taken(
        &self,
        pool: &Pool,
        natural: Identity,
        (branch, stat): (&Member, &Stat),
        own: &[Ino],
    ) -> bool {
        if is_of_another_live(self, natural, branch, stat) {
            return true;
        }
        if !self.has_left(pool, natural)
            && self.inodes.get(natural.ino).is_some_and(|live| live.id == natural)
        {
            return false;
        }
        let mut gone: Vec<(Identity, Option<Ino>)> = Vec::new();
        let mut were_at: SmallVec<[Option<BranchIx>; 2]> = SmallVec::new();
        let is_taken =
            self.index.places(natural.ino).into_iter().any(|IndexEntry { id, naturals, .. }| {
                let is_another = id.generation != natural.generation;
                if !is_another && !self.has_left(pool, natural) || naturals.iter().any(|at| own.contains(at))
                {
                    return false;
                }
                let lives = naturals.iter().any(|at| self.lives_at(pool, id, *at));
                if is_another && !lives {
                    gone.push((id, None));
                    were_at.extend(naturals.iter().map(|at| pool.branch_of(*at)));
                }
                lives
            });
        if !gone.is_empty() && !is_taken {
            gone.extend(gone_beside(self, pool, natural.ino, &were_at));
        }
        self.index.forget_each(&gone);
        if !is_taken {
            self.index.settle(natural.ino);
        }
        is_taken
    }

    /// True if the branch cannot distinguish objects with one number (it has neither generations nor birth times), and the one
    /// known by this number was moved away. While it is being moved it is that one.
    fn has_left(&self, pool: &Pool, natural: Identity) -> bool {
        if natural.generation != 0 {
            return false;
        }
        let Some(live) = self.inodes.get(natural.ino).filter(|live| live.id == natural) else { return true };
        let at = pool.branch_of(natural.ino);
        let own = at.zip(number::inode_of(natural.ino));
        live.branch() != at || own.is_some_and(|(at, ino)| has_come_back(&live, pool.branch(at), ino))
    }

    /// Whether the object `id` is where its number would be `natural`. If that cannot be known, true.
    pub(super) fn lives_at(&self, pool: &Pool, id: Identity, natural: Ino) -> bool {
        let (Some(at), Some(inode)) = (pool.branch_of(natural), number::inode_of(natural)) else {
            return !self.index.is_of_a_gone_branch(natural);
        };
        let branch = pool.branch(at);
        if branch.by_number.is_none() {
            return true;
        }
        match self.open_raw(branch, inode) {
            Ok(None) => false,
            Ok(Some((fd, stat))) if stat.is_dir() => {
                let marked = branch.ask(|| mark::read(On::Fd(fd.as_fd()), mark::DIR, stat.ino));
                marked.is_ok_and(|marked| marked.is_some_and(|marked| marked.ino == id.ino))
                    || marked.is_err()
            }
            Ok(Some((_, stat))) => {
                stat.alias == Some((id.ino.0, id.generation))
                    || self.index.known(natural, birth(&stat)) == Some(id)
            }
            Err(_) => true,
        }
    }

    /// `d_ino` of an entry that a listing of `dir` gives the inode number of, if that is enough.
    pub(crate) fn plain_number(&self, branch: &Member, inode: u64) -> Option<Ino> {
        let natural = number::number(branch, branch.dev(), inode);
        let plain = !branch.asks_marks() && self.index.knows_nothing_of(natural);
        plain.then_some(natural)
    }

    /// A name of the object `id` was removed: after the last, the index forgets it.
    pub(crate) fn forget_removed(&self, pool: &Pool, id: Identity) {
        for IndexEntry { id: known, naturals, .. } in self.index.places(id.ino) {
            if known == id && !naturals.iter().any(|at| self.lives_at(pool, id, *at)) {
                // A file may have got a further number since the removal began.
                settle(self, id.ino);
                self.index.forget(id, None);
            }
        }
    }

    /// Records in the index that the object of `copy`, which has no name yet, is on `branch` too. On disk when this returns; the record
    /// of the move is so already, and its settling takes this back if the copy has got no name.
    ///
    /// # Errors
    /// EIO if neither mark nor index would have it.
    pub(crate) fn note_moved(&self, branch: &Member, copy: &MarkedCopy) -> Result<()> {
        let MarkedCopy { id, natural, .. } = *copy;
        // An index that fails is made anew: once more.
        let noted = (0..2).any(|_| self.index.note_files(branch, &[(id, natural, birth(&copy.made))]));
        let lasts = copy.is_marked || self.index.lasts() || !self.index.exports();
        if noted && lasts {
            return Ok(());
        }
        tracing::warn!(branch = %branch.path.display(), "relocation to this branch refused: the file's inode number could not be recorded");
        self.index.forget_places(&[copy.place()]);
        Err(OpError::UNSURE)
    }
}

/// Object that is to be marked.
enum OpenedToMark {
    /// Its descriptor and mark.
    Open(MountedFd, Option<Identity>),
    /// It has no name any more, or had none yet.
    Gone,
    /// It cannot be marked, or its mark not be read.
    Unknown,
}

impl OpenedToMark {
    fn mark(&self) -> Option<Identity> {
        match self {
            Self::Open(_, marked) => *marked,
            Self::Gone | Self::Unknown => None,
        }
    }
}

/// Copy of a file that moves, marked as that file if its branch takes marks.
pub(crate) struct MarkedCopy {
    id: Identity,
    pub(crate) made: Stat,
    /// Number that it would have without the mark.
    natural: Ino,
    is_marked: bool,
}

impl MarkedCopy {
    /// Marks the file behind `fd` on `branch`, with the attributes `made`, as the object `id`.
    pub(crate) fn mark(branch: &Branch, fd: impl AsFd, made: Stat, id: Identity) -> Self {
        let natural = number::number(branch, made.dev, made.ino);
        let is_marked = branch.ask(|| mark::put(On::Fd(fd.as_fd()), mark::FILE, id, made.ino)).is_ok();
        Self { id, made, natural, is_marked }
    }

    /// Its place, as [`fsstack_identity::index::Index::forget_places`] takes it.
    pub(crate) fn place(&self) -> (Ino, u32) {
        (self.natural, birth(&self.made))
    }
}

/// Entries of objects that are gone, with the numbers that follow `ino`: what was removed together had inode numbers side by side, and
/// what is made in their place gets them one after the other. So the index forgets them with one write to disk. No branch is asked but
/// that of `ino` and those of `were_at`, where an object is gone from.
fn gone_beside(
    tree: &Tree,
    pool: &Pool,
    ino: Ino,
    were_at: &[Option<BranchIx>],
) -> Vec<(Identity, Option<Ino>)> {
    let mut gone = Vec::new();
    let Some(at) = pool.branch_of(ino).filter(|at| pool.branch(*at).by_number.is_some()) else { return gone };
    let branch = pool.branch(at);
    // If that cannot be known, it is.
    let is_there = |id: Identity| {
        let found = number::inode_of(id.ino).and_then(|inode| tree.open_raw(branch, inode).ok());
        found.is_none_or(|found| found.is_some_and(|(_, stat)| number::identity(branch, &stat) == id))
    };
    let mut living = 0;
    for id in tree.index.some(ino.0.saturating_add(1), NEIGHBOURS) {
        if living == LIVING || pool.branch_of(id.ino) != Some(at) {
            break;
        }
        living += 1;
        // One that is open, or held, may have no name. Where it may be moved from is looked at before its entry is read.
        if tree.inodes.get(id.ino).is_some() || is_there(id) {
            continue;
        }
        let entries = tree.index.places(id.ino).into_iter().filter(|entry| entry.id == id);
        for IndexEntry { naturals, .. } in entries {
            let is_gone = |at: &Ino| were_at.contains(&pool.branch_of(*at)) && !tree.lives_at(pool, id, *at);
            if naturals.iter().all(is_gone) {
                // A place that it is given meanwhile stays.
                gone.extend(naturals.into_iter().map(|at| (id, Some(at))));
                living = 0;
            }
        }
    }
    gone
}

/// The object of `stat` on `branch`, which was opened as `marked`, is known by `other`, whose number leads nowhere by itself: a lost index
/// is rebuilt from the marks, and the object that it is distinguished from may be gone by then. False: its mark does not say so.
fn mark_other(branch: &Member, stat: &Stat, which: &CStr, other: Identity, marked: OpenedToMark) -> bool {
    match marked {
        _ if !branch.is_writable() => false,
        OpenedToMark::Open(fd, None) => {
            branch.ask(|| mark::put(On::Fd(fd.as_fd()), which, other, stat.ino)).is_ok()
        }
        OpenedToMark::Open(_, marked) => marked == Some(other),
        OpenedToMark::Gone | OpenedToMark::Unknown => false,
    }
}

/// Whether a live object is known by the number `natural`, and is not where the object `stat` on `branch` is: it was moved away, or
/// is a directory that lost its copy there. It may have no name any more, and be open.
fn is_of_another_live(tree: &Tree, natural: Identity, branch: &Member, stat: &Stat) -> bool {
    let Some(live) = tree.inodes.get(natural.ino) else { return false };
    if live.id.generation == natural.generation {
        return false;
    }
    // One that was there had this inode number before.
    match live.is_dir() {
        true => live.copy_ino(branch.ix) != Some(stat.ino),
        false => live.branch() != Some(branch.ix) || has_come_back(&live, branch, stat.ino),
    }
}

/// Whether the live file is on `branch`, and its inode number there is not `ino`: it was moved away and back. Known of files that are
/// open or held. Others have names, and the index has them; so has it those that are being moved.
fn has_come_back(live: &Inode, branch: &Branch, ino: u64) -> bool {
    let own = match (live.open_file(), live.unlinked_fd()) {
        (Some(file), _) => {
            file.object_there().filter(|(at, _)| *at == branch.ix).map(|(_, object)| object.at.1)
        }
        (None, Some(fd)) if fd.mount_generation == branch.mount_generation() => {
            branch.ask(|| sys::at::stat_fd(fd.as_fd())).ok().map(|stat| stat.ino)
        }
        (None, _) => None,
    };
    own.is_some_and(|own| own != ino)
}

/// A further number of the file with the attributes `stat` that needs no row on disk: it leads to the file, and follows from moved files
/// that have its natural number, and the further ones before it, for as long as those live.
fn further_number(
    tree: &Tree,
    pool: &Pool,
    natural: Identity,
    (branch, stat): (&Member, &Stat),
) -> Option<Identity> {
    // While marks are read a moved file may have its row in memory only. A directory may go while the tree is locked.
    if branch.by_number.is_none() || pool.marked().any(|branch| branch.asks_marks()) {
        return None;
    }
    let is_moved_file = |IndexEntry { id, naturals, .. }: &IndexEntry| {
        id.generation != natural.generation && naturals.iter().any(|at| tree.lives_at(pool, *id, *at))
    };
    let is_moved_files =
        |ino| tree.index.places(ino).iter().any(|entry| !entry.is_dir() && is_moved_file(entry));
    let mut taken = natural;
    for number in number::further(natural) {
        if !is_moved_files(taken.ino) {
            return None;
        }
        if !tree.is_taken(pool, number, (branch, stat), &[]) {
            return Some(number);
        }
        taken = number;
    }
    None
}

/// The moved file `id` is about to be gone. A file in its place that has a further number because of it keeps that one, after a crash
/// too: its mark has the number, and the index may have lost it in the last second before the crash.
pub(super) fn keep_further(tree: &Tree, pool: &Pool, id: Identity) {
    let there = pool.branch_of(id.ino).zip(number::inode_of(id.ino));
    if let Some((at, inode)) = there
        && let branch = pool.branch(at)
        && let Ok(Some((fd, stat))) = tree.open_raw(branch, inode)
        && let natural = number::identity(branch, &stat)
        && let Ok(Some(marked)) = branch.ask(|| mark::read(On::Fd(fd.as_fd()), mark::FILE, stat.ino))
        && number::is_further(natural, marked)
        && tree.index.known(natural.ino, birth(&stat)) != Some(marked)
    {
        learn_further(&tree.index, branch, marked, natural.ino, birth(&stat));
    }
    settle(tree, id.ino);
}

/// The object with the number `ino` is about to be gone: what the index has learned of a file in its place is on disk when this
/// returns, and what it has forgotten of the number.
pub(super) fn settle(tree: &Tree, ino: Ino) {
    tree.index.settle(number::natural_of(ino));
    tree.index.settle(ino);
}
