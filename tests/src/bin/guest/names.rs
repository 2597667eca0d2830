//! Large directories, removed and listed over NFS, and two clients that lock one file.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;

use crate::ground::{CLIENTS, Ground, forget, in_pool, say, sh, told};

/// Entries of the large directories that stay. (Fewer by v4, whose server looks at every entry: emulation is slow.)
const STAY: [usize; 2] = [100_000, 10_000];

pub(crate) fn story(_: &mut Ground) {
    locked_by_two();
    counted_by_two();
    waited_for(removed_at_once);
    listed_while_files_come_and_go();
}

/// Thousands of files of one directory go, and none is left behind. (Fewer by v3: emulation is slow.)
fn removed_at_once() {
    for (client, files) in CLIENTS.into_iter().zip([500, 3000]) {
        say(&format!("rm -rf of {files} files over {client}"));
        let dir = in_pool("many");
        fs::create_dir(&dir).unwrap();
        for n in 0..files {
            File::create(dir.join(format!("file {n}"))).unwrap();
        }
        forget();
        sh(&format!("rm -rf {client}/many"));
        assert!(!dir.exists());
    }
}

/// A listing has each entry that stays once, and none twice.
fn listed_while_files_come_and_go() {
    for (client, stay) in CLIENTS.into_iter().zip(STAY) {
        let on_branch = Path::new("/mnt/a/large");
        fs::create_dir(on_branch).unwrap();
        for n in 0..stay {
            File::create(on_branch.join(format!("stays{n}"))).unwrap();
        }
        say(&format!("listing {stay} entries over {client}"));
        let listed = AtomicBool::new(false);
        let come = thread::scope(|scope| {
            let come_and_go = scope.spawn(|| come_and_go(&listed));
            let mut names = HashSet::with_capacity(stay);
            let mut found = 0;
            for entry in fs::read_dir(format!("{client}/large")).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                found += usize::from(name.starts_with("stays"));
                assert!(!names.contains(&name), "{client}: {name} is listed twice");
                names.insert(name);
            }
            listed.store(true, Relaxed);
            assert_eq!(found, stay, "{client}");
            come_and_go.join().unwrap()
        });
        say(&format!("{come} files came meanwhile"));
        fs::remove_dir_all(on_branch).unwrap();
    }
}

/// Makes files and removes those that it made a while ago, until the listing is done; how many there were.
fn come_and_go(listed: &AtomicBool) -> usize {
    let mut n = 0;
    while !listed.load(Relaxed) {
        File::create(in_pool(&format!("large/comes{n}"))).unwrap();
        if n >= 20 {
            fs::remove_file(in_pool(&format!("large/comes{}", n - 20))).unwrap();
        }
        n += 1;
        thread::sleep(Duration::from_millis(20));
    }
    n
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// What the lock says to whoever does not wait for it: somebody else holds it.
fn is_held(file: &File) -> bool {
    match fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => false,
        Err(Errno::AGAIN | Errno::ACCESS) => true,
        Err(error) => panic!("{error}"),
    }
}

/// One holds the lock, and the other clients and programs past NFS see that.
fn locked_by_two() {
    say("locks");
    fs::write(in_pool("locked"), "0").unwrap();
    let [v3, v4] = CLIENTS.map(|client| open(&Path::new(client).join("locked")));
    for (one, other) in [(&v3, &v4), (&v4, &v3)] {
        fcntl_lock(one, FlockOperation::LockExclusive).unwrap();
        assert!(is_held(other), "the server gave the lock twice");
        assert!(!free_for_others("/mnt/pool/locked"), "the lock does not reach the pool's own");
        // flock(2) and fcntl(2) are two things on a server.
        flock(open(&in_pool("locked")), FlockOperation::NonBlockingLockExclusive).unwrap();
        fcntl_lock(one, FlockOperation::Unlock).unwrap();
        assert!(!is_held(other) && is_held(one));
        fcntl_lock(other, FlockOperation::Unlock).unwrap();
        assert!(free_for_others("/mnt/pool/locked"));
    }
}

/// Whoever waits for a lock has it next: within half a minute, as the server tells nobody of a lock on a FUSE file
/// system that has become free, and clients ask again after 30 s. `meanwhile` goes on beside that.
fn waited_for(meanwhile: impl FnOnce()) {
    say("waiting for locks");
    for name in ["for-v3", "for-v4"] {
        fs::write(in_pool(name), "").unwrap();
    }
    let at = |client: usize, name: &str| open(&Path::new(CLIENTS[client]).join(name));
    // Of each file the one client holds the lock, and the other waits.
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
        meanwhile();
        waiting.into_iter().for_each(|one| one.join().unwrap().unwrap());
    });
    say("both have their locks");
    assert!(holders.iter().all(is_held));
}

/// Whether another process, past NFS, gets the lock. (A process loses its locks when it closes any descriptor.)
fn free_for_others(path: &str) -> bool {
    told(&format!("teller {TRY_LOCK} {path}")).code == 0
}

/// Has the program ask for a lock, instead of telling a story.
pub(crate) const TRY_LOCK: &str = "try-lock";

/// Whether the lock is free, as the exit status of that.
pub(crate) fn try_lock(path: &Path) -> bool {
    match fcntl_lock(open(path), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => true,
        Err(Errno::AGAIN | Errno::ACCESS) => false,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Neither overwrites what the other has written under the lock.
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
                    // By the same descriptor: closing another one of the file would give the lock back.
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
