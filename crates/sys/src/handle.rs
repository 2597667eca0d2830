//! File handles: names of files that outlive descriptors and renames.
#![allow(unsafe_code, reason = "file handles have no safe wrapper")]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::call::{Call, Result, call};

/// The most bytes that a handle has (`MAX_HANDLE_SZ`).
const HANDLE_MAX: usize = 128;

/// What a file system calls a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileHandle {
    /// How the file system made the bytes.
    pub kind: i32,
    /// What only the file system understands.
    pub bytes: Vec<u8>,
}

/// A `struct file_handle` with as many bytes as one can have.
#[repr(C)]
struct RawHandle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_MAX],
}

/// The handle of `name` in `dir`, links not followed; of `dir` itself if `name` is empty.
pub fn name_to_handle(dir: BorrowedFd<'_>, name: &CStr) -> Result<FileHandle> {
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    call(Call::Handle, || {
        let mut raw = RawHandle { len: 128, kind: 0, bytes: [0; HANDLE_MAX] };
        let mut mount: libc::c_int = 0;
        // SAFETY: `name` ends with NUL; `raw` has room for the `len` bytes it announces, `mount` for an int.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                dir.as_raw_fd(),
                name.as_ptr(),
                &raw mut raw,
                &raw mut mount,
                flags,
            )
        };
        if answer < 0 {
            return Err(last_error());
        }
        let len = usize::try_from(raw.len).map_err(|_| Errno::OVERFLOW)?;
        let bytes = raw.bytes.get(..len).ok_or(Errno::OVERFLOW)?;
        Ok(FileHandle { kind: raw.kind, bytes: bytes.to_vec() })
    })
}

/// Opens the file that `handle` names on the file system of `mount`; `ESTALE` if it is gone.
///
/// Needs `CAP_DAC_READ_SEARCH`: no directory on the way is asked.
pub fn open_handle(mount: BorrowedFd<'_>, handle: &FileHandle, flags: OFlags) -> Result<OwnedFd> {
    // Flags are a C int, whatever sign the wrapper gives them.
    let flags = (flags | OFlags::CLOEXEC).bits().cast_signed();
    call(Call::Handle, || {
        let len = u32::try_from(handle.bytes.len()).map_err(|_| Errno::INVAL)?;
        let mut raw = RawHandle { len, kind: handle.kind, bytes: [0; HANDLE_MAX] };
        raw.bytes.get_mut(..handle.bytes.len()).ok_or(Errno::INVAL)?.copy_from_slice(&handle.bytes);
        // SAFETY: `raw` has the `len` bytes it announces; the kernel only reads it.
        let answer =
            unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut raw, flags) };
        if answer < 0 {
            return Err(last_error());
        }
        let fd = libc::c_int::try_from(answer).map_err(|_| Errno::BADF)?;
        // SAFETY: the descriptor was just made, and nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    })
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_handle_finds_its_file_after_a_rename() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("before"), "told").unwrap();
        let fd = File::open(dir.path()).unwrap();
        let handle = match name_to_handle(fd.as_fd(), c"before") {
            Err(error) if error.errno == Errno::OPNOTSUPP => return println!("skipped: no handles here"),
            answer => answer.unwrap(),
        };
        std::fs::rename(dir.path().join("before"), dir.path().join("after")).unwrap();
        assert_eq!(name_to_handle(fd.as_fd(), c"after").unwrap(), handle);
        match open_handle(fd.as_fd(), &handle, OFlags::RDONLY) {
            Err(error) if error.errno == Errno::PERM => println!("skipped: may not open handles"),
            opened => {
                let mut text = String::new();
                File::from(opened.unwrap()).read_to_string(&mut text).unwrap();
                assert_eq!(text, "told");
            }
        }
    }

    #[test]
    fn an_empty_name_is_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let (above, sub) = (File::open(dir.path()).unwrap(), File::open(dir.path().join("sub")).unwrap());
        assert_eq!(name_to_handle(sub.as_fd(), c""), name_to_handle(above.as_fd(), c"sub"));
    }

    #[test]
    fn errors_are_labelled() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        let missing = name_to_handle(fd.as_fd(), c"missing").unwrap_err();
        assert_eq!((missing.call, missing.errno), (Call::Handle, Errno::NOENT));
        let long = FileHandle { kind: 1, bytes: vec![0; HANDLE_MAX + 1] };
        assert_eq!(open_handle(fd.as_fd(), &long, OFlags::RDONLY).unwrap_err().errno, Errno::INVAL);
    }
}
