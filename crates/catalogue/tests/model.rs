//! The catalogue against a branch in memory: after any changes, seen late, in groups, in part or in any order, it has exactly what the
//! branch has.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use fsstack_catalogue::{Asked, Batch, BranchRow, Catalogue, Listed, Look, Row, Subject};
use fsstack_pool::BranchId;
use proptest::prelude::*;

const ROOT: u64 = 1;
const BRANCH: u16 = 7;

#[derive(Clone, Debug)]
enum Act {
    File(u8, u8, u64),
    Dir(u8, u8),
    Remove(u8, u8),
    Rename(u8, u8, u8, u8),
    /// One more name of a file.
    Link(u8, u8, u8, u8),
    /// The file gets this size, which this name alone reports; or, if true, none.
    Write(u8, u8, u64, bool),
    /// The thread looks at up to this many changed directories.
    Look(u8),
    /// It lists a directory.
    List,
    /// Changes of a directory are lost: it is to be listed again.
    Lose(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let (dir, name) = (0_u8..6, 0_u8..4);
    prop_oneof![
        3 => (dir.clone(), name.clone(), any::<u64>()).prop_map(|(d, n, s)| Act::File(d, n, s)),
        3 => (dir.clone(), name.clone()).prop_map(|(d, n)| Act::Dir(d, n)),
        3 => (dir.clone(), name.clone()).prop_map(|(d, n)| Act::Remove(d, n)),
        4 => (dir.clone(), name.clone(), dir.clone(), name.clone()).prop_map(|(a, b, c, d)| Act::Rename(a, b, c, d)),
        3 => (dir.clone(), name.clone(), dir.clone(), name.clone()).prop_map(|(a, b, c, d)| Act::Link(a, b, c, d)),
        3 => (dir.clone(), name.clone(), any::<u64>(), any::<bool>()).prop_map(|(d, n, s, open)| Act::Write(d, n, s, open)),
        2 => (1_u8..4).prop_map(Act::Look),
        2 => Just(Act::List),
        1 => dir.prop_map(Act::Lose),
    ]
}

/// Directories by number, with their entries; numbers of removed ones are used again.
#[derive(Debug, Default)]
struct Branch {
    dirs: BTreeMap<u64, BTreeMap<Vec<u8>, Row>>,
    /// Changed names, by the directory's number, oldest first.
    changed: Vec<(u64, BTreeSet<Vec<u8>>)>,
    /// Files that were changed by no known name.
    changed_files: BTreeSet<u64>,
}

/// Bit of a row's mode: the file has several names.
const SEVERAL_NAMES: u32 = 1 << 17;

fn dir_row(number: u64) -> Row {
    Row { mode: 0o40_755, uid: 1, gid: 2, size: 0, sec: 3, nsec: 4, number: Some(number) }
}

fn file_row(size: u64, number: u64) -> Row {
    Row { mode: 0o100_644, size, ..dir_row(number) }
}

/// The part of a row that a stat of its object tells.
fn shown(row: Row) -> Row {
    Row { mode: row.shown_mode(), number: row.dir(), ..row }
}

fn name(number: u8) -> Vec<u8> {
    vec![b'a' + number]
}

fn is_file(row: &Row, file: u64) -> bool {
    row.dir().is_none() && row.number == Some(file)
}

impl Branch {
    fn new() -> Self {
        Self { dirs: [(ROOT, BTreeMap::new())].into(), ..Self::default() }
    }

    fn dir(&self, pick: u8) -> u64 {
        let place = usize::from(pick) % self.dirs.len();
        *self.dirs.keys().nth(place).unwrap()
    }

    fn note(&mut self, dir: u64, name: &[u8]) {
        match self.changed.iter_mut().find(|(known, _)| *known == dir) {
            Some((_, names)) => _ = names.insert(name.to_vec()),
            None => self.changed.push((dir, [name.to_vec()].into())),
        }
    }

    fn free_number(&self) -> u64 {
        let has = |number| self.dirs.contains_key(&number) || self.names_of(number) > 0;
        (ROOT..).find(|number| !has(*number)).unwrap()
    }

    fn names_of(&self, file: u64) -> usize {
        self.dirs.values().flat_map(BTreeMap::values).filter(|row| is_file(row, file)).count()
    }

    /// The row that a look at a name finds.
    fn seen(&self, row: &Row) -> Row {
        let several = row.number.is_some_and(|file| self.names_of(file) > 1);
        Row { mode: row.mode | if several { SEVERAL_NAMES } else { 0 }, ..*row }
    }

    fn is_below(&self, dir: u64, top: u64) -> bool {
        dir == top || self.dirs[&top].values().filter_map(Row::dir).any(|below| self.is_below(dir, below))
    }

    fn remove(&mut self, dir: u64, name: &[u8]) -> bool {
        let Some(row) = self.dirs[&dir].get(name).copied() else { return false };
        if let Some(number) = row.dir() {
            if !self.dirs[&number].is_empty() {
                return false;
            }
            self.dirs.remove(&number);
        }
        // A change that was reported by this name only may not be in the catalogue yet.
        self.changed_files.extend(row.number.filter(|file| self.names_of(*file) > 1));
        self.dirs.get_mut(&dir).unwrap().remove(name);
        self.note(dir, name);
        true
    }

    fn run(&mut self, act: &Act) {
        match *act {
            Act::File(dir, to, size) => {
                let (dir, to) = (self.dir(dir), name(to));
                if self.dirs[&dir].get(&to).is_none_or(|row| row.dir().is_none()) {
                    self.remove(dir, &to);
                    let row = file_row(size, self.free_number());
                    self.dirs.get_mut(&dir).unwrap().insert(to.clone(), row);
                    self.note(dir, &to);
                }
            }
            Act::Dir(dir, to) => {
                let (dir, to) = (self.dir(dir), name(to));
                if !self.dirs[&dir].contains_key(&to) {
                    let number = self.free_number();
                    self.dirs.insert(number, BTreeMap::new());
                    self.dirs.get_mut(&dir).unwrap().insert(to.clone(), dir_row(number));
                    self.note(dir, &to);
                }
            }
            Act::Remove(dir, at) => _ = self.remove(self.dir(dir), &name(at)),
            Act::Rename(from, a, to, b) => {
                let (from, a, to, b) = (self.dir(from), name(a), self.dir(to), name(b));
                let Some(moved) = self.dirs[&from].get(&a).copied() else { return };
                if (from, &a) == (to, &b) || moved.dir().is_some_and(|top| self.is_below(to, top)) {
                    return;
                }
                if let Some(target) = self.dirs[&to].get(&b).copied()
                    && (target.dir().is_some() != moved.dir().is_some() || !self.remove(to, &b))
                {
                    return;
                }
                self.dirs.get_mut(&from).unwrap().remove(&a);
                self.dirs.get_mut(&to).unwrap().insert(b.clone(), moved);
                self.note(from, &a);
                self.note(to, &b);
            }
            Act::Link(from, a, to, b) => {
                let (from, a, to, b) = (self.dir(from), name(a), self.dir(to), name(b));
                let file = self.dirs[&from].get(&a).copied().filter(|row| row.dir().is_none());
                if let Some(row) = file
                    && !self.dirs[&to].contains_key(&b)
                {
                    self.dirs.get_mut(&to).unwrap().insert(b.clone(), row);
                    self.note(from, &a);
                    self.note(to, &b);
                }
            }
            Act::Write(dir, at, size, open) => self.write(self.dir(dir), &name(at), size, open),
            Act::Look(_) | Act::List | Act::Lose(_) => {}
        }
    }

    /// Changes the size of a file by one name; `open`: by a descriptor, after the name went.
    fn write(&mut self, dir: u64, at: &[u8], size: u64, open: bool) {
        let known = self.dirs[&dir].get(at).copied().filter(|row| row.dir().is_none());
        let Some(file) = known.and_then(|row| row.number) else { return };
        let all = self.dirs.values_mut().flat_map(BTreeMap::values_mut);
        all.filter(|row| is_file(row, file)).for_each(|row| row.size = size);
        if open && self.names_of(file) > 1 {
            self.changed_files.insert(file);
            self.dirs.get_mut(&dir).unwrap().remove(at);
        }
        self.note(dir, at);
    }

    fn all(&self) -> BTreeMap<Vec<u8>, Row> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![(ROOT, Vec::new())];
        while let Some((dir, path)) = waiting.pop() {
            for (name, row) in &self.dirs[&dir] {
                let path = if path.is_empty() { name.clone() } else { [&path, &b"/"[..], name].concat() };
                waiting.extend(row.dir().map(|number| (number, path.clone())));
                found.insert(path, shown(*row));
            }
        }
        found
    }
}

/// Stand-in for the thread that keeps the catalogue.
struct Keeper {
    catalogue: Catalogue,
    walk: u32,
    waiting: Vec<u64>,
}

impl Keeper {
    fn new(file: &std::path::Path) -> Self {
        let catalogue = Catalogue::open(file).unwrap();
        let mut keeper = Self { catalogue, walk: 0, waiting: Vec::new() };
        keeper.begin_walk();
        keeper
    }

    fn begin_walk(&mut self) {
        self.walk += 1;
        self.waiting = vec![ROOT];
        let row = BranchRow {
            root: ROOT,
            walk: self.walk,
            complete: false,
            trusted: false,
            as_of: 0,
            path: b"/b".to_vec(),
        };
        self.catalogue.change(|batch| batch.set_branch(BRANCH, &row)).unwrap();
    }

    /// Removes directories that the walk has not found.
    fn end_walk(&mut self) {
        let remove = |batch: &mut Batch<'_>| {
            let gone = batch.unlisted(BRANCH, self.walk, 100)?;
            gone.iter().try_for_each(|dir| batch.remove_dir(BRANCH, *dir))
        };
        self.catalogue.change(remove).unwrap();
    }

    fn look(&mut self, branch: &mut Branch, most: usize) {
        let count = branch.changed.len().min(most);
        let (mut looks, mut relist) = (Vec::new(), Vec::new());
        let changed: Vec<_> = branch.changed.drain(..count).collect();
        for (dir, names) in changed {
            // A directory that is gone cannot be looked into; its number may be used again.
            match branch.dirs.get(&dir) {
                None => relist.push(dir),
                Some(entries) => {
                    let names = names.into_iter().map(|name| {
                        let row = entries.get(&name).map(|row| branch.seen(row));
                        (name.into(), row)
                    });
                    looks.push(Look { dir, itself: dir_row(dir), names: names.collect() });
                }
            }
        }
        let files = std::mem::take(&mut branch.changed_files);
        let is_known = |file: &u64| self.catalogue.name_of(BRANCH, *file).unwrap().is_some();
        let unknown: Vec<u64> = files.iter().copied().filter(|file| !is_known(file)).collect();
        let due = self.catalogue.change(|batch| batch.apply((BRANCH, self.walk), &looks, relist)).unwrap();
        self.catalogue.note_files(BRANCH, files);
        let is_known = |file: &u64| self.catalogue.name_of(BRANCH, *file).unwrap().is_some();
        let walks_again = !unknown.iter().all(is_known);
        self.waiting.extend(due);
        if walks_again {
            self.begin_walk();
        }
        self.look_at_files(branch);
    }

    /// Looks at another name of files that lost one.
    fn look_at_files(&mut self, branch: &Branch) {
        loop {
            let files = self.catalogue.take_unsure(BRANCH, 3);
            if files.is_empty() {
                return;
            }
            for file in files {
                let Some((dir, name)) = self.catalogue.name_of(BRANCH, file).unwrap() else { continue };
                // The number may be another directory's by now: its names are looked at all the same.
                let at = branch.dirs.get(&dir).map(|entries| entries.get(&name).map(|row| branch.seen(row)));
                let act = |batch: &mut Batch<'_>| match at {
                    Some(row) => batch.set((BRANCH, self.walk), dir, &name, row.as_ref()).map(|_| true),
                    None => batch.unlist(BRANCH, dir).map(|_| false),
                };
                if !self.catalogue.change(act).unwrap() {
                    self.waiting.push(dir);
                }
            }
        }
    }

    fn list(&mut self, branch: &Branch) {
        let Some(dir) = self.waiting.pop() else { return };
        if self.catalogue.is_listed(BRANCH, dir, self.walk).unwrap()
            || self.catalogue.path(BRANCH, dir).unwrap().is_none()
        {
            return;
        }
        // One that is gone was reported.
        let Some(entries) = branch.dirs.get(&dir) else { return };
        let due = self
            .catalogue
            .change(|batch| {
                let mut due = Vec::new();
                for (name, row) in entries {
                    let row = branch.seen(row);
                    if let Listed::Not(number) = batch.set((BRANCH, self.walk), dir, name, Some(&row))? {
                        due.push(number);
                    }
                }
                let names: Vec<Box<[u8]>> = entries.keys().map(|name| name.clone().into()).collect();
                batch.listed((BRANCH, self.walk), dir, &names)?;
                Ok(due)
            })
            .unwrap();
        self.waiting.extend(due);
        self.look_at_files(branch);
    }

    fn all(&self) -> BTreeMap<Vec<u8>, Row> {
        let mut found = BTreeMap::new();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let asked = Asked {
                branches: &[BranchId::new(BRANCH).unwrap()],
                subject: Subject::All,
                below: b"",
                wanted: &|_| true,
                after: after.as_deref(),
                most: 3,
            };
            let page = self.catalogue.page(&asked).unwrap();
            for name in page.names {
                assert!(found.insert(name.path, shown(name.row)).is_none(), "a name came twice");
            }
            match page.next {
                None => return found,
                next => after = next,
            }
        }
    }
}

/// A folder that the catalogue is believed in: only its owner can enter it, whatever the umask.
fn private_dir() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap()
}

/// Runs `acts`, lets the keeper end its work, and compares.
fn has_what_the_branch_has(acts: &[Act]) -> Result<(), TestCaseError> {
    let home = private_dir();
    let (mut branch, mut keeper) = (Branch::new(), Keeper::new(&home.path().join("catalogue.redb")));
    for act in acts {
        branch.run(act);
        match act {
            Act::Look(most) => keeper.look(&mut branch, (*most).into()),
            Act::List => keeper.list(&branch),
            Act::Lose(pick) => {
                let dir = branch.dir(*pick);
                branch.changed.retain(|(known, _)| *known != dir);
                let due =
                    keeper.catalogue.change(|batch| batch.apply((BRANCH, keeper.walk), &[], [dir])).unwrap();
                keeper.waiting.extend(due);
            }
            _ => {}
        }
    }
    keeper.look(&mut branch, usize::MAX);
    while !keeper.waiting.is_empty() {
        keeper.list(&branch);
    }
    keeper.end_walk();
    keeper.look_at_files(&branch);
    while !keeper.waiting.is_empty() {
        keeper.list(&branch);
    }
    prop_assert_eq!(keeper.all(), branch.all());
    // Nothing is left of what cannot be reached.
    prop_assert_eq!(keeper.catalogue.names().unwrap(), branch.all().len() as u64);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_catalogue_has_what_the_branch_has(acts in prop::collection::vec(act(), 1..120)) {
        has_what_the_branch_has(&acts)?;
    }
}

/// A listed directory is moved into one that the catalogue does not have yet, and the change of a directory below it was lost.
#[test]
fn what_lies_below_a_directory_that_moved_to_an_unknown_one_is_found() {
    let acts = [
        Act::Dir(0, 0),
        Act::Dir(0, 2),
        Act::Look(1),
        Act::List,
        Act::Dir(2, 0),
        Act::Dir(0, 1),
        Act::File(3, 0, 0),
        Act::Lose(3),
        Act::Rename(0, 2, 4, 0),
        Act::Lose(0),
    ];
    has_what_the_branch_has(&acts).unwrap();
}

/// One name is listed before it has another, by which it is written, and which goes before its directory is listed.
#[test]
fn what_was_written_by_a_name_that_no_walk_has_seen_is_found() {
    let acts = [
        Act::List,
        Act::File(0, 0, 1),
        Act::Dir(0, 1),
        Act::Look(9),
        Act::List,
        Act::Link(0, 0, 1, 0),
        Act::Look(1),
        Act::Write(1, 0, 77, false),
        Act::Remove(1, 0),
        Act::Look(9),
    ];
    has_what_the_branch_has(&acts).unwrap();
}

/// A name takes few bytes of the file, as the pages are filled by a walk and by later changes.
#[test]
fn a_name_takes_at_most_120_bytes() {
    const DIRS: u64 = 100;
    const FILES: u64 = 400;
    let home = private_dir();
    let file = home.path().join("catalogue.redb");
    let keeper = Keeper::new(&file);
    for dir in 0..DIRS {
        let number = 1000 + dir;
        keeper
            .catalogue
            .change(|batch| {
                batch.set(
                    (BRANCH, keeper.walk),
                    ROOT,
                    format!("season {dir:03}").as_bytes(),
                    Some(&dir_row(number)),
                )?;
                let mut names: Vec<Box<[u8]>> = Vec::new();
                // In the order in which a hashed directory lists them.
                for at in 0..FILES {
                    let name = format!("episode {:04}.mkv", at * 7919 % 10_000).into_bytes();
                    let file =
                        Row { size: 1 << 30, sec: 1_796_000_000, nsec: 123_456_789, ..file_row(0, at) };
                    batch.set((BRANCH, keeper.walk), number, &name, Some(&file))?;
                    names.push(name.into());
                }
                names.sort_unstable();
                batch.listed((BRANCH, keeper.walk), number, &names)
            })
            .unwrap();
    }
    keeper.catalogue.flush().unwrap();
    let names = keeper.catalogue.names().unwrap();
    let bytes = file.metadata().unwrap().len();
    let stored = keeper.catalogue.stored().unwrap();
    println!(
        "{names} names, {} bytes a name in rows and pages, {} in the file",
        stored / names,
        bytes / names
    );
    assert!(stored / names <= 120, "{} bytes a name", stored / names);
}
