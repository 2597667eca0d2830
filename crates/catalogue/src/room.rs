//! Room of the catalogue: so many names, so much free space for others, and a file that gives back what it does not need.

use std::os::fd::AsFd;
use std::path::Path;

use fsstack_sys::at;

use crate::Result;
use crate::store::Catalogue;

/// Names in the catalogue, of all branches.
const MOST_NAMES: u64 = 100_000_000;
/// Free space of its file system that it leaves: this much, or this part of the file system if that is less. The index lies there too.
const LEAST_FREE: u64 = 128 << 20;
const LEAST_PART: u64 = 20;
/// A file is made smaller that has this much free, and at least half.
const WORTHWHILE: u64 = 8 << 20;
/// Used bytes of a file that is made smaller at most: they are moved while a pool ends.
const MOST_MOVED: u64 = 128 << 20;
/// Bytes that a name takes, about: an estimate of what is used is free, while to count it all pages are read.
const NAME_BYTES: u64 = 100;

/// Reason why the catalogue takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatalogueFull {
    /// It has this many names.
    Names(u64),
    /// Its file system has less free bytes than this.
    Space(u64),
}

impl Catalogue {
    /// Whether it takes no more names. `most` replaces the limit of names.
    ///
    /// # Errors
    /// The database failed.
    pub fn is_full(&self, most: Option<u64>) -> Result<Option<CatalogueFull>> {
        let most = most.unwrap_or(MOST_NAMES);
        if self.names()? > most {
            return Ok(Some(CatalogueFull::Names(most)));
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let space = at::open_root(folder).and_then(|folder| fsstack_sys::file::statfs(folder.as_fd()));
        // Its disk fails: so will the next write.
        let Ok(space) = space else { return Ok(None) };
        let bytes = |blocks: u64| blocks.saturating_mul(space.frag_size);
        let least = LEAST_FREE.min(bytes(space.blocks) / LEAST_PART);
        Ok((bytes(space.avail) < least).then_some(CatalogueFull::Space(least)))
    }

    /// Bytes of the pages that are not free.
    fn allocated(&self) -> Result<u64> {
        let change = self.db.begin_write()?;
        let stats = change.stats()?;
        let pages = stats.allocated_pages().saturating_mul(stats.page_size() as u64);
        change.abort()?;
        Ok(pages)
    }

    /// Makes the file smaller, if much of it is free and little is to be moved for that. Nobody reads it.
    ///
    /// # Errors
    /// The database failed; all is as it was.
    pub fn shrink(mut self) -> Result<()> {
        // Pages that the last change has freed are in use until the one after the next.
        self.flush()?;
        self.flush()?;
        let len = self.path.metadata()?.len();
        let is_worthwhile = |used: u64| {
            let free = len.saturating_sub(used);
            free >= WORTHWHILE && free >= len / 2 && used <= MOST_MOVED
        };
        if is_worthwhile(self.names()?.saturating_mul(NAME_BYTES)) && is_worthwhile(self.allocated()?) {
            self.db.compact()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{BranchRow, Row};

    const BRANCH: u16 = 7;

    fn fill(catalogue: &Catalogue, names: u64) {
        let row = Row { mode: 0o100_644, uid: 1, gid: 2, size: 3, sec: 4, nsec: 5, number: None };
        let filled = catalogue.change(|batch| {
            let branch =
                BranchRow { root: 1, walk: 1, complete: true, trusted: true, as_of: 9, path: Vec::new() };
            batch.set_branch(BRANCH, &branch)?;
            (0..names).try_for_each(|n| {
                let name = format!("{n:0250}");
                batch.set((BRANCH, 1), 1, name.as_bytes(), Some(&row)).map(drop)
            })
        });
        filled.unwrap();
        catalogue.flush().unwrap();
    }

    #[test]
    fn a_file_that_is_mostly_free_becomes_small_and_has_all_that_it_had() {
        let mut builder = tempfile::Builder::new();
        let dir = builder.permissions(fs::Permissions::from_mode(0o700)).tempdir().unwrap();
        let path = dir.path().join("catalogue.redb");
        let len = || path.metadata().unwrap().len();
        let catalogue = Catalogue::open(&path).unwrap();
        fill(&catalogue, 60_000);
        let all = len();
        assert!(catalogue.is_full(Some(59_999)).unwrap() == Some(CatalogueFull::Names(59_999)));
        assert!(catalogue.is_full(Some(60_000)).unwrap() != Some(CatalogueFull::Names(60_000)));
        catalogue.shrink().unwrap();
        assert!(all > 2 * WORTHWHILE && len() > all / 2, "{all}, {}", len());
        let catalogue = Catalogue::open(&path).unwrap();
        let stays = format!("{:0250}", 50_000).into_bytes().into_boxed_slice();
        catalogue.change(|batch| batch.listed((BRANCH, 1), 1, &[stays])).unwrap();
        catalogue.flush().unwrap();
        let branches = catalogue.branches().unwrap();
        catalogue.shrink().unwrap();
        assert!(len() < all / 8, "{all}, {}", len());
        let catalogue = Catalogue::open(&path).unwrap();
        assert_eq!((catalogue.names().unwrap(), catalogue.branches().unwrap()), (1, branches));
        // Whose pages have checksums still.
        drop(catalogue);
        assert!(dir.path().join("catalogue.redb.sums").metadata().unwrap().len() > 4);
    }
}
