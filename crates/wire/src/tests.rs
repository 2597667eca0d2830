//! Tests of the codec: encoding and parsing are inverse, malformed input is refused, nothing panics.

mod answers;
mod dirents;
#[path = "../fuzz/bodies/dirents.rs"]
mod dirents_body;
mod extensions;
mod fuzz;
mod refusals;
#[path = "../fuzz/bodies/request.rs"]
mod request_body;
mod requests;
mod seed;
