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

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_branch::error::Result as OpResult;
use fsstack_pool::{BranchId, BranchIx};
use fsstack_sys::at::Whereabouts;
use fsstack_sys::file::sync_dir;
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, Stat, SysError, Time};
use parking_lot::Mutex;

use crate::pool::Pool;
use crate::recovery::group;
use crate::recovery::record::{self, RecordKind, Successor, Written};
use crate::recovery::recover::{fresh_name, own_folder};
use crate::recovery::settle::{Occasion, walk};
use fsstack_identity::index::birth;
use fsstack_identity::mark;
use fsstack_identity::number::number;

/// Records of moves.
pub(crate) const SORT: RecordKind = RecordKind { suffix: c".move", format: 4 };
/// Those of files with several hard links, whose paths [`SEPARATOR`] separates. (Until 2026-11 they had the format of [`SORT`].)
pub(crate) const GROUP: RecordKind = RecordKind { suffix: SORT.suffix, format: 5 };
/// The decision, the two branches, the two copies.
const HEAD: usize = 1 + 2 * 2 + 2 * COPY;
/// Between the paths of a file with several hard links.
pub(crate) const SEPARATOR: u8 = 0;
const COPY: usize = 8 + 4 + 8 + 2 * (8 + 4);

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

/// The copy that is the file from now on: a mount without the other's branch has shown it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    Not = 0,
    Old = 1,
    New = 2,
}

/// Intents of moves that were given up after the new copy may have got its name, and could not be removed then: the file is
/// used where it was.
#[derive(Debug, Default)]
pub(crate) struct TakenBack(Mutex<HashSet<CString>>);

impl TakenBack {
    pub(crate) fn has(&self, intent: &CStr) -> bool {
        self.0.lock().contains(intent)
    }

    /// It was settled.
    pub(crate) fn remove(&self, intent: &CStr) {
        self.0.lock().remove(intent);
    }
}

/// An intent that is on disk.
#[must_use = "it is acted on by the next mount unless it is done with"]
pub(crate) struct Noted<'a> {
    from: &'a Branch,
    to: &'a Branch,
    sort: &'static RecordKind,
    body: Vec<u8>,
    on_from: Option<Written>,
    on_to: Written,
    /// Records that say that the new copy is the file, on source and target. None unless the file has several hard links.
    decisions: Option<(Successor, Successor)>,
}

impl Noted<'_> {
    /// The move is over, one way or the other.
    pub(crate) fn done(self) {
        let (for_from, for_to) = self.decisions.unzip();
        self.on_to.done_without(self.to, for_to);
        if let Some(on_from) = self.on_from {
            on_from.done_without(self.from, for_from);
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
        if let Some(on_from) = &self.on_from {
            self.from.ask(|| on_from.replace(self.from, self.sort, &self.body))?;
        }
        self.to.ask(|| self.on_to.replace(self.to, self.sort, &self.body))
    }

    /// The move is not to be finished: when both branches can be asked the new copy goes.
    pub(crate) fn keeps_old(mut self, taken_back: &TakenBack) {
        self.body[0] = Decided::Old as u8;
        taken_back.0.lock().insert(self.on_to.name().to_owned());
        if let Some(on_from) = &self.on_from {
            tell_undecided(self.from.ask(|| on_from.replace(self.from, self.sort, &self.body)));
        }
    }

    /// The new copy is the file: when both branches can be asked the old one goes.
    pub(crate) fn keeps_new(mut self) {
        self.body[0] = Decided::New as u8;
        tell_undecided(self.to.ask(|| self.on_to.replace(self.to, self.sort, &self.body)));
    }
}

fn tell_undecided(replaced: OpResult<()>) {
    if let Err(error) = replaced {
        tracing::debug!(%error, "an interrupted move is settled by what is found then");
    }
}

/// Identity of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The branch's inode number.
    pub(crate) ino: u64,
    /// 0 where the branch tells none.
    born: u32,
    size: u64,
    modified: Time,
    changed: Time,
}

impl Stamp {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { ino: stat.ino, born: birth(stat), size: stat.size, modified: stat.mtime, changed: stat.ctime }
    }

    fn put(&self, record: &mut Vec<u8>) {
        record.extend_from_slice(&self.ino.to_le_bytes());
        record.extend_from_slice(&self.born.to_le_bytes());
        record.extend_from_slice(&self.size.to_le_bytes());
        for time in [self.modified, self.changed] {
            record.extend_from_slice(&time.sec.to_le_bytes());
            record.extend_from_slice(&time.nsec.to_le_bytes());
        }
    }

    fn take(bytes: &[u8; COPY]) -> Self {
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let half = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let time = |at: usize| Time { sec: word(at).cast_signed(), nsec: half(at + 8) };
        Self { ino: word(0), born: half(8), size: word(12), modified: time(20), changed: time(32) }
    }

    pub(crate) fn is_of(&self, stat: &Stat) -> bool {
        self.ino == stat.ino && self.born == birth(stat)
    }

    /// True if it was not written to. Its name is new, which changes the inode.
    pub(crate) fn is_written_as(&self, stat: &Stat) -> bool {
        (self.size, self.modified) == (stat.size, stat.mtime)
    }

    /// True if it was not changed.
    pub(crate) fn is_unchanged(&self, stat: &Stat) -> bool {
        self.changed == stat.ctime && self.is_written_as(stat)
    }
}

impl<'a> Intent<'a> {
    /// Puts it on disk. The source branch may have no room, unless the file has several hard links.
    pub(crate) fn write(&self) -> OpResult<Noted<'a>> {
        let Self { from, to, .. } = *self;
        let paths = self.paths.join(&SEPARATOR);
        let mut body = Vec::with_capacity(HEAD + paths.len());
        body.push(Decided::Not as u8);
        body.extend_from_slice(&from.id.get().to_le_bytes());
        body.extend_from_slice(&to.id.get().to_le_bytes());
        self.old.put(&mut body);
        self.new.put(&mut body);
        body.extend_from_slice(&paths);
        let is_group = self.paths.len() > 1;
        let sort = if is_group { &GROUP } else { &SORT };
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
        let mut noted = Noted { from, to, sort, body, on_from, on_to, decisions: None };
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
        // What is left of the first one goes with the next mount.
        let for_to = self.to.ask(|| self.on_to.prepare(self.to, self.sort, &body))?;
        Ok(Some((for_from, for_to)))
    }
}

/// Contents of an intent.
pub(crate) struct Told<'a> {
    pub(crate) decided: Decided,
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) old: Stamp,
    pub(crate) new: Stamp,
    pub(crate) path: &'a [u8],
}

impl<'a> Told<'a> {
    pub(crate) fn parse(body: &'a [u8]) -> Option<Self> {
        let ([decided], rest) = body.split_first_chunk::<1>()?;
        let (from, rest) = rest.split_first_chunk::<2>()?;
        let (to, rest) = rest.split_first_chunk::<2>()?;
        let (old, rest) = rest.split_first_chunk::<COPY>()?;
        let (new, path) = rest.split_first_chunk::<COPY>()?;
        let decided =
            [Decided::Not, Decided::Old, Decided::New].into_iter().find(|one| *one as u8 == *decided)?;
        let (from, to) = (u16::from_le_bytes(*from), u16::from_le_bytes(*to));
        Some(Self { decided, from, to, old: Stamp::take(old), new: Stamp::take(new), path })
    }
}

/// Whether the move that `record` is about goes from or to `away`.
pub(crate) fn is_about(record: &[u8], away: BranchId) -> bool {
    Told::parse(record).is_some_and(|reported| [reported.from, reported.to].contains(&away.get()))
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
    if reported.path.contains(&SEPARATOR) {
        return group::settle(pool, on, name, (&reported, record), occasion);
    }
    let is_target = on.id.get() == reported.to;
    let other = if is_target { reported.from } else { reported.to };
    let Some(other) = pool.branches.iter().find(|branch| branch.id.get() == other) else {
        let lacks = occasion.lacking.iter().any(|lacking| lacking.get() == other);
        return if lacks { Ok(SettledMove::Later(None)) } else { decide(on, &reported, record) };
    };
    let folder = match own_folder(other) {
        Err(error) if error.errno == Errno::NOENT => None,
        folder => folder?,
    };
    let twin = match folder.map(|folder| record::peek(other, folder.as_fd(), name)) {
        Some(Err(error)) if error.errno == Errno::NOENT => None,
        twin => twin.transpose()?.flatten(),
    };
    let twin = twin.and_then(|(_, body)| Told::parse(&body).map(|twin| twin.decided));
    let decisions = [reported.decided, twin.unwrap_or(Decided::Not)];
    let is = |decided| decisions.contains(&decided);
    let other: &Branch = other;
    let (from, to) = if is_target { (other, on) } else { (on, other) };
    let decided = match (is(Decided::Old) || pool.taken_back.has(name), is(Decided::New)) {
        (true, true) => None, // each was shown without the other
        (true, false) => Some(Decided::Old),
        (false, true) => Some(Decided::New),
        (false, false) => Some(Decided::Not),
    };
    settle_copies(pool, (from, to), &reported, decided, occasion.joining)
}

/// The mount has one of the branches only: the copy there, if it is there, is the file from now on.
fn decide(on: &Branch, reported: &Told<'_>, record: &[u8]) -> Result<SettledMove, SysError> {
    if reported.decided != Decided::Not {
        return Ok(SettledMove::Later(None));
    }
    let (decided, stamp) =
        if on.id.get() == reported.to { (Decided::New, reported.new) } else { (Decided::Old, reported.old) };
    let at = walk(on, reported.path)?;
    if at.map_or(Ok(None), |at| there(&at, stamp))?.is_none() {
        return Ok(SettledMove::Whole); // it has not got its name, or has lost it
    }
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
) -> Result<SettledMove, SysError> {
    let (old, new) = (reported.old, reported.new);
    let at_old = walk(from, reported.path)?;
    let is_old = at_old.as_ref().map_or(Ok(None), |at_old| there(at_old, old))?;
    let at_new = walk(to, reported.path)?;
    let is_new = at_new.as_ref().map_or(Ok(None), |at_new| there(at_new, new))?;
    let old_there = at_old.zip(is_old);
    let Some((at_new, is_new)) = at_new.zip(is_new) else {
        // The new one may have been renamed or removed since it was decided on.
        if decided == Some(Decided::New)
            && let Some((at_old, _)) = old_there.filter(|(_, is_old)| old.is_unchanged(is_old))
        {
            finish(from, &at_old)?;
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
        Some(Decided::New) | None => false,
        // Without an old copy there is nothing to go on with: the new one is the file.
        Some(Decided::Not) => match used {
            Some(used) => used == from.ix,
            None if old_there.is_some() => joining == Some(to.id) && new.is_written_as(&is_new),
            None => lives(from, old)?,
        },
    };
    if let (false, Some(_), Some((at_old, is_old))) = (keeps_old, decided, &old_there)
        && old.is_unchanged(is_old)
    {
        finish(from, at_old)?;
    } else if old_there.is_none() && !keeps_old {
        return Ok(SettledMove::Whole); // it was finished
    } else if used == Some(to.ix) {
        // Handles of the new copy go on with it, under its name.
        let (from, to) = (from.path.display(), to.path.display());
        tracing::warn!(%from, %to, "interrupted move: the old copy has changed and the new one is open; both stay until it is closed");
        return Ok(SettledMove::Later(None));
    } else if decided.is_some_and(|decided| decided != Decided::New) && new.is_written_as(&is_new) {
        sys::at::unlink(at_new.0.as_fd(), &at_new.1)?;
        sync_dir(at_new.0.as_fd())?;
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
fn finish(from: &Branch, (dir, name): &(OwnedFd, CString)) -> Result<(), SysError> {
    sys::at::unlink(dir.as_fd(), name)?;
    sync_dir(dir.as_fd())?;
    tracing::info!(from = %from.path.display(), "interrupted move finished");
    Ok(())
}

/// On which of the two branches the file is open, if it is.
pub(crate) fn used_on(
    pool: &Pool,
    (from, old): (&Branch, u64),
    (to, new): (&Branch, &Stat),
    (dir, name): &(OwnedFd, CString),
) -> Result<Option<BranchIx>, SysError> {
    let Some(inodes) = pool.branches.iter().find_map(|branch| branch.events()?.inodes()) else {
        return Ok(None);
    };
    // The new copy is known by the number of the old one, and by its own to earlier users of that.
    let numbers = [number(from, from.dev(), old), number(to, new.dev, new.ino)];
    let alias = mark::of(to, On::Name(dir.as_fd(), name), mark::FILE, new.ino)?.map(|id| id.ino);
    let mut known = numbers.into_iter().chain(alias).filter_map(|ino| inodes.get(ino));
    Ok(known.find(|inode| inode.open_file().is_some()).and_then(|inode| inode.branch()))
}

/// The attributes of what has the name, if it is the object of that stamp: a file, or a link, fifo, socket or device.
pub(crate) fn there((dir, name): &(OwnedFd, CString), stamp: Stamp) -> Result<Option<Stat>, SysError> {
    match sys::at::stat(dir.as_fd(), name) {
        Ok(stat) => Ok(Some(stat).filter(|stat| stamp.is_of(stat) && !stat.is_dir())),
        Err(error) if error.errno == Errno::NOENT => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the file of that stamp is on the branch, whatever its name is, where the branch finds files by number. One that may lie
/// outside of the branch, which is a directory of a larger file system, is none: the new copy would go for it.
fn lives(branch: &Branch, stamp: Stamp) -> Result<bool, SysError> {
    let Some(how) = branch.by_number.filter(|_| stamp.born != 0) else { return Ok(false) };
    let root = branch.root();
    let Some(fd) = how.open(root.as_fd(), stamp.ino)? else { return Ok(false) };
    let stat = sys::at::stat_fd(fd.as_fd())?;
    if stat.nlink == 0 || !stamp.is_of(&stat) {
        return Ok(false);
    }
    Ok(match sys::at::whereabouts(root.as_fd(), fd.as_fd())? {
        Whereabouts::Below(_) => true,
        Whereabouts::Elsewhere => false,
        Whereabouts::Unknown => how.is_all_below(root.as_fd(), &branch.path).unwrap_or(false),
    })
}
