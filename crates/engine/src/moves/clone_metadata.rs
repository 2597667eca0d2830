//! Making a nameless file into a copy of another one, on another branch.
//!
//! All that the branch may refuse comes before the content, which may be large: owner, attributes, flags. The content is written
//! by a thread that acts as the file's owner: the owner's quota decides, and space that is kept back for root is left alone.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};

use fsstack_branch::caller::as_owner;
use fsstack_sys::at::{SetTime, Times};
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Call, Errno, OFlags, Stat, SysError};

use crate::moves::allocation::allocate_as;
use crate::moves::transfer::{self, CarriedBy, CopyError, split_source_error};
use crate::settings::{Relocation, Verify};
use crate::tree::inode_flags::InodeFlags;
use crate::tree::skeleton::{Unfit, copy_xattrs};

/// Removed by the kernel when the content is written to.
const CAPABILITY: &std::ffi::CStr = c"security.capability";

/// Copies from one local branch to another that the caller makes durable together: it syncs the whole file system, by a descriptor
/// that is older than the copies.
#[derive(Debug)]
pub(crate) struct CopiesTogether {
    /// By the kernel while the two may be one file system, which shares content or copies it.
    carried_by: Cell<CarriedBy>,
}

impl CopiesTogether {
    pub(crate) fn new() -> Self {
        Self { carried_by: Cell::new(CarriedBy::Kernel) }
    }
}

/// Gives the empty file `new` flags, owner, attributes, content, allocated space, mode and times of `old`, in an order in which none undoes
/// another; then on disk.
///
/// # Errors
/// The error of a branch; EOPNOTSUPP or EPERM if `new` cannot hold an attribute, an ACL or a flag that matters; EIO if the two are
/// not the same.
pub(crate) fn clone_metadata(
    new: BorrowedFd<'_>,
    old: BorrowedFd<'_>,
    stat: &Stat,
    how: &Relocation,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), CopyError> {
    let made = sys::at::stat_fd(new)?;
    let shared = copy_file((new, &made), (old, stat), how, None, goes_on)?;
    sys::file::fsync(new)?;
    if !shared { Ok(verify(new, old, how)?) } else { Ok(()) }
}

/// Compares the copy, read again from its disk, with the file, if `how` says so.
///
/// # Errors
/// EIO if the two are not the same.
pub(crate) fn verify(new: BorrowedFd<'_>, old: BorrowedFd<'_>, how: &Relocation) -> Result<(), SysError> {
    if how.verify != Verify::Content {
        return Ok(());
    }
    sys::file::drop_cached(new)?;
    let same = transfer::is_same_as_copy(old, new)?;
    if same { Ok(()) } else { Err(SysError { call: Call::Read, errno: Errno::IO }) }
}

/// Like [`clone_metadata`], not on disk yet. Returns whether the two share their content. Both files with their attributes; `together`:
/// a batch that the copy is one of.
///
/// # Errors
/// The same.
pub(crate) fn copy_file(
    (new, made): (BorrowedFd<'_>, &Stat),
    (old, stat): (BorrowedFd<'_>, &Stat),
    how: &Relocation,
    together: Option<&CopiesTogether>,
    goes_on: &dyn Fn() -> bool,
) -> Result<bool, CopyError> {
    let inode_flags = InodeFlags::of(old)?;
    inode_flags.begin(new)?;
    inode_flags.try_promises(new)?;
    // A change of owner or mode is a transaction of the file system also where nothing changes.
    if (made.uid, made.gid) != (stat.uid, stat.gid) {
        sys::at::chown_fd(new, Some(stat.uid), Some(stat.gid))?;
    }
    copy_xattrs(new, old, Unfit::Refused)?;
    if !are_common_times(stat) {
        set_times(new, stat)?;
    }
    let filled = as_owner(stat, || split_source_error(fill(new, (old, stat), how, together, goes_on)))?;
    let shared = filled.map_err(CopyError::Source)?;
    copy_capability(new, old)?;
    let written = sys::at::stat_fd(new)?;
    if written.size != stat.size {
        return Err(SysError { call: Call::Write, errno: Errno::IO }.into());
    }
    // After the owner and the content, which clear set-uid.
    if written.mode != stat.mode {
        sys::at::chmod_fd(new, stat.mode & 0o7777)?;
    }
    inode_flags.finish(new)?;
    inode_flags.check_promises(new)?;
    set_times(new, stat)?;
    Ok(shared)
}

/// Whether all file systems store the times of `stat`.
fn are_common_times(stat: &Stat) -> bool {
    [stat.atime.sec, stat.mtime.sec].iter().all(|second| (0..=i64::from(i32::MAX)).contains(second))
}

/// Gives `new` the times of `old`. The kernel sets the nearest that its file system stores.
///
/// # Errors
/// EOPNOTSUPP if they are others, to the second.
fn set_times(new: BorrowedFd<'_>, old: &Stat) -> Result<(), SysError> {
    let times = Times { atime: SetTime::At(old.atime), mtime: SetTime::At(old.mtime) };
    sys::at::utimens_fd(new, times)?;
    let seconds = |stat: &Stat| [stat.atime.sec, stat.mtime.sec];
    if are_common_times(old) || seconds(&sys::at::stat_fd(new)?) == seconds(old) {
        return Ok(());
    }
    Err(SysError::new(Call::Utimens, Errno::OPNOTSUPP))
}

/// Gives `new` the content of `old`, and the space that is allocated for it: whether the two share it. The calling thread acts as
/// the owner.
fn fill(
    new: BorrowedFd<'_>,
    (old, stat): (BorrowedFd<'_>, &Stat),
    how: &Relocation,
    together: Option<&CopiesTogether>,
    goes_on: &dyn Fn() -> bool,
) -> Result<bool, CopyError> {
    // A server takes a write for one of the user that opened the file. One that does not let the owner in counts for the daemon.
    let own = match together.is_none().then(|| sys::at::reopen(new, OFlags::RDWR)) {
        Some(Err(error)) if matches!(error.errno, Errno::ACCESS | Errno::PERM) => None,
        opened => opened.transpose()?,
    };
    let new = own.as_ref().map_or(new, AsFd::as_fd);
    let carried_by = || together.map_or(CarriedBy::Kernel, |together| together.carried_by.get());
    let shared = carried_by() == CarriedBy::Kernel && share(new, old, together);
    if !shared {
        transfer::copy_all(old, new, (stat.size, how.speed, carried_by()), goes_on)?;
    }
    allocate_as(new, old, stat, goes_on)?;
    // Only the descriptor of the write may get its write-back error.
    if together.is_none() {
        sys::file::fsync(new)?;
    }
    Ok(shared)
}

/// Has `new` share the content of `old`: whether it does.
fn share(new: BorrowedFd<'_>, old: BorrowedFd<'_>, together: Option<&CopiesTogether>) -> bool {
    let shared = sys::file::reflink(old, new);
    if let (Some(together), Err(SysError { errno: Errno::XDEV, .. })) = (together, &shared) {
        together.carried_by.set(CarriedBy::Daemon);
    }
    shared.is_ok()
}

/// Gives `new` the file capability of `old`, if it has one.
fn copy_capability(new: BorrowedFd<'_>, old: BorrowedFd<'_>) -> Result<(), SysError> {
    match xattr::get_vec(On::Fd(old), CAPABILITY) {
        Ok(value) => xattr::set(On::Fd(new), CAPABILITY, &value, 0),
        Err(error) if matches!(error.errno, Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsFd;

    use fsstack_sys::Time;
    use fsstack_sys::identity;
    use fsstack_sys::xattr::{self, On};

    use super::*;

    const OWNER: u32 = 1234;
    /// `cap_net_raw+ep`, as the kernel stores it.
    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    /// A file of 3 MiB on a disk, and an empty one in memory; None where there are no two such places.
    fn files() -> Option<(File, File)> {
        if !identity::is_root() {
            println!("skipped: not root");
            return None;
        }
        identity::keep_capabilities().unwrap();
        let (mut old, new) = (tempfile::tempfile().unwrap(), tempfile::tempfile_in("/dev/shm").ok()?);
        let dev = |file: &File| sys::at::stat_fd(file.as_fd()).unwrap().dev;
        if dev(&old) == dev(&new) {
            println!("skipped: /tmp and /dev/shm are one file system");
            return None;
        }
        old.write_all(&vec![7; 3 << 20]).unwrap();
        Some((old, new))
    }

    fn blocks(file: &File) -> u64 {
        sys::at::stat_fd(file.as_fd()).unwrap().blocks
    }

    #[test]
    fn space_allocated_for_a_file_is_allocated_for_its_copy() {
        let Some((old, new)) = files() else { return };
        // Behind the end, too, which keeps the size.
        sys::file::fallocate(old.as_fd(), 0x01, 2 << 20, 14 << 20).unwrap();
        copy(&old, &new, || ()).unwrap();
        assert!(blocks(&new) >= 16 << 11, "{} of {} blocks", blocks(&new), blocks(&old));
        assert_eq!(sys::at::stat_fd(new.as_fd()).unwrap().size, 3 << 20);
        assert!(transfer::is_same(old.as_fd(), new.as_fd()).unwrap());
    }

    /// The file system in memory does not tell where.
    #[test]
    fn space_allocated_for_a_whole_file_is_allocated_for_its_copy() {
        let Some((new, old)) = files() else { return };
        new.set_len(0).unwrap();
        sys::file::fallocate(old.as_fd(), 0, 0, 8 << 20).unwrap();
        sys::file::write_at(old.as_fd(), b"content", 5 << 20).unwrap();
        copy(&old, &new, || ()).unwrap();
        assert!(blocks(&new) >= 8 << 11, "{} of {} blocks", blocks(&new), blocks(&old));
        assert!(transfer::is_same(old.as_fd(), new.as_fd()).unwrap());
    }

    #[test]
    fn holes_of_a_file_are_holes_of_its_copy() {
        let Some((old, new)) = files() else { return };
        sys::file::truncate(old.as_fd(), 1 << 30).unwrap();
        copy(&old, &new, || ()).unwrap();
        assert!(blocks(&new) <= 4 << 11, "{} of {} blocks", blocks(&new), blocks(&old));
    }

    fn copy(old: &File, new: &File, each_piece: impl Fn()) -> Result<(), SysError> {
        let stat = sys::at::stat_fd(old.as_fd()).unwrap();
        let goes_on = || {
            each_piece();
            true
        };
        Ok(clone_metadata(new.as_fd(), old.as_fd(), &stat, &Relocation::to_the_roomiest(), &goes_on)?)
    }

    #[test]
    fn a_copy_that_is_read_back_keeps_the_access_time() {
        let Some((old, new)) = files() else { return };
        // Read again later, a file whose last access is older than its last change gets a new time of access.
        let [atime, mtime] = [1000, 2000].map(|sec| Time { sec, nsec: 0 });
        let times = Times { atime: SetTime::At(atime), mtime: SetTime::At(mtime) };
        sys::at::utimens_fd(old.as_fd(), times).unwrap();
        let stat = sys::at::stat_fd(old.as_fd()).unwrap();
        let how = Relocation { verify: Verify::Content, ..Relocation::to_the_roomiest() };
        clone_metadata(new.as_fd(), old.as_fd(), &stat, &how, &|| true).unwrap();
        let copied = sys::at::stat_fd(new.as_fd()).unwrap();
        assert_eq!((copied.atime, copied.mtime), (atime, mtime));
    }

    #[test]
    fn attributes_that_a_branch_cannot_hold_are_refused_before_any_content_is_copied() {
        let Some((old, new)) = files() else { return };
        let flags = sys::ioctl::getflags(old.as_fd()).unwrap_or(0);
        if sys::ioctl::setflags(old.as_fd(), flags | sys::ioctl::FS_SYNC_FL).is_err() {
            return println!("skipped: /tmp has no such flag");
        }
        let refused = copy(&old, &new, || panic!("content is copied")).unwrap_err();
        assert_eq!(refused.errno, Errno::OPNOTSUPP);
    }

    /// Its file-system user.
    fn thread_acts_as() -> u32 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
        ids.split_whitespace().nth(3).unwrap().parse().unwrap()
    }

    #[test]
    fn the_content_is_written_by_its_owner_whose_quota_it_counts_for() {
        let Some((old, new)) = files() else { return };
        sys::at::chown_fd(old.as_fd(), Some(OWNER), Some(OWNER)).unwrap();
        let asked = Cell::new(0);
        let is_the_owners = || {
            let owner = sys::at::stat_fd(new.as_fd()).unwrap().uid;
            assert_eq!((owner, thread_acts_as()), (OWNER, OWNER));
            asked.set(asked.get() + 1);
        };
        copy(&old, &new, is_the_owners).unwrap();
        // Before each of three pieces is read, and before it is written.
        assert_eq!((asked.get(), thread_acts_as()), (6, 0));
    }

    #[test]
    fn a_capability_outlives_the_writing_of_the_content() {
        let Some((old, new)) = files() else { return };
        let name = c"security.capability";
        xattr::set(On::Fd(old.as_fd()), name, &CAPABILITY, 0).unwrap();
        copy(&old, &new, || ()).unwrap();
        assert_eq!(xattr::get_vec(On::Fd(new.as_fd()), name).unwrap(), CAPABILITY);
    }
}
