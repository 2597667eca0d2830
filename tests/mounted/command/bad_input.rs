//! Bad input: one line that says what, why and the way out, and an exit code.

use std::fs;

use fsstack_lab::needs;

use super::*;

#[test]
fn an_unknown_pool_is_answered_with_a_list() {
    needs!(mounting());
    let pool = pool();
    for command in [
        &["status", "nowhere-x"][..],
        &["get", "nowhere-x"],
        &["metrics", "nowhere-x"],
        &["doctor", "nowhere-x"],
    ] {
        let (code, line) = refused(command);
        assert_eq!(code, 3);
        assert!(line.contains("no such pool") && line.contains(&at(&pool)), "{line}");
    }
}

#[test]
fn keys_and_values_are_checked() {
    needs!(mounting());
    let pool = pool();
    let at = at(&pool);
    let says = |arguments: &[&str], expected: &str| {
        let (code, line) = refused(arguments);
        assert_eq!(code, 2, "{line}");
        assert!(line.contains(expected), "{line}");
    };
    says(&["get", &at, "craete"], "did you mean \"create\"?");
    says(&["set", &at, "craete=ff"], "did you mean \"create\"?");
    says(&["set", &at, "create=epmsf"], "did you mean `epmfs`?");
    says(&["set", &at, "minfreespace=lots"], "is not a floor");
    says(&["set", &at, "attr-timeout=-1"], "not a number of seconds");
    says(&["set", &at, "min-inodes=x"], "not a whole number");
    says(&["set", &at, "create"], "needs a value");
    says(&["set", &at, "transport=dev"], "when the pool is mounted");
    says(&["set", &at, "page-cache=writeback"], "mount");
    says(&["set", &at, "create=mfs", "--persist"], "config=FILE");
    says(&["write-path", &at, "fast"], "not a write path");
    says(&["write-path", &at, "stacked", "--subtree", "../x"], "--subtree");
    says(&["write-path", &at, "inherit"], "not a write path");
    says(&["explain", &at, "crate", "x"], "explain PATH");
    says(&["explain", &at, "create", "x", "--size", "big"], "is not a size");
    says(&["frobnicate"], "unrecognized subcommand");
    says(&["set", &at], "required");
    says(&["branch", "mode", &at, &branch(&pool, "a"), "XX"], "RW, NC");
    says(&["branch", "floor", &at, &branch(&pool, "a"), "much"], "is not a floor");
    says(&["top", &at], "needs a terminal");
    // All or nothing: the valid part of an invalid request changes nothing.
    says(&["set", &at, "create=mfs", "min-inodes=x"], "not a whole number");
    assert_eq!(output_of(&["get", &at, "create"]), "ff\n");
}

#[test]
fn paths_and_branches_that_are_not_there() {
    needs!(mounting());
    let pool = pool();
    let missing = pool.at("missing").to_str().unwrap().to_owned();
    for command in [
        &["where", missing.as_str()][..],
        &["where", "/etc/passwd"],
        &["explain", &missing],
        &["explain", "/etc/passwd"],
        &["branch", "remove", &at(&pool), "/nowhere"],
        &["branch", "mode", &at(&pool), "/nowhere", "RO"],
        &["branch", "abort", &at(&pool), "/nowhere"],
    ] {
        let (code, line) = refused(command);
        assert_eq!(code, 3, "{command:?}: {line}");
    }
}

/// The config file's path may lead to something else since the mount.
#[test]
fn a_config_file_that_became_a_pipe_or_a_device_is_not_read() {
    needs!(mounting());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pool.toml");
    fs::write(&file, "").unwrap();
    let pool = lab::pool().tmp_branch("a").option(&format!("config={}", file.display())).mount();
    let persist = || {
        let (code, line) = refused(&["set", &at(&pool), "create=mfs", "--persist"]);
        assert!(code == 1 && line.contains("not a regular file"), "{code}: {line}");
    };
    fs::remove_file(&file).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    persist();
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
    persist();
}
