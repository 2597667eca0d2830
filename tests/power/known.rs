//! Scenarios that are known to go wrong, each with its finding. One that does not any more fails until it is struck out here.

/// A move was cut between its new name and the old one's end, and names changed while one of the two was away.
const CUT_MOVE: &str =
    "P2: a move that was cut leaves two files with one identity, or brings back what was removed";

pub(crate) const KNOWN: &[(&str, &str)] = &[
    ("move (xfs, ext4, ext4); mount without branch 0, mv f f.new for every file, umount", CUT_MOVE),
    ("move (xfs, ext4, ext4); mount without branch 0, rm every file, umount", CUT_MOVE),
    ("move (xfs, ext4, ext4); mount without branch 2, mv f f.new for every file, umount", CUT_MOVE),
    ("move (xfs, ext4, ext4); mount without branch 2, rm every file, umount", CUT_MOVE),
    (
        "move to an earlier branch (xfs, ext4, ext4); mount without branch 1, mv f f.new for every file, umount",
        CUT_MOVE,
    ),
    ("move to an earlier branch (xfs, ext4, ext4); mount without branch 1, rm every file, umount", CUT_MOVE),
    (
        "move to an earlier branch (xfs, ext4, ext4); mount without branch 2, mv f f.new for every file, umount",
        CUT_MOVE,
    ),
    ("move to an earlier branch (xfs, ext4, ext4); mount without branch 2, rm every file, umount", CUT_MOVE),
];
