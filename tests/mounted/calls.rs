//! Rare system calls that native file systems support.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom as StdFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use fsstack_lab::{self as lab, MiB, Pool, needs};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, copy_file_range,
    fallocate, linkat, openat, renameat_with, seek, statx, syncfs,
};
use rustix::io::Errno;

use crate::script::{sh, ways};

fn read_write(pool: &Pool, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(pool.at(name)).unwrap()
}

#[test]
fn an_unnamed_file_gets_a_name() {
    needs!(mounting(), loops());
    for way in ways() {
        let mut pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).unmounted();
        pool.remount_with(&[&["create=rand"], way].concat());
        pool.mkdir("dir");
        for name in ["one", "two", "dir/three"] {
            let unnamed =
                openat(CWD, pool.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o640)).unwrap();
            let mut unnamed = File::from(unnamed);
            unnamed.write_all(name.as_bytes()).unwrap();
            let visible = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed));
            assert_eq!(unnamed.metadata().unwrap().nlink(), 0);
            linkat(CWD, &*visible, CWD, pool.at(name), AtFlags::SYMLINK_FOLLOW).unwrap();
            assert_eq!(unnamed.metadata().unwrap().nlink(), 1, "{way:?}");
            assert_eq!(pool.read(name), name.as_bytes(), "{way:?}");
            assert_eq!(fs::metadata(pool.at(name)).unwrap().mode() & 0o7777, 0o640);
        }
        let never = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL;
        let unnamed = openat(CWD, pool.path(), never, Mode::RUSR).unwrap();
        let visible = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed));
        let linked = linkat(CWD, &*visible, CWD, pool.at("never"), AtFlags::SYMLINK_FOLLOW);
        assert_eq!(linked, Err(Errno::NOENT), "O_EXCL says that it never gets a name");
    }
}

#[test]
fn rename_may_refuse_to_replace_and_may_exchange() {
    needs!(mounting(), not_on_gluster("its client knows no flags of rename"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    for round in 0..8 {
        let at = |name: &str| pool.at(format!("{name}{round}"));
        fs::write(at("one"), "1").unwrap();
        fs::write(at("two"), "2").unwrap();
        let rename = |from: &str, to: &str, how| renameat_with(CWD, at(from), CWD, at(to), how);
        assert_eq!(rename("one", "two", RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename("one", "two", RenameFlags::EXCHANGE).unwrap();
        assert_eq!((fs::read(at("one")).unwrap(), fs::read(at("two")).unwrap()), (b"2".into(), b"1".into()));
        rename("one", "three", RenameFlags::NOREPLACE).unwrap();
        assert_eq!(rename("one", "two", RenameFlags::EXCHANGE), Err(Errno::NOENT));
        assert_eq!(fs::read(at("three")).unwrap(), b"2");
    }
}

#[test]
fn an_open_file_outlives_its_name_without_a_hidden_one() {
    needs!(mounting());
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
        pool.remount_with(way);
        let mut file = read_write(&pool, "file");
        file.write_all(b"before").unwrap();
        fs::remove_file(pool.at("file")).unwrap();
        assert!(pool.list("").is_empty(), "{way:?}");
        assert!(pool.branches().iter().all(|b| fs::read_dir(b.path()).unwrap().next().is_none()), "{way:?}");
        file.write_all(b" after").unwrap();
        file.set_len(9).unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        let space = file.metadata().unwrap();
        assert_eq!((text.as_str(), space.len(), space.nlink()), ("before af", 9, 0), "{way:?}");
        // Another file may get the name at once, and is another file.
        pool.write("file", b"new");
        assert_ne!(fs::metadata(pool.at("file")).unwrap().ino(), space.ino());
        file.write_at(b"BEFORE", 0).unwrap();
        assert_eq!(pool.read("file"), b"new");
    }
}

#[test]
fn an_open_file_follows_a_rename() {
    needs!(mounting());
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
        pool.remount_with(way);
        let mut file = read_write(&pool, "old");
        file.write_all(b"one").unwrap();
        pool.mkdir("dir");
        fs::rename(pool.at("old"), pool.at("dir/new")).unwrap();
        pool.write("old", b"another");
        file.write_all(b" two").unwrap();
        assert_eq!(
            (pool.read("dir/new"), pool.read("old")),
            (b"one two".to_vec(), b"another".to_vec()),
            "{way:?}"
        );
    }
}

#[test]
fn holes_are_punched_found_and_zeroed() {
    needs!(mounting(), loops());
    for way in ways() {
        let mut pool = lab::pool().xfs_branch("a", MiB(300)).unmounted();
        pool.remount_with(way);
        let file = read_write(&pool, "file");
        file.write_all_at(&[7; 1 << 20], 0).unwrap();
        file.sync_all().unwrap();
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 256 << 10, 256 << 10)
            .unwrap();
        // In the FUSE layer's page cache everything is data: a page may not be on the branch yet.
        let cached = way.iter().any(|option| option.starts_with("page-cache="));
        let (hole, data) = if cached { (1 << 20, 256 << 10) } else { (256 << 10, 512 << 10) };
        assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(hole), "{way:?}");
        assert_eq!(seek(&file, SeekFrom::Data(256 << 10)), Ok(data), "{way:?}");
        assert_eq!(seek(&file, SeekFrom::Hole(512 << 10)), Ok(1 << 20), "{way:?}");
        assert_eq!(seek(&file, SeekFrom::Data(1 << 20)), Err(Errno::NXIO), "{way:?}");
        let mut piece = [9; 4096];
        file.read_exact_at(&mut piece, 300 << 10).unwrap();
        assert_eq!(piece, [0; 4096], "{way:?}: what was punched is read as before");
        fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 4096).unwrap();
        file.read_exact_at(&mut piece, 0).unwrap();
        assert_eq!(piece, [0; 4096], "{way:?}: what was zeroed is read as before");
        fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20, "{way:?}");
        fallocate(&file, FallocateFlags::empty(), 1 << 20, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 2 << 20, "{way:?}");
        // The kernel's FUSE supports no other modes.
        let collapsed = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 512 << 10);
        assert_eq!(collapsed, Err(Errno::OPNOTSUPP), "{way:?}");
    }
}

#[test]
fn copy_file_range_goes_within_a_branch_and_across() {
    needs!(mounting(), loops());
    for way in ways() {
        let mut pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).unmounted();
        pool.remount_with(&[&["create=rand"], way].concat());
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
        pool.write("from", &bytes);
        let from = File::open(pool.at("from")).unwrap();
        for round in 0..8 {
            let to = read_write(&pool, &format!("to{round}"));
            let (mut off_in, mut off_out) = (1000, 10);
            while off_in < bytes.len() as u64 {
                let copied =
                    copy_file_range(&from, Some(&mut off_in), &to, Some(&mut off_out), 1 << 20).unwrap();
                assert_ne!(copied, 0, "{way:?}");
            }
            let space = pool.read(format!("to{round}"));
            assert!(space[10..] == bytes[1000..], "{way:?}: {:?}", pool.holders(format!("to{round}")));
        }
    }
}

#[test]
fn a_file_knows_when_it_was_born() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).mount();
    let before = sh(pool.path(), "date +%s; touch file; mkdir dir; sleep 1.1; echo x >> file; touch dir/x");
    let before: u64 = before.parse().unwrap();
    for name in ["file", "dir"] {
        let born: u64 = sh(pool.path(), &format!("stat -c %W {name}")).parse().unwrap();
        assert!((before..=before + 1).contains(&born), "{name}: {born}, made at {before}");
        let here = statx(CWD, pool.at(name), AtFlags::empty(), StatxFlags::BTIME).unwrap();
        let there =
            statx(CWD, pool.branch("a").path().join(name), AtFlags::empty(), StatxFlags::BTIME).unwrap();
        assert_eq!(
            (here.stx_btime.tv_sec, here.stx_btime.tv_nsec),
            (there.stx_btime.tv_sec, there.stx_btime.tv_nsec)
        );
    }
}

#[test]
fn an_ioctl_that_could_shut_a_branch_down_is_refused() {
    needs!(mounting(), loops(), program("python3"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).mount();
    let ask = "
import errno, fcntl, os, struct
f = open('file', 'w+b')
def ask(number, data=bytes(64)):
    try:
        fcntl.ioctl(f, number, data); return 'done'
    except OSError as e:
        return errno.errorcode[e.errno]
print(ask(0x8004587d, struct.pack('I', 2)), ask(0xc0185879), ask(0xc0c0586d, bytes(192)))
";
    assert_eq!(crate::script::python(pool.path(), ask), "ENOTTY ENOTTY ENOTTY");
    pool.write("still", b"here");
}

#[test]
fn times_are_set_to_the_nanosecond() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    sh(
        pool.path(),
        "touch -d '2001-02-03 04:05:06.123456789' file; mkdir dir; touch -m -d '2003-01-01 00:00:00.5' dir",
    );
    assert_eq!(sh(pool.path(), "TZ=UTC stat -c %y file").split('.').nth(1), Some("123456789 +0000"));
    assert_eq!(sh(pool.path(), "stat -c %y dir | cut -d. -f2 | cut -c1-9"), "500000000");
    sh(pool.path(), "a=$(stat -c %x file); touch -m file; [ \"$a\" = \"$(stat -c %x file)\" ]");
    let file = read_write(&pool, "file");
    syncfs(&file).unwrap();
    File::open(pool.at("dir")).unwrap().sync_all().unwrap();
    file.sync_data().unwrap();
    assert_eq!((&file).seek(StdFrom::End(0)).unwrap(), 0);
}

#[test]
fn a_removed_file_is_no_write_back_error_of_the_next_fsync() {
    needs!(mounting());
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
        pool.remount_with(way);
        let said = sh(
            pool.path(),
            "head -c 1M /dev/zero > f; rm f; sync -f .
             head -c 1M /dev/zero > g; head -c 1M /dev/zero > h; mv g h; sync -f .; echo synced",
        );
        assert_eq!(said, "synced", "{way:?}");
    }
}

#[test]
fn a_truncation_changes_the_times_as_on_a_disk() {
    needs!(mounting(), program("python3"));
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(way);
        let work = "set_back() { touch -d @1000000000 $1; }; now() { [ $(stat -c %Y $1) -gt 1000000000 ] && echo now; }
            : > stamp; set_back stamp; : > stamp; now stamp
            printf text > file; set_back file; truncate -s 3 file; now file
            set_back file; python3 -c 'import os; os.truncate(\"file\", 3)'; stat -c %Y file";
        assert_eq!(sh(pool.path(), work), "now\nnow\n1000000000", "{way:?}");
    }
}
