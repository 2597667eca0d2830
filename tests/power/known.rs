//! Scenarios that are known to fail, each with its finding. One that no longer fails is an error until it is removed
//! here.

/// A move was interrupted after the new name and before the removal of the old one, and the file was removed while the
/// target was missing: a full branch has no room for a record of that.
const CUT_MOVE: &str =
    "P2: a move that was cut brings back a file that was removed while its target was away";

pub(crate) const KNOWN: &[(&str, &str)] = &[
    ("move (xfs, ext4, ext4); mount without branch 2, rm every file, umount", CUT_MOVE),
    ("move to an earlier branch (xfs, ext4, ext4); mount without branch 1, rm every file, umount", CUT_MOVE),
];
