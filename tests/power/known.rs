//! Scenarios that are known to go wrong, each with its finding. One that does not any more fails until it is struck out here.

/// The rights of a directory on one branch are not synced by the fsync of what is made in it on another.
const RIGHTS: &str = "P1: chmod of a directory, then fsync below it on another branch";
/// A rename on one branch is not on disk, and what was made under the old name on an earlier branch is.
const HIDDEN: &str = "P1: a new file hides the renamed one, which has no other name on disk yet";

pub(crate) const KNOWN: &[(&str, &str)] = &[
    ("chmod; create and fsync (ext4, ext4, old on 0)", RIGHTS),
    ("chmod; mkdir, create and fsync (ext4, ext4, old on 0)", RIGHTS),
    ("chmod; create and fsync (xfs, ext4, old on 0, exported)", RIGHTS),
    ("chmod; mkdir, create and fsync (xfs, ext4, old on 0, exported)", RIGHTS),
    ("rename; create and fsync (ext4, ext4, old on 1, exported)", HIDDEN),
    ("rename; mkdir (ext4, ext4, old on 1, exported)", HIDDEN),
    ("rename; mkdir, create and fsync (ext4, ext4, old on 1, exported)", HIDDEN),
    ("a log is begun anew (ext4, ext4, ext4, exported)", HIDDEN),
];
