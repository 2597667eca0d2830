//! Out-of-band changes: never a wrong file, and the next lookup sees the change.

use std::sync::mpsc::channel;
use std::time::Duration;

use fsstack_engine::Caller;
use fsstack_engine::ops::{Change, WriteTerms};
use fsstack_pool::BranchMode::ReadWrite;
use fsstack_sys::{Errno, OFlags};

use crate::test_bed::{TestBed, buf, wary};

fn pool() -> TestBed {
    TestBed::with(&[ReadWrite, ReadWrite], wary())
}

#[test]
fn a_deleted_file_is_estale_by_number_and_enoent_by_name() {
    let pool = pool();
    pool.put(1, "d/film", "x");
    let ino = pool.ino("d/film");
    std::fs::remove_file(pool.on(1, "d/film")).unwrap();
    assert_eq!(pool.getattr(ino).unwrap_err(), Errno::STALE);
    assert_eq!(pool.open(ino, OFlags::RDONLY).unwrap_err(), Errno::STALE);
    assert_eq!(pool.setattr(ino, Change { mode: Some(0), ..Change::default() }).unwrap_err(), Errno::STALE);
    assert_eq!(pool.find("d/film").unwrap_err(), Errno::NOENT);
    assert!(!pool.names("d").contains(&"film".to_owned()));
}

#[test]
fn a_file_that_moved_to_another_branch_is_found_there() {
    let pool = pool();
    pool.put(0, "film", "x");
    let old = pool.ino("film");
    std::fs::remove_file(pool.on(0, "film")).unwrap();
    pool.put(1, "film", "yy");
    assert_ne!(pool.ino("film"), old);
    assert_eq!(pool.read("film").unwrap(), "yy");
    assert_eq!(pool.getattr(old).unwrap_err(), Errno::STALE);
}

#[test]
fn a_renamed_file_is_found_by_its_new_name_under_the_same_number() {
    let pool = pool();
    pool.put(1, "a", "x");
    let ino = pool.ino("a");
    std::fs::rename(pool.on(1, "a"), pool.on(1, "b")).unwrap();
    assert_eq!(pool.getattr(ino).unwrap_err(), Errno::STALE);
    assert_eq!(pool.ino("b"), ino);
    assert_eq!(pool.read_ino(ino).unwrap(), "x");
    assert_eq!(pool.find("a").unwrap_err(), Errno::NOENT);
}

#[test]
fn a_file_replaced_while_it_is_open_stays_for_its_handles() {
    let pool = pool();
    let file = pool.create("film").unwrap();
    pool.union.write(file.handle, 0, b"old", WriteTerms::default()).unwrap();
    pool.put(0, "new", "new!");
    std::fs::rename(pool.on(0, "new"), pool.on(0, "film")).unwrap();
    assert_eq!(pool.read_handle(file), "old");
    assert_eq!(pool.getattr(file.ino).unwrap().stat.size, 3);
    assert_eq!(pool.read("film").unwrap(), "new!");
    assert_ne!(pool.ino("film"), file.ino);
}

#[test]
fn a_file_that_became_a_directory_and_back() {
    let pool = pool();
    pool.put(0, "x", "file");
    let file = pool.ino("x");
    std::fs::remove_file(pool.on(0, "x")).unwrap();
    pool.put(0, "x/inside", "1");
    assert_eq!(pool.names("x"), ["inside"]);
    let dir = pool.ino("x");
    if dir != file {
        assert_eq!(pool.getattr(file).unwrap_err(), Errno::STALE);
    }
    std::fs::remove_dir_all(pool.on(0, "x")).unwrap();
    pool.put(0, "x", "again");
    assert_eq!(pool.read("x").unwrap(), "again");
    let error = pool.lookup(dir, "inside").unwrap_err();
    assert!(matches!(error, Errno::NOENT | Errno::STALE | Errno::NOTDIR), "{error}");
}

#[test]
fn a_replaced_directory_is_not_mistaken_for_the_old_one() {
    let pool = pool();
    pool.put(0, "d/old", "x");
    let dir = pool.ino("d");
    pool.lookup(dir, "old").unwrap();
    std::fs::rename(pool.on(0, "d"), pool.on(0, "e")).unwrap();
    pool.put(0, "d/new", "y");
    assert_eq!(pool.names("d"), ["new"]);
    assert_eq!(pool.names("e"), ["old"]);
    assert_eq!(pool.ino("e"), dir);
}

#[test]
fn a_copy_of_a_directory_that_comes_or_goes_is_seen() {
    let pool = pool();
    pool.put(0, "d/a", "0");
    assert_eq!(pool.names("d"), ["a"]);
    pool.put(1, "d/b", "1");
    assert_eq!(pool.names("d"), ["a", "b"]);
    std::fs::remove_dir_all(pool.on(0, "d")).unwrap();
    assert_eq!(pool.names("d"), ["b"]);
    pool.write("d/c", "new");
    assert_eq!(pool.read("d/c").unwrap(), "new");
}

#[test]
fn a_copy_that_went_while_the_directory_is_believed_is_made_again() {
    let pool = TestBed::new(2);
    pool.put(0, "d/a", "0");
    pool.put(1, "d/b", "1");
    assert_eq!(pool.names("d"), ["a", "b"]);
    std::fs::remove_dir_all(pool.on(0, "d")).unwrap();
    assert_eq!(pool.read("d/b").unwrap(), "1");
    pool.write("d/c", "new");
    assert_eq!(pool.read("d/c").unwrap(), "new");
    pool.rename("d/b", "d/e").unwrap();
    pool.unlink("d/c").unwrap();
    assert_eq!(pool.read("d/e").unwrap(), "1");
}

#[test]
fn a_file_that_came_behind_the_pools_back_is_not_created_over() {
    let pool = pool();
    assert_eq!(pool.find("film").unwrap_err(), Errno::NOENT);
    // It trusts a recent result, as any check before a creation must.
    std::thread::sleep(std::time::Duration::from_millis(400));
    pool.put(1, "film", "x");
    assert_eq!(pool.create("film").unwrap_err(), Errno::EXIST);
    assert_eq!(pool.holders("film"), [1]);
}

#[test]
fn a_number_used_again_under_the_same_name_is_another_file() {
    let pool = pool();
    for _ in 0..50 {
        pool.put(0, "film", "old");
        let old = pool.find("film").unwrap();
        std::fs::remove_file(pool.on(0, "film")).unwrap();
        pool.put(0, "film", "newer");
        let new = pool.find("film").unwrap();
        assert_ne!((new.ino, new.generation), (old.ino, old.generation));
        assert_eq!(pool.read_ino(new.ino).unwrap(), "newer");
    }
}

#[test]
fn a_directory_swapped_for_a_symlink_is_not_followed() {
    let pool = pool();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("secret"), "x").unwrap();
    pool.put(0, "d/sub/film", "x");
    let (dir, sub) = (pool.ino("d"), pool.ino("d/sub"));
    pool.forget(sub);
    std::fs::remove_dir_all(pool.on(0, "d")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), pool.on(0, "d")).unwrap();
    assert!(pool.find("d").unwrap().attr.stat.is_symlink());
    assert!(matches!(pool.lookup(dir, "secret"), Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR)));
    assert_eq!(pool.find("d/secret").unwrap_err(), Errno::NOTDIR);
}

#[test]
fn a_file_swapped_for_a_symlink_is_not_followed() {
    let pool = pool();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("secret"), "secret").unwrap();
    pool.put(0, "film", "x");
    let ino = pool.ino("film");
    std::fs::remove_file(pool.on(0, "film")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("secret"), pool.on(0, "film")).unwrap();
    for flags in [OFlags::RDONLY, OFlags::RDWR | OFlags::TRUNC] {
        let error = pool.open(ino, flags).unwrap_err();
        assert!(matches!(error, Errno::STALE | Errno::LOOP), "{error}");
    }
    assert!(pool.setattr(ino, Change { size: Some(0), ..Change::default() }).is_err());
    assert!(pool.setattr(ino, Change { mode: Some(0), ..Change::default() }).is_err());
    assert_eq!(std::fs::read_to_string(elsewhere.path().join("secret")).unwrap(), "secret");
}

#[test]
fn a_fifo_among_what_moves_left_holds_no_mount_up() {
    let mut pool = pool();
    pool.put_dir(0, ".fsstack.moving");
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(pool.on(0, ".fsstack.moving"), closed).unwrap();
    let fifo = pool.on(0, ".fsstack.moving/0123456789abcdef.move");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    pool.remount(|_| {});
    assert!(!pool.on(0, ".fsstack.moving").exists());
}

#[test]
fn a_folder_for_moves_that_others_may_write_is_left_alone() {
    let mut pool = pool();
    pool.put_dir(0, ".fsstack.moving");
    let folder = pool.on(0, ".fsstack.moving");
    std::fs::write(folder.join("0123456789abcdef.part"), "theirs").unwrap();
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&folder, open_to_all).unwrap();
    pool.remount(|_| {});
    assert_eq!(std::fs::read_to_string(folder.join("0123456789abcdef.part")).unwrap(), "theirs");
}

/// A user with write access to a branch's root can rename any directory there, also one that is root's.
#[test]
fn a_directory_that_somebody_named_like_the_folder_for_moves_keeps_what_is_in_it() {
    let mut pool = pool();
    pool.put(0, "d/letter", "root's");
    let names = ["letter", "0123456789abcdef.jpg", "0123456789ABCDEF.part", ".part", "kept"];
    names.iter().for_each(|name| pool.put(0, &format!("d/{name}"), "root's"));
    // Others may have written it.
    let record = "0123456789abcdef.names";
    pool.put(0, &format!("d/{record}"), "root's");
    let writable = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(pool.on(0, &format!("d/{record}")), writable).unwrap();
    std::fs::rename(pool.on(0, "d"), pool.on(0, ".fsstack.moving")).unwrap();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(pool.on(0, ".fsstack.moving"), closed).unwrap();
    pool.remount(|_| {});
    for name in names.into_iter().chain([record]) {
        let there = std::fs::read_to_string(pool.on(0, ".fsstack.moving").join(name));
        assert_eq!(there.unwrap(), "root's", "{name}");
    }
}

#[test]
fn a_listing_goes_on_where_the_first_copy_was_removed() {
    let pool = pool();
    pool.put_dir(0, "d");
    pool.put(1, "d/film", "x");
    for cookie in [0, 2] {
        // With the copy's descriptor already open, and without.
        if cookie == 0 {
            assert_eq!(pool.names("d"), ["film"]);
        }
        let dir = pool.opendir(pool.ino("d"));
        std::fs::remove_dir(pool.on(0, "d")).unwrap();
        let rows = pool.rest(dir, cookie, 4096);
        assert!(rows.iter().any(|row| row.name == "film"), "from {cookie}: {rows:?}");
        pool.put_dir(0, "d");
    }
}

/// A climb from a directory to the root would not end: a thread used up memory without a bound.
#[test]
fn a_directory_that_was_put_below_its_own_subdirectory_does_not_lie_in_itself() {
    let pool = pool();
    pool.put(0, "u/a/b/film", "x");
    let (a, b) = (pool.ino("u/a"), pool.ino("u/a/b"));
    pool.names("u/a/b");
    std::fs::rename(pool.on(0, "u/a/b"), pool.on(0, "u/b")).unwrap();
    std::fs::rename(pool.on(0, "u/a"), pool.on(0, "u/b/a")).unwrap();
    assert_eq!(pool.union.lookup(b, buf("a").as_name()).unwrap().ino, a);
    let (ended, ends) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let made = pool.union.create(b, buf("new").as_name(), 0o644, OFlags::RDWR, Caller::DAEMON);
            ended.send(made).unwrap();
        });
        let made = ends.recv_timeout(Duration::from_secs(60));
        // The thread could not be ended otherwise.
        let made = made.unwrap_or_else(|_| std::process::abort()).unwrap();
        pool.union.release(made.opened.handle);
        pool.union.forget(made.entry.ino, 1);
        pool.union.forget(a, 1);
    });
    assert_eq!(pool.ino("u/b/a"), a);
    assert!(pool.names("u/b").contains(&"new".to_owned()));
}
