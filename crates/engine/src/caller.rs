//! Identity of callers.

use fsstack_sys::process::{groups_of, has_group};
use fsstack_sys::{Stat, SysError, identity};

use crate::branch::Branch;
use crate::error::{OpError, Result};
use crate::pool::Pool;

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

    /// This thread creates files on `branch` as the caller from now on (a cheap comparison if it does so already).
    ///
    /// A local disk is not asked for permission again: the kernel has decided, and the daemon keeps its capabilities. A
    /// server decides for itself, by all groups of the caller: the request tells only the directory's.
    ///
    /// # Errors
    /// The kernel does not let the daemon act as that user.
    pub(crate) fn act(self, branch: &Branch) -> Result<()> {
        let Self { uid, gid, group, umask, pid } = self;
        let caller = identity::Caller { uid, gid, group, umask };
        let groups = if branch.is_remote() { groups_of(pid, uid, gid) } else { None };
        let acts = match groups {
            Some(groups) => identity::become_with_groups(caller, &groups),
            None => identity::become_(caller),
        };
        acts.map_err(OpError::Sys)
    }

    /// The call as the caller is made. On local disks the thread stays who it is until something is made as
    /// somebody else: only ownership depends on it, capabilities are kept. A server asks who calls each time.
    ///
    /// # Errors
    /// The kernel does not let the daemon be itself again.
    pub(crate) fn done_in(self, pool: &Pool) -> Result<()> {
        if pool.is_local() { Ok(()) } else { identity::become_daemon().map_err(OpError::Sys) }
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
pub(crate) fn as_owner<T>(stat: &Stat, work: impl FnOnce() -> Result<T, SysError>) -> Result<T, SysError> {
    identity::become_(identity::Caller { uid: stat.uid, gid: stat.gid, group: None, umask: 0 })?;
    let done = work();
    identity::become_daemon()?;
    done
}
