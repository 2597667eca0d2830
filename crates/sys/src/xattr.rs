//! Extended attributes; a symbolic link is not followed.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::at::procfd::ProcFd;
use crate::call::{Call, Result, SysError, call};

/// Buffer size of the first attempt at a value or a list.
const FIRST_GUESS: usize = 256;

/// Largest value and largest list, in bytes.
const LARGEST: usize = 64 << 10;

/// The object of a call.
#[derive(Clone, Copy, Debug)]
pub enum On<'a> {
    /// This name in a directory, whose descriptor may be `O_PATH`.
    Name(BorrowedFd<'a>, &'a CStr),
    /// The object of a descriptor, `O_PATH` or not.
    Fd(BorrowedFd<'a>),
    /// The object of a descriptor that is `O_PATH`, which spares an attempt.
    Path(BorrowedFd<'a>),
}

/// How a call addresses its object.
enum By<'a> {
    /// By descriptor: the f* calls.
    Fd(BorrowedFd<'a>),
    /// By the magic link in /proc, with the calls that follow links.
    Magic(&'a CStr),
    /// By a path whose last component is not followed, with the l* calls.
    Path(&'a CStr),
}

/// Makes the call by the first address that works for `on`.
fn attempt_on<T>(
    which: Call,
    on: On<'_>,
    mut attempt: impl FnMut(By<'_>) -> rustix::io::Result<T>,
) -> Result<T> {
    match on {
        On::Name(dir, name) => {
            let path = ProcFd::entry(dir, name).map_err(|errno| SysError::new(which, errno))?;
            call(which, || attempt(By::Path(path.as_c_str())))
        }
        On::Fd(fd) => match call(which, || attempt(By::Fd(fd))) {
            // The f* calls refuse `O_PATH` with EBADF.
            Err(SysError { errno: Errno::BADF, .. }) => attempt_on(which, On::Path(fd), attempt),
            done => done,
        },
        On::Path(fd) => {
            let path = ProcFd::of(fd);
            call(which, || attempt(By::Magic(path.as_c_str())))
        }
    }
}

/// Reads a value into `buf` and returns its length. ERANGE if it does not fit; an empty `buf` only returns the length.
pub fn get(on: On<'_>, name: &CStr, buf: &mut [u8]) -> Result<usize> {
    use rustix::fs::{fgetxattr, fgetxattr_query, getxattr, getxattr_query, lgetxattr, lgetxattr_query};
    let asks = buf.is_empty();
    attempt_on(Call::Getxattr, on, |way| match way {
        By::Fd(fd) if asks => fgetxattr_query(fd, name),
        By::Fd(fd) => fgetxattr(fd, name, &mut *buf),
        By::Magic(path) if asks => getxattr_query(path, name),
        By::Magic(path) => getxattr(path, name, &mut *buf),
        By::Path(path) if asks => lgetxattr_query(path, name),
        By::Path(path) => lgetxattr(path, name, &mut *buf),
    })
}

/// Returns a value.
pub fn get_vec(on: On<'_>, name: &CStr) -> Result<Vec<u8>> {
    whole(|buf| get(on, name, buf))
}

/// `XATTR_CREATE`: the attribute must not exist.
pub const CREATE: u32 = XattrFlags::CREATE.bits();
/// `XATTR_REPLACE`: the attribute must exist.
pub const REPLACE: u32 = XattrFlags::REPLACE.bits();

/// Sets a value; `flags` consists of `XATTR_CREATE` and `XATTR_REPLACE`.
pub fn set(on: On<'_>, name: &CStr, value: &[u8], flags: u32) -> Result<()> {
    use rustix::fs::{fsetxattr, lsetxattr, setxattr};
    let flags = XattrFlags::from_bits_retain(flags);
    attempt_on(Call::Setxattr, on, |way| match way {
        By::Fd(fd) => fsetxattr(fd, name, value, flags),
        By::Magic(path) => setxattr(path, name, value, flags),
        By::Path(path) => lsetxattr(path, name, value, flags),
    })
}

/// Reads the names, each followed by a NUL, into `buf` and returns their length. ERANGE if they do not fit; an empty
/// `buf` only returns the length.
pub fn list(on: On<'_>, buf: &mut [u8]) -> Result<usize> {
    use rustix::fs::{
        flistxattr, flistxattr_query, listxattr, listxattr_query, llistxattr, llistxattr_query,
    };
    let asks = buf.is_empty();
    attempt_on(Call::Listxattr, on, |way| match way {
        By::Fd(fd) if asks => flistxattr_query(fd),
        By::Fd(fd) => flistxattr(fd, &mut *buf),
        By::Magic(path) if asks => listxattr_query(path),
        By::Magic(path) => listxattr(path, &mut *buf),
        By::Path(path) if asks => llistxattr_query(path),
        By::Path(path) => llistxattr(path, &mut *buf),
    })
}

/// Returns the names, each followed by a NUL.
pub fn list_vec(on: On<'_>) -> Result<Vec<u8>> {
    whole(|buf| list(on, buf))
}

/// Removes an attribute.
pub fn remove(on: On<'_>, name: &CStr) -> Result<()> {
    use rustix::fs::{fremovexattr, lremovexattr, removexattr};
    attempt_on(Call::Removexattr, on, |way| match way {
        By::Fd(fd) => fremovexattr(fd, name),
        By::Magic(path) => removexattr(path, name),
        By::Path(path) => lremovexattr(path, name),
    })
}

/// Calls `read` with growing buffers until everything fits, also if it grows between two attempts.
fn whole(read: impl Fn(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; FIRST_GUESS];
    loop {
        match read(&mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                return Ok(bytes);
            }
            Err(SysError { errno: Errno::RANGE, .. }) if bytes.len() < LARGEST => {
                let len = read(&mut [])?;
                bytes.resize(len.max(2 * bytes.len()), 0);
            }
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::at;
    use rustix::fs::OFlags;
    use std::fs::File;
    use std::os::fd::{AsFd as _, OwnedFd};

    /// A directory with a file, a directory and a symbolic link to the file, in a file system with attributes.
    fn place() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join("file")).unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        let fd = at::open_root(dir.path()).unwrap();
        (dir, fd)
    }

    fn by_path(dir: &OwnedFd, name: &CStr) -> OwnedFd {
        at::open(dir.as_fd(), name, OFlags::PATH, 0, at::Mounts::Stay).unwrap()
    }

    fn round_trip(on: On<'_>, name: &CStr) {
        let listed = || list_vec(on).unwrap().split(|&byte| byte == 0).any(|found| found == name.to_bytes());
        set(on, name, b"value", 0).unwrap();
        assert_eq!(set(on, name, b"", XattrFlags::CREATE.bits()).unwrap_err().errno, Errno::EXIST);
        assert_eq!(get(on, name, &mut []).unwrap(), 5);
        assert_eq!(get(on, name, &mut [0; 3]).unwrap_err().errno, Errno::RANGE);
        assert_eq!(get_vec(on, name).unwrap(), b"value");
        assert!(listed());
        assert_eq!(list(on, &mut []).unwrap(), list_vec(on).unwrap().len());
        remove(on, name).unwrap();
        assert!(!listed());
        assert_eq!(get_vec(on, name).unwrap_err(), SysError::new(Call::Getxattr, Errno::NODATA));
    }

    #[test]
    fn files_and_directories_by_name_and_by_descriptor() {
        let (_keep, dir) = place();
        for name in [c"file", c"sub"] {
            round_trip(On::Name(dir.as_fd(), name), c"user.test");
            let path = by_path(&dir, name);
            round_trip(On::Fd(path.as_fd()), c"user.test");
            round_trip(On::Path(path.as_fd()), c"user.test");
            let real = at::reopen(path.as_fd(), OFlags::RDONLY).unwrap();
            round_trip(On::Fd(real.as_fd()), c"user.test");
        }
        round_trip(On::Fd(dir.as_fd()), c"user.test");
    }

    #[test]
    fn a_symbolic_link_is_never_followed() {
        let (_keep, dir) = place();
        set(On::Name(dir.as_fd(), c"file"), c"user.test", b"of the file", 0).unwrap();
        let link = by_path(&dir, c"link");
        for on in [On::Name(dir.as_fd(), c"link"), On::Fd(link.as_fd()), On::Path(link.as_fd())] {
            assert!(get_vec(on, c"user.test").is_err());
            assert_eq!(set(on, c"user.test", b"", 0).unwrap_err().errno, Errno::PERM);
            assert!(!list_vec(on).unwrap().starts_with(b"user.test\0"));
            match set(on, c"trusted.test", b"", 0) {
                Ok(()) => round_trip_again(on),
                Err(e) => assert!(matches!(e.errno, Errno::PERM | Errno::OPNOTSUPP), "{e}"),
            }
        }
    }

    fn round_trip_again(on: On<'_>) {
        remove(on, c"trusted.test").unwrap();
        round_trip(on, c"trusted.test");
    }

    #[test]
    fn values_and_lists_of_any_length() {
        let (_keep, dir) = place();
        let on = On::Name(dir.as_fd(), c"file");
        let value = vec![7; 3000];
        set(on, c"user.long", &value, 0).unwrap();
        assert_eq!(get_vec(on, c"user.long").unwrap(), value);
        remove(on, c"user.long").unwrap();
        for number in 0..40 {
            let name = std::ffi::CString::new(format!("user.attribute-{number}")).unwrap();
            set(on, &name, b"", 0).unwrap();
        }
        let names = list_vec(on).unwrap();
        assert_eq!(names.split(|&byte| byte == 0).filter(|name| name.starts_with(b"user.")).count(), 40);
    }
}
