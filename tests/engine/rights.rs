//! Copies of a directory with different owner or mode, as left by a power cut during a chmod.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

use fsstack_lab::needs;

use crate::test_bed::{TestBed, wary};
use fsstack_pool::BranchMode::ReadWrite;

fn dress(dir: &Path, owner: u32, mode: u32) {
    chown(dir, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(dir, PermissionsExt::from_mode(mode)).unwrap();
}

fn rights(dir: &Path) -> (u32, u32, u32) {
    let meta = dir.metadata().unwrap();
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

#[test]
fn a_later_copy_that_lets_others_in_is_given_the_first_ones_rights() {
    needs!(root());
    let pool = TestBed::with(&[ReadWrite, ReadWrite], wary());
    // The first copy's, the later copy's, and the later one's afterwards.
    let cases = [
        ("wider", (0, 0o700), (0, 0o755), (0, 0, 0o700)),
        ("theirs", (0, 0o755), (7, 0o755), (0, 0, 0o755)),
        ("narrower", (0, 0o755), (0, 0o700), (0, 0, 0o700)),
        ("given", (7, 0o700), (0, 0o700), (0, 0, 0o700)),
        ("last", (0, 0o711), (0, 0o777), (0, 0, 0o711)),
    ];
    for (name, first, later, _) in cases {
        (0..2).for_each(|at| pool.put_dir(at, name));
        dress(&pool.on(0, name), first.0, first.1);
        dress(&pool.on(1, name), later.0, later.1);
    }
    let began = Instant::now();
    // A recent change is left alone.
    while rights(&pool.on(1, "last")) != (0, 0, 0o711) {
        assert!(began.elapsed() < Duration::from_secs(60), "the later copy stays as it is");
        for (name, (owner, mode), ..) in cases {
            let shown = pool.stat(name).stat;
            assert_eq!((shown.uid, shown.mode & 0o7777), (owner, mode), "{name}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for (name, first, _, then) in cases {
        assert_eq!(rights(&pool.on(1, name)), then, "{name}");
        assert_eq!(rights(&pool.on(0, name)), (first.0, first.0, first.1), "{name}: what is shown");
    }
}
