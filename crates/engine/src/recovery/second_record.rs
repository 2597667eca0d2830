//! Second records of changes of names on more than two branches, for a mount without the branch that has the first: it would show
//! one directory under two names, or two under one.
//!
//! The second one has the name of the first, is on the branch of another part, is written after the first, and goes before it, durably:
//! where the first's branch is there without the first, the second is over. Where both are seen the change is settled by the first,
//! and the second says what is left, too; unless it was settled already, without the first, which then says what the second does.
//!
//! A mount without one of the change's branches always finishes it. So it does not matter which of the two is seen first, and what
//! the other says that is seen later.
//!
//! A process that ends between the two leaves the first alone, and has changed no name. Where its branch is away then, the second's
//! having been so before, names differ as without all this.
//!
//! Earlier versions leave a second record alone, and act on the first.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_pool::{BranchId, BranchIx};
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Call, Errno, SysError};

use crate::pool::Pool;
use crate::recovery::hidden_folder::{leave, own_folder};
use crate::recovery::journal::NameChange;
use crate::recovery::record::{self, FoundRecord, Written};
use crate::recovery::record_kind::SECOND_NAMES;
use crate::recovery::settle::{self, SettledRename};

/// Whether a mount without one branch may find the others' names changed and unchanged.
fn is_needed(names: &NameChange) -> bool {
    names.parts.len() > 2
}

/// Puts the second record on the first of `others` that takes it, if the change needs one. The first is on a branch, and has a name.
pub(crate) fn write<'b>(
    names: &NameChange,
    (first_on, name): (BranchId, &CStr),
    others: impl Iterator<Item = &'b Branch>,
) -> Option<(BranchIx, Written)> {
    if !is_needed(names) {
        return None;
    }
    let body = NameChange { first_on: Some(first_on), ..names.clone() }.encode();
    let write = |on: &Branch| on.ask(|| record::write_as(on, &SECOND_NAMES, name.to_owned(), &body));
    let mut written = others.filter_map(|on| match write(on) {
        Ok(written) => Some((on.ix, written)),
        Err(error) => {
            tracing::debug!(%error, branch = %on.path.display(), "rename over several branches: the branch takes no second record");
            None
        }
    });
    written.next()
}

/// Settles the record `name` on the branch `on`.
///
/// # Errors
/// A branch's error: the record is to stay.
pub(crate) fn settle(
    pool: &Pool,
    on: &Branch,
    name: &CStr,
    names: NameChange,
) -> Result<SettledRename, SysError> {
    match names.first_on {
        None => settle_first(pool, on, name, names),
        Some(first_on) => settle_second(pool, (first_on, name), names),
    }
}

/// Settles the first record, and has the second say what is left.
fn settle_first(pool: &Pool, on: &Branch, name: &CStr, names: NameChange) -> Result<SettledRename, SysError> {
    let is_only_finished = is_needed(&names);
    let Some(second) = Second::find(pool, on, name)? else {
        return settle::settle(pool, names, is_only_finished);
    };
    // One that was settled was so without the first.
    let decided = if second.names.settled { second.names.clone() } else { names };
    let settled = settle::settle(pool, NameChange { first_on: None, ..decided }, is_only_finished)?;
    second.becomes(&settled, name)?;
    Ok(settled)
}

fn settle_second(
    pool: &Pool,
    (first_on, name): (BranchId, &CStr),
    names: NameChange,
) -> Result<SettledRename, SysError> {
    let Some(first) = pool.branches.iter().find(|branch| branch.id == first_on) else {
        return settle::settle(pool, names, true);
    };
    match own_folder(first).and_then(|folder| folder.map_or(Ok(()), |folder| has(&folder, name))) {
        Ok(()) => Ok(SettledRename::Left(names)), // settled with the first
        Err(error) if error.errno != Errno::NOENT => Err(error),
        Err(_) if names.settled => settle::settle(pool, names, false),
        Err(_) => Ok(SettledRename::Whole),
    }
}

fn has(folder: &OwnedFd, name: &CStr) -> Result<(), SysError> {
    sys::at::stat(folder.as_fd(), name).map(drop)
}

/// The second record of a change whose first is being settled.
struct Second<'p> {
    on: &'p Branch,
    folder: OwnedFd,
    names: NameChange,
    /// Holds its lock.
    _found: FoundRecord,
}

impl<'p> Second<'p> {
    /// The record `name` on another branch than `on`.
    fn find(pool: &'p Pool, on: &Branch, name: &CStr) -> Result<Option<Self>, SysError> {
        for other in pool.branches.iter().filter(|other| other.id != on.id && other.is_writable()) {
            let found = own_folder(other).and_then(|folder| {
                let Some(folder) = folder else { return Ok(None) };
                Ok(record::take(other, folder.as_fd(), name)?.map(|found| (folder, found)))
            });
            let (folder, found) = match found {
                Err(error) if error.errno == Errno::NOENT => continue,
                found => match found? {
                    Some(found) => found,
                    None => continue,
                },
            };
            let names = match &found {
                FoundRecord::Whole(kind, body, _) => NameChange::decode(kind, body),
                FoundRecord::InUse => return Err(SysError { call: Call::Lock, errno: Errno::BUSY }),
                FoundRecord::Torn | FoundRecord::Unknown | FoundRecord::NotOurs => None,
            };
            if let Some(names) = names {
                return Ok(Some(Self { on: other, folder, names, _found: found }));
            }
        }
        Ok(None)
    }

    /// It says, durably, what is left of the change, and goes if that is nothing.
    fn becomes(&self, settled: &SettledRename, name: &CStr) -> Result<(), SysError> {
        if let SettledRename::Left(left) = settled {
            let left = NameChange { first_on: self.names.first_on, ..left.clone() };
            let replace =
                || record::replace(self.on, self.folder.as_fd(), name, &SECOND_NAMES, &left.encode());
            if left == self.names || replace().is_ok() {
                return Ok(());
            }
        }
        sys::at::unlink(self.folder.as_fd(), name)?;
        sync_dir(self.folder.as_fd())?;
        leave(self.on);
        Ok(())
    }
}
