//! fsstack-lab.
