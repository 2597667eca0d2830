//! A branch's root copied to another with its attributes: by `rsync -X`, `cp -a`, a restored backup, or `mergerfs.balance`,
//! which ends with `shutil.copystat`.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use fsstack_lab::needs;
use fsstack_sys::xattr::{self, On};

use crate::test_bed::TestBed;

const ID: &CStr = c"trusted.fsstack.branch";
const POOL: &CStr = c"trusted.fsstack.pool";
const ROOT: &CStr = c"trusted.fsstack.root";

fn attribute(dir: &Path, name: &CStr) -> Option<Vec<u8>> {
    let dir = fs::File::open(dir).unwrap();
    xattr::get_vec(On::Fd(dir.as_fd()), name).ok()
}

/// Does what `shutil.copystat` does: the attributes of `from` are set on `to`, and others stay.
fn copystat(from: &Path, to: &Path) {
    let (from, to) = (fs::File::open(from).unwrap(), fs::File::open(to).unwrap());
    let names = xattr::list_vec(On::Fd(from.as_fd())).unwrap();
    for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"trusted.fsstack.")) {
        let name = CString::new(name).unwrap();
        let value = xattr::get_vec(On::Fd(from.as_fd()), &name).unwrap();
        xattr::set(On::Fd(to.as_fd()), &name, &value, 0).unwrap();
    }
}

fn pool() -> TestBed {
    let pool = TestBed::new(2);
    pool.put(0, "f0", "");
    pool.put(1, "f1", "");
    pool
}

/// The numbers of the file on the first branch and of that on the second.
fn numbers(pool: &TestBed) -> [u64; 2] {
    ["f0", "f1"].map(|path| pool.ino(path).0)
}

#[test]
fn the_branch_whose_marks_were_copied_keeps_its_numbers_whichever_comes_first() {
    needs!(root());
    for (from, to) in [(0, 1), (1, 0)] {
        let mut pool = pool();
        let before = numbers(&pool);
        copystat(pool.branch(from), pool.branch(to));
        pool.remount(|_| ()); // as after a kill
        let now = numbers(&pool);
        assert_eq!(now[from], before[from], "from {from}");
        assert_ne!(now[to] >> 48, now[from] >> 48, "one id for two branches");
        let ids = [0, 1].map(|at| attribute(pool.branch(at), ID).unwrap());
        assert_ne!(ids[0], ids[1]);
        pool.remount(|branches| branches.reverse());
        assert_eq!(numbers(&pool), now);
    }
}

#[test]
fn a_branch_that_got_anothers_marks_has_its_own_again_after_the_unmount() {
    needs!(root());
    for (from, to) in [(0, 1), (1, 0)] {
        let mut pool = pool();
        let before = numbers(&pool);
        copystat(pool.branch(from), pool.branch(to));
        pool.union.destroy();
        pool.remount(|_| ());
        assert_eq!(numbers(&pool), before, "from {from}");
    }
}

#[test]
fn the_copy_of_a_branch_is_a_branch_of_no_pool() {
    needs!(root());
    let mut pool = pool();
    let (id, of) = (attribute(pool.branch(0), ID), attribute(pool.branch(0), POOL));
    assert!(id.is_some() && of.is_some());
    let copy = tempfile::tempdir_in(pool.branch(0).parent().unwrap()).unwrap();
    copystat(pool.branch(0), copy.path());
    pool.remount(|branches| {
        let [first, _] = &mut branches[..] else { panic!() };
        first.path = copy.path().to_owned();
        branches.truncate(1);
    });
    assert_ne!(attribute(copy.path(), ID), id);
    assert_ne!(attribute(copy.path(), POOL), of, "two pools of one id");
}

#[test]
fn marks_of_version_0_1_count_and_are_given_the_name_of_their_root() {
    needs!(root());
    let mut pool = pool();
    let before = numbers(&pool);
    for at in [0, 1] {
        let root = fs::File::open(pool.branch(at)).unwrap();
        xattr::remove(On::Fd(root.as_fd()), ROOT).unwrap();
    }
    pool.remount(|_| ());
    assert_eq!(numbers(&pool), before);
    let roots = [0, 1].map(|at| attribute(pool.branch(at), ROOT).unwrap());
    assert_ne!(roots[0], roots[1]);
    // Of two holders of an id the one that it was put on keeps it, though it comes later.
    let second = fs::File::open(pool.branch(0)).unwrap();
    xattr::remove(On::Fd(second.as_fd()), ROOT).unwrap();
    let id = attribute(pool.branch(1), ID).unwrap();
    xattr::set(On::Fd(second.as_fd()), ID, &id, 0).unwrap();
    pool.remount(|_| ());
    assert_eq!(numbers(&pool)[1], before[1]);
    assert_ne!(numbers(&pool)[0] >> 48, before[1] >> 48);
}
