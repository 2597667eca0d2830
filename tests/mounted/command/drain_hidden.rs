//! A branch is emptied though other branches have objects of the same names (`--hidden`).

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use fsstack_lab::{self as lab, MiB, needs, until};

use super::drain::job;
use super::tiers::later;
use super::*;
use crate::relocate::{mib, writer};
use crate::script::sh;

fn two() -> Pool {
    lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount()
}

fn on(pool: &Pool, name: &str, path: &str) -> PathBuf {
    pool.branch(name).path().join(path)
}

/// The objects that were set aside on a branch, with their origins.
fn kept(pool: &Pool, name: &str) -> Vec<(PathBuf, Value)> {
    let Ok(dirs) = fs::read_dir(on(pool, name, ".fsstack.moving/kept")) else { return Vec::new() };
    let one = |dir: PathBuf| {
        let origin = fs::read(dir.join("origin")).unwrap();
        (dir.join("object"), serde_json::from_slice(&origin).unwrap())
    };
    let mut all: Vec<(PathBuf, Value)> = dirs.map(|dir| one(dir.unwrap().path())).collect();
    all.sort_by_key(|(_, origin)| origin["path"].as_str().unwrap().to_owned());
    all
}

/// Beside each other on both branches: the same file, another one, links, and what is on one branch only.
fn fill(pool: &Pool) {
    for name in ["a", "b"] {
        fs::create_dir(on(pool, name, "d")).unwrap();
        fs::write(on(pool, name, "d/same"), mib(3)).unwrap();
        fs::write(on(pool, name, "d/other"), format!("{name} is different")).unwrap();
        fs::write(on(pool, name, "d/mode"), "mode").unwrap();
        symlink("target", on(pool, name, "d/link")).unwrap();
    }
    fs::set_permissions(on(pool, "b", "d/mode"), fs::Permissions::from_mode(0o600)).unwrap();
    sh(on(pool, "b", "d"), "chown 3:4 other; touch -d 2001-02-03 other");
    rustix::fs::setxattr(on(pool, "b", "d/other"), c"user.colour", b"red", rustix::fs::XattrFlags::empty())
        .unwrap();
    fs::write(on(pool, "b", "only"), "only here").unwrap();
}

/// Gives a hidden file a name that is not hidden.
fn link(pool: &Pool) {
    fs::hard_link(on(pool, "b", "d/other"), on(pool, "b", "d/more")).unwrap();
}

#[test]
fn hidden_objects_are_set_aside_with_all_that_they_have() {
    needs!(mounting(), loops());
    let pool = two();
    fill(&pool);
    let (at, b) = (at(&pool), branch(&pool, "b"));
    let planned = json("job", &["branch", "drain", &at, &b, "--hidden=move", "--dry-run"]);
    assert_eq!((&planned["state"], &planned["staying"]), (&"planned".into(), &0.into()), "{planned}");
    assert!(kept(&pool, "a").is_empty());
    link(&pool);
    let done = json("job", &["branch", "drain", &at, &b, "--hidden=move"]);
    assert_eq!(done["state"], "done", "{done}");
    output_of(&["branch", "remove", &at, &b]);
    assert_eq!(fs::read_dir(pool.branch("b").path()).unwrap().count(), 0);
    // The pool shows the same as before.
    assert_eq!(pool.read("d/other"), b"a is different");
    assert_eq!((pool.read("only"), pool.read("d/more")), (b"only here".to_vec(), b"b is different".to_vec()));
    let all = kept(&pool, "a");
    let paths: Vec<_> =
        all.iter().map(|(_, origin)| (origin["path"].as_str().unwrap(), &origin["differs"])).collect();
    let (same, other) = (Value::from(false), Value::from(true));
    assert_eq!(paths, [("/d/link", &same), ("/d/mode", &other), ("/d/other", &other), ("/d/same", &same)]);
    let object = &all[2].0;
    let stat = fs::metadata(object).unwrap();
    assert_eq!(fs::read(object).unwrap(), b"b is different");
    assert_eq!(
        (stat.uid(), stat.gid(), stat.mtime()),
        (3, 4, fs::metadata(pool.at("d/more")).unwrap().mtime())
    );
    let mut colour = [0; 8];
    let len = rustix::fs::getxattr(object, c"user.colour", &mut colour[..]).unwrap();
    assert_eq!(&colour[..len], b"red");
    assert_eq!(fs::read(&all[3].0).unwrap(), mib(3));
    assert_eq!(fs::read_link(&all[0].0).unwrap().to_str(), Some("target"));
    // Duplicates go, all else stays until somebody has looked at it.
    let Finished { code, stdout, .. } = run(&["check", &at, "--prune"]);
    assert_eq!(code, 1, "{stdout}");
    assert!(
        stdout.contains("/d/other") && stdout.contains("it differs from what the pool showed"),
        "{stdout}"
    );
    assert_eq!(kept(&pool, "a").len(), 2);
    assert_eq!(fs::read(object).unwrap(), b"b is different");
}

#[test]
fn hidden_objects_are_removed_only_if_the_pool_shows_the_same() {
    needs!(mounting(), loops());
    let pool = two();
    fill(&pool);
    let (at, b) = (at(&pool), branch(&pool, "b"));
    let differs = ["d/mode: it is hidden, and differs", "d/other: it is hidden, and differs"];
    for more in [&["--dry-run"][..], &[]] {
        let Finished { code, stdout, .. } =
            run(&[&["branch", "drain", &at, &b, "--hidden=delete"], more].concat());
        assert!(code == 1 && differs.iter().all(|why| stdout.contains(why)), "{stdout}");
        assert_eq!(on(&pool, "b", "d/same").exists(), !more.is_empty());
    }
    assert_eq!(job(&pool)["state"], "incomplete");
    assert!(!on(&pool, "b", "d/link").is_symlink() && kept(&pool, "a").is_empty());
    assert_eq!(fs::read(on(&pool, "b", "d/other")).unwrap(), b"b is different");
    assert_eq!((pool.holders("only"), pool.read("d/same")), (vec!["a"], mib(3)));
    // Both are the same now.
    fs::set_permissions(on(&pool, "b", "d/mode"), fs::metadata(pool.at("d/mode")).unwrap().permissions())
        .unwrap();
    let Finished { stdout, .. } = run(&["branch", "drain", &at, &b, "--hidden=delete"]);
    assert!(!stdout.contains("d/mode") && !on(&pool, "b", "d/mode").exists(), "{stdout}");
    assert_eq!(pool.read("d/mode"), b"mode");
}

#[test]
fn a_file_leaves_that_hid_others_and_none_of_them_comes_to_light() {
    needs!(mounting(), loops());
    let pool = two();
    fill(&pool);
    link(&pool);
    let (at, a) = (at(&pool), branch(&pool, "a"));
    let done = json("job", &["branch", "drain", &at, &a, "--hidden=move"]);
    assert_eq!(done["state"], "done", "{done}");
    output_of(&["branch", "remove", &at, &a]);
    assert_eq!(
        (pool.read("d/other"), pool.read("d/more")),
        (b"a is different".to_vec(), b"b is different".to_vec())
    );
    assert_eq!(fs::metadata(pool.at("d/mode")).unwrap().mode() & 0o777, 0o644);
    assert_eq!(kept(&pool, "b").len(), 4);
    assert_clean_but_kept(&pool);
    // They would leave with the branch that keeps them.
    output_of(&["branch", "add", &at, &a]);
    let Finished { code, stdout, stderr, .. } = run(&["branch", "drain", &at, &branch(&pool, "b")]);
    assert!(code == 1 && [stdout, stderr].concat().contains("objects that were set aside"), "{code}");
    assert_eq!((kept(&pool, "b").len(), pool.holders("only")), (4, vec!["b"]));
}

/// The branch does not tell whether it keeps something: an end as for a branch that keeps nothing would lose it.
#[test]
fn a_branch_that_cannot_tell_what_it_keeps_is_not_emptied() {
    needs!(mounting(), loops());
    let pool = two();
    fs::write(on(&pool, "b", "film"), "here").unwrap();
    let kept = on(&pool, "b", ".fsstack.moving/kept");
    fs::create_dir(kept.parent().unwrap()).unwrap();
    fs::set_permissions(kept.parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(&kept, "no directory").unwrap();
    let (at, b) = (at(&pool), branch(&pool, "b"));
    let Finished { code, stdout, stderr, .. } = run(&["branch", "drain", &at, &b]);
    assert!(
        code == 1 && [&*stdout, &stderr].concat().contains("whether it keeps objects"),
        "{stdout}{stderr}"
    );
    assert_eq!(pool.holders("film"), ["b"]);
    fs::remove_file(kept).unwrap();
    assert_eq!(json("job", &["branch", "drain", &at, &b])["state"], "done");
}

#[test]
fn hidden_objects_stay_outside_of_the_window() {
    needs!(mounting(), loops());
    let pool = two();
    fill(&pool);
    let (at, b, window) = (at(&pool), branch(&pool, "b"), later());
    std::thread::scope(|scope| {
        let drained =
            scope.spawn(|| run(&["branch", "drain", &at, &b, "--hidden=delete", "--window", &window]));
        until("the job is parked", || run(&["job", "status", &at]).stdout.contains("parked"));
        for name in ["d/same", "d/link", "only"] {
            assert!(on(&pool, "b", name).is_symlink() || on(&pool, "b", name).exists(), "{name}");
        }
        output_of(&["job", "cancel", &at, &job(&pool)["id"].to_string()]);
        drained.join().unwrap();
    });
}

#[test]
fn a_branch_that_takes_no_change_keeps_what_is_hidden_there() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).xfs_branch("c", MiB(300));
    let pool = pool.option("create=ff").mount();
    fill(&pool);
    let (at, a, b) = (at(&pool), branch(&pool, "a"), branch(&pool, "b"));
    output_of(&["branch", "mode", &at, &b, "RO"]);
    for how in ["--hidden=delete", "--hidden=move"] {
        assert_eq!(run(&["branch", "drain", &at, &a, how]).code, 1);
        for name in ["d/same", "d/other", "d/mode"] {
            assert!(on(&pool, "b", name).exists() && on(&pool, "a", name).exists(), "{how}: {name}");
        }
        assert!(kept(&pool, "b").is_empty() && kept(&pool, "c").is_empty());
    }
}

/// Nothing of a move is left on the branch b.
#[track_caller]
fn assert_clean_but_kept(pool: &Pool) {
    let left: Vec<_> = fs::read_dir(on(pool, "b", ".fsstack.moving"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["kept"]);
}

/// A program that has it open, since it was shown or on the branch, may write to it: it is waited for.
#[test]
fn a_hidden_file_that_is_open_stays() {
    needs!(mounting(), loops());
    let pool = two();
    fs::write(on(&pool, "a", "film"), "same").unwrap();
    fs::write(on(&pool, "b", "film"), "same").unwrap();
    let file = writer(on(&pool, "b", "film"));
    let (at, b) = (at(&pool), branch(&pool, "b"));
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| run(&["branch", "drain", &at, &b, "--hidden=move"]));
        let waits = || output_of(&["job", "status", &at, "--why"]);
        until("the job waits", || run(&["job", "status", &at]).stdout.contains("waiting"));
        assert!(waits().contains("film: it is hidden, and a program may have it open"), "{}", waits());
        assert!(kept(&pool, "a").is_empty());
        file.write_all_at(b"late", 0).unwrap();
        assert_eq!(fs::read(on(&pool, "b", "film")).unwrap(), b"late");
        drop(file);
        assert_eq!(drained.join().unwrap().code, 0);
    });
    let all = kept(&pool, "a");
    assert_eq!((all.len(), &all[0].1["differs"]), (1, &true.into()));
    assert_eq!((fs::read(&all[0].0).unwrap(), pool.read("film")), (b"late".to_vec(), b"same".to_vec()));
}

/// It is longer than requests are waited for.
#[test]
fn another_drain_does_not_wait_for_a_hidden_file_that_is_set_aside() {
    needs!(mounting(), loops());
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = ["a", "b", "c"].iter().fold(lab::pool(), |pool, name| pool.xfs_branch(name, MiB(300)));
    let pool = pool.option("create=ff").option(&format!("log={}", log.path().display())).mount();
    fs::write(on(&pool, "a", "film"), "shown").unwrap();
    fs::write(on(&pool, "b", "film"), mib(3).repeat(12)).unwrap();
    fs::write(on(&pool, "c", "other"), "other").unwrap();
    let (at, a, b, c) = (at(&pool), branch(&pool, "a"), branch(&pool, "b"), branch(&pool, "c"));
    let sets_aside = ["branch", "drain", &at, &b, "--to", &a, "--hidden=move", "--rate", "1M"];
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(&sets_aside));
        until("it is being copied", || !kept_dirs(&pool).is_empty());
        assert_eq!(json("job", &["branch", "drain", &at, &c])["state"], "done");
        assert_eq!(first.join().unwrap().code, 0);
    });
    let said = fs::read_to_string(log.path()).unwrap();
    assert!(!said.contains("earlier requests have not ended"), "{said}");
    assert_eq!(pool.holders("film"), ["a"]);
}

/// Directories of objects that were set aside, or are about to be.
fn kept_dirs(pool: &Pool) -> Vec<PathBuf> {
    let list = fs::read_dir(on(pool, "a", ".fsstack.moving/kept")).into_iter().flatten();
    list.filter_map(|dir| dir.ok()).map(|dir| dir.path()).collect()
}
