//! Errors of operations: small, `Copy`, and mapped to an errno in one place.

use fsstack_pool::BranchIx;
use fsstack_pool::Rejection;
use fsstack_sys::{Call, Errno, SysError};

/// The result of an engine operation.
pub type Result<T, E = OpError> = std::result::Result<T, E>;

/// Reason why an operation failed. Its context (call, branch) is data and is rendered only for the log.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum OpError {
    /// A system call on a branch failed.
    #[error("{sys} on branch {branch}")]
    Branch {
        /// The branch that returned the error.
        branch: BranchIx,
        /// The call and its errno.
        sys: SysError,
    },
    /// A system call on no particular branch failed.
    #[error("{0}")]
    Sys(SysError),
    /// No branch can take the new object.
    #[error("no branch can take it: {0:?}")]
    NoBranch(Rejection),
    /// The pool itself refuses: the name exists already, the handle is not open, and the like.
    #[error("refused: {0}")]
    Refused(Errno),
}

impl OpError {
    /// No branch that could have the name has it.
    pub const MISSING: Self = Self::Refused(Errno::NOENT);
    /// The object that the kernel's number names is gone.
    pub const STALE: Self = Self::Refused(Errno::STALE);
    /// No reachable branch has the name, and the pool says so (`degraded=read`). Not to be cached.
    pub const OUT_OF_SIGHT: Self = Self::Sys(SysError::new(Call::Access, Errno::NOENT));
    /// A branch that does not answer might have the name.
    pub const UNSURE: Self = Self::Refused(Errno::IO);

    /// Returns the errno for the caller. Errors of an unreachable branch become EIO: its own errno (ENOTCONN, ESTALE
    /// and the like) would mislead a program, and more so an NFS server.
    pub fn errno(self) -> Errno {
        match self {
            Self::Branch { sys, .. } if is_branch_fault(sys.errno) => Errno::IO,
            // Such an errno is not about the file, and an NFS server does not know it.
            Self::Branch { sys, .. } | Self::Sys(sys) if !is_about_a_file(sys.errno) => Errno::IO,
            Self::Branch { sys, .. } | Self::Sys(sys) => sys.errno,
            Self::NoBranch(why) => match why {
                Rejection::PathMissing => Errno::NOENT,
                Rejection::Obstructed => Errno::NOTDIR,
                Rejection::Unfit => Errno::OPNOTSUPP,
                Rejection::Unreachable => Errno::IO,
                Rejection::TooFull | Rejection::Excluded => Errno::NOSPC,
                Rejection::OverQuota => Errno::DQUOT,
                Rejection::ReadOnly => Errno::ROFS,
            },
            Self::Refused(errno) => errno,
        }
    }

    /// True if this branch cannot take more, while another one might.
    pub fn is_about_the_branch(self) -> bool {
        match self {
            Self::Branch { sys, .. } => matches!(sys.errno, Errno::NOSPC | Errno::DQUOT | Errno::ROFS),
            Self::Sys(_) | Self::NoBranch(_) | Self::Refused(_) => false,
        }
    }

    /// True if the branch cannot hold an ACL or a binding inode flag of the directory that it is given.
    pub fn is_unfit(self) -> bool {
        match self {
            Self::Branch { sys, .. } => {
                matches!(
                    (sys.call, sys.errno),
                    (Call::Setxattr | Call::Ioctl, Errno::OPNOTSUPP | Errno::PERM)
                )
            }
            Self::Sys(_) | Self::NoBranch(_) | Self::Refused(_) => false,
        }
    }

    /// True if the branch has an object of another kind in place of a directory that it is given.
    pub fn is_obstructed(self) -> bool {
        match self {
            Self::Branch { sys, .. } => matches!(sys.errno, Errno::NOTDIR | Errno::LOOP),
            Self::Sys(_) | Self::NoBranch(_) | Self::Refused(_) => false,
        }
    }

    /// Maps the error of copying a parent directory to a branch: there the name cannot be made, elsewhere it could.
    pub fn of_a_new_parent(self) -> Self {
        if self.is_unfit() || self.is_obstructed() { Self::Refused(Errno::XDEV) } else { self }
    }

    /// True if an fsync or close reported lost data.
    pub fn is_of_a_sync(self) -> bool {
        match self {
            Self::Branch { sys, .. } => matches!(sys.call, Call::Fsync | Call::Write),
            Self::Sys(_) | Self::NoBranch(_) | Self::Refused(_) => false,
        }
    }

    /// True if the branch itself failed, so that it is unknown whether the name exists.
    pub fn is_fault(self) -> bool {
        match self {
            Self::Branch { sys, .. } => is_branch_fault(sys.errno),
            Self::Refused(errno) => errno == Errno::IO,
            Self::Sys(_) | Self::NoBranch(_) => false,
        }
    }

    /// Combines the errors of two copies of a directory: ESTALE only if all copies are gone.
    pub fn of_copies(self, other: Self) -> Self {
        if other.is_missing() || other.errno() == Errno::STALE { self } else { other }
    }

    /// True if the kernel may cache that the name is missing.
    pub fn is_missing_for_sure(self) -> bool {
        matches!(self, Self::Refused(errno) if errno == Errno::NOENT)
    }

    /// True if the branch has no such name and cannot have it: its file system has shorter names (eCryptfs) or refuses some.
    pub fn cannot_have_the_name(self) -> bool {
        match self {
            Self::Branch { sys, .. } => matches!(sys.errno, Errno::NAMETOOLONG | Errno::INVAL),
            Self::Sys(_) | Self::NoBranch(_) | Self::Refused(_) => false,
        }
    }

    /// True if the branch cannot make this object in this directory, whatever the caller does, and another branch may: names of
    /// this length, a file without a name, one more subdirectory.
    pub fn is_beyond_the_branch(self) -> bool {
        match self {
            Self::Branch { sys, .. } => matches!(
                (sys.call, sys.errno),
                (_, Errno::NAMETOOLONG) | (Call::Open, Errno::OPNOTSUPP) | (Call::Mkdir, Errno::MLINK)
            ),
            Self::Sys(_) | Self::NoBranch(_) | Self::Refused(_) => false,
        }
    }

    /// True if the branch answered that the name is missing.
    pub fn is_missing(self) -> bool {
        self.errno() == Errno::NOENT
    }
}

impl From<SysError> for OpError {
    fn from(sys: SysError) -> Self {
        Self::Sys(sys)
    }
}

impl From<Errno> for OpError {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

/// True for errnos by which a branch reports a fault of its own (a dead FUSE daemon, a lost server, a shut-down disk),
/// not one of the name in question.
pub fn is_branch_fault(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOTCONN
            | Errno::CONNABORTED
            | Errno::BADFD
            | Errno::IO
            | Errno::STALE
            | Errno::TIMEDOUT
            // Requests in flight to a FUSE server over io_uring that ended.
            | Errno::CANCELED
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
    ) || errno.raw_os_error() == 117 // EUCLEAN: a corrupted file system
}

/// True for errnos that calls on files have. Others (of connections, of a server's descriptors) are about the branch
/// itself.
fn is_about_a_file(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::PERM
            | Errno::NOENT
            | Errno::INTR
            | Errno::IO
            | Errno::NXIO
            | Errno::TOOBIG
            | Errno::AGAIN
            | Errno::NOMEM
            | Errno::ACCESS
            | Errno::BUSY
            | Errno::EXIST
            | Errno::XDEV
            | Errno::NODEV
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::INVAL
            | Errno::NFILE
            | Errno::MFILE
            | Errno::NOTTY
            | Errno::TXTBSY
            | Errno::FBIG
            | Errno::NOSPC
            | Errno::ROFS
            | Errno::MLINK
            | Errno::RANGE
            | Errno::DEADLK
            | Errno::NAMETOOLONG
            | Errno::NOLCK
            | Errno::NOSYS
            | Errno::NOTEMPTY
            | Errno::LOOP
            | Errno::NODATA
            | Errno::OVERFLOW
            | Errno::ILSEQ
            | Errno::OPNOTSUPP
            | Errno::DQUOT
            | Errno::NOKEY
    )
}

/// Makes a refusal that names a call, without a branch.
pub fn refused(call: Call, errno: Errno) -> OpError {
    OpError::Sys(SysError { call, errno })
}

impl From<OpError> for std::io::Error {
    fn from(error: OpError) -> Self {
        Self::from_raw_os_error(error.errno().raw_os_error())
    }
}
