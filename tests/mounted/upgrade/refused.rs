//! An upgrade that cannot be changes nothing.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::PathBuf;

use fsstack_lab::{self as lab, Pool, needs, until};

use super::{pool, upgrade};
use crate::command::{at, branch, output_of, refused};
use crate::hung_branches::{FrozenDaemon, described};
use crate::script::STRANGER;

/// A program beside the pool: a script with these lines.
pub(crate) fn script(pool: &Pool, lines: &str) -> String {
    let path = pool.path().with_file_name("program");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o755).open(&path).unwrap();
    writeln!(file, "#!/bin/sh\n{lines}").unwrap();
    path.to_str().unwrap().to_owned()
}

/// Lines of a script that answers the check as mount.fsstack does.
pub(crate) const ANSWERS: &str = r#"question=$(grep -aoE '[0-9a-f]{32}' "$2" | head -n 1)
echo "mount.fsstack: takes over a state of format $(od -An -tu4 -j8 -N4 "$2" | tr -d ' '): $question""#;

/// The stand-in under this name, where a daemon runs it.
pub(super) fn stand_in(pool: &Pool, name: &str) -> String {
    let path: PathBuf = pool.path().with_file_name(name);
    fs::copy(env!("CARGO_BIN_EXE_stand_in"), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Path of another installation of the daemon.
pub(crate) fn copy_of_the_daemon(pool: &Pool) -> String {
    let path = pool.path().with_file_name("mount.fsstack.other");
    fs::copy(lab::daemon::helper().unwrap(), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[track_caller]
pub(crate) fn refuses(pool: &Pool, program: &str, why: &str) {
    let (code, line) = refused(&["upgrade", &at(pool), "--program", program]);
    assert_eq!(code, 1, "{line}");
    assert!(line.contains(why), "{line}");
}

#[test]
fn over_the_ring_it_is_refused_by_name() {
    needs!(mounting(), rings());
    let pool = lab::pool().tmp_branch("a").option("transport=ring").mount();
    let (code, line) = refused(&["upgrade", &at(&pool)]);
    assert_eq!(code, 1);
    assert!(line.contains("transport=ring") && line.contains("transport=dev"), "{line}");
    pool.write("file", b"x");
}

#[test]
fn a_program_that_is_not_good_changes_nothing() {
    needs!(mounting());
    let pool = pool(&[]);
    let file =
        File::options().read(true).write(true).create(true).truncate(true).open(pool.at("file")).unwrap();
    let goes_on = || {
        file.write_all_at(b"on", 0).unwrap();
        assert_eq!(pool.read("file"), b"on");
    };
    refuses(&pool, &script(&pool, "echo not today >&2; exit 1"), "not today");
    goes_on();
    refuses(&pool, &script(&pool, "kill -SEGV $$"), "signal: 11");
    goes_on();
    refuses(&pool, &script(&pool, "exec sleep 100"), "within 10 s");
    goes_on();
    // It passes the check; a script cannot be run by its descriptor alone.
    refuses(&pool, &script(&pool, ANSWERS), "cannot be run");
    goes_on();
    refuses(&pool, "/no/such/program", "No such file");
    let strange = script(&pool, "exit 0");
    chown(&strange, Some(STRANGER), None).unwrap();
    refuses(&pool, &strange, "root alone");
    chown(&strange, Some(0), None).unwrap();
    fs::set_permissions(&strange, fs::Permissions::from_mode(0o757)).unwrap();
    refuses(&pool, &strange, "root alone");
    refuses(&pool, pool.path().to_str().unwrap(), "root alone");
    goes_on();
    upgrade(&pool);
    goes_on();
}

/// Becoming such a program would end the pool.
#[test]
fn a_program_that_does_not_know_the_pools_state_is_refused_by_name() {
    needs!(mounting());
    let pool = pool(&[]);
    let file = File::create(pool.at("file")).unwrap();
    for program in ["/bin/true", "/bin/echo"] {
        let program = fs::canonicalize(program).unwrap();
        refuses(&pool, program.to_str().unwrap(), &format!("{}: does not answer", program.display()));
        file.write_all_at(b"on", 0).unwrap();
        assert_eq!(pool.read("file"), b"on");
    }
    refuses(&pool, &script(&pool, &format!("{ANSWERS}0")), "does not answer");
    upgrade(&pool);
    assert_eq!(pool.read("file"), b"on");
}

#[test]
fn the_next_upgrade_is_to_the_program_that_serves() {
    needs!(mounting());
    let pool = pool(&[]);
    let other = copy_of_the_daemon(&pool);
    let begins = |line: &str| line.starts_with(&format!("{other}: version"));
    assert!(begins(&output_of(&["upgrade", &at(&pool), "--program", &other])));
    refuses(&pool, &stand_in(&pool, "stand-in"), "the stand-in says no");
    let line = upgrade(&pool);
    assert!(begins(&line), "{line}");
}

#[test]
fn a_program_in_the_pool_itself_is_refused() {
    needs!(mounting());
    let pool = pool(&[]);
    fs::copy(script(&pool, "exit 0"), pool.at("program")).unwrap();
    refuses(&pool, pool.at("program").to_str().unwrap(), "lies in the pool");
    upgrade(&pool);
}

#[test]
fn a_fifo_is_no_program_and_is_not_waited_for() {
    needs!(mounting());
    let pool = pool(&[]);
    let fifo = pool.path().with_file_name("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
    refuses(&pool, fifo.to_str().unwrap(), "root alone");
    upgrade(&pool);
}

/// The command knows the program by its descriptor's number in the daemon: that must not come to mean another file.
#[test]
fn a_program_that_is_being_checked_stays_open_while_another_upgrade_begins() {
    needs!(mounting());
    let pool = pool(&[]);
    let fifo = pool.path().with_file_name("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let first =
        script(&pool, &format!("echo begun > {0}; read line < {0}; echo first >&2; exit 1", fifo.display()));
    let checked = pool.path().with_file_name("checked");
    fs::rename(first, &checked).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| refuses(&pool, checked.to_str().unwrap(), "first"));
        assert_eq!(fs::read_to_string(&fifo).unwrap(), "begun\n");
        refuses(&pool, &script(&pool, "echo second >&2; exit 1"), "second");
        let held = fs::read_dir(format!("/proc/{}/fd", pool.daemon().pid)).unwrap();
        let held = held.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        assert!(held.into_iter().any(|path| path == checked), "the first program is closed");
        fs::write(&fifo, "go\n").unwrap();
        first.join().unwrap();
    });
    upgrade(&pool);
}

#[test]
fn a_program_that_fails_after_the_check_becomes_the_one_before() {
    needs!(mounting());
    let pool = pool(&[]);
    let file =
        File::options().read(true).write(true).create(true).truncate(true).open(pool.at("file")).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    fs::remove_file(pool.at("file")).unwrap();
    let program = stand_in(&pool, "stand-in");
    for _ in 0..2 {
        refuses(&pool, &program, "the stand-in says no");
        let mut held = [0; 6];
        file.read_exact_at(&mut held, 0).unwrap();
        assert_eq!(&held, b"before");
        pool.write("other", b"x");
    }
    upgrade(&pool);
    file.write_all_at(b"after.", 0).unwrap();
}

#[test]
fn a_program_that_dies_after_the_check_is_told() {
    needs!(mounting());
    let mut pool = pool(&[]);
    let (code, line) = refused(&["upgrade", &at(&pool), "--program", &stand_in(&pool, "dies")]);
    assert_eq!(code, 4);
    assert!(line.contains("the daemon ended") && line.contains("umount"), "{line}");
    rustix::mount::unmount(pool.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    pool.remount();
    pool.write("file", b"x");
}

#[test]
fn nobody_but_root_may_ask_for_it() {
    needs!(mounting());
    let pool = pool(&[]);
    let command = crate::command::binary();
    let said =
        crate::script::refused_to_stranger("/", &format!("{} upgrade {}", command.display(), at(&pool)));
    assert!(said.to_lowercase().contains("permission denied"), "{said}");
}

/// The daemon could not become another program while a thread is inside.
#[test]
fn a_removed_branch_that_hangs_refuses_it_and_is_named() {
    needs!(mounting(), program("mergerfs"));
    let pool = described().option("transport=dev").mount();
    fs::write(pool.branch("a").path().join("there"), "x").unwrap();
    assert_eq!(pool.read("there"), b"x");
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    // It stays inside.
    assert!(fs::read(pool.at("there")).is_err());
    output_of(&["branch", "remove", &at(&pool), &branch(&pool, "a")]);
    refuses(&pool, lab::daemon::helper().unwrap().to_str().unwrap(), "which was removed, hangs");
    pool.write("here", b"x");
    drop(frozen);
    until("nothing stands against it", || crate::command::run(&["upgrade", &at(&pool)]).code == 0);
    assert_eq!(pool.read("here"), b"x");
}

#[test]
fn a_branch_that_hangs_refuses_it_and_is_named() {
    needs!(mounting());
    let pool = described().option("transport=dev").mount();
    fs::write(pool.branch("a").path().join("there"), "x").unwrap();
    assert_eq!(pool.read("there"), b"x");
    let server = lab::daemon::server_of(pool.branch("a").path()).unwrap();
    let frozen = FrozenDaemon::new(server);
    let refused_now = fs::File::open(pool.at("there")).and_then(|file| file.sync_all());
    until("the branch is known to hang", || {
        let (code, line) = refused(&["upgrade", &at(&pool)]);
        code == 1 && line.contains("does not answer") && line.contains("branches/a")
    });
    drop((refused_now, frozen));
    until("the branch is back", || fs::write(pool.at("here"), "x").is_ok());
    until("nothing stands against it", || crate::command::run(&["upgrade", &at(&pool)]).code == 0);
    assert_eq!((pool.read("here"), pool.read("there")), (b"x".to_vec(), b"x".to_vec()));
}
