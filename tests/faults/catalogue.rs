//! The limit of names of a catalogue.

use fsstack_lab::shell::{Finished, command};
use fsstack_lab::{self as lab, Pool, needs, until};

use crate::kept::command_path;

fn found(pool: &Pool) -> String {
    let Finished { code, stdout, stderr, .. } =
        command(command_path()).arg("find").arg(pool.path()).output().unwrap();
    assert!(code < 2, "{stdout} {stderr}");
    stdout + &stderr
}

/// With more names it is said to be incomplete. Made anew with fewer it is complete.
#[test]
fn a_catalogue_with_more_names_than_its_limit_says_so() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("catalogue=on");
    let mut pool = pool
        .helper(env!("CARGO_BIN_EXE_mount-fsstack-faulty"))
        .env("FSSTACK_TEST_CATALOGUE_NAMES", "100")
        .mount();
    let is_complete = |pool: &Pool| !found(pool).contains("is not complete");
    (0..90).for_each(|n| pool.write(format!("file{n}"), b"x"));
    until("90 names", || found(&pool).lines().count() >= 90 && is_complete(&pool));
    (90..200).for_each(|n| pool.write(format!("file{n}"), b"x"));
    until("a catalogue that is said to be incomplete", || !is_complete(&pool));
    pool.write("after", b"x");
    assert_eq!(pool.read("after"), b"x");
    (50..200).for_each(|n| std::fs::remove_file(pool.at(format!("file{n}"))).unwrap());
    assert!(!is_complete(&pool));
    pool.unmount();
    lab::shell::command("sh")
        .arg("-c")
        .arg(format!("rm {}/*/catalogue.redb", pool.state_dir().display()))
        .output()
        .unwrap();
    pool.remount();
    until("a catalogue made anew", || found(&pool).lines().count() == 51 && is_complete(&pool));
}
