//! Mappings made by passthrough that outlive their descriptors: the kernel notifies the daemon of the close, not of the
//! unmapping.
//!
//! The scripts map through the C library: Python's own `mmap` keeps a duplicate of the descriptor.

use fsstack_lab::{self as lab, MiB, Pool, needs};

use crate::command::{at, binary};
use crate::relocate::assert_clean;
use crate::script::{passthrough, python};

/// Maps and stores, and prints the files' write paths from now on.
const BEGIN: &str = "
import ctypes, errno, mmap, os, subprocess, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
SIZE = 1 << 20
def map_shared(fd, prot):
    p = libc.mmap(None, SIZE, prot, mmap.MAP_SHARED, fd, 0)
    assert p != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return p
def mapped_and_closed(name, flags, prot):
    fd = os.open(name, flags)
    p = map_shared(fd, prot)
    os.close(fd)
    return p
def store(p, text):
    ctypes.memmove(p, text, len(text))
    assert libc.msync(p, SIZE, 4) == 0, 'msync'
def write_path(how):
    subprocess.run([FSSTACK, 'write-path', POOL, how], check=True, stdout=subprocess.DEVNULL)
def make(name):
    with open(name, 'wb') as f: f.write(b'FIRST' + bytes(SIZE - 5))
RW, RDWR, RDONLY = mmap.PROT_READ | mmap.PROT_WRITE, os.O_RDWR, os.O_RDONLY
";

fn run(pool: &Pool, script: &str) -> String {
    let names = format!("FSSTACK = {:?}\nPOOL = {:?}\n", binary(), at(pool));
    python(pool.path(), &[names.as_str(), BEGIN, script].concat())
}

/// Files go to the first of two branches, which a script fills by appending.
fn growing(pool: &Pool) -> String {
    run(
        pool,
        "
def grow(name):
    fd = os.open(name, os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(40): os.write(fd, bytes(SIZE))
        said = 'grown'
    except OSError as error:
        said = errno.errorcode[error.errno] + ' ' + os.getxattr(name, 'user.fsstack.why').decode()
    return fd, said
make('film')
p = mapped_and_closed('film', RDWR, RW)
write_path('stacked')
fd, said = grow('film')
assert said.startswith('ENOSPC'), said
assert 'mapped' in said, said
os.close(fd)
store(p, b'SECND')
with open('film', 'rb') as f: assert f.read(5) == b'SECND', 'the store is lost'
libc.munmap(p, SIZE)
# The daemon learns of a close after it has returned: an open before that joins the open file as it was.
until = time.monotonic() + 60
while said != 'grown':
    assert time.monotonic() < until, said
    fd, said = grow('film')
    if said != 'grown': os.close(fd)
with open('film', 'rb') as f: assert f.read(5) == b'SECND'
os.close(fd)
write_path('passthrough')
make('seen')
seen = mapped_and_closed('seen', RDONLY, mmap.PROT_READ)
write_path('stacked')
fd, said = grow('seen')
assert said.startswith('ENOSPC'), said
with open('seen', 'r+b') as f: f.write(b'OTHER')
assert ctypes.string_at(seen, 5) == b'OTHER', 'the mapping is stale'
print('kept')
",
    )
}

#[test]
fn a_file_whose_mapping_outlives_its_descriptor_stays_until_it_is_unmapped() {
    needs!(mounting(), loops(), program("python3"));
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let builders = [
        lab::pool().tmpfs_branch("a", MiB(24)).tmpfs_branch("b", MiB(400)),
        lab::pool().ext4_branch("a", MiB(32)).ext4_branch("b", MiB(400)),
        lab::pool().xfs_branch("a", MiB(310)).xfs_branch("b", MiB(400)),
    ];
    for builder in builders {
        let pool =
            builder.option("create=ff").option("minfreespace=0").option("write-path=passthrough").mount();
        pool.branch("a").fill_until_free(MiB(8));
        assert_eq!(growing(&pool), "kept");
        assert_eq!((pool.holders("film"), pool.holders("seen")), (vec!["b"], vec!["a"]));
        assert_clean(&pool);
    }
}

/// Handles with O_NOATIME, beside one without, are read through a second descriptor of the daemon.
#[test]
fn a_file_that_was_open_by_passthrough_moves_though_the_daemon_has_it_open_twice() {
    needs!(mounting(), program("python3"));
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let builder = lab::pool().tmpfs_branch("a", MiB(24)).tmpfs_branch("b", MiB(400));
    let builder = builder.option("create=ff").option("minfreespace=0").option("page-cache=off");
    let pool = builder.option("write-path=passthrough").mount();
    pool.branch("a").fill_until_free(MiB(8));
    let output = run(
        &pool,
        "
make('film')
write_path('stacked')
# The daemon learns of a close after it has returned: an open before that joins the open file as it was.
until = time.monotonic() + 20
said = ''
while said != 'grown':
    assert time.monotonic() < until, said
    seen, quiet = os.open('film', RDONLY), os.open('film', RDONLY | os.O_NOATIME)
    fd = os.open('film', os.O_WRONLY | os.O_APPEND)
    assert os.pread(seen, 5, 0) == os.pread(quiet, 5, 0) == b'FIRST'
    try:
        for _ in range(40): os.write(fd, bytes(SIZE))
        said = 'grown'
    except OSError as error:
        said = errno.errorcode[error.errno] + ' ' + os.getxattr('film', 'user.fsstack.why').decode()
        os.truncate('film', SIZE)
    assert os.pread(quiet, 5, 0) == b'FIRST'
    for handle in seen, quiet, fd: os.close(handle)
print(said)
",
    );
    assert_eq!((output.as_str(), pool.holders("film")), ("grown", vec!["b"]));
    assert_clean(&pool);
}

#[test]
fn a_mapping_that_outlives_its_descriptor_and_later_opens_see_the_same() {
    needs!(mounting(), program("python3"));
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    for cache in ["page-cache=on", "page-cache=off"] {
        let pool = lab::pool().tmp_branch("a").option("write-path=passthrough").option(cache).mount();
        let output = run(
            &pool,
            "
make('file')
p = mapped_and_closed('file', RDWR, RW)
write_path('stacked')
fd = os.open('file', RDWR)
assert os.pread(fd, 5, 0) == b'FIRST'
later = map_shared(fd, RW)
assert ctypes.string_at(later, 5) == b'FIRST'
store(p, b'SECND')
assert os.pread(fd, 5, 0) == b'SECND', 'a read does not see the store'
assert ctypes.string_at(later, 5) == b'SECND', 'a later mapping does not see the store'
store(later, b'THIRD')
assert ctypes.string_at(p, 5) == b'THIRD', 'the first mapping does not see the store'
os.pwrite(fd, b'FOURT', 0)
assert ctypes.string_at(p, 5) == ctypes.string_at(later, 5) == b'FOURT', 'a mapping does not see the write'
libc.munmap(p, SIZE); libc.munmap(later, SIZE); os.close(fd)
fd = os.open('file', RDWR)
print(os.pread(fd, 5, 0).decode())
",
        );
        assert_eq!(output, "FOURT", "{cache}");
        assert_eq!(&std::fs::read(pool.branch("a").path().join("file")).unwrap()[..5], b"FOURT", "{cache}");
    }
}

#[test]
fn a_mapped_file_is_drained_once_it_is_unmapped_with_what_was_stored() {
    needs!(mounting(), loops(), program("python3"));
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=ff").option("write-path=passthrough").mount();
    let branch = format!("BRANCH = {:?}", pool.branch("a").path());
    let script = "
make('film')
p = mapped_and_closed('film', RDWR, RW)
drain = subprocess.Popen([FSSTACK, 'branch', 'drain', POOL, BRANCH], stdout=subprocess.DEVNULL)
until = time.monotonic() + 60
said = ''
while 'may be mapped' not in said:
    assert time.monotonic() < until and drain.poll() is None, said
    time.sleep(0.1)
    said = subprocess.run([FSSTACK, 'job', 'status', POOL, '--why'], capture_output=True, text=True).stdout
store(p, b'SECND')
libc.munmap(p, SIZE)
assert drain.wait(120) == 0
with open('film', 'rb') as f: assert f.read(5) == b'SECND', 'the store is lost'
print('kept')
";
    assert_eq!(run(&pool, &[branch.as_str(), script].concat()), "kept");
    assert_eq!(pool.holders("film"), ["b"]);
    assert_clean(&pool);
}
