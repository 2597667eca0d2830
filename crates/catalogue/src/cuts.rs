//! Power cuts at every write of the catalogue's files: the next open has what a flush left on disk, or makes it anew, and is never
//! wrong about what it has.
//!
//! Whatever was written since the last sync may be on disk or not, page by page. The file of checksums is synced each time it is
//! written; only the end of its mark `?` may come later.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fsstack_database::Pages;
use fsstack_pool::BranchId;
use fsstack_sync::Mutex;
use redb::StorageBackend;

use crate::{Asked, Batch, BranchRow, Catalogue, Listed, Result, Row, Subject};

const BRANCH: u16 = 7;
const ROOT: u64 = 1;
const PAGE: u64 = 4096;

/// State and names of the only branch.
type Content = (Option<BranchRow>, BTreeMap<Vec<u8>, Row>);

/// A change of the catalogue's file.
#[derive(Clone, Debug)]
enum FileChange {
    Write(u64, Vec<u8>),
    Len(u64),
    Sync,
    /// The checksums were stored.
    Close,
}

/// All that happened to the two files, with the content of the file of checksums after each change, and the number of flushes that
/// had ended before it.
#[derive(Debug, Default)]
struct Recording {
    changes: Vec<(FileChange, Vec<u8>, usize)>,
    flushes: usize,
}

/// A file whose changes are recorded.
#[derive(Debug)]
struct RecordedPages {
    pages: Pages,
    sums: PathBuf,
    recording: Arc<Mutex<Recording>>,
}

impl RecordedPages {
    fn note(&self, change: FileChange) {
        let mut recording = self.recording.lock();
        let (sums, flushes) = (fs::read(&self.sums).unwrap(), recording.flushes);
        recording.changes.push((change, sums, flushes));
    }
}

impl StorageBackend for RecordedPages {
    fn len(&self) -> io::Result<u64> {
        self.pages.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.pages.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.pages.set_len(len)?;
        self.note(FileChange::Len(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.pages.sync_data()?;
        self.note(FileChange::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.pages.write(offset, data)?;
        self.note(FileChange::Write(offset, data.to_vec()));
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.pages.close()?;
        self.note(FileChange::Close);
        Ok(())
    }
}

fn file(size: u64) -> Row {
    Row { mode: 0o100_644, uid: 1, gid: 2, size, sec: 3, nsec: 4, number: None }
}

fn dir(number: u64) -> Row {
    Row { mode: 0o40_755, number: Some(number), ..file(0) }
}

fn branch(walk: u32, known: bool) -> BranchRow {
    BranchRow { root: ROOT, walk, complete: known, trusted: known, as_of: 9, path: b"/disk".to_vec() }
}

fn content(catalogue: &Catalogue) -> Result<Content> {
    let asked = Asked {
        branches: &[BranchId::new(BRANCH).unwrap()],
        subject: Subject::All,
        below: b"",
        wanted: &|_| true,
        after: None,
        most: 100_000,
    };
    let names = catalogue.page(&asked)?.names.into_iter().map(|found| (found.path, found.row));
    let branch = catalogue.branches()?.into_iter().find(|(id, _)| *id == BRANCH).map(|(_, row)| row);
    Ok((branch, names.collect()))
}

/// A walk over a branch that has `dirs` directories, each with as many files, of this size.
fn walk(batch: &mut Batch<'_>, at: (u16, u32), dirs: u64, size: u64) -> Result<()> {
    let name = |kind: &str, n: u64| format!("{kind}{n:0100}").into_bytes().into_boxed_slice();
    let list = |kind| {
        let mut names: Vec<_> = (0..dirs).map(|n| name(kind, n)).collect();
        names.sort();
        names
    };
    for n in 0..dirs {
        batch.set(at, ROOT, &name("dir", n), Some(&dir(100 + n)))?;
    }
    batch.listed(at, ROOT, &list("dir"))?;
    for n in 0..dirs {
        for of in 0..dirs {
            assert_eq!(batch.set(at, 100 + n, &name("file", of), Some(&file(size)))?, Listed::Known);
        }
        batch.listed(at, 100 + n, &list("file"))?;
    }
    Ok(())
}

/// Sessions of a pool: walks, changes, clean ends, a file that becomes smaller. Returns what happened to the files, and what was to be
/// on disk after each flush.
fn record(path: &Path) -> (Recording, Vec<Content>) {
    let recording = Arc::new(Mutex::new(Recording::default()));
    let mut flushed = vec![(None, BTreeMap::new())];
    for session in 0..4_u32 {
        let (of, sums) = (recording.clone(), path.with_extension("redb.sums"));
        let through = |pages| RecordedPages { pages, sums, recording: of };
        let catalogue = Catalogue::open_through(path, 1 << 20, through).unwrap();
        let mut flush = || {
            // In this order: what is on disk during the flush may be either.
            flushed.push(content(&catalogue).unwrap());
            catalogue.flush().unwrap();
            recording.lock().flushes += 1;
        };
        let (at, dirs) = ((BRANCH, session + 1), [8, 14, 3, 5][session as usize]);
        catalogue.change(|batch| batch.set_branch(BRANCH, &branch(at.1, false))).unwrap();
        flush();
        catalogue.change(|batch| walk(batch, at, dirs, session.into())).unwrap();
        catalogue.change(|batch| batch.set(at, ROOT, b"between", Some(&file(session.into())))).unwrap();
        flush();
        catalogue.change(|batch| batch.set(at, ROOT, b"between", None)).unwrap();
        flush();
        catalogue.change(|batch| batch.set_branch(BRANCH, &branch(at.1, true))).unwrap();
        flush();
        if session == 2 {
            let mut catalogue = catalogue;
            assert!(catalogue.db.compact().unwrap());
        }
    }
    let recording = Arc::into_inner(recording).unwrap().into_inner();
    (recording, flushed)
}

/// The disk after a cut: what was synced, and of the pages written since those that `stays` chooses.
fn after_cut(synced: &[u8], since: &[FileChange], stays: impl Fn(usize) -> bool) -> Vec<u8> {
    let (mut disk, mut part) = (synced.to_vec(), 0);
    let mut is_kept = || {
        part += 1;
        stays(part)
    };
    for change in since {
        match change {
            FileChange::Len(len) if is_kept() => disk.resize(usize::try_from(*len).unwrap(), 0),
            FileChange::Write(offset, data) => {
                let mut at = *offset;
                let mut rest = data.as_slice();
                while !rest.is_empty() {
                    let len = usize::try_from(PAGE - at % PAGE).unwrap().min(rest.len());
                    let (page, behind) = rest.split_at(len);
                    let begin = usize::try_from(at).unwrap();
                    // Beyond the end of a file whose new length is not on disk there is nothing.
                    if is_kept() && begin + len <= disk.len() {
                        disk[begin..begin + len].copy_from_slice(page);
                    }
                    (at, rest) = (at + len as u64, behind);
                }
            }
            FileChange::Len(_) | FileChange::Sync | FileChange::Close => {}
        }
    }
    disk
}

/// Opens the files as a daemon does: damaged ones are made anew. None: they were.
fn opened(path: &Path) -> Option<Catalogue> {
    let opened = catch_unwind(AssertUnwindSafe(|| Catalogue::open(path))).expect("the daemon ends");
    match opened {
        Err(error) => {
            assert!(error.is_damage(), "{error}");
            None
        }
        Ok(catalogue) => Some(catalogue),
    }
}

#[test]
fn after_a_power_cut_it_has_what_a_flush_left_or_is_made_anew() {
    let mut builder = tempfile::Builder::new();
    let builder = builder.permissions(fs::Permissions::from_mode(0o700));
    let dir = builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).unwrap();
    let path = dir.path().join("catalogue.redb");
    let (recording, flushed) = record(&path);
    let changes = recording.changes;
    let (mut anew, mut kept, mut seen) = (0, 0, BTreeSet::new());
    let (mut synced, mut since) = (Vec::new(), Vec::new());
    for (n, (change, sums, flushes)) in changes.iter().enumerate() {
        since.push(change.clone());
        if matches!(change, FileChange::Sync) {
            synced = after_cut(&synced, &since, |_| true);
            since.clear();
        }
        // Around syncs all, else some: the middle of a long row of writes is like its neighbours.
        let next_is_sync = changes.get(n + 1).is_none_or(|(next, ..)| matches!(next, FileChange::Sync));
        if !since.is_empty() && !next_is_sync && n % 5 != 0 {
            continue;
        }
        let choices: [&dyn Fn(usize) -> bool; 6] =
            [&|_| false, &|_| true, &|n| n % 2 == 0, &|n| n % 2 == 1, &|n| n % 7 == 3, &|n| n % 7 != 3];
        let earlier = n.checked_sub(1).map_or(&[][..], |before| &changes[before].1);
        let choices = if since.is_empty() { &choices[..1] } else { &choices[..] };
        for (choice, stays) in choices.iter().enumerate() {
            let disk = after_cut(&synced, &since, stays);
            // The mark `?` ends without a sync.
            let sums = if earlier == b"?" && choice % 2 == 0 { earlier } else { sums };
            if !seen.insert((disk.clone(), sums.to_vec())) {
                continue;
            }
            fs::write(&path, &disk).unwrap();
            fs::write(path.with_extension("redb.sums"), sums).unwrap();
            let Some(catalogue) = opened(&path) else {
                assert!(*flushes == 0, "change {n}, choice {choice}: lost");
                anew += 1;
                continue;
            };
            let is = content(&catalogue).unwrap();
            let expected = &flushed[*flushes..(flushes + 2).min(flushed.len())];
            assert!(expected.contains(&is), "change {n}, choice {choice}: {:?}, {} names", is.0, is.1.len());
            // The next mount's walk.
            let next = (BRANCH, 40);
            let walked = catalogue.change(|batch| {
                batch.set_branch(BRANCH, &branch(next.1, false))?;
                walk(batch, next, 4, 40)?;
                for gone in batch.unlisted(BRANCH, next.1, 1000)? {
                    batch.remove_dir(BRANCH, gone)?;
                }
                Ok(())
            });
            walked.unwrap();
            catalogue.flush().unwrap();
            assert_eq!(content(&catalogue).unwrap().1.len(), 4 * 4 + 4, "change {n}, choice {choice}");
            kept += 1;
        }
    }
    println!("{kept} of {} changes have a catalogue, {anew} are made anew", changes.len());
    assert!(kept > 100, "{kept}");
}
