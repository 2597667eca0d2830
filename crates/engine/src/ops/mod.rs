//! The operations, one file each.

mod attributes;
mod copy_range;
pub(crate) mod create;
mod data;
mod forget;
mod ioctl;
mod link;
pub(crate) mod lock;
mod lookup;
mod lookup_dot;
mod make;
pub(crate) mod open;
mod readdir;
mod rename;
pub(crate) mod rmdir;
mod setattr;
mod statfs;
mod sync;
mod unlink;
mod xattr;

pub use data::{Whence, WriteTerms};
pub use lock::LockType;
pub use lock::{LockKind, LockRequest};
pub use make::New;
pub use readdir::Sink;
pub use setattr::{Change, SetTime};
pub use sync::sync_earlier_names;
