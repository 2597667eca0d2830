//! The files that a tier moves down: pure, without I/O.
//!
//! Files are offered one by one, and those that leave first are kept until they are enough: memory is needed for these alone.
//! Each goes, whole, to the branch with most room among those that it may go to.

use std::collections::BinaryHeap;
use std::time::Duration;

use fsstack_pool::{BranchIx, BranchSet, Ino, Tier, TierOrder};
use fsstack_sys::Time;

use super::room::{Plan, Room};

const NANOS: i128 = 1_000_000_000;

/// Bytes that the branches of a class have, and those that cannot be had any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fullness {
    /// Used bytes.
    pub used: u64,
    /// All bytes.
    pub total: u64,
}

impl Fullness {
    /// Bytes that are to leave now by `tier`.
    pub fn excess(self, tier: &Tier) -> u64 {
        match self.used > tier.start.of(self.total) {
            true => self.used.saturating_sub(tier.stop.of(self.total)),
            false => 0,
        }
    }
}

/// When a file was last used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::jobs) struct LastUse {
    /// Last access, as far as the file system keeps it.
    pub read: Time,
    /// Last change of the content.
    pub written: Time,
}

impl LastUse {
    /// The use that counts in this order.
    fn counts(self, order: TierOrder) -> Time {
        match order {
            TierOrder::Mtime => self.written,
            TierOrder::Atime | TierOrder::Size => self.read.max(self.written),
        }
    }

    /// True if `tier` may take a file down that was last used then.
    pub(in crate::jobs) fn is_old(self, tier: &Tier, now: Time) -> bool {
        tier.min_age.is_zero() || nanos(self.counts(tier.order)) + span(tier.min_age) <= nanos(now)
    }
}

fn nanos(time: Time) -> i128 {
    i128::from(time.sec) * NANOS + i128::from(time.nsec)
}

fn span(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX / 2)
}

/// A file as the plan sees it.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) struct TierFile {
    /// Its number.
    pub ino: Ino,
    /// Its bytes on the branch.
    pub bytes: u64,
    /// Its last use.
    pub used: LastUse,
    /// Branches that may take it.
    pub to: BranchSet,
}

/// A file that may leave; the greatest leaves last.
#[derive(Debug)]
struct Leaver<T> {
    turn: (i128, Ino),
    bytes: u64,
    to: BranchSet,
    what: T,
}

impl<T> PartialEq for Leaver<T> {
    fn eq(&self, other: &Self) -> bool {
        self.turn == other.turn
    }
}

impl<T> Eq for Leaver<T> {}

impl<T> PartialOrd for Leaver<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Leaver<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.turn.cmp(&other.turn)
    }
}

/// A plan in the making.
#[derive(Debug)]
pub(in crate::jobs) struct TierPlan<T> {
    order: TierOrder,
    need: u64,
    rooms: Vec<Room>,
    leavers: BinaryHeap<Leaver<T>>,
    bytes: u64,
}

impl<T> TierPlan<T> {
    /// No file leaves yet; `need` bytes are to leave, for branches with these rooms.
    pub(in crate::jobs) fn new(order: TierOrder, need: u64, rooms: Vec<Room>) -> Self {
        Self { order, need, rooms, leavers: BinaryHeap::new(), bytes: 0 }
    }

    /// A file that may leave. `what` is asked for if it leaves as far as is known.
    pub(in crate::jobs) fn offer(&mut self, file: TierFile, what: impl FnOnce() -> T) {
        let TierFile { ino, bytes, used, to } = file;
        let fits = |room: &Room| to.contains(room.branch) && bytes <= room.bytes;
        if bytes == 0 || self.need == 0 || !self.rooms.iter().any(fits) {
            return;
        }
        let turn = match self.order {
            TierOrder::Size => (-i128::from(bytes), ino),
            order @ (TierOrder::Atime | TierOrder::Mtime) => (nanos(used.counts(order)), ino),
        };
        if self.bytes >= self.need && self.leavers.peek().is_some_and(|last| last.turn <= turn) {
            return;
        }
        self.leavers.push(Leaver { turn, bytes, to, what: what() });
        self.bytes = self.bytes.saturating_add(bytes);
        while let Some(last) = self.leavers.peek() {
            let without = self.bytes - last.bytes;
            if without < self.need {
                break;
            }
            self.bytes = without;
            self.leavers.pop();
        }
    }

    /// The files in the order in which they leave, each with its bytes and the branch that takes it.
    pub(in crate::jobs) fn finish(self) -> Vec<(T, u64, BranchIx)> {
        let mut plan = Plan::new(self.rooms);
        let place = |leaver: Leaver<T>| {
            let to = plan.place(leaver.bytes, &[leaver.to])?;
            Some((leaver.what, leaver.bytes, to))
        };
        self.leavers.into_sorted_vec().into_iter().filter_map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tier(text: &str) -> Tier {
        text.parse().unwrap()
    }

    fn at(sec: i64) -> Time {
        Time { sec, nsec: 0 }
    }

    #[test]
    fn nothing_leaves_below_start_and_then_what_is_above_stop() {
        let tier = tier("fast>slow;start=80%;stop=60%");
        let excess = |used| Fullness { used, total: 1000 }.excess(&tier);
        assert_eq!((excess(600), excess(800), excess(801), excess(1000)), (0, 0, 201, 400));
        assert_eq!(Fullness::default().excess(&tier), 0);
    }

    #[test]
    fn a_file_is_as_old_as_its_last_use_in_the_order() {
        let read_lately = LastUse { read: at(900), written: at(0) };
        let is_old = |text: &str| read_lately.is_old(&tier(text), at(1000));
        assert!(is_old("a>b;min-age=100s") && !is_old("a>b;min-age=101s"));
        assert!(!is_old("a>b;min-age=101s;order=size") && is_old("a>b;min-age=101s;order=mtime"));
        // A file whose last use lies in the future is not old.
        let later = LastUse { read: at(0), written: at(2000) };
        assert!(!later.is_old(&tier("a>b;min-age=1s"), at(1000)) && later.is_old(&tier("a>b"), at(1000)));
    }

    fn planned(
        order: TierOrder,
        need: u64,
        rooms: &[u64],
        files: &[TierFile],
    ) -> Vec<(usize, u64, BranchIx)> {
        let room = |(at, bytes): (usize, &u64)| Room {
            branch: BranchIx::at(at).unwrap(),
            dev: at as u64,
            bytes: *bytes,
            inodes: u64::MAX,
        };
        let mut plan = TierPlan::new(order, need, rooms.iter().enumerate().map(room).collect());
        for (at, file) in files.iter().enumerate() {
            plan.offer(*file, || at);
        }
        plan.finish()
    }

    fn file(ino: u64, bytes: u64, read: i64, written: i64) -> TierFile {
        let used = LastUse { read: at(read), written: at(written) };
        TierFile { ino: Ino(ino), bytes, used, to: BranchSet::ALL }
    }

    #[test]
    fn the_coldest_the_oldest_or_the_largest_leave_first() {
        let files = [file(2, 10, 500, 1), file(3, 30, 100, 2), file(4, 20, 200, 3)];
        let order = |order, need| -> Vec<usize> {
            planned(order, need, &[1000], &files).into_iter().map(|(at, ..)| at).collect()
        };
        assert_eq!(order(TierOrder::Atime, 31), [1, 2]);
        assert_eq!(order(TierOrder::Mtime, 31), [0, 1]);
        assert_eq!(order(TierOrder::Size, 30), [1]);
        assert_eq!(order(TierOrder::Size, 31), [1, 2]);
        assert_eq!(order(TierOrder::Size, 0), [0; 0]);
    }

    #[test]
    fn a_file_goes_only_where_it_may() {
        let only = |file: TierFile, at| TierFile { to: BranchSet::from_iter([BranchIx(at)]), ..file };
        let files = [only(file(2, 10, 1, 1), 1), file(3, 10, 2, 2), only(file(4, 10, 3, 3), 7)];
        let found = planned(TierOrder::Atime, 100, &[50, 15], &files);
        assert_eq!(found, [(0, 10, BranchIx(1)), (1, 10, BranchIx(0))]);
    }

    proptest! {
        #[test]
        fn no_floor_is_passed_and_no_more_leaves_than_is_needed_and_one_file(
            rows in prop::collection::vec((0_u64..500, 0_i64..50, 0_i64..50, 0_u64..8), 0..60),
            rooms in prop::collection::vec(0_u64..2000, 0..4),
            need in 0_u64..4000,
            order in 0_usize..3,
        ) {
            let order = [TierOrder::Atime, TierOrder::Mtime, TierOrder::Size][order];
            let files: Vec<TierFile> = rows.iter().enumerate().map(|(ino, (bytes, read, written, to))| {
                let to = (0..3).filter(|bit| to & (1 << bit) != 0).map(BranchIx).collect();
                TierFile { to, ..file(ino as u64 + 2, *bytes, *read, *written) }
            }).collect();
            let found = planned(order, need, &rooms, &files);
            let all: u64 = found.iter().map(|(_, bytes, _)| bytes).sum();
            let largest = found.iter().map(|(_, bytes, _)| *bytes).max().unwrap_or(0);
            prop_assert!(all < need + largest || all == 0);
            // Without the one that leaves last it is not enough.
            if let Some((_, last, _)) = found.last() {
                prop_assert!(all - last < need);
            }
            for (at, room) in rooms.iter().enumerate() {
                let to = BranchIx::at(at).unwrap();
                prop_assert!(found.iter().filter(|(.., taken)| *taken == to).map(|(_, bytes, _)| bytes).sum::<u64>() <= *room);
            }
            for (at, bytes, to) in &found {
                prop_assert!(files[*at].to.contains(*to) && files[*at].bytes == *bytes && *bytes > 0);
            }
        }

        #[test]
        fn who_leaves_does_not_depend_on_who_is_met_first_and_they_are_enough_where_there_is_room(
            rows in prop::collection::vec((1_u64..500, 0_i64..50), 0..60), need in 0_u64..4000, turned in 0_usize..60,
        ) {
            let files: Vec<TierFile> =
                rows.iter().enumerate().map(|(ino, (bytes, read))| file(ino as u64 + 2, *bytes, *read, 0)).collect();
            let mut others = files.clone();
            others.rotate_left(turned.min(files.len()));
            let chosen = |files: &[TierFile]| -> Vec<Ino> {
                planned(TierOrder::Atime, need, &[1 << 20], files).iter().map(|(at, ..)| files[*at].ino).collect()
            };
            let found = chosen(&files);
            prop_assert_eq!(&found, &chosen(&others));
            let left = files.iter().filter(|file| !found.contains(&file.ino));
            let last = found.last().map(|ino| files.iter().find(|file| file.ino == *ino).unwrap());
            prop_assert!(left.clone().all(|file| last.is_none_or(|last| (last.used.read, last.ino) < (file.used.read, file.ino))));
            let bytes = |inos: &[Ino]| files.iter().filter(|file| inos.contains(&file.ino)).map(|file| file.bytes).sum::<u64>();
            prop_assert!(bytes(&found) >= need || found.len() == files.len());
        }
    }
}
