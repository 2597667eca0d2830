//! Tests of the codec: what is built parses back, what is broken is refused, nothing panics.

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
