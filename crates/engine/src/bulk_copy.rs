//! Bulk copies under way (`admin/reserve.rs`): their reservations, and the directories in which their files are made.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::sync::Arc;

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::error::Result;

use crate::inode::Inode;
use crate::member::Member;
use crate::recovery::hidden_folder;
use crate::recovery::locked_dir::LockedDir;

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
    pub(crate) locked: LockedDir,
}

impl Staging {
    pub(crate) fn make(branch: &Arc<Member>) -> Result<Self> {
        let stays = branch.acquire()?;
        let locked = branch.ask(|| LockedDir::make(branch))?;
        Ok(Self { branch: branch.clone(), _stays: stays, locked })
    }

    pub(crate) fn place(&self) -> StagingPlace {
        let name = |name: &CStr| PathBuf::from(os(name.to_bytes()));
        StagingPlace {
            branch: self.branch.path.clone(),
            folder: name(hidden_folder::folder_name(&self.branch)).join(name(&self.locked.name)),
            ino: self.locked.ino,
            local: self.branch.kind.is_local(),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let branch = &self.branch;
        let cleared = branch.ask_long(|| self.locked.clear(branch));
        if let Err(error) = cleared {
            tracing::warn!(%error, branch = %branch.path.display(), "bulk copy: partial copy not removed; the next mount clears it");
        }
        hidden_folder::leave(branch);
    }
}

fn os(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}
