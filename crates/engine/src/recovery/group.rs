//! Settling an interrupted move of several names: of the files of a batch, each by itself (`intent.rs`), or of a file with several
//! hard links.
//!
//! A file with several hard links: the intent on the target decides. Unless it says that the new copy is the file, the old copy has all its names still, and the
//! new names go. That needs the target alone. If it says so, all new names were on disk by then, and the old ones go.
//!
//! A mount may have the source alone. Before the first old name goes its intent says too that the new copy is the file: such a mount
//! removes the others, and does not show the file. If the intent does not say so yet, the old copy has all its names, and may be
//! changed from then on. So the mount notes there that it has shown the old copy. That one is the file then, whatever the target
//! says, unless the new copy was changed by a mount of the target alone and the old one was not. If both were, both stay, and
//! the log says so. Content shows in size and mtime; so that rights and owner do, too, a mount that has the target alone notes
//! there how the new copy is ([`Decided::Shown`]).

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_branch::error::is_branch_fault;
use fsstack_pool::BranchId;
use fsstack_sys::{Call, Errno, Stat, SysError};

use crate::pool::Pool;
use crate::recovery::copies::{there, used_on};
use crate::recovery::decisions;
use crate::recovery::hidden_folder::own_folder;
use crate::recovery::intent::{SettledMove, settle_file, twin_of};
use crate::recovery::record;
use crate::recovery::record_kind::RecordKind;
use crate::recovery::settle::{Occasion, walk};
use crate::recovery::told::{
    self, Decided, SEPARATOR, Stamp, Told, encode_batch, name_in_batch, parse_batch,
};
use crate::recovery::unsynced_removals::UnsyncedRemovals;

/// Place of a file's intent on both branches: a record, or a part of the record of a batch.
#[derive(Clone, Copy)]
pub(crate) struct IntentAt<'a> {
    record: &'a CStr,
    /// The file's number in the batch.
    number: Option<u32>,
}

impl<'a> IntentAt<'a> {
    /// The record `record` is for this file alone.
    pub(crate) fn of_one(record: &'a CStr) -> Self {
        Self { record, number: None }
    }

    /// The intent in the body of its record.
    fn of<'b>(&self, body: &'b mut [u8]) -> Option<&'b mut [u8]> {
        match self.number {
            None => Some(body),
            Some(number) => told::intent_in_batch(body, number),
        }
    }

    /// The record on the branch `on`. None: it has none.
    fn record(&self, on: &Branch) -> Result<Option<(&'static RecordKind, Vec<u8>)>, SysError> {
        let missing = |error: &SysError| error.errno == Errno::NOENT;
        let folder = match own_folder(on) {
            Err(error) if missing(&error) => None,
            folder => folder?,
        };
        match folder.map(|folder| record::peek(on, folder.as_fd(), self.record)) {
            Some(Err(error)) if missing(&error) => Ok(None),
            body => {
                let Some((kind, body)) = body.transpose()?.flatten() else { return Ok(None) };
                Ok(Some((kind, decisions::with_noted(on, self.record, kind, body)?)))
            }
        }
    }

    /// The decision of the branch `on`, and how the new copy was. None: it has no intent.
    fn decision(&self, on: &Branch) -> Result<Option<(Decided, Stamp)>, SysError> {
        let Some((_, mut body)) = self.record(on)? else { return Ok(None) };
        Ok(self.of(&mut body).and_then(|intent| Told::parse(intent)).map(|told| (told.decided, told.new)))
    }

    /// The branch says from now on which copy is the file.
    fn decide(&self, on: &Branch, decided: Decided) -> Result<(), SysError> {
        let gone = SysError { call: Call::Open, errno: Errno::NOENT };
        let folder = own_folder(on)?.ok_or(gone)?;
        let (kind, mut body) = self.record(on)?.ok_or(gone)?;
        let intent = self.of(&mut body).ok_or(gone)?;
        *intent.first_mut().ok_or(gone)? = decided as u8;
        decisions::replace(on, folder.as_fd(), self.record, told::kind_of(kind, &body), &body)
    }
}

/// A name of a copy, and its attributes there.
type NamedCopy = ((OwnedFd, CString), Stat);

/// Settles each file of the batch that the record `name` on the branch `on` is about. An error with one does not stop the others.
pub(crate) fn settle_batch(
    pool: &Pool,
    on: &Branch,
    name: &CStr,
    record: &[u8],
    occasion: Occasion<'_>,
) -> Result<SettledMove, SysError> {
    let Some(files) = parse_batch(record) else { return Ok(SettledMove::Whole) };
    // Those that were settled while the branch was full have none (`decisions.rs`).
    let Some(first) = files.iter().find_map(|(_, intent)| Told::parse(intent)) else {
        return Ok(SettledMove::Whole);
    };
    let twin = twin_of(pool, on, name, &first)?;
    let twin = twin.as_deref().and_then(parse_batch).unwrap_or_default();
    let mut left: Vec<(u32, Vec<u8>)> = Vec::new();
    let mut removals = UnsyncedRemovals::default();
    for (number, intent) in &files {
        let Some(told) = Told::parse(intent) else { continue };
        let known_as = name_in_batch(name, *number);
        let of_twin =
            twin.iter().find(|(other, _)| other == number).and_then(|(_, intent)| Told::parse(intent));
        let taken_back = pool.taken_back.has(&known_as);
        let decided = (of_twin.map(|twin| twin.decided), taken_back);
        let at = IntentAt { record: name, number: Some(*number) };
        let settled = match told.path.contains(&SEPARATOR) {
            true => settle(pool, on, (at, taken_back), (&told, intent), occasion, &mut removals),
            false => settle_file(pool, on, (&told, intent), decided, occasion, &mut removals),
        };
        match settled {
            Ok(SettledMove::Whole) => pool.taken_back.remove(&known_as),
            Ok(SettledMove::Later(decided)) => {
                left.push((*number, decided.unwrap_or_else(|| intent.to_vec())));
            }
            Err(error) if is_branch_fault(error.errno) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, branch = %on.path.display(), "interrupted move: one file of several cannot be settled; the next mount tries again");
                // It may have been decided.
                let now = at.record(on)?.and_then(|(_, mut body)| at.of(&mut body).map(|now| now.to_vec()));
                left.push((*number, now.unwrap_or_else(|| intent.to_vec())));
            }
        }
    }
    removals.sync(occasion.index)?;
    if left.is_empty() {
        return Ok(SettledMove::Whole);
    }
    let now = encode_batch(left.iter().map(|(number, intent)| (*number, intent.as_slice())));
    Ok(SettledMove::Later((now != record).then_some(now)))
}

/// Removes the names of one of the copies. `told` is the content of the intent `at`, as the branch `on` has it; `is_taken_back`: this
/// daemon left the file where it was.
pub(crate) fn settle(
    pool: &Pool,
    on: &Branch,
    (at, is_taken_back): (IntentAt<'_>, bool),
    (told, record): (&Told<'_>, &[u8]),
    occasion: Occasion<'_>,
    removals: &mut UnsyncedRemovals,
) -> Result<SettledMove, SysError> {
    let member = |id: u16| {
        pool.branches.iter().find(|branch| branch.id.get() == id).map(|member| -> &Branch { member })
    };
    let (from, to) = match on.id.get() == told.to {
        true => (member(told.from), Some(on)),
        false => (Some(on), member(told.to)),
    };
    let Some(to) = to else {
        let lacks = occasion.lacking.iter().any(|lacking| lacking.get() == told.to);
        return settle_alone(on, told, record, lacks, removals);
    };
    // Without it nothing was begun, or it is over.
    let Some((on_to, as_shown)) = at.decision(to)? else { return Ok(SettledMove::Whole) };
    let on_from = from.map_or(Ok(None), |from| at.decision(from))?.map(|(decided, _)| decided);
    let taken_back = on_from == Some(Decided::Old) || is_taken_back;
    let new = names_of(to, told.new, told, removals)?;
    let used = match (from, new.first()) {
        (Some(from), Some((at_new, is_new))) => used_on(pool, (from, told.old.ino), (to, is_new), at_new)?,
        _ => None,
    };
    if !on_to.is_new() {
        // A program may have come to the new copy before this was settled.
        return match used == Some(to.ix) {
            true => Ok(SettledMove::Later(None)),
            false => take_back(to, at, told, on_to, new, removals),
        };
    }
    let Some(from) = from else { return Ok(SettledMove::Later(shown_alone(told, on_to, &new))) };
    let old = names_of(from, told.old, told, removals)?;
    let has_all = old.len() == paths(told).count();
    let used = used.filter(|_| !old.is_empty());
    let old_is_unchanged = is_unchanged(told, &old);
    // All new names are on disk since the intent says so: one that is not there was removed or renamed.
    let is_as_shown = on_to != Decided::Shown || new.iter().all(|(_, stat)| as_shown.is_unchanged(stat));
    let is_as_made = is_as_shown && is_as_made(told, &new);
    let new_is_unchanged = new.len() == paths(told).count() && is_as_made;
    let (finishes, takes_back) = match taken_back {
        true => (has_all && old_is_unchanged && !new_is_unchanged, new_is_unchanged),
        false => (old_is_unchanged, has_all && is_as_made),
    };
    if finishes && used != Some(from.ix) {
        if on_from.is_some_and(|decided| decided != Decided::New) {
            // Killed with some of them gone, a mount without the target must not show the others.
            at.decide(from, Decided::New)?;
        }
        new.first().inspect(|(at, stat)| removals.has_arrived(to, at, stat));
        return finish((from, told), old, removals);
    }
    if takes_back && used != Some(to.ix) {
        return take_back(to, at, told, on_to, new, removals);
    }
    if new.is_empty() && !finishes {
        // It was removed, or moved on, and the old one was changed.
        removals.is_vacated(to.id, told.new);
        return Ok(SettledMove::Whole);
    }
    let (from, to) = (from.path.display(), to.path.display());
    tracing::warn!(%from, %to, "interrupted move: both copies have changed; both stay until one is removed by hand");
    Ok(SettledMove::Later(None))
}

/// Intent of a target without its source that shows the new copy, with how that is now. None: it says so already, or the copy was
/// written to before.
fn shown_alone(told: &Told<'_>, on_to: Decided, new: &[NamedCopy]) -> Option<Vec<u8>> {
    let (_, stat) = new.first().filter(|_| on_to == Decided::New && is_as_made(told, new))?;
    Some(Told { decided: Decided::Shown, new: Stamp::of(stat), ..*told }.encode())
}

/// Like [`settle`], of the source `from` without the target. `lacks`: that one is in the pool, and does not answer.
fn settle_alone(
    from: &Branch,
    told: &Told<'_>,
    record: &[u8],
    lacks: bool,
    removals: &mut UnsyncedRemovals,
) -> Result<SettledMove, SysError> {
    let old = names_of(from, told.old, told, removals)?;
    match told.decided {
        Decided::New | Decided::Shown if is_unchanged(told, &old) => finish((from, told), old, removals),
        Decided::Not if old.is_empty() => Ok(SettledMove::Whole),
        Decided::Not if !lacks => {
            let mut record = record.to_vec();
            record[0] = Decided::Old as u8;
            BranchId::new(told.to).into_iter().for_each(|to| removals.is_vacated(to, told.new));
            Ok(SettledMove::Later(Some(record)))
        }
        Decided::New | Decided::Shown | Decided::Not | Decided::Old => Ok(SettledMove::Later(None)),
    }
}

/// The old names go.
fn finish(
    (from, told): (&Branch, &Told<'_>),
    old: Vec<NamedCopy>,
    removals: &mut UnsyncedRemovals,
) -> Result<SettledMove, SysError> {
    let any = !old.is_empty();
    remove(old, removals)?;
    removals.is_vacated(from.id, told.old);
    if any {
        tracing::info!(from = %from.path.display(), "interrupted move finished");
    }
    Ok(SettledMove::Whole)
}

/// True if the old copy, of which some names may be gone, was not changed since the intent.
fn is_unchanged(told: &Told<'_>, old: &[NamedCopy]) -> bool {
    let has_all = old.len() == paths(told).count();
    old.iter().all(|(_, stat)| match has_all {
        true => told.old.is_unchanged(stat),
        false => told.old.is_written_as(stat), // a name less changes the inode
    })
}

/// The new names go, unless the copy was written to.
fn take_back(
    to: &Branch,
    at: IntentAt<'_>,
    told: &Told<'_>,
    on_to: Decided,
    new: Vec<NamedCopy>,
    removals: &mut UnsyncedRemovals,
) -> Result<SettledMove, SysError> {
    if !is_as_made(told, &new) {
        let to = to.path.display();
        tracing::warn!(%to, "interrupted move: the new copy was written to; both stay until one is removed by hand");
        return Ok(SettledMove::Later(None));
    }
    if on_to.is_new() {
        // Killed with some of them gone, the next mount must not remove the old ones.
        at.decide(to, Decided::Old)?;
    }
    let any = !new.is_empty();
    remove(new, removals)?;
    removals.is_vacated(to.id, told.new);
    if any {
        tracing::info!(to = %to.path.display(), "interrupted move undone: the file stays where it was");
    }
    Ok(SettledMove::Whole)
}

fn is_as_made(told: &Told<'_>, new: &[NamedCopy]) -> bool {
    new.iter().all(|(_, stat)| told.new.is_written_as(stat))
}

fn paths<'a>(told: &Told<'a>) -> impl Iterator<Item = &'a [u8]> {
    told.path.split(|byte| *byte == SEPARATOR)
}

/// The names under which `on` has the copy of that stamp.
fn names_of(
    on: &Branch,
    stamp: Stamp,
    told: &Told<'_>,
    removals: &mut UnsyncedRemovals,
) -> Result<Vec<NamedCopy>, SysError> {
    let mut found = Vec::new();
    for path in paths(told) {
        let Some(at) = walk(on, path)? else { continue };
        match there(&at, stamp)? {
            Some(stat) => found.push((at, stat)),
            None => removals.has_lost(&at.0)?,
        }
    }
    Ok(found)
}

fn remove(names: Vec<NamedCopy>, removals: &mut UnsyncedRemovals) -> Result<(), SysError> {
    names.into_iter().try_for_each(|((dir, name), _)| removals.unlink(&dir, &name))
}
