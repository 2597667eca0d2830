//! The names on each branch of a pool, their types, sizes, times and owners, as far as they are known without asking the branch.
//!
//! The catalogue is a database in the pool's state directory. It is never the truth: what is in it can be made anew from a walk
//! over a branch, and a branch whose names are not all known is marked as incomplete until that walk has ended.
//!
//! A directory is known by a number that its branch gives it, not by its path: a rename of a directory changes one row.
//!
//! [`Pending`] holds what has changed since the catalogue was written last: which names, never how. The thread that writes
//! the catalogue asks the branch how they are. So a change that is reported twice, late or in vain does no harm.

mod batch;
#[cfg(test)]
mod cuts;
#[cfg(test)]
mod damage;
mod offline;
mod pending;
mod query;
mod room;
mod row;
mod store;
mod turns;
mod upkeep;

pub use batch::{Batch, Listed, Look};
pub use offline::{Homes, OfflineObject, OfflineTable};
pub use pending::{Changes, DirChange, Pending};
pub use query::{Asked, FoundName, Page, Subject};
pub use room::CatalogueFull;
pub use row::{Row, WITHOUT_ACL};
pub use store::{BranchRow, Catalogue, CatalogueError};
pub use turns::Turns;
pub use upkeep::{AtWork, FLUSH_AFTER, Knowledge, Upkeep, now};

/// Result of a call of the catalogue.
pub type Result<T> = std::result::Result<T, CatalogueError>;
