//! Listing, and removing listed names, on one branch and on several.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use fsstack_lab::{self as lab, Pool, needs};

use crate::script::{python, refused, sh};

fn spread() -> Pool {
    lab::pool().tmp_branch("a").tmp_branch("b").tmp_branch("c").option("create=rand").mount()
}

#[test]
fn rm_of_three_thousand_files_leaves_none() {
    needs!(mounting());
    let pool = spread();
    sh(pool.path(), "mkdir d; cd d; seq 3000 | xargs touch; ls | wc -l | grep -qx 3000");
    sh(pool.path(), "rm -rf d");
    assert!(pool.list("").is_empty());
    for branch in pool.branches() {
        assert!(fs::read_dir(branch.path()).unwrap().next().is_none(), "{} is not empty", branch.name());
    }
}

#[test]
fn a_hundred_thousand_entries_are_listed_while_some_are_removed() {
    needs!(mounting(), program("python3"), not_on_gluster("it makes a few thousand files a minute"));
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").unmounted();
    // Made on the branches, because only listing is tested.
    let dirs: Vec<_> = pool.branches().iter().map(|branch| branch.path().join("d")).collect();
    for (n, dir) in dirs.iter().enumerate() {
        fs::create_dir(dir).unwrap();
        python(dir, &format!("for n in range({n}, 100000, 2): open(f'entry-{{n}}', 'x').close()"));
    }
    pool.remount();
    let before = pool.daemon().resident().unwrap();
    let list = "
import os
seen = []
with os.scandir('d') as entries:
    for entry in entries:
        seen.append(int(entry.name[6:]))
        if len(seen) % 20 == 0:
            os.unlink(entry.path)
assert len(seen) == len(set(seen)), 'a name came twice'
assert len(seen) == 100000, len(seen)
print(len(os.listdir('d')))";
    assert_eq!(python(pool.path(), list), "95000");
    let grown = pool.daemon().resident().unwrap().saturating_sub(before);
    assert!(grown < 64 << 20, "the daemon grew by {grown} bytes");
}

#[test]
fn a_listing_goes_on_where_seekdir_puts_it() {
    needs!(mounting(), program("python3"));
    let pool = spread();
    sh(pool.path(), "mkdir d; cd d; seq 500 | xargs touch");
    let work = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
for f in (libc.readdir, libc.telldir, libc.rewinddir, libc.closedir): f.argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
def rest(d):
    names = []
    while (e := libc.readdir(d)):
        names.append(ctypes.string_at(e + 19))
    return names
d = libc.opendir(b'd')
places, names = [libc.telldir(d)], []
while (e := libc.readdir(d)):
    names.append(ctypes.string_at(e + 19)); places.append(libc.telldir(d))
assert len(set(names)) == 502, len(names)
for at in (0, 1, 2, 3, 250, 499, 501, 502):
    libc.seekdir(d, places[at])
    assert rest(d) == names[at:], at
libc.rewinddir(d); assert rest(d) == names
# In another handle, after other entries have gone.
for name in names[100:200]:
    if name[:1] != b'.': os.unlink(b'd/' + name)
e = libc.opendir(b'd'); libc.seekdir(e, places[300])
assert rest(e) == names[300:]
libc.rewinddir(d); assert set(rest(d)) == set(names[:100] + names[200:]) | ({b'.', b'..'} & set(names))
print('same')";
    assert_eq!(python(pool.path(), work), "same");
}

#[test]
fn a_listing_that_the_kernel_keeps_is_of_the_branches_as_they_are() {
    needs!(mounting());
    let pool = spread();
    sh(pool.path(), "mkdir d; touch d/old");
    // Cached from the second listing on; then changed in the pool, and out of band.
    let kept = || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let _fills = pool.list("d");
        pool.list("d")
    };
    assert_eq!(kept(), ["old"]);
    sh(pool.path(), "touch d/own");
    assert_eq!(pool.list("d"), ["old", "own"]);
    assert_eq!(kept(), ["old", "own"]);
    let holder = pool.branch(pool.holders("d/old")[0]).path().join("d");
    fs::write(holder.join("past"), b"").unwrap();
    assert_eq!(pool.list("d"), ["old", "own", "past"]);
    assert_eq!(kept(), ["old", "own", "past"]);
    fs::remove_file(holder.join("old")).unwrap();
    assert_eq!(pool.list("d"), ["own", "past"]);
    // A new copy of the directory made out of band shows when all branches are searched for copies again.
    sh(pool.path(), "rm d/own; mkdir d/sub");
    assert_eq!(pool.list("d"), ["past", "sub"]);
}

#[test]
fn a_directory_on_several_branches_is_one() {
    needs!(mounting());
    let mut pool = spread();
    pool.unmount();
    for (branch, name) in [("a", "one"), ("b", "two"), ("c", "two")] {
        fs::create_dir(pool.branch(branch).path().join("d")).unwrap();
        fs::write(pool.branch(branch).path().join("d").join(name), branch).unwrap();
    }
    pool.remount();
    assert_eq!(pool.list("d"), ["one", "two"]);
    assert_eq!(pool.read("d/two"), b"b");
    // No hidden copy is uncovered.
    fs::remove_file(pool.at("d/two")).unwrap();
    assert_eq!(pool.list("d"), ["one"]);
    assert!(refused(pool.path(), "rmdir d").contains("not empty"));
    sh(pool.path(), "chmod 751 d; chown 12:34 d; touch -d @1000 d; rm d/one");
    for branch in ["a", "b", "c"] {
        let copy = fs::metadata(pool.branch(branch).path().join("d")).unwrap();
        assert_eq!((copy.mode() & 0o7777, copy.uid(), copy.gid()), (0o751, 12, 34), "{branch}");
    }
    sh(pool.path(), "rmdir d");
    assert!(pool.holders("d").is_empty());
}

#[test]
fn a_rename_over_a_directory_looks_at_every_branch_first() {
    needs!(mounting());
    let mut pool = spread();
    pool.unmount();
    for branch in ["a", "c"] {
        fs::create_dir(pool.branch(branch).path().join("target")).unwrap();
    }
    fs::write(pool.branch("c").path().join("target/hidden"), "x").unwrap();
    fs::create_dir(pool.branch("a").path().join("source")).unwrap();
    fs::write(pool.branch("a").path().join("source/kept"), "x").unwrap();
    pool.remount();
    let failed = fs::rename(pool.at("source"), pool.at("target")).unwrap_err();
    assert_eq!(failed.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    assert_eq!((pool.list("source"), pool.list("target")), (vec!["kept".into()], vec!["hidden".into()]));
    fs::remove_file(pool.at("target/hidden")).unwrap();
    fs::rename(pool.at("source"), pool.at("target")).unwrap();
    assert_eq!((pool.list(""), pool.list("target")), (vec!["target".into()], vec!["kept".into()]));
    assert_eq!(pool.holders("target"), ["a"]);
}

#[test]
fn no_rename_and_no_link_crosses_devices() {
    needs!(mounting());
    let pool = spread();
    sh(
        pool.path(),
        "for i in $(seq 12); do mkdir -p from/$i to/$i; echo $i > from/$i/f; ln from/$i/f to/$i/linked
           mv -T from/$i to/$i/moved; [ $(cat to/$i/moved/f) = $i ]; [ to/$i/moved/f -ef to/$i/linked ]
           mv to/$i/linked from/f$i; mv to/$i/moved/f to/$i/f; done",
    );
    let numbers: BTreeSet<u64> =
        (1..=12).map(|i| fs::metadata(pool.at(format!("from/f{i}"))).unwrap().ino()).collect();
    assert_eq!(numbers.len(), 12);
    // A rename and a link make no copies.
    assert_eq!(sh(pool.path(), "stat -c %h from/f*; ls to/1").lines().filter(|l| *l == "2").count(), 12);
}

#[test]
fn numbers_are_the_same_after_a_remount_and_a_rename() {
    needs!(mounting());
    let mut pool = spread();
    sh(pool.path(), "for i in $(seq 10); do mkdir d$i; echo > d$i/f; ln d$i/f d$i/g; done");
    let look = "find . -mindepth 1 -printf '%i %P\n' | sort -k2";
    let before = sh(pool.path(), look);
    pool.remount();
    assert_eq!(sh(pool.path(), look), before);
    let moved = sh(
        pool.path(),
        "i=$(stat -c %i d1/f); mv d1/f d2/h; [ $i = $(stat -c %i d2/h) ]; stat -c %i d1/g d2/h | uniq | wc -l",
    );
    assert_eq!(moved, "1");
}
