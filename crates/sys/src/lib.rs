//! fsstack-sys.
