//! The hidden folder of a branch: objects that have no name yet, and the records of moves (`intent.rs`) and of renames on several
//! branches (`journal.rs`). The next mount clears leftovers of interrupted operations (`recover.rs`).
//!
//! A branch may be another pool, which keeps the folder's name for itself. So each pool tells its level, and a pool above
//! it takes the next name for its own folder there, and hides that too.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_pool::HIDDEN_FOLDERS;
use fsstack_sys::{self as sys, Call, Errno, Stat, SysError};

use crate::pool::Pool;

/// Suffix of the directory of a bulk copy in the folder.
pub(crate) const COPY: &CStr = c".copy";

/// Lock file in a bulk copy's directory: locked as long as the copy lasts.
pub(crate) const LOCK: &CStr = c".lock";

/// The name of the hidden folder on `branch`.
pub(crate) fn folder_name(branch: &Branch) -> &'static CStr {
    HIDDEN_FOLDERS[usize::from(branch.level).min(HIDDEN_FOLDERS.len() - 1)]
}

impl Pool {
    /// How many pools are stacked here, this one among them.
    pub(crate) fn level(&self) -> u8 {
        self.branches.iter().map(|branch| branch.level).max().unwrap_or(0).saturating_add(1)
    }

    /// The names of the pool's hidden folders, in the root of a branch.
    pub(crate) fn hidden_folders(&self) -> &'static [&'static CStr] {
        &HIDDEN_FOLDERS[..usize::from(self.level()).min(HIDDEN_FOLDERS.len())]
    }

    /// Whether `name` in the pool's root is the pool's own: a hidden folder, or the control file.
    pub(crate) fn hides(&self, name: &CStr) -> bool {
        self.hidden_folders().contains(&name) || self.settings.control_file.has(name)
    }
}

/// Runs `make` in the branch's hidden folder, and returns the folder. The folder is made if it is missing. Its last user
/// removes it when it is empty, so it may be gone again before anything is in it.
pub(crate) fn in_folder<T>(
    branch: &Branch,
    make: impl Fn(BorrowedFd<'_>) -> Result<T, SysError>,
) -> Result<(OwnedFd, T), SysError> {
    let made = unless_removed(|| {
        let folder = folder(branch)?;
        make(folder.as_fd()).map(|made| (folder, made))
    });
    made.inspect_err(|_| leave(branch))
}

/// Tries again if the hidden folder was removed meanwhile, by another thread's [`leave`], or if another host's mount has
/// cleared its content: ENOENT, and ESTALE for a descriptor on a remote branch.
pub(crate) fn unless_removed<T>(mut attempt: impl FnMut() -> Result<T, SysError>) -> Result<T, SysError> {
    for _ in 1..16 {
        match attempt() {
            Err(error) if matches!(error.errno, Errno::NOENT | Errno::STALE) => {}
            done => return done,
        }
    }
    attempt()
}

/// Removes the hidden folder if nothing is in it.
pub(crate) fn leave(branch: &Branch) {
    let _busy = sys::at::rmdir(branch.root().as_fd(), folder_name(branch));
}

/// The branch's hidden folder, made if it is not there.
pub(crate) fn folder(branch: &Branch) -> Result<OwnedFd, SysError> {
    match sys::at::mkdir(branch.root().as_fd(), folder_name(branch), 0o700) {
        Err(error) if error.errno != Errno::EXIST => return Err(error),
        _ => {}
    }
    let folder = sys::at::open_dir(branch.root().as_fd(), folder_name(branch), branch.mounts)?;
    check_own(&folder)?;
    Ok(folder)
}

/// Users with write access to a branch's root may have made the folder first: records in theirs are ignored.
pub(crate) fn check_own(folder: &OwnedFd) -> Result<(), SysError> {
    if is_own(folder)? { Ok(()) } else { Err(SysError { call: Call::Open, errno: Errno::PERM }) }
}

pub(crate) fn is_own(folder: &OwnedFd) -> Result<bool, SysError> {
    Ok(is_only_ours(&sys::at::stat_fd(folder.as_fd())?))
}

/// Whether what has these attributes is the daemon's, and nobody else may write to it.
pub(crate) fn is_only_ours(stat: &Stat) -> bool {
    let strange = sys::identity::is_root() && stat.uid != 0;
    !strange && stat.mode & 0o022 == 0
}

/// The branch's hidden folder. `None` if another user's object has its name.
///
/// # Errors
/// ENOENT if it is not there; another if that cannot be known.
pub(crate) fn own_folder(branch: &Branch) -> Result<Option<OwnedFd>, SysError> {
    match sys::at::open_dir(branch.root().as_fd(), folder_name(branch), branch.mounts) {
        Err(error) if matches!(error.errno, Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
        folder => folder.and_then(|folder| is_own(&folder).map(|own| own.then_some(folder))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_another_thread_removed_is_made_again() {
        for errno in [Errno::NOENT, Errno::STALE] {
            let mut answers = vec![Ok("made"), Err(errno), Err(errno)];
            let attempt = || answers.pop().unwrap().map_err(|errno| SysError { call: Call::Mkdir, errno });
            assert_eq!(unless_removed(attempt).unwrap(), "made");
        }
        let refused = SysError { call: Call::Mkdir, errno: Errno::IO };
        assert_eq!(unless_removed(|| Err::<(), _>(refused)).unwrap_err(), refused);
    }
}
