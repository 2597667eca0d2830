//! Control files of FUSE connections. Aborting one frees all callers stuck in its file system.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::call::{Call, call};
use crate::mounts::{self, MountFlags};

/// Mount point of fusectl, which has the control files.
const SWITCHES: &str = "/sys/fs/fuse/connections";
/// Type of that file system.
const FUSECTL: &str = "fusectl";
/// `FUSE_CTL_SUPER_MAGIC`.
const MAGIC: u64 = 0x6573_5543;

/// Reason why a connection was not aborted.
#[derive(Debug, thiserror::Error)]
pub enum NotAborted {
    /// The control files are missing and fusectl cannot be mounted.
    #[error("fusectl is not mounted at {SWITCHES}, and could not be: {0}")]
    NoSwitches(io::Error),
    /// No connection has this number any more.
    #[error("{}: there is no such connection any more", .0.display())]
    Ended(PathBuf),
    /// The control file cannot be written.
    #[error("{}: {error}", switch.display())]
    Switch {
        /// The control file.
        switch: PathBuf,
        /// The error of the write.
        error: io::Error,
    },
}

impl NotAborted {
    /// Kind of the underlying error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NoSwitches(error) | Self::Switch { error, .. } => error.kind(),
            Self::Ended(_) => io::ErrorKind::NotFound,
        }
    }
}

/// Number of the connection of the FUSE file system with the device number `dev`, in makedev's encoding: the kernel's own encoding of
/// it, with the major number above 20 bits for the minor one. The major number is 0 unless it is mounted over a block device
/// (`fuseblk`).
pub fn connection_of(dev: u64) -> u64 {
    u64::from(rustix::fs::major(dev)) << 20 | u64::from(rustix::fs::minor(dev))
}

/// Directory of the connection `connection`: it exists as long as the connection, if fusectl is mounted.
pub fn directory_of(connection: u64) -> PathBuf {
    Path::new(SWITCHES).join(connection.to_string())
}

/// Aborts the connection with this number, from [`connection_of`]. All pending and later
/// calls into it fail until it is mounted again. Mounts fusectl if it is missing, as systemd does, and leaves it
/// mounted.
///
/// # Errors
///
/// The control file is missing, or the caller may not write it.
pub fn abort(connection: u64) -> Result<(), NotAborted> {
    let switch = directory_of(connection).join("abort");
    let write = || std::fs::write(&switch, "1");
    let written = match write() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_available()?;
            // Another process may have mounted it after the first try.
            write()
        }
        written => written,
    };
    written.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => NotAborted::Ended(switch),
        _ => NotAborted::Switch { switch, error },
    })
}

/// Mounts fusectl if it is missing, as systemd does, and leaves it mounted: a process that may not mount any more can
/// [`abort`] then.
///
/// # Errors
///
/// It cannot be mounted.
pub fn make_available() -> Result<(), NotAborted> {
    if is_there() {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mounts::mount_fuse(OsStr::new(FUSECTL), Path::new(SWITCHES), FUSECTL, flags, "")
        .map_err(|error| NotAborted::NoSwitches(error.errno.into()))
}

/// Checks the file system at the path: the mount table also lists mounts that another one hides.
fn is_there() -> bool {
    let found = call(Call::Statfs, || rustix::fs::statfs(SWITCHES));
    found.is_ok_and(|found| found.f_type.cast_unsigned() == MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_named_by_the_whole_device_number() {
        assert_eq!(connection_of(rustix::fs::makedev(0, 47)), 47);
        assert_eq!(connection_of(rustix::fs::makedev(0, 300_000)), 300_000);
        // /dev/loop3: not the connection 3 of another file system.
        assert_eq!(connection_of(rustix::fs::makedev(7, 3)), 7_340_035);
        assert_eq!(directory_of(47), Path::new("/sys/fs/fuse/connections/47"));
    }
}
