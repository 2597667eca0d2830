//! Output of `cargo xtask demo` where it cannot run.

#![allow(clippy::unwrap_used, reason = "a test whose setup cannot be made has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fsstack_lab::needs;
use fsstack_lab::shell::{Finished, command};

#[track_caller]
fn refused(answer: &Finished, missing: &[&str]) {
    assert_ne!(answer.code, 0, "{}", answer.stdout);
    let line = answer.stderr.trim_end();
    assert!(line.lines().count() == 1 && line.contains("the demo needs"), "{line}");
    assert!(missing.iter().all(|what| line.contains(what)), "{line}");
}

#[test]
fn without_root_it_says_so() {
    needs!(root());
    // A directory that all users can enter.
    let place = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let own = place.path().join("xtask");
    fs::copy(env!("CARGO_BIN_EXE_xtask"), &own).unwrap();
    refused(&command(own).arg("demo").dir("/").as_user(65534, 65534).output().unwrap(), &["root"]);
}

#[test]
fn without_the_devices_it_names_them() {
    needs!(root(), program("unshare"));
    let scenario = format!("mount -t tmpfs tmpfs /dev; exec {} demo", env!("CARGO_BIN_EXE_xtask"));
    let run = command("unshare").args(["--mount", "--propagation", "private", "bash", "-ec", &scenario]);
    refused(&run.dir("/").output().unwrap(), &["/dev/fuse", "/dev/loop-control"]);
}
