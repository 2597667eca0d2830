//! Lookups by number, as made by an NFS server.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use fsstack_engine::files::route::NoBackings;
use fsstack_engine::settings::Settings;
use fsstack_engine::{Pool, Union};
use fsstack_fuse::{Adapter, Outcome, Serve, Timeouts};
use fsstack_lab::needs::Skip;
use fsstack_pool::settings::Xattrs;
use fsstack_pool::{BranchMode, BranchSpec, Ino};
use fsstack_sys::Errno;
use fsstack_wire::{Abi, Answer, Header, Operation, Request, encode};

use crate::test_bed::{TestBed, settings};

/// A pool for export, if the file system of /tmp opens objects by number.
fn pool() -> Result<TestBed, Skip> {
    let exported = Settings { nfs_export: true, ..settings() };
    let pool = TestBed::with(&[BranchMode::ReadWrite; 2], exported);
    if pool.union.pool().branches[0].by_number.is_none() {
        return Err(Skip::because("needs root, and ext4 or XFS under /tmp"));
    }
    pool.put(0, "d/sub/f", "f");
    pool.put(1, "d/g", "g");
    Ok(pool)
}

macro_rules! pool_or_skip {
    () => {
        match pool() {
            Ok(pool) => pool,
            Err(skip) => return skip.announce(),
        }
    };
}

/// Numbers of these objects, which the kernel then forgets.
fn forgotten(pool: &TestBed, paths: &[&str]) -> Vec<(Ino, u64)> {
    let found: Vec<_> = paths.iter().map(|path| pool.find(path).unwrap()).collect();
    pool.let_go();
    found.iter().map(|entry| (entry.ino, entry.generation)).collect()
}

fn until_marks_are_known(pool: &TestBed) {
    let began = std::time::Instant::now();
    while !pool.union.index_health().complete {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "the marks are never known");
        std::thread::yield_now();
    }
}

/// Error for the object when all marks on the branches are known. An object with the same number, made by another user
/// of the file system, is a different one: the kernel compares generations.
fn refused(pool: &TestBed, (ino, generation): (Ino, u64)) -> Option<Errno> {
    until_marks_are_known(pool);
    match pool.itself(ino) {
        Ok(entry) if entry.generation != generation => Some(Errno::STALE),
        answer => answer.err(),
    }
}

#[test]
fn a_forgotten_object_is_found_by_its_number() {
    let pool = pool_or_skip!();
    let held = forgotten(&pool, &["d/sub/f", "d/g", "d/sub", "d"]);
    for (ino, generation) in held.iter().chain(held.iter().rev()) {
        let found = pool.itself(*ino).unwrap();
        assert_eq!((found.ino, found.generation), (*ino, *generation));
        pool.let_go();
    }
    pool.itself(held[0].0).unwrap();
    assert_eq!(pool.read_ino(held[0].0).unwrap(), "f");
}

#[test]
fn a_directory_tells_the_one_that_it_lies_in() {
    let pool = pool_or_skip!();
    let held = forgotten(&pool, &["d/sub", "d"]);
    pool.itself(held[0].0).unwrap();
    assert_eq!(pool.above(held[0].0).unwrap().ino, held[1].0);
    assert_eq!(pool.above(held[1].0).unwrap().ino, Ino::ROOT);
    assert_eq!(pool.above(Ino::ROOT).err(), Some(Errno::NOENT));
    assert_eq!(pool.itself(Ino::ROOT).unwrap().generation, 0);
    // A directory is one inode however it was found: a rename of it moves its content.
    pool.let_go();
    pool.itself(held[0].0).unwrap();
    pool.rename("d", "e").unwrap();
    assert_eq!(pool.lookup(held[0].0, "f").unwrap().attr.stat.size, 1);
}

#[test]
fn an_object_renamed_out_of_band_is_found_again() {
    let pool = pool_or_skip!();
    let (file, sub, dir) = (pool.ino("d/sub/f"), pool.ino("d/sub"), pool.ino("d"));
    fs::rename(pool.on(0, "d/sub/f"), pool.on(0, "f2")).unwrap();
    fs::rename(pool.on(0, "d/sub"), pool.on(0, "sub2")).unwrap();
    assert_eq!(pool.read_ino(file).unwrap(), "f");
    assert_eq!(pool.above(sub).unwrap().ino, Ino::ROOT);
    pool.let_go();
    for ino in [file, sub, dir] {
        assert_eq!(pool.itself(ino).unwrap().ino, ino);
    }
    pool.lookup(sub, "f").unwrap_err();
}

#[test]
fn a_removed_object_is_stale() {
    let pool = pool_or_skip!();
    let held = forgotten(&pool, &["d/sub/f", "d/sub"]);
    fs::remove_dir_all(pool.on(0, "d/sub")).unwrap();
    for object in held {
        assert_eq!(refused(&pool, object), Some(Errno::STALE));
    }
}

#[test]
fn an_object_on_a_branch_out_of_the_pool_is_an_error_and_not_gone() {
    let mut pool = pool_or_skip!();
    let held = forgotten(&pool, &["d/sub/f", "d/g"]);
    let mut taken = None;
    pool.remount(|branches| taken = branches.pop());
    assert_eq!(pool.itself(held[0].0).unwrap().ino, held[0].0);
    assert_eq!(pool.itself(held[1].0).err(), Some(Errno::IO));
    pool.remount(|branches| branches.insert(0, taken.unwrap()));
    for (ino, generation) in held {
        assert_eq!(pool.itself(ino).unwrap().generation, generation);
    }
}

/// Any process id, also one that is not visible here (0): a daemon in a container sees neither the kernel's server nor
/// a server in another container (docs/dev/decisions/0026).
#[test]
fn a_request_for_an_object_out_of_reach_is_to_be_repeated() {
    let home = tempfile::tempdir().unwrap();
    let exported = Settings { nfs_export: true, ..settings() };
    let pool = Pool::open(&[BranchSpec::new(home.path().to_owned())], exported).unwrap();
    let branch = pool.branches[0].id;
    let union = Arc::new(Union::new(pool, Arc::new(NoBackings)));
    let abi = Abi { setxattr_ext: false };
    let timeouts = Timeouts {
        entry: Duration::ZERO,
        attr: Duration::ZERO,
        negative: Duration::ZERO,
        watched: (Duration::ZERO, Duration::ZERO),
    };
    let adapter = Adapter::new(union.clone(), timeouts, abi, Xattrs::On);
    // For a branch outside the pool.
    let other = if branch.get() == 1 { 2 } else { 1 };
    for pid in [0, std::process::id(), 2] {
        let header = Header { unique: 2, nodeid: other << 48 | 7, pid, ..Header::default() };
        let parts = encode::request(abi, &header, &Operation::Lookup { name: c"." }, &[]);
        let request = Request::parse(abi, &parts.header, &parts.op_in, &parts.rest).unwrap();
        let answer = adapter.serve(&request, &mut Answer::new(&mut [0; 512]));
        assert_eq!(answer, Outcome::Refused(Errno::NOMEM.raw_os_error()), "{pid}");
    }
    union.destroy();
}

/// The file system opens any of its inodes by number.
#[test]
fn objects_outside_of_the_pool_are_not_reached_by_a_number() {
    let pool = pool_or_skip!();
    until_marks_are_known(&pool);
    let branch = pool.ino("d/g").0 >> 48 << 48;
    let number = |path: &std::path::Path| {
        Ino(branch | std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap()))
    };
    let outside = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(pool.itself(number(outside.path())).unwrap_err(), Errno::STALE);
    // The pool's own files.
    pool.put(1, ".fsstack.moving/half", "a cop");
    assert_eq!(pool.itself(number(&pool.on(1, ".fsstack.moving/half"))).unwrap_err(), Errno::STALE);
    fs::remove_dir_all(pool.on(1, ".fsstack.moving")).unwrap();
    // Objects that were not looked up by name, or have a name elsewhere too.
    pool.put(1, "d/late", "x");
    fs::hard_link(outside.path(), pool.on(1, "d/both")).unwrap();
    for name in ["d/late", "d/both"] {
        pool.itself(number(&pool.on(1, name))).unwrap();
    }
}
