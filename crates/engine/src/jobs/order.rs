//! Orders of jobs, and reasons not to begin one.

use std::num::NonZeroU64;
use std::sync::Arc;

use fsstack_pool::{BranchIx, Tier, Window};
use serde::{Deserialize, Serialize};

use super::planning::level::By;

pub use crate::moves::hidden::HiddenCopies;
pub use crate::moves::job_move::Manner;

/// Work of a job. Its form is part of the handover's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Work {
    Drain(DrainOrder),
    Balance(BalanceOrder),
    Consolidate(ConsolidateOrder),
    Rules(RulesOrder),
    Tier(TierRun),
}

/// Files that are to go down a tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TierRun {
    #[serde(with = "tier_text")]
    pub(super) tier: Arc<Tier>,
    /// An operator asks what would move.
    pub(super) dry_run: bool,
}

/// A tier as it is written.
mod tier_text {
    use std::sync::Arc;

    use fsstack_pool::Tier;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(tier: &Arc<Tier>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&tier.to_string())
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Arc<Tier>, D::Error> {
        String::deserialize(from)?.parse().map(Arc::new).map_err(D::Error::custom)
    }
}

impl Work {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Drain(_) => "drain",
            Self::Balance(_) => "balance",
            Self::Consolidate(_) => "consolidate",
            Self::Rules(_) => "rules",
            Self::Tier(_) => "tier",
        }
    }

    pub(super) fn manner(&self) -> Manner {
        match self {
            Self::Drain(order) => order.manner,
            Self::Balance(order) => order.manner,
            Self::Consolidate(order) => order.manner,
            Self::Rules(order) => order.manner,
            Self::Tier(TierRun { tier, dry_run }) => Manner {
                rate: tier.rate.and_then(|rate| NonZeroU64::new(rate.0)),
                make_way: tier.make_way,
                dry_run: *dry_run,
                ..Manner::default()
            },
        }
    }

    /// The part of the day in which it is at work.
    pub(super) fn window(&self) -> Option<Window> {
        match self {
            Self::Drain(order) => order.window,
            Self::Balance(order) => order.window,
            Self::Consolidate(order) => order.window,
            Self::Rules(order) => order.window,
            Self::Tier(run) => run.tier.window,
        }
    }

    /// True for work that the daemon began by itself, and that makes way for what an operator wants.
    pub(super) fn yields(&self) -> bool {
        matches!(self, Self::Tier(run) if !run.dry_run)
    }

    /// The branch that is emptied.
    pub(super) fn drained(&self) -> Option<BranchIx> {
        match self {
            Self::Drain(order) => Some(order.from),
            Self::Balance(_) | Self::Consolidate(_) | Self::Rules(_) | Self::Tier(_) => None,
        }
    }

    /// Fate of hidden objects.
    pub(super) fn hidden(&self) -> HiddenCopies {
        match self {
            Self::Drain(order) => order.hidden,
            Self::Balance(_) | Self::Consolidate(_) | Self::Rules(_) | Self::Tier(_) => HiddenCopies::Stop,
        }
    }

    /// Whether it puts files on `branch` by name.
    pub(super) fn is_to(&self, branch: BranchIx) -> bool {
        match self {
            Self::Drain(order) => order.to.contains(&branch),
            Self::Consolidate(order) => order.to == Some(branch),
            Self::Balance(_) | Self::Rules(_) | Self::Tier(_) => false,
        }
    }

    /// True if both cannot be at work: only drains of two branches know nothing of each other.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        match (self.drained(), other.drained()) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        }
    }
}

/// A wish that branches are about as full as each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BalanceOrder {
    /// Only files below this directory move; the path from the root.
    pub dir: Vec<u8>,
    /// Measure of fullness.
    pub by: By,
    /// Hundredths of a percent by which branches may differ.
    pub tolerance: u32,
    /// How it moves files.
    pub manner: Manner,
    /// Part of the day in which files move.
    pub window: Option<Window>,
}

/// A wish that all files below a directory are on one branch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConsolidateOrder {
    /// The directory's path from the root.
    pub dir: Vec<u8>,
    /// The branch; None: the one that has most of it, if there is room.
    pub to: Option<BranchIx>,
    /// How it moves files.
    pub manner: Manner,
    /// Part of the day in which files move.
    pub window: Option<Window>,
}

/// A wish that files are on the branches that the placement rules name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RulesOrder {
    /// Only files below this directory move; the path from the root.
    pub dir: Vec<u8>,
    /// How it moves files.
    pub manner: Manner,
    /// Part of the day in which files move.
    pub window: Option<Window>,
}

/// A wish to empty a branch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainOrder {
    /// The branch.
    pub from: BranchIx,
    /// Branches that may take its files; none: all others.
    pub to: Vec<BranchIx>,
    /// Fate of objects that are hidden by others of their name, or that its files hide.
    pub hidden: HiddenCopies,
    /// How it moves files.
    pub manner: Manner,
    /// Part of the day in which files move.
    pub window: Option<Window>,
}

/// Why a job does not begin, or is not called off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJob {
    /// There is no such branch.
    #[error("the branch is not in the pool")]
    NoBranch,
    /// Another job is at work.
    #[error("job {0} is at work: fsstack job status shows it, fsstack job cancel ends it")]
    Busy(u64),
    /// No other branch may take anything.
    #[error("no other branch takes anything: a target must be RW, writable and another than the emptied one")]
    NoTarget,
    /// The pool has no placement rule.
    #[error("the pool has no placement rule: fsstack rule set makes one")]
    NoRules,
    /// The branch is read-only.
    #[error("the branch is read-only: nothing can be removed from it")]
    ReadOnly,
    /// There is no such job.
    #[error("there is no job {0}")]
    NoJob(u64),
    /// The job has ended.
    #[error("job {0} has ended")]
    Over(u64),
    /// The directory is not there, or cannot be asked for.
    #[error("{0}")]
    NoDirectory(String),
    /// No thread is to be had.
    #[error("no thread for the job: {0}")]
    NoThread(String),
    /// The daemon ends.
    #[error("the pool is being unmounted")]
    Ending,
}
