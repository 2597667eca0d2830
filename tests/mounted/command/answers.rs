//! Answers about what is missing, dead or named by half: the right line and exit code, and never another pool.

use std::fs;

use fsstack_lab::shell::{Run, command};
use fsstack_lab::{self as lab, cleanup, needs, until};

use super::*;

/// Runs the command in another working directory.
fn run_in(dir: &std::path::Path, arguments: &[&str]) -> Finished {
    let run: Run = command("sh").args(["-c", "cd \"$0\" && exec \"$@\""]).arg(dir).arg(binary());
    run.args(arguments).output().unwrap()
}

#[test]
fn the_beginning_of_a_mount_point_names_no_pool() {
    needs!(mounting());
    let pool = pool();
    let (whole, a) = (at(&pool), branch(&pool, "a"));
    let begun = &whole[..whole.len() - 1];
    for arguments in [
        &["set", begun, "create=mfs"][..],
        &["branch", "mode", begun, &a, "RO"],
        &["branch", "remove", begun, &a],
        &["branch", "drain", begun, &a],
    ] {
        let (code, line) = refused(arguments);
        assert!(code == 3 && line.contains("no such pool"), "{arguments:?}: {code}: {line}");
    }
    assert_eq!(output_of(&["get", &whole, "create"]), "ff\n");
    // The beginning of the name does, where it is the only one.
    let list = json("list", &["list"]);
    let pools = list["pools"].as_array().unwrap();
    let id = pools.iter().find(|one| one["mount_point"] == whole.as_str()).unwrap()["id"].clone();
    let id = id.as_str().unwrap();
    let word = &id[..id.len() - 1];
    if pools.iter().filter(|one| one["id"].as_str().unwrap().starts_with(word)).count() == 1 {
        assert_eq!(output_of(&["get", word, "create"]), "ff\n");
    }
}

#[test]
fn a_dead_mount_is_named_by_every_command() {
    needs!(mounting());
    let pool = pool();
    let list = json("list", &["list"]);
    let mine = list["pools"].as_array().unwrap().iter().find(|one| one["mount_point"] == at(&pool).as_str());
    let id = mine.unwrap()["id"].as_str().unwrap().to_owned();
    let at = at(&pool);
    pool.kill_daemon();
    run(&["list"]); // removes what the daemon has left
    let file = pool.at("file").to_str().unwrap().to_owned();
    let remedy = format!("its daemon is dead; umount {at}");
    for arguments in
        [&["status", &at][..], &["status", &id], &["doctor", &at], &["explain", &at], &["where", &at, &file]]
    {
        let Finished { code, stderr, .. } = run(arguments);
        assert!(code == 4 && stderr.contains(&remedy), "{arguments:?}: {code}: {stderr}");
    }
    assert!(output_of(&["list"]).contains(&remedy));
    let Finished { code, stdout, .. } = run(&["status", "--json"]);
    let all = checked("status", &stdout);
    let silent = all["silent"].as_array().unwrap();
    assert!(code == 4 && silent.iter().any(|one| one["mount_point"] == at.as_str()), "{code}: {stdout}");
}

#[test]
fn a_pool_is_known_by_its_bind_mounts() {
    needs!(mounting());
    let pool = pool();
    pool.mkdir("sub/below");
    pool.write("sub/below/file", b"content");
    let place = tempfile::tempdir().unwrap();
    let bound = place.path().canonicalize().unwrap();
    crate::script::sh(pool.path(), &format!("mount --bind sub {}", bound.display()));
    let results = [
        run(&["where", bound.join("below/file").to_str().unwrap()]),
        run(&["explain", bound.join("below/file").to_str().unwrap(), "--json"]),
        run(&["status", bound.to_str().unwrap(), "--json"]),
        run(&["status", bound.join("below").to_str().unwrap()]),
    ];
    crate::script::sh(pool.path(), &format!("umount {}", bound.display()));
    let [found, explained, status, inside] = results;
    assert!(found.stdout.contains("sub/below/file"), "{found:?}");
    assert_eq!(explained.code, 0, "{explained:?}");
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(status["pools"][0]["mount_point"], at(&pool));
    assert_eq!(inside.code, 3, "a directory in a bind mount is no pool: {inside:?}");
}

#[test]
fn where_answers_for_the_other_paths() {
    needs!(mounting());
    let pool = pool();
    pool.write("a file", b"x");
    pool.write("another", b"x");
    let path = |name: &str| pool.at(name).to_str().unwrap().to_owned();
    let told = run(&["where", &path("a file"), &path("missing"), &path("another"), &path("gone")]);
    assert_eq!((told.code, told.stdout.lines().count(), told.stderr.lines().count()), (3, 2, 2), "{told:?}");
    assert!(told.stdout.contains("another") && told.stderr.contains("gone"), "{told:?}");
}

#[test]
fn a_branch_that_is_there_already_or_missing_is_refused_as_such() {
    needs!(mounting());
    let pool = pool();
    let (code, line) = refused(&["branch", "add", &at(&pool), &branch(&pool, "a")]);
    assert!(code == 1 && line.ends_with("is a branch of this pool already"), "{code}: {line}");
    for missing in ["/nowhere-x/disk", "/nowhere-x/disk*"] {
        let (code, line) = refused(&["branch", "add", &at(&pool), missing]);
        assert!(code == 3 && !line.contains("branches-timeout"), "{code}: {line}");
    }
}

#[test]
fn branches_are_named_from_the_working_directory() {
    needs!(mounting());
    let pool = pool();
    let home = cleanup::fresh("relative").unwrap();
    let _home = cleanup::Entry::dir(&home).unwrap();
    fs::create_dir(home.join("disk")).unwrap();
    let disk = home.join("disk").to_str().unwrap().to_owned();
    let at = at(&pool);
    for arguments in [
        &["branch", "add", &at, "disk=NC,1M"][..],
        &["branch", "mode", &at, "disk", "RW"],
        &["branch", "floor", &at, "./disk", "2M"],
        &["branch", "drain", &at, "disk", "--dry-run"],
        &["branch", "remove", &at, "disk"],
    ] {
        let done = run_in(&home, arguments);
        assert!(done.code == 0 && done.stdout.contains(&disk), "{arguments:?}: {done:?}");
    }
}

#[test]
fn explain_create_reads_its_path_as_rules_do() {
    needs!(mounting());
    let pool = pool();
    pool.mkdir("dir");
    let shown = |done: Finished| {
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout.lines().next().unwrap().to_owned()
    };
    let at = at(&pool);
    let relative = shown(run_in(&pool.at("dir"), &["explain", &at, "create", "new"]));
    assert!(relative.starts_with("create /dir/new by"), "{relative}");
    let dotted = shown(run_in(&pool.at("dir"), &["explain", &at, "create", "./new"]));
    assert!(dotted.starts_with("create /dir/new by"), "{dotted}");
    let from_root = shown(run(&["explain", &at, "create", "/dir/new"]));
    assert!(from_root.starts_with("create /dir/new by"), "{from_root}");
}

#[test]
fn explain_create_names_a_branch_that_is_down() {
    needs!(mounting(), program("mergerfs"));
    let pool = lab::pool().served_branch("a").tmp_branch("b").option("create=ff").mount();
    pool.write("file", b"x");
    pool.branch("a").daemon().kill().unwrap();
    let expected = format!("branch {} is down", branch(&pool, "a"));
    until("the branch is down", || {
        let (code, line) = refused(&["explain", &at(&pool), "create", "/new"]);
        assert!(code == 1 && !line.contains("os error"), "{code}: {line}");
        line.contains(&expected) && line.contains("EIO (degraded=strict)")
    });
}

#[test]
fn a_missing_source_and_json_of_a_text_are_refused_with_their_codes() {
    needs!(mounting());
    let pool = pool();
    assert_eq!(run(&["copy", "/nowhere-x", &at(&pool)]).code, 3);
    for command in ["metrics", "support"] {
        let (code, line) = refused(&["--json", command, &at(&pool)]);
        assert!(code == 2 && line.contains("--json"), "{code}: {line}");
    }
}

#[test]
fn doctor_tells_of_a_dead_keeper_and_counts_as_status_does() {
    needs!(mounting());
    let pool = crate::keep::pool(&[]);
    let serves = crate::keep::daemon(&pool);
    let line =
        |text: &str| run(&["doctor", &at(&pool)]).stdout.lines().find(|l| l.contains(text)).map(String::from);
    let counted = line("descriptors are open").unwrap();
    assert!(!counted.contains(": 0 of"), "{counted}");
    pool.daemon().kill().unwrap();
    until("doctor says so", || line("its keeper has died").is_some_and(|line| line.starts_with("warn")));
    crate::script::sh("/", &format!("umount {}", pool.path().display()));
    until("it ends", || !serves.lives());
}
