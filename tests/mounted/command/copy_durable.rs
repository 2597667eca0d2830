//! `fsstack copy` and power cuts, and a copy that was killed.

use fsstack_lab::{self as lab, MiB, Pool, needs};

use super::copy::{copy, source};
use crate::script::sh;

/// Everything that a copy reports is on disk when it returns, existing files too: the originals may be removed next.
#[test]
fn a_copy_that_succeeds_is_on_disk_with_what_was_there_already() {
    needs!(mounting(), loops(), program("xfs_io"));
    let mut pool = lab::pool().xfs_branch("a", MiB(300)).mount();
    let (_home, tree) = source();
    sh(&tree, "mkdir d; ln -s nowhere d/link; mkfifo d/pipe; echo text > d/there");
    let cut_power = |pool: &mut Pool| {
        sh("/", &format!("xfs_io -x -c shutdown '{}'", pool.branch("a").path().display()));
        pool.unmount();
        pool.branch_mut("a").unmount();
        pool.branch_mut("a").remount();
        pool.remount();
    };
    // Names without data: no file's sync would include them.
    sh(&tree, "mkdir -p names/d; ln -s nowhere names/d/link; mkfifo names/d/pipe");
    copy(&tree.join("names"), pool.path());
    cut_power(&mut pool);
    assert_eq!(sh(pool.path(), "cd names; find . | sort"), ".\n./d\n./d/link\n./d/pipe");
    // Just made by another program.
    sh(pool.path(), &format!("cp -a '{}/d' .", tree.display()));
    let answer = copy(&tree.join("d"), pool.path());
    assert_eq!(answer["already_there"], 3);
    cut_power(&mut pool);
    assert_eq!(sh(pool.path(), "cd d; find . | sort; cat there"), ".\n./link\n./pipe\n./there\ntext");
}

/// Owner, mode and flags are set after the name: a killed copy is completed by the next one.
#[test]
fn links_pipes_and_flags_that_a_killed_copy_left_unfinished_are_finished() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).mount();
    let (_home, tree) = source();
    sh(
        &tree,
        "ln -s nowhere link; mkfifo -m 640 pipe; echo text > fixed
         chown -h 65534:65534 link pipe; touch -h -d @1000000000 link pipe fixed",
    );
    // As left when the copy is killed.
    sh(
        pool.path(),
        &format!(
            "mkdir tree; cp -a '{}/fixed' tree; ln -s nowhere tree/link; mkfifo -m 600 tree/pipe",
            tree.display()
        ),
    );
    sh(&tree, "chattr +a fixed 2>/dev/null || true");
    let flagged = sh(&tree, "lsattr fixed 2>/dev/null | cut -c6 || true") == "a";
    let answer = copy(&tree, pool.path());
    assert_eq!(answer["failed"], serde_json::json!([]));
    let look = "find . -mindepth 1 -printf '%P|%u|%g|%m|%T@\n' | sort";
    assert_eq!(sh(pool.at("tree"), look), sh(&tree, look));
    if flagged {
        assert_eq!(sh(pool.at("tree"), "lsattr fixed | cut -c6"), "a");
        sh("/", &format!("chattr -a '{}/fixed' '{}/tree/fixed'", tree.display(), pool.path().display()));
    }
}
