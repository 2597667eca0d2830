//! Models of a branch, run by `cargo xtask test --tier models`: the code itself, in many orders of its threads.

mod inflight;
mod leaving;
mod monitor;
mod remount;
mod takeover;

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use fsstack_pool::{BranchId, BranchIx, BranchSpec};
use fsstack_sync::time::Duration;
use fsstack_sys as sys;

use crate::branch::{Branch, BranchOptions};

/// Longest time that a call may stay.
const TIMEOUT: Duration = Duration::from_millis(80);

/// The directory `path` as a remote branch for `inflight` calls at once.
fn remote(path: &Path, inflight: usize) -> Arc<Branch> {
    let root = sys::at::open_root(path).unwrap();
    let mut space = sys::file::statfs(root.as_fd()).unwrap();
    space.f_type = 0;
    let options = BranchOptions { timeout: TIMEOUT, inflight, privileged: false, exact_generations: false };
    let spec = BranchSpec::new(path.to_owned());
    Branch::with_space((BranchIx(0), BranchId::MAX), &spec, (root, space), None, options).unwrap()
}
