//! Open files and listings over a change of the daemon: an upgrade, or a death that a keeper mends.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use fsstack_lab::{Pool, until};
use rustix::fs::{AtFlags, CWD, OFlags, RawDir, linkat};

use crate::command::{at, json};
use crate::script::sh;

/// Names from where the descriptor stands, at most a buffer of that many bytes.
pub(crate) fn names(dir: impl AsFd, buffer: usize) -> Vec<String> {
    let mut buffer = Vec::with_capacity(buffer);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        names.push(entry.unwrap().file_name().to_string_lossy().into_owned());
        if entries.is_buffer_empty() {
            break;
        }
    }
    names
}

pub(crate) fn read_write(file: &File) {
    let mut held = vec![0; 7];
    file.read_exact_at(&mut held, 0).unwrap();
    assert_eq!(held, b"before\n");
    file.write_all_at(b"after\n", 7).unwrap();
    file.sync_all().unwrap();
    let mut all = String::new();
    (&*file).seek(SeekFrom::Start(0)).unwrap();
    (&*file).read_to_string(&mut all).unwrap();
    assert_eq!(all, "before\nafter\n");
}

/// Files of every kind are open while `replace` has another daemon serve `pool`, twice, and are used afterwards.
#[track_caller]
pub(crate) fn go_on(pool: &Pool, way: &[&str], replace: impl Fn(&Pool)) {
    let options = || File::options().read(true).write(true).create(true).to_owned();
    let made = |name: &str| {
        let file = options().open(pool.at(name)).unwrap();
        file.write_all_at(b"before\n", 0).unwrap();
        file
    };
    let (plain, unlinked, renamed) = (made("plain"), made("unlinked"), made("renamed"));
    fs::remove_file(pool.at("unlinked")).unwrap();
    let unnamed = File::options()
        .read(true)
        .write(true)
        .custom_flags(OFlags::TMPFILE.bits().cast_signed())
        .open(pool.path())
        .unwrap();
    unnamed.write_all_at(b"before\n", 0).unwrap();
    let mut appended = File::options().append(true).create(true).open(pool.at("appended")).unwrap();
    appended.write_all(b"one\n").unwrap();
    let mut read_only = File::open(pool.at("plain")).unwrap();
    let number = plain.metadata().unwrap().ino();
    for _ in 0..2 {
        replace(pool);
    }
    fs::rename(pool.at("renamed"), pool.at("renamed.now")).unwrap();
    for file in [&plain, &unlinked, &renamed, &unnamed] {
        read_write(file);
    }
    let mut text = String::new();
    read_only.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before\nafter\n", "{way:?}");
    appended.write_all(b"two\n").unwrap();
    assert_eq!(pool.read("appended"), b"one\ntwo\n", "{way:?}");
    assert_eq!(pool.read("renamed.now"), b"before\nafter\n");
    assert_eq!((plain.metadata().unwrap().ino(), unlinked.metadata().unwrap().nlink()), (number, 0));
    assert_eq!(fs::metadata(pool.at("plain")).unwrap().ino(), number);
    // Later opens share the mode of those before.
    read_only = File::open(pool.at("plain")).unwrap();
    read_only.read_to_string(&mut text).unwrap();
    OpenOptions::new().write(true).open(pool.at("plain")).unwrap().set_len(3).unwrap();
    assert_eq!(plain.metadata().unwrap().len(), 3, "{way:?}");
    linkat(
        CWD,
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed)),
        CWD,
        pool.at("named"),
        AtFlags::SYMLINK_FOLLOW,
    )
    .unwrap();
    assert_eq!(pool.read("named"), b"before\nafter\n");
    drop((plain, unlinked, renamed, unnamed, appended, read_only));
    until("all handles are closed", || {
        json("status", &["status", &at(pool)])["pools"][0]["tables"]["files"] == 0
    });
}

/// Programs write, rename, read, list and remove with every byte checked, while `replace` has another daemon serve `pool` that many
/// times. No call fails, and nothing stays open.
pub(crate) fn work_goes_on(pool: &Pool, times: usize, replace: impl Fn(&Pool)) {
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (over, done) = (&over, &done);
            scope.spawn(move || {
                let dir = format!("t{thread}");
                pool.mkdir(&dir);
                let mut round = 0_u64;
                while !over.load(SeqCst) {
                    let name = format!("{dir}/{}", round % 50);
                    let text = format!("{thread} {round}\n").repeat(500);
                    fs::write(pool.at(format!("{name}.new")), &text).unwrap();
                    fs::rename(pool.at(format!("{name}.new")), pool.at(&name)).unwrap();
                    assert_eq!(fs::read_to_string(pool.at(&name)).unwrap(), text);
                    if round.is_multiple_of(7) {
                        fs::remove_file(pool.at(&name)).unwrap();
                    }
                    assert!(fs::read_dir(pool.at(&dir)).unwrap().count() <= 50);
                    round += 1;
                    done.fetch_add(1, SeqCst);
                }
            });
        }
        for _ in 0..times {
            let reached = done.load(SeqCst);
            until("programs are at work", || done.load(SeqCst) > reached + 20);
            replace(pool);
            let reached = done.load(SeqCst);
            until("programs go on", || done.load(SeqCst) > reached + 20);
        }
        over.store(true, SeqCst);
    });
    sh(pool.path(), "rm -r t?");
    let tables = &json("status", &["status", &at(pool)])["pools"][0]["tables"];
    assert_eq!((&tables["files"], &tables["dirs"]), (&0.into(), &0.into()));
}
