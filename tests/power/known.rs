//! Scenarios that are known to fail, each with its finding. One that no longer fails is an error until it is removed
//! here.

pub(crate) const KNOWN: &[(&str, &str)] = &[];
