//! Files of a drained branch that stay: for as long as they are locked, or because no other branch keeps their promises.

use std::fs;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, UNIX_EPOCH};

use fsstack_lab::{self as lab, MiB, needs, until};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, fcntl_lock, flock, linkat, openat};
use rustix::io::Errno;

use super::drain::{assert_waits_for_film, job};
use super::*;
use crate::relocate::{assert_clean, writer};
use crate::script::sh;

/// The branch keeps the locks: its other copy would have none.
#[test]
fn a_file_that_is_locked_on_its_branch_is_waited_for_and_named() {
    needs!(mounting(), loops());
    for by_range in [true, false] {
        let lock = |file: &File, how| if by_range { fcntl_lock(file, how) } else { flock(file, how) };
        let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff");
        let pool = pool.option("write-path=stacked").option("locks=branch").mount();
        pool.write("other", b"other");
        pool.write("film", b"film");
        let file = writer(pool.at("film"));
        lock(&file, FlockOperation::LockExclusive).unwrap();
        let (at, a) = (at(&pool), branch(&pool, "a"));
        std::thread::scope(|scope| {
            let drains = scope.spawn(|| run(&["branch", "drain", &at, &a]));
            assert_waits_for_film(&pool, &at, "somebody has locks on it");
            lock(&file, FlockOperation::Unlock).unwrap();
            // It is open still.
            assert_eq!(drains.join().unwrap().code, 0);
        });
        assert_eq!(pool.holders("film"), ["b"]);
        // Its next lock is on the branch that it is on now.
        lock(&file, FlockOperation::LockExclusive).unwrap();
        let outside = writer(pool.branch("b").path().join("film"));
        lock(&outside, FlockOperation::NonBlockingLockExclusive).unwrap_err();
        lock(&file, FlockOperation::Unlock).unwrap();
        lock(&outside, FlockOperation::NonBlockingLockExclusive).unwrap();
        drop((file, outside));
        assert_eq!(pool.read("film"), b"film");
        output_of(&["branch", "remove", &at, &a]);
        assert_clean(&pool);
    }
}

/// XFS has no time later than July 2486, and would show that one.
#[test]
fn a_file_stays_whose_times_no_other_branch_can_store() {
    needs!(mounting(), loops());
    let pool = lab::pool().tmpfs_branch("a", MiB(64)).xfs_branch("b", MiB(300)).option("create=ff").mount();
    let late = UNIX_EPOCH + Duration::from_secs(20_000_000_000);
    let large = vec![1; 3 << 20];
    for (name, content) in [("film", &large[..]), ("small", b"small"), ("other", b"other")] {
        pool.write(name, content);
        if name != "other" {
            File::options().write(true).open(pool.at(name)).unwrap().set_modified(late).unwrap();
        }
    }
    let drained = run(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    assert_eq!(drained.code, 1, "{}{}", drained.stdout, drained.stderr);
    for name in ["film", "small"] {
        assert_eq!(pool.holders(name), ["a"], "{name}");
        assert_eq!(fs::metadata(pool.at(name)).unwrap().modified().unwrap(), late, "{name}");
        let named =
            |line: &str| line.contains(name) && line.contains("no branch with room for it can hold its");
        let said = [drained.stdout.as_str(), &drained.stderr].concat();
        assert!(said.lines().any(named), "{name}: {said}");
    }
    assert_eq!(pool.holders("other"), ["b"]);
}

/// It could get its name on the branch after the drain has ended, and leave the pool with that.
#[test]
fn a_file_without_a_name_is_waited_for_and_moves_with_the_name_that_it_gets() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount();
    let (at, a) = (at(&pool), branch(&pool, "a"));
    pool.mkdir("d");
    pool.write("d/other", b"other");
    let unnamed = |dir: &str| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        File::from(openat(CWD, pool.at(dir), flags, Mode::RUSR | Mode::WUSR).unwrap())
    };
    let (mut file, closed) = (unnamed("d"), unnamed("d"));
    file.write_all(b"film").unwrap();
    // One that never gets a name is not waited for.
    let never = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let sealed = openat(CWD, pool.at("d"), never, Mode::RUSR | Mode::WUSR).unwrap();
    std::thread::scope(|scope| {
        let drains = scope.spawn(|| run(&["branch", "drain", &at, &a]));
        until("the job waits", || run(&["job", "status", &at]).stdout.contains("waiting"));
        let shown = output_of(&["job", "status", &at, "--why"]);
        assert_eq!(shown.matches("made without a name").count(), 2, "{shown}");
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, link, CWD, pool.at("d/film"), AtFlags::SYMLINK_FOLLOW).unwrap();
        drop((file, closed));
        assert_eq!(drains.join().unwrap().code, 0);
    });
    assert_eq!((pool.holders("d/film"), pool.read("d/film")), (vec!["b"], b"film".to_vec()));
    drop(sealed);
    output_of(&["branch", "remove", &at, &a]);
    assert_clean(&pool);
}

/// In clear text anybody who finds the other disk could read them.
#[test]
fn encrypted_files_and_directories_stay_and_the_rest_leaves() {
    needs!(mounting(), root(), loops(), program("tune2fs"), program("xfs_io"));
    if !fs::exists("/sys/fs/ext4/features/encryption").unwrap() {
        return lab::Skip::because("this kernel's ext4 does not encrypt").announce();
    }
    let mut pool =
        lab::pool().ext4_branch("a", MiB(100)).xfs_branch("b", MiB(300)).option("create=ff").unmounted();
    let a = pool.branch_mut("a");
    a.unmount();
    sh("/", &format!("tune2fs -O encrypt {}", a.image().unwrap().display()));
    a.remount();
    sh(
        a.path(),
        "rmdir lost+found; mkdir secret
         id=$(head -c 64 /dev/urandom | xfs_io -c add_enckey . | sed 's/.* //')
         xfs_io -c \"set_encpolicy -v 2 $id\" secret; mkdir secret/dir; ln -s target secret/link; mkfifo secret/fifo
         head -c 3000000 /dev/zero | tr '\\0' x > secret/large; for n in 1 2 3 4; do echo $n > secret/dir/$n; done",
    );
    pool.remount();
    pool.write("plain", b"plain");
    let (at, a) = (at(&pool), branch(&pool, "a"));
    assert_eq!(run(&["branch", "drain", &at, &a]).code, 1);
    let job = job(&pool);
    let stays: Vec<_> = job["stays"].as_array().unwrap().iter().map(|one| one.to_string()).collect();
    for path in ["secret/large", "secret/dir/1", "secret/dir/4", "secret/link", "secret/fifo"] {
        let named = stays.iter().find(|one| one.contains(&format!("\"{path}\"")));
        assert!(named.is_some_and(|one| one.contains("can hold its attributes")), "{path}: {stays:#?}");
        assert_eq!(pool.holders(path), ["a"]);
    }
    assert_eq!(pool.holders("plain"), ["b"]);
    assert!(!pool.branch("b").path().join("secret").exists());
    assert_eq!((pool.read("secret/large").len(), pool.read("secret/dir/4")), (3_000_000, b"4\n".to_vec()));
    assert_clean(&pool);
}

/// The disk fails, and not the one that the file was to go to.
#[test]
fn a_file_that_cannot_be_read_stays_and_its_branch_is_named() {
    needs!(mounting(), loops());
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = lab::pool().btrfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff");
    let mut pool = pool.option(&format!("log={}", log.path().display())).mount();
    let film: String = (0..60_000).map(|n| format!("frame {n:08}\n")).collect();
    pool.write("film", film.as_bytes());
    pool.write("other", b"other");
    pool.unmount();
    pool.branch_mut("a").unmount();
    let image = pool.branch("a").image().unwrap().to_owned();
    let bytes = fs::read(&image).unwrap();
    let there = &film.as_bytes()[300_000..300_040];
    let found = bytes.windows(there.len()).position(|part| part == there).expect("the film on the disk");
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"rotten", found as u64).unwrap();
    file.sync_all().unwrap();
    pool.branch_mut("a").remount();
    pool.remount();
    let (at, a) = (at(&pool), branch(&pool, "a"));
    assert_eq!(fs::read(pool.at("film")).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    let drained = run(&["branch", "drain", &at, &a]);
    let shown = format!("{}{}", drained.stdout, drained.stderr);
    assert!(drained.code != 0 && shown.contains("it cannot be read from its branch"), "{shown}");
    assert_eq!((pool.holders("film"), pool.holders("other")), (vec!["a"], vec!["b"]));
    let log = fs::read_to_string(log.path()).unwrap();
    assert!(log.contains("file not moved: it cannot be read from its branch"), "{log}");
    assert!(!log.contains("relocation to this branch failed"), "{log}");
    assert_clean(&pool);
}
