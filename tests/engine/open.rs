//! Opening: one open file per inode, whatever the flags of its handles.

use std::os::fd::AsFd;
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use fsstack_engine::ops::WriteTerms;
use fsstack_lab::Skip;
use fsstack_pool::BranchMode::{ReadOnly, ReadWrite};
use fsstack_sys::ioctl::{FS_APPEND_FL, getflags, setflags};
use fsstack_sys::{Errno, OFlags};

use crate::test_bed::{TestBed, settings};

#[test]
fn all_handles_share_one_open_file() {
    let pool = TestBed::new(2);
    let ino = pool.write("film", "abc");
    let reader = pool.union.open(ino, OFlags::RDONLY, fsstack_engine::Caller::DAEMON).unwrap();
    let writer = pool.union.open(ino, OFlags::WRONLY, fsstack_engine::Caller::DAEMON).unwrap();
    assert!(Arc::ptr_eq(&reader.file, &writer.file));
    assert_eq!(pool.union.write(writer.handle, 1, b"X", WriteTerms::default()).unwrap(), 1);
    let mut text = [0; 3];
    assert_eq!(pool.union.read(reader.handle, 0, &mut text).unwrap(), 3);
    assert_eq!(&text, b"aXc");
    pool.union.release(reader.handle);
    pool.union.release(writer.handle);
    assert_eq!(pool.union.held().files, 0);
}

#[test]
fn truncation_at_open() {
    let pool = TestBed::new(2);
    let ino = pool.write("film", "abc");
    let file = pool.open(ino, OFlags::WRONLY | OFlags::TRUNC).unwrap();
    assert_eq!(pool.getattr(file.ino).unwrap().stat.size, 0);
}

#[test]
fn directories_and_symlinks_are_not_opened_as_files() {
    let pool = TestBed::new(1);
    let dir = pool.mkdir("d").unwrap();
    let link = pool.make("s", fsstack_engine::ops::New::Symlink(c"/etc/passwd")).unwrap();
    assert_eq!(pool.open(dir, OFlags::RDONLY).unwrap_err(), Errno::ISDIR);
    assert_eq!(pool.open(link, OFlags::RDONLY).unwrap_err(), Errno::LOOP);
}

#[test]
fn a_read_only_branch_is_read_and_not_written() {
    let pool = TestBed::with(&[ReadOnly, ReadWrite], settings());
    pool.put(0, "film", "abc");
    let before = pool.snapshot();
    let ino = pool.ino("film");
    assert_eq!(pool.read_ino(ino).unwrap(), "abc");
    for flags in
        [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC, OFlags::WRONLY | OFlags::APPEND]
    {
        assert_eq!(pool.open(ino, flags).unwrap_err(), Errno::ROFS, "{flags:?}");
        let reader = pool.open(ino, OFlags::RDONLY).unwrap();
        assert_eq!(pool.open(ino, flags).unwrap_err(), Errno::ROFS, "{flags:?} beside a reader");
        pool.close(reader);
    }
    assert_eq!(pool.snapshot(), before);
}

#[test]
fn a_handle_that_is_not_open_is_ebadf() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    pool.close(file);
    assert_eq!(pool.union.read(file.handle, 0, &mut [0; 1]).unwrap_err().errno(), Errno::BADF);
    assert_eq!(
        pool.union.write(file.handle, 0, b"x", WriteTerms::default()).unwrap_err().errno(),
        Errno::BADF
    );
    assert_eq!(pool.union.fsync(file.handle, false).unwrap_err().errno(), Errno::BADF);
    pool.union.release(file.handle);
}

#[test]
fn a_failed_open_holds_nothing() {
    let pool = TestBed::new(1);
    let ino = pool.write("film", "x");
    std::fs::remove_file(pool.on(0, "film")).unwrap();
    assert_eq!(pool.open(ino, OFlags::RDONLY).unwrap_err(), Errno::STALE);
    assert_eq!(pool.union.held().files, 0);
}

#[test]
fn flush_and_sync_answer() {
    let pool = TestBed::new(2);
    let file = pool.create("film").unwrap();
    pool.union.flush(file.handle).unwrap();
}

/// Both threads find the file closed; one drops its descriptor and uses the other's.
#[test]
fn two_first_opens_each_have_their_own_access() {
    let pool = TestBed::new(1);
    let ino = pool.write("log", "x");
    let raw = std::fs::File::open(pool.on(0, "log")).unwrap();
    let flags = getflags(raw.as_fd()).unwrap_or(0);
    if setflags(raw.as_fd(), flags | FS_APPEND_FL).is_err() {
        return Skip::because("no append-only files under /tmp").announce();
    }
    let (union, together) = (&pool.union, &Barrier::new(2));
    let open = move |how| {
        together.wait();
        union.open(ino, how, fsstack_engine::Caller::DAEMON).unwrap().handle
    };
    for _ in 0..2000 {
        let (writer, reader) = std::thread::scope(|scope| {
            let reader = scope.spawn(move || open(OFlags::RDONLY));
            (open(OFlags::WRONLY | OFlags::APPEND), reader.join().unwrap())
        });
        let written = union.write(writer, 1, b"y", WriteTerms { appends: true, ..WriteTerms::default() });
        [reader, writer].into_iter().for_each(|handle| union.release(handle));
        if written.is_err() {
            setflags(raw.as_fd(), flags).unwrap();
        }
        assert_eq!(written.unwrap(), 1);
    }
    setflags(raw.as_fd(), flags).unwrap();
}

/// Takes a lease on each file, a write lease if no other program has it open, and keeps it until there is a file `end`.
const LEASES: &str = "
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
for path in sys.argv[1:]:
    both = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(both, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        os.close(both)
        fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)
open('taken', 'w')
while not os.path.exists('end'): time.sleep(0.02)
";

/// A program may keep a lease (fcntl(2), F_SETLEASE) for 45 seconds after another one wants to open the file.
#[test]
fn leases_of_another_program_hold_back_few_opens_at_a_time() {
    fsstack_lab::needs!(program("python3"));
    few_wait_for_leases(1, 12, 4);
}

#[test]
fn leases_on_many_branches_hold_back_few_opens_at_a_time() {
    fsstack_lab::needs!(program("python3"));
    few_wait_for_leases(4, 3, 8);
}

/// Another program has leases on `files` files on each of `branches` branches: opens of `most` of them wait.
fn few_wait_for_leases(branches: usize, files: usize, most: usize) {
    let (pool, home) = (TestBed::new(branches), tempfile::tempdir().unwrap());
    let all: Vec<_> = (0..branches * files).map(|at| (at % branches, format!("film{at}"))).collect();
    all.iter().for_each(|(branch, name)| pool.put(*branch, name, "x"));
    let files: Vec<_> = all.iter().map(|(_, name)| pool.ino(name)).collect();
    // Those that the daemon has open for reading are opened again for the first writer.
    let readers: Vec<_> = files[6..].iter().map(|ino| pool.open(*ino, OFlags::RDONLY).unwrap()).collect();
    let holder = fsstack_lab::shell::command("python3").args(["-c", LEASES]).dir(home.path());
    let holder = holder.args(all.iter().map(|(branch, name)| pool.on(*branch, name)));
    let union = &pool.union;
    let (sender, opened) = mpsc::channel();
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| holder.run().unwrap());
        let began = Instant::now();
        while !home.path().join("taken").exists() {
            assert!(began.elapsed() < Duration::from_secs(60) && !holder.is_finished());
            std::thread::sleep(Duration::from_millis(10));
        }
        for ino in files.iter().copied() {
            let sender = sender.clone();
            scope.spawn(move || {
                let opened = union.open(ino, OFlags::RDWR, fsstack_engine::Caller::DAEMON);
                sender.send(opened.map(|opened| opened.handle).map_err(|error| error.errno())).unwrap();
            });
        }
        for _ in most..files.len() {
            assert_eq!(opened.recv_timeout(Duration::from_secs(30)).unwrap().unwrap_err(), Errno::AGAIN);
        }
        std::fs::write(home.path().join("end"), "").unwrap();
        for _ in 0..most {
            union.release(opened.recv_timeout(Duration::from_secs(30)).unwrap().unwrap());
        }
    });
    readers.into_iter().for_each(|reader| pool.close(reader));
    assert_eq!(union.held().files, 0);
}
