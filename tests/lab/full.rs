//! Full bricks: GlusterFS's errors at create, write and close, and the pool's answers.

use std::fs::File;
use std::io::Write;

use fsstack_lab::shell::command;
use fsstack_lab::{MiB, Pool, needs};

use crate::scenario::{Breakable, beside_a_local_branch};

fn mib(n: u64) -> Vec<u8> {
    (0..1_u64 << 17).flat_map(|word| (n << 17 | word).to_le_bytes()).collect()
}

#[track_caller]
fn assert_mibs(pool: &Pool, name: &str, count: u64) {
    let bytes = pool.read(name);
    assert_eq!(bytes.len() as u64, count << 20);
    for (n, piece) in bytes.chunks(1 << 20).enumerate() {
        assert!(piece == mib(n as u64), "MiB {n} of {name} differs");
    }
}

#[test]
fn names_that_one_full_brick_refuses_go_to_the_next_branch() {
    needs!(mounting(), gluster());
    // The lab's own branch nearly fills the machine's disk, so there is no floor.
    let pool = beside_a_local_branch("dt4", &["minfreespace=0"]);
    let lab = Breakable::new();
    pool.mkdir("dir");
    lab.fill(1, MiB(0)).unwrap();
    for n in 0..32 {
        let name = format!("dir/{n}");
        pool.write(&name, &mib(n));
        assert!(pool.read(&name) == mib(n), "{name}");
    }
    let on_b = (0..32).filter(|n| pool.holders(format!("dir/{n}")) == ["b"]).count();
    assert!(on_b < 32, "the volume took nothing though three bricks have room");
    assert_eq!(pool.list("dir").len(), 32);
}

#[test]
fn a_file_that_outgrows_its_volume_moves() {
    needs!(mounting(), gluster());
    let pool = beside_a_local_branch("dp3rd1", &["write-path=stacked", "relocate"]);
    let lab = Breakable::new();
    let mut file = File::create(pool.at("film")).unwrap();
    file.write_all(&mib(0)).unwrap();
    assert_eq!(pool.holders("film"), ["a"]);
    (1..=3).for_each(|brick| lab.fill(brick, MiB(8)).unwrap());
    for n in 1..48 {
        file.write_all(&mib(n)).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(pool.holders("film"), ["b"]);
    assert_mibs(&pool, "film", 48);
}

/// Writes until an error, then closes. Prints both errnos, or 0.
const WRITE_AND_CLOSE: &str = "
import os
fd = os.open('film', os.O_WRONLY | os.O_CREAT)
refused = closed = 0
try:
    for n in range(64): os.write(fd, bytes(1 << 20))
except OSError as error: refused = error.errno
try: os.close(fd)
except OSError as error: closed = error.errno
print(refused, closed)";

#[test]
fn acknowledged_writes_that_cannot_be_stored_are_reported() {
    needs!(mounting(), gluster(), program("python3"));
    for way in ["write-path=stacked", "write-path=auto"] {
        let options = [way, "relocate=off", "minfreespace=0", "passthrough-headroom=0"];
        let pool = beside_a_local_branch("dt4", &options);
        let lab = Breakable::new();
        lab.gluster(&["volume", "set", "dt4", "performance.write-behind", "on"]).unwrap();
        pool.write("film", b"");
        assert_eq!(pool.holders("film"), ["a"]);
        (1..=4).for_each(|brick| lab.fill(brick, MiB(4)).unwrap());
        let output = command("python3").args(["-c", WRITE_AND_CLOSE]).dir(pool.path()).run().unwrap().stdout;
        assert!(output.split_whitespace().any(|errno| errno == "28"), "{way}: {output}");
        lab.gluster(&["volume", "set", "dt4", "performance.write-behind", "off"]).unwrap();
    }
}
