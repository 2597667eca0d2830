//! A process that keeps another one's descriptors: both have one table of them, which outlives the other.
#![allow(
    unsafe_code,
    reason = "clone, waiting for signals and flags of descriptors by number have no safe wrapper"
)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::process::{Pid, WaitIdOptions, WaitOptions, waitpid};

use crate::Stat;
use crate::at::stat_kept;
use crate::process::Fork;

/// Signals that are handed on, with that of a child's end.
const SIGNALS: [libc::c_int; 6] =
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGCHLD];

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It ended itself, with this code.
    Exit(i32),
    /// A signal killed it.
    Killed(i32),
}

/// Forks the process, which must have one thread; the child has the same table of descriptors, not a copy: what one of them opens or
/// closes is open or closed for both, until one becomes another program.
///
/// # Errors
/// EBUSY if there are other threads; what the system said.
pub fn fork_with_same_descriptors() -> io::Result<Fork> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(Errno::BUSY.into());
    }
    let mut flags = libc::CLONE_FILES | libc::SIGCHLD;
    let thread = thread_id_of_libc();
    if !thread.is_null() {
        // The C library remembers the thread's number there; its own fork has the kernel put it right the same way.
        flags |= libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID;
    }
    let flags = libc::c_ulong::try_from(flags).map_err(io::Error::other)?;
    let none = std::ptr::null_mut::<libc::c_void>();
    // The order of the last two differs between architectures.
    let last = if cfg!(target_arch = "x86_64") { (thread, none) } else { (none, thread) };
    // SAFETY: without CLONE_VM it is a fork, and without a stack the child goes on with a copy of this one. The process has one
    // thread, so no lock is held by one that the child lacks. The address is that of a pid_t of the C library, or unused.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, none, none, last.0, last.1) };
    match i32::try_from(child) {
        Ok(0) => Ok(Fork::Child),
        Ok(child) if child > 0 => Ok(Fork::Parent(child)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where the C library has the number of this thread; null if that is not known.
fn thread_id_of_libc() -> *mut libc::c_void {
    let mut at: *mut libc::c_void = std::ptr::null_mut();
    if !cfg!(target_env = "gnu") {
        return at;
    }
    // SAFETY: the call stores one pointer at the address given.
    let told = unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut at) };
    if told == 0 { at } else { std::ptr::null_mut() }
}

/// Waits for the child `pid` to end, and hands signals on to it meanwhile. One that comes when the child has ended, or `is_ending`
/// says that it is about to, stays pending for this process.
///
/// # Errors
/// There is no such child.
pub fn attend(pid: i32, is_ending: impl Fn() -> bool) -> io::Result<Ended> {
    let child = Pid::from_raw(pid).filter(|_| pid > 0).ok_or(Errno::CHILD)?;
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is to memory for one set, which the call fills.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in SIGNALS {
        // SAFETY: the set was filled above; the signals exist.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: filled above.
    let set = unsafe { set.assume_init() };
    // SAFETY: the set is initialized and outlives the call; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    let mut options = WaitOptions::NOHANG;
    loop {
        // It may have ended before its signal was blocked.
        if let Some((_, status)) = rustix::io::retry_on_intr(|| waitpid(Some(child), options))? {
            match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => return Ok(Ended::Exit(code)),
                (None, Some(signal)) => return Ok(Ended::Killed(signal)),
                (None, None) => {}
            }
        }
        // SAFETY: the set is initialized; nothing more about the signal is asked for.
        let signal = unsafe { libc::sigwaitinfo(&raw const set, std::ptr::null_mut()) };
        if signal <= 0 || signal == libc::SIGCHLD {
            continue;
        }
        let has_ended = rustix::process::waitid(
            rustix::process::WaitId::Pid(child),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT,
        );
        // SAFETY: takes integers; the child is waited for by nobody else, so its number is still its own.
        unsafe { libc::kill(pid, signal) };
        // Asked after the signal was sent: a child that is about to end tells that first, and then looks for signals.
        if is_ending() || matches!(has_ended, Ok(Some(_))) {
            raise(1 << (signal - 1));
            options = WaitOptions::empty();
        }
    }
}

fn own_number() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Signals that wait for this process, and are blocked: a bit each. A process that ends takes them with it. Needs no call that a filter
/// of the daemon refuses.
pub fn pending() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let shared = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let bits = shared.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default();
    let ours = |signal: &libc::c_int| *signal != libc::SIGCHLD;
    bits & SIGNALS.iter().filter(|signal| ours(signal)).fold(0, |all, signal| all | 1 << (signal - 1))
}

/// Sends this process the signals of [`pending`] of another one.
pub fn raise(pending: u64) {
    for signal in SIGNALS.into_iter().filter(|signal| pending & (1 << (signal - 1)) != 0) {
        // SAFETY: takes integers.
        unsafe { libc::kill(own_number(), signal) };
    }
}

/// Ends the process at once: of its copy of the daemon's objects nothing is dropped.
pub fn end(code: i32) -> ! {
    // SAFETY: takes an integer, and does not return.
    unsafe { libc::_exit(code) }
}

/// A process of which somebody wants to know when it ends.
#[derive(Debug)]
pub struct Watched(OwnedFd);

impl Watched {
    /// Process `pid`.
    ///
    /// # Errors
    /// There is no such process; the kernel cannot watch one.
    pub fn new(pid: i32) -> io::Result<Self> {
        let process = Pid::from_raw(pid).filter(|_| pid > 0).ok_or(Errno::SRCH)?;
        Ok(Self(rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())?))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Error of the system call.
    pub fn wait(&self) -> io::Result<()> {
        self.poll(None).map(drop)
    }

    /// Waits for its end, at most for `limit`. False: it has not ended.
    ///
    /// # Errors
    /// Error of the system call.
    pub fn wait_for(&self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        self.poll(Some(&limit))
    }

    fn poll(&self, limit: Option<&Timespec>) -> io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, poll};
        let ended = rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&self.0, PollFlags::IN)], limit))?;
        Ok(ended != 0)
    }
}

/// Numbers of the open descriptors of this process, but the standard streams.
///
/// # Errors
/// proc(5) cannot be read.
pub fn descriptors() -> io::Result<Vec<RawFd>> {
    let listed = std::fs::read_dir("/proc/self/fd")?;
    let mut numbers: Vec<RawFd> = listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    // The listing's own descriptor is closed by now.
    numbers.retain(|number| stat_of(*number).is_ok());
    Ok(numbers)
}

/// Attributes of what the descriptor `number` leads to, as the kernel has them: no server of a file system is asked, which may hang.
///
/// # Errors
/// It is not open.
pub fn stat_of(number: RawFd) -> io::Result<Stat> {
    check_number(number)?;
    // SAFETY: not negative, and used for this call only; a number that is not open is answered by EBADF.
    stat_kept(unsafe { BorrowedFd::borrow_raw(number) }).map_err(|error| error.errno.into())
}

/// Flags that the descriptor `number` was opened with.
///
/// # Errors
/// It is not open.
pub fn flags_of(number: RawFd) -> io::Result<rustix::fs::OFlags> {
    check_number(number)?;
    // SAFETY: not negative, and used for this call only; a number that is not open is answered by EBADF.
    Ok(rustix::fs::fcntl_getfl(unsafe { BorrowedFd::borrow_raw(number) })?)
}

/// Refuses negative numbers, which `BorrowedFd` must not have.
fn check_number(number: RawFd) -> io::Result<()> {
    if number < 0 { Err(Errno::BADF.into()) } else { Ok(()) }
}

/// This program, to be run again: also where another one was installed in its place.
///
/// # Errors
/// proc(5) cannot be read.
pub fn own_program() -> io::Result<OwnedFd> {
    Ok(File::open("/proc/self/exe")?.into())
}

/// Takes the descriptor `number`, which the program before this one left open for it. For the start of a program, once for a number.
///
/// # Errors
/// It is not open.
pub fn take_first(number: RawFd) -> io::Result<OwnedFd> {
    let copy = crate::handover::copy_of(number)?;
    // SAFETY: it is open, this program has opened nothing with that number, and takes it once.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threaded_process_does_not_fork() {
        let tried = std::thread::spawn(|| fork_with_same_descriptors().map(drop)).join().unwrap();
        assert_eq!(tried.unwrap_err().raw_os_error(), Some(libc::EBUSY));
    }

    #[test]
    fn the_libc_knows_its_thread() {
        let at = thread_id_of_libc();
        assert!(!cfg!(target_env = "gnu") || !at.is_null());
    }
}
