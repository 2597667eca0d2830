//! The one function through which every system call goes: it retries, labels, counts and injects faults.

use rustix::io::Errno;

/// The result of a system call.
pub type Result<T, E = SysError> = std::result::Result<T, E>;

/// A system call, or a family of related ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the variants are named after the calls")]
pub enum Call {
    Open,
    Stat,
    Mkdir,
    Mknod,
    Symlink,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Readlink,
    Getdents,
    Getxattr,
    Setxattr,
    Listxattr,
    Removexattr,
    Chmod,
    Chown,
    Utimens,
    Truncate,
    Fallocate,
    Read,
    Write,
    Fsync,
    Syncfs,
    Seek,
    CopyRange,
    Statfs,
    Ioctl,
    Flock,
    Lock,
    Lease,
    Access,
    Handle,
    Identity,
    Mount,
    Watch,
}

impl Call {
    /// Number of variants.
    pub const COUNT: usize = Self::Watch as usize + 1;

    /// All of them, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Open,
        Self::Stat,
        Self::Mkdir,
        Self::Mknod,
        Self::Symlink,
        Self::Link,
        Self::Unlink,
        Self::Rmdir,
        Self::Rename,
        Self::Readlink,
        Self::Getdents,
        Self::Getxattr,
        Self::Setxattr,
        Self::Listxattr,
        Self::Removexattr,
        Self::Chmod,
        Self::Chown,
        Self::Utimens,
        Self::Truncate,
        Self::Fallocate,
        Self::Read,
        Self::Write,
        Self::Fsync,
        Self::Syncfs,
        Self::Seek,
        Self::CopyRange,
        Self::Statfs,
        Self::Ioctl,
        Self::Flock,
        Self::Lock,
        Self::Lease,
        Self::Access,
        Self::Handle,
        Self::Identity,
        Self::Mount,
        Self::Watch,
    ];
}

/// A system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call:?}: {errno}")]
pub struct SysError {
    /// The call.
    pub call: Call,
    /// The kernel's error.
    pub errno: Errno,
}

impl SysError {
    /// Error `errno` of `call`.
    pub const fn new(call: Call, errno: Errno) -> Self {
        Self { call, errno }
    }
}

/// Runs `attempt`, again for as long as it fails with EINTR.
pub(crate) fn call<T>(call: Call, mut attempt: impl FnMut() -> rustix::io::Result<T>) -> Result<T> {
    loop {
        match once(call, &mut attempt) {
            Err(SysError { errno: Errno::INTR, .. }) => {}
            done => return done,
        }
    }
}

/// Runs `attempt` once. For calls that a signal is meant to interrupt.
pub(crate) fn once<T>(call: Call, mut attempt: impl FnMut() -> rustix::io::Result<T>) -> Result<T> {
    crate::count::one(call);
    #[cfg(feature = "fault")]
    if let Some(errno) = crate::fault::due(call) {
        return Err(SysError::new(call, errno));
    }
    #[cfg(feature = "fault")]
    let _turn = crate::witness::turn(call);
    let done = attempt().map_err(|errno| SysError::new(call, errno));
    #[cfg(feature = "fault")]
    if done.is_ok() {
        crate::witness::made(call);
    }
    done
}
