//! Large directories, removed and listed over NFS, and two clients that lock one file.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;

use crate::test_bed::{CLIENTS, TestBed, attempt, in_pool, say, sh, until};

/// Number of files in the directories that are removed.
const GO: usize = 3000;
/// Minimum number of entries in a large directory.
const LARGE: usize = 10_000;
/// Number of new files that exist at a time.
const KEPT: usize = 20;

pub(crate) fn scenario(_: &mut TestBed) {
    thread::scope(|scope| {
        // Lock waiters mostly wait for a client or server that retries.
        scope.spawn(|| {
            locked_by_two();
            counted_by_two();
            waited_for();
        });
        removed_at_once();
    });
    listed_while_files_come_and_go();
}

/// Runs `act` for both clients at once, each in its own directory.
fn by_both(act: impl Fn(&str, &str) + Sync) {
    thread::scope(|scope| {
        let both = CLIENTS.map(|client| scope.spawn(|| act(client, client.rsplit('/').next().unwrap())));
        both.into_iter().for_each(|one| one.join().unwrap());
    });
}

/// Thousands of files in a directory on both branches are removed, and none is left.
fn removed_at_once() {
    say(&format!("rm -rf of {GO} files over each"));
    by_both(|client, version| {
        let dir = format!("many-{version}");
        for (branch, odd) in [("/mnt/a", 0), ("/mnt/b", 1)] {
            fs::create_dir(Path::new(branch).join(&dir)).unwrap();
            for n in (odd..GO).step_by(2) {
                File::create(Path::new(branch).join(format!("{dir}/file {n}"))).unwrap();
            }
        }
        sh(&format!("rm -rf {client}/{dir}"));
        assert!(!in_pool(&dir).exists(), "{client}");
        say(&format!("{client} has removed them"));
    });
}

/// A v3 client that reads a few pages of a listing at a time, and caches a directory's times for half a minute, the
/// clients' default. At each change the other client discards the server's readahead: under emulation there is always a
/// change, and it reads most of a large directory several times.
const PATIENT: &str = "/mnt/patient";

/// A listing has each permanent entry once, and none twice.
fn listed_while_files_come_and_go() {
    sh(&format!(
        "mkdir {PATIENT} && mount -t nfs -o vers=3,nconnect=4,hard,nordirplus,rsize=16384,port=2049,mountport=20048,mountproto=tcp 127.0.0.1:/mnt/pool {PATIENT}"
    ));
    by_both(|client, version| {
        let large = format!("large-{version}");
        // They exist from the beginning.
        let stay = fs::read_dir(Path::new("/mnt/a").join(&large)).unwrap().count();
        assert!(stay >= LARGE, "{stay} in {large}");
        say(&format!("listing {stay} entries over {client}"));
        let (listed, come) = (AtomicBool::new(false), AtomicUsize::new(0));
        let names = thread::scope(|scope| {
            let come_and_go = scope.spawn(|| come_and_go(&large, &listed, &come));
            let from = if client == CLIENTS[0] { PATIENT } else { client };
            // In the middle it waits until some were made and some removed.
            let seen = |count| {
                if count == stay / 2 {
                    until("files that come and go", || {
                        come.load(Relaxed) > KEPT || come_and_go.is_finished()
                    });
                }
            };
            let names = names_in(&Path::new(from).join(&large), seen);
            listed.store(true, Relaxed);
            come_and_go.join().unwrap();
            names.unwrap()
        });
        let found = names.iter().filter(|name| name.starts_with("stays")).count();
        assert_eq!(found, stay, "{client}");
        let mut known = HashSet::with_capacity(names.len());
        let twice = names.iter().find(|name| !known.insert(*name));
        assert_eq!(twice, None, "{client}: listed twice");
        say(&format!("{client} has listed them; {} files came meanwhile", come.into_inner()));
    });
    sh(&format!("umount {PATIENT}"));
}

/// The names in `dir`; `seen` gets the count after each.
fn names_in(dir: &Path, seen: impl Fn(usize)) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().into_string().expect("a name of ours"));
        seen(names.len());
    }
    Ok(names)
}

/// Makes files, and removes those made a while ago, until the listing is done; `come` counts them.
fn come_and_go(large: &str, listed: &AtomicBool, come: &AtomicUsize) {
    let mut n = 0;
    while !listed.load(Relaxed) {
        File::create(in_pool(&format!("{large}/comes{n}"))).unwrap();
        if n >= KEPT {
            fs::remove_file(in_pool(&format!("{large}/comes{}", n - KEPT))).unwrap();
        }
        n += 1;
        come.store(n, Relaxed);
        // Each costs an emulated machine as much as listing hundreds.
        thread::sleep(Duration::from_millis(100));
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// True if a non-blocking lock request fails because another owner holds the lock.
fn is_held(file: &File) -> bool {
    match fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => false,
        Err(Errno::AGAIN | Errno::ACCESS) => true,
        Err(error) => panic!("{error}"),
    }
}

/// One client holds the lock, which the other clients and local programs see.
fn locked_by_two() {
    say("locks");
    fs::write(in_pool("locked"), "0").unwrap();
    let [v3, v4] = CLIENTS.map(|client| open(&Path::new(client).join("locked")));
    for (one, other) in [(&v3, &v4), (&v4, &v3)] {
        say("the one locks, the other sees it");
        fcntl_lock(one, FlockOperation::LockExclusive).unwrap();
        assert!(is_held(other), "the server gave the lock twice");
        assert!(!free_for_others("/mnt/pool/locked"), "the lock does not reach the pool's own");
        // flock(2) and fcntl(2) locks are separate on a server.
        flock(open(&in_pool("locked")), FlockOperation::NonBlockingLockExclusive).unwrap();
        fcntl_lock(one, FlockOperation::Unlock).unwrap();
        assert!(!is_held(other) && is_held(one));
        fcntl_lock(other, FlockOperation::Unlock).unwrap();
        assert!(free_for_others("/mnt/pool/locked"));
    }
}

/// A waiter gets a released lock within half a minute: the server sends no notifications for a FUSE file system, and
/// clients retry after 30 s.
fn waited_for() {
    say("waiting for locks");
    for name in ["for-v3", "for-v4"] {
        fs::write(in_pool(name), "").unwrap();
    }
    let at = |client: usize, name: &str| open(&Path::new(CLIENTS[client]).join(name));
    // One client holds the lock of each file, and the other waits.
    let holders = [at(1, "for-v3"), at(0, "for-v4")];
    let waiters = [at(0, "for-v3"), at(1, "for-v4")];
    holders.iter().for_each(|file| fcntl_lock(file, FlockOperation::LockExclusive).unwrap());
    thread::scope(|scope| {
        let waiting: Vec<_> = waiters
            .iter()
            .map(|file| scope.spawn(move || fcntl_lock(file, FlockOperation::LockExclusive)))
            .collect();
        thread::sleep(Duration::from_millis(500));
        assert!(waiting.iter().all(|one| !one.is_finished()), "a lock was given twice");
        holders.iter().for_each(|file| fcntl_lock(file, FlockOperation::Unlock).unwrap());
        waiting.into_iter().for_each(|one| one.join().unwrap().unwrap());
    });
    say("both have their locks");
    assert!(holders.iter().all(is_held));
}

/// True if a local process gets the lock. In a child, because a process loses its locks when it closes any descriptor
/// of the file.
fn free_for_others(path: &str) -> bool {
    attempt(&format!("teller {TRY_LOCK} {path}")).code == 0
}

/// Argument that makes the program try a lock instead of running a scenario.
pub(crate) const TRY_LOCK: &str = "try-lock";

/// True if the lock is free, by that program's exit status.
pub(crate) fn try_lock(path: &Path) -> bool {
    match fcntl_lock(open(path), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => true,
        Err(Errno::AGAIN | Errno::ACCESS) => false,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Neither overwrites data that the other wrote under the lock.
fn counted_by_two() {
    const EACH: u32 = 15;
    say("counting under a lock");
    thread::scope(|scope| {
        for client in CLIENTS {
            scope.spawn(move || {
                for _ in 0..EACH {
                    let path = Path::new(client).join("locked");
                    let file = open(&path);
                    while is_held(&file) {
                        thread::sleep(Duration::from_millis(5));
                    }
                    // By the same descriptor: closing another one of the file would release the lock.
                    let mut text = [0; 16];
                    let len = file.read_at(&mut text, 0).unwrap();
                    let count: u32 = str::from_utf8(&text[..len]).unwrap().trim().parse().unwrap();
                    rustix::io::pwrite(&file, (count + 1).to_string().as_bytes(), 0).unwrap();
                    fcntl_lock(&file, FlockOperation::Unlock).unwrap();
                }
            });
        }
    });
    assert_eq!(fs::read_to_string(in_pool("locked")).unwrap(), (2 * EACH).to_string());
}
