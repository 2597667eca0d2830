//! What was acknowledged and is lost on its way to the disk.

use std::fs;
use std::path::PathBuf;

use fsstack_lab::ledger::Entry;
use fsstack_lab::{self as lab, needs};
use tempfile::TempDir;

use crate::script::{python, sh, ways};

/// A disk that has room for what is on it, and for nothing more: its image is in a memory that is full.
struct Leaky {
    disk: PathBuf,
    _mounts: [Entry; 2],
    _home: TempDir,
}

impl Leaky {
    /// With a file `film` on it, and lets the disk tell that nothing more fits only when it is to be stored.
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
                    head -c 4096 /dev/zero > disk/film; sync -f disk
                    head -c 16M /dev/zero > memory/ballast 2> /dev/null || true";
        sh(home.path(), make);
        Self { disk, _mounts: mounts, _home: home }
    }
}

/// Two writers, a reader and a late comer, all of which are told what the other ones are.
const LOSE: &str = "
import os
def sync(fd):
    try: os.fsync(fd); return 0
    except OSError as error: return error.errno
files = [os.open('film', how) for how in (os.O_RDWR, os.O_RDWR, os.O_RDONLY)]
twin = os.dup(files[0])
told = [[sync(fd) for fd in files]]
for n in (1, 2):
    os.pwrite(files[1], os.urandom(1 << 20), n << 20)
    told.append([sync(fd) for fd in files + [twin]])
    told.append([sync(fd) for fd in files + [os.open('film', os.O_RDWR)]])
print(told)";

#[test]
fn each_open_file_is_told_once() {
    needs!(mounting(), root(), loops(), program("python3"), program("mkfs.ext4"));
    // (The twin is the first one's description.)
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
