//! Threads that work in directories while others rename these.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fsstack_engine::ops::WriteTerms;
use fsstack_engine::settings::Settings;
use fsstack_engine::{Caller, Union};
use fsstack_pool::BranchMode::ReadWrite;
use fsstack_pool::Ino;
use fsstack_sys::OFlags;
use fsstack_sys::at::RenameFlags;

use crate::test_bed::{TestBed, buf, settings};

const ROUNDS: usize = 150;

/// Creates, writes, renames, links, lists and removes files in `dir`, as the kernel would: by number.
fn work(union: &Union, dir: Ino) {
    let (a, b, c) = (buf("a"), buf("b"), buf("c"));
    for round in 0..ROUNDS {
        let text = format!("round {round}");
        let flags = OFlags::RDWR | OFlags::EXCL;
        let made = union.create(dir, a.as_name(), 0o644, flags, Caller::DAEMON).unwrap();
        let (ino, handle) = (made.entry.ino, made.opened.handle);
        assert_eq!(union.write(handle, 0, text.as_bytes(), WriteTerms::default()).unwrap(), text.len());
        union.release(handle);
        union.rename((dir, a.as_name()), (dir, b.as_name()), RenameFlags::NOREPLACE).unwrap();
        let linked = union.link(ino, dir, c.as_name()).unwrap();
        assert_eq!((linked.ino, linked.attr.stat.nlink), (ino, 2));
        union.unlink(dir, b.as_name()).unwrap();
        let opened = union.open(ino, OFlags::RDONLY, Caller::DAEMON).unwrap();
        let mut back = vec![0; text.len()];
        assert_eq!(union.read(opened.handle, 0, &mut back).unwrap(), text.len());
        assert_eq!(back, text.as_bytes());
        union.release(opened.handle);
        assert_eq!(union.lookup(dir, c.as_name()).unwrap().ino, ino);
        union.unlink(dir, c.as_name()).unwrap();
        union.forget(ino, 3);
    }
}

#[test]
fn work_goes_on_below_directories_that_are_renamed() {
    let few = Settings { dir_fds: 16, create: "rand".parse().unwrap(), ..settings() };
    let pool = TestBed::with(&[ReadWrite; 3], few);
    let homes: Vec<Ino> = (0..3)
        .map(|n| {
            pool.mkdir(&format!("p{n}")).unwrap();
            pool.mkdir(&format!("p{n}/x")).unwrap();
            pool.mkdir(&format!("p{n}/x/home")).unwrap()
        })
        .collect();
    let union = &pool.union;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = homes.iter().map(|home| scope.spawn(move || work(union, *home))).collect();
        // One thread renames their grandparents meanwhile.
        let renamer = scope.spawn(|| {
            let rename = |from: &str, to: &str, flags| {
                let (from, to) = (buf(from), buf(to));
                union.rename((Ino::ROOT, from.as_name()), (Ino::ROOT, to.as_name()), flags).unwrap();
            };
            while !done.load(Relaxed) {
                rename("p0", "q0", RenameFlags::empty());
                rename("p1", "p2", RenameFlags::EXCHANGE);
                rename("q0", "p0", RenameFlags::NOREPLACE);
            }
        });
        let lines: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Relaxed);
        renamer.join().unwrap();
        lines.into_iter().for_each(|lines| lines.unwrap());
    });
    for home in homes {
        let dir = pool.opendir(home);
        assert!(pool.rest(dir, 0, 9).is_empty());
    }
    assert_eq!(pool.names(""), ["p0", "p1", "p2"]);
}

#[test]
fn threads_that_make_the_same_skeleton_share_it() {
    for _ in 0..20 {
        let pool = TestBed::new(2);
        pool.put_dir(0, "a/b/c");
        let dir = pool.ino("a/b/c");
        for n in 0..4 {
            pool.put(1, &format!("f{n}"), "x");
        }
        let union = &pool.union;
        std::thread::scope(|scope| {
            for n in 0..4 {
                let name = buf(&format!("f{n}"));
                scope.spawn(move || {
                    let (from, to) = ((Ino::ROOT, name.as_name()), (dir, name.as_name()));
                    union.rename(from, to, RenameFlags::empty()).unwrap();
                });
            }
        });
        assert_eq!(pool.names("a/b/c"), ["f0", "f1", "f2", "f3"]);
        assert_eq!(pool.ino("a/b/c"), dir);
    }
}
