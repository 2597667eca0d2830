//! The thread that keeps the names of one branch.
//!
//! All that it writes it has seen on the branch in the order in which it writes it. What changes meanwhile is reported again,
//! and looked at after that: the last look counts.
//!
//! A directory that is to be listed is known by its number. Its path is put together when its turn comes; if it is not found
//! there, it was renamed or removed, which is reported too. Otherwise the directory above is listed again.

mod listing;
mod unsure_files;

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use fsstack_branch::error::OpError;
use fsstack_catalogue::{
    BranchRow, CatalogueError, CatalogueFull, FLUSH_AFTER, Knowledge, Pending, Upkeep, now,
};
use fsstack_pool::BranchIx;
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::thread::Policy;

use super::look::look_at;
use super::{fail, path_bytes, schedule};
use crate::inode::Inode;
use crate::member::Member;
use crate::union::Union;

/// Bits of the number of a walk that has looked at the ACLs of directories, and at the numbers of files with several names. Earlier
/// builds did not.
const WITH_ALL: u32 = 0b11 << 30;

/// Pause after changes before they are looked at: further ones of the same names cost nothing.
const CHANGES_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before changes are looked at, where more come all the time: a branch that dies takes along what was not looked at.
const LONGEST_CHANGES_PAUSE: Duration = Duration::from_secs(1);
/// Pause before a branch that could not be asked is tried again.
const BRANCH_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Names that are written in one step.
const CHUNK: usize = 4096;
/// Time for which a walk lists directories before changes are looked at.
const WALK_SLICE: Duration = Duration::from_millis(50);
/// Rest after directories were listed again, as a multiple of the time that took: a program that changes a large directory all the
/// time does not have it listed all the time.
const REST: u32 = 9;
/// Longest rest after directories were listed again.
const LONGEST_LISTING_REST: Duration = Duration::from_secs(30);
/// Time for listing the last directories when the pool ends.
const LAST_LISTINGS_TIMEOUT: Duration = Duration::from_secs(2);

/// Changed names of a branch.
type Uncatalogued = Pending<Arc<Inode>>;

/// Reason why a directory could not be listed.
enum Unlisted {
    /// It is not where the catalogue has it.
    Elsewhere,
    /// The branch cannot be asked now.
    Branch(OpError),
    Database(CatalogueError),
    Stopped,
}

impl From<CatalogueError> for Unlisted {
    fn from(error: CatalogueError) -> Self {
        Self::Database(error)
    }
}

/// State of the thread of a branch.
pub(super) struct Keeper {
    upkeep: Arc<Upkeep>,
    pending: Arc<Uncatalogued>,
    ix: BranchIx,
    id: u16,
    root: u64,
    path: Vec<u8>,
    walk: u32,
    /// Directories to list.
    waiting: Vec<u64>,
    /// A walk over all of it has not ended.
    walking: bool,
    /// Another one is due, to look for files.
    walks_again: bool,
    /// When one has ended.
    walked: Option<Instant>,
    /// Files that have changed by no known name, and that no name leads to.
    sought: HashSet<u64>,
    /// Files whose last known name went.
    gone: HashSet<u64>,
    /// Something could not be asked or written: it is walked again.
    again: bool,
    /// The catalogue takes no more: nothing is written, and the branch walked when it does again.
    full: bool,
    /// A directory or a name could not be read, though the branch answers.
    unreadable: bool,
    /// Directories that are to be listed again.
    relisted: HashSet<u64>,
    /// Before changes are looked at again.
    rest: Duration,
    /// Directories that were not found and whose parents are listed again.
    searched: HashSet<u64>,
    /// The pool ends: directories are listed until then, so that the next mount need not walk.
    last_until: Option<Instant>,
}

impl Keeper {
    /// Takes over what is known of `branch`, whose root has the number `root`. If it is `trusted`, a catalogue that was closed
    /// cleanly is believed.
    pub(super) fn begin(
        upkeep: &Arc<Upkeep>,
        branch: &Member,
        root: u64,
        trusted: bool,
    ) -> std::result::Result<Self, CatalogueError> {
        let id = branch.id.get();
        let path = path_bytes(&branch.path);
        let (walk, known) = upkeep.catalogue.change(|batch| {
            let before = batch.branch(id)?.filter(|row| row.root == root);
            if before.is_none() {
                batch.remove_branch(id)?;
            }
            let known =
                before.as_ref().is_some_and(|row| row.trusted && row.walk & WITH_ALL == WITH_ALL) && trusted;
            let (walk, as_of) = before.map_or((0, 0), |row| (row.walk, row.as_of));
            let walk = if known { walk } else { walk.wrapping_add(1) | WITH_ALL };
            // Until it is closed cleanly again.
            let row = BranchRow { root, walk, complete: false, trusted: false, as_of, path: path.clone() };
            batch.set_branch(id, &row)?;
            upkeep.set_known(id, Knowledge { complete: known, walking: !known, looking: false, as_of });
            Ok((walk, known))
        })?;
        upkeep.catalogue.flush()?;
        Ok(Self {
            upkeep: upkeep.clone(),
            pending: branch.uncatalogued.clone(),
            ix: branch.ix,
            id,
            root,
            path,
            walk,
            waiting: if known { Vec::new() } else { vec![root] },
            walking: !known,
            walks_again: false,
            walked: None,
            sought: HashSet::new(),
            gone: HashSet::new(),
            again: false,
            full: false,
            unreadable: false,
            relisted: HashSet::new(),
            rest: Duration::ZERO,
            searched: HashSet::new(),
            last_until: None,
        })
    }

    /// Keeps the names until the pool ends or the branch leaves it.
    pub(super) fn keep(mut self, union: &Weak<Union>) {
        if self.pending.is_stopped() {
            schedule(Policy::Other);
        }
        loop {
            let wait = match (self.again, self.waiting.is_empty(), self.upkeep.is_dirty()) {
                (true, ..) => Some(BRANCH_RETRY_PAUSE),
                (_, false, _) => Some(Duration::ZERO),
                _ if self.upkeep.catalogue.unsure(self.id) > 0 => Some(Duration::ZERO),
                (.., true) => Some(FLUSH_AFTER),
                _ => self.seeks_in().map(|left| left.max(BRANCH_RETRY_PAUSE)),
            };
            self.pending.wait(wait);
            self.pause();
            let stopped = self.pending.is_stopped();
            let Some(union) = union.upgrade() else { return };
            let is_it = |branch: &&Arc<Member>| Arc::ptr_eq(&branch.uncatalogued, &self.pending);
            let branch = match union.pool().live(self.ix).filter(is_it).cloned() {
                Some(branch) => branch,
                None if stopped => return self.leave(&union),
                // Its removal may still be refused.
                None => {
                    self.pending.pause(CHANGES_PAUSE);
                    continue;
                }
            };
            if stopped && !self.walking {
                self.last_until = Some(Instant::now() + LAST_LISTINGS_TIMEOUT);
            }
            if self.step(&union, &branch).is_err() || stopped {
                return;
            }
        }
    }

    /// Leaves changes time to end. A walk goes on meanwhile, and at its end needs a moment without changes.
    fn pause(&mut self) {
        match (self.pending.is_empty() || !self.waiting.is_empty(), self.walking) {
            (true, _) => {}
            (false, true) => self.pending.pause(CHANGES_PAUSE),
            (false, false) => {
                let (began, rest) = (Instant::now(), std::mem::take(&mut self.rest));
                while began.elapsed() < rest && !self.pending.is_urgent() {
                    self.pending.pause(CHANGES_PAUSE.min(rest));
                }
                self.pending.pause_until_quiet(CHANGES_PAUSE, LONGEST_CHANGES_PAUSE);
            }
        }
    }

    /// The branch has left the pool: what is known of it stays in the catalogue.
    fn leave(&self, union: &Union) {
        // Added again, it has another thread.
        let is_back = union.pool().branches.iter().any(|branch| branch.id.get() == self.id);
        let is_whole = self.pending.is_empty() && self.upkeep.catalogue.unsure(self.id) == 0;
        if !is_back && let Err(error) = self.upkeep.leave(self.id, is_whole) {
            fail(&self.upkeep, &error);
        }
    }

    /// Writes changes, and lists directories for a while. An error: the catalogue has failed, or the pool ends.
    fn step(&mut self, union: &Union, branch: &Member) -> std::result::Result<(), ()> {
        let done = self.is_full().and_then(|_| self.write_changes(union, branch));
        let done =
            done.and_then(|()| self.list_some(union, branch)).and_then(|()| self.look_at_files(branch));
        let done = done.and_then(|()| {
            self.tell(branch)?;
            self.upkeep.flush_if_due()
        });
        done.map_err(|error| fail(&self.upkeep, &error))
    }

    /// Records how far the branch is known.
    fn tell(&mut self, branch: &Member) -> std::result::Result<(), CatalogueError> {
        let is_partly = self.again || self.full || self.unreadable;
        let is_sure = self.upkeep.catalogue.unsure(self.id) == 0;
        // Only the next mount would take what is known of files that are to be looked for as it is.
        let is_last = self.walks_again && self.pending.is_stopped();
        let complete = self.waiting.is_empty() && !self.walking && !is_partly && is_sure && !is_last;
        let before = self.upkeep.known(self.id).unwrap_or_default();
        let sees = branch.is_open() && complete;
        let as_of = if sees { now() } else { before.as_of };
        let walking = self.walking && !self.full;
        self.upkeep.set_known(self.id, Knowledge { complete, walking, looking: false, as_of });
        if sees && before.as_of != as_of && self.upkeep.is_dirty() {
            let (root, walk, path) = (self.root, self.walk, self.path.clone());
            let row = BranchRow { root, walk, complete: false, trusted: false, as_of, path };
            self.upkeep.catalogue.change(|batch| batch.set_branch(self.id, &row))?;
        }
        Ok(())
    }

    fn write_changes(&mut self, union: &Union, branch: &Member) -> std::result::Result<(), CatalogueError> {
        // Before they are taken: the branch may hang while they are looked at.
        let known = self.upkeep.known(self.id).unwrap_or_default();
        self.upkeep.set_known(self.id, Knowledge { looking: !self.pending.is_empty(), ..known });
        let mut changes = self.pending.take();
        if self.full {
            return Ok(());
        }
        let seeks = self.seeks_in() == Some(Duration::ZERO);
        if changes.walk || (self.again || seeks) && branch.check_open().is_ok() {
            self.begin_walk()?;
        }
        if changes.is_empty() {
            return Ok(());
        }
        let files = std::mem::take(&mut changes.files);
        // Before the looks, which may find that all names of a file are gone: such a one is not looked for.
        let mut unknown = self.unknown(files.iter().copied())?;
        unknown.retain(|file| !self.gone.contains(file));
        let (looks, relist, complete) = look_at(union, branch, changes);
        let relist: HashSet<u64> = relist.into_iter().collect();
        let at = (self.id, self.walk);
        let due = self.upkeep.catalogue.change(|batch| batch.apply(at, &looks, relist.iter().copied()))?;
        // Not those that the catalogue does not have: notices may be of directories elsewhere on the branch's file system.
        self.relisted.extend(due.iter().filter(|dir| relist.contains(dir)));
        self.waiting.extend(due);
        self.upkeep.catalogue.note_files(self.id, files);
        let unknown = self.unknown(unknown)?;
        self.seek(unknown);
        self.upkeep.note_change();
        if !complete && branch.check_open().is_ok() {
            self.unreadable = true;
        } else if !complete {
            self.put_off(None);
        }
        Ok(())
    }

    /// The branch could not be asked: it is walked again when it answers.
    fn put_off(&mut self, error: Option<OpError>) {
        self.again = true;
        self.waiting.clear();
        if let Some(error) = error {
            tracing::debug!(%error, "catalogue: the branch cannot be walked now; it is tried again");
        }
    }

    fn begin_walk(&mut self) -> std::result::Result<(), CatalogueError> {
        self.walk = self.walk.wrapping_add(1) | WITH_ALL;
        (self.again, self.walking, self.walks_again, self.unreadable) = (false, true, false, false);
        self.waiting = vec![self.root];
        (self.relisted, self.rest) = (HashSet::new(), Duration::ZERO);
        self.searched.clear();
        let (id, walk) = (self.id, self.walk);
        self.upkeep.catalogue.change(|batch| match batch.branch(id)? {
            Some(row) => batch.set_branch(id, &BranchRow { walk, ..row }),
            None => Ok(()),
        })?;
        self.upkeep.note_change();
        Ok(())
    }

    fn list_some(&mut self, union: &Union, branch: &Member) -> std::result::Result<(), CatalogueError> {
        let began = Instant::now();
        while let Some(dir) = self.waiting.pop() {
            if self.is_to_end() {
                self.waiting.push(dir);
                return Ok(());
            }
            if self.upkeep.catalogue.is_listed(self.id, dir, self.walk)? {
                continue;
            }
            let listing = Instant::now();
            let listed = self.list(union, branch, dir);
            if self.relisted.remove(&dir) {
                self.rest = (self.rest + listing.elapsed().saturating_mul(REST)).min(LONGEST_LISTING_REST);
            }
            match listed {
                Ok(()) => {}
                Err(Unlisted::Elsewhere) => self.search(dir)?,
                // One bad directory does not have all others walked again; what was known of it stays.
                Err(Unlisted::Branch(error)) if branch.check_open().is_ok() => {
                    tracing::debug!(%error, branch = %branch.path.display(), "catalogue: a directory cannot be read");
                    self.unreadable = true;
                    let at = (self.id, self.walk);
                    self.upkeep.catalogue.change(|batch| batch.keep_listed(at, dir))?;
                }
                Err(Unlisted::Branch(error)) => {
                    self.put_off(Some(error));
                    return Ok(());
                }
                Err(Unlisted::Database(error)) => return Err(error),
                Err(Unlisted::Stopped) => {
                    self.waiting.push(dir);
                    return Ok(());
                }
            }
            // After the last directory the walk ends now: nothing may wake this thread for that later.
            let more = self.last_until.is_none() && !self.waiting.is_empty();
            if more && began.elapsed() > WALK_SLICE {
                return Ok(());
            }
        }
        self.searched.clear();
        if self.walking && self.pending.is_empty() && !self.again {
            self.end_walk(branch)?;
        }
        Ok(())
    }

    /// Whether no further directory is to be listed.
    fn is_to_end(&self) -> bool {
        let over = self.last_until.is_none_or(|until| until < Instant::now());
        self.pending.is_stopped() && over
    }

    /// The directory is not where the catalogue has it: the one above is listed again, once.
    fn search(&mut self, dir: u64) -> std::result::Result<(), CatalogueError> {
        let searched = self.searched.insert(dir);
        let (id, root) = (self.id, self.root);
        let above = self.upkeep.catalogue.change(|batch| match batch.above(id, dir)? {
            Some(above) if searched && dir != root => {
                batch.unlist(id, above).map(|there| there.then_some(above))
            }
            _ => Ok(None),
        })?;
        match above {
            Some(above) => self.waiting.push(above),
            None if self.upkeep.catalogue.path(id, dir)?.is_some() => self.put_off(None),
            None => {}
        }
        Ok(())
    }

    /// All that can be reached was listed: the rest is gone.
    fn end_walk(&mut self, branch: &Member) -> std::result::Result<(), CatalogueError> {
        let (id, walk) = (self.id, self.walk);
        let remove_some = || {
            self.upkeep.catalogue.change(|batch| {
                let gone = batch.unlisted(id, walk, CHUNK)?;
                gone.iter().try_for_each(|dir| batch.remove_dir(id, *dir))?;
                Ok(gone.len())
            })
        };
        while 0 < remove_some()? {}
        (self.walking, self.walked) = (false, Some(Instant::now()));
        self.upkeep.note_change();
        if self.unreadable {
            tracing::warn!(branch = %branch.path.display(), "catalogue: not all directories of the branch can be read; it stays incomplete until the next walk");
            return Ok(());
        }
        let names = self.upkeep.catalogue.names()?;
        tracing::info!(branch = %branch.path.display(), names, "catalogue: all names of the branch recorded");
        Ok(())
    }

    /// Whether the catalogue takes no more. Then the branch is walked when it does again.
    fn is_full(&mut self) -> std::result::Result<bool, CatalogueError> {
        let full = self.upkeep.catalogue.is_full(most_names())?;
        self.full = full.is_some();
        if self.full {
            self.put_off(None);
        }
        match full.filter(|_| self.upkeep.say_full()) {
            Some(CatalogueFull::Names(most)) => {
                tracing::warn!(most, "catalogue: the pool has more names; it stays incomplete");
            }
            Some(CatalogueFull::Space(least)) => {
                tracing::warn!(
                    least,
                    "catalogue: little space is free in state-dir; it stays incomplete until there is more"
                );
            }
            None => {}
        }
        Ok(self.full)
    }
}

/// Another limit of names, for tests.
fn most_names() -> Option<u64> {
    #[cfg(feature = "fault")]
    return std::env::var("FSSTACK_TEST_CATALOGUE_NAMES").ok()?.parse().ok();
    #[cfg(not(feature = "fault"))]
    None
}
