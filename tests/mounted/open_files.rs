//! Open files and listings over a change of the daemon: an upgrade, or a death that a keeper mends.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use fsstack_lab::Pool;
use rustix::fs::{AtFlags, CWD, OFlags, RawDir, linkat};

use crate::command::{at, json};
use crate::hung_branches::until;

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
