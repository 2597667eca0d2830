//! A branch that is mounted again, with other inode numbers, before each call of a request.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fsstack_engine::Caller;
use fsstack_engine::admin::mount_watch::MountWatch;
use fsstack_engine::ops::New;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, MiB, needs, until};
use fsstack_pool::{BranchIx, BranchSpec, EntryName, Ino};
use fsstack_sys::{Errno, OFlags, fault};
use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};

use crate::engine::{Answer, Engine, settings};

const X: BranchIx = BranchIx(0);

/// Gives the root `to` the attributes of the root `from`, by which a branch is recognised.
fn copy_attributes(from: &Path, to: &Path) {
    let mut names = vec![0; 4096];
    let len = listxattr(from, &mut names[..]).unwrap();
    for name in names[..len].split_inclusive(|byte| *byte == 0) {
        let name = std::ffi::CStr::from_bytes_with_nul(name).unwrap();
        let mut value = vec![0; 4096];
        let len = getxattr(from, name, &mut value[..]).unwrap();
        setxattr(to, name, &value[..len], XattrFlags::empty()).unwrap();
    }
}

/// Runs `act`, which learns the number of `name`, on a pool of one branch. Another mount with other inode numbers replaces the branch
/// before the n-th call, for every n. Returns what `act` learns, and what a lookup does afterwards, for each.
fn beside_a_new_mount(
    cross_mounts: bool,
    name: &str,
    act: impl Fn(&Engine, &Path) -> Answer<Ino>,
) -> Vec<[Answer<Ino>; 2]> {
    let name = Path::new(name);
    let mut told = Vec::new();
    loop {
        let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("again", MiB(4)).unmounted();
        let [old, new] = ["a", "again"].map(|name| pool.branch(name).path().to_owned());
        fs::create_dir(new.join("first")).unwrap();
        let [was, is] = [&old, &new].map(|home| {
            fs::write(home.join("film"), "").unwrap();
            home.join("film").metadata().unwrap().ino()
        });
        assert_ne!(was, is, "the new mount has other numbers");
        let spec = BranchSpec { cross_mounts, ..BranchSpec::new(old.clone()) };
        let engine = Engine::of(vec![spec], settings("ff"));
        copy_attributes(&old, &new);
        let watch = MountWatch::start(&engine.union, || {}).unwrap();
        let union = engine.union.clone();
        let again = move || {
            command("umount").arg("-l").arg(&old).run().unwrap();
            command("mount").arg("--bind").args([&new, &old]).run().unwrap();
            until("the branch is mounted again", || {
                let pool = union.pool();
                pool.branch(X).is_open() && pool.branch(X).mount_generation() > 0
            });
        };
        let nth = told.len() as u64 + 1;
        let (learnt, reached) = fault::before(nth, again, || act(&engine, name));
        drop(watch);
        if !reached {
            return told;
        }
        told.push([learnt, engine.ino(name)]);
    }
}

#[test]
fn a_lookup_on_the_old_mount_says_nothing_of_the_new_one() {
    needs!(root());
    for cross_mounts in [false, true] {
        let told = beside_a_new_mount(cross_mounts, "film", |engine, name| engine.ino(name));
        assert!(!told.is_empty(), "a lookup makes calls");
        assert!(told.iter().all(|[learnt, then]| learnt.is_ok() && learnt == then), "{told:?}");
    }
}

#[test]
fn what_is_made_on_the_old_mount_has_no_number() {
    needs!(root());
    let name = || EntryName::new(c"new").unwrap();
    let create = |engine: &Engine, _: &Path| {
        let made = engine.union.create(Ino::ROOT, name(), 0o644, OFlags::RDWR, Caller::DAEMON);
        made.map(|made| made.entry.ino).map_err(|error| error.errno())
    };
    let mkdir = |engine: &Engine, _: &Path| {
        let made = engine.union.make(Ino::ROOT, name(), New::Dir(0o755), Caller::DAEMON);
        made.map(|made| made.ino).map_err(|error| error.errno())
    };
    for cross_mounts in [false, true] {
        for told in
            [beside_a_new_mount(cross_mounts, "new", create), beside_a_new_mount(cross_mounts, "new", mkdir)]
        {
            assert!(told.len() > 1, "it makes calls");
            // Whether what a call on the old mount has made is there is unknown.
            let is_good = |[learnt, then]: &[Answer<Ino>; 2]| *learnt == Err(Errno::IO) || learnt == then;
            assert!(told.iter().all(is_good), "{told:?}");
        }
    }
}
