//! Files that are to move, each with the branch that takes it: a plan that is kept in memory for a million files.

use std::ffi::CString;
use std::sync::Arc;

use fsstack_pool::{BranchIx, Ino};
use smallvec::SmallVec;

use super::Amount;
use super::room::Share;

/// A file on a branch, as it was met.
#[derive(Clone, Debug)]
pub struct ListedFile {
    /// Its number.
    pub ino: Ino,
    /// Its bytes on the branch.
    pub bytes: u64,
    /// Paths of its directories, and its names there.
    pub names: SmallVec<[(Arc<[u8]>, CString); 1]>,
}

impl ListedFile {
    /// The path of its first name, from the pool's root.
    pub fn path(&self) -> Vec<u8> {
        let Some((dir, name)) = self.names.first() else { return Vec::new() };
        let path = [dir, name.to_bytes()].join(&b'/');
        path.strip_prefix(b"/").map(<[u8]>::to_vec).unwrap_or(path)
    }
}

/// A file that is to move.
#[derive(Clone, Debug)]
pub struct PlannedMove {
    /// Its branch.
    pub from: BranchIx,
    /// The branch that takes it.
    pub to: BranchIx,
    /// Its bytes on the branch.
    pub bytes: u64,
    pub(in crate::jobs) ino: Ino,
    /// Its names, each with the index of its directory.
    pub(in crate::jobs) names: SmallVec<[(u32, CString); 1]>,
}

/// The files in the order in which they move.
#[derive(Clone, Debug, Default)]
pub struct MovingList {
    dirs: Vec<Box<[u8]>>,
    moves: Vec<PlannedMove>,
}

impl MovingList {
    /// The file moves after those before it.
    pub(in crate::jobs) fn plan(&mut self, file: ListedFile, from: BranchIx, to: BranchIx) {
        let ListedFile { ino, bytes, names } = file;
        let names = names.into_iter().map(|(dir, name)| (self.dir(&dir), name)).collect();
        self.moves.push(PlannedMove { from, to, bytes, ino, names });
    }

    /// The index of the directory with that path, the one that was used last or a new one.
    fn dir(&mut self, path: &[u8]) -> u32 {
        if self.dirs.last().is_none_or(|last| **last != *path) {
            self.dirs.push(path.into());
        }
        u32::try_from(self.dirs.len() - 1).unwrap_or(u32::MAX)
    }

    /// Forgets all but the first `most` files, and gives their memory back.
    pub(in crate::jobs) fn keep_first(&mut self, most: usize) {
        self.moves.truncate(most);
        self.moves.shrink_to_fit();
        let last = self.moves.iter().flat_map(|planned| &planned.names).map(|(dir, _)| *dir).max();
        self.dirs.truncate(
            last.map_or(0, |last| usize::try_from(last).map_or(usize::MAX, |last| last.saturating_add(1))),
        );
        self.dirs.shrink_to_fit();
    }

    /// The files.
    pub fn moves(&self) -> &[PlannedMove] {
        &self.moves
    }

    /// The path of a name of a planned file, from the pool's root.
    fn path_of(&self, (dir, name): &(u32, CString)) -> Vec<u8> {
        let dir = self.dir_of(*dir);
        let mut path = dir.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        path
    }

    pub(in crate::jobs) fn dir_of(&self, dir: u32) -> &[u8] {
        usize::try_from(dir).ok().and_then(|dir| self.dirs.get(dir)).map_or(&[], |path| path)
    }

    /// The path of a planned file, by its first name.
    pub fn path(&self, planned: &PlannedMove) -> Vec<u8> {
        planned.names.first().map(|name| self.path_of(name)).unwrap_or_default()
    }

    /// Share of each branch that takes some.
    pub(in crate::jobs) fn shares(&self) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        for planned in &self.moves {
            match shares.iter_mut().find(|share| share.branch == planned.to) {
                Some(share) => share.add(planned.bytes),
                None => shares.push(Share::of(planned.to, planned.bytes)),
            }
        }
        shares
    }

    /// Files and bytes in all.
    pub fn amount(&self) -> Amount {
        let mut amount = Amount::default();
        self.moves.iter().for_each(|planned| amount.add(planned.bytes));
        amount
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file of one name, `d/INO`.
    pub(crate) fn listed(ino: u64, bytes: u64) -> ListedFile {
        let name = (Arc::from(&b"d"[..]), CString::new(ino.to_string()).unwrap());
        ListedFile { ino: Ino(ino), bytes, names: SmallVec::from_iter([name]) }
    }

    #[test]
    fn the_first_moves_are_kept_with_their_directories_and_nothing_else() {
        let mut list = MovingList::default();
        for (at, dir) in [&b"a"[..], b"a", b"b", b"c"].into_iter().enumerate() {
            let names = SmallVec::from_iter([(Arc::from(dir), CString::new(at.to_string()).unwrap())]);
            list.plan(ListedFile { ino: Ino(at as u64 + 2), bytes: 7, names }, BranchIx(0), BranchIx(1));
        }
        let paths = |list: &MovingList| -> Vec<Vec<u8>> {
            list.moves().iter().map(|planned| list.path(planned)).collect()
        };
        list.keep_first(3);
        assert_eq!(paths(&list), [b"a/0", b"a/1", b"b/2"]);
        assert_eq!((list.dirs.len(), list.moves.capacity()), (2, 3));
        list.keep_first(9);
        assert_eq!(paths(&list).len(), 3);
        list.keep_first(0);
        assert!(list.moves().is_empty() && list.dirs.is_empty());
    }
}
