//! Bulk copies under way (`admin/reserve.rs`): their reservations, and the directories in which their files are made.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::error::Result;
use fsstack_sys::{self as sys, OFlags};

use crate::inode::Inode;
use crate::member::Member;
use crate::member::staged::AtWork;
use crate::recovery::record;
use crate::recovery::recover;

/// Staging directory: a copy makes its files there, until they are whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagingPlace {
    /// The branch's path.
    pub branch: PathBuf,
    /// The directory's path below it.
    pub folder: PathBuf,
    /// Its inode number, to check that the path leads to it.
    pub ino: u64,
    /// The branch is a disk of this machine.
    pub local: bool,
}

/// State of a copy.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    pub(crate) reservations: HashMap<u64, Reservation>,
    pub(crate) stagings: Vec<Arc<Staging>>,
}

#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) id: u64,
    pub(crate) staging: Arc<Staging>,
    pub(crate) parent: Arc<Inode>,
    pub(crate) name: CString,
    pub(crate) size: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.staging.branch.give_back(self.id, self.size);
    }
}

/// A directory in the hidden folder of a branch; it goes with its content when the copy ends.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) branch: Arc<Member>,
    /// The branch cannot leave the pool meanwhile.
    _stays: OpenFileRef,
    pub(crate) name: AtWork,
    pub(crate) dir: Arc<OwnedFd>,
    pub(crate) ino: u64,
    /// Holds the lock by which another host's mount leaves the directory alone.
    _lock: OwnedFd,
}

impl Staging {
    pub(crate) fn make(branch: &Arc<Member>) -> Result<Self> {
        let stays = branch.acquire()?;
        let name = branch.stage(recover::COPY);
        let (dir, ino, lock) = branch.ask(|| {
            let made = recover::in_folder(branch, |folder| {
                sys::at::mkdir(folder, &name, 0o700)?;
                let opened = sys::at::open_dir(folder, &name, branch.mounts).and_then(|dir| {
                    let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
                    let lock = sys::at::open(dir.as_fd(), recover::LOCK, how, 0o600, branch.mounts)?;
                    record::hold_named(&lock, dir.as_fd(), recover::LOCK)?;
                    Ok((sys::at::stat_fd(dir.as_fd())?.ino, dir, lock))
                });
                opened.inspect_err(|_| {
                    let _left = recover::clear_dir(branch, folder, &name); // for the next mount, if it must be
                })
            });
            made.map(|(_, (ino, dir, lock))| (dir, ino, lock))
        })?;
        Ok(Self { branch: branch.clone(), _stays: stays, name, dir: Arc::new(dir), ino, _lock: lock })
    }

    pub(crate) fn place(&self) -> StagingPlace {
        let name = |name: &CStr| PathBuf::from(os(name.to_bytes()));
        StagingPlace {
            branch: self.branch.path.clone(),
            folder: name(crate::recovery::recover::folder_name(&self.branch)).join(name(&self.name)),
            ino: self.ino,
            local: self.branch.kind.is_local(),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let branch = &self.branch;
        let cleared = branch.ask_long(|| {
            let folder = recover::folder(branch)?;
            recover::clear_dir(branch, folder.as_fd(), &self.name)
        });
        if let Err(error) = cleared {
            tracing::warn!(%error, branch = %branch.path.display(), "bulk copy: partial copy not removed; the next mount clears it");
        }
        recover::leave(branch);
    }
}

fn os(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}
