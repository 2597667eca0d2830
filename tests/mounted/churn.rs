//! Many threads in one tree, and no leftovers.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use fsstack_lab::{self as lab, Pool, needs};

use crate::command::{at, json};
use crate::script::{files_held, sh};

const THREADS: u64 = 8;
const ROUNDS: u64 = 1500;

/// A small generator: the same operations in every run.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed >> 20
}

/// Random operations on few names, so that threads meet. Errors are expected, but only those of a race.
fn act(root: &Path, mut seed: u64, strange: &AtomicU64) {
    for _ in 0..ROUNDS {
        let mut name = || root.join(format!("d{}/e{}", next(&mut seed) % 3, next(&mut seed) % 4));
        let (one, two) = (name(), name());
        let done = match next(&mut seed) % 8 {
            0 | 1 => fs::write(&one, "bytes"),
            2 => fs::create_dir_all(one.join("sub")),
            3 => fs::rename(&one, &two),
            4 => fs::remove_file(&one),
            5 => fs::remove_dir(one.join("sub")).and_then(|()| fs::remove_dir(&one)),
            6 => fs::hard_link(&one, &two),
            _ => fs::read_dir(one.parent().unwrap_or(root)).map(drop),
        };
        // ENOENT EEXIST ENOTDIR EISDIR ENOTEMPTY EPERM (a link to a directory) EINVAL (into itself)
        let expected = [2, 17, 20, 21, 39, 1, 22];
        if let Err(e) = done
            && !e.raw_os_error().is_some_and(|errno| expected.contains(&errno))
        {
            eprintln!("{} {}: {e}", one.display(), two.display());
            strange.fetch_add(1, Relaxed);
        }
    }
}

/// Resources of a pool: descriptors on its branches, and inodes, open files and directories, and directory descriptors
/// in its tables.
fn held(pool: &Pool) -> Vec<usize> {
    let tables = &json("status", &["status", &at(pool)])["pools"][0]["tables"];
    let table = |name: &str| usize::try_from(tables[name].as_u64().unwrap()).unwrap();
    [files_held(pool)].into_iter().chain(["inodes", "files", "dirs", "dir_fds"].map(table)).collect()
}

/// Runs the operations; returns the number of errors that no race explains.
fn churn(pool: &Pool) -> u64 {
    let before = {
        sh(
            pool.path(),
            "mkdir -p x/y; echo > x/y/z; rm -r x; ls -lR; sync; echo 2 > /proc/sys/vm/drop_caches",
        );
        held(pool)
    };
    for dir in ["d0", "d1", "d2"] {
        pool.mkdir(dir);
    }
    let strange = AtomicU64::new(0);
    thread::scope(|scope| {
        for n in 1..=THREADS {
            let (root, strange) = (pool.path(), &strange);
            scope.spawn(move || act(root, n.wrapping_mul(0x9e37_79b9_7f4a_7c15), strange));
        }
    });
    // Listed names exist and are listed once.
    sh(pool.path(), "find . | sort | uniq -d | wc -l | grep -qx 0; find . -exec stat {} + > /dev/null");
    sh(pool.path(), "rm -rf d0 d1 d2");
    assert!(pool.list("").is_empty());
    for branch in pool.branches() {
        let left: Vec<_> = fs::read_dir(branch.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{} has {left:?}", branch.name());
    }
    sh("/", "sync; echo 2 > /proc/sys/vm/drop_caches");
    let is_back = |now: Vec<usize>| now.iter().zip(&before).all(|(now, before)| now <= before);
    let back = (0..50).any(|_| is_back(held(pool)));
    assert!(back, "descriptors on the branches, and tables: {before:?} became {:?}", held(pool));
    strange.load(Relaxed)
}

#[test]
fn threads_in_one_tree_leave_nothing_behind_on_one_branch() {
    needs!(mounting());
    churn(&lab::pool().tmp_branch("a").mount());
}

#[test]
fn threads_in_one_tree_leave_nothing_behind_on_three_branches() {
    needs!(mounting());
    churn(&lab::pool().tmp_branch("a").tmp_branch("b").tmp_branch("c").option("create=rand").mount());
}

#[test]
fn threads_in_one_tree_without_any_cache() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand");
    churn(&pool.option("attr-timeout=0").option("entry-timeout=0").mount());
}

#[test]
fn a_race_is_answered_as_by_a_local_disk() {
    needs!(mounting(), not_on_gluster("its own races end in ESTALE"));
    // ext4 reuses inode numbers at once, and the kernel calls a cached inode with such a number bad: EIO.
    assert_eq!(churn(&lab::pool().tmp_branch("a").mount()), 0, "errors that no race explains");
}

#[test]
fn the_tables_are_empty_after_the_unmount() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").option("log-level=debug");
    let mut pool = pool.option(&format!("log={}", log.path().display())).mount();
    churn(&pool);
    pool.unmount();
    let said = fs::read_to_string(log.path()).unwrap();
    let held = said.lines().find(|line| line.contains("held=")).unwrap_or_else(|| panic!("{said}"));
    assert!(held.contains("files: 0") && held.contains("dirs: 0"), "{held}");
}
