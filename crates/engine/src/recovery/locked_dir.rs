//! Directories in a branch's hidden folder with a lock file in them: for objects that take no lock themselves.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_sync::Mutex;
use fsstack_sys::{self as sys, OFlags, SysError};

use crate::member::Member;
use crate::member::staged::AtWork;
use crate::recovery::hidden_folder;
use crate::recovery::record;
use crate::recovery::recover;

/// Directory in the hidden folder that another host's mount leaves alone.
#[derive(Debug)]
pub(crate) struct LockedDir {
    pub(crate) name: AtWork,
    pub(crate) dir: Arc<OwnedFd>,
    /// Its inode number.
    pub(crate) ino: u64,
    /// Holds the lock until it is cleared.
    lock: Mutex<Option<OwnedFd>>,
}

impl LockedDir {
    pub(crate) fn make(branch: &Member) -> Result<Self, SysError> {
        let name = branch.stage(hidden_folder::COPY);
        let (_, (dir, ino, lock)) = hidden_folder::in_folder(branch, |folder| {
            sys::at::mkdir(folder, &name, 0o700)?;
            let opened = sys::at::open_dir(folder, &name, branch.mounts).and_then(|dir| {
                let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
                let lock = sys::at::open(dir.as_fd(), hidden_folder::LOCK, how, 0o600, branch.mounts)?;
                record::hold_named(&lock, dir.as_fd(), hidden_folder::LOCK)?;
                let ino = sys::at::stat_fd(dir.as_fd())?.ino;
                Ok((dir, ino, lock))
            });
            opened.inspect_err(|_| {
                let _left = recover::clear_dir(branch, folder, &name); // for the next mount, if it must be
            })
        })?;
        Ok(Self { name, dir: Arc::new(dir), ino, lock: Mutex::new(Some(lock)) })
    }

    /// Removes it with the files in it. NFS and others keep an open file under another name, and with it the directory.
    pub(crate) fn clear(&self, branch: &Member) -> Result<(), SysError> {
        drop(self.lock.lock().take());
        let folder = hidden_folder::folder(branch)?;
        recover::clear_dir(branch, folder.as_fd(), &self.name)
    }
}
