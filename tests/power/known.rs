//! Scenarios that are known to go wrong, each with its finding. One that does not any more fails until it is struck out here.

pub(crate) const KNOWN: &[(&str, &str)] = &[];
