//! A process that goes on as another program: state in a sealed memory file, descriptors that outlive exec, the exec itself, and
//! threads that are woken from a call to come to rest before it.
#![allow(
    unsafe_code,
    reason = "inherited descriptors, execveat, signal handlers and tgkill have no safe wrapper"
)]

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};

/// Nobody changes the content any more, not even its maker.
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// A file in memory with this content, which nobody can change. Closed on exec.
///
/// # Errors
/// There is no memory, or no descriptor left.
pub fn sealed_file(name: &str, parts: &[&[u8]]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    parts.iter().try_for_each(|part| file.write_all(part))?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// The content of a file made by [`sealed_file`].
///
/// # Errors
/// EPERM if it could be changed while it is read; what the system said.
pub fn read_sealed(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    if !fcntl_get_seals(fd)?.contains(SEALS) {
        return Err(Errno::PERM.into());
    }
    let mut file = File::from(fd.try_clone_to_owned()?);
    file.rewind()?;
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(content)
}

/// Whether a program that this process becomes has the descriptor too.
///
/// # Errors
/// It is not open.
pub fn set_kept(fd: BorrowedFd<'_>, kept: bool) -> io::Result<()> {
    let flags = if kept { FdFlags::empty() } else { FdFlags::CLOEXEC };
    Ok(fcntl_setfd(fd, flags)?)
}

/// Descriptors that the program before this one left open, by their numbers: each is taken once.
///
/// There is one such list in a process, made before it opens anything else that stays open.
#[derive(Debug)]
pub struct Inherited {
    left: std::collections::HashSet<RawFd>,
}

impl Inherited {
    /// The descriptors `numbers`, all of which must be open and must have been left open over exec.
    ///
    /// # Errors
    /// EBADF: one of them is not open, was opened by this program, or is one of the standard streams; EEXIST: one is named twice.
    pub fn new(numbers: impl IntoIterator<Item = RawFd>) -> io::Result<Self> {
        let mut left = std::collections::HashSet::new();
        for number in numbers {
            // SAFETY: only asked for its flags; a number that is not open is answered by EBADF.
            let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
            if number <= 2 || flags < 0 || flags & libc::FD_CLOEXEC != 0 {
                return Err(Errno::BADF.into());
            }
            if !left.insert(number) {
                return Err(Errno::EXIST.into());
            }
        }
        Ok(Self { left })
    }

    /// Takes the descriptor `number`. It stays open over a further exec until [`set_kept`] says otherwise.
    ///
    /// # Errors
    /// EBADF: it is not on the list, or was taken.
    pub fn take(&mut self, number: RawFd) -> io::Result<OwnedFd> {
        if !self.left.remove(&number) {
            return Err(Errno::BADF.into());
        }
        // SAFETY: it was open without FD_CLOEXEC, which nothing that this program opens is, so no object here owns it; it is off
        // the list, so it is taken once.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

impl Inherited {
    /// A copy of the descriptor `number`, which stays on the list: for what may fail, and is to be handed on then.
    ///
    /// # Errors
    /// EBADF: it is not on the list; no descriptor is left.
    pub fn copy(&self, number: RawFd) -> io::Result<OwnedFd> {
        if !self.left.contains(&number) {
            return Err(Errno::BADF.into());
        }
        copy_of(number)
    }

    /// Numbers of those that were not taken.
    pub fn numbers(&self) -> Vec<RawFd> {
        self.left.iter().copied().collect()
    }

    /// Closes what was not taken.
    pub fn close_rest(mut self) {
        let left: Vec<RawFd> = self.left.iter().copied().collect();
        left.into_iter().for_each(|number| drop(self.take(number)));
    }
}

/// Sets whether a program that this process becomes has these descriptors too.
///
/// # Errors
/// EBADF: one of them is not open.
pub fn set_all_kept(numbers: &[RawFd], kept: bool) -> io::Result<()> {
    let flags = if kept { 0 } else { libc::FD_CLOEXEC };
    for number in numbers {
        // SAFETY: changes a flag of the descriptor, on which no memory or ownership depends.
        if unsafe { libc::fcntl(*number, libc::F_SETFD, flags) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A copy of the descriptor `number`.
///
/// # Errors
/// EBADF: it is not open; no descriptor is left.
pub fn copy_of(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: duplicated only; a number that is not open is answered by EBADF.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// All descriptors of the process but the standard ones are closed on exec from now on.
///
/// # Errors
/// The kernel is older than Linux 5.11.
pub fn keep_none() -> io::Result<()> {
    // SAFETY: takes three integers, and changes a flag only.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Becomes the program behind `program`, with this environment: returns only where it cannot. All other threads end.
pub fn become_file(program: BorrowedFd<'_>, arguments: &[impl AsRef<OsStr>]) -> io::Error {
    let plain = |text: &OsStr| CString::new(text.as_bytes());
    let arguments: Result<Vec<CString>, _> =
        arguments.iter().map(|argument| plain(argument.as_ref())).collect();
    let joined = std::env::vars_os().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        name
    });
    let environment: Result<Vec<CString>, _> = joined.map(|pair| plain(&pair)).collect();
    let (Ok(arguments), Ok(environment)) = (arguments, environment) else { return Errno::INVAL.into() };
    let ended = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = ((ended(&arguments), &arguments), (ended(&environment), &environment));
    // SAFETY: the path is an empty string with its zero; both lists end with a null pointer, and their texts, with a zero each, live
    // in the vectors beside them until the call returns.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.0.as_ptr(),
            environment.0.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Opens a program that root runs.
///
/// # Errors
/// It cannot be opened, or is not a regular file that root owns, can run, and alone can write to.
pub fn open_program(path: &Path) -> io::Result<File> {
    // A FIFO would wait for a writer.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let stat = rustix::fs::fstat(&file)?;
    let regular = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile;
    if regular && stat.st_uid == 0 && stat.st_mode & 0o022 == 0 && stat.st_mode & 0o100 != 0 {
        return Ok(file);
    }
    Err(io::Error::other(
        "not a program that root alone can write to: chown root and chmod go-w, or name another with --program",
    ))
}

/// The signal that wakes a thread from a call: it does nothing else, and is ignored by default.
const WAKE: libc::c_int = libc::SIGURG;

extern "C" fn nothing(_: libc::c_int) {}

/// From now on [`wake`] makes a thread's call return EINTR.
///
/// # Errors
/// What the system said.
pub fn prepare_to_wake() -> io::Result<()> {
    // SAFETY: all zero is a valid value: no flags (calls are not restarted), an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as libc::sighandler_t;
    // SAFETY: the handler does nothing, which is safe at any moment; the action is read only.
    match unsafe { libc::sigaction(WAKE, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the call that thread `thread` of this process is in return EINTR, if it can be interrupted. Only after [`prepare_to_wake`].
pub fn wake(thread: i32) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: takes integers; the handler of the signal does nothing. A thread that is gone is answered by ESRCH.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, WAKE) };
}

/// The calling thread's number.
pub fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Time since the machine's start, which goes on over exec.
pub fn since_boot() -> std::time::Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    std::time::Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Flags of a descriptor: whether it is closed on exec.
///
/// # Errors
/// It is not open.
pub fn is_kept(fd: impl AsFd) -> io::Result<bool> {
    Ok(!fcntl_getfd(fd)?.contains(FdFlags::CLOEXEC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_read_back_and_cannot_change() {
        let file = sealed_file("test", &[b"ab", b"", b"c"]).unwrap();
        assert_eq!(read_sealed(file.as_fd()).unwrap(), b"abc");
        assert_eq!(read_sealed(file.as_fd()).unwrap(), b"abc", "from its beginning");
        let mut file = File::from(file);
        assert_eq!(file.write_all(b"x").unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert!(file.set_len(0).is_err());
        let unsealed = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert_eq!(read_sealed(unsealed.as_fd()).unwrap_err().raw_os_error(), Some(libc::EPERM));
        let plain = tempfile::tempfile().unwrap();
        assert!(read_sealed(plain.as_fd()).is_err());
    }

    #[test]
    fn only_descriptors_that_outlive_exec_are_inherited_and_each_once() {
        let file = tempfile::tempfile().unwrap();
        assert!(Inherited::new([file.as_raw_fd()]).is_err(), "closed on exec");
        set_kept(file.as_fd(), true).unwrap();
        assert!(is_kept(&file).unwrap());
        let number = std::os::fd::IntoRawFd::into_raw_fd(file);
        assert!(Inherited::new([number, number]).is_err());
        assert!(Inherited::new([1]).is_err() && Inherited::new([-1]).is_err());
        let mut inherited = Inherited::new([number]).unwrap();
        let taken = inherited.take(number).unwrap();
        assert!(inherited.take(number).is_err());
        drop(taken);
    }

    #[test]
    fn a_thread_is_woken_from_a_read() {
        prepare_to_wake().unwrap();
        let (end, _other) = crate::process::readiness_pipe().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            tell.send(this_thread()).unwrap();
            rustix::io::read(&end, &mut [0; 1])
        });
        let thread = told.recv().unwrap();
        while !reader.is_finished() {
            wake(thread);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(reader.join().unwrap(), Err(Errno::INTR));
    }
}
