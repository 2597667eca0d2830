//! The catalogue of names (`catalogue=on`): what it knows after crashes and beside the pool, and what only a dead branch had.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use fsstack_lab::pool::Pool;
use fsstack_lab::{self as lab, MiB, needs, until};
use rustix::process::Signal;
use serde_json::Value;

use crate::command::{at, branch, json, output_of, refused};
use crate::hung_branches::lasting_a_second;

/// Kind, mode, owner, group, size and time of a name.
type Attributes = (String, String, u64, u64, u64, i64);

pub(crate) fn state(page: &Value, path: &str) -> Value {
    let branches = page["branches"].as_array().unwrap();
    branches.iter().find(|branch| branch["branch"] == path).cloned().unwrap()
}

/// Waits until all names of all branches are known.
#[track_caller]
pub(crate) fn until_complete(pool: &Pool) {
    until("a complete catalogue", || {
        let page = json("catalogue", &["find", &at(pool), "--name", "no such name"]);
        page["branches"].as_array().unwrap().iter().all(|branch| branch["complete"] == true)
    });
}

/// Names of a branch by the catalogue.
fn catalogued(pool: &Pool, name: &str) -> BTreeMap<String, Attributes> {
    let page = json("catalogue", &["find", &at(pool), "--branch", &branch(pool, name)]);
    let number = |value: &Value| value.as_u64().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let known = |name: &Value| {
        let numbers = (number(&name["uid"]), number(&name["gid"]), number(&name["size"]));
        let time = name["modified_ns"].as_i64().unwrap();
        (
            text(&name["path"]),
            (text(&name["kind"]), text(&name["mode"]), numbers.0, numbers.1, numbers.2, time),
        )
    };
    page["names"].as_array().unwrap().iter().map(known).collect()
}

/// Names of a branch by a walk over it.
fn walked(root: &Path) -> BTreeMap<String, Attributes> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if name.starts_with(".fsstack.moving") {
                continue;
            }
            let meta = path.symlink_metadata().unwrap();
            let kind = match meta.file_type() {
                kind if kind.is_dir() => "directory",
                kind if kind.is_symlink() => "symlink",
                kind if kind.is_fifo() => "fifo",
                _ => "file",
            };
            let size = if meta.is_dir() { 0 } else { meta.len() };
            let (uid, gid) = (meta.uid().into(), meta.gid().into());
            let mode = format!("{:04o}", meta.mode() & 0o7777);
            let time = meta.mtime() * 1_000_000_000 + meta.mtime_nsec();
            found.insert(name, (kind.to_owned(), mode, uid, gid, size, time));
            if meta.is_dir() {
                waiting.push(path);
            }
        }
    }
    found
}

/// Waits until the catalogue has exactly what the branches have.
#[track_caller]
pub(crate) fn until_equal(pool: &Pool, names: &[&str]) {
    for name in names {
        let root = pool.branch(name).path().to_owned();
        let began = Instant::now();
        loop {
            let (known, there) = (catalogued(pool, name), walked(&root));
            if known == there {
                break;
            }
            if began.elapsed() > Duration::from_secs(60) {
                let differ = |a: &BTreeMap<String, Attributes>, b: &BTreeMap<String, Attributes>| {
                    let other = a.iter().filter(|(name, known)| b.get(*name) != Some(known));
                    other.take(5).map(|(name, known)| format!("{name} {known:?}")).collect::<Vec<_>>()
                };
                panic!(
                    "{name}: catalogue {:#?}, branch {:#?}",
                    differ(&known, &there),
                    differ(&there, &known)
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

pub(crate) fn pool_of_three(options: &[&str]) -> Pool {
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").tmp_branch("c").option("create=rand");
    options.iter().fold(pool.option("catalogue=on"), |pool, option| pool.option(option)).unmounted()
}

#[test]
fn a_crash_leaves_one_that_is_known_to_be_incomplete() {
    needs!(mounting());
    let mut pool = pool_of_three(&["out-of-band=never"]);
    pool.remount();
    until_complete(&pool);
    pool.write("file", b"x");
    pool.kill_daemon();
    pool.unmount();
    // Without its branches nothing can be made anew.
    let gone = branch(&pool, "c");
    pool.remount_of(&["a", "b"]);
    let page = json("catalogue", &["find", &at(&pool), "--branch", &gone]);
    let known = state(&page, &gone);
    assert_eq!((&known["complete"], &known["in_pool"]), (&false.into(), &false.into()), "{known}");
    assert!(output_of(&["branch", "lost", &at(&pool), &gone]).contains("is not complete"));
}

#[test]
fn changes_behind_the_pools_back_are_seen_at_the_next_mount() {
    needs!(mounting());
    let mut pool = pool_of_three(&[]);
    pool.remount();
    until_complete(&pool);
    pool.write("dir-less", b"x");
    until_equal(&pool, &["a", "b", "c"]);
    pool.unmount();
    let a = pool.branch("a").path().to_owned();
    fs::create_dir_all(a.join("new/er")).unwrap();
    fs::write(a.join("new/er/file"), b"abc").unwrap();
    pool.remount();
    until_equal(&pool, &["a", "b", "c"]);
    until_complete(&pool);
}

#[test]
fn a_session_without_it_has_the_next_one_walk_again() {
    needs!(mounting());
    let mut pool = pool_of_three(&["out-of-band=never"]);
    pool.remount();
    until_complete(&pool);
    pool.unmount();
    pool.remount_with(&["out-of-band=never", "catalogue=off"]);
    pool.write("made-meanwhile", b"x");
    pool.unmount();
    pool.remount_with(&["out-of-band=never", "catalogue=on"]);
    until_equal(&pool, &["a", "b", "c"]);
    until_complete(&pool);
}

#[test]
fn a_branch_that_was_left_out_for_a_session_is_walked_again() {
    needs!(mounting());
    let mut pool = pool_of_three(&["out-of-band=never"]);
    pool.remount();
    until_complete(&pool);
    pool.remount_of(&["a", "b"]);
    until_complete(&pool);
    fs::write(pool.branch("c").path().join("made-meanwhile"), b"x").unwrap();
    pool.remount_of(&["a", "b", "c"]);
    until_equal(&pool, &["a", "b", "c"]);
}

#[test]
fn small_files_that_leave_a_branch_together_are_known_where_they_went() {
    needs!(mounting());
    let mut pool = pool_of_three(&["out-of-band=never", "create=ff"]);
    pool.remount();
    until_complete(&pool);
    fs::create_dir(pool.at("dir")).unwrap();
    (0..40).for_each(|n| pool.write(format!("dir/f{n}"), b"small"));
    until_equal(&pool, &["a", "b", "c"]);
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    assert!(!pool.branch("a").path().join("dir").exists());
    until_equal(&pool, &["a", "b", "c"]);
}

#[test]
fn what_only_a_dead_branch_has_is_listed() {
    needs!(mounting(), loops());
    let mut pool = lab::pool()
        .xfs_branch("a", MiB(300))
        .tmp_branch("b")
        .option("create=ff")
        .option("catalogue=on")
        .unmounted();
    let (a, b) = (pool.branch("a").path().to_owned(), pool.branch("b").path().to_owned());
    for (home, name) in
        [(&a, "both/on-a"), (&b, "both/on-b"), (&a, "alone/deep/file"), (&a, "same"), (&b, "same")]
    {
        fs::create_dir_all(home.join(name).parent().unwrap()).unwrap();
        fs::write(home.join(name), name).unwrap();
    }
    pool.remount();
    pool.write("both/made", b"made in the pool");
    fs::rename(pool.at("alone/deep"), pool.at("alone/moved")).unwrap();
    until_complete(&pool);
    until_equal(&pool, &["a", "b"]);
    let dead = branch(&pool, "a");
    pool.branch_mut("a").unmount_lazily();
    until("the branch to be gone", || fs::read(pool.at("both/on-a")).is_err());
    let only_on_a = ["alone", "alone/moved", "alone/moved/file", "both/made", "both/on-a"];
    let check = |page: &Value| {
        let paths: Vec<_> =
            page["names"].as_array().unwrap().iter().map(|name| name["path"].as_str().unwrap()).collect();
        assert_eq!(paths, only_on_a);
        let made = &page["names"][3];
        assert_eq!(
            (&made["kind"], &made["size"], &made["branches"][0]),
            (&"file".into(), &16.into(), &dead.as_str().into())
        );
        let known = state(page, &dead);
        assert!(known["complete"] == true && known["as_of"].is_string(), "{known}");
    };
    check(&json("catalogue", &["branch", "lost", &at(&pool), &dead]));
    let text = output_of(&["branch", "lost", &at(&pool), &dead]);
    assert!(text.contains("/alone/moved/file\n") && text.contains("names that only"), "{text}");
    assert!(text.contains("is complete as of"), "{text}");
    // A branch that has left the pool is still known, until it is forgotten.
    output_of(&["branch", "remove", &at(&pool), &dead]);
    check(&json("catalogue", &["branch", "lost", &at(&pool), &dead]));
    output_of(&["branch", "forget", &at(&pool), &dead]);
    let (code, why) = refused(&["branch", "lost", &at(&pool), &dead]);
    assert!(code == 3 && why.contains("not in the catalogue"), "{why}");
}

#[test]
fn a_branch_that_left_a_quiet_pool_holds_up_neither_an_upgrade_nor_the_end() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let logged = format!("log={}", log.path().display());
    let mut pool = pool_of_three(&["out-of-band=never", "transport=dev", &logged]);
    (0..50).for_each(|n| fs::create_dir(pool.branch("c").path().join(format!("d{n}"))).unwrap());
    pool.remount();
    until_complete(&pool);
    let walks =
        || fs::read_to_string(log.path()).unwrap().matches("all names of the branch recorded").count();
    until("three walks are in the log, which a thread writes", || walks() == 3);
    // Nothing is written from now on, so that no thread of the catalogue wakes by itself.
    pool.remount();
    until_complete(&pool);
    let left = branch(&pool, "c");
    output_of(&["branch", "remove", &at(&pool), &left]);
    output_of(&["upgrade", &at(&pool)]);
    let page = json("catalogue", &["find", &at(&pool), "--branch", &left]);
    let known = state(&page, &left);
    assert_eq!((&known["complete"], &known["in_pool"]), (&true.into(), &false.into()), "{known}");
    assert_eq!(page["names"].as_array().unwrap().len(), 50);
    pool.remount_of(&["a", "b"]);
    until_complete(&pool);
    assert_eq!(walks(), 3, "the others are not walked again");
}

#[test]
fn names_are_found_by_pattern_directory_and_branch() {
    needs!(mounting());
    let mut pool = pool_of_three(&[]);
    let (a, b) = (pool.branch("a").path().to_owned(), pool.branch("b").path().to_owned());
    for (home, name) in [(&a, "films/one.mkv"), (&b, "films/two.mkv"), (&b, "films/two.txt"), (&a, "x.mkv")] {
        fs::create_dir_all(home.join(name).parent().unwrap()).unwrap();
        fs::write(home.join(name), name).unwrap();
    }
    pool.remount();
    until_complete(&pool);
    assert_eq!(
        output_of(&["find", &at(&pool), "--name", "*.mkv"]),
        "/films/one.mkv\n/films/two.mkv\n/x.mkv\n"
    );
    assert_eq!(
        output_of(&["find", &at(&pool), "/films", "--name", "t*"]),
        "/films/two.mkv\n/films/two.txt\n"
    );
    let on_a = output_of(&["find", &at(&pool), "--branch", &branch(&pool, "a")]);
    assert_eq!(on_a, "/films\n/films/one.mkv\n/x.mkv\n");
    let all = json("catalogue", &["find", &at(&pool)]);
    assert_eq!(all["names"][0]["branches"].as_array().unwrap().len(), 2, "{all}");
    let (code, _) = refused(&["find", &at(&pool), "--name", "[a"]);
    assert_eq!(code, 2);
    let (code, line) = refused(&["find", &at(&pool), "/nosuchdir"]);
    assert!(code == 3 && line.contains("/nosuchdir"), "{code}: {line}");
}

#[test]
fn more_names_than_one_reply_has_come_all_and_once() {
    needs!(mounting());
    let mut pool = pool_of_three(&[]);
    let a = pool.branch("a").path().to_owned();
    for dir in 0..10 {
        fs::create_dir(a.join(format!("d{dir}"))).unwrap();
        (0..500).for_each(|n| fs::write(a.join(format!("d{dir}/f{n}")), b"").unwrap());
    }
    pool.remount();
    until_equal(&pool, &["a"]);
    assert_eq!(output_of(&["find", &at(&pool), "--name", "f*"]).lines().count(), 5000);
}

/// A branch that may have a record for it does not answer: it is not forgotten, so its names stay.
#[test]
fn a_branch_that_cannot_be_forgotten_keeps_its_names() {
    needs!(mounting());
    let builder = lasting_a_second(lab::pool().served_branch("a").tmp_branch("b").tmp_branch("c"));
    let mut pool = builder.option("catalogue=on").unmounted();
    fs::write(pool.branch("c").path().join("on-c"), b"x").unwrap();
    pool.remount();
    until_complete(&pool);
    let (pool_at, c) = (at(&pool), branch(&pool, "c"));
    output_of(&["branch", "remove", &pool_at, &c]);
    pool.branch("a").daemon().signal(Signal::KILL).unwrap();
    let (code, why) = refused(&["branch", "forget", &pool_at, &c]);
    assert!(code == 1 && why.contains("what it has for the branch to forget"), "{code}: {why}");
    let names = || json("catalogue", &["find", &pool_at, "--branch", &c])["names"].as_array().unwrap().len();
    assert_eq!(names(), 1);
    output_of(&["branch", "remove", &pool_at, &branch(&pool, "a")]);
    output_of(&["branch", "forget", &pool_at, &c]);
    assert_eq!(refused(&["find", &pool_at, "--branch", &c]).0, 3);
}

#[test]
fn of_several_branches_that_were_at_one_path_the_id_says_which_is_forgotten() {
    needs!(mounting());
    let mut pool = pool_of_three(&[]);
    let (c, home) = (branch(&pool, "c"), pool.branch("c").path().to_owned());
    pool.remount();
    let mut ids = Vec::new();
    for name in ["old", "new"] {
        if name == "new" {
            // Another disk at the same path.
            fs::remove_dir_all(&home).unwrap();
            fs::create_dir(&home).unwrap();
            fs::write(home.join(name), b"x").unwrap();
            output_of(&["branch", "add", &at(&pool), &c]);
        }
        until_complete(&pool);
        let page = json("catalogue", &["find", &at(&pool)]);
        let of =
            page["branches"].as_array().unwrap().iter().find(|known| known["branch"] == c.as_str()).unwrap();
        ids.push(of["id"].to_string());
        output_of(&["branch", "remove", &at(&pool), &c]);
    }
    let (code, why) = refused(&["branch", "forget", &at(&pool), &c]);
    assert!(code == 2 && ids.iter().all(|id| why.contains(id)) && why.contains("by its id"), "{code}: {why}");
    output_of(&["branch", "forget", &at(&pool), &ids[0]]);
    let left = json("catalogue", &["find", &at(&pool), "--branch", &c]);
    assert_eq!(left["names"][0]["path"], "new", "{left}");
    output_of(&["branch", "forget", &at(&pool), &c]);
}

/// A disk error in the state directory: the catalogue is made anew, or left alone where none is kept.
#[test]
fn a_damaged_catalogue_ends_no_daemon() {
    needs!(mounting());
    for kept in ["on", "off"] {
        let state = tempfile::tempdir().unwrap();
        let mut pool = pool_of_three(&["out-of-band=never"]);
        let dir = format!("state-dir={}", state.path().display());
        pool.remount_with(&["out-of-band=never", "catalogue=on", &dir]);
        (0..50).for_each(|n| pool.write(format!("file{n}"), b"x"));
        until_equal(&pool, &["a", "b", "c"]);
        until_complete(&pool);
        pool.unmount();
        let found =
            fs::read_dir(state.path()).unwrap().map(|entry| entry.unwrap().path().join("catalogue.redb"));
        let file = found.into_iter().find(|file| file.exists()).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(file.with_extension("redb.sums").metadata().unwrap().len() > 0, "a clean close stores them");
        let mut damaged = fs::read(&file).unwrap();
        damaged.iter_mut().skip(4096).step_by(61).for_each(|byte| *byte ^= 0x10);
        fs::write(&file, damaged).unwrap();
        pool.remount_with(&["out-of-band=never", &format!("catalogue={kept}"), &dir]);
        assert_eq!(pool.read("file7"), b"x");
        if kept == "on" {
            until_complete(&pool);
            until_equal(&pool, &["a", "b", "c"]);
        }
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        pool.unmount();
    }
}
