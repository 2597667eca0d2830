//! Staging directory on a branch, where a copy writes its files.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use fsstack_control::copying::StagingDir;
use fsstack_pool::Printable;
use fsstack_sys::at::Mounts;
use fsstack_sys::{self as sys, OFlags};

use crate::command::Failed;

/// Staging directory of a branch.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) slot: u16,
    pub(super) shown: String,
    /// Opened before the first write, so that a sync through it reports every failed write.
    pub(super) dir: OwnedFd,
    /// The branch's device.
    pub(super) dev: u64,
    pub(super) local: bool,
}

impl Staging {
    /// Opens the staging directory from the daemon's reply, and checks that this process sees the same one at that
    /// path.
    pub(super) fn open(result: &StagingDir) -> Result<Self, Failed> {
        let branch = PathBuf::from(OsStr::from_bytes(&result.path));
        let shown = Printable::path(&branch).to_string();
        let wrong = |why: &dyn std::fmt::Display| {
            Failed::Refused(format!(
                "branch {shown}: {why}: its files cannot be written from here (copy where the pool's daemon runs)"
            ))
        };
        let folder = CString::new(&*result.folder).map_err(|error| wrong(&error))?;
        let opened = sys::at::open_root(&branch).and_then(|root| {
            let how = OFlags::RDONLY | OFlags::DIRECTORY;
            let dir = sys::at::open(root.as_fd(), &folder, how, 0, Mounts::Stay)?;
            Ok((sys::at::stat_fd(dir.as_fd())?, dir))
        });
        let (stat, dir) = opened.map_err(|error| wrong(&error.errno))?;
        if stat.ino != result.ino || stat.uid != rustix::process::geteuid().as_raw() || stat.mode & 0o077 != 0
        {
            return Err(wrong(&"another directory is there"));
        }
        Ok(Self { slot: result.branch, shown, dir, dev: stat.dev, local: result.local })
    }
}
