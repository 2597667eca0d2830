//! A target's directory: checked before anything is written, locked for one run, and left as it was found.
//!
//! A run locks a directory by a symbolic link, which is created atomically and names the owner in its target. Two
//! targets of one run may be the same directory (a branch, and the pool over it): the owner is the same, and each works
//! in its own subdirectory. Leftovers of a killed run are removed by the next one on the same machine.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use fsstack_lab::daemon::Process;
use fsstack_pool::Size;
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

/// Name of the lock, a link that names the owner.
const LOCK: &str = ".fsstack-bench.lock";

/// Directory for all files of a run.
const WORK: &str = ".fsstack-bench.work";

/// Bytes to leave free on a target in addition to the plan's needs.
const SPARE: u64 = 16 << 20;

/// Reason why a target cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("target {name}: {} is not a directory", dir.display())]
    NotADirectory { name: String, dir: PathBuf },
    #[error("target {name}: {}: {why}", dir.display())]
    NotReached { name: String, dir: PathBuf, why: io::Error },
    #[error("target {name}: {} cannot be written: {why}", dir.display())]
    NotWritable { name: String, dir: PathBuf, why: io::Error },
    #[error(
        "target {name}: {} has {} free, and the plan needs {}: choose smaller files or fewer tasks",
        dir.display(), Size(*free).approx(), Size(*needed).approx()
    )]
    TooSmall { name: String, dir: PathBuf, free: u64, needed: u64 },
    #[error("target {name}: another fsstack-bench ({owner}) is at work in {}: wait for its end, or give another directory", dir.display())]
    Busy { name: String, dir: PathBuf, owner: String },
}

/// A directory named on the command line or made by the lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
}

/// `NAME=DIR`.
impl std::str::FromStr for Target {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, dir) = text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=DIR"))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
            return Err(format!("`{name}` is no name for a target: use letters, digits, `-`, `_` and `.`"));
        }
        if dir.is_empty() {
            return Err(format!("target {name}: no directory after `=`"));
        }
        Ok(Self { name: name.to_owned(), dir: dir.into() })
    }
}

impl Target {
    /// Checks that it exists, is writable, and has room for `needed` bytes. Writes nothing.
    pub(crate) fn check(&self, needed: u64) -> Result<(), Unfit> {
        let (name, dir) = (self.name.clone(), self.dir.clone());
        match fs::metadata(&self.dir) {
            Err(why) => return Err(Unfit::NotReached { name, dir, why }),
            Ok(found) if !found.is_dir() => return Err(Unfit::NotADirectory { name, dir }),
            Ok(_) => {}
        }
        if let Err(why) = access(&self.dir, Access::WRITE_OK | Access::EXEC_OK) {
            return Err(Unfit::NotWritable { name, dir, why: why.into() });
        }
        let failure = match statvfs(&self.dir) {
            Err(why) => return Err(Unfit::NotReached { name, dir, why: why.into() }),
            Ok(failure) => failure,
        };
        if failure.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(Unfit::NotWritable { name, dir, why: rustix::io::Errno::ROFS.into() });
        }
        let free = failure.f_bavail.saturating_mul(failure.f_frsize);
        if 0 < needed && free < needed.saturating_add(SPARE) {
            return Err(Unfit::TooSmall { name, dir, free, needed: needed.saturating_add(SPARE) });
        }
        Ok(())
    }

    /// Locks the directory for this run and makes the work directory.
    pub(crate) fn take(&self) -> Result<TargetDir, Unfit> {
        let (name, dir) = (self.name.clone(), self.dir.clone());
        let (lock, me) = (self.dir.join(LOCK), whoami());
        let unwritable = |why| Unfit::NotWritable { name: name.clone(), dir: dir.clone(), why };
        // A second time after removing a dead owner's link.
        for _ in 0..2 {
            match symlink(&me, &lock) {
                Ok(()) => break,
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(unwritable(e)),
                Err(_) => {}
            }
            let owner = fs::read_link(&lock).unwrap_or_default().to_string_lossy().into_owned();
            if owner == me {
                break;
            }
            if !is_dead(&owner) {
                return Err(Unfit::Busy { name, dir, owner });
            }
            remove_all(&self.dir.join(WORK)).map_err(unwritable)?;
            gone(fs::remove_file(&lock)).map_err(unwritable)?;
        }
        let work = self.dir.join(WORK).join(&self.name);
        let place = TargetDir { target: self.clone(), work, left: false };
        match fs::create_dir_all(&place.work) {
            Ok(()) => Ok(place),
            Err(why) => Err(unwritable(why)),
        }
    }
}

/// A locked target; released on drop.
#[derive(Debug)]
pub(crate) struct TargetDir {
    target: Target,
    work: PathBuf,
    left: bool,
}

impl TargetDir {
    /// The target's name.
    pub(crate) fn name(&self) -> &str {
        &self.target.name
    }

    /// The directory to work in.
    pub(crate) fn work(&self) -> &Path {
        &self.work
    }

    /// Checks that the work directory still exists: the target may have been unmounted, or its server may be gone.
    pub(crate) fn lives(&self) -> io::Result<()> {
        fs::metadata(&self.work).map(drop)
    }

    /// Removes what the run made, and reports what could not be removed.
    pub(crate) fn give_back(mut self) -> io::Result<()> {
        self.clear()
    }

    fn clear(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.left, true) {
            return Ok(());
        }
        remove_all(&self.work)?;
        // Another target of this run may still use the same directory; the last one removes the rest.
        match fs::remove_dir(self.target.dir.join(WORK)) {
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => return Ok(()),
            removed => gone(removed)?,
        }
        let lock = self.target.dir.join(LOCK);
        match fs::read_link(&lock) {
            Ok(owner) if owner.as_os_str() == whoami().as_str() => gone(fs::remove_file(lock)),
            _ => Ok(()),
        }
    }
}

impl Drop for TargetDir {
    fn drop(&mut self) {
        if let Err(e) = self.clear() {
            eprintln!(
                "fsstack-bench: target {}: left over in {}: {e}",
                self.target.name,
                self.target.dir.display()
            );
        }
    }
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Removes a tree. Some file systems list a removed name for a moment, so a second attempt counts.
pub(crate) fn remove_all(dir: &Path) -> io::Result<()> {
    gone(fs::remove_dir_all(dir)).or_else(|_| gone(fs::remove_dir_all(dir)))
}

/// Makes a directory for `work`, and removes it with its files afterwards. The first failure is returned.
pub(crate) fn with_dir<T>(dir: &Path, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    fs::create_dir(dir).with_context(|| format!("making {}", dir.display()))?;
    let done = work();
    let removed = remove_all(dir).context("removing files");
    done.and_then(|done| removed.map(|()| done))
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Our identity: host, process id, start time (process ids are reused).
fn whoami() -> String {
    let pid = std::process::id();
    let started = i32::try_from(pid).ok().and_then(Process::of).map_or(0, |p| p.started);
    format!("pid {pid} on {}, started {started}", host())
}

/// True if an owner was on this machine and is dead. Unknown formats count as alive.
fn is_dead(owner: &str) -> bool {
    let parsed = || {
        let (pid, rest) = owner.strip_prefix("pid ")?.split_once(" on ")?;
        let (on, started) = rest.rsplit_once(", started ")?;
        Some((on == host(), Process { pid: pid.parse().ok()?, started: started.parse().ok()? }))
    };
    parsed().is_some_and(|(here, process)| here && !process.lives())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(dir: &Path, name: &str) -> Target {
        Target { name: name.to_owned(), dir: dir.to_owned() }
    }

    fn names(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn two_targets_of_one_run_may_share_a_directory_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let first = target(dir.path(), "direct").take().unwrap();
        let second = target(dir.path(), "pool").take().unwrap();
        assert_ne!(first.work(), second.work());
        fs::write(first.work().join("x"), "x").unwrap();
        drop(first);
        assert!(second.lives().is_ok());
        second.give_back().unwrap();
        assert_eq!(names(dir.path()), 0);
    }

    #[test]
    fn a_living_owner_is_named_and_a_dead_one_is_cleared_away() {
        let dir = tempfile::tempdir().unwrap();
        let dead = format!("pid 4194305 on {}, started 1", host());
        for (owner, busy) in [("pid 1 on elsewhere, started 1", true), ("what is this", true), (&dead, false)]
        {
            symlink(owner, dir.path().join(LOCK)).unwrap();
            fs::create_dir_all(dir.path().join(WORK).join("old")).unwrap();
            match target(dir.path(), "a").take() {
                Err(refused) => {
                    assert!(busy && refused.to_string().contains(owner), "{refused}");
                    fs::remove_file(dir.path().join(LOCK)).unwrap();
                    remove_all(&dir.path().join(WORK)).unwrap();
                }
                Ok(place) => {
                    assert!(!busy && !dir.path().join(WORK).join("old").exists());
                    drop(place);
                }
            }
            assert_eq!(names(dir.path()), 0);
        }
    }

    #[test]
    fn unfit_targets_are_recognised_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(target(&file, "t").check(0), Err(Unfit::NotADirectory { .. })));
        assert!(matches!(target(&dir.path().join("none"), "t").check(0), Err(Unfit::NotReached { .. })));
        assert!(matches!(target(dir.path(), "t").check(u64::MAX / 2), Err(Unfit::TooSmall { .. })));
        assert!(target(dir.path(), "t").check(1).is_ok());
    }

    #[test]
    fn a_target_is_a_name_and_a_directory() {
        let parse = |text: &str| text.parse::<Target>();
        assert_eq!(parse("direct=/a=b").unwrap(), target(Path::new("/a=b"), "direct"));
        for bad in ["/a", "=/a", "a=", "a/b=/c", ".=/x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_first_failure_is_reported() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("work");
        // A file in place of the directory is not removed.
        let replaced = || fs::remove_dir(&dir).and_then(|()| fs::write(&dir, "")).context("replacing it");
        assert_eq!(with_dir(&dir, replaced).unwrap_err().to_string(), "removing files");
        fs::remove_file(&dir).unwrap();
        let failed = || replaced().and_then(|()| Err::<(), _>(anyhow::anyhow!("the first")));
        assert_eq!(with_dir(&dir, failed).unwrap_err().to_string(), "the first");
    }
}
