//! Changes of the catalogue that are made in one step.
//!
//! A directory that is renamed leaves one row and comes to another. Which of the two is seen first does not matter: the
//! row of the directory itself says where it is, and what lost it removes it only if it is not elsewhere by the end of the step.
//! Where the two are seen in different steps, the directory is removed with all below it, and listed again when it is
//! found at its new place.
//!
//! Names of one file have equal rows: a look at one of them sets all. A name that goes may have been the only one by which a
//! change was reported, so another one is to be looked at then, unless one was in the same step.

use std::collections::HashSet;

use redb::{ReadableTable, Table, WriteTransaction};

use crate::Result;
use crate::row::Row;
use crate::store::{
    BRANCHES, BranchRow, BranchValue, DIRS, LINKS, NAMES, branch_row, key_behind, link_key, name_in_link,
    name_key,
};
use crate::turns::Turns;

/// Walk of a directory that is to be listed.
const NEVER: u32 = 0;

/// Changes that are made in one step.
#[derive(Debug)]
pub struct Batch<'t> {
    names: Table<'t, &'static [u8], &'static [u8]>,
    dirs: Table<'t, (u16, u64), (u64, u32, &'static [u8])>,
    branches: Table<'t, u16, BranchValue<'static>>,
    links: Table<'t, &'static [u8], ()>,
    /// Branch and number of directories whose row is gone, where it was.
    lost: HashSet<(u16, u64)>,
    /// Branch and number of files of which a name is gone.
    unlinked: HashSet<(u16, u64)>,
    /// Files of which a name was looked at.
    seen: HashSet<(u16, u64)>,
    turns: Turns,
}

/// Result of a look at a directory of a branch.
#[derive(Clone, Debug)]
pub struct Look {
    /// Its number.
    pub dir: u64,
    /// The directory itself.
    pub itself: Row,
    /// Names that may have changed; None: not there.
    pub names: Vec<(Box<[u8]>, Option<Row>)>,
}

/// Consequence of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// The content of the name is known, or it has none.
    Known,
    /// The directory with this number is to be listed.
    Not(u64),
}

impl<'t> Batch<'t> {
    pub(crate) fn new(change: &'t WriteTransaction) -> Result<Self> {
        Ok(Self {
            names: change.open_table(NAMES)?,
            dirs: change.open_table(DIRS)?,
            branches: change.open_table(BRANCHES)?,
            links: change.open_table(LINKS)?,
            lost: HashSet::new(),
            unlinked: HashSet::new(),
            seen: HashSet::new(),
            turns: Turns::default(),
        })
    }

    /// State of a branch.
    ///
    /// # Errors
    /// The database failed.
    pub fn branch(&self, branch: u16) -> Result<Option<BranchRow>> {
        Ok(self.branches.get(branch)?.map(|row| branch_row(row.value())))
    }

    /// Sets the state of a branch. A root that is new to it is to be listed.
    ///
    /// # Errors
    /// The database failed.
    pub fn set_branch(&mut self, branch: u16, row: &BranchRow) -> Result<()> {
        let BranchRow { root, walk, complete, trusted, as_of, path } = row;
        self.branches.insert(branch, (*root, *walk, (*complete, *trusted), *as_of, path.as_slice()))?;
        if self.dirs.get((branch, *root))?.is_none() {
            self.dirs.insert((branch, *root), (0, NEVER, b"".as_slice()))?;
        }
        Ok(())
    }

    /// Removes all that is known of a branch.
    ///
    /// # Errors
    /// The database failed.
    pub fn remove_branch(&mut self, branch: u16) -> Result<()> {
        self.branches.remove(branch)?;
        self.dirs.retain_in((branch, 0)..=(branch, u64::MAX), |_, _| false)?;
        let from = name_key(branch, 0, b"");
        match branch.checked_add(1) {
            Some(next) => {
                let to = name_key(next, 0, b"");
                self.names.retain_in(from.as_slice()..to.as_slice(), |_, _| false)?;
                self.links.retain_in(from.as_slice()..to.as_slice(), |_, ()| false)?;
            }
            None => {
                self.names.retain_in(from.as_slice().., |_, _| false)?;
                self.links.retain_in(from.as_slice().., |_, ()| false)?;
            }
        }
        Ok(())
    }

    /// The branch is as `looks` have shown; the directories of `relist` are to be listed again. Returns which directories are to be
    /// listed now.
    ///
    /// The names of a directory that is not in the catalogue are left out: it is listed when it is found, and until then nothing
    /// would lead to them.
    ///
    /// # Errors
    /// The database failed.
    pub fn apply(
        &mut self,
        (branch, walk): (u16, u32),
        looks: &[Look],
        relist: impl IntoIterator<Item = u64>,
    ) -> Result<Vec<u64>> {
        let mut due = Vec::new();
        for look in looks {
            if self.dirs.get((branch, look.dir))?.is_none() {
                continue;
            }
            for (name, row) in &look.names {
                if let Listed::Not(number) = self.set((branch, walk), look.dir, name, row.as_ref())? {
                    due.push(number);
                }
            }
        }
        // Last: the look at the directory's name may have come before the look at the directory.
        for look in looks {
            self.set_dir(branch, look.dir, &look.itself)?;
        }
        for number in relist {
            if self.unlist(branch, number)? {
                due.push(number);
            }
        }
        Ok(due)
    }

    /// The name in the directory `dir` of a branch is as `row` says; None: it is gone. The branch is at its walk `walk`.
    ///
    /// # Errors
    /// The database failed.
    pub fn set(
        &mut self,
        (branch, walk): (u16, u32),
        dir: u64,
        name: &[u8],
        row: Option<&Row>,
    ) -> Result<Listed> {
        self.turns.next();
        let key = name_key(branch, dir, name);
        let (before, row) = match row {
            Some(row) => {
                let before = self.names.get(key.as_slice())?.and_then(|old| Row::parse(old.value()));
                let row = row.stored_after(before.as_ref());
                if before != Some(row) {
                    self.names.insert(key.as_slice(), row.encode().as_slice())?;
                }
                (before, Some(row))
            }
            None => (self.names.remove(key.as_slice())?.and_then(|old| Row::parse(old.value())), None),
        };
        self.set_link(branch, &key, before.as_ref(), row.as_ref())?;
        let now = row.and_then(|row| row.dir());
        if let Some(old) = before.and_then(|before| before.dir()).filter(|old| Some(*old) != now) {
            self.lost.insert((branch, old));
        }
        let Some(number) = now else { return Ok(Listed::Known) };
        let known = self.dirs.get((branch, number))?.map(|row| {
            let (above, by, known_as) = row.value();
            (by, above == dir && known_as == name)
        });
        let by = known.map_or(NEVER, |(by, _)| by);
        if known.is_none_or(|(_, same)| !same) {
            self.dirs.insert((branch, number), (dir, by, name))?;
        }
        Ok(if by == walk { Listed::Known } else { Listed::Not(number) })
    }

    /// The name with this key had the row `before`, and has `row` now. A file's other names get the same.
    fn set_link(&mut self, branch: u16, key: &[u8], before: Option<&Row>, row: Option<&Row>) -> Result<()> {
        let (was, is) = (before.and_then(Row::linked), row.and_then(Row::linked));
        if let Some(file) = was.filter(|_| was != is) {
            self.links.remove(link_key(branch, file, key).as_slice())?;
            self.unlinked.insert((branch, file));
        }
        let (Some(file), Some(row)) = (is, row) else { return Ok(()) };
        self.seen.insert((branch, file));
        if was != is {
            self.links.insert(link_key(branch, file, key).as_slice(), ())?;
        }
        if before == Some(row) {
            return Ok(());
        }
        let bytes = row.encode();
        for other in self.other_names(branch, file, key, &bytes)? {
            let old = self.names.get(other.as_slice())?.and_then(|old| Row::parse(old.value()));
            if old.is_some_and(|old| old.linked() == Some(file)) {
                self.names.insert(other.as_slice(), bytes.as_slice())?;
            } else {
                // An earlier build, which does not know the links, has removed the name.
                self.links.remove(link_key(branch, file, &other).as_slice())?;
            }
        }
        Ok(())
    }

    /// Keys of the names of a file besides `key`, unless they have the row `bytes`: all others are equal.
    fn other_names(&self, branch: u16, file: u64, key: &[u8], bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        for link in self.links.range(link_key(branch, file, &[]).as_slice()..)? {
            let (link, _) = link?;
            let Some((dir, name)) = name_in_link(branch, file, link.value()) else { break };
            let other = name_key(branch, dir, name);
            if other == key {
                continue;
            }
            if found.is_empty() && self.names.get(other.as_slice())?.is_some_and(|row| row.value() == bytes) {
                break;
            }
            found.push(other);
        }
        Ok(found)
    }

    /// The directory `dir` itself is as `row` says; its place is known. The root of a branch has no row.
    ///
    /// # Errors
    /// The database failed.
    pub fn set_dir(&mut self, branch: u16, dir: u64, row: &Row) -> Result<()> {
        let Some((above, name)) = self.dirs.get((branch, dir))?.map(|row| {
            let (above, _, name) = row.value();
            (above, name.to_vec())
        }) else {
            return Ok(());
        };
        let key = name_key(branch, above, &name);
        let is_its_own = self
            .names
            .get(key.as_slice())?
            .and_then(|old| Row::parse(old.value()))
            .is_some_and(|old| old.dir() == Some(dir) && old != *row);
        if is_its_own {
            self.names.insert(key.as_slice(), row.encode().as_slice())?;
        }
        Ok(())
    }

    /// The directory `dir` has these names, in the order of their bytes, and no others: it is listed.
    ///
    /// # Errors
    /// The database failed.
    pub fn listed(&mut self, (branch, walk): (u16, u32), dir: u64, names: &[Box<[u8]>]) -> Result<()> {
        let stale = self
            .names_of(branch, dir, |name, _| names.binary_search_by(|known| (**known).cmp(name)).is_err())?;
        for name in stale {
            self.set((branch, walk), dir, &name, None)?;
        }
        let at = self.dirs.get((branch, dir))?.map(|row| {
            let (above, _, name) = row.value();
            (above, name.to_vec())
        });
        if let Some((above, name)) = at {
            self.dirs.insert((branch, dir), (above, walk, name.as_slice()))?;
        }
        Ok(())
    }

    /// The directory cannot be listed: it, and what is below it, counts as listed with what is known of it.
    ///
    /// # Errors
    /// The database failed.
    pub fn keep_listed(&mut self, (branch, walk): (u16, u32), dir: u64) -> Result<()> {
        let mut waiting = vec![dir];
        while let Some(dir) = waiting.pop() {
            let at = self.dirs.get((branch, dir))?.map(|row| {
                let (above, last, name) = row.value();
                (above, last, name.to_vec())
            });
            if let Some((above, _, name)) = at.filter(|(_, last, _)| *last != walk) {
                self.dirs.insert((branch, dir), (above, walk, name.as_slice()))?;
                self.names_of(branch, dir, |_, row| {
                    waiting.extend(row.dir());
                    false
                })?;
            }
        }
        Ok(())
    }

    /// The directory is to be listed again. False: it is not in the catalogue.
    ///
    /// # Errors
    /// The database failed.
    pub fn unlist(&mut self, branch: u16, dir: u64) -> Result<bool> {
        let at = self.dirs.get((branch, dir))?.map(|row| {
            let (above, _, name) = row.value();
            (above, name.to_vec())
        });
        match at {
            Some((above, name)) => {
                self.dirs.insert((branch, dir), (above, NEVER, name.as_slice()))?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// The directory above `dir`. None: `dir` is not in the catalogue.
    ///
    /// # Errors
    /// The database failed.
    pub fn above(&self, branch: u16, dir: u64) -> Result<Option<u64>> {
        Ok(self.dirs.get((branch, dir))?.map(|row| row.value().0))
    }

    /// Up to `most` directories of a branch that the walk has not listed.
    ///
    /// # Errors
    /// The database failed.
    pub fn unlisted(&self, branch: u16, walk: u32, most: usize) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        for row in self.dirs.range((branch, 0)..=(branch, u64::MAX))? {
            let (key, row) = row?;
            if row.value().1 != walk {
                found.push(key.value().1);
                if found.len() >= most {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Removes the directory `dir` and all that is known below it.
    ///
    /// # Errors
    /// The database failed.
    pub fn remove_dir(&mut self, branch: u16, dir: u64) -> Result<()> {
        let mut waiting = vec![dir];
        while let Some(dir) = waiting.pop() {
            self.dirs.remove((branch, dir))?;
            let below = self.names_of(branch, dir, |_, row| row.number.is_some())?;
            for name in below {
                let key = name_key(branch, dir, &name);
                let Some(row) = self.names.get(key.as_slice())?.and_then(|row| Row::parse(row.value()))
                else {
                    continue;
                };
                self.set_link(branch, &key, Some(&row), None)?;
                // One that was renamed away meanwhile lies elsewhere.
                if let Some(number) = row.dir().filter(|number| self.is_at(branch, *number, dir, &name)) {
                    waiting.push(number);
                }
            }
            let from = name_key(branch, dir, b"");
            match key_behind(branch, dir) {
                Some(to) => self.names.retain_in(from.as_slice()..to.as_slice(), |_, _| false)?,
                None => self.names.retain_in(from.as_slice().., |_, _| false)?,
            }
        }
        Ok(())
    }

    fn is_at(&self, branch: u16, dir: u64, above: u64, name: &[u8]) -> bool {
        self.dirs.get((branch, dir)).is_ok_and(|row| {
            row.is_some_and(|row| {
                let (known_above, _, known_as) = row.value();
                known_above == above && known_as == name
            })
        })
    }

    fn names_of(
        &self,
        branch: u16,
        dir: u64,
        mut wanted: impl FnMut(&[u8], &Row) -> bool,
    ) -> Result<Vec<Vec<u8>>> {
        let from = name_key(branch, dir, b"");
        let to = key_behind(branch, dir);
        let range = match &to {
            Some(to) => self.names.range(from.as_slice()..to.as_slice())?,
            None => self.names.range(from.as_slice()..)?,
        };
        let mut found = Vec::new();
        for row in range {
            let (key, row) = row?;
            let name = key.value().get(from.len()..).unwrap_or_default();
            // A value that cannot be read as a row is removed.
            if Row::parse(row.value()).is_none_or(|row| wanted(name, &row)) {
                found.push(name.to_vec());
            }
        }
        Ok(found)
    }

    /// Removes directories that have lost their row and are nowhere else. Returns branch and number of files that lost a name, have
    /// another one, and were not looked at.
    pub(crate) fn end(mut self) -> Result<Vec<(u16, u64)>> {
        for (branch, dir) in std::mem::take(&mut self.lost) {
            let at = self.dirs.get((branch, dir))?.map(|row| {
                let (above, _, name) = row.value();
                (above, name.to_vec())
            });
            let Some((above, name)) = at else { continue };
            let row = self.names.get(name_key(branch, above, &name).as_slice())?;
            let is_there =
                row.is_some_and(|row| Row::parse(row.value()).is_some_and(|row| row.dir() == Some(dir)));
            if !is_there {
                self.remove_dir(branch, dir)?;
            }
        }
        Ok(self.unlinked.difference(&self.seen).copied().collect())
    }
}
