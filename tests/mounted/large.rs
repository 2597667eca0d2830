//! A directory of a million entries: listed incrementally, not read to its end first.

use std::fs::{self, File};
use std::path::Path;
use std::thread;

use fsstack_lab::{self as lab, MiB, Pool, needs};

use crate::script::{python, sh};

const ENTRIES: u32 = 1_000_000;

/// Makes the names from `first` on, every `step`-th, in the branch's directory `d`: links to one file, by two threads.
fn make(branch: &Path, first: u32, step: u32) {
    // Each name counts as an inode there; with little memory a tmpfs has too few.
    sh("/", &format!("mount -o remount,nr_inodes={} {}", ENTRIES + 1000, branch.display()));
    let dir = branch.join("d");
    fs::create_dir(&dir).unwrap();
    let source = branch.join("source");
    File::create(&source).unwrap();
    thread::scope(|scope| {
        for half in 0..2 {
            let (dir, source) = (&dir, &source);
            scope.spawn(move || {
                let from = first + half * step;
                for n in (from..ENTRIES).step_by(2 * step as usize) {
                    fs::hard_link(source, dir.join(format!("entry-{n:07}"))).unwrap();
                }
            });
        }
    });
}

/// Maximum growth of the daemon in bytes while a program lists `d` and stats every 1000th entry.
fn growth(pool: &Pool) -> u64 {
    // Memory for a first listing is not counted.
    sh(pool.path(), "ls -f | wc -l");
    let before = pool.daemon().most_resident().unwrap();
    let list = format!(
        "
import os
seen = bytearray({ENTRIES})
listed = 0
with os.scandir('d') as entries:
    for entry in entries:
        n = int(entry.name[6:])
        assert not seen[n], entry.name
        seen[n] = 1
        listed += 1
        if listed % 1000 == 0: entry.stat(follow_symlinks=False)
print(listed, all(seen))"
    );
    assert_eq!(python(pool.path(), &list), format!("{ENTRIES} True"));
    pool.daemon().most_resident().unwrap() - before
}

#[test]
fn a_million_entries_on_one_branch_are_listed_in_little_memory() {
    needs!(mounting(), program("python3"));
    let pool = lab::pool().tmpfs_branch("a", MiB(64)).mount();
    make(pool.branch("a").path(), 0, 1);
    let grown = growth(&pool);
    assert!(grown < 8 << 20, "the daemon grew by {grown} bytes");
}

#[test]
fn a_million_entries_on_two_branches_are_listed_in_little_memory() {
    needs!(mounting(), program("python3"));
    let pool = lab::pool().tmpfs_branch("a", MiB(64)).tmpfs_branch("b", MiB(64)).mount();
    make(pool.branch("a").path(), 0, 2);
    make(pool.branch("b").path(), 1, 2);
    let grown = growth(&pool);
    // 8 bytes per name of the first branch, in a table that doubles.
    assert!(grown < 32 << 20, "the daemon grew by {grown} bytes");
}
