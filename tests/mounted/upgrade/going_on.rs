//! Open files, listings, locks and settings outlive an upgrade.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use fsstack_lab::{needs, until};
use rustix::fs::{CWD, Mode, OFlags, SeekFrom as DirSeek, openat, seek};

use super::{pool, upgrade};
use crate::command::{at, branch, json, output_of};
use crate::open_files::{go_on, names, read_write, work_goes_on};
use crate::script::{python, sh, ways};

#[test]
fn open_files_go_on_in_every_write_path() {
    needs!(mounting());
    for way in ways() {
        go_on(&pool(way), way, |pool| drop(upgrade(pool)));
    }
}

#[test]
fn mapped_files_go_on_in_every_write_path() {
    needs!(mounting(), program("python3"));
    for way in ways() {
        let pool = pool(way);
        let command = crate::command::binary();
        let work = format!(
            "
import mmap, os, subprocess
open('file', 'wb').write(b'a' * 65536)
f = open('file', 'r+b')
shared = mmap.mmap(f.fileno(), 65536)
shared[5:10] = b'dirty'
f.close()
said = subprocess.run(['{}', 'upgrade', '{}'], capture_output=True, text=True)
assert said.returncode == 0, said
shared[40000:40005] = b'again'
shared.flush()
assert open('file', 'rb').read()[40000:40005] == b'again'
assert shared[5:10] == b'dirty' and shared[20000:20001] == b'a'
print('same')
",
            command.display(),
            at(&pool)
        );
        assert_eq!(python(pool.path(), &work), "same", "{way:?}");
    }
}

#[test]
fn a_listing_goes_on_where_it_was() {
    needs!(mounting());
    let pool = pool(&[]);
    for branch in ["a", "b"] {
        fs::create_dir(pool.branch(branch).path().join("d")).unwrap();
    }
    let all: BTreeSet<String> = (0..2000).map(|n| format!("entry-{n}-{}", "x".repeat(50))).collect();
    for (n, name) in all.iter().enumerate() {
        let on = pool.branch(if n % 2 == 0 { "a" } else { "b" }).path().join("d");
        File::create(on.join(name)).unwrap();
    }
    let dir = openat(CWD, pool.at("d"), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut seen = names(&dir, 16 << 10);
    assert!(seen.len() < 1000, "all at once");
    loop {
        upgrade(&pool);
        let more = names(&dir, 64 << 10);
        if more.is_empty() {
            break;
        }
        seen.extend(more);
    }
    seen.retain(|name| name != "." && name != "..");
    let once: BTreeSet<String> = seen.iter().cloned().collect();
    assert_eq!(seen.len(), once.len(), "a name came twice");
    assert_eq!(once, all);
    seek(&dir, DirSeek::Start(0)).unwrap();
    assert!(!names(&dir, 16 << 10).is_empty());
}

#[test]
fn a_removed_working_directory_is_still_there() {
    needs!(mounting());
    let pool = pool(&[]);
    pool.mkdir("gone/below");
    let held = openat(CWD, pool.at("gone/below"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    fs::remove_dir(pool.at("gone/below")).unwrap();
    upgrade(&pool);
    assert_eq!(rustix::fs::fstat(&held).unwrap().st_nlink & !3, 0);
    let refused = openat(&held, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap_err();
    assert_eq!(refused, rustix::io::Errno::NOENT);
    fs::remove_dir(pool.at("gone")).unwrap();
}

#[test]
fn locks_hold_and_those_who_wait_get_them() {
    needs!(mounting(), program("flock"));
    for locks in ["locks=local", "locks=branch"] {
        let pool = pool(&[locks]);
        let command = crate::command::binary();
        let work = format!(
            "up() {{ {} upgrade {} > /dev/null || echo no upgrade; }}
             exec 8> lock; flock 8
             flock lock echo got it > got 8>&- & waiter=$!
             trap 'kill $waiter 2> /dev/null || :' EXIT
             sleep 0.3; up; flock -n lock echo free || :; up
             [ ! -s got ] || echo too early; flock -u 8; wait $waiter; cat got
             flock 8; timeout -s INT 3 flock lock true 8>&- & interrupted=$!; sleep 0.3; up; up; wait $interrupted || echo $?",
            command.display(),
            at(&pool)
        );
        assert_eq!(sh(pool.path(), &work), "got it\n124", "{locks}");
        let ranges = format!(
            "
import fcntl, os, subprocess
f = open('file', 'w+b'); f.write(bytes(100)); f.flush()
fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)
def other(start):
    child = os.fork()
    if child == 0:
        try:
            fcntl.lockf(open('file', 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 10, start)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
subprocess.run(['{}', 'upgrade', '{}'], check=True, stdout=subprocess.DEVNULL)
print(other(0), other(50))
fcntl.lockf(f, fcntl.LOCK_UN)
print(other(0))
",
            command.display(),
            at(&pool)
        );
        assert_eq!(python(pool.path(), &ranges), "1 0\n0", "{locks}");
    }
}

#[test]
fn what_an_operator_has_changed_is_kept() {
    needs!(mounting());
    let pool = pool(&[]);
    let other = pool.path().with_file_name("other");
    fs::create_dir(&other).unwrap();
    let (at, added) = (at(&pool), other.to_str().unwrap().to_owned());
    output_of(&["set", &at, "create=mfs", "entry-timeout=2.5", "relocate=off", "log-level=debug"]);
    output_of(&["write-path", &at, "stacked", "--subtree", pool.at("scratch").to_str().unwrap()]);
    output_of(&["branch", "add", &at, &format!("{added}=NC,3M")]);
    output_of(&["branch", "remove", &at, &branch(&pool, "a")]);
    output_of(&["branch", "mode", &at, &branch(&pool, "b"), "RO"]);
    let keys = || output_of(&["get", &at]);
    let branches = || {
        let status = &json("status", &["status", &at])["pools"][0];
        let row = |branch: &serde_json::Value| {
            ["path", "id", "mode", "floor"].map(|key| branch[key].to_string()).join(" ")
        };
        status["branches"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()
    };
    let before = (keys(), branches());
    assert_eq!(before.1.len(), 2);
    upgrade(&pool);
    upgrade(&pool);
    assert_eq!((keys(), branches()), before);
    // The branch that was removed is nobody's, and can come again.
    output_of(&["branch", "add", &at, &branch(&pool, "a")]);
    pool.write("new", b"new");
    assert_eq!(pool.holders("new"), ["a"]);
    output_of(&["branch", "remove", &at, &added]);
}

#[test]
fn writers_and_readers_notice_nothing_of_twenty_upgrades() {
    needs!(mounting());
    const UPGRADES: usize = 20;
    let pool = pool(&[]);
    pool.write("settle", b"x");
    upgrade(&pool);
    let descriptors = || pool.daemon().open_files().unwrap();
    until("the table of mounts is watched", || descriptors() > 8);
    let before = descriptors();
    work_goes_on(&pool, UPGRADES, |pool| drop(upgrade(pool)));
    until("no descriptor is left over", || descriptors() <= before + 8);
}

#[test]
fn handles_of_an_exported_pool_lead_where_they_did() {
    needs!(mounting());
    let pool = pool(&["nfs-export"]);
    pool.mkdir("d");
    pool.write("d/film", b"film");
    let handle = crate::handles::hold(&pool, "d/film");
    upgrade(&pool);
    crate::handles::check(&pool, &handle);
    crate::handles::forget();
    upgrade(&pool);
    crate::handles::check(&pool, &handle);
}

#[test]
fn a_program_that_waits_for_changes_hears_of_them() {
    needs!(mounting(), program("python3"));
    let pool = pool(&[]);
    let work = format!(
        "
import ctypes, os, subprocess
libc = ctypes.CDLL(None)
fd = libc.inotify_init()
assert libc.inotify_add_watch(fd, b'.', 0x100) >= 0
subprocess.run(['{}', 'upgrade', '{}'], check=True, stdout=subprocess.DEVNULL)
open('made', 'w').close()
print(os.read(fd, 4096)[16:].rstrip(b'\\0').decode())
",
        crate::command::binary().display(),
        at(&pool)
    );
    assert_eq!(python(pool.path(), &work), "made");
}

#[test]
fn every_filter_of_system_calls_lets_it_pass() {
    needs!(mounting());
    for seccomp in ["seccomp=on", "seccomp=kill", "seccomp=off"] {
        let pool = pool(&[seccomp, "out-of-band=watch", "metrics=0"]);
        pool.write("file", b"x");
        for _ in 0..3 {
            upgrade(&pool);
        }
        assert_eq!(pool.read("file"), b"x", "{seccomp}");
        let status = fs::read_to_string(format!("/proc/{}/status", pool.daemon().pid)).unwrap();
        let filters = status.lines().find(|line| line.starts_with("Seccomp_filters:")).unwrap();
        // One filter refuses clone3(2), the other has the list of calls. The next program installs no further one.
        let expected = if seccomp == "seccomp=off" { "0" } else { "2" };
        assert!(filters.ends_with(expected), "{seccomp}: {filters}");
    }
}

#[test]
fn json_says_what_the_line_says() {
    needs!(mounting());
    let pool = pool(&[]);
    let told = json("upgrade", &["upgrade", &at(&pool)]);
    assert_eq!((&told["stage"], &told["reason"]), (&"done".into(), &serde_json::Value::Null));
    assert!(told["pause_ms"].as_f64().unwrap() > 0.0);
    let again = json("upgrade", &["upgrade", &at(&pool)]);
    assert_eq!(again["ticket"], told["ticket"].as_u64().unwrap() + 1);
}

#[test]
fn files_on_a_branch_that_another_daemon_serves_go_on() {
    needs!(mounting());
    let pool = crate::hung_branches::described().option("transport=dev").option("create=ff").mount();
    fs::write(pool.branch("a").path().join("there"), "before\n").unwrap();
    let there = File::options().read(true).write(true).open(pool.at("there")).unwrap();
    let here = File::options().read(true).write(true).create_new(true).open(pool.at("here")).unwrap();
    here.write_all_at(b"before\n", 0).unwrap();
    for _ in 0..3 {
        upgrade(&pool);
    }
    read_write(&there);
    read_write(&here);
    assert_eq!(fs::read(pool.branch("a").path().join("there")).unwrap(), b"before\nafter\n");
}
