//! Damage to the state that a keeper reads, where a test asks for it.

use std::os::fd::{AsFd, OwnedFd};

use fsstack_sys::handover::{read_sealed, sealed_file};

/// `short`, `changed` or `newer`.
const VARIABLE: &str = "FSSTACK_TEST_STATE";
/// Where the header has the version of the format.
const FORMAT_AT: usize = 8;

/// Returns `state`, damaged in the way that the variable says.
pub(super) fn as_told(state: OwnedFd) -> Result<OwnedFd, String> {
    let Ok(how) = std::env::var(VARIABLE) else { return Ok(state) };
    let mut bytes = read_sealed(state.as_fd()).map_err(|error| error.to_string())?;
    let half = bytes.len() / 2;
    match how.as_str() {
        "short" => bytes.truncate(half),
        "changed" => bytes[half] ^= 1,
        "newer" => bytes[FORMAT_AT] += 1,
        _ => return Err(format!("{VARIABLE}={how}: no such damage")),
    }
    sealed_file("fsstack-state", &[&bytes]).map_err(|error| error.to_string())
}
