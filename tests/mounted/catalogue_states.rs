//! The catalogue beside what happens to a daemon and its branches: upgrades, deaths that a keeper mends, a branch that hangs, a state
//! directory without room.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use fsstack_lab::{self as lab, MiB, needs, until};
use rustix::process::Signal;

use crate::catalogue::{pool_of_three, state, until_complete, until_equal};
use crate::catalogue_work::work_by_several;
use crate::command::{at, branch, json, output_of};
use crate::keep;

#[test]
fn it_has_what_the_branches_have_after_upgrades_beside_work() {
    needs!(mounting());
    let mut pool = pool_of_three(&["out-of-band=never", "transport=dev"]);
    pool.remount();
    for seed in 200..203 {
        work_by_several(&pool, seed, || drop(output_of(&["upgrade", &at(&pool)])));
        until_complete(&pool);
        until_equal(&pool, &["a", "b", "c"]);
    }
}

#[test]
fn it_has_what_the_branches_have_after_deaths_that_a_keeper_mends() {
    needs!(mounting());
    let pool = keep::pool(&["catalogue=on", "out-of-band=never", "create=rand"]);
    // A third death within a minute would end the pool.
    for seed in 300..302 {
        work_by_several(&pool, seed, || keep::crash_and_serve(&pool));
        until_complete(&pool);
        until_equal(&pool, &["a", "b"]);
    }
}

/// Names that change while a branch hangs are looked at when it answers again, and those of other branches at once.
#[test]
fn a_branch_that_hangs_holds_up_its_own_names_only() {
    needs!(mounting());
    let mut pool = lab::pool()
        .served_branch("a")
        .tmp_branch("b")
        .option("catalogue=on")
        .option("create=rand")
        .option("branch-timeout=2")
        .unmounted();
    for name in ["a", "b"] {
        fs::create_dir(pool.branch(name).path().join("dir")).unwrap();
        fs::write(pool.branch(name).path().join("dir").join(name), name).unwrap();
    }
    pool.remount();
    until_complete(&pool);
    // Noted, and perhaps not looked at yet when it hangs.
    fs::write(pool.at("dir/a"), b"longer").unwrap();
    let server = pool.branch("a").daemon();
    server.signal(Signal::STOP).unwrap();
    fs::write(pool.at("dir/b"), b"longer").unwrap();
    until_equal(&pool, &["b"]);
    let lost = output_of(&["branch", "lost", &at(&pool), &branch(&pool, "a")]);
    assert!(lost.contains("dir/a\n"), "{lost}");
    server.signal(Signal::CONT).unwrap();
    until_complete(&pool);
    until_equal(&pool, &["a", "b"]);
}

/// Changes that are made directly on branches, below directories that the kernel knows by the pool and below others.
#[test]
fn what_changes_on_a_watched_branch_is_known() {
    needs!(mounting());
    let mut pool = pool_of_three(&["out-of-band=watch"]);
    for name in ["a", "b"] {
        fs::create_dir_all(pool.branch(name).path().join("known/below")).unwrap();
        fs::create_dir_all(pool.branch(name).path().join("unknown/below")).unwrap();
        fs::write(pool.branch(name).path().join("unknown/below/old"), b"old").unwrap();
    }
    pool.remount();
    until_complete(&pool);
    assert_eq!(pool.list("known/below").len(), 0);
    for name in ["a", "b"] {
        let root = pool.branch(name).path();
        for dir in ["known", "unknown"] {
            let dir = root.join(dir);
            fs::write(dir.join("below").join(format!("new-{name}")), name).unwrap();
            fs::create_dir_all(dir.join(format!("made-{name}/deep/er"))).unwrap();
            fs::write(dir.join(format!("made-{name}/deep/er/file")), b"x").unwrap();
            fs::rename(dir.join("below"), dir.join(format!("moved-{name}"))).unwrap();
            fs::set_permissions(dir.join(format!("made-{name}/deep")), fs::Permissions::from_mode(0o700))
                .unwrap();
        }
        fs::write(root.join(format!("unknown/moved-{name}/old")), b"longer than before").unwrap();
        fs::set_permissions(root.join("unknown"), fs::Permissions::from_mode(0o750)).unwrap();
    }
    until_equal(&pool, &["a", "b", "c"]);
    fs::remove_dir_all(pool.branch("a").path().join("unknown")).unwrap();
    until_equal(&pool, &["a", "b", "c"]);
    // A copy that the pool has not seen of a directory that the kernel knows, and one that went to another branch.
    let [a, b] = ["a", "b"].map(|name| pool.branch(name).path().to_owned());
    fs::create_dir_all(b.join("seen/deep")).unwrap();
    assert_eq!(pool.list("seen"), ["deep"]);
    fs::create_dir_all(a.join("seen/deep")).unwrap();
    until_equal(&pool, &["a", "b", "c"]);
    // Times of directories, which change with their names, are of another tick.
    std::thread::sleep(Duration::from_millis(20));
    for at in ["seen/later", "seen/deep/later"] {
        fs::write(a.join(at), b"x").unwrap();
    }
    until_equal(&pool, &["a", "b", "c"]);
    fs::rename(a.join("seen"), b.join("gone-there")).unwrap();
    fs::write(b.join("gone-there/deep/last"), b"x").unwrap();
    until_equal(&pool, &["a", "b", "c"]);
}

fn fill(at: &Path) -> File {
    let mut ballast = File::create(at).unwrap();
    for step in [65536, 4096, 512, 1] {
        while ballast.write_all(&vec![0; step]).is_ok() {}
    }
    ballast
}

#[test]
fn the_file_is_small_after_a_pool_that_lost_most_of_its_names() {
    needs!(mounting());
    let mut pool = pool_of_three(&[]);
    let many = pool.branch("a").path().join("many");
    fs::create_dir(&many).unwrap();
    (0..40_000).for_each(|n| drop(File::create_new(many.join(format!("{n:0250}"))).unwrap()));
    let state_dir = pool.state_dir();
    let mut session = || {
        pool.remount();
        until_complete(&pool);
        pool.unmount();
        let of = fs::read_dir(&state_dir).unwrap().map(|entry| entry.unwrap().path().join("catalogue.redb"));
        of.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum::<u64>()
    };
    let before = session();
    fs::remove_dir_all(many).unwrap();
    let after = session();
    assert!(after < before / 4, "{before}, {after}");
}

/// The catalogue leaves some space to others, says so once, and is complete again when there is more.
#[test]
fn a_state_directory_with_little_space_stops_the_catalogue_until_there_is_more() {
    needs!(mounting());
    let room = lab::pool().tmpfs_branch("room", MiB(32)).unmounted();
    let state_dir = room.branch("room").path().to_owned();
    let log = state_dir.with_extension("log");
    let options = [format!("state-dir={}", state_dir.display()), format!("log={}", log.display())];
    let mut pool = pool_of_three(&["out-of-band=never", &options[0], &options[1]]);
    pool.remount();
    until_complete(&pool);
    // Less than a twentieth stays free, at every moment enough for what is under way.
    let space = rustix::fs::statvfs(&state_dir).unwrap();
    let ballast = File::create(state_dir.join("ballast")).unwrap();
    let len = space.f_bavail * space.f_frsize - (1 << 20);
    rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
    let known = || {
        let page = json("catalogue", &["find", &at(&pool), "--name", "no such name"]);
        ["a", "b", "c"].map(|name| state(&page, &branch(&pool, name))["complete"] == true)
    };
    let stored = || {
        let of = fs::read_dir(&state_dir).unwrap().map(|entry| entry.unwrap().path().join("catalogue.redb"));
        of.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum::<u64>()
    };
    let before = stored();
    for n in 0..20_000 {
        File::create_new(pool.at(format!("a-name-that-takes-some-room-in-the-catalogue-{n}"))).unwrap();
    }
    until("a catalogue that is said to be incomplete", || known() == [false; 3]);
    assert!(stored() <= before, "{before}, {}", stored());
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("catalogue: little space is free in state-dir").count(), 1, "{said}");
    ballast.set_len(0).unwrap();
    until("a complete catalogue", || {
        let said = fs::read_to_string(&log).unwrap();
        assert!(!said.contains("catalogue cannot be written"), "{said}");
        known() == [true; 3]
    });
    until_equal(&pool, &["a", "b", "c"]);
    pool.unmount();
    fs::remove_file(log).unwrap();
}

/// The pool goes on without the catalogue, says so, and the next mount makes it anew.
#[test]
fn a_full_state_directory_costs_the_catalogue_only() {
    needs!(mounting());
    let room = lab::pool().tmpfs_branch("room", MiB(8)).unmounted();
    let state_dir = room.branch("room").path().to_owned();
    let mut pool = pool_of_three(&["out-of-band=never", &format!("state-dir={}", state_dir.display())]);
    pool.remount();
    until_complete(&pool);
    let ballast = fill(&state_dir.join("ballast"));
    for n in 0..20_000 {
        File::create_new(pool.at(format!("a-name-that-takes-some-room-in-the-catalogue-{n}"))).unwrap();
    }
    let known = || {
        let page = json("catalogue", &["find", &at(&pool), "--name", "no such name"]);
        ["a", "b", "c"].map(|name| state(&page, &branch(&pool, name))["complete"] == true)
    };
    until("a catalogue that is said to be incomplete", || known() == [false; 3]);
    pool.write("after", b"x");
    assert_eq!(pool.read("after"), b"x");
    pool.unmount();
    drop(ballast);
    fs::remove_file(state_dir.join("ballast")).unwrap();
    pool.remount();
    until_complete(&pool);
    until_equal(&pool, &["a", "b", "c"]);
    pool.unmount();
}
