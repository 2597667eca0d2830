//! The order in which a task visits its blocks: every pattern visits each block once.

use crate::workload::{Pattern, Workload};

/// Order of blocks.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// Ascending.
    Sequential { blocks: u64 },
    /// Block 0, `stride`, 2 x `stride`, ..., then 1, 1 + `stride`, ...
    Strided { blocks: u64, stride: u64 },
    /// A shuffle by seed.
    Shuffled(Vec<u32>),
}

impl Order {
    /// The order of task number `task`.
    pub(crate) fn of(workload: &Workload, seed: u64, task: u32) -> Self {
        let blocks = workload.blocks();
        match workload.pattern {
            Pattern::Sequential => Self::Sequential { blocks },
            Pattern::Strided => Self::Strided { blocks, stride: workload.stride },
            Pattern::Random => {
                // `Workload::check` guarantees that they can be numbered.
                let mut all: Vec<u32> = (0..u32::try_from(blocks).unwrap_or(u32::MAX)).collect();
                fastrand::Rng::with_seed(seed ^ (u64::from(task) << 32)).shuffle(&mut all);
                Self::Shuffled(all)
            }
        }
    }

    /// How many blocks there are.
    pub(crate) fn blocks(&self) -> u64 {
        match self {
            Self::Sequential { blocks } | Self::Strided { blocks, .. } => *blocks,
            Self::Shuffled(all) => all.len() as u64,
        }
    }

    /// Block at position `turn`, which is below `blocks`.
    pub(crate) fn at(&self, turn: u64) -> u64 {
        match self {
            Self::Sequential { .. } => turn,
            Self::Shuffled(all) => {
                usize::try_from(turn).ok().and_then(|t| all.get(t)).copied().map_or(0, u64::from)
            }
            Self::Strided { blocks, stride } => {
                // The first `long` rows have one more block.
                let (stride, short, long) =
                    (*stride.min(blocks), blocks / stride.min(blocks), blocks % stride.min(blocks));
                let (row, column) = if turn < long * (short + 1) {
                    (turn / (short + 1), turn % (short + 1))
                } else {
                    let past = turn - long * (short + 1);
                    (long + past / short, past % short)
                };
                row + column * stride
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::workload::Bytes;

    proptest! {
        #[test]
        fn each_block_comes_once(blocks in 1_u64..3000, stride in 1_u64..4000, seed: u64, random: bool) {
            let pattern = if random { Pattern::Random } else { Pattern::Strided };
            let workload =
                Workload { pattern, stride, block: Bytes(1), file_size: Bytes(blocks), ..Workload::default() };
            let order = Order::of(&workload, seed, 3);
            prop_assert_eq!(order.blocks(), blocks);
            let mut visited: Vec<u64> = (0..blocks).map(|turn| order.at(turn)).collect();
            visited.sort_unstable();
            prop_assert_eq!(visited, (0..blocks).collect::<Vec<_>>());
        }
    }

    #[test]
    fn strides_are_those_of_ior() {
        let order = Order::Strided { blocks: 7, stride: 3 };
        assert_eq!((0..7).map(|t| order.at(t)).collect::<Vec<_>>(), [0, 3, 6, 1, 4, 2, 5]);
    }

    #[test]
    fn a_seed_gives_the_same_order_again_and_tasks_differ() {
        let workload = Workload { pattern: Pattern::Random, ..Workload::default() };
        let order = |seed, task| (0..256).map(|t| Order::of(&workload, seed, task).at(t)).collect::<Vec<_>>();
        assert_eq!(order(7, 0), order(7, 0));
        assert_ne!(order(7, 0), order(7, 1));
        assert_ne!(order(7, 0), order(8, 0));
    }
}
