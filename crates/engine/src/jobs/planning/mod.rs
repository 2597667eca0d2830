//! Plans of jobs: which files are to move, and to which branches.
//!
//! Pure: branches with their space, rules and files as they were met go in, and a plan comes out. The jobs walk, ask and move.

pub mod balance;
pub mod gather;
pub mod level;
pub mod list;
pub mod misplaced;
pub mod room;
pub mod tier;

/// Files, and their bytes on the branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Amount {
    /// Objects that are no directories.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Amount {
    pub(super) fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}
