//! Tests of the codec: what is built parses back, what is broken is refused, nothing panics.

mod answers;
mod dirents;
mod extensions;
mod refusals;
mod requests;
mod seed;
