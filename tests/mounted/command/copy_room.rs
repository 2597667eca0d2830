//! Where `fsstack copy` writes nothing, and where it writes below floors.

use std::fs;
use std::path::Path;

use fsstack_lab::{self as lab, MiB, needs};

use super::copy::{copy, source, text};
use super::*;
use crate::script::sh;

/// Its branches are written past the mount.
#[test]
fn nothing_is_changed_where_the_pool_is_not_mounted_or_read_only() {
    needs!(mounting());
    let (_dir, from) = source();
    fs::write(from.join("file"), "x").unwrap();
    let pool = pool();
    let refused = |arguments: &[&str], code: i32, why: &str| {
        let done = run(arguments);
        assert!(
            done.code == code && done.stderr.contains(why),
            "{arguments:?}: {} {}",
            done.code,
            done.stderr
        );
    };
    let copied = [text(&from), &at(&pool)];
    assert_eq!(remount(&pool, "ro").code, 0);
    refused(&[&["copy"], &copied[..]].concat(), 1, "mounted read-only");
    refused(&["check", &at(&pool), "--fix"], 1, "mounted read-only");
    assert_eq!(remount(&pool, "rw").code, 0);
    // Its mount goes with its last user.
    let held = fs::File::create(pool.at("held")).unwrap();
    sh(Path::new("/"), &format!("umount -l {}", at(&pool)));
    refused(&[&["copy"], &copied[..]].concat(), 4, "not mounted here");
    assert_eq!(fs::read_dir(pool.path()).unwrap().count(), 0, "nothing is in the bare directory");
    drop(held);
}

/// The last resort of the policy takes branches below their floor, as for a create.
#[test]
fn a_copy_goes_below_floors_where_the_policy_says_any() {
    needs!(mounting(), loops());
    let (_dir, from) = source();
    fs::write(from.join("file"), [1; 100_000]).unwrap();
    let pool = |create: &str| {
        let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
        pool.option(create).option("minfreespace=4G").mount()
    };
    let all = pool("create=mfs>any");
    copy(&from, all.path());
    assert_eq!(all.read("tree/file"), [1; 100_000]);
    let some = pool("create=mfs");
    let refused = run(&["copy", text(&from), &at(&some)]);
    assert!(refused.code == 1 && refused.stderr.contains("No space left"), "{}", refused.stderr);
}
