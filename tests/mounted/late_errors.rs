//! Acknowledged writes that fail later.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use fsstack_lab::cleanup::Entry;
use fsstack_lab::{self as lab, MiB, Pool, needs, until};
use tempfile::TempDir;

use crate::command::output_of;
use crate::keep::crash_and_serve;
use crate::script::{python, sh, ways};

/// A disk with a full image behind it: it has space for its content and nothing more.
struct Leaky {
    disk: PathBuf,
    _mounts: [Entry; 2],
    _home: TempDir,
}

impl Leaky {
    /// With a file `film` and a small one with two names, on a disk that reports lack of space only at write-back.
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let [disk, memory] = ["disk", "memory"].map(|name| home.path().join(name));
        fs::create_dir(&disk).unwrap();
        fs::create_dir(&memory).unwrap();
        let mounts = [&disk, &memory].map(|at| Entry::mount(at).unwrap());
        let make = "mount -t tmpfs -o size=12m none memory
                    truncate -s 64M memory/image
                    mkfs.ext4 -q -F -O ^has_journal -E nodiscard,lazy_itable_init=0 memory/image
                    mount -o loop memory/image disk
                    head -c 4096 /dev/zero > disk/film; echo small > disk/small; ln disk/small disk/link; sync -f disk
                    head -c 16M /dev/zero > memory/ballast 2> /dev/null || true";
        sh(home.path(), make);
        Self { disk, _mounts: mounts, _home: home }
    }
}

/// Two writers, a reader and a late opener: all get the others' errors.
const LOSE: &str = "
import os
def sync(fd):
    try: os.fsync(fd); return 0
    except OSError as error: return error.errno
files = [os.open('film', how) for how in (os.O_RDWR, os.O_RDWR, os.O_RDONLY)]
twin = os.dup(files[0])
answer = [[sync(fd) for fd in files]]
for n in (1, 2):
    os.pwrite(files[1], os.urandom(1 << 20), n << 20)
    answer.append([sync(fd) for fd in files + [twin]])
    answer.append([sync(fd) for fd in files + [os.open('film', os.O_RDWR)]])
print(answer)";

#[test]
fn each_open_file_gets_an_error_once() {
    needs!(mounting(), root(), loops(), program("python3"), program("mkfs.ext4"));
    // The duplicate shares the first one's open file description.
    let expected = "[[0, 0, 0], [28, 28, 28, 0], [0, 0, 0, 0], [28, 28, 28, 0], [0, 0, 0, 0]]";
    assert_eq!(python(&Leaky::new().disk, LOSE), expected, "on the disk itself");
    for way in ways() {
        let leaky = Leaky::new();
        let options: &[&str] = &[way, &["passthrough-headroom=0", "minfreespace=0"]].concat();
        let pool = lab::pool().over(&[leaky.disk.to_str().unwrap()]);
        let pool = options.iter().fold(pool, |pool, option| pool.option(option)).mount();
        assert_eq!(python(pool.path(), LOSE), expected, "{way:?}");
        drop(pool);
    }
}

fn errno(answer: io::Result<()>) -> i32 {
    answer.map_or_else(|error| error.raw_os_error().unwrap(), |()| 0)
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn sync<const N: usize>(files: [&File; N]) -> [i32; N] {
    files.map(|file| errno(file.sync_all()))
}

/// A file with two names moves, by itself and in a batch, whose content its disk could not store.
#[test]
fn an_error_that_the_move_of_a_linked_file_finds_is_reported_by_fsync() {
    needs!(mounting(), root(), loops(), program("mkfs.ext4"));
    for bytes in [8 << 10, 4 << 20] {
        let (leaky, other) = (Leaky::new(), tempfile::tempdir().unwrap());
        fs::hard_link(leaky.disk.join("film"), leaky.disk.join("again")).unwrap();
        let branches = [&*leaky.disk, other.path()].map(|branch| branch.to_str().unwrap());
        let log = leaky.disk.with_file_name("log");
        let pool = lab::pool().over(&branches).option("write-path=stacked,minfreespace=0,create=ff");
        let pool = pool.option(&format!("log={}", log.display())).mount();
        let [one, two] = [(); 2].map(|()| open(&pool.at("film")));
        one.write_all_at(&vec![b'x'; bytes], 1 << 20).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| output_of(&["branch", "drain", pool.path().to_str().unwrap(), branches[0]]));
            let names = ["name=\"film\"", "name=\"again\""];
            let is_refusal =
                |line: &str| line.contains("Fsync") && names.iter().any(|name| line.contains(name));
            until("the disk refuses", || {
                fs::read_to_string(&log).is_ok_and(|log| log.lines().any(is_refusal))
            });
            fs::remove_file(leaky.disk.with_file_name("memory/ballast")).unwrap();
        });
        assert!(other.path().join("again").exists(), "{bytes} bytes: it did not move");
        assert!(sync([&one, &two]).iter().all(|errno| *errno != 0), "{bytes} bytes");
        assert_eq!(sync([&one, &two]), [0; 2], "{bytes} bytes");
    }
}

/// A mount vanishes, perhaps with acknowledged writes.
#[test]
fn losses_of_a_dead_mount_are_reported() {
    needs!(mounting(), program("mergerfs"));
    let pool = lab::pool().served_branch("a").tmp_branch("b").option("create=ff").option("attr-timeout=0");
    let mut pool = pool.option("write-path=stacked").option("entry-timeout=0").mount();
    let [one, two, reader] = [(); 3].map(|()| open(&pool.at("film")));
    let (synced, unwritten) = (open(&pool.at("synced")), open(&pool.at("unwritten")));
    one.write_all_at(b"x", 0).unwrap();
    synced.write_all_at(b"x", 0).unwrap();
    assert_eq!(sync([&synced]), [0]);
    pool.branch("a").daemon().kill().unwrap();
    pool.branch_mut("a").unmount_by_force();
    pool.branch_mut("a").remount();
    until("the branch is back", || fs::read(pool.at("film")).is_ok());
    assert_eq!(sync([&one, &two, &synced, &unwritten]), [5, 5, 0, 0]);
    let late = open(&pool.at("film"));
    assert_eq!(sync([&one, &two, &late, &reader, &reader]), [0, 0, 0, 5, 0]);
}

/// The mount was detached, and its disk is unchanged.
#[test]
fn a_disk_that_still_stores_all_says_so() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).option("write-path=stacked").option("attr-timeout=0");
    let mut pool = pool.option("entry-timeout=0").mount();
    let film = open(&pool.at("film"));
    film.write_all_at(b"x", 0).unwrap();
    pool.branch_mut("a").unmount_lazily();
    until("the branch is down", || fs::read(pool.at("film")).is_err());
    pool.branch_mut("a").remount();
    until("the branch is back", || fs::read(pool.at("film")).is_ok());
    assert_eq!(sync([&film]), [0]);
    assert_eq!(pool.read("film"), b"x");
}

/// A small volume with or without write-behind, and a pool of it and a branch with space.
fn over_a_volume(holds_back: bool) -> (Pool, Pool) {
    let volume = lab::pool().tmpfs_branch("brick", MiB(8)).option("subtype=glusterfs").no_others();
    let mut volume = volume.option("write-path=stacked").option("minfreespace=0").unmounted();
    let graph = volume.branch("brick").path().join(".meta/graphs/active");
    fs::create_dir_all(graph.join("v-dht")).unwrap();
    fs::write(graph.join("v-dht/private"), "subvolumes[0]=protocol/client.v-0\nsubvolume_status[0]=1\n")
        .unwrap();
    if holds_back {
        fs::create_dir(graph.join("v-write-behind")).unwrap();
    }
    volume.remount();
    let pool =
        lab::pool().over(&[volume.path().to_str().unwrap()]).tmpfs_branch("b", MiB(64)).option("create=ff");
    let pool = pool.option("write-path=stacked").option("minfreespace=0").mount();
    (volume, pool)
}

/// A volume that acknowledges writes before they are stored reports at a later one that they did not fit.
#[test]
fn a_volume_that_holds_writes_back_may_have_lost_what_it_acknowledged() {
    needs!(mounting());
    for holds_back in [true, false] {
        let (volume, pool) = over_a_volume(holds_back);
        let film = volume.at("film");
        fs::write(&film, "").unwrap();
        let (one, two) = (open(&pool.at("film")), open(&pool.at("film")));
        let write = |n: u64| errno(one.write_all_at(&[7; 1 << 20], n << 20));
        let answer: Vec<i32> = (0..12).map(write).take_while(|answer| *answer == 0).collect();
        if holds_back {
            assert!(answer.len() < 8, "it was moved");
            assert_eq!(sync([&one, &two, &one, &two]), [28, 28, 0, 0]);
            assert!(film.exists());
            // Everything is known to be stored now, so it moves on.
            assert_eq!(write(8), 0);
        }
        assert!(!film.exists() && pool.branch("b").path().join("film").exists());
        assert_eq!(sync([&one, &two]), [0; 2]);
        drop((one, two, pool, volume));
    }
}

/// The kernel tells each handle of an error of its write-back, and the daemon does not tell them again.
#[test]
fn an_error_of_the_page_caches_write_back_is_reported_once() {
    needs!(mounting(), program("python3"));
    let (volume, mut pool) = over_a_volume(true);
    fs::write(volume.at("film"), "").unwrap();
    pool.remount_with(&["write-path=stacked", "minfreespace=0", "page-cache=on"]);
    let work = "
import mmap, os
SIZE = 12 << 20
one, two = [os.open('film', os.O_RDWR) for _ in range(2)]
os.ftruncate(one, SIZE)
shared = mmap.mmap(one, SIZE)
shared[:] = b'x' * SIZE
def told(call, *about):
    try: call(*about)
    except OSError as error: return error.errno
    return 0
print(told(shared.flush), *[told(os.fsync, f) for f in (one, two, one, two)])
";
    assert_eq!(python(pool.path(), work), "28 0 28 0 0");
}

/// The daemon has had the branch's report, for all handles; an upgrade by the keeper is the same.
#[test]
fn errors_that_were_not_reported_yet_outlive_the_daemon() {
    needs!(mounting(), root(), loops(), program("mkfs.ext4"));
    let leaky = Leaky::new();
    let pool = lab::pool().over(&[leaky.disk.to_str().unwrap()]).option("minfreespace=0");
    let pool = pool.option("transport=dev,restart=keep,write-path=stacked").mount();
    let [one, two, three] = [(); 3].map(|()| open(&pool.at("film")));
    one.write_all_at(&[7; 1 << 20], 1 << 20).unwrap();
    assert_eq!(sync([&one]), [28]);
    crash_and_serve(&pool);
    assert_eq!(sync([&one, &two, &one, &two]), [0, 5, 0, 0]);
    crash_and_serve(&pool);
    let late = open(&pool.at("film"));
    assert_eq!(sync([&late, &one, &two, &three, &three]), [0, 0, 0, 5, 0]);
}
