//! The daemon runs out of descriptors: programs get ENFILE, and everything works afterwards.

use std::fs::File;

use fsstack_lab::{self as lab, Pool, needs};
use rustix::fs::{Mode, OFlags, open};

use crate::command::{at, json, output_of};
use crate::script::sh;

const ENFILE: Option<i32> = Some(23);

/// Opens until an error. Returns the open files and the errno.
fn as_many_as_there_are(open: impl Fn(usize) -> std::io::Result<File>) -> (Vec<File>, Option<i32>) {
    let mut held = Vec::new();
    loop {
        match open(held.len()) {
            Ok(file) => held.push(file),
            Err(error) => return (held, error.raw_os_error()),
        }
        assert!(held.len() < 10_000, "the daemon's limit is not heeded");
    }
}

fn programs_get_enfile(pool: &Pool) {
    // This test process's own limit is separate.
    fsstack_sys::thread::raise_nofile_limit();
    sh("/", &format!("prlimit --pid {} --nofile=300", pool.daemon().pid));
    let new = |n: usize| File::create_new(pool.at(format!("file-{n}")));
    let (held, refused) = as_many_as_there_are(new);
    assert!(50 < held.len(), "{}", held.len());
    assert_eq!(refused, ENFILE, "a new file");
    let flags = OFlags::WRONLY | OFlags::TMPFILE;
    let unnamed = |_| Ok(File::from(open(pool.path(), flags, Mode::RUSR | Mode::WUSR)?));
    assert_eq!(as_many_as_there_are(unnamed).1, ENFILE, "a file without a name");
    drop(held);
    pool.write("after", b"all is well");
    assert_eq!(pool.read("after"), b"all is well");
}

#[test]
fn programs_get_enfile_when_the_daemon_is_out_of_descriptors() {
    needs!(mounting(), program("prlimit"));
    programs_get_enfile(&lab::pool().tmp_branch("a").tmp_branch("b").mount());
}

#[test]
fn programs_get_enfile_where_the_pool_is_exported_too() {
    needs!(mounting(), program("prlimit"));
    programs_get_enfile(&lab::pool().tmp_branch("a").tmp_branch("b").option("nfs-export").mount());
}

#[test]
fn the_status_tells_how_near_the_limit_is() {
    needs!(mounting(), program("prlimit"));
    let pool = lab::pool().tmp_branch("a").mount();
    let asked = || json("status", &["status", &at(&pool)])["pools"][0]["descriptors"].clone();
    // This process may raise its limit as far as the daemon.
    let most = fsstack_sys::thread::raise_nofile_limit();
    assert_eq!(asked()["limit"], most, "the daemon has raised it as far as it goes");
    sh("/", &format!("prlimit --pid {} --nofile=200", pool.daemon().pid));
    let before = asked()["open"].as_u64().unwrap();
    let held: Vec<_> = (0..100).map(|n| File::create_new(pool.at(n.to_string())).unwrap()).collect();
    let now = asked();
    assert_eq!(now["limit"], 200);
    assert!(before + 100 <= now["open"].as_u64().unwrap(), "{before}, {now}");
    drop(held);
    let shown = output_of(&["status", &at(&pool)]);
    assert!(
        shown.lines().any(|line| line.starts_with("descriptors: ") && line.contains(" of 200 (")),
        "{shown}"
    );
    let figures = output_of(&["metrics", &at(&pool)]);
    assert!(
        figures.contains("\nfsstack_descriptors ") && figures.contains("\nfsstack_descriptors_limit 200\n"),
        "{figures}"
    );
}
