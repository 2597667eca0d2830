//! Where the files of a branch that is emptied fit: pure, without I/O.

use fsstack_pool::{BranchIx, BranchSet};

/// A branch that may take files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The branch.
    pub branch: BranchIx,
    /// Device number of its file system, which others may be on.
    pub dev: u64,
    /// Bytes above its floor.
    pub bytes: u64,
    /// Free inodes above those that it keeps.
    pub inodes: u64,
}

/// Share of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The branch.
    pub branch: BranchIx,
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    dev: u64,
    left: u64,
    left_inodes: u64,
}

impl Share {
    /// The share of a branch that takes one file.
    pub(in crate::jobs) fn of(branch: BranchIx, bytes: u64) -> Self {
        Self { branch, files: 1, bytes, dev: 0, left: 0, left_inodes: 0 }
    }

    pub(in crate::jobs) fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// A plan in the making: files are put one by one on the branch with most room left, each whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    shares: Vec<Share>,
    /// Device number of the file system that the files leave, where there is one: it has as much room after a move on it as before.
    source: Option<u64>,
    lacking: u64,
    homeless: u64,
}

impl Plan {
    /// Nothing is placed yet.
    pub fn new(rooms: impl IntoIterator<Item = Room>) -> Self {
        let share = |Room { branch, dev, bytes, inodes }: Room| Share {
            branch,
            files: 0,
            bytes: 0,
            dev,
            left: bytes,
            left_inodes: inodes,
        };
        Self { shares: rooms.into_iter().map(share).collect(), source: None, lacking: 0, homeless: 0 }
    }

    /// Like this one, for files that leave the file system with that device number.
    pub fn from_device(self, source: u64) -> Self {
        Self { source: Some(source), ..self }
    }

    /// So many files and bytes are to come to the file system with that device number besides.
    pub fn take(&mut self, dev: u64, files: u64, bytes: u64) {
        for share in self.shares.iter_mut().filter(|share| share.dev == dev) {
            share.left = share.left.saturating_sub(bytes);
            share.left_inodes = share.left_inodes.saturating_sub(files);
        }
    }

    /// The branch that takes a file of `bytes`: one of the first of these sets that has room for it. None: none has.
    pub fn place(&mut self, bytes: u64, sets: &[BranchSet]) -> Option<BranchIx> {
        for set in sets {
            // The first of several with the same room.
            let has_inode = |share: &&mut Share| set.contains(share.branch) && share.left_inodes > 0;
            let shares = self.shares.iter_mut().rev().filter(has_inode);
            if let Some(share) = shares.max_by_key(|share| share.left).filter(|share| share.left >= bytes) {
                share.add(bytes);
                let (branch, dev) = (share.branch, share.dev);
                if self.source != Some(dev) {
                    self.take(dev, 1, bytes);
                }
                return Some(branch);
            }
        }
        self.lacking = self.lacking.saturating_add(bytes);
        self.homeless += 1;
        None
    }

    /// Bytes of files that fit nowhere.
    pub fn lacking(&self) -> u64 {
        self.lacking
    }

    /// Files that fit nowhere, empty ones too.
    pub fn homeless(&self) -> u64 {
        self.homeless
    }

    /// Share of each branch.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: &[BranchSet] = &[BranchSet::ALL];

    fn rooms(bytes: &[u64]) -> Vec<Room> {
        let room = |(at, bytes): (usize, &u64)| Room {
            branch: BranchIx(u16::try_from(at).unwrap()),
            dev: at as u64,
            bytes: *bytes,
            inodes: u64::MAX,
        };
        bytes.iter().enumerate().map(room).collect()
    }

    #[test]
    fn files_go_where_most_room_is_left() {
        let mut plan = Plan::new(rooms(&[10, 30, 10]));
        let order: Vec<_> = (0..4).map(|_| plan.place(10, ALL).map(|at| at.0)).collect();
        assert_eq!(order, [Some(1), Some(1), Some(0), Some(1)]);
        assert_eq!((plan.place(11, ALL), plan.lacking()), (None, 11));
    }

    #[test]
    fn the_first_set_with_room_takes_a_file() {
        let mut plan = Plan::new(rooms(&[10, 30, 20]));
        let only = |at| BranchSet::from_iter([BranchIx(at)]);
        assert_eq!(plan.place(10, &[only(0), BranchSet::ALL]), Some(BranchIx(0)));
        assert_eq!(plan.place(10, &[only(0), BranchSet::ALL]), Some(BranchIx(1)));
        assert_eq!((plan.place(10, &[only(0)]), plan.lacking()), (None, 10));
    }

    #[test]
    fn a_branch_takes_no_more_files_than_it_has_inodes() {
        let room =
            |branch, bytes, inodes| Room { branch: BranchIx(branch), dev: branch.into(), bytes, inodes };
        let mut plan = Plan::new([room(0, 1000, 2), room(1, 10, 1)]);
        let to: Vec<_> = (0..4).map(|_| plan.place(0, ALL).map(|at| at.0)).collect();
        assert_eq!(to, [Some(0), Some(0), Some(1), None]);
        assert_eq!((plan.lacking(), plan.homeless()), (0, 1));
    }

    fn on_one_disk() -> [Room; 2] {
        let room = |branch, bytes| Room { branch: BranchIx(branch), dev: 9, bytes, inodes: 3 };
        [room(0, 20), room(1, 15)]
    }

    #[test]
    fn branches_on_one_file_system_share_their_room() {
        let mut plan = Plan::new(on_one_disk());
        let to: Vec<_> = (0..3).map(|_| plan.place(10, ALL).map(|at| at.0)).collect();
        assert_eq!((to, plan.lacking()), (vec![Some(0), Some(0), None], 10));
        let mut beside_others = Plan::new(on_one_disk());
        beside_others.take(9, 1, 11);
        beside_others.take(8, 1, 11);
        assert_eq!((beside_others.place(10, ALL), beside_others.place(9, ALL)), (None, Some(BranchIx(0))));
    }

    #[test]
    fn files_that_stay_on_their_file_system_take_no_room_there() {
        let mut plan = Plan::new(on_one_disk()).from_device(9);
        assert!((0..30).all(|_| plan.place(20, ALL) == Some(BranchIx(0))));
        assert_eq!(plan.place(21, ALL), None);
    }

    proptest! {
        #[test]
        fn no_branch_takes_more_than_its_room_and_every_byte_is_accounted_for(
            has in prop::collection::vec(0_u64..1000, 0..5),
            files in prop::collection::vec(0_u64..400, 0..60),
        ) {
            let mut plan = Plan::new(rooms(&has));
            let placed = files.iter().filter(|bytes| plan.place(**bytes, ALL).is_some()).count();
            prop_assert!(plan.shares().iter().zip(&has).all(|(share, has)| share.bytes <= *has));
            prop_assert_eq!(plan.shares().iter().map(|share| share.files).sum::<u64>(), placed as u64);
            let taken: u64 = plan.shares().iter().map(|share| share.bytes).sum();
            prop_assert_eq!(taken + plan.lacking(), files.iter().sum::<u64>());
        }

        #[test]
        fn what_fits_nowhere_is_larger_than_any_room_that_is_left(
            has in prop::collection::vec(0_u64..1000, 1..5),
            files in prop::collection::vec(1_u64..400, 0..60),
        ) {
            let mut plan = Plan::new(rooms(&has));
            for bytes in files {
                let most = plan.shares().iter().map(|share| share.left).max().unwrap_or(0);
                prop_assert_eq!(plan.place(bytes, ALL).is_none(), bytes > most);
            }
        }
    }
}
