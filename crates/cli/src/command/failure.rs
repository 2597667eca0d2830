//! Failure of the command: one line, and an exit code for scripts.

use fsstack_control::operator::RefusalKind;
use fsstack_control::{ClientError, Refusal};
use std::io;

/// The exit codes and what they mean, for the man page.
pub const EXIT_CODES: &[(u8, &str)] = &[
    (0, "It was done."),
    (1, "Refused in the current state, or doctor found a failure, or check something that was not fixed."),
    (2, "Usage error: an unknown command or key, a value out of range."),
    (3, "There is no such pool, branch or file."),
    (4, "The pool's daemon is dead or does not answer."),
    (5, "Permission denied."),
];

/// Reason for a failure.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// Refused in the current state.
    #[error("{0}")]
    Refused(String),
    /// Usage error.
    #[error("{0}")]
    Usage(String),
    /// The subject does not exist.
    #[error("{0}")]
    Missing(String),
    /// The daemon does not answer.
    #[error("{0}")]
    Dead(String),
    /// Permission denied.
    #[error("{0}")]
    Denied(String),
}

impl Failed {
    /// Code from [`EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Missing(_) => 3,
            Self::Dead(_) => 4,
            Self::Denied(_) => 5,
        }
    }

    /// Error of the system about `what`.
    pub(crate) fn system(what: impl std::fmt::Display, error: &io::Error) -> Self {
        let text = format!("{what}: {error}");
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing(text),
            io::ErrorKind::PermissionDenied => Self::Denied(text),
            io::ErrorKind::NotConnected => Self::Dead(text),
            _ => Self::Refused(text),
        }
    }
}

impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(Refusal { kind, error }) => match kind {
                RefusalKind::Usage => Self::Usage(error),
                RefusalKind::Missing => Self::Missing(error),
                RefusalKind::Busy | RefusalKind::Failed => Self::Refused(error),
            },
            ClientError::Denied(_) => Self::Denied(error.to_string()),
            ClientError::Dead(_) | ClientError::NoAnswer(..) => Self::Dead(error.to_string()),
        }
    }
}
