//! The tables, in an embedded database: one file, crash-safe, with a cache of fixed size.
//!
//! Changes are on disk with the next [`Catalogue::flush`]. What a crash takes away is not missed: a branch counts as complete
//! only after its state was written at a clean end.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use fsstack_database::{Pages, Soundness};
use fsstack_sync::Mutex;
use redb::{
    Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
};

use crate::Result;
use crate::batch::Batch;

/// Memory limit of the database's cache.
const CACHE: usize = 8 << 20;
/// Version of the tables; a catalogue of another version is made anew.
const VERSION: u64 = 1;

/// From branch, directory and name, as [`name_key`] makes it, to a [`crate::Row`].
pub(crate) const NAMES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("names");
/// From branch and directory to the directory above, the walk that has listed it, and its name.
pub(crate) const DIRS: TableDefinition<'_, (u16, u64), (u64, u32, &[u8])> = TableDefinition::new("dirs");
/// Names of files that have several: branch and file, then directory and name, as [`link_key`] makes it. All have equal rows in [`NAMES`].
pub(crate) const LINKS: TableDefinition<'_, &[u8], ()> = TableDefinition::new("links");
/// A branch in [`BRANCHES`].
pub(crate) type BranchValue<'a> = (u64, u32, (bool, bool), u64, &'a [u8]);
/// From branch to its root, its walk, whether all of its names are known, whether that holds for the next mount, of what time they
/// are, and its path.
pub(crate) const BRANCHES: TableDefinition<'_, u16, BranchValue<'static>> = TableDefinition::new("branches");
/// The version, under the key 0.
const ABOUT: TableDefinition<'_, u8, u64> = TableDefinition::new("about");

/// The database failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CatalogueError(Box<redb::Error>);

impl<E: Into<redb::Error>> From<E> for CatalogueError {
    fn from(error: E) -> Self {
        Self(Box::new(error.into()))
    }
}

impl CatalogueError {
    /// Another daemon has the catalogue open.
    pub fn is_in_use(&self) -> bool {
        matches!(*self.0, redb::Error::DatabaseAlreadyOpen)
    }

    /// The file is no catalogue, or not all of one. Any other error may be over the next time.
    pub fn is_damage(&self) -> bool {
        use std::io::ErrorKind::{InvalidData, UnexpectedEof};
        match &*self.0 {
            redb::Error::Corrupted(_)
            | redb::Error::UpgradeRequired(_)
            | redb::Error::TableTypeMismatch { .. } => true,
            redb::Error::Io(error) => matches!(error.kind(), InvalidData | UnexpectedEof),
            _ => false,
        }
    }
}

/// State of a branch in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchRow {
    /// Number of the branch's root directory.
    pub root: u64,
    /// The walk over it: a directory that bears another number was not listed by it.
    pub walk: u32,
    /// All of its names are known.
    pub complete: bool,
    /// A session in which nothing but the pool changed it was closed cleanly: the next mount may rely on it.
    pub trusted: bool,
    /// Time up to which they are known: seconds since the epoch; 0: never.
    pub as_of: u64,
    /// Its path.
    pub path: Vec<u8>,
}

/// An open catalogue.
#[derive(Debug)]
pub struct Catalogue {
    pub(crate) db: Database,
    pub(crate) path: PathBuf,
    soundness: Mutex<Soundness>,
    /// Files of which another name is to be looked at, by their branches.
    unsure: Mutex<HashMap<u16, HashSet<u64>>>,
}

impl Catalogue {
    /// Opens the catalogue at `path`, or makes it. One of another version is made anew. All of it is checked after
    /// an open that ended the daemon, and if it is small after any that was not closed cleanly.
    ///
    /// # Errors
    /// The file is in use, damaged, not the daemon's own, or cannot be made.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, CACHE)
    }

    pub(crate) fn open_with(path: &Path, cache: usize) -> Result<Self> {
        Self::open_through(path, cache, |pages| pages)
    }

    /// Like [`Self::open_with`], with a file that `through` makes from the one at `path`.
    pub(crate) fn open_through<B: StorageBackend>(
        path: &Path,
        cache: usize,
        through: impl FnOnce(Pages) -> B,
    ) -> Result<Self> {
        let (pages, is_suspect) = Pages::open_with_sums(path)?;
        let soundness = pages.soundness();
        let mut builder = Database::builder();
        builder.set_cache_size(cache).set_check_integrity_on_open(is_suspect);
        let db = builder.create_with_backend(through(pages))?;
        let (path, soundness) = (path.to_owned(), Mutex::new(soundness));
        let catalogue = Self { db, path, soundness, unsure: Mutex::default() };
        let change = catalogue.db.begin_write()?;
        let version = {
            let about = change.open_table(ABOUT)?;
            about.get(0)?.map(|version| version.value())
        };
        if version != Some(VERSION) {
            change.delete_table(NAMES)?;
            change.delete_table(DIRS)?;
            change.delete_table(LINKS)?;
            change.delete_table(BRANCHES)?;
            change.open_table(ABOUT)?.insert(0, VERSION)?;
        }
        // Readers find all tables.
        change.open_table(NAMES)?;
        change.open_table(DIRS)?;
        change.open_table(LINKS)?;
        change.open_table(BRANCHES)?;
        change.commit()?;
        catalogue.soundness.lock().confirm();
        Ok(catalogue)
    }

    /// Makes the changes of `act` in one step. They are on disk with the next flush.
    ///
    /// # Errors
    /// The database failed; nothing is changed.
    pub fn change<T>(&self, act: impl FnOnce(&mut Batch<'_>) -> Result<T>) -> Result<T> {
        let mut change = self.db.begin_write()?;
        change.set_durability(Durability::None).map_err(redb::Error::from)?;
        let (done, unsure) = {
            let mut batch = Batch::new(&change)?;
            let done = act(&mut batch)?;
            (done, batch.end()?)
        };
        change.commit()?;
        unsure.into_iter().for_each(|(branch, file)| self.note_files(branch, [file]));
        Ok(done)
    }

    /// The files with these numbers have changed: another name of each is to be looked at.
    pub fn note_files(&self, branch: u16, files: impl IntoIterator<Item = u64>) {
        self.unsure.lock().entry(branch).or_default().extend(files);
    }

    /// Up to `most` files of a branch that lost a name, or were changed where no name was known. What the rows of their other names
    /// say may be of before: one of them is to be looked at ([`Self::name_of`]).
    pub fn take_unsure(&self, branch: u16, most: usize) -> Vec<u64> {
        let mut unsure = self.unsure.lock();
        unsure.get_mut(&branch).map_or_else(Vec::new, |files| files.extract_if(|_| true).take(most).collect())
    }

    /// Number of files that [`Self::take_unsure`] would return.
    pub fn unsure(&self, branch: u16) -> usize {
        self.unsure.lock().get(&branch).map_or(0, HashSet::len)
    }

    /// Forgets which files are unsure: the branch is walked.
    pub fn forget_unsure(&self, branch: u16) {
        self.unsure.lock().remove(&branch);
    }

    /// Directory and name of a file that has, or had, several.
    ///
    /// # Errors
    /// The database failed.
    pub fn name_of(&self, branch: u16, file: u64) -> Result<Option<(u64, Vec<u8>)>> {
        let links = self.read()?.open_table(LINKS)?;
        let mut names = links.range(link_key(branch, file, &[]).as_slice()..)?;
        let Some((key, ())) = names.next().transpose()?.map(|(key, row)| (key, row.value())) else {
            return Ok(None);
        };
        Ok(name_in_link(branch, file, key.value()).map(|(dir, name)| (dir, name.to_vec())))
    }

    /// Brings all changes so far to disk.
    ///
    /// # Errors
    /// The database failed.
    pub fn flush(&self) -> Result<()> {
        let mut change = self.db.begin_write()?;
        // The next open does not look through the whole file, however this one ends.
        change.set_quick_repair(true);
        change.commit()?;
        // If this fails, the next open checks the whole file.
        let _is_left = self.soundness.lock().settle();
        Ok(())
    }

    /// The branches in the catalogue, by their ids.
    ///
    /// # Errors
    /// The database failed.
    pub fn branches(&self) -> Result<Vec<(u16, BranchRow)>> {
        let read = self.read()?;
        let mut all = Vec::new();
        for row in read.open_table(BRANCHES)?.iter()? {
            let (id, row) = row?;
            all.push((id.value(), branch_row(row.value())));
        }
        Ok(all)
    }

    /// Number of names, of all branches.
    ///
    /// # Errors
    /// The database failed.
    pub fn names(&self) -> Result<u64> {
        use redb::ReadableTableMetadata;
        Ok(self.read()?.open_table(NAMES)?.len()?)
    }

    /// Bytes of the pages that are in use.
    ///
    /// # Errors
    /// The database failed.
    pub fn stored(&self) -> Result<u64> {
        let change = self.db.begin_write()?;
        let stats = change.stats()?;
        let used = stats.stored_bytes() + stats.metadata_bytes() + stats.fragmented_bytes();
        change.abort()?;
        Ok(used)
    }

    /// The path of a directory from its branch's root. None: it is not in the catalogue.
    ///
    /// # Errors
    /// The database failed.
    pub fn path(&self, branch: u16, dir: u64) -> Result<Option<Vec<u8>>> {
        let read = self.read()?;
        let (dirs, branches) = (read.open_table(DIRS)?, read.open_table(BRANCHES)?);
        let Some(root) = branches.get(branch)?.map(|row| row.value().0) else { return Ok(None) };
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = dir;
        while at != root {
            // A path has no more parts than bytes.
            let Some(row) = dirs.get((branch, at))?.filter(|_| names.len() < 1 << 16) else {
                return Ok(None);
            };
            let (above, _, name) = row.value();
            names.push(name.to_vec());
            at = above;
        }
        names.reverse();
        Ok(Some(names.join(&b'/')))
    }

    /// Whether the directory was listed by the walk.
    ///
    /// # Errors
    /// The database failed.
    pub fn is_listed(&self, branch: u16, dir: u64, walk: u32) -> Result<bool> {
        let dirs = self.read()?.open_table(DIRS)?;
        Ok(dirs.get((branch, dir))?.is_some_and(|row| row.value().1 == walk))
    }

    pub(crate) fn read(&self) -> Result<ReadTransaction> {
        Ok(self.db.begin_read()?)
    }
}

pub(crate) fn branch_row((root, walk, (complete, trusted), as_of, path): BranchValue<'_>) -> BranchRow {
    BranchRow { root, walk, complete, trusted, as_of, path: path.to_vec() }
}

/// The key of `name` in a directory: names of one directory are beside each other, in the order of their bytes.
pub(crate) fn name_key(branch: u16, dir: u64, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(10 + name.len());
    key.extend_from_slice(&branch.to_be_bytes());
    key.extend_from_slice(&dir.to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// The key of one name of a file, which [`name_key`] has made. Those of one file are beside each other.
pub(crate) fn link_key(branch: u16, file: u64, name_key: &[u8]) -> Vec<u8> {
    let name = name_key.get(2..).unwrap_or_default();
    [&branch.to_be_bytes()[..], &file.to_be_bytes(), name].concat()
}

/// Directory and name of a key that [`link_key`] has made. None: it is another file's.
pub(crate) fn name_in_link(branch: u16, file: u64, key: &[u8]) -> Option<(u64, &[u8])> {
    let (dir, name) = key.strip_prefix(link_key(branch, file, &[]).as_slice())?.split_first_chunk()?;
    Some((u64::from_be_bytes(*dir), name))
}

/// The first key behind those of a directory, or of a file in [`LINKS`]. None: there is none.
pub(crate) fn key_behind(branch: u16, dir: u64) -> Option<Vec<u8>> {
    match (dir.checked_add(1), branch.checked_add(1)) {
        (Some(next), _) => Some(name_key(branch, next, b"")),
        (None, Some(next)) => Some(name_key(next, 0, b"")),
        (None, None) => None,
    }
}
