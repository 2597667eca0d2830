//! The daemon's side of a bulk copy, one for each connection.

use super::Served;
use fsstack_control::Copying;
use fsstack_control::copying::{
    CopyAnswer, CopyError, CopyRequest, PlaceOrError, StagingDir, WantedDir, WantedFile,
};
use fsstack_engine::admin::reserve::{CopyId, Wanted};
use fsstack_engine::{OpError, Union};
use fsstack_pool::{BranchIx, EntryName, Ino, Rejection};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// A running copy.
struct Copier {
    union: Arc<Union>,
    id: CopyId,
    /// Branches whose staging directory was sent.
    told: Vec<BranchIx>,
}

impl Served {
    pub(super) fn begin_copy(&self) -> Box<dyn Copying> {
        let (union, id) = (self.union.clone(), self.union.start_copy());
        Box::new(Copier { union, id, told: Vec::new() })
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.union.end_copy(self.id);
    }
}

impl Copying for Copier {
    fn answer(&mut self, request: CopyRequest) -> CopyAnswer {
        match request {
            CopyRequest::Reserve { dirs } => self.reserve(dirs),
            CopyRequest::Commit { ids } => {
                let named = self.union.commit(self.id, &ids);
                CopyAnswer::Committed {
                    errors: named.into_iter().map(|named| named.err().map(told)).collect(),
                }
            }
            CopyRequest::Abandon { ids } => {
                self.union.abandon(self.id, &ids);
                CopyAnswer::Abandoned
            }
            CopyRequest::Sync => CopyAnswer::Synced { error: self.union.syncfs().err().map(told) },
        }
    }
}

impl Copier {
    fn reserve(&mut self, dirs: Vec<WantedDir>) -> CopyAnswer {
        let mut files = Vec::new();
        let mut places = Vec::new();
        for WantedDir { ino, files: wanted } in dirs {
            let count = wanted.len();
            let wanted: Result<Vec<Wanted>, CopyAnswer> = wanted.into_iter().map(wish).collect();
            let wanted = match wanted {
                Ok(wanted) => wanted,
                Err(refused) => return refused,
            };
            let reserved = match self.union.reserve(self.id, Ino(ino), &wanted) {
                Ok(reserved) => reserved,
                Err(error) => vec![Err(error); count],
            };
            for one in reserved {
                files.push(match one {
                    Ok(place) => {
                        places.extend(self.untold(place.branch));
                        PlaceOrError::Place { id: place.id, branch: place.branch.0 }
                    }
                    Err(error) => PlaceOrError::Error(told(error)),
                });
            }
        }
        CopyAnswer::Reserved { places, files }
    }

    /// Returns the branch's staging directory if it was not sent yet.
    fn untold(&mut self, branch: BranchIx) -> Option<StagingDir> {
        if self.told.contains(&branch) {
            return None;
        }
        let place = self.union.staging_place(self.id, branch)?;
        self.told.push(branch);
        Some(StagingDir {
            branch: branch.0,
            path: place.branch.as_os_str().as_bytes().to_vec(),
            folder: place.folder.as_os_str().as_bytes().to_vec(),
            ino: place.ino,
            local: place.local,
        })
    }
}

fn wish(file: WantedFile) -> Result<Wanted, CopyAnswer> {
    let WantedFile { name, size, not_on } = file;
    let name = CString::new(name).map_err(|error| CopyAnswer::Refused { error: error.to_string() })?;
    EntryName::new(&name).map_err(|error| CopyAnswer::Refused { error: error.to_string() })?;
    Ok(Wanted { name, size, not_on: not_on.into_iter().map(BranchIx).collect() })
}

fn told(error: OpError) -> CopyError {
    let text = match error {
        OpError::NoBranch(Rejection::TooFull) => "every branch is under its floor".to_owned(),
        OpError::NoBranch(Rejection::OverQuota) => "the owner's quota is used up on every branch".to_owned(),
        OpError::NoBranch(Rejection::ReadOnly) => "no branch may be written".to_owned(),
        OpError::NoBranch(Rejection::PathMissing) => {
            "the policy keeps to branches that have the directory".to_owned()
        }
        OpError::NoBranch(Rejection::Obstructed) => {
            "every branch with room has an object of another kind in place of the directory".to_owned()
        }
        OpError::NoBranch(Rejection::Unfit) => {
            "no branch can hold the directory's ACL or keep its inode flags".to_owned()
        }
        OpError::NoBranch(Rejection::Excluded) => {
            "the strict placement rule for the directory names no branch that takes it".to_owned()
        }
        OpError::NoBranch(Rejection::Unreachable) => "no branch answers".to_owned(),
        OpError::Branch { .. } | OpError::Sys(_) | OpError::Refused(_) => {
            std::io::Error::from(error.errno()).to_string()
        }
    };
    CopyError { errno: error.errno().raw_os_error(), text }
}
