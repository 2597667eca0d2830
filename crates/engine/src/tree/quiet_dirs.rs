//! Directories in which moves exchange names: their times stay, as the pool's directories do not change.
//!
//! Two movers may be at work in one directory. The second one would take times that the first is about to set back for the
//! directory's own. So the first one takes them for all, and the last one sets them.
//!
//! A program may change a name there meanwhile, or set the times: [`note_given`] makes the program's times the
//! directory's own. It comes after the program's call on the branch, and the last mover may set its times back between the
//! two. So a directory is remembered for a while after that, with the times that were set: if it still has those after the
//! program's call, they hide the program's, which are set once more. They also stand for those of an answer that was asked for before
//! they were set: it may tell of the mover's.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::branch::Branch;
use fsstack_pool::BranchIx;
use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};
use fsstack_sync::time::Instant;
use fsstack_sys::at::{SetTime, Times, stat_fd, utimens_fd};
use fsstack_sys::{Stat, Time};

use crate::inode::Inode;
use crate::inode::clock::Moment;
use crate::pool::Pool;
use crate::tree::Tree;

/// A directory on a branch: device and inode number.
type DirKey = (BranchIx, u64, u64);

/// How far a program's call on a branch and the note of it may be apart.
const NOTE_DELAY: Duration = Duration::from_secs(1);
/// Directories that are remembered before those are dropped whose last mover left longer ago than that.
const REMEMBERED: usize = 64;

/// The directories in which names are being exchanged, or were lately.
#[derive(Debug, Default)]
pub(crate) struct QuietDirs {
    any: AtomicBool,
    dirs: Mutex<RememberedDirs>,
}

#[derive(Debug, Default)]
struct RememberedDirs {
    known: HashMap<DirKey, QuietDir>,
    /// When the last mover left.
    left: Option<Instant>,
}

#[derive(Debug, Default)]
struct QuietDir {
    movers: u32,
    /// Times before the first of them changed it, or that a program gave it since.
    times: Option<Times>,
    /// When `times` were set, after the last of them had left.
    set: Option<(Instant, Moment)>,
}

impl RememberedDirs {
    fn drop_old(&mut self) {
        self.known.retain(|_, dir| dir.set.is_none_or(|(set, _)| set.elapsed() < NOTE_DELAY));
    }
}

/// Directories of one branch whose times are set again when this drops.
#[must_use = "the times are set again when it drops"]
pub(crate) struct KeptTimes<'a> {
    all: &'a QuietDirs,
    branch: &'a Branch,
    dirs: Vec<(BorrowedFd<'a>, DirKey)>,
}

impl QuietDirs {
    /// Keeps the times of `dirs`, which are about to change on `branch`. Times that cannot be read are no reason to fail.
    pub(crate) fn keep<'a, D: AsFd + 'a>(
        &'a self,
        branch: &'a Branch,
        dirs: impl IntoIterator<Item = &'a D>,
    ) -> KeptTimes<'a> {
        let keep = |dir: &'a D| Some((dir.as_fd(), self.keep_one(branch, dir.as_fd())?));
        KeptTimes { all: self, branch, dirs: dirs.into_iter().filter_map(keep).collect() }
    }

    fn keep_one(&self, branch: &Branch, dir: BorrowedFd<'_>) -> Option<DirKey> {
        let ask = || branch.ask(|| stat_fd(dir)).ok();
        let stat = ask()?;
        let key = (branch.ix, stat.dev, stat.ino);
        let is_known = {
            let mut dirs = self.dirs.lock();
            self.any.store(true, Relaxed);
            let dir = dirs.known.entry(key).or_default();
            if dir.set.take().is_some() {
                dir.times = None;
            }
            dir.movers += 1;
            dir.times.is_some()
        };
        // Read again: a mover that ended in between had not set them yet. Any that came since changes it only afterwards.
        if !is_known && let Some(stat) = ask() {
            let note = |dir: &mut QuietDir| _ = dir.times.get_or_insert(times_of(&stat));
            self.dirs.lock().known.entry(key).and_modify(note);
        }
        Some(key)
    }

    /// Whether names are being exchanged in any directory, or were lately.
    fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Whether the directory with that number on the branch `at` may be among them. The branch is not asked.
    fn may_have(&self, at: BranchIx, ino: Option<u64>) -> bool {
        if !self.any() {
            return false;
        }
        let mut dirs = self.dirs.lock();
        if dirs.left.is_some_and(|left| left.elapsed() >= NOTE_DELAY) {
            dirs.drop_old();
            self.any.store(!dirs.known.is_empty(), Relaxed);
        }
        let is_it = |(on, _, known): &DirKey| *on == at && ino.is_none_or(|ino| ino == *known);
        dirs.known.keys().any(is_it)
    }

    /// A program's call has given `dir` on `branch` these times: they stay.
    fn changed(&self, branch: &Branch, dir: BorrowedFd<'_>, given: Times) {
        let ask = || branch.ask(|| stat_fd(dir)).ok();
        let Some(stat) = ask() else { return };
        let kept = {
            let mut dirs = self.dirs.lock();
            let Some(dir) = dirs.known.get_mut(&(branch.ix, stat.dev, stat.ino)) else { return };
            if dir.set.is_none() {
                let own = dir.times.unwrap_or_else(|| times_of(&stat));
                // A mover that leaves may have set the kept ones over the program's already.
                let is_hidden = own.mtime == SetTime::At(stat.mtime);
                let mtime = match given.mtime {
                    SetTime::Omit => own.mtime,
                    // A time, not "now": answers give it until the last mover has set it. A server's clock is not known.
                    SetTime::Now if is_hidden && !branch.kind.is_local() => SetTime::Now,
                    SetTime::Now => SetTime::At(if is_hidden { Time::now() } else { stat.mtime }),
                    given => given,
                };
                let atime = given_time(given.atime, stat.atime).map_or(own.atime, SetTime::At);
                dir.times = Some(Times { atime, mtime });
            }
            dir.times.filter(|_| dir.set.is_some())
        };
        // They were set after the program's call, or before it.
        if let Some(kept) = kept
            && given.mtime != SetTime::Omit
            && ask().is_some_and(|stat| kept.mtime == SetTime::At(stat.mtime))
        {
            set_times(branch, dir, given);
        }
    }

    /// The attributes of a directory on the branch `at`, which was asked at `asked`, as they are without what movers do in it.
    pub(crate) fn without_moves(&self, at: BranchIx, mut stat: Stat, asked: Moment) -> Stat {
        if self.any()
            && let Some(dir) = self.dirs.lock().known.get(&(at, stat.dev, stat.ino))
            && let Some(times) = dir.times.filter(|_| dir.set.is_none_or(|(_, set)| asked < set))
        {
            stat.atime = given_time(times.atime, stat.atime).unwrap_or(stat.atime);
            stat.mtime = given_time(times.mtime, stat.mtime).unwrap_or(stat.mtime);
        }
        stat
    }

    /// One mover fewer. Times to be set, if it was the last.
    fn leave(&self, key: DirKey) -> Option<Times> {
        let mut dirs = self.dirs.lock();
        let dir = dirs.known.get_mut(&key)?;
        dir.movers = dir.movers.saturating_sub(1);
        dir.times.filter(|_| dir.movers == 0)
    }

    /// The times `done` were set, if there were any. Those to be set yet: a program has given others meanwhile.
    fn were_set(&self, key: DirKey, done: Option<Times>) -> Option<Times> {
        let mut dirs = self.dirs.lock();
        let now = Instant::now();
        let dir = dirs.known.get_mut(&key).filter(|dir| dir.movers == 0)?;
        if dir.times != done {
            return dir.times;
        }
        dir.set = Some((now, Moment::of_change()));
        dirs.left = Some(now);
        if dirs.known.len() > REMEMBERED {
            dirs.drop_old();
        }
        None
    }
}

impl Drop for KeptTimes<'_> {
    fn drop(&mut self) {
        for (dir, key) in self.dirs.drain(..) {
            let mut to_set = self.all.leave(key);
            loop {
                if let Some(times) = to_set {
                    set_times(self.branch, dir, times);
                }
                match self.all.were_set(key, to_set) {
                    None => break,
                    others => to_set = others,
                }
            }
        }
    }
}

/// A program's call has given `dir` these times on the branch `at`. Without movers there the branch is not asked.
pub(crate) fn note_given(tree: &Tree, pool: &Pool, (dir, at): (&Arc<Inode>, BranchIx), given: Times) {
    if tree.quiet_dirs.may_have(at, dir.copy_ino(at))
        && let Ok(fd) = tree.dirfd(pool, dir, at)
    {
        tree.quiet_dirs.changed(pool.branch(at), fd.as_fd(), given);
    }
}

/// Sets a directory's times; those that cannot be set are no reason to fail.
pub(crate) fn set_times(branch: &Branch, dir: BorrowedFd<'_>, times: Times) {
    if let Err(error) = branch.ask(|| utimens_fd(dir, times)) {
        tracing::debug!(%error, "a directory shows the time of a move");
    }
}

fn times_of(stat: &Stat) -> Times {
    Times { atime: SetTime::At(stat.atime), mtime: SetTime::At(stat.mtime) }
}

/// The time that a call gave, which leaves the directory with `now`. None: it gave none.
fn given_time(given: SetTime, now: Time) -> Option<Time> {
    match given {
        SetTime::Omit => None,
        SetTime::Now => Some(now),
        SetTime::At(time) => Some(time),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fsstack_pool::BranchSpec;

    use super::*;
    use crate::settings::Settings;

    /// A second mover comes while the first is at work, and ends after it; then a third comes.
    #[test]
    fn the_times_of_a_directory_stay_though_movers_come_and_go_in_any_order() {
        let root = tempfile::tempdir().unwrap();
        let pool = Pool::open(&[BranchSpec::new(root.path().to_owned())], Settings::plain()).unwrap();
        let branch: &Branch = &pool.branches[0];
        let dir = fs::File::open(root.path()).unwrap();
        let long_ago = Time { sec: 1_000_000_000, nsec: 7 };
        utimens_fd(dir.as_fd(), Times { atime: SetTime::Omit, mtime: SetTime::At(long_ago) }).unwrap();
        let modified = || stat_fd(dir.as_fd()).unwrap().mtime;
        let change = |name: &str| fs::write(root.path().join(name), "").unwrap();
        let quiet_dirs = QuietDirs::default();

        let first = quiet_dirs.keep(branch, [&dir]);
        change("first");
        let second = quiet_dirs.keep(branch, [&dir, &dir]);
        change("second");
        drop(first);
        change("second again");
        drop(second);
        assert_eq!(modified(), long_ago);

        // A program's change afterwards shows.
        change("program");
        let changed = modified();
        assert!(changed > long_ago);
        let third = quiet_dirs.keep(branch, [&dir]);
        change("third");
        drop(third);
        assert_eq!(modified(), changed);
    }

    /// It changes a name, or sets the times, while a mover is at work, and as it sets them back.
    #[test]
    fn a_programs_times_stay_beside_movers() {
        let root = tempfile::tempdir().unwrap();
        let pool = Pool::open(&[BranchSpec::new(root.path().to_owned())], Settings::plain()).unwrap();
        let branch: &Branch = &pool.branches[0];
        let dir = fs::File::open(root.path()).unwrap();
        let mtime = |mtime| Times { atime: SetTime::Omit, mtime };
        let [old, given] = [1_000_000_000, 1_100_000_000].map(|sec| Time { sec, nsec: 7 });
        let set = |time| utimens_fd(dir.as_fd(), mtime(SetTime::At(time))).unwrap();
        let answer = || (stat_fd(dir.as_fd()).unwrap(), Moment::now());
        let without =
            |quiet_dirs: &QuietDirs, (stat, asked)| quiet_dirs.without_moves(branch.ix, stat, asked).mtime;
        let shown = |quiet_dirs: &QuietDirs| without(quiet_dirs, answer());
        let change = |name: &str| fs::write(root.path().join(name), "").unwrap();
        let quiet_dirs = QuietDirs::default();

        set(old);
        let mover = quiet_dirs.keep(branch, [&dir]);
        change("moved");
        assert_eq!(shown(&quiet_dirs), old, "what the mover does shows");
        set(given);
        quiet_dirs.changed(branch, dir.as_fd(), mtime(SetTime::At(given)));
        change("moved too");
        assert_eq!(shown(&quiet_dirs), given);
        let early = answer();
        drop(mover);
        assert_eq!(shown(&quiet_dirs), given);
        assert_eq!(without(&quiet_dirs, early), given, "what the mover did shows once it has left");

        let mover = quiet_dirs.keep(branch, [&dir]);
        change("program");
        quiet_dirs.changed(branch, dir.as_fd(), mtime(SetTime::Now));
        drop(mover);
        let changed = shown(&quiet_dirs);
        assert!(changed > given);

        // A mover that leaves sets the old ones over the program's change, while another is at work.
        set(old);
        let mover = quiet_dirs.keep(branch, [&dir]);
        change("program");
        set(old);
        quiet_dirs.changed(branch, dir.as_fd(), mtime(SetTime::Now));
        assert!(shown(&quiet_dirs) >= changed, "the program's change does not show yet");
        drop(mover);
        assert!(shown(&quiet_dirs) >= changed);

        // The program's note comes when the mover is gone.
        set(old);
        let mover = quiet_dirs.keep(branch, [&dir]);
        change("program again");
        drop(mover);
        assert_eq!(shown(&quiet_dirs), old);
        quiet_dirs.changed(branch, dir.as_fd(), mtime(SetTime::Now));
        assert!(shown(&quiet_dirs) >= changed);
    }
}
