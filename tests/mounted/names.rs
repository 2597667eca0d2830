//! Names and sizes at the limits.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use fsstack_lab::{self as lab, MiB, needs};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::script::{sh, ways};

#[test]
fn any_bytes_but_a_slash_make_a_name() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    let mut names: Vec<Vec<u8>> = (1..=255).filter(|b| *b != b'/' && *b != b'.').map(|b| vec![b]).collect();
    names.extend([
        b"new\nline".to_vec(),
        b"\xff\xfe not UTF-8".to_vec(),
        vec![b'n'; 255],
        vec![0xe4; 255],
        b"...".to_vec(),
    ]);
    for name in &names {
        pool.write(OsStr::from_bytes(name), name);
    }
    let mut listed: Vec<Vec<u8>> = pool.list("").iter().map(|name| name.as_bytes().to_vec()).collect();
    names.sort();
    listed.sort();
    assert_eq!(listed, names);
    for name in &names {
        assert_eq!(&pool.read(OsStr::from_bytes(name)), name);
        fs::remove_file(pool.at(OsStr::from_bytes(name))).unwrap();
    }
    let too_long = fs::write(pool.at("n".repeat(256)), "").unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    assert!(pool.list("").is_empty());
}

#[test]
fn a_path_longer_than_path_max_is_walked_step_by_step() {
    needs!(mounting(), not_on_gluster("a path is at most 4096 bytes there"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    let name = "d".repeat(200);
    let open = OFlags::DIRECTORY | OFlags::RDONLY;
    let mut here = openat(CWD, pool.path(), open, Mode::empty()).unwrap();
    for _ in 0..40 {
        mkdirat(&here, &*name, Mode::RWXU).unwrap();
        here = openat(&here, &*name, open, Mode::empty()).unwrap();
    }
    let file = openat(&here, "file", OFlags::CREATE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).unwrap();
    let file = File::from(file);
    file.write_all_at(b"deep down", 0).unwrap();
    let mut answer = [0; 9];
    File::from(openat(&here, "file", OFlags::RDONLY, Mode::empty()).unwrap())
        .read_exact_at(&mut answer, 0)
        .unwrap();
    assert_eq!(&answer, b"deep down");
    drop((here, file));
    assert_eq!(
        sh(pool.path(), "find . -type f | wc -l; find . -name file -printf '%d\n'; rm -r d*; ls -A"),
        "1\n41"
    );
}

#[test]
fn a_sparse_file_may_be_as_large_as_its_branch_allows() {
    needs!(mounting(), loops());
    const LARGEST: u64 = i64::MAX as u64;
    for way in ways() {
        let mut pool = lab::pool().xfs_branch("a", MiB(300)).unmounted();
        pool.remount_with(way);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(pool.at("huge")).unwrap();
        file.set_len(LARGEST).unwrap();
        assert_eq!(file.metadata().unwrap().len(), LARGEST, "{way:?}");
        file.write_all_at(b"end", LARGEST - 3 - 4096).unwrap();
        let mut answer = [1; 5];
        file.read_exact_at(&mut answer, LARGEST - 4 - 4096).unwrap();
        assert_eq!(&answer, b"\0end\0", "{way:?}");
        assert_eq!(fs::metadata(pool.branch("a").path().join("huge")).unwrap().len(), LARGEST, "{way:?}");
        file.set_len(0).unwrap();
    }
}

#[test]
fn special_files_are_what_they_say() {
    needs!(mounting(), program("python3"), not_on_gluster("a symbolic link is shorter there"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    sh(pool.path(), "mkfifo fifo; mknod null c 1 3; mknod block b 7 99; echo dropped > null; [ ! -s null ]");
    assert_eq!(
        sh(pool.path(), "stat -c '%F %t %T' null block; stat -c %F fifo"),
        "character special file 1 3\nblock special file 7 63\nfifo"
    );
    assert_eq!(sh(pool.path(), "echo through > fifo & cat fifo"), "through");
    let talk = "
import os, socket
s = socket.socket(socket.AF_UNIX); s.bind('socket'); s.listen()
if os.fork() == 0:
    c = socket.socket(socket.AF_UNIX); c.connect('socket'); c.send(b'by a socket'); os._exit(0)
print(s.accept()[0].recv(99).decode())";
    assert_eq!(crate::script::python(pool.path(), talk), "by a socket");
    assert_eq!(
        sh(pool.path(), "ln -s \"$(printf 'x%.0s' $(seq 4095))\" long; readlink long | tr -d '\\n' | wc -c"),
        "4095"
    );
}
