//! The lab's own parts on the real machine: branches, rivals, and leftovers of a killed run.

use std::fs;
use std::path::Path;
use std::time::Duration;

use fsstack_lab::rival::Union;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, Branch, Kind, Layout, MiB, cleanup, mounts, needs};

#[test]
fn a_branch_fills_turns_read_only_and_goes() {
    needs!(loops());
    let place = cleanup::fresh("branches").unwrap();
    let home = cleanup::Entry::dir(&place).unwrap();
    for kind in [Kind::Xfs(MiB(300)), Kind::Ext4(MiB(32)), Kind::Tmpfs(MiB(16))] {
        let mut branch = Branch::make("a", kind, Layout::Sparse, &place).unwrap();
        let path = branch.path().to_owned();
        branch.fill_until_free(MiB(1));
        assert!(branch.free() <= MiB(1).bytes() + 4096, "{kind:?}: {} free", branch.free());
        branch.drop_ballast();
        assert!(MiB(8).bytes() < branch.free(), "{kind:?}");
        branch.remount_ro();
        assert!(fs::write(path.join("x"), "x").is_err());
        branch.remount_rw();
        fs::write(path.join("x"), "x").unwrap();
        branch.unmount();
        assert!(!path.join("x").exists());
        branch.remount();
        assert_eq!(path.join("x").exists(), !matches!(kind, Kind::Tmpfs(_)));
        drop(branch);
        assert!(!path.exists());
        assert_eq!(mounts::below(&path).unwrap(), []);
    }
    home.undo().unwrap();
}

#[test]
fn rivals_serve_the_branches_and_end() {
    needs!(mounting());
    for union in [Union::Mergerfs, Union::Mhddfs] {
        if let Err(skip) = union.installed() {
            skip.announce();
            continue;
        }
        let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
        let rival = pool.rival(union, &[]).unwrap();
        fs::write(rival.path().join("x"), "x").unwrap();
        assert_eq!(pool.holders("x").len(), 1, "{union:?}");
        let target = rival.path().to_owned();
        rival.unmount().unwrap();
        assert_eq!(mounts::at(&target).unwrap(), None);
    }
}

#[test]
fn a_dead_daemon_and_a_stuck_one_are_taken_down() {
    needs!(mounting(), program("mergerfs"));
    let pool = lab::pool().tmp_branch("a").unmounted();
    let rival = pool.rival(Union::Mergerfs, &[]).unwrap();
    rival.daemon().kill().unwrap();
    rival.unmount().unwrap();

    let rival = pool.rival(Union::Mergerfs, &[]).unwrap();
    let target = rival.path().to_owned();
    // A thread works in it: it is unmounted nevertheless, and the use of force is reported.
    let sitter = std::thread::spawn({
        let target = target.clone();
        move || command("sleep").arg("3").dir(target).run()
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(rival.unmount().is_err());
    assert_eq!(mounts::at(&target).unwrap(), None);
    sitter.join().unwrap().unwrap();
}

#[test]
fn leftovers_of_a_killed_run_are_swept() {
    needs!(loops());
    // This test, run again as a child process, makes a branch and dies there.
    if let Some(place) = std::env::var_os("FSSTACK_LAB_DIES") {
        let _branch = Branch::make("a", Kind::Xfs(MiB(300)), Layout::Sparse, Path::new(&place)).unwrap();
        std::process::abort();
    }
    let place = cleanup::fresh("killed").unwrap();
    let me = std::env::current_exe().unwrap();
    let died = command(me)
        .args(["--exact", "leftovers_of_a_killed_run_are_swept", "--nocapture"])
        .env("FSSTACK_LAB_DIES", &place)
        .output()
        .unwrap();
    assert_eq!(died.code, 128 + 6, "{died:?}");
    assert!(mounts::at(&place.join("a")).unwrap().is_some());
    lab::sweep().unwrap();
    assert_eq!(mounts::below(&place).unwrap(), []);
    assert!(!place.join("a").exists());
    fs::remove_dir(place).unwrap();
}
