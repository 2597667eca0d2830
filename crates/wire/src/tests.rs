//! Tests of the codec: what is built parses back, what is broken is refused, nothing panics.

mod answers;
#[path = "../fuzz/bodies.rs"]
mod bodies;
mod dirents;
mod extensions;
mod fuzz;
mod refusals;
mod requests;
mod seed;
