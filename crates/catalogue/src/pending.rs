//! Names of a branch that have changed and are not in the catalogue yet.
//!
//! Threads that serve requests append names to a list. The thread that writes the catalogue takes all of them at once, sorts them and
//! drops duplicates. The size is bounded: of a directory with many changed names only that it is to be listed again is kept, and of many directories that the
//! branch is to be walked again.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::hash::{BuildHasher, RandomState};

use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Condvar, Mutex};

/// Names that are remembered in all; then the directory of the next one is to be listed again.
const NAMES: usize = 64 << 10;
/// Directories that are remembered, and files; then the branch is to be walked again.
const DIRS: usize = 16 << 10;
/// Number of names that are recognised when they change again; others are listed twice.
const RECENT: usize = 256;

/// Changed names, and how the thread that waits for them is woken. `D` leads to a directory.
#[derive(Debug)]
pub struct Pending<D> {
    on: AtomicBool,
    state: Mutex<PendingState<D>>,
    wake: Condvar,
    hashes: RandomState,
}

#[derive(Debug)]
struct PendingState<D> {
    noted: Noted<D>,
    /// Number of changes so far.
    count: u64,
    stopped: bool,
}

/// Changes as they were added.
#[derive(Debug)]
struct Noted<D> {
    changes: Changes<D>,
    /// Directory of each name in `names`, and where it ends there.
    entries: Vec<(u64, usize)>,
    /// Names, each with its NUL.
    names: Vec<u8>,
    /// Hashes of the names that were added last, each in the slot that its lowest bits name.
    recent: Box<[u64; RECENT]>,
}

/// Changes since they were taken last.
#[derive(Debug)]
pub struct Changes<D> {
    /// Directories with changed names, by the pool's number.
    pub dirs: HashMap<u64, DirChange<D>>,
    /// Directories to list again, by their numbers on the branch: they were changed out of band.
    pub relist: HashSet<u64>,
    /// Files that were changed and of which no name is known, by their numbers on the branch.
    pub files: HashSet<u64>,
    /// The branch is to be walked again.
    pub walk: bool,
}

/// Changed names of a directory.
#[derive(Debug)]
pub struct DirChange<D> {
    /// The directory.
    pub dir: D,
    /// The names, in the order of their bytes.
    pub names: Vec<Box<CStr>>,
    /// There are more: the directory is to be listed again.
    pub all: bool,
}

impl<D> Default for Changes<D> {
    fn default() -> Self {
        Self { dirs: HashMap::new(), relist: HashSet::new(), files: HashSet::new(), walk: false }
    }
}

impl<D> Changes<D> {
    /// Adds `number` to one of the sets of numbers; if that is full the branch is to be walked.
    fn remember(&mut self, number: u64, among: impl FnOnce(&mut Self) -> &mut HashSet<u64>) {
        let numbers = among(self);
        if numbers.len() < DIRS {
            numbers.insert(number);
        } else {
            self.walk = true;
        }
    }

    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.dirs.is_empty() && self.relist.is_empty() && self.files.is_empty() && !self.walk
    }
}

impl<D> Default for Noted<D> {
    fn default() -> Self {
        let recent = Box::new([0; RECENT]);
        Self { changes: Changes::default(), entries: Vec::new(), names: Vec::new(), recent }
    }
}

impl<D> Noted<D> {
    /// Adds the name with the hash `hash` in the directory `number`, which `dir` leads to.
    fn note(&mut self, number: u64, dir: impl FnOnce() -> D, name: Option<(&CStr, u64)>) {
        let dirs = &mut self.changes.dirs;
        // Most changes are in the same directory as the one before.
        let is_known = self.entries.last().is_some_and(|(last, _)| *last == number);
        if !is_known && !dirs.contains_key(&number) {
            if dirs.len() >= DIRS {
                self.changes.walk = true;
                return;
            }
            dirs.insert(number, DirChange { dir: dir(), names: Vec::new(), all: false });
        }
        let Some((name, hash)) = name else { return };
        let slot = &mut self.recent[usize::try_from(hash % RECENT as u64).unwrap_or_default()];
        // Most files are noted several times: when they are made, written and closed.
        if std::mem::replace(slot, hash) == hash {
            return;
        }
        if self.entries.len() >= NAMES {
            if let Some(change) = dirs.get_mut(&number) {
                change.all = true;
            }
            return;
        }
        self.names.extend_from_slice(name.to_bytes_with_nul());
        self.entries.push((number, self.names.len()));
    }

    /// The changes, each name once.
    fn sorted(self) -> Changes<D> {
        let Self { mut changes, entries, names, recent: _ } = self;
        let mut begin = 0;
        for (number, end) in entries {
            let name = names.get(std::mem::replace(&mut begin, end)..end).unwrap_or_default();
            if let Some(change) = changes.dirs.get_mut(&number).filter(|change| !change.all)
                && let Ok(name) = CStr::from_bytes_with_nul(name)
            {
                change.names.push(name.into());
            }
        }
        for change in changes.dirs.values_mut() {
            change.names.sort_unstable();
            change.names.dedup();
        }
        changes
    }
}

impl<D> Default for PendingState<D> {
    fn default() -> Self {
        Self { noted: Noted::default(), count: 0, stopped: false }
    }
}

impl<D> PendingState<D> {
    fn is_urgent(&self) -> bool {
        let Changes { dirs, relist, files, walk: _ } = &self.noted.changes;
        let most = dirs.len().max(relist.len()).max(files.len());
        self.stopped || self.noted.entries.len() >= NAMES / 2 || most >= DIRS / 2
    }
}

impl<D> Default for Pending<D> {
    fn default() -> Self {
        let hashes = RandomState::new();
        Self { on: AtomicBool::new(false), state: Mutex::default(), wake: Condvar::new(), hashes }
    }
}

impl<D> Pending<D> {
    /// Changes are remembered from now on.
    pub fn start(&self) {
        *self.state.lock() = PendingState::default();
        self.on.store(true, Relaxed);
    }

    /// Number of directories and names, and the most that there may be.
    pub fn size(&self) -> (usize, usize) {
        let state = self.state.lock();
        let Changes { dirs, relist, files, walk: _ } = &state.noted.changes;
        (dirs.len() + relist.len() + files.len() + state.noted.entries.len(), 3 * DIRS + NAMES)
    }

    /// Whether changes are remembered.
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// A name in the directory that the pool calls `number` has changed, or without a name the directory's own attributes. `dir`
    /// leads to it.
    pub fn note(&self, number: u64, dir: impl FnOnce() -> D, name: Option<&CStr>) {
        if self.is_on() {
            // Never 0, which is an empty slot.
            let name = name.map(|name| (name, self.hashes.hash_one((number, name.to_bytes())) | 1 << 63));
            self.add(|noted| noted.note(number, dir, name));
        }
    }

    /// The branch is to be walked again.
    pub fn note_all(&self) {
        self.add(|noted| noted.changes.walk = true);
    }

    /// The directory with this number on the branch is to be listed again.
    pub fn note_number(&self, number: u64) {
        self.add(|noted| noted.changes.remember(number, |changes| &mut changes.relist));
    }

    /// The file with this number on the branch was changed, and none of its names is known.
    pub fn note_file(&self, number: u64) {
        self.add(|noted| noted.changes.remember(number, |changes| &mut changes.files));
    }

    fn add(&self, change: impl FnOnce(&mut Noted<D>)) {
        if self.is_on() {
            let mut state = self.state.lock();
            let is_first = state.noted.changes.is_empty();
            change(&mut state.noted);
            state.count += 1;
            drop(state);
            // The thread waits for the first change only: to wake it for each one costs more than the change itself.
            if is_first {
                self.wake.notify_one();
            }
        }
    }

    /// Nothing is remembered any more; the thread that waits is to end.
    pub fn stop(&self) {
        self.on.store(false, Relaxed);
        self.state.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Whether [`Self::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Whether nothing has changed since changes were taken.
    pub fn is_empty(&self) -> bool {
        self.state.lock().noted.changes.is_empty()
    }

    /// Waits until something has changed, it is stopped, or this time has passed.
    pub fn wait(&self, longest: Option<Duration>) {
        let until = longest.map(|longest| Instant::now() + longest);
        let mut state = self.state.lock();
        while state.noted.changes.is_empty() && !state.stopped {
            match until {
                None => self.wake.wait(&mut state),
                Some(until) if self.wake.wait_until(&mut state, until).timed_out() => return,
                Some(_) => {}
            }
        }
    }

    /// Waits until nothing has changed for `quiet`, for at most `longest`, or until it is stopped or half full.
    pub fn pause_until_quiet(&self, quiet: Duration, longest: Duration) {
        let began = Instant::now();
        let seen = || {
            let state = self.state.lock();
            (state.count, state.is_urgent())
        };
        let (mut before, mut is_over) = seen();
        while !is_over && began.elapsed() < longest {
            self.pause(quiet);
            let (now, over) = seen();
            is_over = over || now == before;
            before = now;
        }
    }

    /// Whether it is stopped or half full.
    pub fn is_urgent(&self) -> bool {
        self.state.lock().is_urgent()
    }

    /// Waits for `time`, or until it is stopped.
    pub fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.stopped && !self.wake.wait_until(&mut state, until).timed_out() {}
    }

    /// All changes so far; they are remembered no longer.
    pub fn take(&self) -> Changes<D> {
        let noted = std::mem::take(&mut self.state.lock().noted);
        noted.sorted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn on() -> Pending<u64> {
        let pending = Pending::default();
        pending.start();
        pending
    }

    #[test]
    fn names_are_remembered_once_until_they_are_taken() {
        let pending = on();
        for _ in 0..3 {
            pending.note(7, || 7, Some(c"a"));
            pending.note(7, || 7, None);
        }
        let changes = pending.take();
        assert_eq!(changes.dirs.len(), 1);
        let change = &changes.dirs[&7];
        assert!(!change.all && change.names.len() == 1 && change.dir == 7);
        assert!(pending.is_empty() && pending.take().is_empty());
    }

    #[test]
    fn names_that_change_again_after_many_others_are_taken_once_and_in_order() {
        let pending = on();
        for _ in 0..3 {
            for number in (0..3 * RECENT).rev() {
                let name = CString::new(format!("{number:05}")).unwrap();
                pending.note(7 + number as u64 % 2, || 7, Some(&name));
            }
        }
        let changes = pending.take();
        for (odd, dir) in [7, 8].into_iter().enumerate() {
            let names = (0..3 * RECENT).filter(|number| number % 2 == odd);
            let names: Vec<_> = names.map(|number| CString::new(format!("{number:05}")).unwrap()).collect();
            let taken = changes.dirs[&dir].names.iter().map(|name| (**name).to_owned());
            assert_eq!(taken.collect::<Vec<_>>(), names);
        }
        // A name that changes after it was taken is added again.
        pending.note(7, || 7, Some(c"00000"));
        pending.note(8, || 7, Some(c"00000"));
        let changes = pending.take();
        assert!([7, 8].iter().all(|dir| changes.dirs[dir].names.len() == 1));
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_forgotten() {
        let pending = on();
        for number in 0..NAMES + 10 {
            let name = CString::new(number.to_string()).unwrap();
            pending.note(7, || 7, Some(&name));
        }
        for number in 0..DIRS as u64 + 10 {
            pending.note(1000 + number, || number, Some(c"x"));
        }
        let changes = pending.take();
        assert!(changes.dirs[&7].all && changes.dirs[&7].names.is_empty());
        assert_eq!((changes.dirs.len(), changes.walk), (DIRS, true));
    }

    /// Each would wait for hours otherwise.
    #[test]
    fn the_pause_ends_once_it_is_quiet_half_full_or_stopped() {
        let hours = Duration::from_secs(10_000);
        let pending = on();
        pending.note(7, || 7, Some(c"a"));
        pending.pause_until_quiet(Duration::from_millis(1), hours);
        for number in 0..NAMES / 2 {
            let name = CString::new(number.to_string()).unwrap();
            pending.note(7, || 7, Some(&name));
        }
        pending.pause_until_quiet(hours, hours);
        pending.take();
        (0..DIRS as u64 / 2).for_each(|number| pending.note(number, || number, None));
        pending.pause_until_quiet(hours, hours);
        pending.take();
        (0..DIRS as u64 / 2).for_each(|number| pending.note_number(number));
        pending.pause_until_quiet(hours, hours);
        pending.take();
        pending.stop();
        pending.pause_until_quiet(hours, hours);
    }

    #[test]
    fn nothing_is_remembered_before_it_is_on_or_after_it_was_stopped() {
        let pending = Pending::<u64>::default();
        pending.note(7, || 7, Some(c"a"));
        pending.note_all();
        assert!(pending.is_empty());
        pending.start();
        pending.note_number(9);
        pending.wait(None);
        pending.take();
        pending.stop();
        pending.note(7, || 7, Some(c"a"));
        pending.wait(None);
        assert!(pending.is_empty() && pending.is_stopped());
    }
}
