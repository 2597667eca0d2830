//! What operations cost in system calls.

use fsstack_engine::Caller;
use fsstack_engine::ops::New;
use fsstack_lab::needs;
use fsstack_pool::Ino;
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{Call, OFlags, count};

use crate::ground::{Ground, buf};

/// System calls of each operation in a pool of so many branches, the file on the first or the last.
fn costs(branches: usize, at: usize) -> Vec<(&'static str, u64)> {
    let pool = Ground::new(branches);
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
    let number = pool_ino(union, dir, &film);
    let open = || union.open(number, OFlags::RDONLY, Caller::DAEMON).unwrap().handle;
    cost("lookup of a known name", &|| forget(union.lookup(dir, film.as_name()).unwrap().ino));
    cost("lookup of a missing name", &|| assert!(union.lookup(dir, new.as_name()).is_err()));
    let kept = union.lookup(dir, film.as_name()).unwrap().ino;
    cost("getattr", &|| {
        union.getattr(number, None).unwrap();
    });
    assert!(union.lookup(dir, new.as_name()).is_err());
    cost("create", &|| {
        let made = union.create(dir, new.as_name(), 0o644, OFlags::RDWR, Caller::DAEMON).unwrap();
        union.release(made.opened.handle);
    });
    cost("open", &|| union.release(open()));
    let held = open();
    cost("open of an open file", &|| union.release(open()));
    union.release(held);
    forget(kept);
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
    for n in 0..100 {
        pool.put(at, &format!("many/n{n}"), "");
    }
    let many = pool.opendir(pool.ino("many"));
    cost("readdirplus of 100 entries", &|| {
        assert_eq!(pool.readdir(many, 0, true, usize::MAX).unwrap().len(), 102);
    });
    union.destroy();
    costs
}

/// The number, without a call: the kernel has it.
fn pool_ino(union: &fsstack_engine::Union, dir: Ino, name: &fsstack_pool::EntryNameBuf) -> Ino {
    let entry = union.lookup(dir, name.as_name()).unwrap();
    union.forget(entry.ino, 1);
    entry.ino
}

const GROUNDS: [(usize, usize); 5] = [(1, 0), (2, 0), (2, 1), (16, 0), (16, 15)];

/// As docs/performance.md has it.
fn written(tables: &[Vec<(&'static str, u64)>]) -> String {
    let heads: String = GROUNDS.iter().map(|(branches, at)| format!(" {} of {branches} |", at + 1)).collect();
    let mut text = format!("| the file is on branch |{heads}\n|---|{}\n", "---|".repeat(GROUNDS.len()));
    for (row, (what, _)) in tables[0].iter().enumerate() {
        let cells: String = tables.iter().map(|table| format!(" {} |", table[row].1)).collect();
        text.push_str(&format!("| {what} |{cells}\n"));
    }
    text
}

/// The table in docs/performance.md is what was counted; `UPDATE_EXPECT=1` writes it there.
fn check_manual(table: &str) {
    const MARKS: [&str; 2] = ["<!-- counted: tests/engine/calls.rs -->\n", "<!-- end -->"];
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md");
    let manual = std::fs::read_to_string(path).unwrap();
    let (before, rest) = manual.split_once(MARKS[0]).unwrap();
    let (stands, after) = rest.split_once(MARKS[1]).unwrap();
    if stands != table && std::env::var_os("UPDATE_EXPECT").is_some() {
        return std::fs::write(path, [before, MARKS[0], table, MARKS[1], after].concat()).unwrap();
    }
    assert_eq!(
        stands, table,
        "docs/performance.md: UPDATE_EXPECT=1 cargo test -p fsstack-tests --test engine calls"
    );
}

#[test]
fn the_table() {
    needs!(root());
    let tables = GROUNDS.map(|(branches, at)| costs(branches, at));
    let of = |ground: usize, what: &str| tables[ground].iter().find(|(name, _)| *name == what).unwrap().1;
    for (ground, place) in GROUNDS.iter().enumerate() {
        assert_eq!(of(ground, "lookup of a known name"), 1, "{place:?}: one branch is asked");
        assert!(of(ground, "getattr") <= 1, "{place:?}");
        assert!(of(ground, "open") <= 2, "{place:?}");
        assert!(of(ground, "open of an open file") <= 1, "{place:?}");
    }
    for ground in [1, 2] {
        assert!(of(ground, "create") <= 3);
        // One on each branch, and two to hold the object, if it is small, until the kernel forgets it: without that
        // the branch may use its number for another while a caller is just opening it.
        assert!(of(ground, "unlink") <= 4);
        assert!(of(ground, "rename") <= 2);
        assert_eq!(of(ground, "lookup of a missing name"), 2);
    }
    assert!(of(0, "readdirplus of 100 entries") <= 101 + 3, "opened, and told the end");
    assert_eq!(of(3, "create"), of(0, "create"), "a create after a lookup asks no other branch");
    check_manual(&written(&tables));
}

#[test]
fn the_first_lookup_ends_at_the_first_branch_that_has_the_file() {
    let pool = Ground::new(16);
    pool.put(0, "film", "x");
    let (found, made) = count::scope(|| pool.find("film"));
    found.unwrap();
    assert_eq!((made.total(), made.of(Call::Stat)), (1, 1));
}

#[test]
fn a_known_directory_on_one_branch_of_sixteen_costs_one_stat() {
    let pool = Ground::new(16);
    pool.put_dir(9, "d");
    pool.find("d").unwrap();
    let (found, made) = count::scope(|| pool.find("d"));
    found.unwrap();
    assert_eq!((made.total(), made.of(Call::Stat)), (1, 1));
}

#[test]
fn a_listing_of_one_branch_costs_its_getdents() {
    let pool = Ground::new(1);
    for n in 0..100 {
        pool.put(0, &format!("d/n{n}"), "");
    }
    let dir = pool.opendir(pool.ino("d"));
    pool.find("d/n0").unwrap();
    let (rows, made) = count::scope(|| pool.readdir(dir, 0, false, usize::MAX).unwrap());
    assert_eq!(rows.len(), 102);
    assert!(made.total() <= 3, "opened, read, and told the end: {}", made.total());
}
