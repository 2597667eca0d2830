//! A directory's copies: one is added, attributes change, the only one is removed, a lookup answers late.

use std::sync::Arc;

use fsstack_identity::number::Identity;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::{Mutex, model, thread};

use super::{ID, X, Y};
use crate::inode::clock::Moment;
use crate::inode::{Copies, Inode};

/// The directory on the disks: for each branch the rights of its copy, if it has one.
type DirOnDisks = Arc<Mutex<[Option<u32>; 2]>>;

fn begin() -> (Arc<Inode>, DirOnDisks) {
    let dir = Arc::new(Inode::dir(ID, &Copies::known([(X, 10)])));
    dir.update_copies(&asked([(X, 10)]));
    (dir, Arc::new(Mutex::new([Some(0o777), None])))
}

fn asked(found: impl IntoIterator<Item = (BranchIx, u64)>) -> Copies {
    let mut copies = Copies::asked_now();
    copies.found.extend(found);
    copies
}

/// Gives the branch Y a copy, made with the rights of the first one.
fn grow(dir: &Inode, disks: &DirOnDisks) {
    let guard = loop {
        if let Some(guard) = dir.grow(Y) {
            break guard;
        }
        thread::yield_now();
    };
    let Some(rights) = disks.lock()[0] else { return };
    thread::yield_now();
    disks.lock()[1] = Some(rights);
    dir.add_copy(Y, 20, None, |branch| usize::from(branch.0));
    drop(guard);
}

/// A right that is taken away is taken away on all copies, also on one that is being made (R3).
#[test]
fn all_copies_have_the_rights_that_were_set() {
    model::check(|| {
        let (dir, disks) = begin();
        let grower = {
            let (dir, disks) = (dir.clone(), disks.clone());
            thread::spawn(move || grow(&dir, &disks))
        };
        let setters: Vec<_> = [0o770, 0o700]
            .into_iter()
            .map(|rights| {
                let (dir, disks) = (dir.clone(), disks.clone());
                thread::spawn(move || {
                    let guard = loop {
                        if let Some(guard) = dir.change() {
                            break guard;
                        }
                        thread::yield_now();
                    };
                    while !guard.has_all() {
                        thread::yield_now();
                    }
                    for branch in dir.copies() {
                        disks.lock()[usize::from(branch.0)] = Some(rights);
                        thread::yield_now();
                    }
                    drop(guard);
                })
            })
            .collect();
        grower.join().unwrap();
        setters.into_iter().for_each(|setter| setter.join().unwrap());
        let [first, second] = *disks.lock();
        assert_eq!(first, second, "a copy has the rights from before");
        assert_ne!(first, Some(0o777));
    });
}

/// Removing the only copy and making another one exclude each other: no copy is left of a directory that was removed.
#[test]
fn no_copy_outlives_a_directory() {
    model::check(|| {
        let (dir, disks) = begin();
        let grower = {
            let (dir, disks) = (dir.clone(), disks.clone());
            thread::spawn(move || grow(&dir, &disks))
        };
        let removes = thread::spawn({
            let (dir, disks) = (dir.clone(), disks.clone());
            move || {
                let Some(guard) = dir.go() else { return false };
                assert_eq!(guard.at, X);
                disks.lock()[0] = None;
                thread::yield_now();
                dir.lose();
                drop(guard);
                true
            }
        });
        grower.join().unwrap();
        let removed = removes.join().unwrap();
        let expected = if removed { [None; 2] } else { [Some(0o777); 2] };
        assert_eq!(*disks.lock(), expected);
    });
}

/// Answers of all branches from before a copy was added do not take that copy away.
#[test]
fn a_late_answer_takes_no_new_copy_away() {
    model::check(|| {
        let (dir, disks) = begin();
        let looks = {
            let (dir, disks) = (dir.clone(), disks.clone());
            thread::spawn(move || {
                let mut answer = Copies::asked_now();
                for (branch, ino) in [(X, 10), (Y, 20)] {
                    if disks.lock()[usize::from(branch.0)].is_some() {
                        answer.found.push((branch, ino));
                    }
                }
                dir.update_copies(&answer);
            })
        };
        grow(&dir, &disks);
        looks.join().unwrap();
        assert_eq!(dir.copies()[..], [X, Y], "a copy that is there is forgotten");
    });
}

/// Answers from before a copy was removed and another one made bring neither the removed one back nor its number.
#[test]
fn a_late_answer_brings_no_removed_copy_back() {
    model::check(|| {
        let dir = Arc::new(Inode::dir(ID, &Copies::known([(X, 10), (Y, 20)])));
        let on_y = Arc::new(Mutex::new(Some(20)));
        let looks = {
            let (dir, on_y) = (dir.clone(), on_y.clone());
            thread::spawn(move || {
                let mut answer = Copies::asked_now();
                answer.found.push((X, 10));
                answer.found.extend(on_y.lock().map(|ino| (Y, ino)));
                dir.update_copies(&answer);
            })
        };
        let was = dir.copy_on(Y).unwrap();
        *on_y.lock() = None;
        dir.drop_copy(Y, was);
        thread::yield_now();
        *on_y.lock() = Some(21);
        dir.add_copy(Y, 21, None, |branch| usize::from(branch.0));
        looks.join().unwrap();
        assert_eq!(dir.copy_ino(Y), Some(21));
    });
}

/// A lookup from before a directory was renamed does not give it its old name back.
#[test]
fn a_late_lookup_gives_no_old_name_back() {
    model::check(|| {
        let parent = Arc::new(Inode::dir(Identity { ino: Ino(3), generation: 0 }, &Copies::known([(X, 3)])));
        let dir = Arc::new(Inode::dir(ID, &Copies::known([(X, 10)])));
        dir.note_name(&parent, c"old", 1, Moment::KNOWN);
        let on_disk = Arc::new(Mutex::new(c"old"));
        let looks = {
            let (parent, dir, on_disk) = (parent.clone(), dir.clone(), on_disk.clone());
            thread::spawn(move || {
                let asked = Moment::now();
                let seen = *on_disk.lock();
                thread::yield_now();
                dir.note_name(&parent, seen, 1, asked);
            })
        };
        *on_disk.lock() = c"new";
        dir.renamed((&parent, c"old"), (&parent, c"new"));
        looks.join().unwrap();
        assert_eq!(*dir.name().unwrap().name, *c"new");
    });
}
