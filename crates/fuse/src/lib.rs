//! fsstack-fuse.
