//! Settling what was interrupted: a mount clears the hidden folders (`hidden_folder.rs`) of its branches. A branch that was out of
//! reach is cleared when it is back, before it takes requests.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_branch::entries::is_dot;
use fsstack_branch::error::{OpError, Result as OpResult, is_branch_fault};
use fsstack_identity::index::Index;
use fsstack_pool::{BranchId, BranchIx, is_hidden_name};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Errno, Kind, OFlags, SysError};

use crate::member::Member;
use crate::pool::Pool;
use crate::recovery::decisions;
use crate::recovery::group;
use crate::recovery::hidden_folder::{COPY, LOCK, check_own, folder_name, leave};
use crate::recovery::intent;
use crate::recovery::journal;
use crate::recovery::record::{self, FoundRecord};
use crate::recovery::record_kind::{NAMES, RecordKind, is_of_several};
use crate::recovery::settle::{self, Occasion, SettledRename};
use crate::recovery::told;

/// Finishes or clears leftovers of moves onto and from the branch `added`, which is about to join a pool at work.
pub(crate) fn clear_added(pool: &Pool, index: &Index, added: &Member) {
    if added.check_subvolumes().is_err() {
        return;
    }
    let (pool, lacking) = without_lacking(pool, Some(added.ix));
    let occasion = Occasion { index, joining: Some(added.id), lacking: &lacking };
    if added.is_writable() {
        report(added, clear_on(&pool, added, occasion));
    }
    // On the other branches, objects in the folder may be in use. Records that were settled without the absent branch are
    // not, nor those of moves from it.
    let others: Vec<BranchIx> = pool.branches.iter().map(|branch| branch.ix).collect();
    clear_others((&pool, index), added, &others, journal::is_settled_without);
    intent::settle_in_roots(&pool, occasion);
}

/// The pool without the branches that lack parts or do not answer, and the ids of these: a name that such a branch does not find
/// may still exist. The branch `joining` takes no requests yet, and is not asked.
pub(crate) fn without_lacking(pool: &Pool, joining: Option<BranchIx>) -> (Pool, Vec<BranchId>) {
    let (mut whole, mut lacking) = (pool.clone(), Vec::new());
    for branch in pool.branches.iter().filter(|branch| Some(branch.ix) != joining) {
        if branch.ask(|| branch.check_subvolumes()).is_err() {
            whole = whole.without(branch.ix);
            lacking.push(branch.id);
        }
    }
    (whole, lacking)
}

/// Interrupted changes that concern a branch that is back.
#[derive(Debug)]
pub(crate) struct Interrupted {
    here: bool,
    /// The others that have records about it.
    others: Vec<BranchIx>,
}

impl Interrupted {
    /// Records on `back`, which may take no requests yet, and records of the other branches about it. A branch that does not answer
    /// is left out: its records are settled when it is back itself. None: nothing was interrupted.
    pub(crate) fn of(pool: &Pool, back: &Member) -> Option<Self> {
        let here = match settling(back, || names_in_folder(back)) {
            Ok(names) => !names.is_empty(),
            Err(error) => error.errno() != Errno::NOENT,
        };
        let others = pool.branches.iter().filter(|other| other.ix != back.ix);
        let others = others.filter(|other| {
            let about = other.ask(|| records_about(other, back.id, journal::is_about));
            about.is_ok_and(|records| !records.is_empty())
        });
        let others: Vec<BranchIx> = others.map(|other| other.ix).collect();
        (here || !others.is_empty()).then_some(Self { here, others })
    }

    /// Like [`clear_added`], while the branches `lacking` are away. Returns whether anything was changed. The caller holds the
    /// tree lock exclusively, so no record is in use.
    pub(crate) fn clear(&self, (pool, index): (&Pool, &Index), back: &Member, lacking: &[BranchId]) -> bool {
        let occasion = Occasion { index, joining: Some(back.id), lacking };
        let clear_here = || report(back, settling(back, || clear_on(pool, back, occasion)));
        let here = self.here && back.is_writable() && clear_here();
        let changed = clear_others((pool, index), back, &self.others, journal::is_about) || here;
        intent::settle_in_roots(pool, occasion);
        changed
    }
}

/// Makes calls that settle what was interrupted on a branch: with a permit if it takes requests, so that a thread that hangs there
/// is known to be stuck. A branch that takes none yet has no permits; `PoolHost::answered` waits for its thread, for a limited time.
pub(crate) fn settling<T>(branch: &Branch, calls: impl FnOnce() -> Result<T, SysError>) -> OpResult<T> {
    if branch.is_open() { branch.ask_long(calls) } else { calls().map_err(Into::into) }
}

/// Whether the record of a change of names is about a branch.
pub(crate) type About = fn(&[u8], BranchId) -> bool;

/// Clears the records of `others` about `branch`: whether anything was changed.
fn clear_others((pool, index): (&Pool, &Index), branch: &Member, others: &[BranchIx], about: About) -> bool {
    let mut changed = false;
    for other in pool.branches.iter().filter(|other| other.ix != branch.ix && others.contains(&other.ix)) {
        if other.is_writable() {
            let cleared = other.ask_long(|| finish_about((pool, index), other, branch.id, about));
            changed |= report(other, cleared);
        }
    }
    changed
}

/// True if anything was changed, or may have been.
fn report<E: Into<OpError>>(branch: &Branch, cleared: Result<bool, E>) -> bool {
    match cleared.map_err(E::into) {
        Err(error) if error.is_missing() => false,
        Err(error) => {
            tracing::warn!(%error, branch = %branch.path.display(), "hidden folder: cannot clear it; the next mount tries again");
            true
        }
        Ok(changed) => changed,
    }
}

/// Finishes the moves onto `branch` that come from `away`, and the changes of names that concern it. Returns whether any
/// could be finished.
fn finish_about(
    (pool, index): (&Pool, &Index),
    branch: &Member,
    away: BranchId,
    about: About,
) -> Result<bool, SysError> {
    let records = records_about(branch, away, about)?;
    let mut changed = false;
    let folder = sys::at::open_dir(branch.root().as_fd(), folder_name(branch), branch.mounts)?;
    for name in records {
        let occasion = Occasion::joins(index, away);
        changed |= one_of_many(branch, &name, clear_entry(pool, branch, &folder, &name, occasion))?;
    }
    leave(branch);
    Ok(changed)
}

/// The records of `branch` about the branch `away`.
pub(crate) fn records_about(branch: &Member, away: BranchId, about: About) -> Result<Vec<CString>, SysError> {
    let mut names = names_in_folder(branch)?;
    let folder = sys::at::open_dir(branch.root().as_fd(), folder_name(branch), branch.mounts)?;
    let mut failed = None;
    names.retain(|name| match record::peek(branch, folder.as_fd(), name) {
        Ok(Some((sort, body))) => {
            if *sort == NAMES {
                about(&body, away)
            } else if is_of_several(sort) {
                told::is_batch_about(&body, away)
            } else {
                told::is_about(&body, away)
            }
        }
        Ok(None) => false,
        Err(error) if error.errno == Errno::NOENT => false, // settled meanwhile
        Err(error) => {
            failed = Some(error);
            false
        }
    });
    failed.map_or(Ok(names), Err)
}

/// Whether the branch has records of changes that no process is at work on: they wait for another branch, or for the version of
/// fsstack that wrote them. If it left the pool, the other branches would be settled without them.
pub(crate) fn has_waiting_records(branch: &Member) -> Result<bool, SysError> {
    let names = match names_in_folder(branch) {
        Err(error) if error.errno == Errno::NOENT => return Ok(false),
        names => names?,
    };
    let folder = sys::at::open_dir(branch.root().as_fd(), folder_name(branch), branch.mounts)?;
    for name in &names {
        match record::is_waiting(branch, folder.as_fd(), name) {
            Err(error) if error.errno == Errno::NOENT => {} // settled meanwhile
            Ok(false) => {}
            waiting => return waiting,
        }
    }
    Ok(false)
}

/// Finishes or clears leftovers of moves onto the pool's branches. Branches that are read-only or incomplete are left alone.
pub(crate) fn clear(pool: &Pool, index: &Index) {
    let (pool, lacking) = without_lacking(pool, None);
    let occasion = Occasion { index, joining: None, lacking: &lacking };
    for branch in pool.branches.iter().filter(|branch| branch.is_writable()) {
        report(branch, clear_on(&pool, branch, occasion));
    }
    intent::settle_in_roots(&pool, occasion);
}

/// The names in the branch's hidden folder that the pool gave, without those that the daemon works with.
fn names_in_folder(branch: &Member) -> Result<Vec<CString>, SysError> {
    let mut names = names_in(branch, branch.root().as_fd(), folder_name(branch))?;
    let staged = branch.staged.lock();
    names.retain(|name| is_hidden_name(name) && !staged.contains(name));
    Ok(names)
}

fn names_in(branch: &Branch, above: BorrowedFd<'_>, name: &CStr) -> Result<Vec<CString>, SysError> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY;
    let folder = sys::at::open(above, name, how, 0, branch.mounts)?;
    check_own(&folder)?;
    let mut names = Vec::new();
    let mut entries = Dirents::new(folder, 4096);
    while let Some(entry) = entries.next()? {
        if !is_dot(entry.name) {
            names.push(CString::from(entry.name));
        }
    }
    Ok(names)
}

/// True if anything could be cleared.
fn clear_on(pool: &Pool, branch: &Member, occasion: Occasion<'_>) -> Result<bool, SysError> {
    let names = names_in_folder(branch)?;
    let mut changed = false;
    let folder = sys::at::open_dir(branch.root().as_fd(), folder_name(branch), branch.mounts)?;
    for name in names {
        changed |= one_of_many(branch, &name, clear_entry(pool, branch, &folder, &name, occasion))?;
    }
    match sys::at::rmdir(branch.root().as_fd(), folder_name(branch)) {
        Err(error) if error.errno == Errno::NOTEMPTY => Ok(changed),
        removed => removed.map(|()| changed),
    }
}

/// An error with one leftover does not stop the others, unless it is the branch's.
fn one_of_many(branch: &Branch, name: &CStr, cleared: Result<bool, SysError>) -> Result<bool, SysError> {
    match cleared {
        Err(error) if !is_branch_fault(error.errno) => {
            tracing::warn!(%error, ?name, branch = %branch.path.display(), "hidden folder: cannot settle this entry; the next mount tries again");
            Ok(false)
        }
        cleared => cleared,
    }
}

/// Settles and removes one entry of the hidden `folder`. False: the entry waits for a mount with its branch, or does not
/// concern this mount.
fn clear_entry(
    pool: &Pool,
    branch: &Member,
    folder: &OwnedFd,
    name: &CStr,
    occasion: Occasion<'_>,
) -> Result<bool, SysError> {
    let path = branch.path.display();
    // The lock is held until the record is gone.
    let mut found = record::take(branch, folder.as_fd(), name)?;
    if let Some(FoundRecord::Whole(kind, body, _)) = &mut found {
        *body = decisions::with_noted(branch, name, kind, std::mem::take(body))?;
    }
    match &found {
        Some(FoundRecord::Whole(sort, body, _))
            if !clear_record(pool, branch, folder, (name, sort, body), occasion)? =>
        {
            return Ok(false);
        }
        Some(FoundRecord::Torn) => {
            tracing::info!(?name, branch = %path, "incomplete record removed: its change had not begun");
        }
        Some(FoundRecord::Unknown) => {
            tracing::warn!(?name, branch = %path, "record of an interrupted change kept: another version of fsstack wrote it; mount the pool with that version");
            return Ok(false);
        }
        Some(FoundRecord::NotOurs) => {
            tracing::warn!(?name, branch = %path, "record of an interrupted change ignored: its owner or mode lets others write it; if it is the pool's, chown and chmod 600 it and mount again, else remove it");
            return Ok(false);
        }
        Some(FoundRecord::InUse) => {
            tracing::info!(?name, branch = %path, "record of a change left alone: another process is at work on it");
            return Ok(false);
        }
        None if is_in_use(branch, folder, name)? => {
            tracing::info!(?name, branch = %path, "hidden folder: entry left alone: another process is at work on it");
            return Ok(false);
        }
        Some(FoundRecord::Whole(..)) | None => {}
    }
    match sys::at::unlink(folder.as_fd(), name) {
        // A skeleton that did not get its name.
        Err(error) if error.errno == Errno::ISDIR => match name.to_bytes().ends_with(COPY.to_bytes()) {
            true => clear_dir(branch, folder.as_fd(), name)?,
            false => sys::at::rmdir(folder.as_fd(), name)?,
        },
        removed => removed?,
    }
    // A record that comes back after a power cut would be acted on again, whatever has happened meanwhile.
    if found.is_some() {
        sync_dir(folder.as_fd())?;
    }
    Ok(true)
}

/// True if a living process, possibly of another host, works with `name` in the hidden `folder`: a file, or the directory
/// of a bulk copy.
fn is_in_use(branch: &Branch, folder: &OwnedFd, name: &CStr) -> Result<bool, SysError> {
    // A device is not opened: that may do something.
    if !matches!(sys::at::stat(folder.as_fd(), name)?.kind(), Kind::File | Kind::Dir) {
        return Ok(false);
    }
    let how = OFlags::RDWR | OFlags::NONBLOCK;
    let opened = match name.to_bytes().ends_with(COPY.to_bytes()) {
        true => sys::at::open_dir(folder.as_fd(), name, branch.mounts)
            .and_then(|dir| sys::at::open(dir.as_fd(), LOCK, how, 0, branch.mounts)),
        false => sys::at::open(folder.as_fd(), name, how, 0, branch.mounts),
    };
    match opened {
        // Not lockable: a directory, or a fifo of another program.
        Err(error) if !is_branch_fault(error.errno) => Ok(false),
        opened => opened.map(|file| !record::try_hold(&file)),
    }
}

/// Removes the directory `name` of a bulk copy in the hidden `folder`, and the files in it.
pub(crate) fn clear_dir(branch: &Branch, folder: BorrowedFd<'_>, name: &CStr) -> Result<(), SysError> {
    let names = names_in(branch, folder, name)?;
    let dir = sys::at::open_dir(folder, name, branch.mounts)?;
    for left in names {
        sys::at::unlink(dir.as_fd(), &left)?;
    }
    sys::at::rmdir(folder, name)
}

/// Settles a record. False: it stays.
fn clear_record(
    pool: &Pool,
    branch: &Member,
    folder: &OwnedFd,
    (name, sort, body): (&CStr, &RecordKind, &[u8]),
    occasion: Occasion<'_>,
) -> Result<bool, SysError> {
    if *sort != NAMES {
        let settle = if is_of_several(sort) { group::settle_batch } else { intent::settle };
        match settle(pool, branch, name, body, occasion)? {
            intent::SettledMove::Whole => {
                pool.taken_back.remove(name);
                return Ok(true);
            }
            intent::SettledMove::Later(decided) => {
                if let Some(decided) = decided {
                    let kind = told::kind_of(sort, &decided);
                    decisions::replace(branch, folder.as_fd(), name, kind, &decided)?;
                }
                return Ok(false);
            }
        }
    }
    match settle::settle(pool, body)? {
        SettledRename::Whole => Ok(true),
        SettledRename::Left(left) => {
            let left = left.encode();
            if left != body {
                record::replace(branch, folder.as_fd(), name, sort, &left)?;
            }
            Ok(false)
        }
    }
}
