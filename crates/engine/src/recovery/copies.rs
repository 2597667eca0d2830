//! The two copies of a file whose move was interrupted: what has a name, and what is open.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_identity::mark;
use fsstack_identity::number::number;
use fsstack_pool::BranchIx;
use fsstack_sys::at::Whereabouts;
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, Stat, SysError};

use crate::pool::Pool;
use crate::recovery::told::Stamp;

/// On which of the two branches the file is open, if it is.
pub(crate) fn used_on(
    pool: &Pool,
    (from, old): (&Branch, u64),
    (to, new): (&Branch, &Stat),
    (dir, name): &(OwnedFd, CString),
) -> Result<Option<BranchIx>, SysError> {
    let Some(inodes) = pool.branches.iter().find_map(|branch| branch.events()?.inodes()) else {
        return Ok(None);
    };
    // The new copy is known by the number of the old one, and by its own to earlier users of that.
    let numbers = [number(from, from.dev(), old), number(to, new.dev, new.ino)];
    let alias = mark::of(to, On::Name(dir.as_fd(), name), mark::FILE, new.ino)?.map(|id| id.ino);
    let mut known = numbers.into_iter().chain(alias).filter_map(|ino| inodes.get(ino));
    Ok(known.find(|inode| inode.open_file().is_some()).and_then(|inode| inode.branch()))
}

/// The attributes of what has the name, if it is the object of that stamp: a file, or a link, fifo, socket or device.
pub(crate) fn there((dir, name): &(OwnedFd, CString), stamp: Stamp) -> Result<Option<Stat>, SysError> {
    match sys::at::stat(dir.as_fd(), name) {
        Ok(stat) => Ok(Some(stat).filter(|stat| stamp.is_of(stat) && !stat.is_dir())),
        Err(error) if error.errno == Errno::NOENT => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the file of that stamp is on the branch, whatever its name is, where the branch finds files by number. One that may lie
/// outside of the branch, which is a directory of a larger file system, is none: the new copy would go for it.
pub(crate) fn lives(branch: &Branch, stamp: Stamp) -> Result<bool, SysError> {
    let Some(how) = branch.by_number.filter(|_| stamp.born != 0) else { return Ok(false) };
    let root = branch.root();
    let Some(fd) = how.open(root.as_fd(), stamp.ino)? else { return Ok(false) };
    let stat = sys::at::stat_fd(fd.as_fd())?;
    if stat.nlink == 0 || !stamp.is_of(&stat) {
        return Ok(false);
    }
    Ok(match sys::at::whereabouts(root.as_fd(), fd.as_fd())? {
        Whereabouts::Below(_) => true,
        Whereabouts::Elsewhere => false,
        Whereabouts::Unknown => how.is_all_below(root.as_fd(), &branch.path).unwrap_or(false),
    })
}
