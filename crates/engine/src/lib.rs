//! fsstack-engine.
