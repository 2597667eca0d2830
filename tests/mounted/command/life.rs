//! Life of the control socket: permissions, and leftovers of a daemon that ends or is killed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use fsstack_lab::{cleanup::Entry, needs};

use super::*;
use crate::script::STRANGER;

fn listed(pool: &Pool) -> Value {
    let list = json("list", &["list"]);
    let mine = list["pools"].as_array().unwrap().iter().find(|one| one["mount_point"] == at(pool).as_str());
    mine.cloned().unwrap_or_default()
}

#[test]
fn the_socket_is_roots_alone_and_goes_with_the_mount() {
    needs!(mounting(), root());
    let mut pool = pool();
    let socket = PathBuf::from(listed(&pool)["socket"].as_str().unwrap());
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let folder = fs::metadata(socket.parent().unwrap()).unwrap().permissions().mode();
    assert_eq!(folder & 0o022, 0, "others may not write to {}", socket.display());
    // A copy of the program that the user may execute, wherever the target directory is.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("fsstack");
    fs::copy(binary(), &copy).unwrap();
    let refused_output =
        command(&copy).args(["set", &at(&pool), "create=mfs"]).as_user(STRANGER, STRANGER).output().unwrap();
    assert_eq!(refused_output.code, 5, "{}", refused_output.stderr);
    assert!(refused_output.stderr.contains("permission denied"), "{}", refused_output.stderr);
    pool.unmount();
    assert!(!socket.exists());
}

#[test]
fn a_killed_daemon_is_reported_and_cleaned_up() {
    needs!(mounting());
    let mut pool = pool();
    let socket = PathBuf::from(listed(&pool)["socket"].as_str().unwrap());
    pool.kill_daemon();
    let (code, line) = refused(&["status", &at(&pool)]);
    // Another test's command may have cleaned up already: then the pool is unknown.
    assert!(code == 4 && line.contains("daemon is dead") || code == 3, "{code}: {line}");
    assert!(!socket.exists() && !socket.with_extension("json").exists());
    pool.remount();
    assert_eq!(output_of(&["get", &at(&pool), "create"]), "ff\n");
}

/// The mount table has the type that the user chose.
#[test]
fn a_dead_pool_with_a_subtype_of_its_own_is_known_until_it_is_unmounted() {
    needs!(mounting(), root());
    let mut pool = lab::pool().tmp_branch("a").option("subtype=archive").mount();
    let bound = tempfile::tempdir().unwrap();
    {
        let _bound = Entry::mount(bound.path()).unwrap();
        crate::script::sh("/", &format!("mount --bind {} {}", at(&pool), bound.path().display()));
        output_of(&["status", bound.path().to_str().unwrap()]);
        crate::script::sh("/", &format!("umount {}", bound.path().display()));
    }
    pool.kill_daemon();
    let is_dead = || {
        let list = json("list", &["list"]);
        list["dead"].as_array().unwrap().iter().any(|dead| dead["mount_point"] == at(&pool).as_str())
    };
    // The first one cleans up what the daemon has left.
    assert_eq!([is_dead(), is_dead()], [true; 2]);
    let (code, line) = refused(&["status", &at(&pool)]);
    assert!(code == 4 && line.contains("daemon is dead"), "{code}: {line}");
    pool.unmount();
    let list = json("list", &["list"]);
    assert!(!list["dead"].to_string().contains(&at(&pool)), "{list:#}");
}

#[test]
fn a_second_daemon_for_one_mount_point_is_refused() {
    needs!(mounting());
    // The mount table has the type that the user chose.
    let renamed = lab::pool().tmp_branch("a").option("subtype=archive").no_others().mount();
    for pool in [pool(), renamed] {
        let again = pool.mount_command().unwrap().output().unwrap();
        assert_eq!(again.code, 32);
        assert!(again.stderr.contains("a pool is mounted there already"), "{}", again.stderr);
        output_of(&["status", &at(&pool)]);
    }
}

#[test]
fn a_pool_over_one_that_was_unmounted_lazily_has_a_name_of_its_own() {
    needs!(mounting(), root());
    let mut first = pool();
    let open = fs::File::create(first.at("busy")).unwrap();
    let id = listed(&first)["id"].as_str().unwrap().to_owned();
    crate::script::sh("/", &format!("umount -l {}", first.path().display()));
    // Other branches, the same mount point.
    let dir = tempfile::tempdir().unwrap();
    let _mount = Entry::mount(first.path()).unwrap();
    let helper = daemon::helper().unwrap();
    command(helper).arg(dir.path()).arg(first.path()).args(["-o", "minfreespace=1M"]).run().unwrap();
    let list = json("list", &["list"]);
    let later = list["pools"].as_array().unwrap().iter().find(|one| one["id"] == format!("{id}-2"));
    assert_eq!(later.unwrap()["mount_point"], at(&first).as_str());
    assert!(output_of(&["get", &at(&first), "minfreespace"]).contains("1M"), "the later one is asked");
    drop(open);
    first.unmount();
}

#[test]
fn pools_without_change_cause_no_wake_up_of_the_control_thread() {
    needs!(mounting());
    let pool = pool();
    output_of(&["status", &at(&pool)]);
    let tasks = format!("/proc/{}/task", pool.daemon().pid);
    let control = fs::read_dir(tasks)
        .unwrap()
        .map(|task| task.unwrap().path())
        .find(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "control"));
    let control = control.expect("a thread called control");
    let switches = || {
        let status = fs::read_to_string(control.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    // Time limits of the last request expire first.
    let mut before = switches();
    let quiet = (0..60).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let now = switches();
        let same = now == before;
        before = now;
        same
    });
    assert!(quiet, "it wakes up though nobody asks");
}
