//! Settling an interrupted move of a file with several hard links.
//!
//! The intent on the target decides. Unless it says that the new copy is the file, the old copy has all its names still, and the
//! new names go. That needs the target alone. If it says so, all new names were on disk by then, and the old ones go. The intent on
//! the source branch decides nothing but that the move was taken back.
//!
//! A mount without the target may show the old copy, some names of which may be gone, and have it changed. Then the new copy goes,
//! if the old one has all its names and the new one is as it was; else both stay, and the log says so.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Errno, Stat, SysError};

use crate::pool::Pool;
use crate::recovery::intent::{Decided, SEPARATOR, SORT, SettledMove, Stamp, Told, there, used_on};
use crate::recovery::record;
use crate::recovery::recover::own_folder;
use crate::recovery::settle::walk;

/// A name of a copy, and its attributes there.
type NamedCopy = ((OwnedFd, CString), Stat);

/// Removes the names of one of the copies. `name` is the intent's on the branch `on`, `told` its content.
pub(crate) fn settle(
    pool: &Pool,
    on: &Branch,
    name: &CStr,
    told: &Told<'_>,
    record: &[u8],
) -> Result<SettledMove, SysError> {
    let at = |id: u16| {
        pool.branches.iter().find(|branch| branch.id.get() == id).map(|member| -> &Branch { member })
    };
    let (from, to) = match on.id.get() == told.to {
        true => (at(told.from), Some(on)),
        false => (Some(on), at(told.to)),
    };
    let Some(to) = to else { return Ok(SettledMove::Later(None)) };
    // Without it nothing was begun, or it is over.
    let Some(on_to) = decision(to, name)? else { return Ok(SettledMove::Whole) };
    let on_from = from.map_or(Ok(None), |from| decision(from, name))?;
    let taken_back = on_from == Some(Decided::Old) || pool.taken_back.has(name);
    let new = names_of(to, told.new, told)?;
    if on_to != Decided::New || taken_back {
        return take_back(to, name, told, (record, on_to), new);
    }
    let Some(from) = from else { return Ok(SettledMove::Later(None)) };
    let old = names_of(from, told.old, told)?;
    let has_all = old.len() == paths(told).count();
    let is_unchanged = |stat: &Stat| match has_all {
        true => told.old.is_unchanged(stat),
        false => told.old.is_written_as(stat), // a name less changes the inode
    };
    let used = match new.first() {
        Some((at_new, is_new)) if !old.is_empty() => {
            used_on(pool, (from, told.old.ino), (to, is_new), at_new)?
        }
        _ => None,
    };
    if old.iter().all(|(_, stat)| is_unchanged(stat)) && used != Some(from.ix) {
        let any = !old.is_empty();
        remove(old)?;
        if any {
            tracing::info!(from = %from.path.display(), "interrupted move finished");
        }
        return Ok(SettledMove::Whole);
    }
    if has_all && used != Some(to.ix) && is_as_made(told, &new) {
        return take_back(to, name, told, (record, on_to), new);
    }
    let (from, to) = (from.path.display(), to.path.display());
    tracing::warn!(%from, %to, "interrupted move: both copies have changed; both stay until one is removed by hand");
    Ok(SettledMove::Later(None))
}

/// The new names go, unless the copy was written to.
fn take_back(
    to: &Branch,
    name: &CStr,
    told: &Told<'_>,
    (record, on_to): (&[u8], Decided),
    new: Vec<NamedCopy>,
) -> Result<SettledMove, SysError> {
    if !is_as_made(told, &new) {
        let to = to.path.display();
        tracing::warn!(%to, "interrupted move: the new copy was written to; both stay until one is removed by hand");
        return Ok(SettledMove::Later(None));
    }
    if on_to == Decided::New
        && let Some(folder) = own_folder(to)?
    {
        // Killed with some of them gone, the next mount must not remove the old ones.
        let mut record = record.to_vec();
        record[0] = Decided::Old as u8;
        record::replace(to, folder.as_fd(), name, &SORT, &record)?;
    }
    let any = !new.is_empty();
    remove(new)?;
    if any {
        tracing::info!(to = %to.path.display(), "interrupted move undone: the file stays where it was");
    }
    Ok(SettledMove::Whole)
}

fn is_as_made(told: &Told<'_>, new: &[NamedCopy]) -> bool {
    new.iter().all(|(_, stat)| told.new.is_written_as(stat))
}

/// The intent on `on`. None: it has none.
fn decision(on: &Branch, name: &CStr) -> Result<Option<Decided>, SysError> {
    let missing = |error: &SysError| error.errno == Errno::NOENT;
    let folder = match own_folder(on) {
        Err(error) if missing(&error) => None,
        folder => folder?,
    };
    let body = match folder.map(|folder| record::peek(on, folder.as_fd(), name)) {
        Some(Err(error)) if missing(&error) => None,
        body => body.transpose()?.flatten(),
    };
    Ok(body.and_then(|(_, body)| Told::parse(&body).map(|told| told.decided)))
}

fn paths<'a>(told: &Told<'a>) -> impl Iterator<Item = &'a [u8]> {
    told.path.split(|byte| *byte == SEPARATOR)
}

/// The names under which `on` has the copy of that stamp.
fn names_of(on: &Branch, stamp: Stamp, told: &Told<'_>) -> Result<Vec<NamedCopy>, SysError> {
    let mut found = Vec::new();
    for path in paths(told) {
        let Some(at) = walk(on, path)? else { continue };
        if let Some(stat) = there(&at, stamp)? {
            found.push((at, stat));
        }
    }
    Ok(found)
}

fn remove(names: Vec<NamedCopy>) -> Result<(), SysError> {
    for ((dir, name), _) in &names {
        sys::at::unlink(dir.as_fd(), name)?;
    }
    names.iter().try_for_each(|((dir, _), _)| sync_dir(dir.as_fd()))
}
