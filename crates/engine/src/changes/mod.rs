//! Changes of names that take a step on several branches.

pub(crate) mod exchange;
pub(crate) mod names;
pub(crate) mod replace;
