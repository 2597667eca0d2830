//! States that are damaged, incomplete, or of another version's format, in the hands of the real program.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use fsstack_lab::shell::{Finished, command};
use fsstack_lab::{daemon, needs};
use fsstack_sys::handover::sealed_file;

use super::{pool, upgrade};
use crate::upgrade::refused::{refuses, script};

/// The state that a daemon writes for the next program.
fn state() -> Vec<u8> {
    let pool = pool(&[]);
    let held = fs::File::create_new(pool.at("file")).unwrap();
    let taken = pool.path().with_file_name("taken-state");
    refuses(
        &pool,
        &script(&pool, &format!("cp \"$2\" {}; echo taken >&2; exit 1", taken.display())),
        "taken",
    );
    let state = fs::read(taken).unwrap();
    held.write_all_at(b"x", 0).unwrap();
    upgrade(&pool);
    state
}

/// The program's answer to this state.
fn checked(state: &[u8]) -> Finished {
    let file = sealed_file("state", &[state]).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    command(daemon::helper().unwrap()).args(["--adopt-check", &path]).output().unwrap()
}

/// The program takes the state over, with no program to go back to.
fn adopted(state: &[u8]) -> Finished {
    let file = sealed_file("state", &[state]).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let helper = daemon::helper().unwrap();
    let runs = format!("exec '{}' --adopt 7 - - a /b 7< {path}", helper.display());
    command("sh").args(["-c", &runs]).output().unwrap()
}

#[track_caller]
fn is_refused(state: &[u8], why: &str) {
    for told in [checked(state), adopted(state)] {
        assert!(told.code == 1 || told.code == 2 || told.code == 32, "{}: {}", told.code, told.stderr);
        assert!(told.stderr.contains(why) && told.stderr.lines().count() == 1, "{why}: {}", told.stderr);
        assert_eq!(told.stdout, "");
    }
}

#[test]
fn a_state_that_is_not_whole_is_refused() {
    needs!(mounting());
    let whole = state();
    let told = checked(&whole);
    assert!(told.code == 0 && told.stdout.contains("takes over a state of format"), "{}", told.stderr);
    for len in [0, 7, 47] {
        is_refused(&whole[..len], "not the state of a pool");
    }
    for len in [48, whole.len() / 2, whole.len() - 1] {
        is_refused(&whole[..len], &format!("should be {}", whole.len() - 48));
    }
    is_refused(&[&whole[..], b"x"].concat(), "should be");
    for at in [48, whole.len() / 2, whole.len() - 1] {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        is_refused(&changed, "damaged (checksum)");
    }
}

#[test]
fn a_state_of_another_format_is_refused_by_name() {
    needs!(mounting());
    let whole = state();
    let format = whole[8];
    for other in [format - 1, format + 1, 255] {
        let mut changed = whole.clone();
        changed[8] = other;
        is_refused(&changed, &format!("state of format {other}, written by version"));
    }
}

/// Somebody could change it while it is read.
#[test]
fn a_state_that_is_not_sealed_is_refused() {
    needs!(mounting());
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("state");
    fs::write(&path, state()).unwrap();
    let told = command(daemon::helper().unwrap()).arg("--adopt-check").arg(&path).output().unwrap();
    assert!(told.code != 0 && told.stderr.lines().count() == 1, "{}: {}", told.code, told.stderr);
    assert_eq!(told.stdout, "");
}
