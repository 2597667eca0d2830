//! The mount helper.
fn main() {}
