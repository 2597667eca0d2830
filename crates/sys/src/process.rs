//! Process control: forking into the background, signals as events, state of other processes.
#![allow(unsafe_code, reason = "fork, signal masks and signalfd have no safe wrapper")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, getrlimit, setrlimit};

/// Bytes of a page of memory.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// Side of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The process that forked, with the child's process id.
    Parent(i32),
    /// The new process.
    Child,
}

/// Forks the process, which must have one thread; `EBUSY` otherwise.
///
/// In a child of a process with more threads, locks could be held by threads that do not exist there.
pub fn fork() -> io::Result<Fork> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(Errno::BUSY.into());
    }
    // SAFETY: the process has this one thread, so the child may do whatever the parent may. Only this thread could
    // start another one.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent(child)),
    }
}

/// Makes the process the leader of a new session without a terminal.
pub fn setsid() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// True if the process leads its session. In a container the session may come from outside and have number 0, which
/// rustix's `getsid` does not accept.
pub fn leads_session() -> bool {
    // SAFETY: takes and returns integers.
    let session = unsafe { libc::getsid(0) };
    u32::try_from(session) == Ok(std::process::id())
}

/// True if `group` is a supplementary group of thread `pid`, by its status in proc(5). False for threads that are not
/// visible.
pub fn has_group(pid: u32, group: u32) -> bool {
    status_of(pid).is_some_and(|status| ids_in(&status, "Groups:").any(|known| known == group))
}

/// Returns the file-system user and group of thread `pid`, by its status in proc(5). `None` for threads that are not visible.
pub fn file_system_ids(pid: u32) -> Option<(u32, u32)> {
    let status = status_of(pid)?;
    let id = |line| ids_in(&status, line).nth(FILE_SYSTEM);
    Some((id("Uid:")?, id("Gid:")?))
}

/// Returns the process of the thread `thread`, by its status in proc(5). `None` for threads that have ended or are not visible.
pub fn process_of(thread: u32) -> Option<u32> {
    let status = status_of(thread)?;
    ids_in(&status, "Tgid:").next()
}

/// Returns the supplementary groups of thread `pid` if its file-system ids are `uid` and `gid`. `None` if it is not
/// visible, or has other ids: its number may have been reused.
pub fn groups_of(pid: u32, uid: u32, gid: u32) -> Option<Vec<u32>> {
    let status = status_of(pid)?;
    let acts_as = |line, id| ids_in(&status, line).nth(FILE_SYSTEM) == Some(id);
    (acts_as("Uid:", uid) && acts_as("Gid:", gid)).then(|| ids_in(&status, "Groups:").collect())
}

/// Whether the thread `pid` may administer this system: CAP_SYS_ADMIN, in this process's user namespace. False where proc(5)
/// does not tell.
pub fn is_administrator(pid: u32) -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let effective = status_of(pid).and_then(|status| {
        let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    });
    effective.is_some_and(|set| set & 1 << CAP_SYS_ADMIN != 0) && shares_user_namespace(pid)
}

/// Whether the thread `pid` is in this process's user namespace: their users mean the same ones. False where proc(5) does
/// not tell.
pub fn shares_user_namespace(pid: u32) -> bool {
    let namespace = |of: &str| rustix::fs::readlink(format!("/proc/{of}/ns/user"), Vec::new()).ok();
    // The link takes the right to trace the process, which the daemon gives up. Where it cannot be read, a namespace with
    // the same users counts as the same: to make one takes the rights of them all.
    let users = |of: &str| std::fs::read(format!("/proc/{of}/uid_map")).ok();
    let other = pid.to_string();
    pid != 0
        && match (namespace("self"), namespace(&other)) {
            (Some(own), Some(theirs)) => own == theirs,
            _ => users("self").is_some_and(|own| users(&other) == Some(own)),
        }
}

/// Place of the file-system id in a line of proc(5)'s status: real, effective, saved, file system.
const FILE_SYSTEM: usize = 3;

fn status_of(pid: u32) -> Option<String> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    Some(String::from_utf8_lossy(&status).into_owned())
}

/// Numbers in the line of `status` that begins with `title`.
fn ids_in<'a>(status: &'a str, title: &str) -> impl Iterator<Item = u32> + use<'a> {
    let ids = status.lines().find_map(|line| line.strip_prefix(title)).unwrap_or_default();
    ids.split_ascii_whitespace().filter_map(|id| id.parse().ok())
}

/// Returns freed memory to the system where the C library would keep it.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer, may be called by any thread at any time, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Raises the process's file size limit as far as permitted. A write beyond a limit that remains fails with EFBIG and
/// does not kill the process.
pub fn lift_file_size_limit() {
    let limit = getrlimit(Resource::Fsize);
    let lifted = [Rlimit { current: None, maximum: None }, Rlimit { current: limit.maximum, ..limit }];
    let _ = lifted.into_iter().any(|lifted| setrlimit(Resource::Fsize, lifted).is_ok());
    // SAFETY: takes two constants; no handler runs, and the signal exists.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// A pipe by which a child reports that it is ready: read end and write end, both close-on-exec.
pub fn readiness_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// Closes every descriptor above the standard ones, which the starting program left open.
///
/// For the start of a program, which owns none yet; `EBUSY` if other threads run.
pub fn close_inherited() -> io::Result<()> {
    let alone = std::fs::read_dir("/proc/self/task")?.count() == 1;
    if !alone {
        return Err(Errno::BUSY.into());
    }
    // SAFETY: takes three integers. The process has one thread, which owns no descriptor yet: the closed ones were open
    // before the program began, so no owner loses its descriptor.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes standard input, output and error `/dev/null`.
pub fn redirect_stdio_to_null() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for standard in 0..=2 {
        // SAFETY: takes two integers; `null` is open, and the standard descriptors have no owner.
        if unsafe { libc::dup2(null.as_raw_fd(), standard) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // If a standard descriptor was missing, `null` has its number and must stay open.
    if null.as_raw_fd() <= 2 {
        rustix::io::fcntl_setfd(&null, rustix::io::FdFlags::empty())?;
        std::mem::forget(null);
    }
    Ok(())
}

/// Waits for child `pid` to end. Returns its exit code, or 128 plus the signal that killed it, as shells do.
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

/// A signal that a daemon handles as an event.
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

    /// True if this process ignores it, as the one that started it did.
    pub fn is_ignored(self) -> bool {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the pointer is to memory for one action, which the call fills; no action is set.
        let asked = unsafe { libc::sigaction(self.number(), std::ptr::null(), action.as_mut_ptr()) };
        // SAFETY: zeroes are an action, and a successful call has filled it.
        asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
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

/// Blocked signals, read as events.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Makes a reader for `signals`, which every thread must have blocked ([`block_signals`]).
    pub fn new(signals: &[Signal]) -> io::Result<Self> {
        let set = set_of(signals);
        // SAFETY: the set is initialized and outlives the call.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits until a signal can be read, and leaves it there: where the process becomes another program, that one reads it.
    pub fn wait_until_one_is_there(&self) -> io::Result<()> {
        let mut looked_at = [PollFd::new(&self.0, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut looked_at, None))?;
        Ok(())
    }

    /// Waits for the next signal.
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

/// True if process `pid` exists, even if this process may not signal it.
pub fn is_alive(pid: i32) -> bool {
    known(pid).is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// True if thread `pid` belongs to a program, not to the kernel. False if proc(5) cannot be read. Opens no descriptor, as it is asked
/// when there is none left.
pub fn is_program(pid: u32) -> bool {
    let program = rustix::fs::readlink(format!("/proc/{pid}/exe"), Vec::new());
    pid != 0 && program.err() != Some(Errno::NOENT)
}

/// Returns the name of the program of process or thread `pid`, as the kernel has it; empty if it has ended. Programs choose it.
pub fn program_name(pid: u32) -> Vec<u8> {
    let mut name = match pid {
        0 => Vec::new(),
        pid => std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default(),
    };
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    name
}

/// Returns the number of open descriptors, where proc(5) reports it, and the limit.
pub fn descriptors() -> (Option<u64>, u64) {
    let counted = || u64::try_from(std::fs::read_dir("/proc/self/fd").ok()?.count()).ok();
    // From Linux 6.2 on the directory's size is that number, so reading it takes no descriptor.
    let by_size = std::fs::metadata("/proc/self/fd").ok().map(|dir| dir.len()).filter(|open| 0 < *open);
    (by_size.or_else(counted), getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// Returns the start time of process `pid` in clock ticks since boot, which with the id identifies a process. `None` if
/// it has ended, even if its exit status is still pending.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain spaces and parentheses; the last parenthesis closes it. State is field 3, start time field
    // 22.
    let named = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[named + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let lives = !matches!(fields.next()?, "Z" | "X");
    fields.nth(22 - 4)?.parse().ok().filter(|_| lives)
}

/// Returns the CPU time of process `pid`, of ended threads too, to the nanosecond; `ESRCH` if it has ended.
pub fn cpu_time(pid: i32) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: the call writes the clock's number, and reads nothing of ours.
    match unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } {
        0 => {}
        errno => return Err(io::Error::from_raw_os_error(errno)),
    }
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the kernel writes a whole timespec or fails.
    if unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it is written.
    let time = unsafe { time.assume_init() };
    let seconds = u64::try_from(time.tv_sec).map_err(io::Error::other)?;
    let nanoseconds = u32::try_from(time.tv_nsec).map_err(io::Error::other)?;
    Ok(Duration::new(seconds, nanoseconds))
}

/// Sets the file mode creation mask of the process, or of the thread if that has its own.
pub fn umask(mask: u32) -> u32 {
    rustix::process::umask(Mode::from_raw_mode(mask & 0o777)).as_raw_mode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_with_work_and_ends_with_the_process() {
        let before = cpu_time(own_pid()).unwrap();
        let began = std::time::Instant::now();
        while cpu_time(own_pid()).unwrap() == before {
            assert!(began.elapsed() < Duration::from_secs(60));
        }
        assert_eq!(cpu_time(4_194_305).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

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
    fn a_thread_has_a_process() {
        let thread = || u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let other = std::thread::spawn(move || (thread(), process_of(thread()))).join().unwrap();
        assert_ne!(other.0, std::process::id());
        assert_eq!([process_of(std::process::id()), other.1], [Some(std::process::id()); 2]);
        assert_eq!([process_of(0), process_of(u32::MAX)], [None; 2]);
    }

    #[test]
    fn programs_are_distinguished_from_kernel_threads() {
        assert!(is_program(std::process::id()));
        assert!(!is_program(0) && !is_program(u32::MAX));
        // PID 2 is kthreadd, but in a container any process or none.
        let kernels = std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
        assert!(!kernels || !is_program(2));
    }

    #[test]
    fn descriptors_are_counted() {
        let (before, limit) = descriptors();
        let held: Vec<_> = (0..100).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let (with, _) = descriptors();
        // Other tests of this process open and close descriptors meanwhile.
        assert!(before.unwrap() + 50 < with.unwrap() && with.unwrap() <= limit);
        drop(held);
    }

    #[test]
    fn signals_arrive_as_events() {
        std::thread::spawn(|| {
            let wanted = [Signal::Usr1, Signal::Usr2];
            block_signals(&wanted).unwrap();
            let events = SignalFd::new(&wanted).unwrap();
            // SAFETY: signals this thread, which has the signal blocked.
            unsafe { libc::raise(libc::SIGUSR2) };
            assert_eq!(events.wait().unwrap(), Signal::Usr2);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn readiness_is_reported_through_the_pipe() {
        let (read, write) = readiness_pipe().unwrap();
        rustix::io::write(&write, b"r").unwrap();
        let mut received = [0; 2];
        assert_eq!(rustix::io::read(&read, &mut received).unwrap(), 1);
        drop(write);
        assert_eq!(rustix::io::read(&read, &mut received).unwrap(), 0);
    }
}
