//! fsstack-pool.
