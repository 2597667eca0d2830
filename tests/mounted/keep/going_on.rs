//! Open files, listings, locks and settings outlive the daemon.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use fsstack_lab::{self as lab, MiB, needs, until};
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{crash, crash_and_serve, daemon, pool};
use crate::command::{at, binary, branch, json, output_of, run};
use crate::open_files::{go_on, names, read_write, work_goes_on};
use crate::script::{python, sh, ways};

#[test]
fn open_files_go_on_in_every_write_path() {
    needs!(mounting());
    for way in ways() {
        go_on(&pool(way), way, crash);
    }
}

/// The kernel writes dirty pages of a file before it drops the file's pages, and no signal ends its wait. A daemon that dropped pages at
/// its start, and was killed then, waited for its own answer, and its keeper for its end.
#[test]
fn a_daemon_that_is_killed_at_its_start_leaves_dirty_pages_to_the_next() {
    needs!(mounting());
    let pool = pool(&["write-path=stacked", "page-cache=writeback"]);
    let names: Vec<String> = (0..200).map(|n| format!("file-{n}")).collect();
    let files: Vec<File> = names.iter().map(|name| File::create_new(pool.at(name)).unwrap()).collect();
    for file in &files {
        file.write_all_at(&[b'x'; 65536], 0).unwrap();
    }
    crash(&pool);
    let next = daemon(&pool);
    std::thread::scope(|scope| {
        // Its control socket is served once it has begun.
        let answered = scope.spawn(|| lab::shell::command(binary()).args(["status", &at(&pool)]).output());
        let drops_pages = || {
            fs::read_to_string(format!("/proc/{}/stack", next.pid))
                .is_ok_and(|stack| stack.contains("fuse_reverse_inval_inode"))
        };
        while !drops_pages() && !answered.is_finished() {
            std::thread::yield_now();
        }
        next.kill().unwrap();
        answered.join().unwrap().unwrap();
    });
    for (name, file) in names.iter().zip(&files) {
        file.sync_all().unwrap();
        assert_eq!(pool.read(name), [b'x'; 65536], "{name}");
    }
}

#[test]
fn mapped_files_go_on_in_every_write_path() {
    needs!(mounting(), program("python3"));
    for way in ways() {
        let pool = pool(way);
        let keeper = pool.daemon().pid;
        let work = format!(
            "
import mmap, os, signal, time
open('file', 'wb').write(b'a' * 65536)
f = open('file', 'r+b')
shared = mmap.mmap(f.fileno(), 65536)
shared[5:10] = b'dirty'
f.close()
daemon = int(open('/proc/{keeper}/task/{keeper}/children').read().split()[0])
os.kill(daemon, signal.SIGKILL)
shared[40000:40005] = b'again'
shared.flush()
assert open('file', 'rb').read()[40000:40005] == b'again'
assert shared[5:10] == b'dirty' and shared[20000:20001] == b'a'
print('same')
"
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
    crash(&pool);
    seen.extend(names(&dir, 16 << 10));
    crash(&pool);
    loop {
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
}

#[test]
fn directories_are_reached_as_before() {
    needs!(mounting());
    let pool = pool(&[]);
    pool.mkdir("gone/below");
    pool.mkdir("stays/deep");
    let path =
        |name: &str| openat(CWD, pool.at(name), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let (gone, stays) = (path("gone/below"), path("stays/deep"));
    fs::remove_dir(pool.at("gone/below")).unwrap();
    fs::rename(pool.at("stays"), pool.at("moved")).unwrap();
    crash(&pool);
    let made = openat(&stays, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
    rustix::io::write(&made, b"x").unwrap();
    assert_eq!(pool.read("moved/deep/file"), b"x");
    openat(&gone, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap_err();
    crash(&pool);
    assert_eq!(sh(pool.path(), "cd moved/deep; ls; cd ../..; ls -a moved"), "file\n.\n..\ndeep");
    fs::remove_dir_all(pool.at("moved")).unwrap();
}

#[test]
fn locks_hold() {
    needs!(mounting(), program("flock"));
    let pool = pool(&[]);
    let keeper = pool.daemon().pid;
    let work = format!(
        "die() {{ kill -9 $(cat /proc/{keeper}/task/{keeper}/children); sleep 0.3; }}
         exec 8> lock; flock 8
         flock lock echo got it > got 8>&- & waiter=$!
         trap 'kill $waiter 2> /dev/null || :' EXIT
         sleep 0.3; die; flock -n lock echo free || :
         [ ! -s got ] || echo too early; flock -u 8; wait $waiter; cat got"
    );
    assert_eq!(sh(pool.path(), &work), "got it");
    let ranges = format!(
        "
import fcntl, os, signal
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
os.kill(int(open('/proc/{keeper}/task/{keeper}/children').read().split()[0]), signal.SIGKILL)
print(other(0), other(50))
fcntl.lockf(f, fcntl.LOCK_UN)
print(other(0))
"
    );
    assert_eq!(python(pool.path(), &ranges), "1 0\n0");
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
    let status = || json("status", &["status", &at])["pools"][0].clone();
    let branches = || {
        let row = |branch: &serde_json::Value| {
            ["path", "id", "mode", "floor"].map(|key| branch[key].to_string()).join(" ")
        };
        status()["branches"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()
    };
    let before = (keys(), branches());
    assert_eq!(before.1.len(), 2);
    let dies = daemon(&pool);
    crash_and_serve(&pool);
    until("the control socket is back", || {
        fsstack_lab::shell::command(crate::command::binary()).args(["get", &at]).output().unwrap().code == 0
    });
    assert_eq!((keys(), branches()), before);
    let now = status();
    assert_eq!(now["restart"], "keep");
    assert_ne!(now["pid"], dies.pid);
    // The branch that was removed is nobody's, and can come again.
    output_of(&["branch", "add", &at, &branch(&pool, "a")]);
    pool.write("new", b"new");
    assert_eq!(pool.holders("new"), ["a"]);
    output_of(&["branch", "remove", &at, &added]);
}

#[test]
fn a_file_that_was_moved_while_it_is_open_goes_on() {
    needs!(mounting());
    let pool = fsstack_lab::pool()
        .tmpfs_branch("a", MiB(8))
        .tmpfs_branch("b", MiB(32))
        .option("transport=dev")
        .option("restart=keep")
        .option("create=ff")
        .option("minfreespace=1M")
        .option("write-path=stacked")
        .mount();
    let file = File::options().read(true).write(true).create_new(true).open(pool.at("file")).unwrap();
    let block = |n: u64| vec![u8::try_from(n).unwrap(); 1 << 20];
    for n in 0..12 {
        file.write_all_at(&block(n), n << 20).unwrap();
    }
    assert_eq!(pool.holders("file"), ["b"], "it did not move");
    let number = file.metadata().unwrap().ino();
    crash(&pool);
    for n in 12..16 {
        file.write_all_at(&block(n), n << 20).unwrap();
    }
    file.sync_all().unwrap();
    for n in 0..16 {
        let mut read = block(99);
        file.read_exact_at(&mut read, n << 20).unwrap();
        assert!(read == block(n), "block {n}");
    }
    assert_eq!(file.metadata().unwrap().ino(), number);
    assert_eq!(fs::metadata(pool.at("file")).unwrap().len(), 16 << 20);
    fs::remove_file(pool.at("file")).unwrap();
    crash(&pool);
    assert_eq!(file.metadata().unwrap().len(), 16 << 20);
}

/// On a branch that cannot open by number each would cost a walk through all of it.
#[test]
fn removed_files_are_not_searched_for() {
    needs!(mounting());
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let pool = lab::pool().tmpfs_branch("a", MiB(10)).option("transport=dev").option("restart=keep");
    let pool = pool.option(&format!("log={}", log.display())).mount();
    let files: Vec<File> = (0..3)
        .map(|n| {
            let name = format!("file-{n}");
            let file = File::options().read(true).write(true).create_new(true).open(pool.at(&name)).unwrap();
            file.write_all_at(b"text", 0).unwrap();
            fs::remove_file(pool.at(&name)).unwrap();
            file
        })
        .collect();
    crash_and_serve(&pool);
    for file in &files {
        let mut text = [0; 4];
        file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"text");
    }
    let told = fs::read_to_string(&log).unwrap();
    assert!(!told.contains("looking for an object by its number"), "{told}");
}

#[test]
fn writers_and_readers_notice_nothing() {
    needs!(mounting());
    let pool = pool(&[]);
    work_goes_on(&pool, 2, crash);
}

#[test]
fn every_filter_of_system_calls_lets_it_pass() {
    needs!(mounting());
    for seccomp in ["seccomp=on", "seccomp=kill", "seccomp=off"] {
        let pool = pool(&[seccomp, "out-of-band=watch", "metrics=0"]);
        pool.write("file", b"x");
        crash_and_serve(&pool);
        crash_and_serve(&pool);
        assert_eq!(pool.read("file"), b"x", "{seccomp}");
        let status = || fs::read_to_string(format!("/proc/{}/status", daemon(&pool).pid)).unwrap();
        // One filter refuses clone3(2), the other has the list of calls. The next program installs no further one.
        let expected = if seccomp == "seccomp=off" { "0" } else { "2" };
        until(seccomp, || {
            status().lines().any(|line| line.starts_with("Seccomp_filters:") && line.ends_with(expected))
        });
    }
}

#[test]
fn handles_of_an_exported_pool_lead_where_they_did() {
    needs!(mounting());
    let pool = pool(&["nfs-export"]);
    pool.mkdir("d");
    pool.write("d/film", b"film");
    let handle = crate::handles::hold(&pool, "d/film");
    crash(&pool);
    crate::handles::check(&pool, &handle);
    crate::handles::forget();
    crash(&pool);
    crate::handles::check(&pool, &handle);
}

#[test]
fn a_program_that_waits_for_changes_hears_of_them() {
    needs!(mounting(), program("python3"));
    let pool = pool(&[]);
    let keeper = pool.daemon().pid;
    let work = format!(
        "
import ctypes, os, signal
libc = ctypes.CDLL(None)
fd = libc.inotify_init()
assert libc.inotify_add_watch(fd, b'.', 0x100) >= 0
os.kill(int(open('/proc/{keeper}/task/{keeper}/children').read().split()[0]), signal.SIGKILL)
open('made', 'w').close()
print(os.read(fd, 4096)[16:].rstrip(b'\\0').decode())
"
    );
    assert_eq!(python(pool.path(), &work), "made");
}

#[test]
fn files_on_a_branch_that_another_daemon_serves_go_on() {
    needs!(mounting());
    let pool = crate::hung_branches::described()
        .option("transport=dev")
        .option("restart=keep")
        .option("create=ff")
        .mount();
    fs::write(pool.branch("a").path().join("there"), "before\n").unwrap();
    let there = File::options().read(true).write(true).open(pool.at("there")).unwrap();
    let here = File::options().read(true).write(true).create_new(true).open(pool.at("here")).unwrap();
    here.write_all_at(b"before\n", 0).unwrap();
    crash(&pool);
    read_write(&there);
    crash(&pool);
    read_write(&here);
    assert_eq!(fs::read(pool.branch("a").path().join("there")).unwrap(), b"before\nafter\n");
}

#[test]
fn attributes_are_removed_as_on_a_local_disk() {
    needs!(mounting());
    let pool = pool(&[]);
    pool.write("file", b"");
    pool.mkdir("dir");
    for (name, attribute) in [
        ("file", "system.posix_acl_access"),
        ("dir", "system.posix_acl_access"),
        ("dir", "system.posix_acl_default"),
        ("file", "user.none"),
    ] {
        let on_disk = rustix::fs::removexattr(pool.branch("a").path().join(name), attribute);
        assert_eq!(rustix::fs::removexattr(pool.at(name), attribute), on_disk, "{attribute} of {name}");
    }
}

/// The job changes the mode when it begins to move, after the request for it was answered.
#[test]
fn a_branch_whose_drain_was_called_off_takes_nothing_new_after_a_death() {
    needs!(mounting());
    let pool = pool(&[]);
    pool.write("file", &[7; 8 << 20]);
    assert_eq!(pool.holders("file"), ["a"]);
    std::thread::scope(|scope| {
        let drain =
            scope.spawn(|| run(&["branch", "drain", &at(&pool), &branch(&pool, "a"), "--rate", "1M"]));
        until("the branch takes nothing new", || {
            json("status", &["status", &at(&pool)])["pools"][0]["branches"][0]["mode"] == "NC"
        });
        output_of(&["job", "cancel", &at(&pool), "1"]);
        drop(drain.join().unwrap());
    });
    crash_and_serve(&pool);
    pool.write("after", b"x");
    assert_eq!(pool.holders("after"), ["b"]);
}
