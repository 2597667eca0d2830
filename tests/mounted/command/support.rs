//! `fsstack support`: what a bundle holds, and that no name is in it unless it is asked for.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use fsstack_lab::needs;

use super::*;

const SECTIONS: [&str; 10] = [
    "fsstack",
    "machine",
    "branches' mounts",
    "status",
    "options",
    "doctor",
    "jobs",
    "slow calls",
    "metrics",
    "log",
];

/// A pool whose names all hold the word "secret", in use in ways that quote them.
fn pool_of_secrets() -> Pool {
    let pool = lab::pool()
        .tmp_branch("secret-a")
        .tmp_branch("secret-b")
        .option("create=ff")
        .option("log-level=debug")
        .option("fsname=my-secret")
        .option("subtype=secretfs")
        .no_others()
        .mount();
    let a = pool.branch("secret-a").path().to_owned();
    let b = pool.branch("secret-b").path().to_owned();
    output_of(&["log", &at(&pool), "--slow", "0us"]);
    pool.mkdir("secret dir");
    pool.write("secret dir/a secret file", b"x");
    assert!(fs::read(pool.at("secret dir/missing secret")).is_err());
    output_of(&["write-path", &at(&pool), "stacked", "--subtree", pool.at("secret dir").to_str().unwrap()]);
    // A job that names what stays.
    for root in [&a, &b] {
        fs::write(root.join("secret-hidden"), "x").unwrap();
    }
    let _stays = run(&["branch", "drain", &at(&pool), a.to_str().unwrap()]);
    let _logged = run(&["set", &at(&pool), "minfreespace=1M"]);
    pool
}

#[test]
fn a_bundle_has_all_sections_and_no_name() {
    needs!(mounting());
    let pool = pool_of_secrets();
    let text = output_of(&["support", &at(&pool)]);
    for title in SECTIONS {
        assert!(text.contains(&format!("\n== {title} ==\n")), "{title}: {text}");
    }
    let leaks: Vec<&str> =
        text.lines().filter(|line| line.contains("secret") || line.contains("fsstack-lab")).collect();
    assert_eq!(leaks, [""; 0], "{text}");
    assert!(text.contains("<branch 1>") && text.contains("<pool>"), "{text}");
    assert!(text.contains("\"operation\": \"create\"") && text.contains("fsstack_"), "{text}");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(host.trim().len() < 4 || !text.contains(host.trim()), "{text}");

    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("bundle");
    let path = file.to_str().unwrap();
    assert_eq!(output_of(&["support", &at(&pool), "--with-names", "--output", path]), "");
    let named = fs::read_to_string(&file).unwrap();
    assert!(named.contains("a secret file") && named.contains("changed by the operator"), "{named}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let (code, line) = refused(&["support", &at(&pool), "--output", path]);
    assert!(code == 1 && line.contains("exists"), "{line}");
}
