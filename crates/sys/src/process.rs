//! The process: fork into the background, signals as events, and whether another process lives.
#![allow(unsafe_code, reason = "fork, signal masks and signalfd have no safe wrapper")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, getrlimit, setrlimit};

/// On which side of a fork the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The process that forked, and the child's process id.
    Parent(i32),
    /// The new process.
    Child,
}

/// Forks the process, which must be single-threaded: an error (`EBUSY`) otherwise.
///
/// A child of a threaded process would find locks held by threads that it does not have.
pub fn fork() -> io::Result<Fork> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(Errno::BUSY.into());
    }
    // SAFETY: the process has this one thread, so that the child may do whatever the parent may. Another
    // thread can only be started by this one, which is here.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent(child)),
    }
}

/// Makes the process lead a new session, without a terminal.
pub fn setsid() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// Whether the process leads its session. In a container the session may be one from outside, which has the number 0
/// there: no process id, so that rustix's `getsid` must not be asked.
pub fn leads_session() -> bool {
    // SAFETY: takes and returns integers.
    let session = unsafe { libc::getsid(0) };
    u32::try_from(session) == Ok(std::process::id())
}

/// Whether `group` is one of the supplementary groups of the thread `pid`, as its status in proc(5) says. Nobody who cannot
/// be seen from here has any.
pub fn has_group(pid: u32, group: u32) -> bool {
    status_of(pid).is_some_and(|status| ids_in(&status, "Groups:").any(|known| known == group))
}

/// The supplementary groups of the thread `pid`, if it acts on files as `uid` and `gid`; None if it cannot be seen from
/// here, or acts as somebody else: its number may have been given to another thread.
pub fn groups_of(pid: u32, uid: u32, gid: u32) -> Option<Vec<u32>> {
    // Real, effective, saved, file system.
    const FILE_SYSTEM: usize = 3;
    let status = status_of(pid)?;
    let acts_as = |line, id| ids_in(&status, line).nth(FILE_SYSTEM) == Some(id);
    (acts_as("Uid:", uid) && acts_as("Gid:", gid)).then(|| ids_in(&status, "Groups:").collect())
}

fn status_of(pid: u32) -> Option<String> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    Some(String::from_utf8_lossy(&status).into_owned())
}

/// The numbers in the line of `status` that begins with `title`.
fn ids_in<'a>(status: &'a str, title: &str) -> impl Iterator<Item = u32> + use<'a> {
    let ids = status.lines().find_map(|line| line.strip_prefix(title)).unwrap_or_default();
    ids.split_ascii_whitespace().filter_map(|id| id.parse().ok())
}

/// Gives memory that was freed back to the system, where the C library would keep it.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer, may be called by any thread at any time, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Takes the process's limit on the size of files away, as far as it may. A write beyond what is left of it is EFBIG,
/// and does not kill the process.
pub fn lift_file_size_limit() {
    let limit = getrlimit(Resource::Fsize);
    let lifted = [Rlimit { current: None, maximum: None }, Rlimit { current: limit.maximum, ..limit }];
    let _ = lifted.into_iter().any(|lifted| setrlimit(Resource::Fsize, lifted).is_ok());
    // SAFETY: takes two constants; no handler runs, and the signal exists.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// A pipe by which a child tells that it is ready: the end to read and the end to write. Closed on exec.
pub fn readiness_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// Closes every descriptor beyond the standard ones: those that the starting program left open to this one.
///
/// For the start of a program, which owns none yet: an error (`EBUSY`) where other threads run.
pub fn close_inherited() -> io::Result<()> {
    let alone = std::fs::read_dir("/proc/self/task")?.count() == 1;
    if !alone {
        return Err(Errno::BUSY.into());
    }
    // SAFETY: takes three integers. The process has one thread, which owns no descriptor yet: what is closed was open
    // before the program began, so that no owner loses its descriptor.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes standard input, output and error `/dev/null`.
pub fn redirect_stdio_to_null() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for standard in 0..=2 {
        // SAFETY: takes two integers; `null` is open, and the standard descriptors belong to the process as a
        // whole: nothing owns them, so that nothing loses what it owns.
        if unsafe { libc::dup2(null.as_raw_fd(), standard) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // Opened where a standard descriptor was missing, it is that descriptor now and must stay.
    if null.as_raw_fd() <= 2 {
        rustix::io::fcntl_setfd(&null, rustix::io::FdFlags::empty())?;
        std::mem::forget(null);
    }
    Ok(())
}

/// Waits for child `pid` to end: its exit code, or 128 + the signal that killed it, as shells say it.
pub fn wait_for(pid: i32) -> io::Result<i32> {
    let child = known(pid).ok_or(Errno::CHILD)?;
    let ended = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(child), WaitOptions::empty()))?;
    let (_, status) = ended.ok_or(Errno::CHILD)?;
    let killed = || status.terminating_signal().map(|signal| 128 + signal);
    Ok(status.exit_status().or_else(killed).ok_or(Errno::CHILD)?)
}

/// A process id that names one process: not 0 (the caller's group) and not negative (a group).
fn known(pid: i32) -> Option<Pid> {
    if pid > 0 { Pid::from_raw(pid) } else { None }
}

/// A signal that a daemon takes as an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are named after the signals")]
pub enum Signal {
    Term,
    Int,
    Hup,
    Usr1,
    Usr2,
}

impl Signal {
    const ALL: [Self; 5] = [Self::Term, Self::Int, Self::Hup, Self::Usr1, Self::Usr2];

    const fn number(self) -> libc::c_int {
        match self {
            Self::Term => libc::SIGTERM,
            Self::Int => libc::SIGINT,
            Self::Hup => libc::SIGHUP,
            Self::Usr1 => libc::SIGUSR1,
            Self::Usr2 => libc::SIGUSR2,
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| u32::try_from(signal.number()) == Ok(number))
    }
}

fn set_of(signals: &[Signal]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is to memory for one set, which the call fills.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in signals {
        // SAFETY: the pointer is to a set filled above; the number is of a signal that exists.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal.number()) };
    }
    // SAFETY: `sigemptyset` initialized it, and cannot fail with a valid pointer.
    unsafe { set.assume_init() }
}

/// Blocks `signals` in the calling thread and the threads that it starts from now on.
pub fn block_signals(signals: &[Signal]) -> io::Result<()> {
    let set = set_of(signals);
    // SAFETY: the set is initialized and outlives the call; the old mask is not asked for.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Blocked signals, to be read as events.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// For `signals`, which every thread must have blocked ([`block_signals`]) to see them here.
    pub fn new(signals: &[Signal]) -> io::Result<Self> {
        let set = set_of(signals);
        // SAFETY: the set is initialized and outlives the call.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits for the next one.
    pub fn wait(&self) -> io::Result<Signal> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut info))?;
        // `ssi_signo` is the first field.
        let number = info.first_chunk().copied().map_or(0, u32::from_ne_bytes);
        Signal::from_number(number).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether there is a process `pid`, be it ours to signal or not.
pub fn is_alive(pid: i32) -> bool {
    known(pid).is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// Whether the thread `pid` runs a program, and is no thread of the kernel's. False where proc(5) does not tell. Takes no
/// descriptor.
pub fn is_program(pid: u32) -> bool {
    let program = rustix::fs::readlink(format!("/proc/{pid}/exe"), Vec::new());
    pid != 0 && program.err() != Some(Errno::NOENT)
}

/// How many descriptors the process has open, if proc(5) tells; and its limit of them.
pub fn descriptors() -> (Option<u64>, u64) {
    let counted = || u64::try_from(std::fs::read_dir("/proc/self/fd").ok()?.count()).ok();
    // Linux 6.2 and later tell the number as the directory's size: no descriptor is needed to ask.
    let told = std::fs::metadata("/proc/self/fd").ok().map(|dir| dir.len()).filter(|open| 0 < *open);
    (told.or_else(counted), getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// When process `pid` started, in clock ticks since boot: with the id it names a process for good. None if it
/// has ended, even if nobody has asked for its exit status yet.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may have spaces and parentheses: the last one closes it. Start time is field 22, the state 3.
    let named = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[named + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let lives = !matches!(fields.next()?, "Z" | "X");
    fields.nth(22 - 4)?.parse().ok().filter(|_| lives)
}

/// Sets the file mode creation mask of the process (of the thread, where it is the thread's own).
pub fn umask(mask: u32) -> u32 {
    rustix::process::umask(Mode::from_raw_mode(mask & 0o777)).as_raw_mode()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_pid() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    #[test]
    fn a_threaded_process_does_not_fork() {
        std::thread::spawn(|| {
            assert_eq!(fork().unwrap_err().raw_os_error(), Some(libc::EBUSY));
        })
        .join()
        .unwrap();
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "it is waited for by the function under test")]
    fn children_are_waited_for() {
        let run = |script: &str| {
            let child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
            wait_for(i32::try_from(child.id()).unwrap()).unwrap()
        };
        assert_eq!(run("exit 7"), 7);
        assert_eq!(run("kill -TERM $$"), 128 + libc::SIGTERM);
        assert!(wait_for(0).is_err());
        assert!(wait_for(-1).is_err());
    }

    #[test]
    fn processes_are_alive_and_started() {
        assert!(is_alive(own_pid()));
        assert!(!is_alive(0) && !is_alive(i32::MAX));
        assert!(start_time(own_pid()).unwrap() > 0);
        assert_eq!(start_time(i32::MAX), None);
    }

    #[test]
    fn programs_are_told_from_the_kernels_threads() {
        assert!(is_program(std::process::id()));
        assert!(!is_program(0) && !is_program(u32::MAX));
        // The kernel's first thread, in a container a process or nobody.
        let kernels = std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
        assert!(!kernels || !is_program(2));
    }

    #[test]
    fn descriptors_are_counted() {
        let (before, limit) = descriptors();
        let held: Vec<_> = (0..100).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let (with, _) = descriptors();
        // Other tests of this process open and close some meanwhile.
        assert!(before.unwrap() + 50 < with.unwrap() && with.unwrap() <= limit);
        drop(held);
    }

    #[test]
    fn signals_arrive_as_events() {
        std::thread::spawn(|| {
            let wanted = [Signal::Usr1, Signal::Usr2];
            block_signals(&wanted).unwrap();
            let events = SignalFd::new(&wanted).unwrap();
            // SAFETY: signals this thread, which lives and has the signal blocked.
            unsafe { libc::raise(libc::SIGUSR2) };
            assert_eq!(events.wait().unwrap(), Signal::Usr2);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn readiness_is_told_through_the_pipe() {
        let (read, write) = readiness_pipe().unwrap();
        rustix::io::write(&write, b"r").unwrap();
        let mut told = [0; 2];
        assert_eq!(rustix::io::read(&read, &mut told).unwrap(), 1);
        drop(write);
        assert_eq!(rustix::io::read(&read, &mut told).unwrap(), 0);
    }
}
