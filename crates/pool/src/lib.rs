//! Pure model of a pool: names, numbers, sizes, the grammar of branches, and placement. No I/O, no clock, no
//! descriptors.

mod branch;
mod branch_set;
mod candidate;
mod chain;
mod class;
mod hidden;
mod ids;
mod mix;
mod name;
mod nearest;
mod placement;
mod placement_rule;
mod printable;
mod ranking;
mod rule_dir;
mod rule_tree;
mod size;
mod source;
mod space;
mod tier;
mod turn;
mod window;

pub mod escape;
pub mod policy;
pub mod settings;

pub use branch::{BranchMode, BranchSpec, UnknownMode};
pub use branch_set::BranchSet;
pub use candidate::{Candidate, Rejection, explain, verdict};
pub use chain::{Chain, ChainError};
pub use class::{BadClass, Class};
pub use hidden::{HIDDEN_FOLDERS, KEPT, is_hidden_name};
pub use ids::{BranchId, BranchIx, Handle, Ino};
pub use mix::mix;
pub use name::{BadName, EntryName, EntryNameBuf, NAME_MAX};
pub use nearest::{nearest, suggestion};
pub use placement::{DirPlacement, Stage};
pub use placement_rule::{BadPlacementRule, PlacementRule, PlacementRules, Target};
pub use policy::{Policy, Rank, Scope};
pub use printable::Printable;
pub use ranking::{Ranking, rank};
pub use rule_dir::{BadRuleDir, RuleDir};
pub use rule_tree::{NamedBranch, ResolvedRule, RuleTree};
pub use size::{Floor, Size, SizeError};
pub use source::{SpecError, SpecFault, parse_source};
pub use space::Space;
pub use tier::{BadTier, Tier, TierOrder, Tiers, UsedShare};
pub use turn::{Turn, turn};
pub use window::{BadWindow, DayMinute, Window};
