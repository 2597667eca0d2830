//! Identity of callers. No other part of the daemon makes a thread act as somebody else.

use fsstack_sys::process::{groups_of, has_group};
use fsstack_sys::{Stat, SysError, identity};

use crate::branch::Branch;
use crate::error::{OpError, Result};

/// The process that made a request: what the kernel's request header tells about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// The one supplementary group that bears on a create (the parent directory's), if the caller has it.
    pub group: Option<u32>,
    /// Mask of the mode of what is created.
    pub umask: u32,
    /// The thread that asks; 0: unknown, or not to be seen from here.
    pub pid: u32,
}

impl Caller {
    /// Root, for all requests: the daemon itself, and programs that use the engine without a kernel.
    pub const DAEMON: Self = Self { uid: 0, gid: 0, group: None, umask: 0, pid: 0 };

    /// Runs `work` with the calling thread acting as the caller on `branch`; whatever it makes afterwards is the daemon's again.
    ///
    /// A local disk is not asked for permission again: the kernel has decided, and the daemon keeps its capabilities. A
    /// server decides for itself, by all groups of the caller: the request tells only the directory's.
    ///
    /// # Errors
    /// The kernel does not let the daemon act as that user, or be itself again.
    pub(crate) fn acting_on<T>(self, branch: &Branch, work: impl FnOnce() -> T) -> Result<T> {
        let Self { uid, gid, group, umask, pid } = self;
        let caller = identity::Caller { uid, gid, group, umask };
        let groups = if branch.is_remote() { groups_of(pid, uid, gid) } else { None };
        let done = identity::acting_as(caller, groups.as_deref(), work).map_err(OpError::Sys)?;
        if branch.is_remote() {
            identity::become_daemon().map_err(OpError::Sys)?;
        }
        Ok(done)
    }

    /// Whether the caller keeps the privileges that a write by others strips. The kernel tells only the
    /// user id here, not the capabilities.
    pub fn is_root(self) -> bool {
        self.uid == 0
    }

    /// Whether set-gid of that group is the caller's to keep. All groups of the caller are looked through.
    pub fn is_of(self, group: u32) -> bool {
        self.is_root() || self.gid == group || has_group(self.pid, group)
    }
}

/// Runs `work` on a thread that acts as the owner of the file with the attributes `stat`, and as the daemon again afterwards. The
/// thread keeps its capabilities, of which none lets it exceed a quota (`identity::keep_capabilities`).
///
/// # Errors
/// Those of `work`; the kernel does not let the daemon act as that user, or be itself again.
pub fn as_owner<T>(stat: &Stat, work: impl FnOnce() -> Result<T, SysError>) -> Result<T, SysError> {
    let owner = identity::Caller { uid: stat.uid, gid: stat.gid, group: None, umask: 0 };
    let done = identity::acting_as(owner, None, work)?;
    identity::become_daemon()?;
    done
}
