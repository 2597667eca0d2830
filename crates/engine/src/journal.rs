//! Changes of names on several branches that are under way: a record says what is to be done on each, so that
//! the next mount finishes what was interrupted, or takes it back.
//!
//! The record is a file in the hidden folder of one branch. It is on disk before the first name changes, and it
//! goes after the last has changed and is on disk too. So a record that a crash cut short was never acted on: its
//! last word is a checksum, and one that does not fit is cleared. A whole one is compared with the branches by
//! inode number and what else tells an object from a later one that has got its number ([`Object`]). If no name has changed, nothing was promised, and it is dropped. If one has, the others are
//! changed now; where a branch refuses, those that have are taken back.
//!
//! A branch of the record may be missing from the pool at the next mount. What was settled for the others is then
//! settled for it too: the record is written anew, for that branch alone, and stays until it is back.
//!
//! Why on the branches and not under the pool's state directory: docs/decisions/.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_pool::{BranchId, BranchIx, Ino};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{self as sys, Errno, Stat, SysError, Time};

use crate::branch::Branch;
use crate::inode::Inode;
use crate::inode::number::{hash_name, mix};
use crate::pool::Pool;
use crate::recover::{self, Durable, Written, checksum, sync_dir, walk};

/// What the records' names end with.
pub(crate) const SUFFIX: &CStr = c".names";
const MAGIC: &[u8; 4] = b"fsn2";
const SUM: usize = 8;
const PART: usize = 1 + 2 + 2 * OBJECT;
const OBJECT: usize = 3 * 8;

/// What happens to an object on one branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// It gets the record's second name instead of the first.
    There,
    /// It gets the first name instead of the second.
    Back,
    /// It has the first name and `other` the second: they change places.
    Swap { other: Object },
    /// It has the second name, and goes: a file, or a directory without entries.
    Remove,
}

/// One branch's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) branch: BranchId,
    pub(crate) object: Object,
    pub(crate) act: Act,
}

/// What an object of a branch is known by: a branch may be away for long, and used without the pool meanwhile, and a
/// number that has become free is soon another object's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    /// The branch's inode number.
    ino: u64,
    /// Made from its birth time; 0 if the branch keeps none.
    born: u64,
    /// Made from the size and time of a file that is to go; else 0.
    written: u64,
}

impl Object {
    /// What gets another name.
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { ino: stat.ino, born: born(stat), written: 0 }
    }

    /// What goes, as it is now. (A directory goes only if nothing is in it.)
    pub(crate) fn to_go(stat: &Stat) -> Self {
        let written = if stat.is_dir() { 0 } else { mark(b"written", stat.size, stat.mtime) };
        Self { written, ..Self::of(stat) }
    }

    fn is(self, stat: &Stat) -> bool {
        let born = born(stat);
        self.ino == stat.ino && (self.born == 0 || born == 0 || self.born == born)
    }

    /// It is to go, and somebody has written to it since, or to another of its number.
    fn is_changed(self, stat: &Stat) -> bool {
        self.written != 0 && self.written != Self::to_go(stat).written
    }

    fn put(self, record: &mut Vec<u8>) {
        for word in [self.ino, self.born, self.written] {
            record.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn take(bytes: &[u8; OBJECT]) -> Self {
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        Self { ino: word(0), born: word(8), written: word(16) }
    }
}

/// Never 0 but where there is no birth time.
fn born(stat: &Stat) -> u64 {
    stat.btime.map_or(0, |time| mark(b"born", 0, time))
}

fn mark(what: &[u8], size: u64, time: Time) -> u64 {
    let of = [what, &size.to_le_bytes(), &time.sec.to_le_bytes(), &time.nsec.to_le_bytes()].concat();
    mix(hash_name(Ino(0), &of)) | 1
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
    /// What was to go was written to since: it stays, and nothing may come in its place.
    Stays,
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
                Act::There => (0, Object::default()),
                Act::Back => (1, Object::default()),
                Act::Swap { other } => (2, other),
                Act::Remove => (3, Object::default()),
            };
            record.push(kind);
            record.extend_from_slice(&part.branch.get().to_le_bytes());
            part.object.put(&mut record);
            other.put(&mut record);
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
        for part in rest.chunks(PART) {
            let (kind, part) = part.split_first()?;
            let (branch, part) = part.split_first_chunk::<2>()?;
            let (object, other) = part.split_first_chunk::<OBJECT>()?;
            let act = match kind {
                0 => Act::There,
                1 => Act::Back,
                2 => Act::Swap { other: Object::take(other.try_into().ok()?) },
                3 => Act::Remove,
                _ => return None,
            };
            let branch = BranchId::new(u16::from_le_bytes(*branch))?;
            parts.push(Part { branch, object: Object::take(object), act });
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
    if let Some(stays) = places.iter().find(|place| place.stage == Stage::Stays) {
        let branch = stays.branch.path.display();
        tracing::warn!(%branch, "what an interrupted change of names was to replace was written to since: it stays");
        take_back(places)?;
        return Ok(false);
    }
    // What must go first, or it would hide or forbid what comes in its place.
    places.sort_by_key(|place| place.part.act != Act::Remove);
    for at in 0..places.len() {
        let place = &mut places[at];
        let done = match place.stage {
            Stage::Before | Stage::Midway => place.act(),
            Stage::After | Stage::Strange | Stage::Stays => continue,
        };
        match done {
            Ok(()) => place.stage = Stage::After,
            Err(error) if places.iter().any(Place::cannot_go_back) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "an interrupted change of names cannot be finished: it is taken back");
                take_back(places)?;
                return Ok(false);
            }
        }
    }
    places.iter().try_for_each(Place::sync).map(|()| true)
}

fn take_back(places: &[Place<'_>]) -> Result<(), SysError> {
    for done in places.iter().filter(|place| matches!(place.stage, Stage::Midway | Stage::After)) {
        done.undo()?;
        done.sync()?;
    }
    Ok(())
}

impl Part {
    fn reversed(self) -> Option<Self> {
        let act = match self.act {
            Act::There => Act::Back,
            Act::Back => Act::There,
            Act::Swap { other } => {
                return Some(Self { object: other, act: Act::Swap { other: self.object }, ..self });
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
                Ok(stat) => Ok(Some(stat)),
                Err(error) if error.errno == Errno::NOENT => Ok(None),
                Err(error) => Err(error),
            },
        };
        let (at_first, at_second) = (has(&first)?, has(&second)?);
        let has = |stat: Option<Stat>, object: Object| stat.is_some_and(|stat| object.is(&stat));
        let moves = |old, new| match (has(old, part.object), has(new, part.object)) {
            (true, true) => Stage::Midway,
            (true, false) => Stage::Before,
            (false, true) => Stage::After,
            (false, false) => Stage::Strange,
        };
        let stage = match part.act {
            Act::There => moves(at_first, at_second),
            Act::Back => moves(at_second, at_first),
            Act::Swap { other } if has(at_first, part.object) && has(at_second, other) => Stage::Before,
            Act::Swap { other } if has(at_first, other) && has(at_second, part.object) => Stage::After,
            Act::Swap { .. } => Stage::Strange,
            Act::Remove => match at_second.filter(|stat| part.object.is(stat)) {
                Some(stat) if part.object.is_changed(&stat) => Stage::Stays,
                Some(_) => Stage::Before,
                None => Stage::After,
            },
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
    use std::path::Path;

    use super::*;

    fn names() -> Names {
        let object = |ino| Object { ino, born: ino * 1_000_003, written: ino + 1 };
        let part =
            |branch, ino, act| Part { branch: BranchId::new(branch).unwrap(), object: object(ino), act };
        let parts = vec![
            part(1, 77, Act::There),
            part(2, 78, Act::Swap { other: object(79) }),
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
    fn a_number_that_was_used_again_is_another_object() {
        let time = |sec| Time { sec, nsec: 7 };
        let stat = |btime, size, mtime| {
            let here = sys::at::stat(sys::at::open_root(Path::new("/")).unwrap().as_fd(), c"proc").unwrap();
            Stat { ino: 5, btime, size, mtime, mode: 0o100_644, ..here }
        };
        let first = stat(Some(time(1)), 3, time(2));
        assert!(Object::of(&first).is(&stat(Some(time(1)), 4, time(3))), "written to, and named otherwise");
        assert!(!Object::of(&first).is(&stat(Some(time(2)), 3, time(2))), "born later");
        assert!(Object::of(&stat(None, 3, time(2))).is(&first), "it cannot be told");
        let (same, written) = (first, stat(Some(time(1)), 3, time(3)));
        assert!(!Object::to_go(&first).is_changed(&same) && Object::to_go(&first).is_changed(&written));
        assert!(!Object::of(&first).is_changed(&written), "it is not to go");
    }

    #[test]
    fn what_was_settled_backwards_is_the_reverse() {
        let reversed: Vec<_> = names().parts.into_iter().filter_map(Part::reversed).collect();
        assert_eq!(reversed.len(), 3);
        let Act::Swap { other } = reversed[1].act else { panic!("{:?}", reversed[1]) };
        assert_eq!((reversed[1].object.ino, other.ino), (79, 78));
    }
}
