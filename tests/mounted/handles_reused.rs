//! File handles when an inode number is reused for another object: the old handle is stale, for all kinds of objects.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::Duration;

use fsstack_lab::branch::Kind;
use fsstack_lab::{self as lab, MiB, Pool, needs};
use fsstack_sys::{Errno, OFlags};

use crate::handles::{check, check_stale, forget, forget_everywhere, hold, open};
use crate::script::sh;

/// Kind of an object.
#[derive(Clone, Copy, Debug)]
enum Sort {
    File,
    Dir,
    Symlink,
    /// One of two links.
    HardLink,
}

const SORTS: [Sort; 4] = [Sort::File, Sort::Dir, Sort::Symlink, Sort::HardLink];

impl Sort {
    /// Makes one with its own inode number; `text` is its readable content.
    fn make(self, at: &Path, text: &str) {
        match self {
            Self::File => fs::write(at, text).unwrap(),
            Self::Dir => fs::create_dir(at).unwrap(),
            Self::Symlink => symlink(text, at).unwrap(),
            Self::HardLink => {
                fs::write(at, text).unwrap();
                fs::hard_link(at, at.with_extension("too")).unwrap();
            }
        }
    }

    fn remove(self, at: &Path) {
        match self {
            Self::Dir => fs::remove_dir(at).unwrap(),
            Self::File | Self::Symlink => fs::remove_file(at).unwrap(),
            Self::HardLink => {
                fs::remove_file(at).unwrap();
                fs::remove_file(at.with_extension("too")).unwrap();
            }
        }
    }
}

fn ino(at: &Path) -> u64 {
    fs::symlink_metadata(at).unwrap().ino()
}

/// Makes objects in `dir` until one has the inode number `number`; returns its name. Others are kept, so that the next
/// one gets another number.
fn again(dir: &Path, sort: Sort, number: u64) -> Option<String> {
    (0..100).map(|n| format!("n{n}")).find(|name| {
        // XFS frees inodes some time after their last name is removed.
        std::thread::sleep(Duration::from_millis(1));
        sort.make(&dir.join(name), "new");
        ino(&dir.join(name)) == number
    })
}

/// btrfs never reuses a number.
fn reuses(kind: Kind) -> bool {
    !matches!(kind, Kind::Btrfs(_))
}

/// Repeats `attempt` until the file system has reused a number, if it ever does.
fn until_reused(reuses: bool, what: &str, attempt: impl FnMut() -> bool) {
    let reused = std::iter::repeat_with(attempt).take(if reuses { 20 } else { 1 }).any(|reused| reused);
    assert!(reused || !reuses, "{what}");
}

fn numbers_used_again(kind: Kind) {
    let mut pool = lab::pool().branch("b", kind).option("nfs-export").mount();
    let branch = pool.branch("b").path().join("d");
    fs::create_dir(&branch).unwrap();
    for sort in SORTS {
        for remounts in [false, true] {
            until_reused(reuses(kind), &format!("{kind:?} {sort:?}, remounts: {remounts}"), || {
                sort.make(&branch.join("f"), "old");
                let (old, number) = (hold(&pool, "d/f"), ino(&branch.join("f")));
                forget();
                sort.remove(&branch.join("f"));
                let new = again(&branch, sort, number).map(|name| format!("d/{name}"));
                if remounts {
                    pool.remount();
                }
                forget();
                check_stale(&pool, &old);
                if let Some(new) = &new {
                    let new = hold(&pool, new);
                    check(&pool, &new);
                    assert_eq!(new.ino, old.ino, "{sort:?}");
                    check_stale(&pool, &old);
                }
                sh(&branch, "rm -rf f n*");
                new.is_some()
            });
        }
        the_same_name(&pool, kind, sort);
    }
}

/// The new object has the old one's name too, and the kernel has forgotten nothing.
fn the_same_name(pool: &Pool, kind: Kind, sort: Sort) {
    let branch = pool.branch("b").path().join("d");
    // The pool holds a known directory open, so its number is not free.
    let may_reuse = reuses(kind) && !matches!(sort, Sort::Dir);
    until_reused(may_reuse, &format!("{kind:?} {sort:?}, the same name"), || {
        sort.make(&branch.join("f"), "old");
        let (old, number) = (hold(pool, "d/f"), ino(&branch.join("f")));
        sort.remove(&branch.join("f"));
        let new = again(&branch, sort, number);
        match &new {
            Some(new) => fs::rename(branch.join(new), branch.join("f")).unwrap(),
            None => sort.make(&branch.join("f"), "new"),
        }
        match sort {
            Sort::Symlink => {
                // An object without a name may be accessed through the kernel's cache, and shows nothing of another
                // one.
                let opened = open(pool, &old, OFlags::PATH | OFlags::NOFOLLOW);
                let answer_of =
                    opened.map(|fd| fsstack_sys::at::readlink(std::os::fd::AsFd::as_fd(&fd), c""));
                assert!(!matches!(&answer_of, Ok(Ok(target)) if target == b"new"), "{answer_of:?}");
            }
            Sort::Dir => {
                // An empty one, from the kernel's cache: nothing of the new directory.
                fs::create_dir(branch.join("f/in the new one")).unwrap();
                let opened = open(pool, &old, OFlags::RDONLY | OFlags::DIRECTORY);
                let names = opened.map(names);
                assert!(names.as_ref().map_or(true, |names| names.is_empty()), "{names:?}");
            }
            Sort::File | Sort::HardLink => {
                assert_eq!(open(pool, &old, OFlags::RDONLY).err(), Some(Errno::STALE), "{sort:?}");
            }
        }
        let found = hold(pool, "d/f");
        assert_ne!(format!("{found:?}"), format!("{old:?}"));
        check(pool, &found);
        sh(&branch, "rm -rf f n* *.too");
        new.is_some()
    });
}

/// Names in a directory; none if it cannot be read.
fn names(dir: std::os::fd::OwnedFd) -> Vec<String> {
    let mut entries = fsstack_sys::dirents::Dirents::new(dir, 1 << 10);
    let mut names = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        names.push(entry.name.to_str().unwrap().to_owned());
    }
    names.retain(|name| name != "." && name != "..");
    names
}

#[test]
fn a_number_used_again_on_xfs_is_stale_for_the_old_handle() {
    needs!(mounting(), loops(), drop_caches());
    numbers_used_again(Kind::Xfs(MiB(300)));
}

#[test]
fn a_number_used_again_on_ext4_is_stale_for_the_old_handle() {
    needs!(mounting(), loops(), drop_caches());
    numbers_used_again(Kind::Ext4(MiB(100)));
}

#[test]
fn a_file_removed_from_btrfs_is_stale() {
    needs!(mounting(), loops(), drop_caches(), program("mkfs.btrfs"));
    numbers_used_again(Kind::Btrfs(MiB(200)));
}

/// Removing one of several names does not end the object.
#[test]
fn a_handle_is_good_for_as_long_as_a_link_is_left() {
    needs!(mounting(), loops(), drop_caches());
    let mut pool = lab::pool().xfs_branch("b", MiB(300)).option("nfs-export").mount();
    let branch = pool.branch("b").path().to_owned();
    Sort::HardLink.make(&branch.join("f"), "text");
    let held = hold(&pool, "f");
    fs::remove_file(branch.join("f")).unwrap();
    check(&pool, &held);
    forget();
    check(&pool, &held);
    pool.remount();
    check(&pool, &held);
    fs::remove_file(branch.join("f.too")).unwrap();
    forget_everywhere(&pool);
    check_stale(&pool, &held);
}
