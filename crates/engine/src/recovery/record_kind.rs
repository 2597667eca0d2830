//! Kinds of records.

use std::ffi::CStr;

/// Common parts of records of one kind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RecordKind {
    /// How their names end.
    pub(crate) suffix: &'static CStr,
    /// The format of their bodies. A change of the body takes another number. Kinds with one suffix have different ones.
    pub(crate) format: u16,
}

/// Records of moves.
pub(crate) const MOVE: RecordKind = RecordKind { suffix: c".move", format: 4 };
/// Records of moves of files with several hard links, with all their paths. (Until 2026-11 they had the format of [`MOVE`].)
pub(crate) const GROUP: RecordKind = RecordKind { suffix: MOVE.suffix, format: 5 };
/// Records of moves of several files (`batch.rs`).
pub(crate) const BATCH: RecordKind = RecordKind { suffix: MOVE.suffix, format: 6 };
/// Records of moves of several files, some of which have several hard links.
pub(crate) const LINKED_BATCH: RecordKind = RecordKind { suffix: MOVE.suffix, format: 7 };
/// Records like [`GROUP`], of a file that was shown without the source.
pub(crate) const SHOWN_GROUP: RecordKind = RecordKind { suffix: MOVE.suffix, format: 8 };
/// Records like [`LINKED_BATCH`], with such a file.
pub(crate) const SHOWN_BATCH: RecordKind = RecordKind { suffix: MOVE.suffix, format: 9 };
/// Records of changed names (`journal.rs`).
pub(crate) const NAMES: RecordKind = RecordKind { suffix: c".names", format: 3 };

/// All kinds.
pub(crate) const KINDS: [&RecordKind; 7] =
    [&MOVE, &GROUP, &BATCH, &LINKED_BATCH, &SHOWN_GROUP, &SHOWN_BATCH, &NAMES];

/// Whether records of that kind are about several files that move.
pub(crate) fn is_of_several(kind: &RecordKind) -> bool {
    [&BATCH, &LINKED_BATCH, &SHOWN_BATCH].contains(&kind)
}
