//! Any bytes are a request or a refusal; a request built again from what was understood is understood the same.
#![no_main]

#[allow(dead_code, reason = "each target has one of them")]
#[path = "../bodies.rs"]
mod bodies;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| bodies::request(input));
