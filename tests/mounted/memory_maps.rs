//! Mapped files, shared and private, on every write path.

use fsstack_lab::{self as lab, needs};

use crate::script::{python, sh, ways};

#[test]
fn a_shared_map_is_the_file_and_a_private_one_is_not() {
    needs!(mounting(), program("python3"));
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(way);
        let work = "
import mmap, os
SIZE = 1 << 20
open('file', 'wb').write(bytes(SIZE))
f = open('file', 'r+b')
shared = mmap.mmap(f.fileno(), SIZE, mmap.MAP_SHARED)
private = mmap.mmap(f.fileno(), SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
shared[5000:5005] = b'hello'
child = os.fork()
if child == 0:
    other = mmap.mmap(os.open('file', os.O_RDWR), SIZE)
    ok = other[5000:5005] == b'hello'
    other[9000:9003] = b'you'
    other.flush()
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0, 'another process does not see the map'
assert shared[9000:9003] == b'you', 'what another process mapped is not seen'
shared.flush()
assert os.pread(f.fileno(), 5, 5000) == b'hello', 'read does not see the map'
private[20000:20003] = b'own'
assert os.pread(f.fileno(), 3, 20000) == bytes(3), 'a private map reached the file'
assert shared[20000:20003] == bytes(3)
shared.close(); private.close(); f.close()
data = open('file', 'rb').read()
assert len(data) == SIZE and data[5000:5005] == b'hello' and data[9000:9003] == b'you'
print('same')
";
        assert_eq!(python(pool.path(), work), "same", "{way:?}");
        let stored = std::fs::read(pool.branch("a").path().join("file")).unwrap();
        assert_eq!(&stored[5000..5005], b"hello", "{way:?}");
    }
}

#[test]
fn writes_are_seen_in_a_map() {
    needs!(mounting(), program("python3"));
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(way);
        let work = "
import mmap, os
open('file', 'wb').write(b'a' * 8192)
fd = os.open('file', os.O_RDWR)
shared = mmap.mmap(fd, 8192)
assert shared[:3] == b'aaa'
os.pwrite(fd, b'new', 0)
print(shared[:3].decode())
";
        assert_eq!(python(pool.path(), work), "new", "{way:?}");
    }
}

#[test]
fn a_program_runs_from_the_pool() {
    needs!(mounting());
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(way);
        let work = "cp /bin/echo e; ./e runs; ./e again";
        assert_eq!(crate::script::sh(pool.path(), work), "runs\nagain", "{way:?}");
    }
}

#[test]
fn stores_into_a_map_are_no_hole() {
    needs!(mounting(), program("python3"), program("tar"));
    for way in ways() {
        // A volume treats it as a hole without a pool too, and so does a pool that uses passthrough, as with `auto`.
        if lab::test_bed::is_gluster() && !way.contains(&"write-path=stacked") {
            continue;
        }
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(way);
        let work = "
import mmap, os, subprocess
fd = os.open('file', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
shared = mmap.mmap(fd, 1 << 20)
shared[500000:500005] = b'hello'
other = os.open('file', os.O_RDONLY)
assert os.lseek(other, 0, os.SEEK_DATA) <= 500000, 'taken for a hole'
assert os.lseek(other, 500000, os.SEEK_HOLE) > 500005, 'a hole where data is'
subprocess.run(['cp', 'file', 'copy'], check=True)
assert open('copy', 'rb').read()[500000:500005] == b'hello', 'not copied'
archive = subprocess.run('tar -cSf - file | tar -xOf -', shell=True, check=True, capture_output=True)
assert archive.stdout[500000:500005] == b'hello', 'not archived'
late = os.open('late', os.O_RDWR | os.O_CREAT)
os.write(late, b'x' * 65536)
assert os.lseek(late, 0, os.SEEK_DATA) == 0 and os.lseek(late, 0, os.SEEK_HOLE) == 65536
print('found')
";
        assert_eq!(python(pool.path(), work), "found", "{way:?}");
    }
}

/// A store by passthrough makes no request: the kernel must not cache the earlier time.
#[test]
fn a_store_into_a_map_shows_its_time_however_long_attributes_are_kept() {
    needs!(mounting(), program("python3"), program("xfs_io"));
    let pool = lab::pool().tmp_branch("a").option("out-of-band=never").mount();
    let times = |name: &str| {
        [pool.path(), pool.branch("a").path()].map(|dir| sh(dir, &format!("stat -c %.9Y {name}")))
    };
    pool.write("closed", &[1; 4096]);
    let [before, _] = times("closed");
    sh(pool.path(), "sleep 0.05; xfs_io -c 'mmap 0 4k' -c 'mwrite 0 4k' closed");
    let [now, stored] = times("closed");
    assert_eq!(now, stored, "after the last close");
    assert_ne!(now, before, "the store changed no time: the test shows nothing");

    pool.write("open", &[1; 4096]);
    let work = format!(
        "
import mmap, os, time
below = '{}/open'
fd = os.open('open', os.O_RDWR)
m = mmap.mmap(fd, 4096)
for n in range(3):
    before = os.stat('open').st_mtime_ns
    time.sleep(0.05)
    m[n] = 2
    now, stored = os.stat('open').st_mtime_ns, os.stat(below).st_mtime_ns
    assert now == stored, (n, before, now, stored)
    m.flush()
print('seen')
",
        pool.branch("a").path().display()
    );
    assert_eq!(python(pool.path(), &work), "seen");
}
