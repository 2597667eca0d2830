//! Directories in which moves exchange names: their times stay, as the pool's directories do not change.
//!
//! Two movers may be at work in one directory. The second one would take times that the first is about to set back for the
//! directory's own. So the first one takes them for all, and the last one sets them.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};

use fsstack_branch::branch::Branch;
use fsstack_pool::BranchIx;
use fsstack_sync::Mutex;
use fsstack_sys::Stat;
use fsstack_sys::at::{SetTime, Times, stat_fd, utimens_fd};

/// A directory on a branch: device and inode number.
type DirKey = (BranchIx, u64, u64);

/// The directories in which names are being exchanged.
#[derive(Debug, Default)]
pub(crate) struct QuietDirs(Mutex<HashMap<DirKey, QuietDir>>);

#[derive(Debug, Default)]
struct QuietDir {
    movers: u32,
    /// Times before the first of them changed it.
    times: Option<Times>,
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
            let mut dirs = self.0.lock();
            let dir = dirs.entry(key).or_default();
            dir.movers += 1;
            dir.times.is_some()
        };
        // Read again: a mover that ended in between had not set them yet. Any that came since changes it only afterwards.
        if !is_known && let Some(stat) = ask() {
            self.0.lock().entry(key).and_modify(|dir| _ = dir.times.get_or_insert(times_of(&stat)));
        }
        Some(key)
    }

    /// One mover fewer. Times to be set, if it was the last.
    fn leave(&self, key: DirKey) -> Option<Times> {
        let mut dirs = self.0.lock();
        let dir = dirs.get_mut(&key)?;
        dir.movers = dir.movers.saturating_sub(1);
        dir.times.filter(|_| dir.movers == 0)
    }

    /// Its times were set, and no mover has come meanwhile.
    fn forget(&self, key: DirKey) {
        let mut dirs = self.0.lock();
        if dirs.get(&key).is_some_and(|dir| dir.movers == 0) {
            dirs.remove(&key);
        }
    }
}

impl Drop for KeptTimes<'_> {
    fn drop(&mut self) {
        for (dir, key) in self.dirs.drain(..) {
            let times = self.all.leave(key);
            if let Some(times) = times {
                set_times(self.branch, dir, times);
            }
            self.all.forget(key);
        }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use fsstack_pool::BranchSpec;
    use fsstack_sys::Time;

    use super::*;
    use crate::pool::Pool;
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
        assert!(quiet_dirs.0.lock().is_empty());
    }
}
