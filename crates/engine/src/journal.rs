//! Changes of names on several branches that are under way: a record says what is to be done on each, so that
//! the next mount finishes what was interrupted, or takes it back.
//!
//! The record is a file in the hidden folder of one branch. It is on disk before the first name changes, and it
//! goes after the last has changed and is on disk too. So a record that a crash cut short was never acted on: its
//! last word is a checksum, and one that does not fit is cleared. A whole one is compared with the branches by
//! inode number. If no name has changed, nothing was promised, and it is dropped. If one has, the others are
//! changed now; where a branch refuses, those that have are taken back.
//!
//! A branch of the record may be missing from the pool at the next mount. What was settled for the others is then
//! settled for it too: the record is written anew, for that branch alone, and stays until it is back.
//!
//! Why on the branches and not under the pool's state directory: docs/decisions/.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_pool::{BranchId, BranchIx};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{self as sys, Errno, SysError};

use crate::branch::Branch;
use crate::inode::Inode;
use crate::pool::Pool;
use crate::recover::{self, Durable, Written, checksum, sync_dir, walk};

/// What the records' names end with.
pub(crate) const SUFFIX: &CStr = c".names";
const MAGIC: &[u8; 4] = b"fsn1";
const SUM: usize = 8;

/// What happens to an object on one branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// It gets the record's second name instead of the first.
    There,
    /// It gets the first name instead of the second.
    Back,
    /// It has the first name and `other` the second: they change places.
    Swap { other: u64 },
    /// It has the second name, and goes: a file, or a directory without entries.
    Remove,
}

/// One branch's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) branch: BranchId,
    /// The branch's inode number of the object.
    pub(crate) ino: u64,
    pub(crate) act: Act,
}

/// A change of names: two paths below the pool's root, and what happens on which branch, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) first: Vec<u8>,
    pub(crate) second: Vec<u8>,
    pub(crate) parts: Vec<Part>,
    /// It was settled that this is done: nothing of it need have been done already.
    pub(crate) settled: bool,
}

/// How far a part has come, as the branch shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Before,
    /// The object has both names.
    Midway,
    After,
    /// Somebody else has changed it: nothing to do.
    Strange,
}

/// A part whose branch is there, with where it acts.
struct Place<'a> {
    part: Part,
    branch: &'a Branch,
    stage: Stage,
    first: Option<(OwnedFd, CString)>,
    second: Option<(OwnedFd, CString)>,
}

impl Names {
    /// The path of `name` in `dir`. None: the directory was removed.
    pub(crate) fn path(dir: &Arc<Inode>, name: &CStr) -> Option<Vec<u8>> {
        let mut path = dir.path()?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        Some(path)
    }

    /// Puts it on a branch: one that takes part if it can, any other if not. None: no branch takes it, and the
    /// change goes on without, as a branch that is full to the last block must not forbid it.
    pub(crate) fn begin(&self, pool: &Pool, durable: Durable) -> Option<(BranchIx, Written)> {
        let takes_part = |branch: &Branch| self.parts.iter().any(|part| part.branch == branch.id);
        let all = || pool.branches.iter().filter(|branch| branch.is_writable());
        let order =
            all().filter(|branch| takes_part(branch)).chain(all().filter(|branch| !takes_part(branch)));
        for branch in order {
            match branch.ask(|| recover::write_record(branch, SUFFIX, &self.encode(), durable)) {
                Ok(written) => return Some((branch.ix, written)),
                Err(error) => tracing::debug!(%error, "a branch takes no record of a change of names"),
            }
        }
        tracing::warn!("no branch takes a record of a change of names: a crash would leave it half done");
        None
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut record = MAGIC.to_vec();
        record.push(u8::from(self.settled));
        for path in [&self.first, &self.second] {
            record.extend_from_slice(&u32::try_from(path.len()).unwrap_or(0).to_le_bytes());
            record.extend_from_slice(path);
        }
        for part in &self.parts {
            let (kind, other) = match part.act {
                Act::There => (0, 0),
                Act::Back => (1, 0),
                Act::Swap { other } => (2, other),
                Act::Remove => (3, 0),
            };
            record.push(kind);
            record.extend_from_slice(&part.branch.get().to_le_bytes());
            record.extend_from_slice(&part.ino.to_le_bytes());
            record.extend_from_slice(&other.to_le_bytes());
        }
        record.extend_from_slice(&checksum(&record).to_le_bytes());
        record
    }

    /// None: it is not whole.
    fn decode(record: &[u8]) -> Option<Self> {
        let (body, sum) = record.split_last_chunk::<SUM>()?;
        if checksum(body) != u64::from_le_bytes(*sum) {
            return None;
        }
        let mut rest = body.strip_prefix(MAGIC)?;
        let (settled, after) = rest.split_first()?;
        rest = after;
        let mut path = || {
            let (len, after) = rest.split_first_chunk::<4>()?;
            let (path, after) = after.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)?;
            rest = after;
            Some(path.to_vec())
        };
        let (first, second) = (path()?, path()?);
        let mut parts = Vec::new();
        for part in rest.chunks(19) {
            let (kind, part) = part.split_first()?;
            let (branch, part) = part.split_first_chunk::<2>()?;
            let (ino, other) = part.split_first_chunk::<8>()?;
            let act = match kind {
                0 => Act::There,
                1 => Act::Back,
                2 => Act::Swap { other: u64::from_le_bytes(other.try_into().ok()?) },
                3 => Act::Remove,
                _ => return None,
            };
            let branch = BranchId::new(u16::from_le_bytes(*branch))?;
            parts.push(Part { branch, ino: u64::from_le_bytes(*ino), act });
        }
        Some(Self { first, second, parts, settled: *settled != 0 })
    }
}

/// What became of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Nothing is left to do.
    Whole,
    /// This is left, for branches that are not here.
    Left(Names),
}

/// Whether `record` was settled while `away` was not there.
pub(crate) fn is_settled_without(record: &[u8], away: BranchId) -> bool {
    Names::decode(record)
        .is_some_and(|names| names.settled && names.parts.iter().any(|part| part.branch == away))
}

/// Whether `away` takes part in what `record` says.
pub(crate) fn is_about(record: &[u8], away: BranchId) -> bool {
    Names::decode(record).is_some_and(|names| names.parts.iter().any(|part| part.branch == away))
}

/// Finishes what `record` says, or takes it back.
///
/// # Errors
/// What a branch answered: the record is to stay.
pub(crate) fn settle(pool: &Pool, record: &[u8]) -> Result<Settled, SysError> {
    let Some(names) = Names::decode(record) else { return Ok(Settled::Whole) };
    let mut places = Vec::new();
    let mut missing = Vec::new();
    for part in &names.parts {
        match pool.branches.iter().find(|branch| branch.id == part.branch && branch.is_writable()) {
            Some(branch) => places.push(Place::find(branch, *part, &names)?),
            None => missing.push(*part),
        }
    }
    let begun =
        names.settled || places.iter().any(|place| matches!(place.stage, Stage::Midway | Stage::After));
    let forward = begun && finish(&mut places)?;
    if begun {
        let (name, done) =
            (String::from_utf8_lossy(&names.first), if forward { "finished" } else { "taken back" });
        tracing::info!(%name, "a change of names that was interrupted is {done}");
    }
    if missing.is_empty() {
        return Ok(Settled::Whole);
    }
    let parts = missing.into_iter().filter_map(|part| if forward { Some(part) } else { part.reversed() });
    let parts: Vec<Part> = parts.collect();
    Ok(if parts.is_empty() { Settled::Whole } else { Settled::Left(Names { parts, settled: true, ..names }) })
}

/// Does what is left of the parts. False: a branch refused, and all were taken back.
fn finish(places: &mut [Place<'_>]) -> Result<bool, SysError> {
    // What must go first, or it would hide or forbid what comes in its place.
    places.sort_by_key(|place| place.part.act != Act::Remove);
    for at in 0..places.len() {
        let place = &mut places[at];
        let done = match place.stage {
            Stage::Before | Stage::Midway => place.act(),
            Stage::After | Stage::Strange => continue,
        };
        match done {
            Ok(()) => place.stage = Stage::After,
            Err(error) if places.iter().any(Place::cannot_go_back) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "an interrupted change of names cannot be finished: it is taken back");
                for done in places.iter().filter(|place| place.stage == Stage::After) {
                    done.undo()?;
                    done.sync()?;
                }
                return Ok(false);
            }
        }
    }
    places.iter().try_for_each(Place::sync).map(|()| true)
}

impl Part {
    fn reversed(self) -> Option<Self> {
        let act = match self.act {
            Act::There => Act::Back,
            Act::Back => Act::There,
            Act::Swap { other } => {
                return Some(Self { ino: other, act: Act::Swap { other: self.ino }, ..self });
            }
            Act::Remove => return None,
        };
        Some(Self { act, ..self })
    }
}

impl<'a> Place<'a> {
    fn find(branch: &'a Branch, part: Part, names: &Names) -> Result<Self, SysError> {
        let (first, second) = (walk(branch, &names.first)?, walk(branch, &names.second)?);
        let has = |at: &Option<(OwnedFd, CString)>| match at {
            None => Ok(None),
            Some((dir, name)) => match sys::at::stat(dir.as_fd(), name) {
                Ok(stat) => Ok(Some(stat.ino)),
                Err(error) if error.errno == Errno::NOENT => Ok(None),
                Err(error) => Err(error),
            },
        };
        let (at_first, at_second) = (has(&first)?, has(&second)?);
        let moves = |old: Option<u64>, new: Option<u64>| match (old == Some(part.ino), new == Some(part.ino))
        {
            (true, true) => Stage::Midway,
            (true, false) => Stage::Before,
            (false, true) => Stage::After,
            (false, false) => Stage::Strange,
        };
        let stage = match part.act {
            Act::There => moves(at_first, at_second),
            Act::Back => moves(at_second, at_first),
            Act::Swap { other } => match (at_first, at_second) {
                (Some(a), Some(b)) if (a, b) == (part.ino, other) => Stage::Before,
                (Some(a), Some(b)) if (a, b) == (other, part.ino) => Stage::After,
                _ => Stage::Strange,
            },
            Act::Remove if at_second == Some(part.ino) => Stage::Before,
            Act::Remove => Stage::After,
        };
        Ok(Self { part, branch, stage, first, second })
    }

    fn act(&self) -> Result<(), SysError> {
        match self.part.act {
            Act::There => self.rename(&self.first, &self.second),
            Act::Back => self.rename(&self.second, &self.first),
            Act::Swap { .. } => self.swap(),
            Act::Remove => {
                let Some((dir, name)) = &self.second else { return Ok(()) };
                match sys::at::unlink(dir.as_fd(), name) {
                    Err(error) if error.errno == Errno::ISDIR => sys::at::rmdir(dir.as_fd(), name),
                    removed => removed,
                }
            }
        }
    }

    fn undo(&self) -> Result<(), SysError> {
        match self.part.act {
            Act::There => self.rename(&self.second, &self.first),
            Act::Back => self.rename(&self.first, &self.second),
            Act::Swap { .. } => self.swap(),
            Act::Remove => Ok(()),
        }
    }

    /// A file that was removed does not come back.
    fn cannot_go_back(&self) -> bool {
        self.part.act == Act::Remove && self.stage == Stage::After
    }

    fn rename(
        &self,
        from: &Option<(OwnedFd, CString)>,
        to: &Option<(OwnedFd, CString)>,
    ) -> Result<(), SysError> {
        let (Some((from_dir, from)), Some((to_dir, to))) = (from, to) else {
            return Err(SysError { call: sys::Call::Rename, errno: Errno::NOENT });
        };
        if self.stage == Stage::Midway {
            return sys::at::unlink(from_dir.as_fd(), from); // the second name is there already
        }
        // A directory may replace an empty one; a file nothing that came meanwhile.
        let is_dir = sys::at::stat(from_dir.as_fd(), from)?.is_dir();
        let how = if is_dir { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        sys::at::rename(from_dir.as_fd(), from, to_dir.as_fd(), to, how)
    }

    fn swap(&self) -> Result<(), SysError> {
        let (Some((a_dir, a)), Some((b_dir, b))) = (&self.first, &self.second) else { return Ok(()) };
        sys::at::rename(a_dir.as_fd(), a, b_dir.as_fd(), b, RenameFlags::EXCHANGE)
    }

    fn sync(&self) -> Result<(), SysError> {
        for (dir, _) in [&self.first, &self.second].into_iter().flatten() {
            sync_dir(dir.as_fd()).inspect_err(|_| self.branch.distrust_space())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let part = |branch, ino, act| Part { branch: BranchId::new(branch).unwrap(), ino, act };
        let parts = vec![
            part(1, 77, Act::There),
            part(2, 78, Act::Swap { other: 79 }),
            part(3, 80, Act::Remove),
            part(4, 81, Act::Back),
        ];
        Names { first: b"a/dir".to_vec(), second: b"b".to_vec(), parts, settled: false }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        assert_eq!(Names::decode(&names().encode()), Some(names()));
    }

    #[test]
    fn a_record_that_is_cut_or_torn_anywhere_is_none() {
        let whole = names().encode();
        for at in 0..whole.len() {
            assert_eq!(Names::decode(&whole[..at]), None, "cut at {at}");
            let mut torn = whole.clone();
            torn[at..].fill(0);
            assert!(torn == whole || Names::decode(&torn).is_none(), "zeros from {at}");
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert_eq!(Names::decode(&flipped), None, "another byte at {at}");
        }
    }

    #[test]
    fn what_was_settled_backwards_is_the_reverse() {
        let reversed: Vec<_> = names().parts.into_iter().filter_map(Part::reversed).collect();
        assert_eq!(reversed.len(), 3);
        assert_eq!((reversed[1].ino, reversed[1].act), (79, Act::Swap { other: 78 }));
    }
}
