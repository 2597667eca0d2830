//! Giving up a branch that will not come back: the other branches forget what they have for it.

use std::os::fd::AsFd;

use fsstack_pool::BranchId;
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Call, Errno, SysError};

use crate::bad_change::BadChange;
use crate::member::Member;
use crate::pool::Pool;
use crate::recovery::hidden_folder::{leave, own_folder};
use crate::recovery::record::{self, FoundRecord};
use crate::recovery::record_kind::NAMES;
use crate::recovery::recover::records_about;
use crate::recovery::{intent, journal};

/// The branch `away` will not come back: what the others have for it goes, and is not acted on should a branch of its id come one
/// day. Whether there was anything.
///
/// # Errors
/// A branch could not be asked, or keeps a record. The other branches have none any more.
pub(crate) fn give_up(pool: &Pool, away: BranchId) -> Result<bool, BadChange> {
    let (mut any, mut failed) = (false, None);
    for branch in &*pool.branches {
        let dropped = [
            branch.ask_long(|| drop_about(branch, away)),
            branch.ask_long(|| intent::drop_in_root(branch, away)),
        ];
        for dropped in dropped {
            match dropped {
                Ok(dropped) => any |= dropped,
                Err(error) if error.is_missing() => {}
                Err(error) => {
                    let path = branch.path.display().to_string();
                    failed.get_or_insert(BadChange::Remembered { path, error: error.to_string() });
                }
            }
        }
    }
    failed.map_or(Ok(any), Err)
}

fn drop_about(branch: &Member, away: BranchId) -> Result<bool, SysError> {
    let Some(folder) = own_folder(branch)? else { return Ok(false) };
    let records = records_about(branch, away, journal::is_settled_without)?;
    if !records.is_empty() && !branch.is_writable() {
        return Err(SysError { call: Call::Unlink, errno: Errno::ROFS });
    }
    let mut any = false;
    for name in &records {
        // The lock is held until the record is gone.
        let found = match record::take(branch, folder.as_fd(), name) {
            Err(error) if error.errno == Errno::NOENT => continue, // settled by another host's mount
            found => found?,
        };
        let (sort, body) = match &found {
            Some(FoundRecord::Whole(sort, body, _)) => (*sort, body),
            Some(FoundRecord::InUse) => return Err(SysError { call: Call::Lock, errno: Errno::BUSY }),
            Some(FoundRecord::Torn | FoundRecord::Unknown | FoundRecord::NotOurs) | None => continue,
        };
        let left = (*sort == NAMES).then(|| journal::without(body, away)).flatten();
        match left.filter(|left| !left.parts.is_empty()) {
            Some(left) => record::replace(branch, folder.as_fd(), name, sort, &left.encode())?,
            None => sys::at::unlink(folder.as_fd(), name)?,
        }
        any = true;
    }
    sync_dir(folder.as_fd())?;
    leave(branch);
    // One that lacks parts may have more.
    branch.check_subvolumes().map(|()| any)
}
