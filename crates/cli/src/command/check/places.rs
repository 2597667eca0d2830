//! Objects on the branches beside the pool's names: leftovers of interrupted moves, files below a mount point.

use fsstack_sync::time::{Duration, SystemTime, UNIX_EPOCH};

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
use fsstack_sys::mounts::MountInfo;
use fsstack_sys::{Call, Errno, OFlags, Result, Stat, SysError, mounts};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

/// Time limit for the leftovers of a branch.
const LEFTOVERS_TIMEOUT: Duration = Duration::from_secs(20);
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
            match unless_it_hangs(LEFTOVERS_TIMEOUT, move || leftovers(&of, stale_after, fixes)) {
                Some(Ok(found)) => found.iter().try_for_each(|finding| output.add(finding))?,
                Some(Err(error)) => output.not_checked(b"/", &format!("branch {}: {error}", branch.shown))?,
                None => {
                    output.not_checked(b"/", &format!("branch {}: it hangs", branch.shown))?;
                    branches.retain(|other| !Arc::ptr_eq(other, &branch));
                }
            }
        }
        self.look_below_mounts(output)
    }

    /// Looks for files in the directories that the mounts of the pool and of its branches cover.
    fn look_below_mounts(&self, output: &mut CheckOutput) -> std::result::Result<(), Failed> {
        let table = match mounts::list() {
            Ok(table) => Arc::new(table),
            Err(error) => {
                output.not_checked(b"/", &format!("below the branches' mounts: mount table: {error}"))?;
                Arc::default()
            }
        };
        let mut mount_points = BTreeSet::from([self.pool.entry.mount_point()]);
        for branch in &self.pool.entry.branches {
            let (path, of) = (branch.path(), Arc::clone(&table));
            let found = unless_it_hangs(HUNG_AFTER, move || {
                local_locks::mount_of(&path, &of).map(|mount| mount.mount_point.clone())
            });
            match found {
                Some(mount_point) => mount_points.extend(mount_point),
                None => {
                    let path = branch.path();
                    let reason = format!("below the mount of branch {}: it hangs", Printable::path(&path));
                    output.not_checked(b"/", &reason)?;
                }
            }
        }
        mount_points.retain(|path| path.parent().is_some() && !is_in_autofs(path, &table));
        mount_points.iter().try_for_each(|mount_point| look_below(mount_point, output))
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
        let listed = at::reopen_quietly(place.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Dirents::new(listed, 4096);
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
    let said = |error: SysError| error.to_string();
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
    Unknown(SysError),
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

/// Whether the directory that the mount covers is one of autofs, which has no files.
fn is_in_autofs(mount_point: &Path, table: &[MountInfo]) -> bool {
    let mut own = table.iter().filter(|mount| mount.mount_point == mount_point);
    own.any(|mount| {
        let mut parents = table.iter().filter(|parent| parent.id == mount.parent);
        parents.any(|parent| parent.fs_type == "autofs" && parent.mount_point != mount_point)
    })
}

/// Reports a file in the directory that `mount_point` covers, or why none could be looked for.
fn look_below(mount_point: &Path, output: &mut CheckOutput) -> std::result::Result<(), Failed> {
    let path = mount_point.to_owned();
    let reason = match unless_it_hangs(HUNG_AFTER, move || below(&path)) {
        Some(Ok(None)) => return Ok(()),
        Some(Ok(Some(name))) => {
            return output.add(&CheckFinding::new(
                mount_point.join(&name).as_os_str().as_bytes(),
                CheckKind::BelowMount,
                "below a mount point, where no program sees it".to_owned(),
                "unmount it, and look at the directory: it was written to while nothing was mounted",
            ));
        }
        Some(Err(error)) => error.to_string(),
        None => "it hangs".to_owned(),
    };
    output.not_checked(b"/", &format!("below mount point {}: {reason}", Printable::path(mount_point)))
}

/// Returns a name in the directory that `mount_point` covers; `None` if it has none.
fn below(mount_point: &Path) -> Result<Option<OsString>> {
    let (Some(parent), Some(name)) = (mount_point.parent(), mount_point.file_name()) else { return Ok(None) };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let parent = open_tree(CWD, parent, flags).map_err(|errno| SysError::new(Call::Open, errno))?;
    let name = CString::new(name.as_bytes()).map_err(|_| SysError::new(Call::Open, Errno::INVAL))?;
    let covered = at::quietly(OFlags::RDONLY | OFlags::DIRECTORY, |flags| {
        at::open(parent.as_fd(), &name, flags, 0, Mounts::Stay)
    })?;
    let mut entries = Dirents::new(covered, 4096);
    while let Some(entry) = entries.next()? {
        if !matches!(entry.name.to_bytes(), b"." | b"..") {
            return Ok(Some(OsStr::from_bytes(entry.name.to_bytes()).to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_in_a_directory_of_autofs_covers_no_file() {
        let table = b"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            21 20 0:40 / /net rw - autofs auto.net rw\n22 21 0:41 / /net/host rw - nfs4 host:/ rw\n\
            23 20 0:42 / /srv/disk rw - autofs systemd-1 rw\n24 23 8:17 / /srv/disk rw - xfs /dev/sdb1 rw\n";
        let table = mounts::parse(table).unwrap();
        let is_in_autofs = |path: &str| is_in_autofs(Path::new(path), &table);
        assert!(is_in_autofs("/net/host"));
        // An automount unit's directory is one of the file system below.
        assert!(!is_in_autofs("/srv/disk") && !is_in_autofs("/net") && !is_in_autofs("/srv"));
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error_and_not_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(below(&dir.path().join("missing")).is_err());
        assert_eq!(below(Path::new("/")), Ok(None));
    }
}
