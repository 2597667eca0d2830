//! Models of the engine, run by `cargo xtask test --tier models`: the code itself, in many orders of its threads.

mod copies;
mod late_errors;
mod names;
mod open_slot;

use fsstack_identity::number::Identity;
use fsstack_pool::{BranchIx, Ino};

/// Branches of the models.
const X: BranchIx = BranchIx(0);
const Y: BranchIx = BranchIx(1);

/// Number of the object in question.
const ID: Identity = Identity { ino: Ino(7), generation: 0 };
