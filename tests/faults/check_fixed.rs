//! `fsstack check --fix` is killed before each of its calls, and run again: no content is lost, and what it mends is mended.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, Pool, needs};
use rustix::fs::{XattrFlags, setxattr};

/// Hidden folder of a branch, and its part with what was replaced.
const HIDDEN: &str = ".fsstack.moving";
const KEPT: &str = "kept";

/// Runs `fsstack check` with these arguments in a process that is killed at its call `kill`. False: it was killed.
fn check(pool: &Pool, arguments: &[&str], kill: Option<u64>) -> bool {
    let arguments = [&["check", pool.path().to_str().unwrap()], arguments].concat();
    let run = command(env!("CARGO_BIN_EXE_fsstack-faulty")).args(arguments);
    let run = match kill {
        Some(nth) => run.env("FSSTACK_FAULT", format!("kill:{nth}")),
        None => run,
    };
    let output = run.output().unwrap();
    let is_killed = output.code == 128 + 9;
    assert!(is_killed && kill.is_some() || output.code < 2, "{}: {}", output.code, output.stderr);
    !is_killed
}

/// Names below a branch's root: mode, owner, and content.
type Names = BTreeMap<PathBuf, (u32, u32, String)>;

fn names(root: &Path) -> Names {
    let (mut found, mut waiting) = (Names::new(), vec![root.to_owned()]);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let text = if meta.is_file() { fs::read_to_string(&path).unwrap() } else { String::new() };
            if meta.is_dir() {
                waiting.push(path.clone());
            }
            found.insert(path.strip_prefix(root).unwrap().to_owned(), (meta.mode(), meta.uid(), text));
        }
    }
    found
}

/// Names on both branches, without hidden folders.
fn shown(pool: &Pool) -> [Names; 2] {
    ["a", "b"].map(|branch| {
        let mut names = names(pool.branch(branch).path());
        names.retain(|path, _| !path.starts_with(HIDDEN));
        names
    })
}

/// Contents of all files that are not shown, but for what `--fix` notes of them.
fn kept(pool: &Pool) -> Vec<String> {
    let of = |branch| {
        let hidden = pool.branch(branch).path().join(HIDDEN);
        let all = if hidden.exists() { names(&hidden) } else { Names::new() };
        let objects =
            all.into_iter().filter(|(path, (_, _, text))| !path.ends_with("origin") && !text.is_empty());
        objects.map(|(_, (_, _, text))| text).collect::<Vec<_>>()
    };
    let mut kept = ["a", "b"].map(of).concat();
    kept.sort();
    kept
}

/// Removes all from the branches, and makes copies that differ.
fn damage(pool: &Pool) {
    let roots = ["a", "b"].map(|branch| pool.branch(branch).path().to_owned());
    for root in &roots {
        for entry in fs::read_dir(root).unwrap() {
            let path = entry.unwrap().path();
            match path.file_name().unwrap() == HIDDEN {
                true => _ = fs::remove_dir_all(path.join(KEPT)),
                false if path.is_dir() => fs::remove_dir_all(path).unwrap(),
                false => fs::remove_file(path).unwrap(),
            }
        }
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("dir/same"), "the same").unwrap();
    }
    let [a, b] = roots;
    fs::write(a.join("dir/other"), "the first's").unwrap();
    fs::write(b.join("dir/other"), "the second's").unwrap();
    fs::write(b.join("only"), "the second's alone").unwrap();
    fs::set_permissions(b.join("dir"), Permissions::from_mode(0o750)).unwrap();
    chown(b.join("dir"), Some(1234), Some(1234)).unwrap();
    setxattr(b.join("dir"), c"user.only-here", b"x", XattrFlags::empty()).unwrap();
    setxattr(a.join("dir"), c"user.missing", b"y", XattrFlags::empty()).unwrap();
}

#[test]
fn a_fix_that_is_killed_loses_nothing_and_is_made_again() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").mount();
    damage(&pool);
    assert!(check(&pool, &["--fix"], None));
    let (fixed, aside) = (shown(&pool), kept(&pool));
    assert_eq!(aside, ["the same"], "{fixed:#?}");
    assert!(check(&pool, &["--prune"], None));
    assert!(kept(&pool).is_empty() && shown(&pool) == fixed);
    let mut calls = 0;
    loop {
        calls += 1;
        damage(&pool);
        let before = ["the first's", "the same", "the second's", "the second's alone"];
        let is_over = check(&pool, &["--fix"], Some(calls));
        let [first, second] = shown(&pool);
        for text in before {
            let has = |names: &Names| names.values().any(|(.., there)| there == text);
            assert!(has(&first) || has(&second), "call {calls}: `{text}` is shown by no branch");
        }
        assert!(check(&pool, &["--fix"], None), "call {calls}");
        assert_eq!(shown(&pool), fixed, "call {calls}");
        assert_eq!(kept(&pool), aside, "call {calls}");
        assert!(check(&pool, &["--prune"], None), "call {calls}");
        assert!(kept(&pool).is_empty() && shown(&pool) == fixed, "call {calls}: {:?}", kept(&pool));
        if is_over {
            break;
        }
    }
    assert!(calls > 50, "{calls} calls were seen");
}
