//! `fsstack check` on a real pool: what it finds, what it leaves alone, how it goes on.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use fsstack_lab::{Kind, MiB, needs, until};
use serde_json::Value;

use super::*;
use crate::handles::moved;
use crate::handles_elsewhere::index;
use crate::script::python;

/// Findings of a check that finds something, by kind and path.
#[track_caller]
fn found(arguments: &[&str]) -> (Vec<(String, String)>, Value) {
    let Finished { code, stdout, stderr, .. } = run(&[arguments, &["--json"]].concat());
    assert_eq!(code, 1, "{stdout} {stderr}");
    let answer = checked("check", &stdout);
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let findings = answer["findings"].as_array().unwrap().iter();
    (findings.map(|one| (text(one, "kind"), text(one, "path"))).collect(), answer)
}

/// A pool with one finding of each kind that two branches can show.
fn damaged() -> Pool {
    let pool = pool();
    let (a, b) = (pool.branch("a").path().to_owned(), pool.branch("b").path().to_owned());
    for root in [&a, &b] {
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(root.join("dir/deep")).unwrap();
        fs::create_dir(root.join("equal")).unwrap();
    }
    fs::set_permissions(b.join("dir/deep"), fs::Permissions::from_mode(0o700)).unwrap();
    for (name, first, second) in [("same", "x", "x"), ("other", "x", "y"), ("new\nline", "x", "xy")] {
        fs::write(a.join("dir").join(name), first).unwrap();
        fs::write(b.join("dir").join(name), second).unwrap();
    }
    fs::write(a.join("equal/alone"), "x").unwrap();
    fs::write(a.join("kind"), "x").unwrap();
    fs::create_dir(b.join("kind")).unwrap();
    symlink("/etc", a.join("link")).unwrap();
    symlink("/usr", b.join("link")).unwrap();
    pool
}

#[test]
fn check_finds_what_differs_and_what_is_hidden_and_changes_nothing() {
    needs!(mounting());
    let pool = damaged();
    let (findings, answer) = found(&["check", &at(&pool)]);
    let expected = [
        ("differs", "/dir/deep"),
        ("hidden", "/dir/new\\012line"),
        ("hidden", "/dir/other"),
        ("hidden", "/dir/same"),
        ("other-kind", "/kind"),
        ("hidden", "/link"),
    ];
    assert_eq!(findings, expected.map(|(kind, path)| (kind.to_owned(), path.to_owned())), "{answer:#}");
    let text = |index: usize| answer["findings"][index]["text"].as_str().unwrap();
    assert!(text(0).contains("mode 0700 for 0755"), "{answer:#}");
    assert!(text(1).contains("another size"), "{answer:#}");
    assert!(text(2).contains("another content") && text(3).contains("the same content"), "{answer:#}");
    assert!(text(5).contains("another target"), "{answer:#}");
    assert_eq!(answer["next"], Value::Null);
    let exact = |index: usize| answer["findings"][index].get("path_base64");
    assert_eq!((exact(0), exact(1)), (None, Some(&"L2Rpci9uZXcKbGluZQ==".into())), "{answer:#}");
    assert_eq!(found(&["check", &at(&pool)]).1, answer, "it changed nothing");
    // One line a finding, whatever the names.
    let Finished { code, stdout, stderr, .. } = run(&["check", &at(&pool)]);
    assert_eq!((code, stdout.lines().count()), (1, expected.len()), "{stdout}");
    assert_eq!(stderr, "fsstack: check: findings: 6\n");
}

#[test]
fn check_is_limited_to_a_directory_and_goes_on_at_a_path() {
    needs!(mounting());
    let pool = damaged();
    let dir = pool.at("dir").to_str().unwrap().to_owned();
    let paths = |arguments: &[&str]| found(arguments).0.into_iter().map(|(_, path)| path).collect::<Vec<_>>();
    assert_eq!(
        paths(&["check", &at(&pool), "--from", "/dir/other"]),
        ["/dir/other", "/dir/same", "/kind", "/link"]
    );
    assert_eq!(paths(&["check", &at(&pool), &dir, "--from", "/dir/other"]), ["/dir/other", "/dir/same"]);
    let equal = pool.at("equal").to_str().unwrap().to_owned();
    let clean = json("check", &["check", &at(&pool), &equal]);
    assert_eq!((&clean["findings"], &clean["names"]), (&serde_json::json!([]), &1.into()));
    let (code, line) = refused(&["check", &at(&pool), pool.at("none").to_str().unwrap()]);
    assert_eq!(code, 3, "{line}");
    let nothing = run(&["check", &at(&pool), pool.at("none").to_str().unwrap(), "--json"]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (3, ""));
    for arguments in [&["--from", "/../etc"][..], &["--from", "/equal/alone", &dir], &["--from", "base64:%"]]
    {
        let (code, line) = refused(&[&["check", &at(&pool)], arguments].concat());
        assert_eq!(code, 2, "{line}");
    }
}

/// It has found that a branch is away before it fails.
#[test]
fn a_check_that_fails_after_a_finding_prints_a_whole_document() {
    needs!(mounting(), loops());
    let mut pool = lab::pool().xfs_branch("a", MiB(300)).tmp_branch("b").mount();
    pool.branch_mut("a").unmount_lazily();
    let state = || json("status", &["status", &at(&pool)])["branches"][0]["state"].clone();
    until("the branch to be away", || fs::symlink_metadata(pool.at("name")).is_err() && state() != "up");
    let none = pool.at("none").display().to_string();
    let Finished { code, stdout, stderr, .. } = run(&["check", &at(&pool), &none, "--json"]);
    let answer = checked("check", &stdout);
    assert_eq!(
        (code, &answer["findings"][0]["kind"], &answer["next"]),
        (3, &"not-checked".into(), &"/none".into()),
        "{stderr}"
    );
}

/// With names that no terminal shows as they are.
#[test]
fn an_interrupted_check_goes_on_where_it_was() {
    needs!(mounting());
    let pool = pool();
    for (name, content) in [("a", "x"), ("b", "y")] {
        let dir = pool.branch(name).path().join("\u{7}dir");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        (0..3000).for_each(|n| fs::write(dir.join(format!("new\nline{n:04}")), content).unwrap());
    }
    let paths = |answer: &Value| {
        let findings = answer["findings"].as_array().unwrap().iter();
        findings.map(|one| one["path_base64"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (_, all) = found(&["check", &at(&pool)]);
    for signal in ["HUP", "TERM"] {
        let home = tempfile::tempdir().unwrap();
        // It has begun with the first byte; its output does not fit into the pipe.
        let script = r#"mkfifo pipe; "$0" check "$1" --json > pipe 2> line & exec 3< pipe
            head -c 1 <&3 > printed; kill -s "$2" $!; cat <&3 >> printed; wait $!"#;
        let scenario = lab::shell::command("sh").args(["-c", script]).dir(home.path());
        assert_eq!(scenario.arg(binary()).args([&at(&pool), signal]).output().unwrap().code, 1);
        let said = |file: &str| fs::read_to_string(home.path().join(file)).unwrap();
        let (printed, line) = (said("printed"), said("line"));
        let answer = checked("check", &printed);
        let next = answer["next"].as_str().unwrap();
        assert_eq!(line, format!("fsstack: check: interrupted; --from {next} goes on there\n"));
        let (_, rest) = found(&["check", &at(&pool), "--from", next]);
        assert!(!paths(&answer).is_empty() && !paths(&rest).is_empty(), "{line}");
        assert_eq!([paths(&answer), paths(&rest)].concat(), paths(&all), "{line}");
    }
    // It was started to outlast a hangup.
    let script = r#"mkfifo pipe; trap "" HUP; "$0" check "$1" --json > pipe & exec 3< pipe
        head -c 1 <&3; kill -s HUP $!; cat <&3"#;
    let home = tempfile::tempdir().unwrap();
    let scenario = lab::shell::command("sh").args(["-c", script]).dir(home.path());
    let answer = checked("check", &scenario.arg(binary()).arg(at(&pool)).output().unwrap().stdout);
    assert_eq!((paths(&answer), &answer["next"]), (paths(&all), &Value::Null));
}

#[test]
fn check_names_files_that_lie_against_their_rule() {
    needs!(mounting());
    let pool = pool();
    let (a, b) = (pool.branch("a").path().to_owned(), pool.branch("b").path().to_owned());
    for dir in ["films/new", "filmsold"] {
        fs::create_dir_all(a.join(dir)).unwrap();
    }
    fs::create_dir(b.join("films")).unwrap();
    for name in ["films/one", "films/new/two", "filmsold/three", "four"] {
        fs::write(a.join(name), "x").unwrap();
    }
    fs::write(b.join("films/five"), "x").unwrap();
    for (dir, on) in [("/films", "b"), ("/films/new", "a")] {
        json("rules", &["rule", "set", &at(&pool), dir, &format!("ff@{}", branch(&pool, on))]);
    }
    let (findings, answer) = found(&["check", &at(&pool)]);
    assert_eq!(findings, [("misplaced".to_owned(), "/films/one".to_owned())], "{answer:#}");
    assert!(answer["findings"][0]["text"].as_str().unwrap().contains("rule for /films "), "{answer:#}");
    output_of(&["balance", &at(&pool), "--rules"]);
    assert_eq!(json("check", &["check", &at(&pool)])["findings"], serde_json::json!([]));
}

#[test]
fn check_finds_copies_with_different_acls_and_files_below_the_mount_point() {
    needs!(mounting(), program("setfacl"));
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").option("nonempty").unmounted();
    for name in ["a", "b"] {
        let dir = pool.branch(name).path().join("dir");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let acl = ["-m", "u:1234:rwx,m::rx"];
    lab::shell::command("setfacl").args(acl).arg(pool.branch("b").path().join("dir")).run().unwrap();
    fs::write(pool.path().join("lost"), "x").unwrap();
    pool.remount();
    let (findings, answer) = found(&["check", &at(&pool)]);
    let lost = pool.at("lost").to_str().unwrap().to_owned();
    let expected = [("below-mount".to_owned(), lost), ("differs".to_owned(), "/dir".to_owned())];
    assert_eq!(findings, expected, "{answer:#}");
    assert!(
        answer["findings"][1]["text"].as_str().unwrap().contains("posix_acl_access only here"),
        "{answer:#}"
    );
    pool.unmount();
    fs::remove_file(pool.path().join("lost")).unwrap();
}

/// The files were made while the branch's disk was not mounted.
#[test]
fn check_finds_files_below_the_mount_point_of_a_branch() {
    needs!(mounting(), loops(), program("mkfs.ext4"));
    for kind in [Kind::Tmpfs(MiB(16)), Kind::Ext4(MiB(16)), Kind::Xfs(MiB(300))] {
        let mut pool = lab::pool().branch("a", kind).tmp_branch("b").unmounted();
        let below = pool.branch("a").path().join("lost");
        pool.branch_mut("a").unmount();
        fs::write(&below, "x").unwrap();
        pool.branch_mut("a").remount();
        assert!(!below.exists(), "{kind:?}");
        pool.remount();
        let (findings, answer) = found(&["check", &at(&pool)]);
        let expected = ("below-mount".to_owned(), below.to_str().unwrap().to_owned());
        assert_eq!(findings, [expected], "{kind:?}: {answer:#}");
        // It is named, and left.
        let Finished { code, stdout, .. } = run(&["check", &at(&pool), "--fix"]);
        assert!(code == 1 && stdout.contains("unmount it") && stdout.contains("--fix leaves it"), "{stdout}");
        pool.unmount();
        pool.branch_mut("a").unmount();
        assert_eq!(fs::read(&below).unwrap(), b"x");
    }
}

#[test]
fn check_says_where_it_cannot_look_below_a_mount_point() {
    needs!(mounting(), program("capsh"));
    let pool = pool();
    json("check", &["check", &at(&pool)]);
    let check = format!("exec '{}' check '{}' --json", binary().display(), at(&pool));
    let confined = command("capsh").args(["--drop=cap_sys_admin", "--", "-c", &check]);
    let Finished { code, stdout, stderr, .. } = confined.output().unwrap();
    assert_eq!(code, 1, "{stdout} {stderr}");
    let answer = checked("check", &stdout);
    let reason = format!("not checked: below mount point {}: Open: Operation not permitted", at(&pool));
    let is_it = |one: &Value| {
        (&one["kind"], &one["path"]) == (&"not-checked".into(), &"/".into())
            && one["text"].as_str().unwrap().starts_with(&reason)
    };
    assert!(answer["findings"].as_array().unwrap().iter().any(is_it), "{answer:#}");
}

/// Script that prints the number, times, attributes and content of all below a directory, and sets no access time. It leaves out that
/// of symbolic links, which any reading sets.
const LISTING: &str = "
import os, stat, sys
def show(path):
    s = os.lstat(path)
    is_link = stat.S_ISLNK(s.st_mode)
    print(repr(path), s.st_ino, oct(s.st_mode), s.st_nlink, s.st_uid, s.st_gid, s.st_size,
          'link' if is_link else s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)
    for key in sorted(os.listxattr(path, follow_symlinks=False)):
        print('  ', key, os.getxattr(path, key, follow_symlinks=False))
    if stat.S_ISREG(s.st_mode):
        with open(os.open(path, os.O_RDONLY | os.O_NOATIME), 'rb') as file: print('  ', file.read())
    if stat.S_ISDIR(s.st_mode):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOATIME)
        for name in sorted(os.listdir(fd)): show(os.path.join(path, name))
        os.close(fd)
";

/// Access times too: the first read after a change would set them.
#[test]
fn a_check_without_fix_leaves_the_branches_as_they_were() {
    needs!(mounting(), not_on_gluster("its bricks update access times"), program("setfacl"));
    let pool = damaged();
    let [a, b] = ["a", "b"].map(|name| pool.branch(name).path().to_owned());
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(b.join("dir"), c"user.only-here", b"x", flags).unwrap();
    rustix::fs::setxattr(a.join("dir/same"), c"trusted.fsstack.id", &[7; 20], flags).unwrap();
    let acl = lab::shell::command("setfacl").args(["-m", "u:1234:rwx"]);
    acl.arg(b.join("dir")).run().unwrap();
    // Leftovers of an interrupted move, and of an earlier check with --fix.
    let hidden = a.join(".fsstack.moving");
    fs::create_dir_all(hidden.join("kept")).unwrap();
    for dir in [&hidden, &hidden.join("kept")] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).unwrap();
    }
    fs::write(hidden.join("0123456789abcdef.part"), "x").unwrap();
    let listing = || {
        let script = format!("{LISTING}\nfor path in ({a:?}, {b:?}): show(path)");
        python("/", &script)
    };
    let before = listing();
    for arguments in [&[][..], &["--older-than", "0s"], &["--from", "/dir/other"]] {
        let (findings, answer) = found(&[&["check", &at(&pool)], arguments].concat());
        assert!(!findings.is_empty(), "{answer:#}");
        let after = listing();
        let changed: Vec<_> = before.lines().zip(after.lines()).filter(|(was, is)| was != is).collect();
        assert_eq!((before.lines().count(), changed), (after.lines().count(), vec![]), "{arguments:?}");
    }
    // The pool's own mounts are not to meet them.
    fs::remove_dir_all(&hidden).unwrap();
}

#[test]
fn a_check_that_has_fixed_all_that_it_found_ends_with_0() {
    needs!(mounting());
    let pool = pool();
    let [a, b] = ["a", "b"].map(|name| pool.branch(name).path().to_owned());
    for (root, mode) in [(&a, 0o755), (&b, 0o700)] {
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(root.join("dir")).unwrap();
        fs::set_permissions(root.join("dir"), fs::Permissions::from_mode(mode)).unwrap();
        fs::write(root.join("file"), "equal").unwrap();
    }
    let (findings, _) = found(&["check", &at(&pool)]);
    let expected = [("differs", "/dir"), ("hidden", "/file")];
    assert_eq!(findings, expected.map(|(kind, path)| (kind.to_owned(), path.to_owned())));
    let Finished { code, stdout, stderr, .. } = run(&["check", &at(&pool), "--fix", "--json"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let answer = checked("check", &stdout);
    let fixed: Vec<_> = answer["findings"].as_array().unwrap().iter().map(|one| &one["fixed"]).collect();
    assert_eq!(fixed, [true, true], "{answer:#}");
    for arguments in [&["check", &at(&pool)][..], &["check", &at(&pool), "--fix"]] {
        let Finished { code, stdout, stderr, .. } = run(arguments);
        assert_eq!((code, stderr.as_str()), (0, ""), "nothing is left to fix: {stdout}");
    }
    // One finding that it leaves is enough.
    fs::write(a.join("other"), "one").unwrap();
    fs::write(b.join("other"), "two").unwrap();
    let Finished { code, stderr, .. } = run(&["check", &at(&pool), "--fix"]);
    assert_eq!((code, stderr.as_str()), (1, "fsstack: check: findings: 1\n"));
}

/// A marked file that the index does not have, and one that it has. What the finding says to do is done.
#[test]
fn check_finds_a_mark_that_the_index_lacks_and_its_remedy_makes_the_index_whole() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, film) = moved();
    until("the index is complete", || index(&pool).starts_with("complete"));
    let Finished { code, stdout, .. } = run(&["check", &at(&pool)]);
    assert_eq!((code, stdout.as_str()), (0, ""));
    let file = pool.branch("y").path().join("file");
    fs::write(&file, "x").unwrap();
    // A number that this branch of the pool has given to no object.
    let (number, own) = (film.ino >> 48 << 48 | 1 << 40, fs::metadata(&file).unwrap().ino());
    let mark = [&number.to_le_bytes()[..], &7_u32.to_le_bytes(), &own.to_le_bytes()].concat();
    rustix::fs::setxattr(&file, c"trusted.fsstack.id", &mark, rustix::fs::XattrFlags::empty()).unwrap();
    let (findings, answer) = found(&["check", &at(&pool)]);
    assert_eq!(findings, [("index".to_owned(), "/file".to_owned())], "{answer:#}");
    let remedy = answer["findings"][0]["remedy"].as_str().unwrap();
    assert!(remedy.starts_with("unmount, remove index.redb of the pool's state-dir, and mount"), "{remedy}");
    pool.unmount();
    crate::script::sh(pool.state_dir(), "rm */index.redb");
    pool.remount();
    until("the index is complete", || index(&pool).starts_with("complete"));
    let Finished { code, stdout, .. } = run(&["check", &at(&pool)]);
    assert_eq!((code, stdout.as_str()), (0, ""));
    assert_eq!(fs::metadata(pool.at("file")).unwrap().ino(), number);
    crate::handles::check(&pool, &film);
}
