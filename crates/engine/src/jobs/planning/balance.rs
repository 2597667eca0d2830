//! The files that a balance moves: each leaves a branch that is to give for one that is to take, within what both are to, and goes only
//! where its placement rules name a branch, with the floor that these ask for.

use std::collections::{HashMap, HashSet};

use fsstack_pool::{BranchIx, BranchSet, Floor, Ino, Space};

use super::Amount;
use super::level::{Quota, Quotas};
use super::list::{ListedFile, MovingList};

/// Where a file belongs by its placement rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belonging {
    /// Branches on which it does not lie against them.
    pub home: BranchSet,
    /// Floor of the rule that ranks.
    pub floor: Option<Floor>,
}

/// A plan in the making.
#[derive(Debug)]
pub struct Balance {
    quotas: Quotas,
    spaces: Vec<(BranchIx, Space)>,
    list: MovingList,
    /// Bytes that branches are to take.
    planned: HashMap<BranchIx, u64>,
    /// Files that are planned, or that stay where they are for now.
    taken: HashSet<Ino>,
}

impl Balance {
    /// Nothing is planned yet, for branches that have this space now; files of `settled` stay. What others write meanwhile does not
    /// count: a move heeds the floor of its target itself.
    pub fn new(quotas: Quotas, spaces: Vec<(BranchIx, Space)>, settled: HashSet<Ino>) -> Self {
        Self { quotas, spaces, list: MovingList::default(), planned: HashMap::new(), taken: settled }
    }

    /// Branches that give, with the bytes that are still to leave them.
    pub fn givers(&self) -> &[Quota] {
        self.quotas.givers()
    }

    /// Bytes that are still to leave branches.
    pub fn left(&self) -> u64 {
        self.quotas.total()
    }

    /// Whether the file is planned, or stays for now.
    pub fn is_taken(&self, ino: Ino) -> bool {
        self.taken.contains(&ino)
    }

    /// Plans each of the files on the branch `from` for which there is a branch.
    pub fn offer(&mut self, from: BranchIx, files: Vec<(ListedFile, Belonging)>) {
        for (file, belonging) in files {
            if let Some(to) = self.target(from, belonging, file.bytes) {
                self.plan(from, to, file);
            }
        }
    }

    /// Plans the files of a directory on the branch `from`, all to one branch, or none.
    pub fn offer_together(&mut self, from: BranchIx, files: Vec<(ListedFile, Belonging)>) {
        let bytes: u64 = files.iter().map(|(file, _)| file.bytes).sum();
        let each = files.iter().map(|(_, belonging)| *belonging);
        // Only one with further names in other directories may belong elsewhere than the rest.
        let all = each
            .reduce(|all, one| Belonging { home: all.home.and(one.home), floor: all.floor.or(one.floor) });
        if bytes > 0
            && let Some(to) = all.and_then(|all| self.target(from, all, bytes))
        {
            files.into_iter().for_each(|(file, _)| self.plan(from, to, file));
        }
    }

    /// Files and bytes that are planned.
    pub fn amount(&self) -> Amount {
        self.list.amount()
    }

    /// The plan.
    pub fn finish(self) -> MovingList {
        self.list
    }

    /// The branch that takes `bytes` together, of what belongs there.
    fn target(&mut self, from: BranchIx, belonging: Belonging, bytes: u64) -> Option<BranchIx> {
        let allowed = self.allowed(belonging, bytes);
        self.quotas.choose(from, bytes, allowed)
    }

    fn allowed(&self, Belonging { home, floor }: Belonging, bytes: u64) -> BranchSet {
        let Some(floor) = floor else { return home };
        let has_room = |(at, space): &&(BranchIx, Space)| {
            let planned = self.planned.get(at).copied().unwrap_or(0);
            let need = floor.bytes_of(space.total).saturating_add(bytes).saturating_add(planned);
            home.contains(*at) && need <= space.available
        };
        self.spaces.iter().filter(has_room).map(|(at, _)| *at).collect()
    }

    fn plan(&mut self, from: BranchIx, to: BranchIx, file: ListedFile) {
        self.taken.insert(file.ino);
        *self.planned.entry(to).or_default() += file.bytes;
        self.list.plan(file, from, to);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::level::{By, Load};
    use super::super::list::tests::listed;
    use super::*;

    const TOTAL: u64 = 1000;

    fn balance(available: &[u64]) -> Balance {
        let load = |(branch, available): (BranchIx, u64)| Load {
            branch,
            total: TOTAL,
            available,
            floor: 0,
            gives: true,
            takes: true,
        };
        let branches = available.iter().enumerate().map(|(at, free)| (BranchIx::at(at).unwrap(), *free));
        let loads: Vec<Load> = branches.clone().map(load).collect();
        let space = |(at, available)| (at, Space { total: TOTAL, available, ..Space::default() });
        Balance::new(Quotas::new(&loads, By::Percent, 0), branches.map(space).collect(), HashSet::new())
    }

    fn anywhere() -> Belonging {
        Belonging { home: BranchSet::ALL, floor: None }
    }

    #[test]
    fn a_directory_goes_whole_or_stays() {
        let mut balance = balance(&[0, 1000]);
        let files = |first: u64| (0..3).map(|n| (listed(first + n, 200), anywhere())).collect::<Vec<_>>();
        balance.offer_together(BranchIx(0), files(2));
        assert_eq!(balance.amount(), Amount::default(), "600 are more than the 500 that are to move");
        balance.offer_together(BranchIx(0), files(5)[..2].to_vec());
        assert_eq!(balance.amount(), Amount { files: 2, bytes: 400 });
        assert!(balance.is_taken(Ino(5)) && !balance.is_taken(Ino(2)));
    }

    #[test]
    fn the_floor_of_a_rule_holds_with_what_is_planned() {
        let mut balance = balance(&[0, 1000]);
        let belonging = Belonging { floor: Some(Floor::Bytes(700)), ..anywhere() };
        balance.offer(BranchIx(0), (2..9).map(|ino| (listed(ino, 100), belonging)).collect());
        assert_eq!(balance.amount().bytes, 300);
    }

    proptest! {
        #[test]
        fn files_leave_givers_for_branches_where_they_belong_within_what_is_to_move(
            available in prop::collection::vec(0_u64..=TOTAL, 2..6),
            files in prop::collection::vec((0_u16..6, 1_u64..300, 0_u64..64, 0_u64..1000), 0..80),
            together in any::<bool>(),
        ) {
            let mut balance = balance(&available);
            let least = balance.left();
            let belongs = |homes: u64, floor| Belonging {
                home: (0..6).filter(|bit| homes & (1 << bit) != 0).map(BranchIx).collect(),
                floor: (floor < 500).then_some(Floor::Bytes(floor)),
            };
            let belonging: HashMap<Ino, (BranchIx, Belonging)> = files.iter().enumerate()
                .map(|(n, (from, _, homes, floor))| (Ino(n as u64), (BranchIx(*from), belongs(*homes, *floor))))
                .collect();
            let offered = |n: usize| (listed(n as u64, files[n].1), belonging[&Ino(n as u64)].1);
            let numbers: Vec<usize> = (0..files.len()).collect();
            for chunk in numbers.chunks(3) {
                let from = BranchIx(files[chunk[0]].0);
                let of_one = chunk.iter().filter(|n| BranchIx(files[**n].0) == from).map(|n| offered(*n)).collect();
                if together { balance.offer_together(from, of_one) } else { balance.offer(from, of_one) }
            }
            let left = balance.left();
            let list = balance.finish();
            prop_assert_eq!(list.amount().bytes, least - left);
            for planned in list.moves() {
                let (from, belonging) = belonging[&planned.ino];
                prop_assert!(planned.from == from && planned.to != from && belonging.home.contains(planned.to));
                let come: u64 = list.moves().iter().filter(|one| one.to == planned.to).map(|one| one.bytes).sum();
                prop_assert!(come <= available[usize::from(planned.to.0)]);
            }
            // At its turn a file kept the floor of its rule, beside those before it.
            let mut come = HashMap::<BranchIx, u64>::new();
            for planned in list.moves() {
                let come = come.entry(planned.to).or_default();
                *come += planned.bytes;
                if let Some(Floor::Bytes(floor)) = belonging[&planned.ino].1.floor
                    && !together
                {
                    prop_assert!(*come + floor <= available[usize::from(planned.to.0)]);
                }
            }
        }
    }
}
