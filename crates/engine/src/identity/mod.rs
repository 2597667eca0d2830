//! The identity of objects over mounts: the pool's id, and the index of numbers.

pub(crate) mod index;
pub mod poolid;
