//! Content of an intent of a move: both branches, how both copies were, the paths, and which copy is the file.
//!
//! The record of a batch has for each file its number in the batch and the length of its intent, 4 bytes each, then the intent.
//! All files go between the same two branches.

use std::ffi::{CStr, CString};

use fsstack_identity::index::birth;
use fsstack_pool::BranchId;
use fsstack_sys::{Stat, Time};

use crate::recovery::record_kind::{RecordKind, SHOWN_BATCH, SHOWN_GROUP, is_of_several};

/// The decision, the two branches, the two copies.
const HEAD: usize = 1 + 2 * 2 + 2 * COPY;
/// Between the paths of a file with several hard links.
pub(crate) const SEPARATOR: u8 = 0;
const COPY: usize = 8 + 4 + 8 + 2 * (8 + 4);

/// The copy that is the file from now on: a mount without the other's branch has shown it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    Not = 0,
    Old = 1,
    New = 2,
    /// The new one, of a file with several hard links. A mount without the source has shown it, and the intent says how it was then.
    Shown = 3,
}

impl Decided {
    /// Whether the new copy is the file.
    pub(crate) fn is_new(self) -> bool {
        matches!(self, Self::New | Self::Shown)
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
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(HEAD + self.path.len());
        body.push(self.decided as u8);
        body.extend_from_slice(&self.from.to_le_bytes());
        body.extend_from_slice(&self.to.to_le_bytes());
        self.old.put(&mut body);
        self.new.put(&mut body);
        body.extend_from_slice(self.path);
        body
    }

    pub(crate) fn parse(body: &'a [u8]) -> Option<Self> {
        let ([decided], rest) = body.split_first_chunk::<1>()?;
        let (from, rest) = rest.split_first_chunk::<2>()?;
        let (to, rest) = rest.split_first_chunk::<2>()?;
        let (old, rest) = rest.split_first_chunk::<COPY>()?;
        let (new, path) = rest.split_first_chunk::<COPY>()?;
        let all = [Decided::Not, Decided::Old, Decided::New, Decided::Shown];
        let decided = all.into_iter().find(|one| *one as u8 == *decided)?;
        let (from, to) = (u16::from_le_bytes(*from), u16::from_le_bytes(*to));
        Some(Self { decided, from, to, old: Stamp::take(old), new: Stamp::take(new), path })
    }
}

/// Whether the move that `record` is about goes from or to `away`.
pub(crate) fn is_about(record: &[u8], away: BranchId) -> bool {
    Told::parse(record).is_some_and(|reported| [reported.from, reported.to].contains(&away.get()))
}

/// Identity of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The branch's inode number.
    pub(crate) ino: u64,
    /// 0 where the branch tells none.
    pub(crate) born: u32,
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

/// Record of a batch, of the files' numbers and intents.
pub(crate) fn encode_batch<'a>(entries: impl Iterator<Item = (u32, &'a [u8])>) -> Vec<u8> {
    let mut record = Vec::new();
    for (number, intent) in entries {
        record.extend_from_slice(&number.to_le_bytes());
        record.extend_from_slice(&u32::try_from(intent.len()).unwrap_or(u32::MAX).to_le_bytes());
        record.extend_from_slice(intent);
    }
    record
}

/// Numbers and intents of the files in the record of a batch. None: it is none.
pub(crate) fn parse_batch(mut record: &[u8]) -> Option<Vec<(u32, &[u8])>> {
    let mut entries = Vec::new();
    while !record.is_empty() {
        let (number, rest) = record.split_first_chunk::<4>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        let (intent, rest) = rest.split_at_checked(len)?;
        entries.push((u32::from_le_bytes(*number), intent));
        record = rest;
    }
    Some(entries)
}

/// The intent of the file `number` in the record of a batch.
pub(crate) fn intent_in_batch(record: &mut [u8], number: u32) -> Option<&mut [u8]> {
    let entries = parse_batch(record)?;
    let at = entries.iter().position(|(other, _)| *other == number)?;
    let before: usize = entries[..at].iter().map(|(_, intent)| 8 + intent.len()).sum();
    let len = entries[at].1.len();
    record.get_mut(before + 8..before + 8 + len)
}

/// Kind of a record of that kind once it has the body `record`.
pub(crate) fn kind_of<'k>(kind: &'k RecordKind, record: &[u8]) -> &'k RecordKind {
    let is_shown = |intent: &[u8]| intent.first() == Some(&(Decided::Shown as u8));
    if is_of_several(kind) {
        let files = parse_batch(record).unwrap_or_default();
        if files.iter().any(|(_, intent)| is_shown(intent)) { &SHOWN_BATCH } else { kind }
    } else if is_shown(record) {
        &SHOWN_GROUP
    } else {
        kind
    }
}

/// Name for one file of the batch `record`, for what is known of it besides the record.
pub(crate) fn name_in_batch(record: &CStr, number: u32) -> CString {
    let mut name = format!("{number}.").into_bytes();
    name.extend_from_slice(record.to_bytes());
    CString::new(name).unwrap_or_default()
}

/// Like [`is_about`], of the record of a batch.
pub(crate) fn is_batch_about(record: &[u8], away: BranchId) -> bool {
    parse_batch(record).is_some_and(|files| files.iter().any(|(_, intent)| is_about(intent, away)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_several_files_is_read_as_it_was_written_and_a_part_of_it_is_none() {
        let entries: [(u32, &[u8]); 3] = [(0, b"one"), (7, b""), (2, b"the third")];
        let record = encode_batch(entries.into_iter());
        assert_eq!(parse_batch(&record).unwrap(), entries);
        let ends = [0, 11, 19, record.len()];
        for len in 0..record.len() {
            assert_eq!(parse_batch(&record[..len]).is_some(), ends.contains(&len), "cut at {len}");
        }
        let mut changed = record.clone();
        for (number, intent) in entries {
            assert_eq!(intent_in_batch(&mut changed, number).unwrap(), intent);
        }
        assert_eq!(intent_in_batch(&mut changed, 1), None);
        intent_in_batch(&mut changed, 2).unwrap()[0] = b'T';
        assert_eq!(parse_batch(&changed).unwrap()[2], (2, &b"The third"[..]));
    }
}
