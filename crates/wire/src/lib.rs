//! fsstack-wire.
