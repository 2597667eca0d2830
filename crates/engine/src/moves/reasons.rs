//! Reasons for a file to stay where it is, in words.

use fsstack_branch::error::OpError;
use fsstack_sys::{self as sys, Errno, Stat};

use crate::files::route::Route;
use crate::files::{MAPPED, OpenFile, WRITTEN_PAST};

/// Reason for a file to stay that would hide another one.
pub(crate) const HIDES: &str = "it hides files of its name on other branches";

/// Reason for a file to stay whose branch is not changed.
pub(crate) const READ_ONLY: &str = "its branch is read-only";
/// Reason for a locked file to stay.
pub(crate) const LOCKED: &str = "somebody has locks on it, which the branch keeps";
/// Reason for a file to stay whose name the branch does not let go.
pub(crate) const FROZEN: &str = "it is append-only or immutable: its old name could not be removed";
/// Reason for a file to stay that has further names, which the mover does not know.
pub(crate) const LINKED: &str =
    "it has hard links that were not found: outside of the pool's tree, or made just now";
/// Reason for a file to stay that has too many names.
pub(crate) const LINKED_TOO_OFTEN: &str = "it has more hard links than jobs remember";
/// Reason for a file to stay that has further names, while the walk remembers too many of other files.
pub(crate) const MANY_LINKED: &str =
    "it has hard links, and more names of such files were met than jobs remember: it can move after those";
/// Like [`MANY_LINKED`], where another job remembers them.
pub(crate) const OTHERS_LINKED: &str =
    "it has hard links, and another job remembers as many names of such files as there may be";
/// Reason for a file to stay that no branch can hold.
pub(crate) const UNFIT: &str = "no branch with room for it can hold its attributes";
/// Reason for a file to stay that no other branch may take.
pub(crate) const RULED: &str =
    "the strict placement rule for its directory names no other branch that has room for it";
/// Reason for a file to stay that is kept from acting where it is.
pub(crate) const RESTRICTED: &str = "it is a set-id program or a device, which its branch's mount (nosuid, nodev) keeps from \
                                     acting; the mounts of the branches with room for it do not";
/// Reason for a file to stay that was changed under the copy.
pub(crate) const CHANGED: &str = "somebody else changed it while it was copied";

/// Reason for a file to stay whose content its own branch cannot give.
pub(crate) const UNREADABLE: &str = "it cannot be read from its branch";
/// Reason for a file to stay that its own branch cannot sync, or the directories of its names: what a record of its move relies on is to
/// be on disk first.
pub(crate) const UNSYNCED: &str = "its branch cannot store what was written to it before";

/// Whether the reason `why` is a fault of the file's own branch: no other branch would take the file, either.
pub(crate) fn is_of_source(why: &str) -> bool {
    [UNREADABLE, UNSYNCED].contains(&why)
}

/// Reason for a file or directory to stay whose directory cannot be made on the branches that have room for it.
pub(crate) const OBSTRUCTED: &str =
    "the other branches have an object of another kind in place of a directory on its way";

/// Reason that no branch took the file, after one failed with `error` and the others as in `known`.
pub(crate) fn why_failed(error: OpError, known: &'static str) -> &'static str {
    match error.errno() {
        Errno::OPNOTSUPP | Errno::PERM => UNFIT,
        Errno::NOSPC | Errno::DQUOT => known,
        Errno::EXIST => HIDES,
        Errno::NOTDIR | Errno::LOOP => OBSTRUCTED,
        Errno::STALE | Errno::BUSY => CHANGED,
        _ => "the branches that have room for it failed",
    }
}

/// Reason for the open file to stay while the kernel reads, writes or may map it past the daemon.
pub(crate) fn why_past_us(file: &OpenFile) -> Option<&'static str> {
    let beside = matches!(file.route(), Some(Route::DirectBeside(_)));
    file.is_past_us().then_some(if beside { MAPPED } else { WRITTEN_PAST })
}

/// True if the open file would stay while programs use it so; with `make_way` the kernel's use of it does not count.
pub(crate) fn is_in_use(file: &OpenFile, make_way: bool) -> bool {
    (!make_way && why_past_us(file).is_some()) || file.is_locked()
}

/// Reason that the open file, of which `names` names are known, may not be moved at all. None: it has no lock owner any more.
pub(crate) fn why_not(file: &OpenFile, stat: &Stat, flags: u32, names: usize) -> Option<&'static str> {
    let past = why_past_us(file);
    if past.is_some() {
        return past;
    }
    file.forget_idle_owners();
    if file.is_locked() {
        return Some(LOCKED);
    }
    if flags & sys::ioctl::FREEZING != 0 {
        return Some(FROZEN);
    }
    match stat.nlink {
        0 => Some("it has no name"),
        links if links as usize == names => None,
        _ => Some(LINKED),
    }
}
