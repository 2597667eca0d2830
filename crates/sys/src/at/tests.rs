//! Every call of `at`, on a temporary directory.

use super::*;
use crate::stat::{Kind, Time};
use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;

const RAW: &CStr = c"\xff\xfe raw";

/// A directory with a file, one with a name that is not UTF-8, a directory, and a symbolic link to the file.
fn place() -> (tempfile::TempDir, OwnedFd) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"content").unwrap();
    std::fs::write(dir.path().join(OsStr::from_bytes(RAW.to_bytes())), b"raw").unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
    let fd = open_root(dir.path()).unwrap();
    (dir, fd)
}

fn o_path(dir: &OwnedFd, name: &CStr) -> OwnedFd {
    open(dir.as_fd(), name, OFlags::PATH, 0, Mounts::Stay).unwrap()
}

fn failed<T: std::fmt::Debug>(result: Result<T>) -> Errno {
    result.unwrap_err().errno
}

#[test]
fn stat_tells_what_the_standard_library_tells() {
    let (keep, dir) = place();
    let expected = std::fs::symlink_metadata(keep.path().join("file")).unwrap();
    let stat = stat(dir.as_fd(), c"file").unwrap();
    assert_eq!((stat.dev, stat.ino, stat.size), (expected.dev(), expected.ino(), 7));
    assert_eq!(
        (stat.mode, stat.uid, stat.gid, stat.nlink),
        (expected.mode(), expected.uid(), expected.gid(), 1)
    );
    assert_eq!((stat.mtime.sec, i64::from(stat.mtime.nsec)), (expected.mtime(), expected.mtime_nsec()));
    assert!(stat.is_file() && stat.mnt_id != 0);
    assert_eq!(stat_fd(o_path(&dir, c"file").as_fd()).unwrap(), stat);
}

#[test]
fn names_lead_to_themselves() {
    let (_keep, dir) = place();
    assert!(stat(dir.as_fd(), c"link").unwrap().is_symlink());
    assert!(stat(dir.as_fd(), c"sub").unwrap().is_dir());
    assert_eq!(stat(dir.as_fd(), RAW).unwrap().size, 3);
    assert_eq!(failed(stat(dir.as_fd(), c"none")), Errno::NOENT);
}

#[test]
fn open_stays_beneath_and_follows_nothing() {
    let (_keep, dir) = place();
    let at = |name, flags| open(dir.as_fd(), name, flags, 0o600, Mounts::Cross);
    assert_eq!(failed(at(c"link", OFlags::RDONLY)), Errno::LOOP);
    assert!(stat_fd(at(c"link", OFlags::PATH).unwrap().as_fd()).unwrap().is_symlink());
    assert_eq!(failed(at(c"..", OFlags::PATH)), Errno::XDEV);
    assert_eq!(failed(at(c"/", OFlags::PATH)), Errno::XDEV);
    let made = at(c"made", OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).unwrap();
    assert_eq!(stat_fd(made.as_fd()).unwrap().mode & 0o777, 0o600);
    assert!(rustix::io::fcntl_getfd(&made).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    assert_eq!(failed(at(c"link", OFlags::RDWR | OFlags::CREATE)), Errno::LOOP);
    assert!(open_dir(dir.as_fd(), c"sub", Mounts::Stay).is_ok());
    assert_eq!(failed(open_dir(dir.as_fd(), c"link", Mounts::Stay)), Errno::NOTDIR);
    assert_eq!(failed(open_root(Path::new("relative"))), Errno::INVAL);
}

#[test]
fn a_mount_point_is_crossed_only_if_asked() {
    let root = open_root(Path::new("/")).unwrap();
    assert_eq!(failed(open_dir(root.as_fd(), c"proc", Mounts::Stay)), Errno::XDEV);
    open_dir(root.as_fd(), c"proc", Mounts::Cross).unwrap();
}

#[test]
fn reopening_serves_path_descriptors_and_removed_files() {
    let (_keep, dir) = place();
    let path = o_path(&dir, c"file");
    unlink(dir.as_fd(), c"file").unwrap();
    let real = reopen(path.as_fd(), OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CREATE).unwrap();
    let mut buf = [0; 7];
    assert_eq!(rustix::io::pread(&real, &mut buf, 0).unwrap(), 7);
    assert_eq!(&buf, b"content");
    assert_eq!(failed(reopen(o_path(&dir, c"link").as_fd(), OFlags::RDONLY)), Errno::LOOP);
}

#[test]
fn reopening_serves_directories_that_were_removed_or_may_not_be_searched() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    const LISTED: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
    let (_keep, dir) = place();
    mkdir(dir.as_fd(), c"closed", 0o400).unwrap();
    let (file, closed) = (o_path(&dir, c"file"), o_path(&dir, c"closed"));
    assert_eq!(failed(reopen(file.as_fd(), LISTED)), Errno::NOTDIR);
    let list = |fd: &OwnedFd| reopen(fd.as_fd(), LISTED).map(|list| stat_fd(list.as_fd()).unwrap().ino);
    let own = stat_fd(closed.as_fd()).unwrap().ino;
    // Capabilities are a thread's own.
    let unprivileged = std::thread::scope(|scope| {
        let listed = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, sets).unwrap();
            list(&closed)
        });
        listed.join().unwrap()
    });
    assert_eq!(unprivileged.unwrap(), own);
    rmdir(dir.as_fd(), c"closed").unwrap();
    assert_eq!(list(&closed).unwrap(), own);
}

#[test]
fn a_file_without_a_name_gets_one() {
    let (_keep, dir) = place();
    let file = tmpfile(dir.as_fd(), OFlags::RDWR, 0o640).unwrap();
    assert_eq!(stat_fd(file.as_fd()).unwrap().nlink, 0);
    let unnamed = |file: &OwnedFd| unnamed_below(dir.as_fd(), file.as_fd()).unwrap();
    let shown = format!("#{}", stat_fd(file.as_fd()).unwrap().ino);
    assert_eq!(unnamed(&file), Some(shown.into_bytes()));
    link_fd(file.as_fd(), dir.as_fd(), c"named").unwrap();
    assert_eq!(stat(dir.as_fd(), c"named").unwrap().nlink, 1);
    assert_eq!(failed(link_fd(file.as_fd(), dir.as_fd(), c"named")), Errno::EXIST);
    assert_eq!(unnamed(&file), None);
    let removed = open(dir.as_fd(), c"named", OFlags::RDONLY, 0, Mounts::Stay).unwrap();
    unlink(dir.as_fd(), c"named").unwrap();
    assert_eq!(unnamed(&removed), None);
    let sealed = tmpfile(dir.as_fd(), OFlags::RDWR | OFlags::EXCL, 0o640).unwrap();
    assert_eq!(failed(link_fd(sealed.as_fd(), dir.as_fd(), c"other")), Errno::NOENT);
}

#[test]
fn links_are_to_the_symbolic_link_itself() {
    let (_keep, dir) = place();
    link_fd(o_path(&dir, c"link").as_fd(), dir.as_fd(), c"by fd").unwrap();
    link(dir.as_fd(), c"link", dir.as_fd(), c"by name").unwrap();
    for name in [c"by fd", c"by name"] {
        assert_eq!(readlink(dir.as_fd(), name).unwrap(), b"file");
    }
    assert_eq!(stat(dir.as_fd(), c"link").unwrap().nlink, 3);
}

#[test]
fn names_are_made_moved_and_removed() {
    let (_keep, dir) = place();
    let at = dir.as_fd();
    mkdir(at, c"new", 0o711).unwrap();
    assert_eq!(stat(at, c"new").unwrap().mode & 0o777, 0o711);
    mknod(at, c"fifo", libc::S_IFIFO | 0o600, 0).unwrap();
    assert_eq!(stat(at, c"fifo").unwrap().kind(), Kind::Fifo);
    mknod(at, c"plain", 0o600, 0).unwrap();
    assert!(stat(at, c"plain").unwrap().is_file());
    assert!(mknod(at, c"bad", libc::S_IFMT, 0).is_err());
    rename(at, c"fifo", at, c"new", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(stat(at, c"new").unwrap().kind(), Kind::Fifo);
    assert_eq!(failed(rename(at, c"new", at, c"file", RenameFlags::NOREPLACE)), Errno::EXIST);
    rename(at, c"new", at, RAW, RenameFlags::empty()).unwrap();
    assert_eq!(stat(at, RAW).unwrap().kind(), Kind::Fifo);
    assert_eq!(failed(unlink(at, c"sub")), Errno::ISDIR);
    assert_eq!(failed(rmdir(at, c"link")), Errno::NOTDIR);
    rmdir(at, c"sub").unwrap();
    unlink(at, c"link").unwrap();
    stat(at, c"file").unwrap();
}

#[test]
fn a_file_moves_without_flags_and_takes_no_name_away() {
    let (_keep, dir) = place();
    let at = dir.as_fd();
    let number = stat(at, c"file").unwrap().ino;
    let refused = SysError::new(Call::Rename, Errno::INVAL);
    rename_by_link(at, c"file", at, c"moved", refused).unwrap();
    assert_eq!(failed(stat(at, c"file")), Errno::NOENT);
    let moved = stat(at, c"moved").unwrap();
    assert_eq!((moved.ino, moved.nlink), (number, 1));
    assert_eq!(failed(rename_by_link(at, c"moved", at, c"link", refused)), Errno::EXIST);
    assert_eq!(failed(rename_by_link(at, c"sub", at, c"elsewhere", refused)), Errno::INVAL);
    assert_eq!(failed(rename_by_link(at, c"gone", at, c"elsewhere", refused)), Errno::NOENT);
    stat(at, c"moved").unwrap();
}

#[test]
fn targets_are_read_whole() {
    let (_keep, dir) = place();
    let target = std::ffi::CString::new(vec![0xfe; 4095]).unwrap();
    // Some file systems limit targets to fewer bytes.
    let target = match symlink(&target, dir.as_fd(), c"long") {
        Ok(()) => target,
        Err(_) => std::ffi::CString::new(vec![0xfe; 1000]).unwrap(),
    };
    let _ = symlink(&target, dir.as_fd(), c"long");
    assert_eq!(readlink(dir.as_fd(), c"long").unwrap(), target.to_bytes());
    assert_eq!(readlink(o_path(&dir, c"long").as_fd(), c"").unwrap(), target.to_bytes());
    assert_eq!(failed(readlink(dir.as_fd(), c"file")), Errno::INVAL);
}

#[test]
fn attributes_change_through_path_descriptors() {
    let (_keep, dir) = place();
    let (file, link) = (o_path(&dir, c"file"), o_path(&dir, c"link"));
    chmod_fd(file.as_fd(), 0o4750).unwrap();
    assert_eq!(stat(dir.as_fd(), c"file").unwrap().mode & 0o7777, 0o4750);
    assert_eq!(failed(chmod_fd(link.as_fd(), 0o600)), Errno::OPNOTSUPP);
    let before = stat(dir.as_fd(), c"file").unwrap();
    let moment = Time { sec: -5, nsec: 7 };
    let times = Times { atime: SetTime::Omit, mtime: SetTime::At(moment) };
    utimens_fd(file.as_fd(), times).unwrap();
    let after = stat(dir.as_fd(), c"file").unwrap();
    assert_eq!((after.atime, after.mtime), (before.atime, moment));
    utimens_fd(link.as_fd(), Times { atime: SetTime::Now, mtime: SetTime::At(Time::default()) }).unwrap();
    assert_eq!(stat(dir.as_fd(), c"link").unwrap().mtime, Time::default());
    assert_eq!(stat(dir.as_fd(), c"file").unwrap().mtime, moment);
}

#[test]
fn owners_change_on_the_object_itself() {
    let (_keep, dir) = place();
    let link = o_path(&dir, c"link");
    let before = stat(dir.as_fd(), c"link").unwrap();
    chown_fd(link.as_fd(), Some(before.uid), None).unwrap();
    assert_eq!(failed(chown_fd(link.as_fd(), Some(u32::MAX), None)), Errno::INVAL);
    if rustix::process::geteuid().is_root() {
        chown_fd(link.as_fd(), Some(12), Some(34)).unwrap();
        let (link, file) = (stat(dir.as_fd(), c"link").unwrap(), stat(dir.as_fd(), c"file").unwrap());
        assert_eq!((link.uid, link.gid, file.uid), (12, 34, before.uid));
    }
}
