//! Scenarios that are known to go wrong, each with its finding. One that does not any more fails until it is struck out here.

/// A move was cut between its new name and the old one's end, and the file was removed while the target was away: a full
/// branch has no room for the record that would say so.
const CUT_MOVE: &str =
    "P2: a move that was cut brings back a file that was removed while its target was away";

pub(crate) const KNOWN: &[(&str, &str)] = &[
    ("move (xfs, ext4, ext4); mount without branch 2, rm every file, umount", CUT_MOVE),
    ("move to an earlier branch (xfs, ext4, ext4); mount without branch 1, rm every file, umount", CUT_MOVE),
];
