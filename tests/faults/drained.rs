//! A job that empties a branch is killed before each call: every object is on one branch afterwards.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use fsstack_lab::{self as lab, MiB, needs};

use crate::engine::{Engine, settings};
use crate::kill;
use crate::scenario::DRAIN;

/// More calls than the process makes.
const MOST: u64 = 20_000;

#[test]
fn a_link_and_a_fifo_are_on_one_branch_wherever_a_drain_is_killed() {
    needs!(root());
    let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(4));
    let pool = pool.unmounted();
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    let reset = || {
        for entry in paths.iter().flat_map(|path| fs::read_dir(path).unwrap()) {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        DRAIN.prepare(&paths);
    };
    reset();
    let (mounting, _) = kill::child(&DRAIN, &paths, None).unwrap();
    assert_eq!(pool.holders("d/link").len(), 1);
    assert!(!paths[0].join("d").exists(), "the job did not empty the branch");
    let (mut wrong, mut both) = (Vec::new(), 0);
    for nth in mounting + 1.. {
        assert!(nth < MOST, "the process does not end");
        reset();
        if kill::child(&DRAIN, &paths, Some(nth)).is_some() {
            break;
        }
        both += usize::from(["d/link", "d/fifo"].iter().any(|path| pool.holders(path).len() > 1));
        drop(Engine::over(paths.into_iter(), settings("ff")));
        let kind = |path: &str| {
            let holders = pool.holders(path);
            let [holder] = holders.as_slice() else { return Err(holders) };
            Ok(pool.branch(holder).path().join(path).symlink_metadata().unwrap().file_type())
        };
        match (kind("d/link"), kind("d/fifo")) {
            (Ok(link), Ok(fifo)) if link.is_symlink() && fifo.is_fifo() => {}
            kinds => wrong.push(format!("killed at {nth}: {kinds:?}")),
        }
        if let Some(path) =
            paths.iter().map(|path| path.join(".fsstack.moving")).find(|path| Path::exists(path))
        {
            wrong.push(format!("killed at {nth}: {} is left", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(both > 0, "the process was never killed between the two names");
}
