//! Any bytes are a request or a refusal; a parsed request that is encoded again parses to the same.
#![no_main]

#[path = "../bodies/request.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| body::request(input));
