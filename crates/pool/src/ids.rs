//! Newtypes for numbers that could be confused.

use std::fmt;

/// Slot of a branch while it is in its pool. It is not the branch's position in the pool's order, and does not change
/// when other branches come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct BranchIx(pub u16);

impl BranchIx {
    /// The branch at `index` of a list, unless the index is too large.
    pub fn at(index: usize) -> Option<Self> {
        u16::try_from(index).ok().map(Self)
    }

    /// Index into a list of branches.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A branch's durable number, stored with the branch: it survives remounts and reorderings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BranchId(u16);

impl BranchId {
    /// Least number of a branch: 0 is left for objects that belong to no branch.
    pub const MIN: Self = Self(1);
    /// Greatest number of a branch: 15 bits.
    pub const MAX: Self = Self(0x7fff);

    /// Returns `number` as a branch's, if it is in range.
    pub const fn new(number: u16) -> Option<Self> {
        if Self::MIN.0 <= number && number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// The number as stored.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// An inode of the union: the kernel's nodeid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root of the tree; FUSE fixes its number.
    pub const ROOT: Self = Self(1);
    /// The control file. No object of a branch has this number: the least branch id is 1, and stands in the upper bits.
    pub const CONTROL_FILE: Self = Self(2);
}

/// An open file or directory: the kernel's fh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

impl fmt::Display for BranchIx {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for BranchId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_id_is_fifteen_bits_and_not_zero() {
        assert_eq!(BranchId::new(0), None);
        assert_eq!(BranchId::new(0x8000), None);
        assert_eq!(BranchId::new(1), Some(BranchId::MIN));
        assert_eq!(BranchId::new(0x7fff), Some(BranchId::MAX));
    }

    #[test]
    fn an_index_past_sixteen_bits_is_no_branch() {
        assert_eq!(BranchIx::at(65_535).map(BranchIx::index), Some(65_535));
        assert_eq!(BranchIx::at(65_536), None);
    }
}
