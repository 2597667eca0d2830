//! The inodes that the kernel knows, each with the number of lookups that it has not forgotten.
//!
//! A lookup that finds an inode and a FORGET that takes its last count may meet: both change the count
//! under the lock of the table's shard, so that the inode is either still there for the lookup or made anew.
//!
//! In a daemon that follows a dead one the kernel has lookups that the table has not counted, and forgets more than are counted.
//! Holds of jobs are counted separately: an object has one inode while a job moves it, whatever the kernel forgets.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use dashmap::mapref::entry::Entry;
use fsstack_identity::number::{Identity, NumberMap};
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::Kind;

use super::Inode;

/// Directories remembered aside before the first look for those that are gone.
const ASIDE: usize = 4096;

/// Inodes that go between two looks at the table's size.
const THOUGHT: usize = 2048;

/// The table.
#[derive(Debug)]
pub struct Table {
    root: Arc<Inode>,
    pub(super) slots: NumberMap<Slot>,
    /// Directories that the kernel does not know, or not any more, but that others lie in. One directory is one
    /// inode: what is renamed later is what its children refer to.
    /// Order: taken under the shard of `slots` that has the number.
    aside: NumberMap<Weak<Inode>>,
    /// How many may be aside before those that are gone are cleared.
    aside_limit: AtomicUsize,
    /// Directories that have lost the copy that gave their number, by the numbers that their copies would give.
    by_copies: NumberMap<Weak<Inode>>,
    by_copies_limit: AtomicUsize,
    removed: AtomicUsize,
    born: Instant,
    /// The kernel knows inodes from before this table: of none is the number of lookups known.
    is_uncertain: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) inode: Arc<Inode>,
    /// Lookups that the kernel has not forgotten. If the table is uncertain it may have more, or some though none is counted.
    pub(super) lookups: u64,
    /// How often jobs hold it ([`Table::hold`]).
    pub(super) holds: u32,
}

impl Table {
    /// A table with the root, which is never forgotten.
    pub fn new(root: Inode) -> Self {
        Self {
            root: Arc::new(root),
            slots: NumberMap::default(),
            aside: NumberMap::default(),
            aside_limit: AtomicUsize::new(ASIDE),
            by_copies: NumberMap::default(),
            by_copies_limit: AtomicUsize::new(ASIDE),
            removed: AtomicUsize::new(0),
            born: Instant::now(),
            is_uncertain: AtomicBool::new(false),
        }
    }

    /// The kernel knows inodes that are not in the table, from a daemon before this one.
    pub(crate) fn is_of_a_later_daemon(&self) {
        self.is_uncertain.store(true, Relaxed);
    }

    /// Whether the kernel may know inodes that are not in the table.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.is_uncertain.load(Relaxed)
    }

    /// The inode `id`, which the kernel knows from before; made by `make` if it is not in the table.
    pub(crate) fn known_from_before(
        &self,
        id: Identity,
        kind: Kind,
        make: impl FnOnce() -> Inode,
    ) -> Arc<Inode> {
        if id.ino == Ino::ROOT {
            return self.root.clone();
        }
        match self.slots.entry(id.ino.0) {
            Entry::Occupied(mut known) => {
                let slot = known.get_mut();
                slot.lookups = slot.lookups.max(1);
                slot.inode.clone()
            }
            Entry::Vacant(free) => {
                let inode = self.take_aside(id, kind).unwrap_or_else(|| Arc::new(make()));
                inode.is_from_before();
                free.insert(Slot { inode: inode.clone(), lookups: 1, holds: 0 });
                inode
            }
        }
    }

    /// The inode `ino`, which the kernel has sent a request for: so it knows it.
    pub(crate) fn requested(&self, ino: Ino) -> Option<Arc<Inode>> {
        if !self.is_uncertain() || ino == Ino::ROOT {
            return self.get(ino);
        }
        let mut slot = self.slots.get_mut(&ino.0)?;
        slot.lookups = slot.lookups.max(1);
        Some(slot.inode.clone())
    }

    /// Turns as many lookups of `ino` that were not the kernel's into a hold: the inode stays until [`Self::release`].
    pub(crate) fn hold(&self, ino: Ino, lookups: u64) -> Option<Arc<Inode>> {
        if ino == Ino::ROOT {
            return Some(self.root.clone());
        }
        let mut slot = self.slots.get_mut(&ino.0)?;
        slot.lookups = slot.lookups.saturating_sub(lookups);
        slot.holds += 1;
        Some(slot.inode.clone())
    }

    /// Ends a hold of `ino`. Returns as [`Self::forget`].
    pub(crate) fn release(&self, ino: Ino) -> bool {
        self.take(ino, |slot| slot.holds = slot.holds.saturating_sub(1))
    }

    /// The root.
    pub fn root(&self) -> &Arc<Inode> {
        &self.root
    }

    /// The inode that the kernel calls `ino`.
    pub fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        if ino == Ino::ROOT {
            return Some(self.root.clone());
        }
        self.slots.get(&ino.0).map(|slot| slot.inode.clone())
    }

    /// The directory `ino`, also if the kernel does not know it.
    pub(super) fn any_dir(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.get(ino).or_else(|| self.aside.get(&ino.0)?.upgrade())
    }

    /// The kernel looks `id` up once more: its inode, made by `make` if it is not known.
    ///
    /// A known number with another generation or kind is a new object: the branch used the inode number again
    /// before the kernel forgot the old one. The kernel's counts of both run on together.
    pub fn looked_up(&self, id: Identity, kind: Kind, make: impl FnOnce() -> Inode) -> Arc<Inode> {
        if id.ino == Ino::ROOT {
            return self.root.clone();
        }
        let inode = match self.slots.entry(id.ino.0) {
            Entry::Occupied(mut known) => {
                let slot = known.get_mut();
                slot.lookups = slot.lookups.saturating_add(1);
                if slot.inode.id != id || slot.inode.kind != kind || slot.inode.is_lost() {
                    slot.inode = Arc::new(make());
                }
                slot.inode.clone()
            }
            Entry::Vacant(free) => {
                let inode = self.take_aside(id, kind).unwrap_or_else(|| Arc::new(make()));
                if self.is_uncertain() {
                    inode.is_from_before();
                }
                free.insert(Slot { inode: inode.clone(), lookups: 1, holds: 0 });
                inode
            }
        };
        inode.tell(self.now());
        inode
    }

    /// Whether attributes of `inode` were sent to the kernel within `age`.
    pub(crate) fn was_reported(&self, inode: &Inode, age: Duration) -> bool {
        u128::from(inode.reported_before(self.now())) < age.as_millis()
    }

    /// Milliseconds of the table's life. They wrap after seven weeks, and then a listing may have attributes that the
    /// kernel could have done without, or lack some.
    #[expect(clippy::cast_possible_truncation, reason = "it wraps, as it says")]
    fn now(&self) -> u32 {
        self.born.elapsed().as_millis() as u32
    }

    /// The inode `id`, a directory, for one that lies in it; made by `make` if it is not known. The kernel gets no lookup of
    /// it.
    pub fn passed_by(&self, id: Identity, make: impl FnOnce() -> Inode) -> Arc<Inode> {
        if id.ino == Ino::ROOT {
            return self.root.clone();
        }
        match self.slots.entry(id.ino.0) {
            Entry::Occupied(known) if known.get().inode.id == id && known.get().inode.is_dir() => {
                known.get().inode.clone()
            }
            // Held until the inode is removed from the table, so that no second one is made meanwhile.
            _shard => {
                let inode = self.take_aside(id, Kind::Dir).unwrap_or_else(|| Arc::new(make()));
                self.put_aside(&inode);
                inode
            }
        }
    }

    fn take_aside(&self, id: Identity, kind: Kind) -> Option<Arc<Inode>> {
        if kind != Kind::Dir {
            return None;
        }
        let (_, weak) = self.aside.remove(&id.ino.0)?;
        weak.upgrade().filter(|inode| inode.id == id)
    }

    pub(super) fn put_aside(&self, inode: &Arc<Inode>) {
        self.aside.insert(inode.id.ino.0, Arc::downgrade(inode));
    }

    /// The live directory `dir` has copies that would give it these numbers, or another generation, and none that gives its own.
    pub(crate) fn note_copies(&self, dir: &Arc<Inode>, naturals: impl Iterator<Item = Ino>) {
        naturals.for_each(|natural| _ = self.by_copies.insert(natural.0, Arc::downgrade(dir)));
        if self.by_copies.len() > self.by_copies_limit.load(Relaxed) {
            self.by_copies.retain(|_, weak| weak.strong_count() > 0);
            self.by_copies_limit.store(ASIDE.max(self.by_copies.len() * 2), Relaxed);
        }
    }

    /// A live directory that had a copy which would give it the number `natural`.
    pub(crate) fn by_copy(&self, natural: Ino) -> Option<Arc<Inode>> {
        let dir = self.by_copies.get(&natural.0)?.upgrade()?;
        // A removed directory still lists its copies, whose inode numbers the branches may have used again.
        (!dir.is_lost() && dir.name().is_some()).then_some(dir)
    }

    /// Clears what is aside and gone, when it may be many. Not under a shard's lock.
    fn tidy_aside(&self) {
        if self.aside.len() > self.aside_limit.load(Relaxed) {
            self.aside.retain(|_, weak| weak.strong_count() > 0);
            self.aside_limit.store(ASIDE.max(self.aside.len() * 2), Relaxed);
        }
    }

    /// The kernel has forgotten `count` lookups of `ino`. True every now and then, when so many inodes have
    /// gone that giving memory back is worth a thought.
    pub fn forget(&self, ino: Ino, count: u64) -> bool {
        let is_uncertain = self.is_uncertain();
        if is_uncertain && self.get(ino).is_some_and(|inode| inode.open_file().is_some()) {
            return false; // the kernel has more lookups than these: it does not forget what is open
        }
        self.take(ino, |slot| {
            debug_assert!(
                is_uncertain || count <= slot.lookups,
                "the kernel forgot {ino} more often than it was told of it"
            );
            slot.lookups = slot.lookups.saturating_sub(count);
        })
    }

    /// Has `change` lessen the counts of `ino`, which goes if none is left.
    fn take(&self, ino: Ino, change: impl FnOnce(&mut Slot)) -> bool {
        let Entry::Occupied(mut known) = self.slots.entry(ino.0) else { return false };
        let slot = known.get_mut();
        change(slot);
        if slot.lookups > 0 || slot.holds > 0 {
            return false;
        }
        let in_use = slot.inode.is_dir() && Arc::strong_count(&slot.inode) > 1;
        if in_use {
            self.put_aside(&slot.inode);
        }
        let gone = known.remove();
        // Dropping an inode drops its parent's reference, and so on up: not under the shard's lock.
        drop(gone);
        if in_use {
            self.tidy_aside();
        }
        self.removed.fetch_add(1, Relaxed) % THOUGHT == THOUGHT - 1
    }

    /// All inodes, and the directories above them that the kernel has forgotten.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        let mut all: Vec<Arc<Inode>> = Vec::with_capacity(self.slots.len() + 1);
        all.push(self.root.clone());
        all.extend(self.slots.iter().map(|slot| slot.inode.clone()));
        let mut seen: HashSet<*const Inode> = all.iter().map(Arc::as_ptr).collect();
        let aside = self.aside.iter().filter_map(|aside| aside.upgrade());
        all.extend(aside.filter(|dir| seen.insert(Arc::as_ptr(dir))));
        let mut at = 0;
        while let Some(inode) = all.get(at).cloned() {
            let above = inode.names().into_iter().map(|name| name.parent);
            all.extend(above.filter(|parent| seen.insert(Arc::as_ptr(parent))));
            at += 1;
        }
        all
    }

    /// Up to `most` of the regular files.
    pub(crate) fn some_files(&self, most: usize) -> Vec<Ino> {
        let files = self.slots.iter().filter(|slot| slot.inode.kind == Kind::File);
        files.map(|slot| slot.inode.id.ino).take(most).collect()
    }

    /// Inodes known, without the root.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the kernel knows nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The mount is gone, and with it all that the kernel knew.
    pub fn clear(&self) {
        self.slots.clear();
        self.slots.shrink_to_fit();
        self.aside.clear();
        self.by_copies.clear();
    }

    /// Closes the descriptors that all inodes have on `branch`.
    pub(crate) fn close_on(&self, branch: BranchIx) {
        self.root.close_on(branch);
        for slot in &self.slots {
            slot.inode.close_on(branch);
        }
    }

    /// Gives up room that many forgotten inodes have left; whether there was any.
    pub fn shrink(&self) -> bool {
        // Not for the few that come and go all the time.
        let roomy = self.slots.capacity() > 4 * (self.slots.len() + THOUGHT);
        if roomy {
            self.slots.shrink_to_fit();
        }
        roomy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Identity = Identity { ino: Ino(7), generation: 1 };

    fn table(is_uncertain: bool) -> Table {
        let table = Table::new(Inode::root(std::iter::empty()));
        if is_uncertain {
            table.is_of_a_later_daemon();
        }
        table
    }

    fn look_up(table: &Table) -> Arc<Inode> {
        table.looked_up(FILE, Kind::File, || Inode::file(FILE, Kind::File, BranchIx(0)))
    }

    #[test]
    fn what_jobs_hold_stays_one_inode_whatever_the_kernel_forgets() {
        for is_uncertain in [false, true] {
            let table = table(is_uncertain);
            let known = look_up(&table);
            // Two names of it, each met by a job.
            for _ in 0..2 {
                look_up(&table);
                assert!(Arc::ptr_eq(&table.hold(FILE.ino, 1).unwrap(), &known));
            }
            table.release(FILE.ino);
            // In a later daemon the kernel has some from before.
            table.forget(FILE.ino, if is_uncertain { 5 } else { 1 });
            assert!(Arc::ptr_eq(&look_up(&table), &known), "is_uncertain: {is_uncertain}");
            table.release(FILE.ino);
            assert!(Arc::ptr_eq(&table.get(FILE.ino).unwrap(), &known), "the kernel has looked it up again");
            table.forget(FILE.ino, 1);
            assert!(table.is_empty(), "is_uncertain: {is_uncertain}");
        }
    }

    #[test]
    fn what_the_kernel_requests_stays_when_a_job_lets_it_go() {
        let table = table(true);
        look_up(&table);
        let held = table.hold(FILE.ino, 1).unwrap();
        assert!(Arc::ptr_eq(&table.requested(FILE.ino).unwrap(), &held));
        table.release(FILE.ino);
        assert!(Arc::ptr_eq(&table.get(FILE.ino).unwrap(), &held));
    }
}
