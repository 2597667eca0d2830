//! Names of a branch that changed and may not be on its disk: what is known of each directory (`tree/unsynced_dirs.rs` acts on it).

use std::collections::HashMap;

use fsstack_pool::Ino;
use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::files::handed::generation;

/// Directories of a branch that are remembered; with more, the whole branch counts as changed.
const DIRS: usize = 4096;
/// Names of one directory that are remembered; with more, all of its names count as changed.
const NAMES: usize = 4;
/// Names renamed away in one directory that are remembered; with more, any of its names may have been. Programs that write
/// aside and rename leave one for each file, and a name that counts as renamed costs the next user of it an fsync.
const RENAMED: usize = 256;

/// The directories of a branch with names that went since they were synced.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedDirs {
    any: AtomicBool,
    dirs: Mutex<Dirs>,
}

#[derive(Debug, Default)]
struct Dirs {
    known: HashMap<Ino, Went>,
    /// Directories that are not in `known`, too many to keep.
    others: Option<Mark>,
    /// Counts the changes.
    clock: u64,
}

impl Dirs {
    fn note_others(&mut self, mount_generation: u32) {
        self.clock += 1;
        let first = self.others.map_or(mount_generation, |first| first.mount_generation);
        self.others = Some(Mark { at: self.clock, mount_generation: first });
    }
}

#[derive(Debug)]
struct Went {
    /// Hashes of the names; more than [`NAMES`] stand for all.
    names: SmallVec<[u64; NAMES]>,
    /// Hashes of those that were renamed away; more than [`RENAMED`] stand for all.
    renamed: Vec<u64>,
    /// The directory's own mode, owner, attributes or flags were changed.
    attributes_changed: bool,
    mark: Mark,
}

/// Change of a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The name of that hash was removed.
    Went(u64),
    /// It was renamed away.
    Renamed(u64),
    /// The directory's own attributes were changed.
    AttributesChanged,
}

/// State of a directory's names, distinct from later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// When the last name went.
    at: u64,
    /// Mount of the branch on which the first did.
    pub(crate) mount_generation: u32,
}

impl UnsyncedDirs {
    /// Whether there may be any.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Number of directories, and the most that there may be.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.dirs.lock().known.len(), DIRS)
    }

    pub(crate) fn note(&self, dir: Ino, event: Event, mount_generation: u32) {
        let mut dirs = self.dirs.lock();
        self.any.store(true, Relaxed);
        if dirs.known.len() >= DIRS && !dirs.known.contains_key(&dir) {
            return dirs.note_others(mount_generation);
        }
        dirs.clock += 1;
        let mark = Mark { at: dirs.clock, mount_generation };
        let none = Went { names: SmallVec::new(), renamed: Vec::new(), attributes_changed: false, mark };
        let went = dirs.known.entry(dir).or_insert(none);
        went.mark.at = mark.at;
        let name = match event {
            Event::Went(name) => name,
            Event::Renamed(name) => {
                if went.renamed.len() <= RENAMED && !went.renamed.contains(&name) {
                    went.renamed.push(name);
                }
                name
            }
            Event::AttributesChanged => {
                went.attributes_changed = true;
                return;
            }
        };
        if went.names.len() <= NAMES && !went.names.contains(&name) {
            went.names.push(name);
        }
    }

    /// Names in any directory may have gone: what a daemon that died had noted is not known.
    pub(crate) fn note_all(&self, mount_generation: u32) {
        let mut dirs = self.dirs.lock();
        self.any.store(true, Relaxed);
        dirs.note_others(mount_generation);
    }

    /// The state of `dir`, if the name may have gone from it, or its own attributes were changed.
    pub(crate) fn of(&self, dir: Ino, name: u64) -> Option<Mark> {
        let dirs = self.dirs.lock();
        let went = dirs.known.get(&dir)?;
        (went.attributes_changed || went.has(name)).then_some(went.mark)
    }

    /// Whether the name may have been renamed away.
    pub(crate) fn is_renamed(&self, dir: Ino, name: u64) -> bool {
        self.dirs.lock().known.get(&dir).is_some_and(|went| went.was_renamed(name))
    }

    pub(crate) fn of_dir(&self, dir: Ino) -> Option<Mark> {
        if self.any() { self.dirs.lock().known.get(&dir).map(|went| went.mark) } else { None }
    }

    /// The state of `dir`, if its own attributes were changed.
    pub(crate) fn of_attributes(&self, dir: Ino) -> Option<Mark> {
        self.dirs.lock().known.get(&dir).filter(|went| went.attributes_changed).map(|went| went.mark)
    }

    pub(crate) fn of_others(&self) -> Option<Mark> {
        self.dirs.lock().others
    }

    /// Names that left `dir` up to `mark` are on disk, or known to be lost.
    pub(crate) fn settled(&self, dir: Ino, mark: Mark) {
        let mut dirs = self.dirs.lock();
        if dirs.known.get(&dir).is_some_and(|went| went.mark == mark) {
            dirs.known.remove(&dir);
        }
        self.any.store(!dirs.known.is_empty() || dirs.others.is_some(), Relaxed);
    }

    /// When the whole branch is about to be synced: for [`Self::settled_until`].
    pub(crate) fn now(&self) -> u64 {
        self.dirs.lock().clock
    }

    /// Names that left any directory up to then are on disk, or known to be lost.
    pub(crate) fn settled_until(&self, then: u64) {
        let mut dirs = self.dirs.lock();
        dirs.known.retain(|_, went| went.mark.at > then);
        dirs.others = dirs.others.filter(|mark| mark.at > then);
        self.any.store(!dirs.known.is_empty() || dirs.others.is_some(), Relaxed);
    }

    /// The directory was removed: that is a change of the one above. If a name was renamed out of it, the mount on which the first
    /// went.
    pub(crate) fn forget(&self, dir: Ino) -> Option<u32> {
        let went = if self.any() { self.dirs.lock().known.remove(&dir) } else { None };
        went.filter(|went| !went.renamed.is_empty()).map(|went| went.mark.mount_generation)
    }
}

/// The names of a branch that may not be on its disk, for another program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct UnsyncedRow {
    known: Vec<WentRow>,
    others: Option<(u64, bool)>,
    clock: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct WentRow {
    dir: u64,
    names: Vec<u64>,
    renamed: Vec<u64>,
    attributes_changed: bool,
    /// When the last name went, and whether the first did on the current mount.
    mark: (u64, bool),
}

impl UnsyncedDirs {
    /// Its row; the branch is at the mount `current`.
    pub(crate) fn row(&self, current: u32) -> UnsyncedRow {
        let dirs = self.dirs.lock();
        let mark = |mark: Mark| (mark.at, mark.mount_generation == current);
        let known = dirs.known.iter().map(|(dir, went)| WentRow {
            dir: dir.0,
            names: went.names.to_vec(),
            renamed: went.renamed.clone(),
            attributes_changed: went.attributes_changed,
            mark: mark(went.mark),
        });
        UnsyncedRow { known: known.collect(), others: dirs.others.map(mark), clock: dirs.clock }
    }

    /// Takes over what another program has recorded.
    pub(crate) fn take_row(&self, row: &UnsyncedRow) {
        let mark = |(at, is_current)| Mark { at, mount_generation: generation(is_current) };
        let mut dirs = self.dirs.lock();
        let went = |went: &WentRow| Went {
            names: went.names.iter().copied().collect(),
            renamed: went.renamed.clone(),
            attributes_changed: went.attributes_changed,
            mark: mark(went.mark),
        };
        dirs.known = row.known.iter().map(|row| (Ino(row.dir), went(row))).collect();
        dirs.others = row.others.map(mark);
        dirs.clock = row.clock;
        self.any.store(!dirs.known.is_empty() || dirs.others.is_some(), Relaxed);
    }
}

impl Went {
    fn has(&self, name: u64) -> bool {
        self.names.len() > NAMES || self.names.contains(&name)
    }

    fn was_renamed(&self, name: u64) -> bool {
        self.renamed.len() > RENAMED || self.renamed.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Ino = Ino(7);

    #[test]
    fn a_name_that_went_is_known_until_its_directory_is_synced() {
        let unsynced = UnsyncedDirs::default();
        assert!(!unsynced.any());
        unsynced.note(D, Event::Went(1), 0);
        assert!(unsynced.any() && unsynced.of(D, 2).is_none() && unsynced.of(Ino(8), 1).is_none());
        let mark = unsynced.of(D, 1).unwrap();
        unsynced.note(D, Event::Went(2), 1);
        unsynced.settled(D, mark);
        let later = unsynced.of(D, 1).expect("one went while it was synced");
        assert_eq!(later.mount_generation, 0, "the first");
        unsynced.settled(D, later);
        assert!(!unsynced.any() && unsynced.of(D, 1).is_none());
    }

    #[test]
    fn a_renamed_name_and_changed_rights_are_distinguished_from_a_removed_name() {
        let unsynced = UnsyncedDirs::default();
        unsynced.note(D, Event::Went(1), 0);
        assert!(!unsynced.is_renamed(D, 1));
        unsynced.note(D, Event::Renamed(2), 0);
        assert!(unsynced.is_renamed(D, 2) && !unsynced.is_renamed(D, 3) && unsynced.of(D, 3).is_none());
        unsynced.note(D, Event::AttributesChanged, 0);
        assert!(unsynced.of(D, 3).is_some(), "on the way to whatever is in it");
        unsynced.settled(D, unsynced.of_dir(D).unwrap());
        assert!(!unsynced.any() && !unsynced.is_renamed(D, 2));
    }

    #[test]
    fn a_busy_directory_has_few_names_that_count_as_renamed() {
        let unsynced = UnsyncedDirs::default();
        (0..100).for_each(|name| unsynced.note(D, Event::Renamed(name), 0));
        (100..200).for_each(|name| unsynced.note(D, Event::Went(name), 0));
        assert!(unsynced.is_renamed(D, 99) && !unsynced.is_renamed(D, 150) && !unsynced.is_renamed(D, 200));
        (200..500).for_each(|name| unsynced.note(D, Event::Renamed(name), 0));
        assert!(unsynced.is_renamed(D, 999), "more than are kept in mind");
    }

    #[test]
    fn too_many_names_or_directories_stand_for_all() {
        let unsynced = UnsyncedDirs::default();
        (0..10).for_each(|name| unsynced.note(D, Event::Went(name), 0));
        assert!(unsynced.of(D, 99).is_some());
        assert!(unsynced.of_others().is_none());
        (0..2 * DIRS as u64).for_each(|dir| unsynced.note(Ino(100 + dir), Event::Went(1), 0));
        assert!(unsynced.of_others().is_some() && unsynced.dirs.lock().known.len() <= DIRS);
        let then = unsynced.now();
        unsynced.note(D, Event::Went(5), 0);
        unsynced.settled_until(then);
        assert!(unsynced.of(D, 5).is_some() && unsynced.of_others().is_none());
        assert_eq!(unsynced.forget(D), None, "nothing was renamed out of it");
        assert!(unsynced.of(D, 5).is_none());
    }
}
