//! Files with several hard links of which a walk has not met all names yet: a bounded number of names over all walks.
//!
//! A user can give any number of files second names in a directory that is walked last, and all that were met before would be
//! remembered until then. A file is remembered if there is room for all its names. When the room is used up, the walk remembers no
//! further file: each is then left out by all its names or by none, and can be counted by them. A later walk meets it, when others
//! have moved.

use std::collections::HashMap;

use fsstack_pool::Ino;
use fsstack_sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Names that the walks of a pool may remember.
#[derive(Debug)]
pub(crate) struct LinkedNames {
    promised: AtomicUsize,
    most: usize,
}

impl LinkedNames {
    /// A bound of `most` names: some 350 bytes each where files have two.
    pub(crate) fn new(most: usize) -> Self {
        Self { promised: AtomicUsize::new(0), most }
    }

    /// Names that are met or missing still, and the most that there may be.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.promised.load(Relaxed), self.most)
    }

    fn promise(&self, names: usize) -> bool {
        let more = |promised: usize| promised.checked_add(names).filter(|all| *all <= self.most);
        self.promised.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give_back(&self, names: usize) {
        self.promised.fetch_sub(names, Relaxed);
    }
}

/// Reason for a file to be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// It has more names than all walks together may remember.
    Ever,
    /// This walk remembers too many others.
    Now,
    /// Other walks do.
    BesideOthers,
}

/// Files of one walk that have names which were not met.
pub(super) struct LinkedFiles<'n, F> {
    names: &'n LinkedNames,
    /// Each with the names that were promised to it.
    files: HashMap<Ino, (F, usize)>,
    promised: usize,
    full: Option<NoRoom>,
}

impl<'n, F> LinkedFiles<'n, F> {
    pub(super) fn new(names: &'n LinkedNames) -> Self {
        Self { names, files: HashMap::new(), promised: 0, full: None }
    }

    /// The file, which has so many `links`; `new` when its first name is met.
    ///
    /// # Errors
    /// There is no room for its names; it is not remembered any more.
    pub(super) fn meet(&mut self, ino: Ino, links: usize, new: impl FnOnce() -> F) -> Result<&mut F, NoRoom> {
        // It may have got more names since it was met.
        let more = links.saturating_sub(self.files.get(&ino).map_or(0, |(_, promised)| *promised));
        if let Err(why) = self.promise(ino, links, more) {
            self.take(ino);
            return Err(why);
        }
        self.promised += more;
        let (file, promised) = self.files.entry(ino).or_insert_with(|| (new(), 0));
        *promised += more;
        Ok(file)
    }

    fn promise(&mut self, ino: Ino, links: usize, more: usize) -> Result<(), NoRoom> {
        if links > self.names.most {
            return Err(NoRoom::Ever);
        }
        if let Some(full) = self.full.filter(|_| !self.files.contains_key(&ino)) {
            return Err(full);
        }
        if self.names.promise(more) {
            return Ok(());
        }
        let by_others = self.names.size().0 > self.promised;
        let full = if by_others { NoRoom::BesideOthers } else { NoRoom::Now };
        self.full = Some(full);
        Err(full)
    }

    /// Removes the file: all its names were met, or it has only one left.
    pub(super) fn take(&mut self, ino: Ino) -> Option<F> {
        let (file, promised) = self.files.remove(&ino)?;
        self.names.give_back(promised);
        self.promised -= promised;
        Some(file)
    }

    /// Files of which names are missing.
    pub(super) fn left(&self) -> impl Iterator<Item = &F> {
        self.files.values().map(|(file, _)| file)
    }
}

impl<F> Drop for LinkedFiles<'_, F> {
    fn drop(&mut self) {
        self.names.give_back(self.promised);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_remembered_with_all_its_names_or_left_out_with_all() {
        let names = LinkedNames::new(5);
        let mut files = LinkedFiles::new(&names);
        assert_eq!(files.meet(Ino(1), 2, || "a"), Ok(&mut "a"));
        assert_eq!(files.meet(Ino(2), 9, || "more names than all walks may remember"), Err(NoRoom::Ever));
        assert_eq!(files.meet(Ino(3), 3, || "b"), Ok(&mut "b"));
        assert_eq!(files.meet(Ino(4), 2, || "no room"), Err(NoRoom::Now));
        assert_eq!(files.take(Ino(3)), Some("b"));
        assert_eq!(files.meet(Ino(4), 2, || "its first name was left out"), Err(NoRoom::Now));
        assert_eq!(files.meet(Ino(1), 2, || "met before"), Ok(&mut "a"));
        assert_eq!((files.left().collect::<Vec<_>>(), names.size()), (vec![&"a"], (2, 5)));
        drop(files);
        assert_eq!(names.size(), (0, 5));
    }

    #[test]
    fn names_that_a_file_gets_meanwhile_count_and_other_walks_are_told_apart() {
        let names = LinkedNames::new(5);
        let (mut files, mut others) = (LinkedFiles::new(&names), LinkedFiles::new(&names));
        assert_eq!(files.meet(Ino(1), 2, || "a"), Ok(&mut "a"));
        assert_eq!(files.meet(Ino(1), 4, || "met before"), Ok(&mut "a"));
        assert_eq!(names.size(), (4, 5));
        assert_eq!(others.meet(Ino(2), 2, || "b"), Err(NoRoom::BesideOthers));
        assert_eq!(files.meet(Ino(1), 6, || "met before"), Err(NoRoom::Ever));
        assert_eq!((files.left().count(), names.size()), (0, (0, 5)));
        drop(others);
        drop(files);
        assert_eq!(names.size(), (0, 5));
    }
}
