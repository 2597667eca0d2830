//! `fsstack check --fix` and `--prune` on a real pool: what they change, what they leave, and what is kept.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fsstack_lab::cleanup::Entry;
use fsstack_lab::daemon::Process;
use fsstack_lab::{self as lab, needs, until};
use fsstack_sys::locks::{self, Lock, LockType, TO_THE_END};
use serde_json::Value;

use super::*;
use crate::hung_branches::{FrozenDaemon, described, lasting_a_second};

fn roots(pool: &Pool) -> (PathBuf, PathBuf) {
    (pool.branch("a").path().to_owned(), pool.branch("b").path().to_owned())
}

/// Output of a check, whatever it found.
#[track_caller]
fn check(pool: &Pool, arguments: &[&str]) -> Value {
    let Finished { code, stdout, stderr, .. } =
        run(&[&["check", &at(pool)], arguments, &["--json"]].concat());
    assert!(code < 2, "{stdout} {stderr}");
    checked("check", &stdout)
}

/// Kind, path, and whether it was fixed.
fn ends(answer: &Value) -> Vec<(&str, &str, Option<bool>)> {
    let findings = answer["findings"].as_array().unwrap().iter();
    findings
        .map(|one| (one["kind"].as_str().unwrap(), one["path"].as_str().unwrap(), one["fixed"].as_bool()))
        .collect()
}

/// The directories of kept objects of a branch.
fn kept(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root.join(".fsstack.moving/kept")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Files of one name on both branches.
fn both(pool: &Pool, name: &str, first: &str, second: &str) {
    let (a, b) = roots(pool);
    fs::write(a.join(name), first).unwrap();
    fs::write(b.join(name), second).unwrap();
}

/// A directory and files with other content, rights and attributes on the second branch.
fn make_copies_that_differ(pool: &Pool) {
    let (a, b) = roots(pool);
    for root in [&a, &b] {
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(root.join("dir")).unwrap();
    }
    both(pool, "dir/same\n", "equal", "equal");
    both(pool, "dir/other", "one", "two");
    std::os::unix::fs::chown(b.join("dir"), Some(1234), Some(1234)).unwrap();
    fs::set_permissions(b.join("dir"), fs::Permissions::from_mode(0o2770)).unwrap();
    rustix::fs::setxattr(b.join("dir"), c"user.only-here", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(a.join("dir"), c"user.missing", b"y", rustix::fs::XattrFlags::empty()).unwrap();
    both(pool, "stricter", "equal", "equal");
    fs::set_permissions(b.join("stricter"), fs::Permissions::from_mode(0o600)).unwrap();
    [a, b].iter().for_each(|root| symlink("/etc", root.join("link")).unwrap());
}

#[test]
fn fix_makes_copies_equal_and_sets_duplicates_aside_until_prune() {
    needs!(mounting());
    let mut pool = pool();
    let (a, b) = roots(&pool);
    make_copies_that_differ(&pool);
    let dirs = [a.join("dir"), b.join("dir"), pool.at("dir")];
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    dirs[..2].iter().for_each(|dir| File::open(dir).unwrap().set_modified(long_ago).unwrap());

    let before = check(&pool, &[]);
    let offers: Vec<bool> =
        before["findings"].as_array().unwrap().iter().map(|one| one["fix"].is_string()).collect();
    assert_eq!(offers, [true, false, true, true, false], "{before:#}");
    let stricter = before["findings"][4]["text"].as_str().unwrap();
    assert!(stricter.contains("the same content, mode 0600 for 0644"), "{stricter}");
    let Finished { stdout, .. } = run(&["check", &at(&pool)]);
    let said = |end: &str| stdout.lines().filter(|line| line.contains(end)).count();
    assert_eq!((said("; with --fix: "), said("; --fix leaves it")), (3, 2), "{stdout}");

    let fixed = check(&pool, &["--fix"]);
    let expected = [
        ("differs", "/dir", Some(true)),
        ("hidden", "/dir/other", None),
        ("hidden", "/dir/same\\012", Some(true)),
        ("hidden", "/link", Some(true)),
        ("hidden", "/stricter", None),
    ];
    assert_eq!((ends(&fixed), &fixed["kept"]), (expected.to_vec(), &3.into()), "{fixed:#}");
    let dir = fs::metadata(b.join("dir")).unwrap();
    assert_eq!((dir.uid(), dir.gid(), dir.mode() & 0o7777), (0, 0, 0o755));
    let attribute = |name| rustix::fs::getxattr(b.join("dir"), name, &mut [0; 8][..]);
    assert_eq!((attribute(c"user.missing"), attribute(c"user.only-here").is_err()), (Ok(1), true));
    assert_eq!(dirs.map(|dir| fs::metadata(dir).unwrap().modified().unwrap()), [long_ago; 3]);
    assert!(!b.join("dir/same\n").exists() && fs::symlink_metadata(b.join("link")).is_err());
    assert_eq!(pool.read("dir/same\n"), b"equal");
    assert_eq!(fs::read(b.join("dir/other")).unwrap(), b"two");
    assert_eq!(fs::read(b.join("stricter")).unwrap(), b"equal");

    // A mount leaves what is kept; nobody sees it in the pool.
    pool.remount();
    assert_eq!(kept(&b).len(), 3);
    assert!(!pool.list("").iter().any(|name| name.to_string_lossy().contains("fsstack")));
    let objects: Vec<_> = kept(&b).iter().filter_map(|kept| fs::read(kept.join("object")).ok()).collect();
    assert!(objects.contains(&b"equal".to_vec()), "{objects:?}");
    let origins: String =
        kept(&b).iter().map(|kept| fs::read_to_string(kept.join("origin")).unwrap()).collect();
    assert!(origins.contains("1234:1234") && origins.contains("2770"), "{origins}");

    let only = json("check-prune", &["check", &at(&pool), pool.at("dir").to_str().unwrap(), "--prune"]);
    assert_eq!(only["kept"].as_array().unwrap().len(), 2, "{only:#}");
    let pruned = json("check-prune", &["check", &at(&pool), "--prune"]);
    assert_eq!(pruned["kept"][0]["path"], "/link", "{pruned:#}");
    assert!(!b.join(".fsstack.moving").exists());
    assert_eq!(output_of(&["check", &at(&pool), "--prune"]), "nothing is kept\n");
    let again = check(&pool, &["--fix"]);
    assert_eq!(ends(&again), [("hidden", "/dir/other", None), ("hidden", "/stricter", None)]);
}

#[test]
fn fix_leaves_a_hidden_file_that_a_program_has_open() {
    needs!(mounting());
    let pool = pool();
    let (a, b) = roots(&pool);
    fs::write(b.join("file"), "equal").unwrap();
    let open = File::open(pool.at("file")).unwrap();
    fs::write(a.join("file"), "equal").unwrap();
    let answer = check(&pool, &["--fix"]);
    assert_eq!(ends(&answer), [("hidden", "/file", Some(false))], "{answer:#}");
    assert!(answer["findings"][0]["remedy"].as_str().unwrap().contains("has it open"), "{answer:#}");
    assert!(b.join("file").exists() && kept(&b).is_empty());
    drop(open);
}

#[test]
fn fix_leaves_files_while_a_move_is_under_way_and_removes_leftovers_that_nobody_has_locked() {
    needs!(mounting());
    let pool = pool();
    let (a, b) = roots(&pool);
    both(&pool, "file", "equal", "equal");
    let folder = b.join(".fsstack.moving");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let suffixes = ["dir", "copy", "part", "copy", "part", "move"];
    let names = suffixes.iter().enumerate().map(|(n, suffix)| format!("{n:016x}.{suffix}"));
    let names: Vec<String> = names.chain(["stranger.part".to_owned()]).collect();
    [0, 1, 3].iter().for_each(|dir: &usize| fs::create_dir(folder.join(&names[*dir])).unwrap());
    [2, 4, 5, 6].iter().for_each(|file: &usize| fs::write(folder.join(&names[*file]), "x").unwrap());
    let (done, lock_file) = (format!("{}/done", names[1]), format!("{}/.lock", names[3]));
    [&done, &lock_file].iter().for_each(|file| fs::write(folder.join(file), "").unwrap());
    let lock = |name: &str| {
        let file = File::options().read(true).write(true).open(folder.join(name)).unwrap();
        locks::try_lock(file.as_fd(), Lock { start: 0, end: TO_THE_END, kind: LockType::Write, pid: 0 })
            .unwrap();
        file
    };
    let _held = (lock(&names[4]), lock(&lock_file));
    assert_eq!(ends(&check(&pool, &[])).len(), 1, "none of them is an hour old");

    let answer = check(&pool, &["--fix", "--older-than", "0s"]);
    let mut found = ends(&answer);
    found.sort_unstable();
    let states = [Some(true), Some(true), Some(true), Some(false), Some(false), None, None];
    let leftovers: Vec<_> = names.iter().map(|name| format!("{}/{name}", folder.display())).collect();
    let mut expected = vec![("hidden", "/file", Some(false))];
    expected.extend(leftovers.iter().zip(states).map(|(path, state)| ("leftover", path.as_str(), state)));
    assert_eq!(found, expected, "{answer:#}");
    let left: Vec<bool> = names.iter().map(|name| folder.join(name).exists()).collect();
    assert_eq!(left, [false, false, false, true, true, true, true]);
    assert!(a.join("file").exists() && b.join("file").exists() && kept(&b).is_empty());
    let (code, line) = refused(&["check", &at_pool(&pool), "--older-than", "1 week"]);
    assert_eq!(code, 2, "{line}");
    // The pool's own mounts are not to meet them.
    fs::remove_dir_all(&folder).unwrap();
}

fn at_pool(pool: &Pool) -> String {
    super::at(pool)
}

#[test]
fn prune_leaves_what_was_written_to_since_it_was_set_aside() {
    needs!(mounting());
    let pool = pool();
    let (_, b) = roots(&pool);
    both(&pool, "file", "equal", "equal");
    let mut outside = File::options().append(true).open(b.join("file")).unwrap();
    assert_eq!(ends(&check(&pool, &["--fix"])), [("hidden", "/file", Some(true))]);
    std::io::Write::write_all(&mut outside, b" and more").unwrap();
    let (code, stdout) = {
        let Finished { code, stdout, .. } = run(&["check", &at(&pool), "--prune"]);
        (code, stdout)
    };
    assert!(code == 1 && stdout.contains("stays in") && stdout.contains("has written to it"), "{stdout}");
    assert_eq!(fs::read(kept(&b)[0].join("object")).unwrap(), b"equal and more");
}

#[test]
fn branches_that_take_no_changes_are_not_fixed_and_marks_of_other_objects_are_removed() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").mode("RO").option("create=ff").no_others().mount();
    let (a, b) = roots(&pool);
    both(&pool, "file", "equal", "equal");
    for root in [&a, &b] {
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(root.join(format!("only-{}", root.ends_with("a"))), "x").unwrap();
    }
    let carried = [7_u8; 20];
    let own = a.join("only-true");
    rustix::fs::setxattr(&own, c"trusted.fsstack.id", &carried, rustix::fs::XattrFlags::empty()).unwrap();
    let answer = check(&pool, &["--fix"]);
    assert_eq!(ends(&answer), [("hidden", "/file", None), ("mark", "/only-true", Some(true))], "{answer:#}");
    assert!(b.join("file").exists());
    assert!(rustix::fs::getxattr(&own, c"trusted.fsstack.id", &mut [0; 32][..]).is_err());
    let origin = fs::read_to_string(kept(&a)[0].join("origin")).unwrap();
    assert!(origin.contains(&"07".repeat(20)), "{origin}");
}

#[test]
fn a_branch_with_cross_mounts_is_entered_where_another_file_system_is_mounted() {
    needs!(mounting());
    for (mode, expected) in
        [("RW,cross-mounts", vec![("hidden", "/in/file")]), ("RW", vec![("not-checked", "/in")])]
    {
        let mut pool = lab::pool()
            .tmp_branch("a")
            .tmp_branch("b")
            .mode(mode)
            .option("create=ff")
            .no_others()
            .unmounted();
        let (a, b) = roots(&pool);
        for root in [&a, &b] {
            fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
            fs::create_dir(root.join("in")).unwrap();
        }
        let inner = b.join("in");
        rustix::mount::mount("tmpfs", &inner, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"mode=755"))
            .unwrap();
        let _mounted = Entry::mount(&inner).unwrap();
        both(&pool, "in/file", "equal", "equal");
        pool.remount();
        let answer = check(&pool, &["--fix"]);
        let found: Vec<_> = ends(&answer).into_iter().map(|(kind, path, _)| (kind, path)).collect();
        assert_eq!(found, expected, "{answer:#}");
        // It cannot be moved to the branch's own file system, and stays.
        assert!(inner.join("file").exists(), "{answer:#}");
        drop(pool);
    }
}

#[test]
fn a_branch_that_hangs_does_not_hang_the_check() {
    needs!(mounting());
    let mut pool = described().option("branch-timeout=100").no_others().unmounted();
    for name in ["a", "b"] {
        let root = pool.branch(name).path().to_owned();
        for dir in ["first", "later"] {
            fs::create_dir(root.join(dir)).unwrap();
        }
        fs::write(root.join("first/file"), name).unwrap();
    }
    pool.remount();
    let _frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let answer = check(&pool, &[]);
    let a = branch(&pool, "a");
    let texts: Vec<_> =
        answer["findings"].as_array().unwrap().iter().map(|one| one["text"].as_str().unwrap()).collect();
    assert!(texts.iter().any(|text| text.contains(&a) && text.contains("hangs")), "{answer:#}");
    assert_eq!(answer["next"], Value::Null, "the other branches were checked to the end: {answer:#}");
}

#[test]
fn a_branch_that_hangs_during_the_check_is_left_out_and_the_check_goes_on() {
    needs!(mounting());
    let mut pool = described().option("branch-timeout=300").no_others().unmounted();
    let (a, b) = roots(&pool);
    for root in [&a, &b] {
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        for dir in ["1", "3"] {
            fs::create_dir(root.join(dir)).unwrap();
        }
        // Long enough to read that the branch is frozen meanwhile.
        File::create(root.join("2")).unwrap().set_len(8 << 30).unwrap();
    }
    fs::set_permissions(a.join("1"), fs::Permissions::from_mode(0o700)).unwrap();
    pool.remount();
    let home = tempfile::tempdir().unwrap();
    let printed = home.path().join("printed");
    let scenario = format!("exec {} check {} --json > {}", binary().display(), at(&pool), printed.display());
    let running = std::thread::spawn(move || {
        command("sh").args(["-c", &scenario]).limit(Duration::from_secs(100)).output().unwrap()
    });
    // By then all is asked about /1, and printed.
    until("the large file is read", || crate::script::is_open(&b.join("2")));
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    assert_eq!(running.join().unwrap().code, 1);
    drop(frozen);
    let answer = checked("check", &fs::read_to_string(&printed).unwrap());
    let found: Vec<_> = ends(&answer).into_iter().map(|(kind, path, _)| (kind, path)).collect();
    assert_eq!(found, [("differs", "/1"), ("not-checked", "/2")], "{answer:#}");
    assert_eq!(answer["next"], Value::Null, "{answer:#}");
}

#[test]
fn only_the_daemons_user_may_fix() {
    needs!(mounting());
    let pool = pool();
    both(&pool, "file", "equal", "equal");
    for arguments in [&["--fix"][..], &["--prune"]] {
        let asked = command(binary()).args([&["check", &at(&pool)], arguments].concat()).as_user(1234, 1234);
        let Finished { code, stderr, .. } = asked.output().unwrap();
        assert_eq!((code, stderr.lines().count()), (5, 1), "{stderr}");
    }
    assert!(roots(&pool).1.join("file").exists());
}

/// Waits until the pool's status says that a branch is leaving.
fn until_leaving(pool: &Pool) {
    until("the branch is leaving", || output_of(&["status", &at(pool)]).contains("leaving"));
}

#[test]
fn fix_leaves_a_pair_whose_shown_copy_is_on_a_branch_that_leaves() {
    needs!(mounting());
    let pool = pool();
    let (_, b) = roots(&pool);
    pool.write("held", b"x");
    both(&pool, "f", "equal", "equal");
    let open = File::open(pool.at("held")).unwrap();
    let (of, a) = (at(&pool), branch(&pool, "a"));
    let removal = std::thread::spawn(move || output_of(&["branch", "remove", &of, &a, "--when-idle"]));
    until_leaving(&pool);
    let answer = check(&pool, &["--fix"]);
    assert_eq!(ends(&answer), [("hidden", "/f", None)], "{answer:#}");
    assert!(answer["findings"][0]["remedy"].as_str().unwrap().contains("leaving the pool"), "{answer:#}");
    drop(open);
    removal.join().unwrap();
    assert_eq!((pool.read("f"), kept(&b).len()), (b"equal".to_vec(), 0));
}

#[test]
fn fix_stops_when_the_branches_change_while_it_runs() {
    needs!(mounting());
    let pool = pool();
    let (a, b) = roots(&pool);
    both(&pool, "1", "one", "two");
    for root in [&a, &b] {
        // Long enough to compare that the command is stopped meanwhile.
        File::create(root.join("2")).unwrap().set_len(2 << 30).unwrap();
    }
    let home = tempfile::tempdir().unwrap();
    let (printed, number) = (home.path().join("printed"), home.path().join("pid"));
    let scenario = format!(
        "echo $$ > {}; exec {} check {} --fix --json > {}",
        number.display(),
        binary().display(),
        at(&pool),
        printed.display()
    );
    let running = std::thread::spawn(move || {
        command("sh").args(["-c", &scenario]).limit(Duration::from_secs(100)).output().unwrap()
    });
    // By then all is asked about /1, and printed.
    until("the large file is read", || crate::script::is_open(&b.join("2")));
    let pid = fs::read_to_string(&number).unwrap().trim().parse().unwrap();
    let stopped = FrozenDaemon::new(Process::of(pid).unwrap());
    assert!(b.join("2").exists(), "it was stopped too late");
    output_of(&["branch", "remove", &at(&pool), &branch(&pool, "a")]);
    drop(stopped);
    assert_eq!(running.join().unwrap().code, 1);
    let answer = checked("check", &fs::read_to_string(&printed).unwrap());
    assert_eq!(ends(&answer), [("hidden", "/1", None), ("hidden", "/2", Some(false))], "{answer:#}");
    let why = answer["findings"][1]["remedy"].as_str().unwrap();
    assert!(why.contains("the branches have changed"), "{answer:#}");
    assert!(pool.at("2").exists() && kept(&b).is_empty());
}

#[test]
fn prune_leaves_the_only_copy() {
    needs!(mounting());
    let pool = pool();
    let (_, b) = roots(&pool);
    both(&pool, "f", "equal", "equal");
    assert_eq!(ends(&check(&pool, &["--fix"])), [("hidden", "/f", Some(true))]);
    output_of(&["branch", "remove", &at(&pool), &branch(&pool, "a")]);
    let Finished { code, stdout, .. } = run(&["check", &at(&pool), "--prune"]);
    assert!(code == 1 && stdout.contains("the pool has no copy of it any more"), "{stdout}");
    assert_eq!(fs::read(kept(&b)[0].join("object")).unwrap(), b"equal");
}

#[test]
fn what_the_pool_removes_while_it_is_set_aside_does_not_come_back() {
    needs!(mounting());
    let pool = pool();
    let (_, b) = roots(&pool);
    let names: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();
    names.iter().for_each(|name| both(&pool, name, "equal", "equal"));
    let removing = {
        let (names, pool, b) = (names.clone(), pool.path().to_owned(), b.clone());
        std::thread::spawn(move || {
            for name in names {
                while b.join(&name).exists() {
                    std::hint::spin_loop();
                }
                fs::remove_file(pool.join(name)).unwrap();
            }
        })
    };
    let answer = check(&pool, &["--fix"]);
    removing.join().unwrap();
    let there: Vec<_> = names.iter().filter(|name| pool.at(name).exists()).collect();
    assert!(there.is_empty(), "{there:?} {answer:#}");
    assert_eq!(kept(&b).len(), names.len(), "{answer:#}");
}

#[test]
fn leftovers_of_another_pool_or_of_a_folder_that_others_may_write_to_are_only_reported() {
    needs!(mounting());
    let pool = pool();
    let (a, b) = roots(&pool);
    let (of_others, open_to_all) = (a.join(".fsstack.moving.1"), b.join(".fsstack.moving"));
    let part = "0123456789abcdef.part";
    for (folder, mode) in [(&of_others, 0o700), (&open_to_all, 0o777)] {
        fs::create_dir(folder).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        fs::write(folder.join(part), "x").unwrap();
    }
    let answer = check(&pool, &["--fix", "--older-than", "0s"]);
    let ends: Vec<_> = ends(&answer).into_iter().map(|(kind, _, fixed)| (kind, fixed)).collect();
    assert_eq!(ends, [("leftover", None), ("leftover", None)], "{answer:#}");
    assert!(of_others.join(part).exists() && open_to_all.join(part).exists());
    // The pool's own mounts are not to meet them.
    fs::remove_dir_all(&of_others).unwrap();
    fs::remove_dir_all(&open_to_all).unwrap();
}

#[test]
fn roots_are_left_and_copies_of_directories_while_a_branch_hangs() {
    needs!(mounting());
    let mut pool = lasting_a_second(lab::pool().tmp_branch("b").tmp_branch("c").served_branch("a"))
        .no_others()
        .unmounted();
    for (name, mode) in [("a", 0o700), ("b", 0o755), ("c", 0o711)] {
        let root = pool.branch(name).path().to_owned();
        fs::create_dir(root.join("dir")).unwrap();
        for dir in [root.join("dir"), root] {
            fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    pool.remount();
    let c = pool.branch("c").path().to_owned();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let answer = check(&pool, &["--fix"]);
    let differs = |answer: &Value| {
        let of = ends(answer).into_iter().filter(|(kind, ..)| *kind == "differs");
        of.map(|(_, path, fixed)| (path.to_owned(), fixed)).collect::<Vec<_>>()
    };
    assert_eq!(differs(&answer), [("/".to_owned(), None), ("/dir".to_owned(), None)], "{answer:#}");
    drop(frozen);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&c), mode(&c.join("dir"))), (0o711, 0o711));
}

#[test]
fn prune_takes_a_directory_of_any_name_and_leaves_what_is_open() {
    needs!(mounting());
    let pool = pool();
    let (a, b) = roots(&pool);
    for root in [&a, &b] {
        fs::create_dir(root.join("new\nline")).unwrap();
    }
    both(&pool, "new\nline/f", "equal", "equal");
    both(&pool, "g", "equal", "equal");
    let outside = File::open(b.join("new\nline/f")).unwrap();
    check(&pool, &["--fix"]);
    assert_eq!(kept(&b).len(), 2);
    let below = pool.at("new\nline");
    let prune = ["check", &at(&pool), below.to_str().unwrap(), "--prune"];
    let Finished { code, stdout, .. } = run(&prune);
    assert!(code == 1 && stdout.lines().count() == 1 && stdout.contains(": open"), "{stdout}");
    drop(outside);
    assert!(output_of(&prune).ends_with(": removed\n"));
    // As an interrupted run leaves it.
    fs::create_dir(b.join(".fsstack.moving/kept/empty")).unwrap();
    output_of(&["check", &at(&pool), "--prune"]);
    assert!(!b.join(".fsstack.moving").exists());
}
