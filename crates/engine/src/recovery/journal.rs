//! Records of changes of names on several branches: a record says what is to be done on each, so that the next mount
//! finishes an interrupted change, or undoes it.
//!
//! The record is a file in the hidden folder of one branch. It is on disk before the first name changes. It is removed after
//! the last name has changed and is on disk too (`record.rs`). The next mount compares it with the branches (`settle.rs`), by
//! the identity of the objects ([`Object`]). If no name has changed, the record is dropped: nothing was promised. If one has,
//! the others are changed now. If a branch refuses, the changed ones are undone.
//!
//! A branch of the record may be missing from the pool at the next mount. The outcome for the others then holds for it too:
//! the record is replaced by one for that branch alone, which stays until it is back.
//!
//! Why on the branches and not under the pool's state directory: docs/dev/decisions/.

use std::ffi::CStr;
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_identity::number::{hash_name, mix};
use fsstack_pool::{BranchId, BranchIx, Ino};
use fsstack_sync::Mutex;
use fsstack_sync::time::Instant;
use fsstack_sys::{Stat, Time};

use crate::inode::Inode;
use crate::line_a_minute::LineAMinute;
use crate::pool::Pool;
use crate::recovery::record::{self, Written};
use crate::recovery::record_kind::NAMES;
/// Changes that no branch took a record of, in all pools of the program.
static UNRECORDED: Mutex<LineAMinute> = Mutex::new(LineAMinute::new());
const PART: usize = 1 + 2 + 2 * OBJECT;
const OBJECT: usize = 3 * 8;

/// Change to an object on one branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// It gets the record's second name instead of the first.
    There,
    /// It gets the first name instead of the second.
    StepBack,
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

/// Identity of an object on a branch. The branch may be away for long, and used without the pool meanwhile; a number that has
/// become free is soon another object's.
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
    /// Identity of an object that gets another name.
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { ino: stat.ino, born: born(stat), written: 0 }
    }

    /// Identity of an object to remove, as it is now. (A directory goes only if it is empty.)
    pub(crate) fn to_go(stat: &Stat) -> Self {
        let written = if stat.is_dir() { 0 } else { mark(b"written", stat.size, stat.mtime) };
        Self { written, ..Self::of(stat) }
    }

    pub(crate) fn is(self, stat: &Stat) -> bool {
        let born = born(stat);
        self.ino == stat.ino && (self.born == 0 || born == 0 || self.born == born)
    }

    /// It is not a file to be removed.
    pub(crate) fn is_no_file(self) -> bool {
        self.written == 0
    }

    /// It is to be removed, and was written to since, or is another object of its number.
    pub(crate) fn is_changed(self, stat: &Stat) -> bool {
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

/// A change of names: two paths below the pool's root, and the change on each branch, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NameChange {
    pub(crate) first: Vec<u8>,
    pub(crate) second: Vec<u8>,
    pub(crate) parts: Vec<Part>,
    /// The change is decided: no part of it need have been made already.
    pub(crate) settled: bool,
    /// Besides, its branches were there and did not make it, or may not have: programs may have used either name since.
    pub(crate) tried: bool,
}

impl NameChange {
    /// The path of `name` in `dir`. None: the directory was removed.
    pub(crate) fn path(dir: &Arc<Inode>, name: &CStr) -> Option<Vec<u8>> {
        let mut path = dir.path()?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        Some(path)
    }

    /// Puts it on a branch: one that takes part if it can, any other if not. None: no branch takes it, and the change goes on
    /// without, since a branch that is full to the last block must not forbid it.
    ///
    /// The first branch with a new name is preferred: its journal keeps the record's end in order with later changes of that name.
    pub(crate) fn begin(&self, pool: &Pool) -> Option<(BranchIx, Written)> {
        let part_of = |branch: &Branch| self.parts.iter().find(|part| part.branch == branch.id);
        let mut order: Vec<_> = pool.branches.iter().filter(|branch| branch.is_writable()).collect();
        order.sort_by_key(|branch| part_of(branch).map_or(2, |part| u8::from(part.act == Act::Remove)));
        let mut reasons = Vec::new();
        for branch in order {
            match branch.ask(|| record::write(branch, &NAMES, &self.encode())) {
                Ok(written) => return Some((branch.ix, written)),
                Err(error) => reasons.push(format!("{}: {error}", branch.path.display())),
            }
        }
        let is_due = UNRECORDED.lock().count(Instant::now());
        if let Some(unlogged) = is_due {
            let (reasons, unlogged) = (reasons.join("; "), (unlogged > 0).then_some(unlogged));
            tracing::warn!(%reasons, unlogged, "rename over several branches: no branch can store its record; a crash would leave it half done");
        }
        None
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut record = vec![if self.tried { 2 } else { u8::from(self.settled) }];
        for path in [&self.first, &self.second] {
            record.extend_from_slice(&u32::try_from(path.len()).unwrap_or(0).to_le_bytes());
            record.extend_from_slice(path);
        }
        for part in &self.parts {
            let (kind, other) = match part.act {
                Act::There => (0, Object::default()),
                Act::StepBack => (1, Object::default()),
                Act::Swap { other } => (2, other),
                Act::Remove => (3, Object::default()),
            };
            record.push(kind);
            record.extend_from_slice(&part.branch.get().to_le_bytes());
            part.object.put(&mut record);
            other.put(&mut record);
        }
        record
    }

    /// None: it is cut short.
    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let (settled, mut rest) = record.split_first()?;
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
                1 => Act::StepBack,
                2 => Act::Swap { other: Object::take(other.try_into().ok()?) },
                3 => Act::Remove,
                _ => return None,
            };
            let branch = BranchId::new(u16::from_le_bytes(*branch))?;
            parts.push(Part { branch, object: Object::take(object), act });
        }
        Some(Self { first, second, parts, settled: *settled != 0, tried: *settled == 2 })
    }
}

/// Whether `record` was settled while `away` was absent.
pub(crate) fn is_settled_without(record: &[u8], away: BranchId) -> bool {
    NameChange::decode(record)
        .is_some_and(|names| names.settled && names.parts.iter().any(|part| part.branch == away))
}

/// The rest of `record` if the branch `away` will not come back; its parts may all have gone.
pub(crate) fn without(record: &[u8], away: BranchId) -> Option<NameChange> {
    let mut names = NameChange::decode(record)?;
    names.parts.retain(|part| part.branch != away);
    Some(names)
}

/// Whether `away` takes part in the change of `record`.
pub(crate) fn is_about(record: &[u8], away: BranchId) -> bool {
    NameChange::decode(record).is_some_and(|names| names.parts.iter().any(|part| part.branch == away))
}

impl Part {
    pub(crate) fn reversed(self) -> Option<Self> {
        let act = match self.act {
            Act::There => Act::StepBack,
            Act::StepBack => Act::There,
            Act::Swap { other } => {
                return Some(Self { object: other, act: Act::Swap { other: self.object }, ..self });
            }
            Act::Remove => return None,
        };
        Some(Self { act, ..self })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use fsstack_sys as sys;

    use super::*;

    fn names() -> NameChange {
        let object = |ino| Object { ino, born: ino * 1_000_003, written: ino + 1 };
        let part =
            |branch, ino, act| Part { branch: BranchId::new(branch).unwrap(), object: object(ino), act };
        let parts = vec![
            part(1, 77, Act::There),
            part(2, 78, Act::Swap { other: object(79) }),
            part(3, 80, Act::Remove),
            part(4, 81, Act::StepBack),
        ];
        NameChange { first: b"a/dir".to_vec(), second: b"b".to_vec(), parts, settled: false, tried: false }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for (settled, tried) in [(false, false), (true, false), (true, true)] {
            let names = NameChange { settled, tried, ..names() };
            assert_eq!(NameChange::decode(&names.encode()), Some(names));
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
    fn a_record_settled_backwards_is_the_reverse() {
        let reversed: Vec<_> = names().parts.into_iter().filter_map(Part::reversed).collect();
        assert_eq!(reversed.len(), 3);
        let Act::Swap { other } = reversed[1].act else { panic!("{:?}", reversed[1]) };
        assert_eq!((reversed[1].object.ino, other.ino), (79, 78));
    }
}
