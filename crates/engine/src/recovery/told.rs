//! Content of an intent of a move: both branches, how both copies were, the paths, and which copy is the file.

use fsstack_identity::index::birth;
use fsstack_pool::BranchId;
use fsstack_sys::{Stat, Time};

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
