//! Identity of callers. Only this module makes a thread of the daemon act as another user.

use fsstack_sys::process::{file_system_ids, groups_of, has_group};
use fsstack_sys::{Errno, Stat, SysError, identity};

use crate::branch::{Branch, FsKind};
use crate::error::{OpError, Result};

/// The process that made a request, from the kernel's request header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// File-system user id; [`UNKNOWN`] if the kernel did not send it.
    pub uid: u32,
    /// File-system group id; [`UNKNOWN`] if the kernel did not send it.
    pub gid: u32,
    /// The parent directory's group, if it is one of the caller's supplementary groups.
    pub group: Option<u32>,
    /// File mode creation mask.
    pub umask: u32,
    /// Thread id of the caller; 0 if unknown or in another PID namespace.
    pub pid: u32,
    /// The caller may use an idmapped mount: its ids say who owns what it makes, and no more.
    pub mapped: bool,
}

/// Id that the kernel does not send. With `idmap=on` it sends ids, mapped by the caller's mount, only with requests that
/// make something.
pub const UNKNOWN: u32 = u32::MAX;

impl Caller {
    /// Root: the daemon itself, and programs that use the engine without a kernel.
    pub const DAEMON: Self = Self { uid: 0, gid: 0, group: None, umask: 0, pid: 0, mapped: false };

    /// Runs `work` with the calling thread acting as the caller on `branch`; objects that it makes later are the
    /// daemon's again.
    ///
    /// A local disk checks no permissions again: the kernel has done so, and the daemon keeps its capabilities. A
    /// server checks for itself, by all groups of the caller, while the request has only the directory's group.
    ///
    /// # Errors
    ///
    /// EOVERFLOW if the caller has no id in the pool; the kernel does not let the daemon act as that user, or as itself
    /// again.
    pub(crate) fn acting_on<T>(self, branch: &Branch, work: impl FnOnce() -> T) -> Result<T> {
        let Self { uid, gid, group, umask, pid, mapped: _ } = self;
        if [uid, gid].contains(&UNKNOWN) {
            return Err(OpError::Refused(Errno::OVERFLOW));
        }
        let caller = identity::Caller { uid, gid, group, umask };
        let groups = if branch.is_remote() { groups_of(pid, uid, gid) } else { None };
        let done = identity::acting_as(caller, groups.as_deref(), work).map_err(OpError::Sys)?;
        if branch.is_remote() {
            identity::become_daemon().map_err(OpError::Sys)?;
        }
        Ok(done)
    }

    /// True if the caller keeps set-id bits that a write by other users clears. Decided by user id, because the request
    /// does not contain capabilities.
    pub fn is_root(self) -> bool {
        self.own_uid() == Some(0)
    }

    /// The caller's user outside its mount, if that is known: a mapped one is read from proc(5).
    fn own_uid(self) -> Option<u32> {
        if self.mapped { file_system_ids(self.pid).map(|(uid, _)| uid) } else { Some(self.uid) }
    }

    /// True if the caller is in `group`, so that it may keep set-gid of that group. Checks all of the caller's groups.
    ///
    /// A mapped caller's groups are those outside its mount. So this decides only about a set-gid bit with which nothing
    /// can be executed.
    pub fn is_of(self, group: u32) -> bool {
        self.is_root() || self.main_group() == Some(group) || has_group(self.pid, group)
    }

    fn main_group(self) -> Option<u32> {
        if self.mapped { file_system_ids(self.pid).map(|(_, gid)| gid) } else { Some(self.gid) }
    }
}

/// Runs `work`, which takes space on `branch`, as the user `uid`. ext4 gives its reserve (`mkfs.ext4 -m`, 5 percent) to the
/// user that the calling thread acts as, if that is root.
///
/// # Errors
///
/// The kernel does not let the daemon act as that user.
pub fn taking_space<T>(branch: &Branch, uid: u32, work: impl FnOnce() -> T) -> Result<T, SysError> {
    /// Stands for a user that is unknown, and not root.
    const STRANGER: u32 = 65_534;
    if branch.kind != FsKind::LocalHashed || !identity::is_root() {
        return Ok(work());
    }
    identity::acting_as_user(if uid == UNKNOWN { STRANGER } else { uid }, work)
}

/// Runs `work` on a thread that acts as the owner of the file with the attributes `stat`, and as the daemon again
/// afterwards. The thread keeps its capabilities, none of which exceeds a quota (`identity::keep_capabilities`).
///
/// # Errors
///
/// Those of `work`; or the kernel does not let the daemon act as that user, or as itself again.
pub fn as_owner<T>(stat: &Stat, work: impl FnOnce() -> Result<T, SysError>) -> Result<T, SysError> {
    let owner = identity::Caller { uid: stat.uid, gid: stat.gid, group: None, umask: 0 };
    let done = identity::acting_as(owner, None, work)?;
    identity::become_daemon()?;
    done
}
