//! A move that is about to get its name: what is written down before, and how it is settled if it was interrupted.
//!
//! An intent is a file in the hidden folder of the target branch: which file, from which branch. It is
//! on disk before the new copy gets its name and goes after the old copy has lost it. Its last word is a
//! checksum: an intent that was cut short was never acted on.
//!
//! A branch may go out of reach in the middle, and the daemon live on: with the file where it was, and writers who
//! change it there while the new copy cannot be removed. So the intent says how both copies were, and of the two
//! the one goes that nobody has changed since. As long as that daemon lives it knows better: the file that it had to leave
//! where it was may be open there, so that copy stays whether it has been changed or not ([`TakenBack`]).
//! Another daemon may find an intent while it is at work, on a branch that is added or back. Then the copy stays that is
//! open; and of two that are not, the one that anybody may open meanwhile, not the one on the branch that nobody is let
//! into yet.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use fsstack_pool::{BranchId, BranchIx};
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, Stat, SysError, Time};
use parking_lot::Mutex;

use crate::branch::Branch;
use crate::inode::mark;
use crate::inode::number::number;
use crate::pool::Pool;
use crate::record::{self, Sort, Written};
use crate::recover::{sync_dir, walk};

/// Records of moves.
pub(crate) const SORT: Sort = Sort { suffix: c".move", format: 3 };
const HEAD: usize = 2 + 2 * COPY;
const COPY: usize = 8 + 3 * 8 + 2 * 4;

/// A move that is about to get its name.
pub(crate) struct Intent<'a> {
    pub(crate) from: BranchId,
    /// The old copy, and the new one, as nobody has changed them yet.
    pub(crate) old: Stamp,
    pub(crate) new: Stamp,
    pub(crate) path: &'a [u8],
}

/// Intents of moves that were given up after the new copy may have got its name, which then could not be removed: the file is
/// used where it was.
#[derive(Debug, Default)]
pub(crate) struct TakenBack(Mutex<HashSet<CString>>);

impl TakenBack {
    /// The move of that intent is not to be finished: when the branches can be asked the new copy goes.
    pub(crate) fn add(&self, intent: Written) {
        self.0.lock().insert(intent.stays());
    }

    pub(crate) fn has(&self, intent: &CStr) -> bool {
        self.0.lock().contains(intent)
    }

    /// It was settled.
    pub(crate) fn remove(&self, intent: &CStr) {
        self.0.lock().remove(intent);
    }
}

/// Identity of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The branch's inode number.
    ino: u64,
    size: u64,
    modified: Time,
    changed: Time,
}

impl Stamp {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { ino: stat.ino, size: stat.size, modified: stat.mtime, changed: stat.ctime }
    }

    fn put(&self, record: &mut Vec<u8>) {
        record.extend_from_slice(&self.ino.to_le_bytes());
        record.extend_from_slice(&self.size.to_le_bytes());
        for time in [self.modified, self.changed] {
            record.extend_from_slice(&time.sec.to_le_bytes());
            record.extend_from_slice(&time.nsec.to_le_bytes());
        }
    }

    fn take(bytes: &[u8; COPY]) -> Self {
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let time = |at: usize| Time {
            sec: bytes[at..at + 8].try_into().map_or(0, i64::from_le_bytes),
            nsec: bytes[at + 8..at + 12].try_into().map_or(0, u32::from_le_bytes),
        };
        Self { ino: word(0), size: word(8), modified: time(16), changed: time(28) }
    }

    /// Nobody has written to it. (Its name is new: that changes the inode.)
    fn is_written_as(&self, stat: &Stat) -> bool {
        (self.size, self.modified) == (stat.size, stat.mtime)
    }
}

impl Intent<'_> {
    /// Puts it on disk.
    pub(crate) fn write(&self, on: &Branch) -> Result<Written, SysError> {
        let mut record = Vec::with_capacity(HEAD + self.path.len());
        record.extend_from_slice(&self.from.get().to_le_bytes());
        self.old.put(&mut record);
        self.new.put(&mut record);
        record.extend_from_slice(self.path);
        record::write(on, &SORT, &record)
    }
}

/// Whether the move that `record` is about comes from `away`.
pub(crate) fn is_from(record: &[u8], away: BranchId) -> bool {
    record.first_chunk() == Some(&away.get().to_le_bytes())
}

/// If both copies have the name, one of them goes: the new one if the move was `taken_back`. `joining` is the branch that
/// takes no requests yet, while the others are at work. False: that is unknown now.
pub(crate) fn settle(
    pool: &Pool,
    to: &Branch,
    record: &[u8],
    taken_back: bool,
    joining: Option<BranchId>,
) -> Result<bool, SysError> {
    let Some((id, rest)) = record.split_first_chunk::<2>() else { return Ok(true) };
    let Some((old, rest)) = rest.split_first_chunk::<COPY>() else { return Ok(true) };
    let Some((new, path)) = rest.split_first_chunk::<COPY>() else { return Ok(true) };
    let (old, new) = (Stamp::take(old), Stamp::take(new));
    let id = BranchId::new(u16::from_le_bytes(*id));
    let Some(from) = pool.branches.iter().find(|branch| Some(branch.id) == id) else { return Ok(false) };
    let Some(at_new) = walk(to, path)? else { return Ok(true) };
    let Some(is_new) = there(&at_new, new)? else { return Ok(true) };
    let at_old = walk(from, path)?;
    let is_old = at_old.as_ref().map_or(Ok(None), |at_old| there(at_old, old))?;
    // (Without an old copy there is nothing to go on with: the new one is the file.)
    let used = match is_old {
        Some(_) if !taken_back => used_on(pool, (from, old.ino), (to, &is_new), &at_new)?,
        _ => None,
    };
    let taken_back = taken_back
        || is_old.is_some()
            && match used {
                Some(used) => used == from.ix,
                None => joining == Some(to.id) && new.is_written_as(&is_new),
            };
    let is_unchanged = |is_old: &Stat| old.changed == is_old.ctime && old.is_written_as(is_old);
    if let (false, Some(at_old), Some(is_old)) = (taken_back, &at_old, &is_old)
        && is_unchanged(is_old)
    {
        sys::at::unlink(at_old.0.as_fd(), &at_old.1)?;
        sync_dir(at_old.0.as_fd())?;
        tracing::info!(from = %from.path.display(), "interrupted move finished");
    } else if is_old.is_none() && !taken_back {
        return Ok(true); // it was finished
    } else if used == Some(to.ix) {
        // Handles of the new copy go on with it, under its name.
        let (from, to) = (from.path.display(), to.path.display());
        tracing::warn!(%from, %to, "interrupted move: the old copy has changed and the new one is open; both stay until it is closed");
        return Ok(false);
    } else if new.is_written_as(&is_new) {
        sys::at::unlink(at_new.0.as_fd(), &at_new.1)?;
        sync_dir(at_new.0.as_fd())?;
        tracing::info!(to = %to.path.display(), "interrupted move undone: the file has changed");
    } else {
        let (from, to) = (from.path.display(), to.path.display());
        tracing::warn!(%from, %to, "interrupted move: both copies have changed; both stay until one is removed by hand");
    }
    Ok(true)
}

/// On which of the two branches the file is open, if it is.
fn used_on(
    pool: &Pool,
    (from, old): (&Branch, u64),
    (to, new): (&Branch, &Stat),
    (dir, name): &(OwnedFd, CString),
) -> Result<Option<BranchIx>, SysError> {
    let Some(inodes) = pool.branches.iter().find_map(|branch| branch.inodes()) else { return Ok(None) };
    // The new copy is known by the number of the old one, and by its own to earlier users of that.
    let numbers = [number(from, from.dev(), old), number(to, new.dev, new.ino)];
    let alias = mark::of(to, On::Name(dir.as_fd(), name), mark::FILE, new.ino)?.map(|id| id.ino);
    let mut known = numbers.into_iter().chain(alias).filter_map(|ino| inodes.get(ino));
    Ok(known.find(|inode| inode.open_file().is_some()).and_then(|inode| inode.branch()))
}

/// The attributes of what has the name, if it is the file of that stamp.
fn there((dir, name): &(OwnedFd, CString), stamp: Stamp) -> Result<Option<Stat>, SysError> {
    match sys::at::stat(dir.as_fd(), name) {
        Ok(stat) => Ok(Some(stat).filter(|stat| stat.ino == stamp.ino && stat.is_file())),
        Err(error) if error.errno == Errno::NOENT => Ok(None),
        Err(error) => Err(error),
    }
}
