//! The flags of open(2), access checks, and what is synced.

use fsstack_lab::{self as lab, MiB, needs};

use crate::script::{python, refused_to_stranger, sh, sh_as_stranger, ways};

#[test]
fn the_flags_of_open_mean_what_they_say() {
    needs!(mounting(), loops(), program("python3"));
    let work = "
import ctypes, errno, mmap, os
def refused(what, *wanted):
    try:
        what()
    except OSError as e:
        assert e.errno in wanted, e
    else:
        raise AssertionError('not refused')
open('file', 'w').write('some')
os.symlink('file', 'link'); os.symlink('nowhere', 'dangling'); os.mkdir('dir')
refused(lambda: os.open('file', os.O_CREAT | os.O_EXCL | os.O_RDWR), errno.EEXIST)
refused(lambda: os.open('dangling', os.O_CREAT | os.O_EXCL | os.O_RDWR), errno.EEXIST)
refused(lambda: os.open('link', os.O_RDONLY | os.O_NOFOLLOW), errno.ELOOP)
refused(lambda: os.open('file', os.O_RDONLY | os.O_DIRECTORY), errno.ENOTDIR)
refused(lambda: os.open('dir', os.O_RDWR), errno.EISDIR)
# O_APPEND: wherever the offset is, and whoever else appends.
a = os.open('file', os.O_WRONLY | os.O_APPEND); b = os.open('file', os.O_RDWR | os.O_APPEND)
os.write(a, b'1'); os.write(b, b'2'); os.lseek(a, 0, os.SEEK_SET); os.write(a, b'3')
assert os.pread(b, 99, 0) == b'some123', os.pread(b, 99, 0)
# O_TRUNC, of an open file too.
os.close(os.open('file', os.O_WRONLY | os.O_TRUNC))
assert os.fstat(b).st_size == 0
os.write(a, b'new'); assert open('file').read() == 'new'
# O_PATH: a place in the tree, not a file to read.
p = os.open('file', os.O_PATH); assert os.fstat(p).st_size == 3
refused(lambda: os.read(p, 1), errno.EBADF)
os.rename('file', 'renamed'); again = os.open('/proc/self/fd/%d' % p, os.O_RDONLY); assert os.read(again, 9) == b'new'
l = os.open('link', os.O_PATH | os.O_NOFOLLOW); assert os.readlink('', dir_fd=l) == 'file'
d = os.open('dir', os.O_PATH); os.close(os.open('inside', os.O_CREAT | os.O_WRONLY, dir_fd=d)); assert os.listdir('dir') == ['inside']
# O_DIRECT: aligned reads and writes beside ordinary ones.
page = mmap.mmap(-1, 8192); page.write(b'd' * 8192)
o = os.open('direct', os.O_CREAT | os.O_RDWR | os.O_DIRECT)
assert os.pwritev(o, [page], 4096) == 8192
assert open('direct', 'rb').read() == bytes(4096) + b'd' * 8192
assert os.preadv(o, [page], 0) == 8192 and page[0] == 0
print('as on a disk')";
    for way in ways() {
        let mut pool = lab::pool().xfs_branch("a", MiB(300)).unmounted();
        pool.remount_with(way);
        assert_eq!(python(pool.path(), work), "as on a disk", "{way:?}");
    }
}

#[test]
fn access_is_checked_for_the_caller() {
    needs!(mounting(), program("python3"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    sh(
        pool.path(),
        "touch open shut run; chmod 644 open; chmod 600 shut; chmod 755 run; mkdir -m 711 through; touch through/in",
    );
    sh_as_stranger(
        pool.path(),
        "[ -r open ]; [ ! -w open ]; [ ! -x open ]; [ ! -r shut ]; [ ! -w shut ]; [ -x run ]; [ ! -r through ]; [ -x through ]; [ -e through/in ]",
    );
    assert!(refused_to_stranger(pool.path(), "ls through").contains("denied"));
    sh(pool.path(), "[ -r shut ]; [ -w shut ]; [ ! -x shut ]; [ -x run ]");
}

#[test]
fn every_kind_of_sync_is_answered() {
    needs!(mounting(), loops(), program("python3"));
    let work = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
f = os.open('d/file', os.O_CREAT | os.O_RDWR); os.write(f, b'kept')
os.fdatasync(f); os.fsync(f)
assert libc.syncfs(f) == 0 and libc.sync_file_range(f, ctypes.c_long(0), ctypes.c_long(4), 7) == 0
d = os.open('d', os.O_RDONLY | os.O_DIRECTORY); os.fsync(d); assert libc.syncfs(d) == 0
print('kept')";
    for way in ways() {
        let mut pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).unmounted();
        pool.remount_with(way);
        pool.mkdir("d");
        assert_eq!(python(pool.path(), work), "kept", "{way:?}");
    }
}

#[test]
fn extended_flags_are_the_branchs() {
    needs!(mounting(), loops(), program("python3"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).mount();
    // FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR: the extent size hint.
    let work = "
import fcntl, os, struct
f = os.open('file', os.O_CREAT | os.O_RDWR)
get = lambda: struct.unpack('IIIII8x', fcntl.ioctl(f, 0x801c581f, bytes(28)))
flags, _, extents, project, cow = get()
fcntl.ioctl(f, 0x401c5820, struct.pack('IIIII8x', flags | 0x800, 65536, 0, project, cow))
assert get()[:2] == (flags | 0x800, 65536), get()
print(get()[1])";
    assert_eq!(python(pool.path(), work), "65536");
    let there = work.replace("fcntl.ioctl(f, 0x401c5820", "(lambda *_: 0)(f");
    assert_eq!(
        python(
            pool.branch("a").path(),
            &there.replace("flags | 0x800, 65536), get()", "flags, 65536), get()")
        ),
        "65536"
    );
}
