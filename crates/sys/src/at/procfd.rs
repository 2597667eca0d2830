//! Paths below `/proc/self/fd`, for calls that take a path but no descriptor.

use std::ffi::CStr;
use std::io::{Cursor, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::Errno;

use crate::call::{Call, Result, call};

/// Longest path with its NUL: prefix, digits of a descriptor, a slash and a name of 255 bytes.
const PATH_MAX: usize = 300;

/// A path on the stack, so that building one allocates nothing.
pub(crate) struct ProcFd([u8; PATH_MAX]);

impl ProcFd {
    /// `/proc/self/fd/N`: a magic link to the object itself, even if that is a symbolic link or has no name left.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Self {
        let mut path = Cursor::new([0; PATH_MAX]);
        // A prefix and ten digits fit.
        let _ = write!(path, "/proc/self/fd/{}", fd.as_raw_fd());
        Self(path.into_inner())
    }

    /// `/proc/self/fd/N/name`.
    pub(crate) fn entry(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Self> {
        let mut path = Self::of(dir);
        let used = path.as_c_str().count_bytes();
        let name = name.to_bytes();
        let end = used + 1 + name.len();
        if PATH_MAX <= end {
            return Err(Errno::NAMETOOLONG);
        }
        path.0[used] = b'/';
        path.0[used + 1..end].copy_from_slice(name);
        Ok(path)
    }

    /// The path.
    pub(crate) fn as_c_str(&self) -> &CStr {
        // The last byte is always NUL: see the bound in `entry`.
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// Location of a file as the kernel knows it, relative to a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// Below the directory, by this path without a leading slash; empty for the directory itself.
    Below(Vec<u8>),
    /// Somewhere else.
    Elsewhere,
    /// The kernel reached the file without a name, as by a file handle.
    Unknown,
}

/// Returns the location of `fd` relative to the directory `root`, as the kernel knows it now.
///
/// A hint only: names move, so the caller resolves the path and compares what it finds.
pub fn whereabouts(root: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<Whereabouts> {
    let (above, path) = (shown(root)?, shown(fd)?);
    let below = match above.as_slice() {
        b"/" => path.strip_prefix(b"/"),
        above => path.strip_prefix(above).and_then(|below| match below {
            [] => Some(below),
            below => below.strip_prefix(b"/"),
        }),
    };
    Ok(match below {
        Some(below) => Whereabouts::Below(below.to_vec()),
        // The kernel prints `/` for a dentry that is connected to no directory.
        None if path == b"/" => Whereabouts::Unknown,
        None => Whereabouts::Elsewhere,
    })
}

/// Returns the path of `fd`, as the kernel shows it.
fn shown(fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let path = ProcFd::of(fd);
    let read = || rustix::fs::readlinkat(rustix::fs::CWD, path.as_c_str(), Vec::new());
    call(Call::Readlink, read).map(std::ffi::CString::into_bytes)
}

/// Returns the path below `root` of a file that was made with `O_TMPFILE` and has no name yet: linkat(2) may give it one there.
/// The kernel shows such a file as `#` and its inode number in its directory (`d_mark_tmpfile` of Linux, fs/dcache.c), on FUSE as `/`.
/// `None` for any other file.
pub fn unnamed_below(root: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<Option<Vec<u8>>> {
    const REMOVED: &[u8] = b" (deleted)";
    let stat = super::stat_fd(fd)?;
    if stat.nlink > 0 {
        return Ok(None);
    }
    let Whereabouts::Below(path) = whereabouts(root, fd)? else { return Ok(None) };
    let name = format!("#{}", stat.ino);
    let path = path.strip_suffix(REMOVED).filter(|path| {
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        last == name.as_bytes() || last.is_empty()
    });
    Ok(path.map(<[u8]>::to_vec))
}

/// Returns the path of `fd` below the directory `root`. `None` if it lies elsewhere, has no name, or the kernel reached
/// it without one. A hint, like [`whereabouts`].
pub fn path_below(root: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<Option<Vec<u8>>> {
    Ok(match whereabouts(root, fd)? {
        Whereabouts::Below(path) => Some(path),
        Whereabouts::Elsewhere | Whereabouts::Unknown => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::fd::AsFd as _;

    #[test]
    fn the_path_below_a_directory_is_returned() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let open = |path: &str| std::fs::File::open(dir.path().join(path)).unwrap();
        let (root, deep) = (open(""), open("a/b"));
        let path = |root: &std::fs::File, fd: &std::fs::File| path_below(root.as_fd(), fd.as_fd()).unwrap();
        assert_eq!(path(&root, &deep), Some(b"a/b".to_vec()));
        assert_eq!(path(&root, &root), Some(Vec::new()));
        assert_eq!(path(&deep, &root), None);
        std::fs::create_dir(dir.path().join("ab")).unwrap();
        assert_eq!(path(&open("a"), &open("ab")), None);
        std::fs::rename(dir.path().join("a"), dir.path().join("c")).unwrap();
        assert_eq!(path(&root, &deep), Some(b"c/b".to_vec()));
    }

    #[test]
    fn the_longest_name_fits_and_a_longer_one_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let longest = CString::new(vec![b'n'; 255]).unwrap();
        let path = ProcFd::entry(file.as_fd(), &longest).unwrap();
        assert!(path.as_c_str().to_bytes().ends_with(longest.to_bytes()));
        assert_eq!(path.as_c_str().to_bytes(), {
            let mut whole = format!("/proc/self/fd/{}/", file.as_raw_fd()).into_bytes();
            whole.extend_from_slice(longest.to_bytes());
            whole
        });
        let longer = CString::new(vec![b'n'; 300]).unwrap();
        assert_eq!(ProcFd::entry(file.as_fd(), &longer).err(), Some(Errno::NAMETOOLONG));
    }
}
