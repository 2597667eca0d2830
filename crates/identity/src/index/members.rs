//! Tables of the index: branches that the pool has had, and branches that the operator gave up.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fsstack_pool::BranchId;
use redb::{ReadableTable, TableDefinition};

use super::store::{DbResult, Store, StoreWhen, table};

/// Branches that were part of the pool while it was exported, and where each was last.
const MEMBERS: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("members");
/// Branches whose objects may have numbers that do not contain the branch's id.
const HASHED: TableDefinition<'_, u16, ()> = TableDefinition::new("hashed");
/// Branches that the operator gave up.
const GONE: TableDefinition<'_, u16, ()> = TableDefinition::new("gone");

impl Store {
    /// Records `branch` as a member, last at `path`. A branch that was given up is a member again.
    pub(super) fn note_member(&self, branch: BranchId, path: &Path) -> DbResult<()> {
        let path = path.as_os_str().as_bytes();
        let read = self.begin_read()?;
        let noted = match table(&read, MEMBERS)? {
            None => false,
            Some(members) => members.get(branch.get())?.is_some_and(|known| known.value() == path),
        };
        drop(read);
        if noted && !self.is_gone(branch)? {
            return Ok(());
        }
        self.change(StoreWhen::Now, |tables| {
            tables.open_table(MEMBERS)?.insert(branch.get(), path)?;
            tables.open_table(GONE)?.remove(branch.get())?;
            Ok(())
        })
    }

    /// The branches that were part of the pool and were not given up, each with its path if that is known.
    pub(super) fn members(&self) -> DbResult<Vec<(BranchId, PathBuf)>> {
        let read = self.begin_read()?;
        let mut members = Vec::new();
        if let Some(table) = table(&read, MEMBERS)? {
            for row in table.iter()? {
                let (id, path) = row?;
                let path = PathBuf::from(OsStr::from_bytes(path.value()));
                members.extend(BranchId::new(id.value()).map(|id| (id, path)));
            }
        }
        drop(read);
        // Recorded by a daemon that recorded no paths.
        let unplaced = self.hashed()?.into_iter().filter(|id| members.iter().all(|(known, _)| known != id));
        let unplaced: Vec<BranchId> = unplaced.collect();
        members.extend(unplaced.into_iter().map(|id| (id, PathBuf::new())));
        Ok(members)
    }

    /// Gives the branch up. On disk when this returns.
    pub(super) fn give_up(&self, branch: BranchId) -> DbResult<()> {
        self.change(StoreWhen::Now, |tables| {
            tables.open_table(MEMBERS)?.remove(branch.get())?;
            tables.open_table(HASHED)?.remove(branch.get())?;
            tables.open_table(GONE)?.insert(branch.get(), ())?;
            Ok(())
        })
    }

    /// True if the branch was given up.
    pub(super) fn is_gone(&self, branch: BranchId) -> DbResult<bool> {
        let read = self.begin_read()?;
        Ok(match table(&read, GONE)? {
            None => false,
            Some(gone) => gone.get(branch.get())?.is_some(),
        })
    }

    /// Records that objects of this branch may have numbers that do not contain its id.
    pub(super) fn note_hashed(&self, branch: BranchId) -> DbResult<()> {
        self.change(StoreWhen::Now, |tables| {
            tables.open_table(HASHED)?.insert(branch.get(), ())?;
            Ok(())
        })
    }

    /// Returns the branches whose objects may have numbers that do not contain the branch's id.
    pub(super) fn hashed(&self) -> DbResult<Vec<BranchId>> {
        let read = self.begin_read()?;
        let mut branches = Vec::new();
        if let Some(hashed) = table(&read, HASHED)? {
            for row in hashed.iter()? {
                branches.extend(BranchId::new(row?.0.value()));
            }
        }
        Ok(branches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_known_until_it_is_given_up_and_again_when_it_is_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index.redb");
        let store = Store::make(Some(&path), [9; 16]).unwrap();
        assert!(store.members().unwrap().is_empty() && store.hashed().unwrap().is_empty());
        assert!(!store.is_gone(BranchId::MIN).unwrap());
        let (disk, volume) = (BranchId::MIN, BranchId::MAX);
        store.note_member(disk, Path::new("/disk")).unwrap();
        store.note_member(disk, Path::new("/moved")).unwrap();
        store.note_hashed(volume).unwrap();
        drop(store);
        let store = Store::open(&path).unwrap().unwrap();
        assert_eq!(store.members().unwrap(), [(disk, "/moved".into()), (volume, PathBuf::new())]);
        assert_eq!(store.hashed().unwrap(), [volume]);
        store.give_up(disk).unwrap();
        store.give_up(volume).unwrap();
        drop(store);
        let store = Store::open(&path).unwrap().unwrap();
        assert!(store.members().unwrap().is_empty() && store.hashed().unwrap().is_empty());
        assert!(store.is_gone(disk).unwrap() && store.is_gone(volume).unwrap());
        store.note_member(disk, Path::new("/moved")).unwrap();
        assert!(!store.is_gone(disk).unwrap() && store.is_gone(volume).unwrap());
    }
}
