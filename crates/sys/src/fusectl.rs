//! The kernel's switches for FUSE connections: an abort frees all callers stuck in the file system.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::call::{Call, call};
use crate::mounts::{self, MountFlags};

/// Where the switches are, once the kernel's own file system for them is mounted there.
const SWITCHES: &str = "/sys/fs/fuse/connections";
/// That file system.
const FUSECTL: &str = "fusectl";
/// `FUSE_CTL_SUPER_MAGIC`.
const MAGIC: u64 = 0x6573_5543;

/// Why a connection goes on.
#[derive(Debug, thiserror::Error)]
pub enum NotAborted {
    /// The kernel's switches are not there, and cannot be had.
    #[error("fusectl is not mounted at {SWITCHES}, and could not be: {0}")]
    NoSwitches(io::Error),
    /// This one is not there: nothing is connected by that number any more.
    #[error("{}: there is no such connection any more", .0.display())]
    Ended(PathBuf),
    /// It cannot be written to.
    #[error("{}: {error}", switch.display())]
    Switch {
        /// The file.
        switch: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

impl NotAborted {
    /// Kind of the system's last error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NoSwitches(error) | Self::Switch { error, .. } => error.kind(),
            Self::Ended(_) => io::ErrorKind::NotFound,
        }
    }
}

/// Aborts the connection of that number (the kernel's number of the file system's device): every call inside it fails, and
/// every later one, until it is mounted again. Mounts fusectl where it is not, as systemd does, and leaves it there.
///
/// # Errors
/// The switch is not there, or not for the caller.
pub fn abort(connection: u64) -> Result<(), NotAborted> {
    let switch = PathBuf::from(format!("{SWITCHES}/{connection}/abort"));
    let write = || std::fs::write(&switch, "1");
    let written = match write() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if is_there() {
                return Err(NotAborted::Ended(switch));
            }
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            mounts::mount_fuse(OsStr::new(FUSECTL), Path::new(SWITCHES), FUSECTL, flags, "")
                .map_err(|error| NotAborted::NoSwitches(error.errno.into()))?;
            write()
        }
        written => written,
    };
    written.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => NotAborted::Ended(switch),
        _ => NotAborted::Switch { switch, error },
    })
}

/// By what lies at the path: the mount table also lists what another mount hides.
fn is_there() -> bool {
    let told = call(Call::Statfs, || rustix::fs::statfs(SWITCHES));
    told.is_ok_and(|told| told.f_type.cast_unsigned() == MAGIC)
}
