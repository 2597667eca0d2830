//! Objects on the branches beside the pool's names: leftovers of interrupted moves, files below a mount point.

use super::fix::Fixed;
use super::output::CheckOutput;
use super::{OpenBranch, Pool, kept};
use crate::command::Failed;
use crate::command::time_limit::{HUNG_AFTER, unless_it_hangs};
use fsstack_control::api::{CheckFinding, CheckKind};
use fsstack_control::local_locks;
use fsstack_pool::{HIDDEN_FOLDERS, KEPT, Printable, is_hidden_name};
use fsstack_sys::at::{self, Mounts};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::locks::{self, Lock, LockType, TO_THE_END};
use fsstack_sys::{Errno, OFlags, Result, Stat, mounts};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time limit for the leftovers of a branch.
const HANGS_AFTER: Duration = Duration::from_secs(20);
/// A bulk copy's lock file, in its directory.
const LOCK: &CStr = c".lock";

/// Reads an age: a number and s, m, h or d.
pub(super) fn age(typed: &str) -> std::result::Result<Duration, Failed> {
    let bad = || {
        Failed::Usage(format!(
            "--older-than {}: a number and s, m, h or d, such as 30m",
            Printable(typed.as_bytes())
        ))
    };
    let unit = typed.chars().last().ok_or_else(bad)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(bad()),
    };
    let number: u64 = typed.strip_suffix(unit).and_then(|digits| digits.parse().ok()).ok_or_else(bad)?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(bad)
}

/// Where besides the names of a pool it is looked.
pub(super) struct Places<'a> {
    pub(super) pool: &'a Pool,
    /// Age from which an object in a hidden folder is a leftover: a newer one may be in use.
    pub(super) stale_after: Duration,
    pub(super) fixes: bool,
}

impl Places<'_> {
    /// Checks them; a branch that hangs is taken off `branches`.
    pub(super) fn check(
        &self,
        branches: &mut Vec<Arc<OpenBranch>>,
        output: &mut CheckOutput,
    ) -> std::result::Result<(), Failed> {
        for branch in branches.clone() {
            let (of, stale_after, fixes) = (branch.clone(), self.stale_after, self.fixes);
            match unless_it_hangs(HANGS_AFTER, move || leftovers(&of, stale_after, fixes)) {
                Some(Ok(found)) => found.iter().try_for_each(|finding| output.add(finding))?,
                Some(Err(error)) => output.not_checked(b"/", &format!("branch {}: {error}", branch.shown))?,
                None => {
                    output.not_checked(b"/", &format!("branch {}: it hangs", branch.shown))?;
                    branches.retain(|other| !Arc::ptr_eq(other, &branch));
                }
            }
        }
        for mount_point in mount_points(self.pool) {
            let path = mount_point.clone();
            if let Some(Some(name)) = unless_it_hangs(HUNG_AFTER, move || below(&path)) {
                output.add(&CheckFinding::new(
                    mount_point.join(&name).as_os_str().as_bytes(),
                    CheckKind::BelowMount,
                    "below a mount point, where no program sees it".to_owned(),
                    "unmount it, and look at the directory: it was written to while nothing was mounted",
                ))?;
            }
        }
        Ok(())
    }
}

/// Owner of a hidden folder.
#[derive(Clone, Copy)]
enum FolderOf {
    ThisPool,
    /// A pool that is stacked on this one. Its locks are not seen here.
    AnotherPool,
    AnotherUser,
}

/// Names in the hidden folders of a branch that are old enough to be leftovers.
fn leftovers(branch: &OpenBranch, stale_after: Duration, fixes: bool) -> Result<Vec<CheckFinding>> {
    let mut found = Vec::new();
    for folder in HIDDEN_FOLDERS {
        let opened = at::open_dir(branch.root.as_fd(), folder, Mounts::Stay);
        let place = match opened {
            Err(error) if error.errno == Errno::NOENT => continue,
            opened => opened?,
        };
        let of = if folder != branch.folder {
            FolderOf::AnotherPool
        } else if kept::own(branch.root.as_fd(), folder).is_err() {
            FolderOf::AnotherUser
        } else {
            FolderOf::ThisPool
        };
        let mut entries = Dirents::new(at::reopen(place.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?, 4096);
        while let Some(entry) = entries.next()? {
            if matches!(entry.name.to_bytes(), b"." | b"..") || entry.name == KEPT {
                continue;
            }
            let stat = match at::stat(place.as_fd(), entry.name) {
                Err(error) if error.errno == Errno::NOENT => continue,
                stat => stat?,
            };
            if !is_old(&stat, stale_after) {
                continue;
            }
            let path =
                format!("{}/{}/{}", branch.shown, folder.to_string_lossy(), Printable(entry.name.to_bytes()));
            let text = "left by an interrupted move, rename or copy".to_owned();
            let remedy = "unmount and mount the pool: the mount settles it";
            let mut finding = CheckFinding::new(path.as_bytes(), CheckKind::Leftover, text, remedy);
            match of {
                FolderOf::AnotherPool => {
                    "it is of a pool stacked on this one: unmount and mount that"
                        .clone_into(&mut finding.remedy);
                }
                FolderOf::AnotherUser => {
                    "its folder is another user's, or others may write to it".clone_into(&mut finding.remedy);
                }
                FolderOf::ThisPool => settle(&mut finding, (place.as_fd(), entry.name), &stat, branch, fixes),
            }
            found.push(finding);
        }
    }
    Ok(found)
}

fn is_old(stat: &Stat, stale_after: Duration) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let changed = u64::try_from(stat.ctime.sec.max(stat.mtime.sec)).unwrap_or(0);
    changed.saturating_add(stale_after.as_secs()) <= now
}

/// Removes a leftover if that is wanted and possible.
fn settle(
    finding: &mut CheckFinding,
    (folder, name): (BorrowedFd<'_>, &CStr),
    stat: &Stat,
    branch: &OpenBranch,
    fixes: bool,
) {
    // A record says what a mount is to finish or undo: it is not removed.
    let unfinished = is_hidden_name(name)
        && [&b".part"[..], b".dir", b".copy"].iter().any(|end| name.to_bytes().ends_with(end));
    if !unfinished || !branch.writable {
        return;
    }
    finding.fix = Some("removed; its original is where it was".to_owned());
    if fixes {
        let removed = remove(folder, name, stat);
        finding.fixed = Some(removed.is_ok());
        if let Err(why) = removed {
            finding.remedy = why;
        }
    }
}

/// Removes an unfinished copy or skeleton that no living process of any host has locked.
fn remove(folder: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> Fixed {
    let said = |error: fsstack_sys::SysError| error.to_string();
    if name.to_bytes().ends_with(b".copy") && stat.is_dir() {
        let dir = at::open_dir(folder, name, Mounts::Stay).map_err(said)?;
        let _lock = match hold(dir.as_fd(), LOCK) {
            Err(Unheld::Missing) => None,
            held => Some(held.map_err(|error| error.to_string())?),
        };
        let mut entries =
            Dirents::new(at::reopen(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY).map_err(said)?, 4096);
        while let Some(entry) = entries.next().map_err(said)? {
            if !matches!(entry.name.to_bytes(), b"." | b"..") {
                at::unlink(dir.as_fd(), entry.name).map_err(said)?;
            }
        }
        return at::rmdir(folder, name).map_err(said);
    }
    if stat.is_dir() {
        return at::rmdir(folder, name).map_err(said);
    }
    let _lock =
        if stat.is_file() { Some(hold(folder, name).map_err(|error| error.to_string())?) } else { None };
    let now = at::stat_by_name_now(folder, name).map_err(said)?;
    if (now.ino, now.ctime) != (stat.ino, stat.ctime) {
        return Err("it has changed meanwhile; run it again".to_owned());
    }
    at::unlink(folder, name).map_err(said)
}

/// Why the lock of a leftover was not taken.
#[derive(Debug, thiserror::Error)]
enum Unheld {
    #[error("it is gone")]
    Missing,
    #[error("a living process is at work with it")]
    InUse,
    #[error("cannot tell whether it is in use: {0}")]
    Unknown(fsstack_sys::SysError),
}

/// Takes the lock that a process has while it works with `name`.
fn hold(dir: BorrowedFd<'_>, name: &CStr) -> std::result::Result<OwnedFd, Unheld> {
    let opened = at::open(dir, name, OFlags::RDWR | OFlags::NONBLOCK, 0, Mounts::Stay);
    let file = opened.map_err(|error| match error.errno {
        Errno::NOENT => Unheld::Missing,
        _ => Unheld::Unknown(error),
    })?;
    let lock = Lock { start: 0, end: TO_THE_END, kind: LockType::Write, pid: 0 };
    match locks::try_lock(file.as_fd(), lock) {
        Ok(()) => Ok(file),
        Err(error) if matches!(error.errno, Errno::AGAIN | Errno::ACCESS) => Err(Unheld::InUse),
        Err(error) => Err(Unheld::Unknown(error)),
    }
}

/// Mount points of the pool and of its branches.
fn mount_points(pool: &Pool) -> BTreeSet<PathBuf> {
    let table = mounts::list().unwrap_or_default();
    let of = |path: PathBuf| Some(local_locks::mount_of(&path, &table)?.mount_point.clone());
    let branches = pool.entry.branches.iter().filter_map(|branch| of(branch.path()));
    branches.chain([pool.entry.mount_point()]).filter(|path| path.parent().is_some()).collect()
}

/// A name in the directory that `mount_point` covers; `None` also where this user may not look.
fn below(mount_point: &Path) -> Option<std::ffi::OsString> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let parent = open_tree(CWD, mount_point.parent()?, flags).ok()?;
    let name = CString::new(mount_point.file_name()?.as_bytes()).ok()?;
    let covered =
        at::open(parent.as_fd(), &name, OFlags::RDONLY | OFlags::DIRECTORY, 0, Mounts::Stay).ok()?;
    let mut entries = Dirents::new(covered, 4096);
    while let Some(entry) = entries.next().ok()? {
        if !matches!(entry.name.to_bytes(), b"." | b"..") {
            return Some(std::ffi::OsStr::from_bytes(entry.name.to_bytes()).to_owned());
        }
    }
    None
}
