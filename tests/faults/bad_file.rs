//! One failing call starts a probe of the branch, and does not close it.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use fsstack_branch::health::BranchState;
use fsstack_sys::{Errno, fault};

use tempfile::TempDir;

use crate::engine::{Engine, settings};

#[test]
fn one_bad_file_is_not_a_bad_branch() {
    let homes: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    fs::write(homes[0].path().join("bad"), "x").unwrap();
    fs::write(homes[1].path().join("good"), "y").unwrap();
    let engine = Engine::over(homes.iter().map(TempDir::path), settings("ff"));
    let look = |name: &str| engine.find(Path::new(name)).map(drop);
    for _ in 0..5 {
        let (answer, failed) = fault::fail(1, Errno::IO, || look("bad"));
        // Asked on the branch where it was seen last, and if that fails once more on all branches.
        assert!(failed.is_some() && matches!(answer, Ok(()) | Err(Errno::IO)), "{answer:?}");
        // Calls are admitted all the time, and the probe succeeds.
        look("bad").unwrap();
        look("good").unwrap();
        let began = Instant::now();
        while engine.union.pool().branches[0].state() != BranchState::Up {
            assert!(began.elapsed() < Duration::from_secs(60), "the branch stays suspect");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
