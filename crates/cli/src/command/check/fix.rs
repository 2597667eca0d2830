//! Fixes of findings, for `--fix` (docs/dev/decisions/0106).
//!
//! The pool works on meanwhile, and other hosts may. So each fix compares again just before, and looks again just after:
//! - A move has a file on two branches for a moment. Its record is there before its copy has a name, and until the old one
//!   is gone; and a file with a hidden copy is not moved. So a pair that is there before and after a look that finds no
//!   record is no move's.
//! - The daemon may have the hidden file open: it was the first when it was opened. Then it stays.
//! - The pool may lose the branch of the copy that it shows. So the daemon is asked for its branches before the rename and
//!   after it.
//! - The pool may remove or rename the name. So what was set aside goes back only while the first copy is there, which is
//!   looked for again after that.
//! - Whatever a program writes to a file that was just set aside is not lost: it is kept, and `--prune` leaves it.

use super::OpenBranch;
use super::beside::BesideDaemon;
use super::compare::{self, Compared, DirTraits};
use super::kept::{KeptDir, Origin};
use super::watch::WalkWatch;
use fsstack_pool::is_hidden_name;
use fsstack_sys::at::{self, Mounts};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{Errno, OFlags, Result, Stat, Time};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Names of records in the hidden folder end so: moves, renames on several branches.
const RECORDS: [&[u8]; 2] = [b".move", b".names"];
/// Attempts at making two copies equal while programs change them.
const ATTEMPTS: usize = 3;
/// Attempts at finding the ways to two copies unchanged.
const LOOKS: u64 = 10;
/// Pause between two attempts at finding the ways to two copies unchanged.
const COPIES_LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Result of a fix: the reason where nothing was changed.
pub(super) type Fixed = std::result::Result<(), String>;

fn said(error: fsstack_sys::SysError) -> String {
    error.to_string()
}

/// Two copies of a directory, each with the number of its branch.
pub(super) struct DirPair<'a> {
    pub(super) path: &'a [u8],
    /// The copy that the pool shows.
    pub(super) shown: (usize, BorrowedFd<'a>),
    pub(super) other: (usize, BorrowedFd<'a>),
}

/// Gives the other copy the traits of the shown one.
pub(super) fn make_equal(pair: &DirPair<'_>, branches: &[Arc<OpenBranch>], watch: &WalkWatch) -> Fixed {
    let ((_, first), (other_at, other), path) = (pair.shown, pair.other, pair.path);
    let Some(branch) = branches.get(other_at) else { return Err("no such branch".to_owned()) };
    check_counterparts(pair, branches, watch)?;
    watch.calls(other_at);
    let mut kept = false;
    for _ in 0..ATTEMPTS {
        let wanted = DirTraits::of(first).map_err(said)?;
        let own = DirTraits::of(other).map_err(said)?;
        let difference = own.difference(&wanted);
        if difference.is_empty() {
            return Ok(());
        }
        if !kept {
            let origin =
                Origin::new(path, &format!("attributes of a directory: {difference}"), own.described());
            KeptDir::new(branch, &origin).map_err(said)?;
            kept = true;
        }
        own.become_like(&wanted, other).map_err(said)?;
    }
    Err("it is changed by a program at the moment; run it again".to_owned())
}

/// Checks that both are copies of the directory in one moment, and that no rename is under way then. They were opened one after
/// the other, and a user with write access to a directory above may exchange what the names mean meanwhile: the owner of one would
/// be given the other.
fn check_counterparts(pair: &DirPair<'_>, branches: &[Arc<OpenBranch>], watch: &WalkWatch) -> Fixed {
    let way_to = |(at, dir): (usize, BorrowedFd<'_>)| {
        watch.calls(at);
        match branches.get(at) {
            Some(branch) => way(branch, dir, pair.path).map_err(said),
            None => Err("no such branch".to_owned()),
        }
    };
    for _ in 0..LOOKS {
        let before = (way_to(pair.shown)?, way_to(pair.other)?);
        for (index, branch) in branches.iter().enumerate() {
            watch.calls(index);
            if has_record(branch).map_err(said)? {
                return Err(format!("a move or rename is under way on {}; run it again", branch.shown));
            }
        }
        // Neither way has changed between its two looks, and the looks overlap.
        if before == (way_to(pair.shown)?, way_to(pair.other)?) && before.0.is_some() && before.1.is_some() {
            return Ok(());
        }
        watch.rests();
        fsstack_sync::thread::sleep(COPIES_LOOK_PAUSE);
    }
    Err("names above it are changed by a program at the moment; run it again".to_owned())
}

/// The directories above `path` on a branch, each with the time of its last change. None: it does not lead to `dir`.
fn way(branch: &OpenBranch, dir: BorrowedFd<'_>, path: &[u8]) -> Result<Option<Vec<(u64, Time)>>> {
    let mut at = at::reopen(branch.root.as_fd(), OFlags::PATH)?;
    let mut way = Vec::new();
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let name = CString::new(name).unwrap_or_default();
        // Its server is asked: names may change below the branch.
        let above = at::stat_now(at.as_fd())?;
        way.push((above.ino, above.ctime));
        at = match at::open_dir(at.as_fd(), &name, branch.mounts) {
            Err(error) if matches!(error.errno, Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            opened => opened?,
        };
    }
    let (there, is) = (at::stat_fd(at.as_fd())?, at::stat_fd(dir)?);
    Ok(Some(way).filter(|_| (there.dev, there.ino) == (is.dev, is.ino)))
}

/// Removes a mark that means nothing.
pub(super) fn remove_mark(on: On<'_>, which: &CStr, branch: &OpenBranch, path: &[u8]) -> Fixed {
    let value = xattr::get_vec(on, which).map_err(said)?;
    let had = BTreeMap::from([(which.to_string_lossy().into_owned(), compare::hex(&value))]);
    KeptDir::new(branch, &Origin::new(path, "a mark", had)).map_err(said)?;
    xattr::remove(on, which).map_err(said)
}

/// A file that hides another of the same name, and what both were when they were compared.
pub(super) struct HiddenPair<'a> {
    pub(super) name: &'a CStr,
    pub(super) path: &'a [u8],
    pub(super) shows: Compared<'a>,
    pub(super) hides: Compared<'a>,
}

impl HiddenPair<'_> {
    /// True if the hidden one is a duplicate in everything that programs see but times and links.
    fn is_duplicate(&self, watch: &WalkWatch) -> Result<bool> {
        let relation = compare::contents(self.shows, self.hides, self.name, watch)?;
        if relation != compare::SAME_CONTENT && relation != compare::SAME_TARGET {
            return Ok(false);
        }
        Ok(self.other_traits()?.is_empty())
    }

    /// How the hidden one's owner, mode and attributes differ; empty if they do not.
    pub(super) fn other_traits(&self) -> Result<String> {
        let traits = |of: &Compared<'_>| compare::traits_of(of.dir, self.name);
        Ok(traits(&self.hides)?.difference(&traits(&self.shows)?))
    }

    /// True if both are one file by two links: its only name must not go.
    pub(super) fn is_one_file(&self) -> bool {
        (self.shows.stat.dev, self.shows.stat.ino) == (self.hides.stat.dev, self.hides.stat.ino)
    }

    /// Moves the hidden one out of the way, where it is kept.
    pub(super) fn set_aside(
        &self,
        branches: &[Arc<OpenBranch>],
        daemon: &BesideDaemon,
        watch: &WalkWatch,
    ) -> Fixed {
        let Some(branch) = branches.get(self.hides.branch) else { return Err("no such branch".to_owned()) };
        self.may_go(branches, daemon, watch)?;
        if !self.is_duplicate(watch).map_err(said)? {
            return Err("it has changed meanwhile; run it again".to_owned());
        }
        watch.calls(self.hides.branch);
        let had = compare::traits_of(self.hides.dir, self.name).map_err(said)?.described();
        let origin = Origin::new(self.path, "a hidden duplicate", had).of(self.hides.stat);
        let kept = KeptDir::new(branch, &origin).map_err(said)?;
        // Nothing lies between this look and the rename but the rename.
        if let Err(why) = self.may_go(branches, daemon, watch) {
            kept.forget().map_err(said)?;
            return Err(why);
        }
        watch.calls(self.hides.branch);
        match kept.take(self.hides.dir, self.name) {
            Ok(moved) => self.settle(kept, &moved, daemon, watch),
            Err(error) => {
                let why = match error.errno {
                    Errno::XDEV => "another file system is mounted there".to_owned(),
                    _ => error.to_string(),
                };
                // After an error that came behind the rename, the object is in it: then it stays.
                let _ = kept.forget();
                Err(why)
            }
        }
    }

    /// Looks again after the rename. The object goes back if it is still wanted there.
    fn settle(&self, kept: KeptDir, moved: &Stat, daemon: &BesideDaemon, watch: &WalkWatch) -> Fixed {
        watch.rests();
        let wanted = if moved.ino == self.hides.stat.ino {
            daemon.has_the_branches_of_the_start().and_then(|()| daemon.has_not_open(self.hides.stat))
        } else {
            Err("another file took its name meanwhile".to_owned())
        };
        watch.calls(self.shows.branch);
        let wanted = match self.still_shows() {
            Ok(true) => wanted,
            // A program has removed or renamed the file in the pool: if it went back, it would be there again.
            Ok(false) => {
                let at = kept.shown();
                return Err(format!("its first copy was removed or renamed meanwhile; kept in {at}"));
            }
            Err(error) => Err(said(error)),
        };
        let Err(why) = wanted else { return Ok(()) };
        watch.calls(self.hides.branch);
        kept.put_back(self.hides.dir, self.name).map_err(|error| {
            format!("{why}; and it cannot be moved back out of the hidden folder: {error}")
        })?;
        watch.calls(self.shows.branch);
        let shows = self.still_shows();
        watch.calls(self.hides.branch);
        if let Ok(false) = shows
            && self.take_again(&kept, moved).map_err(said)?
        {
            return Err(format!("its first copy was removed or renamed meanwhile; kept in {}", kept.shown()));
        }
        kept.forget().map_err(said)?;
        Err(why)
    }

    /// Takes the object out of the way that went back although its first copy is gone. False: the pool has removed it too.
    fn take_again(&self, kept: &KeptDir, moved: &Stat) -> Result<bool> {
        let is_it = |stat: &Stat| stat.ino == moved.ino;
        if !at::stat_by_name_now(self.hides.dir, self.name).is_ok_and(|stat| is_it(&stat)) {
            return Ok(false);
        }
        match kept.take(self.hides.dir, self.name) {
            Ok(taken) if is_it(&taken) => Ok(true),
            Ok(_) => kept.put_back(self.hides.dir, self.name).map(|()| false),
            Err(error) if error.errno == Errno::NOENT => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether both are as they were, nobody moves them, the pool has the same branches, and the daemon has the hidden
    /// one not open.
    fn may_go(&self, branches: &[Arc<OpenBranch>], daemon: &BesideDaemon, watch: &WalkWatch) -> Fixed {
        watch.rests();
        daemon.has_the_branches_of_the_start()?;
        for (index, branch) in branches.iter().enumerate() {
            watch.calls(index);
            if has_record(branch).map_err(said)? {
                return Err(format!("a move or rename is under way on {}; run it again", branch.shown));
            }
        }
        watch.calls(self.hides.branch);
        is_as_before(&self.hides, self.name)?;
        watch.calls(self.shows.branch);
        is_as_before(&self.shows, self.name)?;
        daemon.has_not_open(self.hides.stat)
    }

    /// Whether the name of the shown one is still there and leads to it. What is written to it now is of no account.
    fn still_shows(&self) -> Result<bool> {
        match at::stat_by_name_now(self.shows.dir, self.name) {
            Ok(stat) => Ok((stat.dev, stat.ino) == (self.shows.stat.dev, self.shows.stat.ino)),
            Err(error) if error.errno == Errno::NOENT => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn is_as_before(of: &Compared<'_>, name: &CStr) -> Fixed {
    let key = |stat: &Stat| (stat.dev, stat.ino, stat.size, stat.mtime, stat.ctime);
    match at::stat_by_name_now(of.dir, name) {
        Ok(stat) if key(&stat) == key(of.stat) => Ok(()),
        Ok(_) => Err("it has changed meanwhile; run it again".to_owned()),
        Err(error) => Err(said(error)),
    }
}

/// Whether a record of a move or of a rename is in the branch's hidden folder, at work or interrupted.
fn has_record(branch: &OpenBranch) -> Result<bool> {
    let opened =
        at::open(branch.root.as_fd(), branch.folder, OFlags::RDONLY | OFlags::DIRECTORY, 0, Mounts::Stay);
    let dir = match opened {
        Err(error) if error.errno == Errno::NOENT => return Ok(false),
        opened => opened?,
    };
    let mut entries = Dirents::new(dir, 4096);
    while let Some(entry) = entries.next()? {
        if is_hidden_name(entry.name) && RECORDS.iter().any(|suffix| entry.name.to_bytes().ends_with(suffix))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn open(dir: &Path) -> fs::File {
        fs::File::open(dir).unwrap()
    }

    fn branch(dir: &Path) -> Arc<OpenBranch> {
        Arc::new(OpenBranch {
            shown: dir.display().to_string(),
            root: open(dir).into(),
            mounts: Mounts::Stay,
            writable: true,
            leaving: false,
            folder: c".fsstack.moving",
        })
    }

    /// Names are exchanged on one branch after the directories were opened; then a rename is under way.
    #[test]
    fn directories_that_are_not_surely_copies_of_one_are_left_alone() {
        let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [a, b] = [homes[0].path(), homes[1].path()];
        for dir in ["d/mine", "d/theirs"] {
            fs::create_dir_all(a.join(dir)).unwrap();
            fs::create_dir_all(b.join(dir)).unwrap();
        }
        let branches = [branch(a), branch(b)];
        let opened = [a, b].map(|home| open(&home.join("d/mine")));
        let pair = DirPair { path: b"/d/mine", shown: (0, opened[0].as_fd()), other: (1, opened[1].as_fd()) };
        let checked = || check_counterparts(&pair, &branches, &WalkWatch::default());
        let exchange = || {
            let (dir, flags) = (open(&b.join("d")), fsstack_sys::at::RenameFlags::EXCHANGE);
            at::rename(dir.as_fd(), c"mine", dir.as_fd(), c"theirs", flags).unwrap();
        };
        assert_eq!(checked(), Ok(()));
        exchange();
        assert!(checked().is_err_and(|why| why.contains("run it again")));
        exchange();
        assert_eq!(checked(), Ok(()));
        fs::create_dir(b.join(".fsstack.moving")).unwrap();
        fs::write(b.join(".fsstack.moving/0123456789abcdef.names"), "").unwrap();
        assert!(checked().is_err_and(|why| why.contains("under way")));
    }
}
