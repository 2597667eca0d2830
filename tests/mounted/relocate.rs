//! A file on a full branch moves to another one while it is written.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;

use fsstack_lab::{self as lab, MiB, Pool, needs};
use rustix::fs::{FallocateFlags, fallocate};

use crate::script::sh;

/// A MiB of bytes that show their position.
pub(crate) fn mib(n: u64) -> Vec<u8> {
    (0..1_u64 << 17).flat_map(|word| (n << 17 | word).to_le_bytes()).collect()
}

pub(crate) fn writer(path: impl AsRef<Path>) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Two branches, the first with `left` free; files are stacked, and move when it is full.
pub(crate) fn nearly_full(left: MiB, options: &[&str]) -> Pool {
    let pool = lab::pool().xfs_branch("a", MiB(310)).xfs_branch("b", MiB(400)).option("create=ff");
    let pool = ["write-path=stacked", "relocate"].iter().chain(options).fold(pool, |pool, o| pool.option(o));
    let pool = pool.mount();
    pool.branch("a").fill_until_free(left);
    pool
}

#[track_caller]
pub(crate) fn assert_mibs(pool: &Pool, name: &str, count: u64) {
    let file = File::open(pool.at(name)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), count << 20);
    let mut piece = vec![0; 1 << 20];
    for n in 0..count {
        file.read_exact_at(&mut piece, n << 20).unwrap();
        assert!(piece == mib(n), "MiB {n} of {name} differs");
    }
}

/// Checks that no branch has leftovers of a move.
#[track_caller]
pub(crate) fn assert_clean(pool: &Pool) {
    for branch in pool.branches() {
        assert!(!branch.path().join(".fsstack.moving").exists(), "on {}", branch.name());
    }
}

#[test]
fn a_file_that_outgrows_its_branch_moves() {
    needs!(mounting(), loops());
    let mut pool = nearly_full(MiB(24), &[]);
    pool.mkdir("deep/er");
    let file = writer(pool.at("deep/er/film"));
    let before = file.metadata().unwrap();
    for n in 0..40 {
        file.write_all_at(&mib(n), n << 20).unwrap();
    }
    file.sync_all().unwrap();
    assert_eq!(pool.holders("deep/er/film"), ["b"]);
    assert_eq!(file.metadata().unwrap().ino(), before.ino());
    assert_eq!(fs::metadata(pool.at("deep/er/film")).unwrap().ino(), before.ino());
    assert_eq!(sh(pool.path(), "ls -i deep/er | cut -d' ' -f1"), before.ino().to_string());
    assert_mibs(&pool, "deep/er/film", 40);
    assert_clean(&pool);
    drop(file);
    pool.remount();
    assert_mibs(&pool, "deep/er/film", 40);
}

#[test]
fn every_handle_follows_the_file() {
    needs!(mounting(), loops());
    let pool = nearly_full(MiB(24), &[]);
    let file = writer(pool.at("film"));
    file.write_all_at(&mib(0), 0).unwrap();
    let mut reader = File::open(pool.at("film")).unwrap();
    reader.seek(SeekFrom::Start(512 << 10)).unwrap();
    let mut log = OpenOptions::new().append(true).create(true).open(pool.at("log")).unwrap();
    // Two writers of odd and even pieces, and a third that appends to another file.
    thread::scope(|scope| {
        for start in [1, 2] {
            let path = pool.at("film");
            scope.spawn(move || {
                let file = writer(path);
                (start..40).step_by(2).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
            });
        }
        scope.spawn(|| (0..200).for_each(|n| log.write_all(format!("line {n:5}\n").as_bytes()).unwrap()));
    });
    assert_eq!(pool.holders("film"), ["b"]);
    assert_mibs(&pool, "film", 40);
    let mut half = vec![0; 512 << 10];
    reader.read_exact(&mut half).unwrap();
    assert!(half == mib(0)[512 << 10..], "the reader went on elsewhere");
    let lines: String = (0..200).map(|n| format!("line {n:5}\n")).collect();
    assert_eq!(String::from_utf8(pool.read("log")).unwrap(), lines);
    assert_clean(&pool);
}

#[test]
fn an_appender_moves_its_own_file() {
    needs!(mounting(), loops());
    let pool = nearly_full(MiB(12), &[]);
    let mut file = OpenOptions::new().append(true).create(true).open(pool.at("log")).unwrap();
    (0..24).for_each(|n| file.write_all(&mib(n)).unwrap());
    assert_eq!(pool.holders("log"), ["b"]);
    assert_mibs(&pool, "log", 24);
}

#[test]
fn a_mapping_sees_the_moved_file() {
    needs!(mounting(), loops(), program("python3"));
    let pool = nearly_full(MiB(12), &[]);
    let answer = crate::script::python(
        pool.path(),
        "import mmap, os
fd = os.open('film', os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b'first' + bytes(8187), 0)
seen = mmap.mmap(fd, 8192, mmap.MAP_SHARED)
assert seen[:5] == b'first'
for n in range(24): os.pwrite(fd, bytes([n]) * (1 << 20), 8192 + (n << 20))
assert seen[:5] == b'first'
seen[0:6] = b'mapped'
seen.flush()
print(os.pread(fd, 6, 0).decode())",
    );
    assert_eq!(answer, "mapped");
    assert_eq!(pool.holders("film"), ["b"]);
    assert_eq!(&pool.read("film")[..6], b"mapped");
}

#[test]
fn a_file_that_is_cut_short_while_it_moves_stays_whole() {
    needs!(mounting(), loops());
    let pool = nearly_full(MiB(24), &[]);
    let file = writer(pool.at("film"));
    thread::scope(|scope| {
        let cutter = writer(pool.at("film"));
        scope.spawn(move || (0..200).for_each(|n| cutter.set_len((1 + n % 3) << 20).unwrap()));
        (0..40).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    });
    (0..40).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    assert_eq!(pool.holders("film"), ["b"]);
    assert_mibs(&pool, "film", 40);
    assert_clean(&pool);
}

#[test]
fn a_handle_moves_its_own_file_whatever_has_its_old_name() {
    needs!(mounting(), loops());
    let pool = nearly_full(MiB(24), &[]);
    let file = writer(pool.at("name"));
    file.write_all_at(&mib(0), 0).unwrap();
    fs::rename(pool.at("name"), pool.at("renamed")).unwrap();
    pool.write("name", b"another file");
    (1..40).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    assert_eq!((pool.holders("renamed"), pool.holders("name")), (vec!["b"], vec!["a"]));
    assert_eq!(pool.read("name"), b"another file");
    assert_mibs(&pool, "renamed", 40);
}

#[test]
fn holes_stay_holes() {
    needs!(mounting(), loops());
    let pool = nearly_full(MiB(24), &[]);
    let file = writer(pool.at("sparse"));
    file.set_len(10 << 30).unwrap();
    file.write_all_at(&mib(7), 5 << 30).unwrap();
    let filler = writer(pool.branch("a").path().join("filler"));
    let left = pool.branch("a").free();
    let _full = fallocate(filler.as_fd(), FallocateFlags::empty(), 0, left);
    pool.branch("a").fill_until_free(MiB(0));
    file.write_all_at(&mib(8), 6 << 30).unwrap();
    assert_eq!(pool.holders("sparse"), ["b"]);
    let stored = fs::metadata(pool.branch("b").path().join("sparse")).unwrap();
    assert_eq!(stored.len(), 10 << 30);
    assert!(stored.blocks() * 512 < 16 << 20, "{} bytes are stored", stored.blocks() * 512);
    let mut piece = vec![0; 1 << 20];
    for (n, at) in [(7, 5 << 30), (8, 6 << 30)] {
        file.read_exact_at(&mut piece, at).unwrap();
        assert!(piece == mib(n));
    }
}

#[test]
fn attributes_of_a_file_go_with_it() {
    needs!(mounting(), loops(), program("setfacl"), program("setfattr"), program("chattr"));
    let pool = nearly_full(MiB(24), &[]);
    let script = "touch film; setfattr -n user.rating -v good film; chown 1:2 film; setfacl -m u:3:rw film; \
                  chmod u+s film; chattr +dA film";
    sh(pool.path(), script);
    let tell = "getfacl -n film; getfattr -d -m - film; stat -c '%u %g %a' film; lsattr film";
    let before = sh(pool.path(), tell);
    let file = writer(pool.at("film"));
    (0..40).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    assert_eq!(pool.holders("film"), ["b"]);
    assert_eq!(sh(pool.path(), tell), before);
    let on_branch = sh(pool.branch("b").path(), "lsattr film; getfacl -n film; stat -c '%u %g %a' film");
    assert!(on_branch.contains("user:3:rw-") && on_branch.ends_with("1 2 4664"), "{on_branch}");
    let flags = on_branch.split_once(' ').unwrap().0;
    assert!(flags.contains('d') && flags.contains('A'), "{on_branch}");
}

#[test]
fn a_moved_file_inherits_no_access_list() {
    needs!(mounting(), loops(), program("setfacl"));
    let pool = nearly_full(MiB(24), &[]);
    sh(pool.path(), "mkdir d; umask 027; touch d/film; setfacl -d -m u:1234:rwx d .");
    let file = writer(pool.at("d/film"));
    (0..40).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    assert_eq!(pool.holders("d/film"), ["b"]);
    let list = sh(pool.branch("b").path(), "getfacl -n -c d/film");
    assert_eq!(list.trim(), "user::rw-\ngroup::r--\nother::---");
}

#[test]
fn times_to_the_nanosecond_go_with_a_file() {
    needs!(mounting(), loops());
    let pool = nearly_full(MiB(24), &[]);
    let file = writer(pool.at("film"));
    file.write_all_at(&mib(0), 0).unwrap();
    sh(pool.path(), "touch -d '2001-02-03 04:05:06.123456789' film");
    let before = file.metadata().unwrap();
    // Allocates space without changing content.
    fallocate(file.as_fd(), FallocateFlags::KEEP_SIZE, 0, 60 << 20).unwrap();
    assert_eq!(pool.holders("film"), ["b"]);
    let after = file.metadata().unwrap();
    assert_eq!((after.atime(), after.atime_nsec()), (before.atime(), before.atime_nsec()));
    assert_eq!(after.len(), before.len());
}

#[test]
fn preallocation_moves_a_file() {
    needs!(mounting(), loops());
    let pool = nearly_full(MiB(24), &[]);
    let file = writer(pool.at("film"));
    file.write_all_at(&mib(0), 0).unwrap();
    fallocate(file.as_fd(), FallocateFlags::empty(), 0, 60 << 20).unwrap();
    assert_eq!(pool.holders("film"), ["b"]);
    assert_eq!(file.metadata().unwrap().len(), 60 << 20);
    let mut piece = vec![0; 1 << 20];
    file.read_exact_at(&mut piece, 0).unwrap();
    assert!(piece == mib(0));
}

#[test]
fn space_allocated_for_a_file_is_allocated_where_it_moves() {
    needs!(mounting(), loops());
    let pool = nearly_full(MiB(24), &[]);
    let file = writer(pool.at("film"));
    fallocate(file.as_fd(), FallocateFlags::empty(), 0, 16 << 20).unwrap();
    file.write_all_at(&mib(0), 0).unwrap();
    (16..40).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    assert_eq!(pool.holders("film"), ["b"]);
    file.sync_all().unwrap();
    let blocks = fs::metadata(pool.branch("b").path().join("film")).unwrap().blocks();
    assert!(blocks >= 40 << 11, "{blocks} blocks");
}

#[test]
fn a_copy_inside_the_pool_moves_what_it_fills() {
    needs!(mounting(), loops());
    let pool = nearly_full(MiB(24), &[]);
    let film = writer(pool.at("film"));
    (0..40).for_each(|n| film.write_all_at(&mib(n), n << 20).unwrap());
    // On the full branch; on the other it would share the film's blocks.
    assert_eq!(pool.holders("film"), ["b"]);
    let twin = writer(pool.at("twin"));
    let (mut from, mut to) = (0, 0);
    while from < 40 << 20 {
        // Like cp: with the largest count.
        let copied = rustix::fs::copy_file_range(&film, Some(&mut from), &twin, Some(&mut to), 1 << 40);
        assert!(copied.unwrap() > 0);
    }
    assert_eq!(pool.holders("twin"), ["b"]);
    assert_mibs(&pool, "twin", 40);
    assert_clean(&pool);
}

/// Writes until an error; returns the number of MiB written.
#[track_caller]
pub(crate) fn refused_after(file: &File) -> u64 {
    for n in 0..100 {
        if let Err(error) = file.write_all_at(&mib(n), n << 20) {
            assert_eq!(error.raw_os_error(), Some(28), "{error}");
            return n;
        }
    }
    panic!("it was never refused");
}

#[test]
fn a_file_with_two_names_stays_and_says_why() {
    needs!(mounting(), loops(), program("getfattr"));
    let pool = nearly_full(MiB(24), &[]);
    let file = writer(pool.at("film"));
    fs::hard_link(pool.at("film"), pool.at("twin")).unwrap();
    let taken = refused_after(&file);
    assert_eq!(pool.holders("film"), ["a"]);
    let why = sh(pool.path(), "getfattr --only-values -n user.fsstack.why film");
    assert!(why.contains("hard links"), "{why}");
    let mut piece = vec![0; 1 << 20];
    (0..taken).for_each(|n| {
        file.read_exact_at(&mut piece, n << 20).unwrap();
        assert!(piece == mib(n));
    });
}

#[test]
fn a_file_written_past_the_daemon_stays() {
    needs!(mounting(), loops());
    if let Err(skip) = crate::script::passthrough() {
        return skip.announce();
    }
    let mut pool = nearly_full(MiB(24), &[]);
    pool.remount_with(&["create=ff", "relocate", "write-path=auto", "passthrough-headroom=0"]);
    let file = writer(pool.at("film"));
    assert_eq!(sh(pool.path(), "getfattr --only-values -n user.fsstack.write-path film"), "passthrough");
    refused_after(&file);
    assert_eq!(pool.holders("film"), ["a"]);
}

#[test]
fn a_branch_without_room_for_all_of_it_and_its_floor_takes_nothing() {
    needs!(mounting(), loops());
    let pool = nearly_full(MiB(60), &["minfreespace=40M"]);
    // Room for the file but not for the floor.
    pool.branch("b").fill_until_free(MiB(80));
    let file = writer(pool.at("film"));
    let taken = refused_after(&file);
    assert!(taken >= 40, "{taken}");
    assert_eq!(pool.holders("film"), ["a"]);
    assert_clean(&pool);
}

#[test]
fn without_relocation_a_full_branch_is_enospc() {
    needs!(mounting(), loops());
    let mut pool = nearly_full(MiB(24), &[]);
    pool.remount_with(&["create=ff", "relocate=off", "write-path=stacked"]);
    refused_after(&writer(pool.at("film")));
    assert_eq!(pool.holders("film"), ["a"]);
}

#[test]
fn the_option_has_its_old_name_too() {
    needs!(mounting(), loops());
    let mut pool = nearly_full(MiB(24), &[]);
    pool.remount_with(&["create=ff", "moveonenospc=true", "write-path=stacked"]);
    let file = writer(pool.at("film"));
    (0..40).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    assert_eq!(pool.holders("film"), ["b"]);
}

#[test]
fn writers_that_find_a_branch_full_at_once_do_not_all_leave_it() {
    needs!(mounting(), loops());
    const WRITERS: u64 = 6;
    let pool = nearly_full(MiB(66), &[]);
    let files: Vec<File> = (0..WRITERS).map(|n| writer(pool.at(format!("file-{n}")))).collect();
    for file in &files {
        (0..10).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    }
    // 60 of 66 MiB are used: all six find no room, and the place of one is enough for what four others write.
    let together = std::sync::Barrier::new(files.len());
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                together.wait();
                (10..12).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
            });
        }
    });
    (0..WRITERS).for_each(|n| assert_mibs(&pool, &format!("file-{n}"), 12));
    let stayed = (0..WRITERS).filter(|n| pool.holders(format!("file-{n}")) == ["a"]).count();
    assert!(stayed > 0, "all left");
    assert_clean(&pool);
}
