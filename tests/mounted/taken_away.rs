//! A pool in use is unmounted by a signal: acknowledged changes are kept.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use fsstack_lab::cleanup::Entry;
use fsstack_lab::daemon::Process;
use fsstack_lab::pool::Builder;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, MiB, Pool, mounts, needs, until};
use rustix::process::Signal;

use crate::relocate::{mib, nearly_full, writer};

const SOON: Duration = Duration::from_secs(60);
/// More than the kernel writes back at once.
const MANY: u64 = 32;
const PIECE: usize = 64 << 10;

fn ends(pool: &Pool, daemon: &Process) {
    daemon.signal(Signal::TERM).unwrap();
    daemon.wait(SOON).unwrap();
    assert_eq!(mounts::at(pool.path()).unwrap(), None);
}

fn stacked(transport: &str) -> Builder {
    let pool = lab::pool().tmp_branch("a").option("write-path=stacked");
    pool.option(&format!("transport={transport}"))
}

/// Written data is in the page cache, and the file stays open.
fn written_bytes_are_kept(transport: &str) {
    let pool = stacked(transport).option("page-cache=writeback").mount();
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(pool.at("file")).unwrap();
    (0..MANY).for_each(|n| file.write_all(&mib(n)).unwrap());
    let daemon = pool.daemon();
    ends(&pool, &daemon);
    let stored = fs::read(pool.branch("a").path().join("file")).unwrap();
    assert_eq!(stored.len() as u64, MANY << 20);
    for (n, piece) in stored.chunks(1 << 20).enumerate() {
        assert!(piece == mib(n as u64), "MiB {n} differs");
    }
    assert!(
        file.write_all_at(b"x", 0).and_then(|()| file.sync_all()).is_err(),
        "nothing is there to keep it"
    );
}

#[test]
fn written_bytes_are_kept_by_the_device() {
    needs!(mounting());
    written_bytes_are_kept("dev");
}

#[test]
fn written_bytes_are_kept_by_the_ring() {
    needs!(mounting(), rings());
    written_bytes_are_kept("ring");
}

#[test]
fn stores_into_a_map_are_kept() {
    needs!(mounting(), program("python3"));
    for transport in ["dev", "auto"] {
        let pool = stacked(transport).mount();
        let work = "
import mmap, os, time
fd = os.open('file', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 8 << 20)
shared = mmap.mmap(fd, 8 << 20)
for at in range(0, 8 << 20, 4096): shared[at:at + 5] = b'hello'
open('ready', 'w').close()
try:
    while os.stat('ready'): time.sleep(0.05)
except OSError: pass
";
        let dir = pool.path().to_owned();
        let program =
            thread::spawn(move || command("python3").args(["-c", work]).dir(dir).output().unwrap().code);
        until("the program has written", || pool.at("ready").exists());
        let daemon = pool.daemon();
        ends(&pool, &daemon);
        assert_eq!(program.join().unwrap(), 0);
        let stored = fs::read(pool.branch("a").path().join("file")).unwrap();
        assert!(stored.chunks(4096).all(|page| page.starts_with(b"hello")), "{transport}");
    }
}

/// A file is about to move to another branch: its writer is answered, and the file is complete there.
fn a_move_under_way_is_finished(transport: &str) {
    let pool = nearly_full(MiB(24), &["relocate-speed=8M", "branch-timeout=60", transport]);
    let file = writer(pool.at("film"));
    (0..20).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    let free = pool.branch("b").free();
    // Writes until an error, and prints the position. Each piece is one request.
    let written = Arc::new(AtomicUsize::new(20 << 20));
    let mover = {
        let written = written.clone();
        thread::spawn(move || {
            for n in 20..30 {
                for (at, piece) in mib(n).chunks(PIECE).enumerate() {
                    if file.write_all_at(piece, (n << 20) + (at * PIECE) as u64).is_err() {
                        return;
                    }
                    written.fetch_add(PIECE, SeqCst);
                }
            }
        })
    };
    until("the file begins to move", || pool.branch("b").free() + (1 << 20) < free);
    let before = written.load(SeqCst);
    let daemon = pool.daemon();
    ends(&pool, &daemon);
    mover.join().unwrap();
    let written = written.load(SeqCst);
    assert!(before < written, "the write that moved the file was not answered");
    assert_eq!(pool.holders("film"), ["b"]);
    let stored = fs::read(pool.branch("b").path().join("film")).unwrap();
    let whole: Vec<u8> = (0..30).flat_map(mib).collect();
    assert!(stored[..written] == whole[..written], "{written} bytes were acknowledged");
}

#[test]
fn a_move_under_way_is_finished_by_the_device() {
    needs!(mounting(), loops());
    a_move_under_way_is_finished("transport=dev");
}

#[test]
fn a_move_under_way_is_finished_by_the_ring() {
    needs!(mounting(), loops(), rings());
    a_move_under_way_is_finished("transport=ring");
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Acknowledged changes exist; an unanswered one is complete or absent.
#[test]
fn names_that_were_reported_are_kept() {
    needs!(mounting());
    for transport in ["dev", "auto"] {
        let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand");
        let mut pool = pool.option(&format!("transport={transport}")).mount();
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let (dir, stop) = (pool.at(format!("d{worker}")), stop.clone());
                fs::create_dir(&dir).unwrap();
                thread::spawn(move || {
                    let mut acknowledged = 0_u32;
                    while !stop.load(SeqCst) {
                        let (new, name) = (dir.join("new"), dir.join(acknowledged.to_string()));
                        if fs::write(&new, acknowledged.to_string())
                            .and_then(|()| fs::rename(new, name))
                            .is_err()
                        {
                            break;
                        }
                        acknowledged += 1;
                    }
                    acknowledged
                })
            })
            .collect();
        until("all are at work", || (0..4).all(|worker| pool.at(format!("d{worker}/20")).exists()));
        let daemon = pool.daemon();
        ends(&pool, &daemon);
        stop.store(true, SeqCst);
        let acknowledged: Vec<u32> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        pool.remount();
        for (worker, acknowledged) in acknowledged.into_iter().enumerate() {
            let there = names(&pool.at(format!("d{worker}")));
            for n in 0..acknowledged {
                assert!(
                    there.contains(&n.to_string()),
                    "{transport}: {n} of {acknowledged} is not there: {there:?}"
                );
                assert_eq!(pool.read(format!("d{worker}/{n}")), n.to_string().as_bytes());
            }
            assert!(there.len() <= usize::try_from(acknowledged).unwrap() + 2, "{transport}: {there:?}");
        }
    }
}

/// The pool's file system lives on where the daemon's path does not lead; `lives_elsewhere` returns what keeps it
/// there. Its pages are dirty when the signal comes.
fn ends_with_all_that_was_written<T>(transport: &str, lives_elsewhere: impl FnOnce(&Pool) -> T) {
    let pool = stacked(transport).option("page-cache=writeback").mount();
    let daemon = pool.daemon();
    let mut file = OpenOptions::new().write(true).create_new(true).open(pool.at("file")).unwrap();
    let elsewhere = lives_elsewhere(&pool);
    (0..MANY).for_each(|n| file.write_all(&mib(n)).unwrap());
    drop(file);
    daemon.signal(Signal::TERM).unwrap();
    daemon.wait(SOON).unwrap();
    assert_eq!(mounts::at(pool.path()).unwrap(), None);
    let stored = fs::read(pool.branch("a").path().join("file")).unwrap();
    assert_eq!(stored.len() as u64, MANY << 20);
    for (n, piece) in stored.chunks(1 << 20).enumerate() {
        assert!(piece == mib(n as u64), "MiB {n} differs");
    }
    drop(elsewhere);
}

#[test]
fn a_signal_ends_a_pool_that_is_bound_to_another_path() {
    needs!(mounting());
    for transport in ["dev", "auto"] {
        ends_with_all_that_was_written(transport, |pool| {
            let bound = pool.path().with_file_name("bound");
            fs::create_dir(&bound).unwrap();
            let entry = Entry::mount(&bound).unwrap();
            command("mount").arg("--bind").arg(pool.path()).arg(&bound).run().unwrap();
            entry
        });
    }
}

/// A program that does nothing until this drops.
pub(crate) struct IdleProgram {
    dir: tempfile::TempDir,
    thread: Option<thread::JoinHandle<()>>,
}

impl IdleProgram {
    /// Starts it: in `dir`, below the program `before`.
    pub(crate) fn start(before: &[&str], dir: &Path) -> Self {
        let files = tempfile::tempdir().unwrap();
        let script = "touch \"$0/ready\"; while [ ! -e \"$0/stop\" ]; do sleep 0.05; done";
        let words = [before, &["sh", "-c", script]].concat();
        let run = command(words[0]).args(&words[1..]).arg(files.path()).dir(dir);
        let run = run.limit(Duration::from_secs(300));
        let thread = thread::spawn(move || drop(run.output()));
        until("the program is there", || files.path().join("ready").exists());
        Self { dir: files, thread: Some(thread) }
    }
}

impl Drop for IdleProgram {
    fn drop(&mut self) {
        fs::write(self.dir.path().join("stop"), "").unwrap();
        self.thread.take().map(thread::JoinHandle::join);
    }
}

/// A container that was started before the end is such a namespace.
#[test]
fn a_signal_ends_a_pool_in_another_mount_namespace() {
    needs!(mounting(), program("unshare"));
    ends_with_all_that_was_written("dev", |_| {
        IdleProgram::start(&["unshare", "--mount", "--propagation=private"], Path::new("/"))
    });
}

#[test]
fn a_signal_ends_a_pool_that_was_detached_from_its_path() {
    needs!(mounting());
    ends_with_all_that_was_written("dev", |pool| {
        let inside = IdleProgram::start(&[], pool.path());
        command("umount").arg("-l").arg(pool.path()).run().unwrap();
        inside
    });
}
