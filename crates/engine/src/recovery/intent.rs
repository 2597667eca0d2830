//! Intents of moves: a record made before the new copy gets its name, and how an interrupted move is settled.
//!
//! An intent is a file in the hidden folder of the target branch, and, if there is room for it, of the source branch. It names
//! the file, by one path or several, and both branches. It is on disk before the new copy gets its name and goes after the old copy has lost it. Its
//! last word is a checksum: an intent that was cut short was never acted on.
//!
//! A branch may go out of reach in the middle of a move while the daemon lives on. The file then stays where it was, and may
//! be changed there while the new copy cannot be removed. So the intent records how both copies were, and of the two the one
//! goes that has not changed since. As long as that daemon lives it knows better: the file may be open where it was left, so
//! that copy stays, changed or not ([`TakenBack`]). Another daemon may find an intent in use, on a branch that is added or
//! back. Then the open copy stays. If neither is open, the one stays that may be opened meanwhile, not the one on the branch
//! that takes no requests yet.
//!
//! A mount with only one of the two branches shows the copy there, which may then be renamed or removed: the path says nothing
//! any more. So such a mount records in its branch's intent which copy it shows ([`Decided`]). The other copy goes when its
//! branch is back.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_branch::error::Result as OpResult;
use fsstack_pool::BranchId;
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Errno, Stat, SysError};

use crate::member::staged::fresh_name;
use crate::pool::Pool;
use crate::recovery::copies::{lives, there, used_on};
use crate::recovery::decisions;
use crate::recovery::group::{self, IntentAt};
use crate::recovery::hidden_folder::own_folder;
use crate::recovery::record::{self, Successor, Written};
use crate::recovery::record_kind::{GROUP, MOVE, RecordKind};
use crate::recovery::recover::settling;
use crate::recovery::root_attribute;
use crate::recovery::settle::{Occasion, walk};
use crate::recovery::told::{Decided, SEPARATOR, Stamp, Told, is_about};
use crate::recovery::unsynced_removals::UnsyncedRemovals;
use crate::taken_back::TakenBack;

/// A move that is about to get its name.
pub(crate) struct Intent<'a> {
    pub(crate) from: &'a Branch,
    pub(crate) to: &'a Branch,
    /// The old copy and the new one, as they are if unchanged.
    pub(crate) old: Stamp,
    pub(crate) new: Stamp,
    /// The paths of its names, one or more.
    pub(crate) paths: &'a [Vec<u8>],
}

/// An intent that is on disk.
#[must_use = "it is acted on by the next mount unless it is done with"]
pub(crate) struct Noted<'a> {
    from: &'a Branch,
    to: &'a Branch,
    sort: &'static RecordKind,
    body: Vec<u8>,
    on_from: Option<Written>,
    /// The source branch has it in an attribute of its root, for want of room.
    in_root: bool,
    /// Tells mounts of other hosts that an intent on the root is in use. None: there is none, or no such locks.
    #[expect(dead_code, reason = "its descriptor is the lock")]
    root_lock: Option<OwnedFd>,
    on_to: Written,
    /// Records that say that the new copy is the file, on source and target. None unless the file has several hard links.
    decisions: Option<(Successor, Successor)>,
}

impl Noted<'_> {
    /// The move is over, one way or the other.
    pub(crate) fn done(self) {
        let name = self.on_to.name().to_owned();
        let (for_from, for_to) = self.decisions.unzip();
        self.on_to.done_without(self.to, for_to);
        if let Some(on_from) = self.on_from {
            on_from.done_without(self.from, for_from);
        }
        if self.in_root
            && let Err(error) = self.from.ask(|| root_attribute::remove(self.from, &name))
        {
            tracing::debug!(%error, "an intent stays on the root of a branch until the next mount");
        }
    }

    /// From now on the new copy is the file, and a mount that finds this removes the old names. First the target says so, then the
    /// source, which a mount may have alone.
    pub(crate) fn decides_new(&mut self) -> OpResult<()> {
        let (Some((for_from, for_to)), Some(on_from)) = (self.decisions.take(), &mut self.on_from) else {
            return Err(Errno::NOENT.into());
        };
        self.body[0] = Decided::New as u8;
        self.to.ask(|| self.on_to.replace_by(self.to, for_to))?;
        self.from.ask(|| on_from.replace_by(self.from, for_from))
    }

    /// Like [`Self::decides_new`], the other way round: first the source, so that it surely does not say otherwise.
    pub(crate) fn decides_old(&mut self) -> OpResult<()> {
        self.body[0] = Decided::Old as u8;
        if let Some(on_from) = &mut self.on_from {
            self.from.ask(|| decisions::replace_in_use(self.from, on_from, self.sort, &self.body))?;
        }
        self.to.ask(|| decisions::replace_in_use(self.to, &mut self.on_to, self.sort, &self.body))
    }

    /// The move is not to be finished: when both branches can be asked the new copy goes.
    pub(crate) fn keeps_old(mut self, taken_back: &TakenBack) {
        self.body[0] = Decided::Old as u8;
        taken_back.add(self.on_to.name().to_owned());
        if let Some(on_from) = &mut self.on_from {
            let replace = || decisions::replace_in_use(self.from, on_from, self.sort, &self.body);
            tell_undecided(self.from.ask(replace));
        } else if self.in_root {
            let put = || root_attribute::put(self.from, self.on_to.name(), MOVE.format, &self.body);
            tell_undecided(self.from.ask(put));
        }
    }

    /// The new copy is the file: when both branches can be asked the old one goes.
    pub(crate) fn keeps_new(mut self) {
        self.body[0] = Decided::New as u8;
        let replace = || decisions::replace_in_use(self.to, &mut self.on_to, self.sort, &self.body);
        tell_undecided(self.to.ask(replace));
    }
}

pub(crate) fn tell_undecided(replaced: OpResult<()>) {
    if let Err(error) = replaced {
        tracing::debug!(%error, "an interrupted move is settled by what is found then");
    }
}

impl<'a> Intent<'a> {
    /// Puts it on disk. The source branch may have no room, unless the file has several hard links.
    pub(crate) fn write(&self) -> OpResult<Noted<'a>> {
        let Self { from, to, .. } = *self;
        let paths = self.paths.join(&SEPARATOR);
        let told = Told {
            decided: Decided::Not,
            from: from.id.get(),
            to: to.id.get(),
            old: self.old,
            new: self.new,
            path: &paths,
        };
        let body = told.encode();
        let is_group = self.paths.len() > 1;
        let sort = if is_group { &GROUP } else { &MOVE };
        let name = fresh_name(sort.suffix);
        let write = |on: &Branch| on.ask(|| record::write_as(on, sort, name.clone(), &body));
        let on_from = match write(from) {
            Err(error) if is_group => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "the branch that a file leaves has no record of it");
                None
            }
            Ok(on_from) => Some(on_from),
        };
        let on_to = match write(to) {
            Ok(on_to) => on_to,
            Err(error) => {
                if let Some(on_from) = on_from {
                    on_from.done(from);
                }
                return Err(error);
            }
        };
        let put = || root_attribute::put(from, &name, sort.format, &body);
        let root_lock = if on_from.is_none() { from.ask(|| root_attribute::hold(from)).ok() } else { None };
        let in_root = on_from.is_none() && from.ask(put).is_ok();
        let mut noted = Noted { from, to, sort, body, on_from, in_root, root_lock, on_to, decisions: None };
        if !is_group {
            return Ok(noted);
        }
        match noted.prepared() {
            Ok(decisions) => {
                noted.decisions = decisions;
                Ok(noted)
            }
            Err(error) => {
                noted.done();
                Err(error)
            }
        }
    }
}

impl Noted<'_> {
    /// The records that say that the new copy is the file.
    fn prepared(&self) -> OpResult<Option<(Successor, Successor)>> {
        let Some(on_from) = &self.on_from else { return Ok(None) };
        let mut body = self.body.clone();
        body[0] = Decided::New as u8;
        let for_from = self.from.ask(|| on_from.prepare(self.from, self.sort, &body))?;
        // A leftover of the first one is removed by the next mount.
        let for_to = self.to.ask(|| self.on_to.prepare(self.to, self.sort, &body))?;
        Ok(Some((for_from, for_to)))
    }
}

/// How far an intent could be settled.
pub(crate) enum SettledMove {
    Whole,
    /// It stays, as it is or as another record.
    Later(Option<Vec<u8>>),
}

/// If both copies are there, one of them goes: the new one if the move was taken back. `name` is the intent's on the branch `on`.
pub(crate) fn settle(
    pool: &Pool,
    on: &Branch,
    name: &CStr,
    record: &[u8],
    occasion: Occasion<'_>,
) -> Result<SettledMove, SysError> {
    let Some(reported) = Told::parse(record) else { return Ok(SettledMove::Whole) };
    let (file, taken_back, mut removals) =
        ((&reported, record), pool.taken_back.has(name), UnsyncedRemovals::default());
    let settled = if reported.path.contains(&SEPARATOR) {
        group::settle(pool, on, (IntentAt::of_one(name), taken_back), file, occasion, &mut removals)?
    } else {
        let twin = twin_of(pool, on, name, &reported)?;
        let twin = twin.and_then(|body| Told::parse(&body).map(|twin| twin.decided));
        settle_file(pool, on, file, (twin, taken_back), occasion, &mut removals)?
    };
    removals.sync(occasion.index)?;
    Ok(settled)
}

/// The other one of the two branches of a move, of which `on` is one; or its id, if it is not in the pool.
fn other_branch<'p>(pool: &'p Pool, on: &Branch, reported: &Told<'_>) -> Result<&'p Branch, u16> {
    let other = if on.id.get() == reported.to { reported.from } else { reported.to };
    let found = pool.branches.iter().find(|branch| branch.id.get() == other);
    found.map(|member| -> &Branch { member }).ok_or(other)
}

/// The record `name` as the other branch has it, if it does; `reported` is a move of the one on the branch `on`.
pub(crate) fn twin_of(
    pool: &Pool,
    on: &Branch,
    name: &CStr,
    reported: &Told<'_>,
) -> Result<Option<Vec<u8>>, SysError> {
    let Ok(other) = other_branch(pool, on, reported) else { return Ok(None) };
    let folder = match own_folder(other) {
        Err(error) if error.errno == Errno::NOENT => None,
        folder => folder?,
    };
    let twin = match folder.map(|folder| record::peek(other, folder.as_fd(), name)) {
        Some(Err(error)) if error.errno == Errno::NOENT => None,
        twin => twin.transpose()?.flatten(),
    };
    match twin {
        Some((kind, body)) => decisions::with_noted(other, name, kind, body).map(Some),
        None if on.id.get() == reported.to => root_attribute::get(other, name, MOVE.format),
        None => Ok(None),
    }
}

/// Like [`settle`], of a file with one name, and its intent. `twin`: what the other branch's record says of it; `taken_back`: its
/// move was given up.
pub(crate) fn settle_file(
    pool: &Pool,
    on: &Branch,
    (reported, intent): (&Told<'_>, &[u8]),
    (twin, taken_back): (Option<Decided>, bool),
    occasion: Occasion<'_>,
    removals: &mut UnsyncedRemovals,
) -> Result<SettledMove, SysError> {
    let other = match other_branch(pool, on, reported) {
        Ok(other) => other,
        Err(id) if occasion.lacking.iter().any(|lacking| lacking.get() == id) => {
            return Ok(SettledMove::Later(None));
        }
        Err(_) => return decide(on, reported, intent, removals),
    };
    let decisions = [reported.decided, twin.unwrap_or(Decided::Not)];
    let is = |decided| decisions.contains(&decided);
    let (from, to) = if on.id.get() == reported.to { (other, on) } else { (on, other) };
    let decided = match (is(Decided::Old) || taken_back, is(Decided::New)) {
        (true, true) => None, // each was shown without the other
        (true, false) => Some(Decided::Old),
        (false, true) => Some(Decided::New),
        (false, false) => Some(Decided::Not),
    };
    settle_copies(pool, (from, to), reported, decided, occasion.joining, removals)
}

/// Settles the intents that are in attributes of the roots, after those in the hidden folders: one of a target that is not in the pool
/// notes that the old copy is shown, and one whose target has none any more goes.
pub(crate) fn settle_in_roots(pool: &Pool, occasion: Occasion<'_>) {
    for branch in pool.branches.iter().filter(|branch| branch.is_writable()) {
        let settle = || {
            decisions::clear(branch)?;
            let mut names = root_attribute::all(branch, MOVE.suffix)?.into_iter();
            names.try_for_each(|name| settle_in_root(pool, branch, &name, occasion))
        };
        let settled = match occasion.joining == Some(branch.id) {
            true => settling(branch, settle),
            false => branch.ask(settle),
        };
        if let Err(error) = settled {
            tracing::warn!(%error, branch = %branch.path.display(), "interrupted move: the intent on the branch's root cannot be settled; the next mount tries again");
        }
    }
}

/// Removes the intents on the root of `branch` that concern `away`, which will not come back. Whether there was one.
pub(crate) fn drop_in_root(branch: &Branch, away: BranchId) -> Result<bool, SysError> {
    let mut any = false;
    for name in root_attribute::all(branch, MOVE.suffix)? {
        let body = root_attribute::get(branch, &name, MOVE.format)?;
        if body.is_some_and(|body| is_about(&body, away)) {
            root_attribute::remove(branch, &name)?;
            any = true;
        }
    }
    if any {
        sync_dir(branch.root().as_fd())?;
    }
    Ok(any)
}

fn settle_in_root(pool: &Pool, from: &Branch, name: &CStr, occasion: Occasion<'_>) -> Result<(), SysError> {
    let Some(body) = root_attribute::get(from, name, MOVE.format)? else { return Ok(()) };
    let Some(reported) = Told::parse(&body).filter(|reported| reported.from == from.id.get()) else {
        return root_attribute::remove(from, name);
    };
    if occasion.lacking.iter().any(|lacking| lacking.get() == reported.to) {
        return Ok(());
    }
    if let Some(to) = pool.branches.iter().find(|branch| branch.id.get() == reported.to) {
        let is_there = |folder: OwnedFd| sys::at::stat(folder.as_fd(), name).map(drop);
        return match own_folder(to).and_then(|folder| folder.map_or(Ok(()), is_there)) {
            Err(error) if error.errno == Errno::NOENT => root_attribute::remove(from, name),
            settled => settled,
        };
    }
    if root_attribute::is_held(from)? {
        return Ok(());
    }
    let mut removals = UnsyncedRemovals::default();
    let decided = decide(from, &reported, &body, &mut removals)?;
    removals.sync(occasion.index)?;
    match decided {
        SettledMove::Whole => root_attribute::remove(from, name),
        SettledMove::Later(None) => Ok(()),
        SettledMove::Later(Some(body)) => root_attribute::put(from, name, MOVE.format, &body),
    }
}

/// The mount has one of the branches only: the copy there, if it is there, is the file from now on.
fn decide(
    on: &Branch,
    reported: &Told<'_>,
    record: &[u8],
    removals: &mut UnsyncedRemovals,
) -> Result<SettledMove, SysError> {
    if reported.decided != Decided::Not {
        return Ok(SettledMove::Later(None));
    }
    let (decided, stamp) =
        if on.id.get() == reported.to { (Decided::New, reported.new) } else { (Decided::Old, reported.old) };
    let at = walk(on, reported.path)?;
    if at.map_or(Ok(None), |at| there(&at, stamp))?.is_none() {
        // It has not got its name, or has lost it.
        if decided == Decided::New && !lives(on, stamp)? {
            removals.is_vacated(on.id, stamp);
        }
        return Ok(SettledMove::Whole);
    }
    // The file is here, if it is the old copy.
    let vacated = BranchId::new(reported.to).filter(|_| decided == Decided::Old);
    vacated.into_iter().for_each(|to| removals.is_vacated(to, reported.new));
    let mut record = record.to_vec();
    record[0] = decided as u8;
    Ok(SettledMove::Later(Some(record)))
}

/// `decided`: None if either copy was.
fn settle_copies(
    pool: &Pool,
    (from, to): (&Branch, &Branch),
    reported: &Told<'_>,
    decided: Option<Decided>,
    joining: Option<BranchId>,
    removals: &mut UnsyncedRemovals,
) -> Result<SettledMove, SysError> {
    let (old, new) = (reported.old, reported.new);
    let at_old = walk(from, reported.path)?;
    let is_old = at_old.as_ref().map_or(Ok(None), |at_old| there(at_old, old))?;
    let at_new = walk(to, reported.path)?;
    let is_new = at_new.as_ref().map_or(Ok(None), |at_new| there(at_new, new))?;
    for (at, is) in [(&at_old, is_old), (&at_new, is_new)] {
        if let (Some((dir, _)), None) = (at, is) {
            removals.has_lost(dir)?;
        }
    }
    let old_there = at_old.zip(is_old);
    let Some((at_new, is_new)) = at_new.zip(is_new) else {
        let decides_new = decided == Some(Decided::New);
        if !decides_new && (old_there.is_some() || decided == Some(Decided::Old)) {
            removals.is_vacated(to.id, new);
        }
        // The new one may have been renamed or removed since it was decided on.
        if decides_new && let Some((at_old, _)) = old_there.filter(|(_, is_old)| old.is_unchanged(is_old)) {
            finish((from, old), at_old, removals)?;
        }
        return Ok(SettledMove::Whole);
    };
    let used = match &old_there {
        Some(_) if matches!(decided, Some(Decided::Not)) => {
            used_on(pool, (from, old.ino), (to, &is_new), &at_new)?
        }
        _ => None,
    };
    let keeps_old = match decided {
        Some(Decided::Old) => true,
        Some(Decided::New | Decided::Shown) | None => false,
        // Without an old copy there is nothing to go on with: the new one is the file.
        Some(Decided::Not) => match used {
            Some(used) => used == from.ix,
            None if old_there.is_some() => joining == Some(to.id) && new.is_written_as(&is_new),
            None => lives(from, old)?,
        },
    };
    let has_old = old_there.is_some();
    let may_go = |(_, is_old): &(_, Stat)| !keeps_old && decided.is_some() && old.is_unchanged(is_old);
    if let Some((at_old, _)) = old_there.filter(may_go) {
        removals.has_arrived(to, &at_new, &is_new);
        finish((from, old), at_old, removals)?;
    } else if !has_old && !keeps_old {
        // It was finished.
        removals.has_arrived(to, &at_new, &is_new);
        removals.is_vacated(from.id, old);
    } else if used == Some(to.ix) {
        // Handles of the new copy go on with it, under its name.
        let (from, to) = (from.path.display(), to.path.display());
        tracing::warn!(%from, %to, "interrupted move: the old copy has changed and the new one is open; both stay until it is closed");
        return Ok(SettledMove::Later(None));
    } else if decided.is_some_and(|decided| decided != Decided::New) && new.is_written_as(&is_new) {
        removals.unlink(&at_new.0, &at_new.1)?;
        removals.is_vacated(to.id, new);
        tracing::info!(to = %to.path.display(), "interrupted move undone: the file has changed");
    } else {
        let (from, to) = (from.path.display(), to.path.display());
        tracing::warn!(%from, %to, "interrupted move: both copies have changed; both stay until one is removed by hand");
        // The record on the other branch may lack the decision: settled alone it would remove one of them.
        if decided != Some(Decided::Not) {
            return Ok(SettledMove::Later(None));
        }
    }
    Ok(SettledMove::Whole)
}

/// The old copy loses its name.
fn finish(
    (from, old): (&Branch, Stamp),
    (dir, name): (OwnedFd, CString),
    removals: &mut UnsyncedRemovals,
) -> Result<(), SysError> {
    removals.unlink(&dir, &name)?;
    removals.is_vacated(from.id, old);
    tracing::info!(from = %from.path.display(), "interrupted move finished");
    Ok(())
}
