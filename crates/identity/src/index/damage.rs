//! Damaged index files: the damage is detected, or has no effect.

use std::fs;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fsstack_pool::{BranchId, Ino};

use super::store::{DbResult, EntryKind, IndexEntry, Store, StoreWhen};
use crate::number::Identity;

/// Number of objects in the index under test.
const MANY: u64 = 100;

fn row(n: u64) -> (Identity, Ino, u32) {
    (Identity { ino: Ino(1 << 48 | n), generation: 7 }, Ino(2 << 48 | n), 3)
}

/// Makes an index with files and directories, closed cleanly.
fn fill(path: &Path) {
    let store = Store::make(Some(path), [9; 16]).unwrap();
    let rows: Vec<_> = (0..MANY).map(row).collect();
    store.note(StoreWhen::Soon, EntryKind::File, &rows[..70]).unwrap();
    store.note(StoreWhen::Now, EntryKind::Dir, &rows[70..]).unwrap();
    store.note_member(BranchId::MIN, Path::new("/disk")).unwrap();
    store.set_covered(BranchId::MIN, 2).unwrap();
    store.set_closed(true).unwrap();
}

/// Everything that an index contains.
#[derive(Debug, PartialEq)]
struct IndexContent {
    numbers: Vec<Ino>,
    known: Vec<Option<Identity>>,
    places: Vec<IndexEntry>,
    members: Vec<BranchId>,
    covered: u8,
    about: ([u8; 16], bool),
}

fn content(store: &Store) -> DbResult<IndexContent> {
    let mut numbers = Vec::new();
    store.numbers(|ino| numbers.push(ino))?;
    let (mut known, mut places) = (Vec::new(), Vec::new());
    for (id, natural, birth) in (0..MANY).map(row) {
        known.push(store.known(natural, birth)?);
        places.extend(store.places(id.ino)?);
    }
    let members = store.members()?.into_iter().map(|(id, _)| id).collect();
    let covered = store.covered(BranchId::MIN, store.id)?;
    Ok(IndexContent { numbers, known, places, members, covered, about: (store.id, store.was_closed) })
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

#[test]
fn a_flipped_bit_is_found_out_or_means_nothing() {
    let dir = dir();
    let path = dir.path().join("index.redb");
    fill(&path);
    let sound = fs::read(&path).unwrap();
    let expected = content(&Store::open(&path).unwrap().unwrap()).unwrap();
    assert!(expected.about == ([9; 16], true) && expected.covered == 2 && expected.places.len() == 100);
    let (mut damaged, mut unharmed) = (0, 0);
    let pages = sound.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    for at in pages.flat_map(|(n, page)| (0..page.len()).step_by(64).map(move |at| n * 4096 + at + n % 64)) {
        let mut flipped = sound.clone();
        let Some(byte) = flipped.get_mut(at) else { continue };
        *byte ^= 1 << (at / 64 % 8);
        fs::write(&path, &flipped).unwrap();
        let opened = catch_unwind(AssertUnwindSafe(|| match Store::open(&path) {
            Ok(Some(store)) => content(&store).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        }));
        match opened {
            Err(_) => panic!("at {at}"),
            Ok(Err(error)) => {
                assert!(error.is_damage() || error.to_string().contains("pgrade"), "at {at}: {error}");
                damaged += 1;
            }
            Ok(Ok(None)) => damaged += 1,
            Ok(Ok(Some(reported))) => {
                assert_eq!(reported, expected, "at {at}");
                unharmed += 1;
            }
        }
    }
    println!("{damaged} found out, {unharmed} unharmed, of {} bytes", sound.len());
    assert!(damaged > 100);
}

#[test]
fn damage_of_an_open_index_is_an_error() {
    let dir = dir();
    let path = dir.path().join("index.redb");
    fill(&path);
    let sound = fs::read(&path).unwrap();
    let mut damaged = 0;
    for page in (1..sound.len() / 4096).filter(|n| sound[n * 4096..][..4096].iter().any(|byte| *byte != 0)) {
        fs::write(&path, &sound).unwrap();
        // Without a cache every page is read from the file.
        let store = Store::open_with(&path, 0).unwrap().unwrap();
        let expected = content(&store).unwrap();
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut is = [0; 4096];
        file.read_exact_at(&mut is, page as u64 * 4096).unwrap();
        is.iter_mut().step_by(7).for_each(|byte| *byte ^= 0x55);
        file.write_all_at(&is, page as u64 * 4096).unwrap();
        let asked = catch_unwind(AssertUnwindSafe(|| {
            let reported = content(&store)?;
            store.note(StoreWhen::Now, EntryKind::File, &[row(MANY)])?;
            Ok::<_, super::StoreError>(reported)
        }));
        match asked {
            Err(_) => panic!("page {page}"),
            Ok(Ok(reported)) => assert_eq!(reported, expected, "page {page}"),
            Ok(Err(error)) => {
                assert!(error.is_damage(), "page {page}: {error}");
                damaged += 1;
            }
        }
    }
    assert!(damaged > 3, "{damaged}");
}
