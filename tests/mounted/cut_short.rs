//! Short reads and writes: a branch that fails midway, or a request without space. The result is an error, never zeros,
//! a shorter file or a lost write.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use fsstack_lab::{self as lab, MiB, Pool, needs};

use crate::relocate::mib;
use crate::script::{python, sh, ways};

/// Offset of the unreadable page, in the middle of readahead.
const BROKEN: usize = 512 << 10 | 64 << 10;

/// A file system that detects wrong data on its disk.
#[test]
fn unreadable_bytes_are_an_error_wherever_they_lie() {
    needs!(mounting(), loops(), drop_caches(), program("mkfs.btrfs"));
    let mut pool = lab::pool().btrfs_branch("b", MiB(200)).unmounted();
    let stored = pool.branch("b").path().join("film");
    fs::write(&stored, mib(7)).unwrap();
    let page = 4096;
    let whole = mib(7);
    pool.branch_mut("b").unmount();
    let image = OpenOptions::new().read(true).write(true).open(pool.branch("b").image().unwrap()).unwrap();
    let at = found(&image, &whole[BROKEN..BROKEN + page]);
    image.write_all_at(b"rotten", at).unwrap();
    image.sync_all().unwrap();
    pool.branch_mut("b").remount();
    for way in ways() {
        pool.remount_with(way);
        sh("/", "echo 3 > /proc/sys/vm/drop_caches");
        let read = fs::read(pool.at("film")).map(|bytes| (bytes.len(), bytes == whole));
        assert_eq!(read.map_err(|error| error.raw_os_error()), Err(Some(5)), "{way:?}");
        let file = File::open(pool.at("film")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20, "{way:?}");
        // All the rest is readable, before and after it.
        for (from, to) in [(0, BROKEN), (BROKEN + page, 1 << 20)] {
            let mut piece = vec![0; to - from];
            file.read_exact_at(&mut piece, from as u64).unwrap();
            assert!(piece == whole[from..to], "{way:?}");
        }
    }
}

/// Offset of a page in an image.
fn found(image: &File, page: &[u8]) -> u64 {
    let mut piece = vec![0; 4096];
    let pages = image.metadata().unwrap().len() / 4096;
    let mut at = (0..pages).map(|n| n * 4096);
    at.find(|at| image.read_exact_at(&mut piece, *at).is_ok() && piece == page).unwrap()
}

/// A pool with one branch that has little space left.
fn with_600_kib_free(options: &[&str]) -> Pool {
    let mut pool = lab::pool().tmpfs_branch("a", MiB(4)).unmounted();
    let branch = pool.branch("a");
    let ballast = vec![1; usize::try_from(branch.free()).unwrap() - (600 << 10)];
    fs::write(branch.path().join("ballast"), ballast).unwrap();
    pool.remount_with(options);
    pool
}

/// One write-back of the page cache has space for a part.
#[test]
fn pages_that_cannot_be_written_back_are_an_error() {
    needs!(mounting(), program("python3"));
    for way in ways().filter(|way| way.contains(&"write-path=stacked")) {
        let pool = with_600_kib_free(way);
        let work = "
import errno, mmap, os
SIZE = 1 << 20
f = os.open('film', os.O_RDWR | os.O_CREAT)
os.ftruncate(f, SIZE)
shared = mmap.mmap(f, SIZE)
shared[:] = b'x' * SIZE
try:
    shared.flush()
    os.fsync(f)
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print('taken')
";
        assert_eq!(python(pool.path(), work), "ENOSPC", "{way:?}");
    }
}

/// A direct write has space for a part. With a page cache the kernel sends it as asynchronous requests.
#[test]
fn a_direct_write_without_space_for_all_of_it_tells_so() {
    needs!(mounting(), program("python3"));
    for way in ways().filter(|way| way.contains(&"write-path=stacked")) {
        let pool = with_600_kib_free(way);
        let work = "
import errno, mmap, os
SIZE = 1 << 20
f = os.open('film', os.O_RDWR | os.O_CREAT | os.O_DIRECT)
data = mmap.mmap(-1, SIZE)
try:
    written = os.write(f, data)
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print('a part' if 0 < written < SIZE else written)
";
        let cached = way.iter().any(|option| option.starts_with("page-cache="));
        assert_eq!(python(pool.path(), work), if cached { "ENOSPC" } else { "a part" }, "{way:?}");
    }
}

/// The rest of a page has room for a part of it.
#[test]
fn a_copy_between_full_branches_says_how_much_it_has_copied() {
    needs!(mounting(), program("python3"));
    let mut pool = lab::pool()
        .tmpfs_branch("a", MiB(4))
        .tmpfs_branch("b", MiB(4))
        .option("create=ff,minfreespace=0,write-path=stacked")
        .unmounted();
    fs::write(pool.branch("a").path().join("to"), [0; 1000]).unwrap();
    fs::write(pool.branch("b").path().join("from"), mib(7)).unwrap();
    for branch in ["a", "b"] {
        let branch = pool.branch(branch);
        let ballast = vec![1; usize::try_from(branch.free()).unwrap()];
        fs::write(branch.path().join(format!("ballast-{}", ballast.len())), ballast).unwrap();
    }
    pool.remount();
    let work = "
import errno, os
source, target = os.open('from', os.O_RDONLY), os.open('to', os.O_RDWR)
print(os.copy_file_range(source, target, 300000, 0, 1000), os.fstat(target).st_size)
print(os.pread(target, 3096, 1000) == os.pread(source, 3096, 0))
try:
    os.copy_file_range(source, target, 300000, 3096, 4096)
except OSError as error:
    print(errno.errorcode[error.errno], os.fstat(target).st_size)
";
    assert_eq!(python(pool.path(), work), "3096 4096\nTrue\nENOSPC 4096");
}

/// The kernel reads more at once than it may write.
#[test]
fn small_writes_cut_no_read_short() {
    needs!(mounting(), loops(), drop_caches(), program("python3"));
    let mut pool = lab::pool().xfs_branch("x", MiB(300)).unmounted();
    let stored = pool.branch("x").path().join("film");
    fs::write(&stored, mib(3)).unwrap();
    sh(pool.branch("x").path(), "python3 -c \"import os; os.setxattr('film', 'user.large', bytes(60000))\"");
    for size in ["max-write=4K", "max-write=64K"] {
        for way in ways() {
            let options: Vec<_> = [size].iter().chain(way).copied().collect();
            pool.remount_with(&options);
            sh("/", "echo 3 > /proc/sys/vm/drop_caches");
            assert!(pool.read("film") == mib(3), "{options:?}");
            let mut piece = vec![0; 1 << 20];
            let read = File::open(pool.at("film")).unwrap().read_at(&mut piece, 0).unwrap();
            assert!(read == 1 << 20 && piece == mib(3), "{options:?}: {read}");
            let large = python(pool.path(), "import os; print(len(os.getxattr('film', 'user.large')))");
            assert_eq!(large, "60000", "{options:?}");
            pool.write("copy", &mib(4));
            assert!(pool.read("copy") == mib(4), "{options:?}");
        }
    }
}
