//! The tables of the index, in an embedded database: one file, crash-safe, with a cache of fixed size.

use std::path::Path;

use fsstack_database::Pages;
use fsstack_pool::Ino;
use redb::backends::InMemoryBackend;
use redb::{
    Database, Durability, Key, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError,
    TableHandle, Value,
};
use smallvec::SmallVec;

use crate::number::{self, Identity};
use crate::poolid::PoolId;

/// Memory limit of the database's cache.
const CACHE: usize = 16 << 20;

/// From the number that branch and inode number make to the birth of the object that had it, and the identity in force.
const KNOWN: TableDefinition<'_, u64, (u32, u64, u32)> = TableDefinition::new("known");
/// From the identity in force to the numbers that branch and inode number make: one for a file, one for each copy of a
/// directory but its first. The first byte of the value is [`EntryKind`].
const PLACES: TableDefinition<'_, (u64, u32), &[u8]> = TableDefinition::new("places");
/// From the number that branch and inode number make to branch, walk, directory and name of the last sighting.
pub(super) const NAMES: TableDefinition<'_, u64, (u16, u64, u64, &[u8])> = TableDefinition::new("seen");
/// Old form of [`NAMES`], from before scans were distinguished: removed.
const OUTDATED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("names");
/// The index's own id, under the key 0; whether it was closed cleanly, under 1.
const ABOUT: TableDefinition<'_, u8, &[u8]> = TableDefinition::new("about");

const ID: u8 = 0;
const CLOSED: u8 = 1;

/// Kind of an entry's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// A file that is not where its number says.
    File,
    /// A directory with copies besides the one that its number says.
    Dir,
}

/// Where the object that has an identity is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The object.
    pub id: Identity,
    sort: EntryKind,
    /// The numbers that branch and inode number make.
    pub naturals: SmallVec<[Ino; 2]>,
}

impl IndexEntry {
    /// Entry of the file `id`, which would have the number `natural` where it is.
    pub(super) fn of_file(id: Identity, natural: Ino) -> Self {
        Self { id, sort: EntryKind::File, naturals: SmallVec::from_slice(&[natural]) }
    }

    /// True for a directory: the number itself may lead to another copy.
    pub fn is_dir(&self) -> bool {
        self.sort == EntryKind::Dir
    }
}

/// The database failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct StoreError(Box<redb::Error>);

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self(Box::new(error.into()))
    }
}

impl StoreError {
    /// Another daemon has the index open.
    pub(super) fn is_in_use(&self) -> bool {
        matches!(*self.0, redb::Error::DatabaseAlreadyOpen)
    }

    /// True if the file is no index, or not all of one. Any other error may be over the next time.
    pub(super) fn is_damage(&self) -> bool {
        use std::io::ErrorKind::{InvalidData, UnexpectedEof};
        match &*self.0 {
            redb::Error::Corrupted(_)
            | redb::Error::TableDoesNotExist(_)
            | redb::Error::TableTypeMismatch { .. } => true,
            redb::Error::Io(error) => matches!(error.kind(), InvalidData | UnexpectedEof),
            _ => false,
        }
    }
}

pub(super) type DbResult<T> = std::result::Result<T, StoreError>;

/// An open index.
#[derive(Debug)]
pub(super) struct Store {
    db: Database,
    /// Random id, made with the database.
    pub(super) id: [u8; 16],
    /// Random id of this session, made when it was opened; branches bear it (`signed.rs`).
    pub(super) session: [u8; 16],
    /// True if it was closed cleanly the last time.
    pub(super) was_closed: bool,
    /// True if it is a file, which outlives the daemon.
    pub(super) durable: bool,
}

/// How soon a change is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreWhen {
    /// When the call returns.
    Now,
    /// With the next change that is on disk, or within a second.
    Soon,
}

impl Store {
    /// Opens the index at `path`, and checks all of it. None: there is no file.
    pub(super) fn open(path: &Path) -> DbResult<Option<Self>> {
        Self::open_with(path, CACHE)
    }

    pub(super) fn open_with(path: &Path, cache: usize) -> DbResult<Option<Self>> {
        match path.metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            // redb would make a new database in an empty file.
            Ok(meta) if meta.is_file() && meta.len() == 0 => {
                return Err(redb::StorageError::Corrupted("the file is empty".into()).into());
            }
            meta => meta.map_err(redb::StorageError::Io)?,
        };
        let mut builder = builder();
        let builder = builder.set_cache_size(cache).set_check_integrity_on_open(true);
        let db = builder.create_with_backend(Pages::open(path)?)?;
        let read = db.begin_read()?;
        let about = read.open_table(ABOUT)?;
        let id = about.get(ID)?.and_then(|id| id.value().try_into().ok());
        let was_closed = about.get(CLOSED)?.is_some_and(|closed| closed.value() == [1]);
        let outdated = read.list_tables()?.any(|table| table.name() == OUTDATED.name());
        drop((about, read));
        if outdated {
            let change = db.begin_write()?;
            change.delete_table(OUTDATED)?;
            change.commit()?;
        }
        let session = PoolId::fresh().0;
        Ok(id.map(|id| Self { db, id, session, was_closed, durable: true }))
    }

    /// Makes a new index; in memory without a path.
    pub(super) fn make(path: Option<&Path>, id: [u8; 16]) -> DbResult<Self> {
        let db = match path {
            Some(path) => builder().create_with_backend(Pages::open(path)?)?,
            None => builder().create_with_backend(InMemoryBackend::new())?,
        };
        let session = PoolId::fresh().0;
        let store = Self { db, id, session, was_closed: false, durable: path.is_some() };
        store.change(StoreWhen::Now, |tables| {
            tables.open_table(KNOWN)?;
            tables.open_table(PLACES)?;
            tables.open_table(ABOUT)?.insert(ID, id.as_slice())?;
            Ok(())
        })?;
        Ok(store)
    }

    pub(super) fn change(
        &self,
        when: StoreWhen,
        act: impl FnOnce(&redb::WriteTransaction) -> DbResult<()>,
    ) -> DbResult<()> {
        let mut change = self.db.begin_write()?;
        if when == StoreWhen::Soon {
            change.set_durability(Durability::None).map_err(redb::Error::from)?;
        }
        act(&change)?;
        change.commit()?;
        Ok(())
    }

    /// Returns a snapshot of the index.
    pub(super) fn begin_read(&self) -> DbResult<redb::ReadTransaction> {
        Ok(self.db.begin_read()?)
    }

    /// Writes all changes so far to disk.
    pub(super) fn flush(&self) -> DbResult<()> {
        self.change(StoreWhen::Now, |_| Ok(()))
    }

    /// Records whether it counts as closed cleanly.
    pub(super) fn set_closed(&self, closed: bool) -> DbResult<()> {
        self.change(StoreWhen::Now, |tables| {
            tables.open_table(ABOUT)?.insert(CLOSED, [u8::from(closed)].as_slice())?;
            Ok(())
        })
    }

    /// Returns the identity in force of the object born at `birth` that would have the number `natural`.
    pub(super) fn known(&self, natural: Ino, birth: u32) -> DbResult<Option<Identity>> {
        let read = self.db.begin_read()?;
        let found = read.open_table(KNOWN)?.get(natural.0)?.map(|found| found.value());
        Ok(found
            .filter(|(born, ..)| *born == birth)
            .map(|(_, ino, generation)| Identity { ino: Ino(ino), generation }))
    }

    /// Returns the entries of the objects that have, or had, the number `ino`.
    pub(super) fn places(&self, ino: Ino) -> DbResult<SmallVec<[IndexEntry; 1]>> {
        let read = self.db.begin_read()?;
        let table = read.open_table(PLACES)?;
        let mut found = SmallVec::new();
        for row in table.range((ino.0, 0)..=(ino.0, u32::MAX))? {
            let (key, value) = row?;
            let (ino, generation) = key.value();
            found.extend(parse(Identity { ino: Ino(ino), generation }, value.value()));
        }
        Ok(found)
    }

    /// Records for each identity that the object, or a copy of it, would have the number `natural` where it is.
    pub(super) fn note(&self, at: StoreWhen, sort: EntryKind, new: &[(Identity, Ino, u32)]) -> DbResult<()> {
        self.change(at, |tables| {
            let mut known = tables.open_table(KNOWN)?;
            let mut places = tables.open_table(PLACES)?;
            for (id, natural, birth) in new {
                let key = (id.ino.0, id.generation);
                let before = places.get(key)?.and_then(|value| parse(*id, value.value()));
                if sort == EntryKind::File {
                    known.insert(natural.0, (*birth, id.ino.0, id.generation))?;
                }
                // A file that is moved again is still in its old place, too. A directory has one copy on a branch.
                let branch = number::branch_of(*natural).filter(|_| sort == EntryKind::Dir);
                let stays =
                    |at: &Ino| at != natural && (branch.is_none() || number::branch_of(*at) != branch);
                let before = before.into_iter().flat_map(|entry| entry.naturals);
                let mut naturals: SmallVec<[Ino; 2]> = before.filter(stays).collect();
                naturals.push(*natural);
                places.insert(key, bytes(sort, &naturals).as_slice())?;
            }
            Ok(())
        })
    }

    /// Removes objects; with a number, just the object's entry at that.
    pub(super) fn forget(&self, objects: &[(Identity, Option<Ino>)]) -> DbResult<()> {
        self.change(StoreWhen::Soon, |tables| {
            let mut known = tables.open_table(KNOWN)?;
            let mut places = tables.open_table(PLACES)?;
            for (id, only) in objects {
                let key = (id.ino.0, id.generation);
                let Some(mut entry) = places.get(key)?.and_then(|value| parse(*id, value.value())) else {
                    continue;
                };
                let goes = |natural: Ino| only.is_none_or(|only| only == natural);
                for natural in entry.naturals.iter().copied().filter(|natural| goes(*natural)) {
                    if known.get(natural.0)?.is_some_and(|row| (row.value().1, row.value().2) == key) {
                        known.remove(natural.0)?;
                    }
                }
                entry.naturals.retain(|natural| !goes(*natural));
                match entry.naturals.is_empty() {
                    true => places.remove(key)?,
                    false => places.insert(key, bytes(entry.sort, &entry.naturals).as_slice())?,
                };
            }
            Ok(())
        })
    }

    /// Returns up to `count` objects by ascending number, from `from` on, then from the first on.
    pub(super) fn some(&self, from: u64, count: usize) -> DbResult<Vec<Identity>> {
        let read = self.db.begin_read()?;
        let table = read.open_table(PLACES)?;
        let mut found = Vec::new();
        for row in table.range((from, 0)..)?.chain(table.range(..(from, 0))?).take(count) {
            let (ino, generation) = row?.0.value();
            found.push(Identity { ino: Ino(ino), generation });
        }
        Ok(found)
    }

    /// Calls `each` with every number in the index.
    pub(super) fn numbers(&self, mut each: impl FnMut(Ino)) -> DbResult<()> {
        let read = self.db.begin_read()?;
        // Places of files are in `KNOWN` too, those of directories are not.
        for row in read.open_table(PLACES)?.iter()? {
            let (key, value) = row?;
            let id = Identity { ino: Ino(key.value().0), generation: key.value().1 };
            each(id.ino);
            parse(id, value.value()).iter().flat_map(|entry| &entry.naturals).copied().for_each(&mut each);
        }
        for row in read.open_table(KNOWN)?.iter()? {
            each(Ino(row?.0.value()));
        }
        Ok(())
    }

    /// Returns the number of objects in the index.
    pub(super) fn len(&self) -> DbResult<u64> {
        use redb::ReadableTableMetadata;
        Ok(self.db.begin_read()?.open_table(PLACES)?.len()?)
    }
}

/// Opens a table. None: nothing was ever put into it.
pub(super) fn table<K: Key + 'static, V: Value + 'static>(
    read: &ReadTransaction,
    which: TableDefinition<'_, K, V>,
) -> DbResult<Option<redb::ReadOnlyTable<K, V>>> {
    match read.open_table(which) {
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        table => Ok(Some(table?)),
    }
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder
}

fn bytes(sort: EntryKind, naturals: &[Ino]) -> Vec<u8> {
    let mut bytes = vec![u8::from(sort == EntryKind::Dir)];
    naturals.iter().for_each(|natural| bytes.extend_from_slice(&natural.0.to_le_bytes()));
    bytes
}

fn parse(id: Identity, bytes: &[u8]) -> Option<IndexEntry> {
    let (sort, naturals) = bytes.split_first()?;
    let naturals = naturals.chunks_exact(8).filter_map(|n| Some(Ino(u64::from_le_bytes(n.try_into().ok()?))));
    let sort = if *sort == 1 { EntryKind::Dir } else { EntryKind::File };
    Some(IndexEntry { id, sort, naturals: naturals.collect() })
}

#[cfg(test)]
mod tests {
    use fsstack_pool::BranchId;

    use super::super::names::Name;
    use super::*;

    fn id(n: u64) -> Identity {
        Identity { ino: Ino(n), generation: 7 }
    }

    fn fresh() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::make(Some(&dir.path().join("index.redb")), [9; 16]).unwrap();
        (dir, store)
    }

    #[test]
    fn entries_are_found_both_ways_and_after_the_index_was_closed() {
        let (dir, store) = fresh();
        store.note(StoreWhen::Now, EntryKind::File, &[(id(5), Ino(1005), 3)]).unwrap();
        store.note(StoreWhen::Soon, EntryKind::Dir, &[(id(6), Ino(1006), 0), (id(6), Ino(2006), 0)]).unwrap();
        store.set_closed(true).unwrap();
        drop(store);
        let store = Store::open(&dir.path().join("index.redb")).unwrap().unwrap();
        assert!(store.was_closed && store.id == [9; 16]);
        assert_eq!(store.known(Ino(1005), 3).unwrap(), Some(id(5)));
        assert_eq!(store.known(Ino(1005), 4).unwrap(), None, "another birth");
        assert_eq!(store.places(Ino(6)).unwrap()[0].naturals[..], [Ino(1006), Ino(2006)]);
        assert_eq!(store.some(6, 1).unwrap(), [id(6)]);
        assert_eq!(store.some(6, 9).unwrap(), [id(6), id(5)]);
        let mut numbers = Vec::new();
        store.numbers(|ino| numbers.push(ino.0)).unwrap();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers, [5, 6, 1005, 1006, 2006]);
    }

    #[test]
    fn a_file_that_moves_again_has_two_places_until_one_is_forgotten() {
        let (_dir, store) = fresh();
        store.note(StoreWhen::Now, EntryKind::File, &[(id(5), Ino(1005), 3)]).unwrap();
        store.note(StoreWhen::Now, EntryKind::File, &[(id(5), Ino(2005), 4)]).unwrap();
        assert_eq!(store.places(Ino(5)).unwrap()[0].naturals[..], [Ino(1005), Ino(2005)]);
        assert_eq!(store.known(Ino(1005), 3).unwrap(), Some(id(5)));
        store.forget(&[(id(5), Some(Ino(1005)))]).unwrap();
        assert_eq!(store.known(Ino(1005), 3).unwrap(), None);
        assert_eq!(store.places(Ino(5)).unwrap()[0].naturals[..], [Ino(2005)]);
        store.forget(&[(id(5), None)]).unwrap();
        assert_eq!((store.len().unwrap(), store.known(Ino(2005), 4).unwrap()), (0, None));
    }

    #[test]
    fn names_are_remembered_and_the_last_one_counts() {
        let (dir, store) = fresh();
        assert_eq!(store.name(Ino(5)).unwrap(), None);
        let seen = |name: &[u8], branch, look| Name { branch, look, parent: Ino(0), name: name.to_vec() };
        let name = |name: &[u8]| seen(name, BranchId::MIN, 1);
        store.note_names(&[(Ino(5), name(b"a")), (Ino(6), name(b"b"))]).unwrap();
        store.note_names(&[(Ino(5), name(b"c"))]).unwrap();
        store.flush().unwrap();
        drop(store);
        let store = Store::open(&dir.path().join("index.redb")).unwrap().unwrap();
        assert_eq!(store.name(Ino(5)).unwrap(), Some(name(b"c")));
        assert_eq!(store.name(Ino(6)).unwrap(), Some(name(b"b")));
        assert_eq!((store.name(Ino(7)).unwrap(), store.len().unwrap()), (None, 0));
        // Another walk has seen one of them; the other branch was not walked.
        let (again, elsewhere) = (seen(b"c", BranchId::MIN, 2), seen(b"e", BranchId::MAX, 1));
        store.note_names(&[(Ino(5), again.clone()), (Ino(9), elsewhere.clone())]).unwrap();
        store.forget_names(BranchId::MIN, 2).unwrap();
        let known = [5, 6, 9].map(|n| store.name(Ino(n)).unwrap());
        assert_eq!(known, [Some(again), None, Some(elsewhere)]);
    }

    #[test]
    fn an_outdated_table_goes_when_it_is_opened() {
        let (dir, store) = fresh();
        let old = TableDefinition::<u64, (u16, u64, &[u8])>::new("names");
        let put = |tables: &redb::WriteTransaction| {
            tables.open_table(old)?.insert(5, (1, 0, b"a".as_slice()))?;
            Ok(())
        };
        store.change(StoreWhen::Now, put).unwrap();
        drop(store);
        for _ in 0..2 {
            let store = Store::open(&dir.path().join("index.redb")).unwrap().unwrap();
            assert!(store.begin_read().unwrap().list_tables().unwrap().all(|table| table.name() != "names"));
        }
    }

    #[test]
    fn a_damaged_file_does_not_open() {
        let (dir, store) = fresh();
        drop(store);
        std::fs::write(dir.path().join("index.redb"), "garbage").unwrap();
        assert!(Store::open(&dir.path().join("index.redb")).is_err());
        assert!(Store::open(std::path::Path::new("/nonexistent/index.redb")).unwrap().is_none());
    }

    /// Prints figures: `cargo test --release -p fsstack-engine -- --ignored --nocapture a_million`.
    #[test]
    #[ignore = "takes a while: run for its figures"]
    fn a_million_moved_files_take_little_memory() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() << 12
        };
        let (dir, store) = fresh();
        let path = dir.path().join("index.redb");
        for batch in 0..1000_u64 {
            let row = |n: u64| (id(1 << 48 | n), Ino(2 << 48 | n.wrapping_mul(0x9e37_79b9) & 0xffff_ffff), 3);
            let rows: Vec<_> = (batch * 1000..(batch + 1) * 1000).map(row).collect();
            store.note(StoreWhen::Soon, EntryKind::File, &rows).unwrap();
        }
        store.set_closed(true).unwrap();
        drop(store);
        let before = resident();
        let began = fsstack_sync::time::Instant::now();
        let store = Store::open(&path).unwrap().unwrap();
        println!(
            "opened and looked through after {:?}, file of {} MiB",
            began.elapsed(),
            path.metadata().unwrap().len() >> 20
        );
        let filter = super::super::filter::Filter::default();
        let began = fsstack_sync::time::Instant::now();
        store.numbers(|ino| filter.put(ino)).unwrap();
        println!("filter filled after {:?}", began.elapsed());
        let mut took: Vec<_> = (0..100_000_u64)
            .map(|n| {
                let began = fsstack_sync::time::Instant::now();
                let found = store.places(Ino((1 << 48) | (n.wrapping_mul(7919) % 1_000_000))).unwrap();
                assert_eq!(found.len(), 1);
                began.elapsed()
            })
            .collect();
        took.sort();
        println!("place of a number: median {:?}, p99 {:?}", took[50_000], took[99_000]);
        let grown = resident().saturating_sub(before);
        println!("resident memory: {} MiB more", grown >> 20);
        assert!(grown < 64 << 20, "{grown}");
    }
}
