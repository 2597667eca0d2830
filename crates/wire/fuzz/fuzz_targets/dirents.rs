//! Listings of any names stay within any size, and a row that does not fit leaves nothing behind.
#![no_main]

#[path = "../bodies/dirents.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, u16, Vec<(bool, Vec<u8>)>)| body::dirents(input.0, input.1, &input.2));
