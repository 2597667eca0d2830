//! Objects on the branches beside the pool's names: leftovers of interrupted moves, files below a mount point.

use super::output::CheckOutput;
use super::{OpenBranch, Pool};
use crate::command::Failed;
use crate::command::time_limit::{HUNG_AFTER, unless_it_hangs};
use fsstack_control::api::CheckKind;
use fsstack_control::local_locks;
use fsstack_pool::Printable;
use fsstack_sys::at::{self, Mounts};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::{Errno, OFlags, Result, mounts};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Folders of a branch's root that the pool never shows.
const FOLDERS: [&CStr; 4] =
    [c".fsstack.moving", c".fsstack.moving.1", c".fsstack.moving.2", c".fsstack.moving.3"];
/// Age from which an object is a leftover: a newer one may be in use.
const STALE_AFTER: Duration = Duration::from_secs(3600);

/// True for a hidden folder's name in a branch's root.
pub(super) fn is_hidden_folder(name: &CStr) -> bool {
    FOLDERS.contains(&name)
}

pub(super) fn check(
    pool: &Pool,
    branches: &[OpenBranch],
    output: &mut CheckOutput,
) -> std::result::Result<(), Failed> {
    for OpenBranch { shown, root } in branches {
        for folder in FOLDERS {
            let path = format!("{shown}/{}", folder.to_string_lossy());
            match stale_in(root.as_fd(), folder) {
                Ok(None) => {}
                Ok(Some(name)) => {
                    let (path, remedy) = (
                        format!("{path}/{}", Printable(name.to_bytes())),
                        "unmount and mount the pool: the mount settles it",
                    );
                    output.add(
                        CheckKind::Leftover,
                        &path,
                        "left by an interrupted move, rename or copy",
                        remedy,
                    )?;
                }
                Err(error) => output.not_checked(&path, &error.to_string())?,
            }
        }
    }
    for mount_point in mount_points(pool) {
        let path = mount_point.clone();
        if let Some(Some(name)) = unless_it_hangs(HUNG_AFTER, move || below(&path)) {
            let path = Printable::path(&mount_point.join(&name)).to_string();
            let remedy = "unmount it, and look at the directory: it was written to while nothing was mounted";
            output.add(
                CheckKind::BelowMount,
                &path,
                "below a mount point, where no program sees it",
                remedy,
            )?;
        }
    }
    Ok(())
}

/// The first name in a hidden folder that is old enough to be a leftover.
fn stale_in(root: BorrowedFd<'_>, folder: &CStr) -> Result<Option<CString>> {
    let opened = at::open(root, folder, OFlags::RDONLY | OFlags::DIRECTORY, 0, Mounts::Stay);
    let dir = match opened {
        Err(error) if error.errno == Errno::NOENT => return Ok(None),
        opened => opened?,
    };
    let place = at::reopen(dir.as_fd(), OFlags::PATH | OFlags::DIRECTORY)?;
    let mut entries = Dirents::new(dir, 4096);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    while let Some(entry) = entries.next()? {
        if matches!(entry.name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = match at::stat(place.as_fd(), entry.name) {
            Err(error) if error.errno == Errno::NOENT => continue,
            stat => stat?,
        };
        let changed = u64::try_from(stat.ctime.sec.max(stat.mtime.sec)).unwrap_or(0);
        if changed + STALE_AFTER.as_secs() < now {
            return Ok(Some(entry.name.to_owned()));
        }
    }
    Ok(None)
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
