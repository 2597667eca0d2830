//! Cost of operations in system calls.

use std::sync::Arc;

use fsstack_engine::answer::Validity;
use fsstack_engine::files::route::Route;
use fsstack_engine::ops::{Change, New};
use fsstack_engine::settings::{Settings, WritePath};
use fsstack_engine::{Caller, Pool, Union};
use fsstack_lab::needs;
use fsstack_pool::{BranchSpec, Ino};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{Call, OFlags, count};

use crate::passthrough_kernel::AllPassthrough;
use crate::test_bed::{TestBed, buf, settings};

const ALICE: Caller = Caller { uid: 1234, gid: 1235, group: None, umask: 0o022, pid: 0, mapped: false };
const BOB: Caller = Caller { uid: 1236, ..ALICE };

/// System calls of each operation in a pool with this many branches, with the file on branch `at`.
fn costs(branches: usize, at: usize) -> Vec<(&'static str, u64)> {
    let pool = TestBed::new(branches);
    (0..branches).for_each(|at| pool.put_dir(at, "d"));
    pool.put(at, "d/film", "x");
    let (union, dir) = (&pool.union, pool.ino("d"));
    pool.find("d/film").unwrap();
    let mut costs = Vec::new();
    let mut cost = |what, work: &dyn Fn()| {
        let ((), made) = count::scope(work);
        costs.push((what, made.total()));
    };
    let (film, new, movie, sub) = (buf("film"), buf("new"), buf("movie"), buf("sub"));
    let forget = |ino| union.forget(ino, 1);
    cost("lookup, known", &|| forget(union.lookup(dir, film.as_name()).unwrap().ino));
    cost("lookup, missing", &|| assert!(union.lookup(dir, new.as_name()).is_err()));
    let known = union.lookup(dir, film.as_name()).unwrap().ino;
    cost("getattr", &|| {
        union.getattr(known, None).unwrap();
    });
    cost("chmod", &|| {
        let mode = Change { mode: Some(0o600), ..Change::default() };
        union.setattr(known, None, mode, Caller::DAEMON).unwrap();
    });
    cost("getxattr", &|| assert!(union.getxattr(known, c"user.a", Caller::DAEMON, &mut [0; 8]).is_err()));
    cost("create", &|| {
        let made = union.create(dir, new.as_name(), 0o644, OFlags::RDWR, Caller::DAEMON).unwrap();
        union.release(made.opened.handle);
    });
    cost("open", &|| union.release(union.open(known, OFlags::RDONLY, Caller::DAEMON).unwrap().handle));
    let held = union.open(known, OFlags::RDWR, Caller::DAEMON).unwrap().handle;
    cost("open, already open", &|| {
        union.release(union.open(known, OFlags::RDWR, Caller::DAEMON).unwrap().handle);
    });
    union.release(held);
    forget(known);
    assert!(union.lookup(dir, movie.as_name()).is_err());
    cost("rename", &|| {
        union.rename((dir, new.as_name()), (dir, movie.as_name()), RenameFlags::empty()).unwrap();
    });
    cost("unlink", &|| union.unlink(dir, movie.as_name()).unwrap());
    assert!(union.lookup(dir, sub.as_name()).is_err());
    cost("mkdir", &|| {
        union.make(dir, sub.as_name(), New::Dir(0o755), Caller::DAEMON).unwrap();
    });
    cost("rmdir", &|| union.rmdir(dir, sub.as_name()).unwrap());
    (0..100).for_each(|n| pool.put(at, &format!("long/n{n}"), ""));
    let listed = pool.opendir(pool.ino("long"));
    pool.find("long/n0").unwrap();
    cost("readdirplus, 100 entries", &|| {
        assert_eq!(pool.readdir(listed, 0, true, usize::MAX).unwrap().len(), 102);
    });
    union.destroy();
    costs
}

#[test]
fn an_inode_that_has_a_backing_file_is_opened_without_a_call() {
    let pool = TestBed::new(2);
    pool.put(1, "film", "x");
    let specs = [0, 1].map(|at| BranchSpec::new(pool.branch(at).to_owned()));
    let settings = Settings { write_path: WritePath::Passthrough, ..settings() };
    let union = Union::new(Pool::open(&specs, settings).unwrap(), Arc::new(AllPassthrough));
    let film = union.lookup(Ino::ROOT, buf("film").as_name()).unwrap().ino;
    let first = union.open(film, OFlags::RDWR, Caller::DAEMON).unwrap();
    assert_eq!(first.route, Route::Passthrough(1));
    for mode in [OFlags::RDONLY, OFlags::RDWR, OFlags::WRONLY] {
        let (again, made) = count::scope(|| union.open(film, mode, Caller::DAEMON).unwrap());
        assert_eq!((again.route, made.total()), (first.route, 0), "{mode:?}");
        union.release(again.handle);
    }
    union.release(first.handle);
    union.forget(film, 1);
    union.destroy();
}

/// Attributes that are not cached at all would be requested again at once, for the open's permission check.
#[test]
fn attributes_of_a_file_that_can_be_mapped_are_kept_from_its_creation_to_its_open() {
    let pool = TestBed::new(1);
    let specs = [BranchSpec::new(pool.branch(0).to_owned())];
    let settings = Settings { write_path: WritePath::Passthrough, ..settings() };
    let union = Union::new(Pool::open(&specs, settings).unwrap(), Arc::new(AllPassthrough));
    let made = union.create(Ino::ROOT, buf("film").as_name(), 0o644, OFlags::RDWR, Caller::DAEMON).unwrap();
    let film = made.entry.ino;
    let later = union.getattr(film, None).unwrap();
    union.release(made.opened.handle);
    let closed = union.getattr(film, None).unwrap();
    let kept = [made.entry.attr, later, closed].map(|attr| attr.validity);
    assert_eq!(kept, [Validity::Instant, Validity::None, Validity::Brief]);
    union.forget(film, 1);
    union.destroy();
}

#[test]
fn a_caller_costs_what_differs_from_the_one_before() {
    needs!(root());
    let pool = TestBed::new(2);
    std::os::unix::fs::chown(pool.branch(0), Some(ALICE.uid), Some(ALICE.gid)).unwrap();
    let calls = |caller: Caller, name: &str| {
        assert!(pool.find(name).is_err());
        pool.act_as(caller);
        let (made, calls) = count::scope(|| pool.create(name));
        pool.close(made.unwrap());
        (calls.of(Call::Identity), calls.total() - calls.of(Call::Identity))
    };
    let (_, plain) = calls(Caller::DAEMON, "daemons");
    // A create does not reset the identity: the next one sets its own.
    for (caller, name, switched) in
        [(ALICE, "alices", 2), (ALICE, "alices too", 0), (BOB, "bobs", 1), (ALICE, "alices again", 1)]
    {
        assert_eq!(calls(caller, name), (switched, plain), "{name}");
    }
}

/// Compares the table with docs/dev/performance.md; `UPDATE_EXPECT=1` writes it there.
fn in_the_manual(table: &str) {
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dev/performance.md");
    let text = std::fs::read_to_string(manual).unwrap();
    let (begin, end) = ("<!-- counted -->\n\n", "\n\n<!-- /counted -->");
    let (before, rest) = text.split_once(begin).unwrap();
    let (result, after) = rest.split_once(end).unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(manual, [before, begin, table, end, after].concat()).unwrap();
    } else {
        assert_eq!(result, table, "UPDATE_EXPECT=1 cargo test -p fsstack-tests --test engine the_table");
    }
}

#[test]
fn the_table() {
    let test_beds = [(1, 0), (2, 0), (2, 1), (16, 0), (16, 15)];
    let tables = test_beds.map(|(branches, at)| costs(branches, at));
    let mut rows = vec![
        "| operation | 1 branch | on the first of 2 | on the last of 2 | first of 16 | last of 16 |"
            .to_owned(),
    ];
    rows.push("|---|---:|---:|---:|---:|---:|".into());
    for (row, (what, _)) in tables[0].iter().enumerate() {
        let cells = tables.iter().map(|table| format!(" {} |", table[row].1)).collect::<String>();
        rows.push(format!("| {what} |{cells}"));
    }
    in_the_manual(&rows.join("\n"));
    let of = |test_bed: usize, what: &str| tables[test_bed].iter().find(|(name, _)| *name == what).unwrap().1;
    for (test_bed, place) in test_beds.iter().enumerate() {
        assert_eq!(of(test_bed, "lookup, known"), 1, "{place:?}: one branch is asked");
        assert_eq!(of(test_bed, "getattr"), 1, "{place:?}");
        assert!(of(test_bed, "open") <= 2, "{place:?}");
        assert_eq!(of(test_bed, "open, already open"), 0, "{place:?}");
        // One open, one read, one read at the end, and the attributes of each entry.
        assert!(of(test_bed, "readdirplus, 100 entries") <= 3 + 100, "{place:?}");
    }
    for test_bed in [1, 2] {
        assert!(of(test_bed, "create") <= 3);
        // One on each branch, and two to hold a small object until the kernel forgets it: otherwise the branch may
        // reuse its number while a caller is opening it.
        assert!(of(test_bed, "unlink") <= 4);
        assert!(of(test_bed, "rename") <= 2);
        assert_eq!(of(test_bed, "lookup, missing"), 2);
    }
    assert_eq!(of(3, "create"), of(0, "create"), "a create after a lookup asks no other branch");
}

#[test]
fn the_first_lookup_ends_at_the_first_branch_that_has_the_file() {
    let pool = TestBed::new(16);
    pool.put(0, "film", "x");
    let (found, made) = count::scope(|| pool.find("film"));
    found.unwrap();
    assert_eq!((made.total(), made.of(Call::Stat)), (1, 1));
}

#[test]
fn a_known_directory_on_one_branch_of_sixteen_costs_one_stat() {
    let pool = TestBed::new(16);
    pool.put_dir(9, "d");
    pool.find("d").unwrap();
    let (found, made) = count::scope(|| pool.find("d"));
    found.unwrap();
    assert_eq!((made.total(), made.of(Call::Stat)), (1, 1));
}

#[test]
fn a_listing_of_one_branch_costs_its_getdents() {
    let pool = TestBed::new(1);
    for n in 0..100 {
        pool.put(0, &format!("d/n{n}"), "");
    }
    let dir = pool.opendir(pool.ino("d"));
    pool.find("d/n0").unwrap();
    let (rows, made) = count::scope(|| pool.readdir(dir, 0, false, usize::MAX).unwrap());
    assert_eq!(rows.len(), 102);
    assert!(made.total() <= 3, "opened, read, and saw the end: {}", made.total());
}
