//! Objects by their numbers: file handles, the numbers of directories, and removed objects.

pub(crate) mod by_number;
pub(crate) mod dir_number;
pub(crate) mod gone;
pub(crate) mod identify;
pub(crate) mod removed;
pub(crate) mod search;
