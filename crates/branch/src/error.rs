//! Why an operation was refused: small, `Copy`, and mapped to one errno in one place.

use fsstack_pool::BranchIx;
use fsstack_pool::Rejection;
use fsstack_sys::{Call, Errno, SysError};

/// The result of an engine operation.
pub type Result<T, E = OpError> = std::result::Result<T, E>;

/// Why an operation was refused. The context (call, branch) is data; it is rendered only if it is logged.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum OpError {
    /// A system call on a branch failed.
    #[error("{sys} on branch {branch}")]
    Branch {
        /// The branch that answered so.
        branch: BranchIx,
        /// The call and its errno.
        sys: SysError,
    },
    /// A system call on no particular branch failed.
    #[error("{0}")]
    Sys(SysError),
    /// No branch can take what was to be created.
    #[error("no branch can take it: {0:?}")]
    NoBranch(Rejection),
    /// The pool itself says no: the name is there already, the handle is not open, and the like.
    #[error("refused: {0}")]
    Refused(Errno),
}

impl OpError {
    /// Nothing is there under that name, on any branch that could have it.
    pub const MISSING: Self = Self::Refused(Errno::NOENT);
    /// The object that the kernel's number named is gone.
    pub const STALE: Self = Self::Refused(Errno::STALE);
    /// No reachable branch has the name, and the pool answers so (`degraded=read`). Not to be cached.
    pub const OUT_OF_SIGHT: Self = Self::Sys(SysError::new(Call::Access, Errno::NOENT));
    /// A name might be on a branch that does not answer.
    pub const UNSURE: Self = Self::Refused(Errno::IO);

    /// Errno for the caller. A branch that is out of reach is an I/O error: its own errno (ENOTCONN, ESTALE and the like)
    /// means nothing to a program, and less to an NFS server.
    pub fn errno(self) -> Errno {
        match self {
            Self::Branch { sys, .. } if is_branch_fault(sys.errno) => Errno::IO,
            // The caller asked for a file and can do nothing with it, and an NFS server does not know it.
            Self::Branch { sys, .. } | Self::Sys(sys) if !is_about_a_file(sys.errno) => Errno::IO,
            Self::Branch { sys, .. } | Self::Sys(sys) => sys.errno,
            Self::NoBranch(why) => match why {
                Rejection::PathMissing => Errno::NOENT,
                Rejection::Unfit => Errno::OPNOTSUPP,
                Rejection::Unreachable => Errno::IO,
                Rejection::TooFull => Errno::NOSPC,
                Rejection::ReadOnly => Errno::ROFS,
            },
            Self::Refused(errno) => errno,
        }
    }

    /// The branch's answer says that this branch cannot take more, while another might.
    pub fn is_about_the_branch(self) -> bool {
        match self {
            Self::Branch { sys, .. } => matches!(sys.errno, Errno::NOSPC | Errno::DQUOT | Errno::ROFS),
            Self::Sys(_) | Self::NoBranch(_) | Self::Refused(_) => false,
        }
    }

    /// The branch cannot hold what a directory that it is given has: an ACL, or a flag that is a promise.
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

    /// Why a name cannot be in a directory that its branch cannot be given: elsewhere it could, by a copy.
    pub fn of_a_new_parent(self) -> Self {
        if self.is_unfit() { Self::Refused(Errno::XDEV) } else { self }
    }

    /// The branch was asked whether all is on disk, or to close the file, and says that something was lost.
    pub fn is_of_a_sync(self) -> bool {
        match self {
            Self::Branch { sys, .. } => matches!(sys.call, Call::Fsync | Call::Write),
            Self::Sys(_) | Self::NoBranch(_) | Self::Refused(_) => false,
        }
    }

    /// The branch did not answer for itself: whether the name is there is not known.
    pub fn is_fault(self) -> bool {
        match self {
            Self::Branch { sys, .. } => is_branch_fault(sys.errno),
            Self::Refused(errno) => errno == Errno::IO,
            Self::Sys(_) | Self::NoBranch(_) => false,
        }
    }

    /// Why no copy of a directory answers, `other` being why the next one does not: ESTALE only if all of them are gone.
    pub fn of_copies(self, other: Self) -> Self {
        if other.is_missing() || other.errno() == Errno::STALE { self } else { other }
    }

    /// Whether it may be remembered that the name is missing.
    pub fn is_missing_for_sure(self) -> bool {
        matches!(self, Self::Refused(errno) if errno == Errno::NOENT)
    }

    /// The branch answered, and the name is not there.
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

/// The errnos by which a branch says that it is out of order itself (a dead FUSE daemon, a lost server, a
/// shut-down disk), rather than something about the name it was asked for.
pub fn is_branch_fault(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOTCONN
            | Errno::CONNABORTED
            | Errno::BADFD
            | Errno::IO
            | Errno::STALE
            | Errno::TIMEDOUT
            // What was under way to a FUSE server over io_uring that ended.
            | Errno::CANCELED
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
    ) || errno.raw_os_error() == 117 // EUCLEAN: a corrupted file system
}

/// Errnos that calls about files have. What else a branch answers (of connections, of its server's descriptors) is about
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

/// A refusal that names a call which no branch was asked for.
pub fn refused(call: Call, errno: Errno) -> OpError {
    OpError::Sys(SysError { call, errno })
}

impl From<OpError> for std::io::Error {
    fn from(error: OpError) -> Self {
        Self::from_raw_os_error(error.errno().raw_os_error())
    }
}
