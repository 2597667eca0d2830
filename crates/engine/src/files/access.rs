//! Access that a descriptor on a file allows.

use fsstack_branch::error::OpError;
use fsstack_sys::{Errno, OFlags};

/// Access that a descriptor on a file allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Access {
    /// To name the file (`O_PATH`), which the kernel opens itself: its server knows of no open by the daemon, and of no
    /// close. Made more of when more is asked of it.
    Name,
    /// To read it.
    Read,
    /// To read and write it.
    Write,
    /// To read it, and to append to it: the branch puts what is written at its end, wherever a write says that it goes. So
    /// an append-only file is opened.
    Append,
}

impl Access {
    /// How to open a file for it.
    pub(crate) fn flags(self) -> OFlags {
        match self {
            Self::Name => OFlags::PATH,
            Self::Read => OFlags::RDONLY | OFlags::NONBLOCK,
            Self::Write => OFlags::RDWR,
            Self::Append => OFlags::RDWR | OFlags::APPEND,
        }
    }

    /// Whether it is good for writing.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Append)
    }
}

/// True for EPERM, the answer to opening an append-only or immutable file for writing.
pub(crate) fn is_refused(error: OpError) -> bool {
    error.errno() == Errno::PERM
}
