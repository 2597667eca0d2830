//! Damaged catalogues: the damage is detected, or has no effect.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fsstack_pool::BranchId;

use crate::{Asked, BranchRow, Catalogue, FoundName, Result, Row, Subject};

const BRANCH: u16 = 7;
const ROOT: u64 = 1;
/// Number of directories, each with as many files.
const MANY: u64 = 16;

fn row(size: u64, dir: Option<u64>) -> Row {
    let mode = if dir.is_some() { 0o40_755 } else { 0o100_644 };
    Row { mode, uid: 1, gid: 2, size, sec: 3, nsec: 4, number: dir }
}

fn branch() -> BranchRow {
    BranchRow { root: ROOT, walk: 1, complete: true, trusted: true, as_of: 9, path: b"/disk".to_vec() }
}

/// Makes a catalogue, closed cleanly.
fn fill(path: &Path) {
    let catalogue = Catalogue::open(path).unwrap();
    let filled = catalogue.change(|batch| {
        batch.set_branch(BRANCH, &branch())?;
        for dir in 0..MANY {
            let number = 100 + dir;
            batch.set((BRANCH, 1), ROOT, format!("dir{dir}").as_bytes(), Some(&row(0, Some(number))))?;
            for file in 0..MANY {
                batch.set((BRANCH, 1), number, format!("file{file}").as_bytes(), Some(&row(file, None)))?;
            }
        }
        Ok(())
    });
    filled.unwrap();
    catalogue.flush().unwrap();
}

/// Branches, names, number of names, and names in the root.
type CatalogueContent = (Vec<(u16, BranchRow)>, Vec<FoundName>, u64, usize);

/// Everything that a catalogue contains.
fn content(catalogue: &Catalogue) -> Result<CatalogueContent> {
    let id = BranchId::new(BRANCH).unwrap();
    let asked = Asked {
        branches: &[id],
        subject: Subject::All,
        below: b"",
        wanted: &|_| true,
        after: None,
        most: 1000,
    };
    let page = catalogue.page(&asked)?;
    let listed = catalogue.list(&[(id, ROOT)], 1000)?.unwrap_or_default().len();
    Ok((catalogue.branches()?, page.names, catalogue.names()?, listed))
}

/// Asks and changes the catalogue in all ways.
fn use_all(catalogue: &Catalogue) -> Result<CatalogueContent> {
    let told = content(catalogue)?;
    catalogue.change(|batch| {
        batch.set((BRANCH, 1), ROOT, b"new", Some(&row(1, None)))?;
        batch.remove_dir(BRANCH, 100)?;
        batch.remove_branch(BRANCH)
    })?;
    catalogue.flush()?;
    catalogue.stored()?;
    Ok(told)
}

fn dir() -> tempfile::TempDir {
    // Without the rights of others it is believed, whatever the umask.
    let mut builder = tempfile::Builder::new();
    let builder = builder.permissions(fs::Permissions::from_mode(0o700));
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).unwrap()
}

/// With the checksums of the last close, and without them, as after an open that ended the daemon and after a crash.
#[test]
fn a_flipped_bit_is_found_out_or_means_nothing() {
    let dir = dir();
    let (path, beside) = (dir.path().join("catalogue.redb"), dir.path().join("catalogue.redb.sums"));
    fill(&path);
    let (sound, sums) = (fs::read(&path).unwrap(), fs::read(&beside).unwrap());
    assert!(!sums.is_empty());
    let expected = content(&Catalogue::open(&path).unwrap()).unwrap();
    assert_eq!((expected.1.len() as u64, expected.2), (MANY * MANY + MANY, MANY * MANY + MANY));
    let pages = sound.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    let flips: Vec<_> =
        pages.flat_map(|(n, page)| (0..page.len()).step_by(97).map(move |at| n * 4096 + at)).collect();
    for stored in [&sums[..], b"?", b""] {
        let (mut damaged, mut unharmed) = (0, 0);
        for at in &flips {
            let mut flipped = sound.clone();
            flipped[*at] ^= 1 << (at / 97 % 8);
            fs::write(&path, &flipped).unwrap();
            fs::write(&beside, stored).unwrap();
            let used =
                catch_unwind(AssertUnwindSafe(|| Catalogue::open(&path).and_then(|opened| use_all(&opened))));
            match used {
                Err(_) => panic!("at {at}"),
                Ok(Err(error)) => {
                    assert!(error.is_damage() || error.to_string().contains("pgrade"), "at {at}: {error}");
                    damaged += 1;
                }
                Ok(Ok(told)) => {
                    assert!(told == expected, "at {at}");
                    unharmed += 1;
                }
            }
        }
        println!("{damaged} found out, {unharmed} unharmed, of {} bytes", sound.len());
        assert!(damaged > 30, "{damaged}");
    }
}

/// After a crash a large one is not checked: it would take minutes. An open that ends the daemon has the next one check all.
#[test]
fn an_open_without_checksums_is_suspect_until_the_first_flush() {
    let dir = dir();
    let (path, beside) = (dir.path().join("catalogue.redb"), dir.path().join("catalogue.redb.sums"));
    fill(&path);
    fs::write(&beside, b"").unwrap();
    let catalogue = Catalogue::open(&path).unwrap();
    assert_eq!(fs::read(&beside).unwrap(), b"?");
    catalogue.flush().unwrap();
    assert_eq!(fs::read(&beside).unwrap(), b"");
    drop(catalogue);
    assert!(fs::read(&beside).unwrap().len() > 4);
}

#[test]
fn damage_of_an_open_catalogue_is_an_error_and_has_the_next_open_check_all() {
    let dir = dir();
    let path = dir.path().join("catalogue.redb");
    fill(&path);
    let (sound, beside) = (fs::read(&path).unwrap(), dir.path().join("catalogue.redb.sums"));
    let sums = fs::read(&beside).unwrap();
    let mut damaged = 0;
    for page in (1..sound.len() / 4096).filter(|n| sound[n * 4096..][..4096].iter().any(|byte| *byte != 0)) {
        fs::write(&path, &sound).unwrap();
        fs::write(&beside, &sums).unwrap();
        // Without a cache every page is read from the file.
        let catalogue = Catalogue::open_with(&path, 0).unwrap();
        content(&catalogue).unwrap();
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut is = [0; 4096];
        file.read_exact_at(&mut is, page as u64 * 4096).unwrap();
        is.iter_mut().step_by(7).for_each(|byte| *byte ^= 0x55);
        file.write_all_at(&is, page as u64 * 4096).unwrap();
        let used = catch_unwind(AssertUnwindSafe(|| use_all(&catalogue)));
        if let Err(error) = used.unwrap_or_else(|_| panic!("page {page}")) {
            assert!(error.is_damage(), "page {page}: {error}");
            damaged += 1;
            drop(catalogue);
            assert_eq!(fs::read(&beside).unwrap(), b"?", "page {page}");
        }
    }
    assert!(damaged > 2, "{damaged}");
}
