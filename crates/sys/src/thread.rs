//! Scheduling of the calling thread, and limits of the process.
#![allow(unsafe_code, reason = "scheduling policies and a thread's niceness have no safe wrapper")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

/// Longest thread name in bytes, without its NUL.
const NAME_MAX: usize = 15;
/// Size of the first version of `struct sched_attr`.
const SCHED_ATTR_SIZE: u32 = 48;

/// Scheduling policy of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Runs only when nothing else wants the CPU (SCHED_IDLE).
    Idle,
    /// Time-shared by niceness (SCHED_OTHER).
    Other,
}

/// Confines the calling thread to CPU `cpu`.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Sets the scheduling policy of the calling thread.
pub fn set_policy(policy: Policy) -> io::Result<()> {
    set_policy_of(ThreadId::own(), policy)
}

/// Sets the scheduling policy of `thread`.
pub fn set_policy_of(thread: ThreadId, policy: Policy) -> io::Result<()> {
    let policy = match policy {
        Policy::Idle => libc::SCHED_IDLE,
        Policy::Other => libc::SCHED_OTHER,
    };
    let priority: libc::c_int = 0;
    // SAFETY: the kernel reads one `struct sched_param`, which for these policies is the int pointed to; the
    // number is a thread's of this process, or of nobody. A raw call, because musl's wrapper always fails.
    let answer =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread.0, policy, &raw const priority) };
    settled(answer)
}

/// I/O class of a thread (ioprio_set(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoClass {
    /// That of its niceness.
    Ordinary,
    /// Served when nobody else uses the disk, as far as the disk's scheduler knows classes.
    Idle,
}

/// Sets the I/O class of the calling thread.
pub fn set_io_class(class: IoClass) -> io::Result<()> {
    /// IOPRIO_WHO_PROCESS, and the class in the bits above IOPRIO_CLASS_SHIFT (linux/ioprio.h).
    const WHO_PROCESS: libc::c_int = 1;
    let class: libc::c_int = match class {
        IoClass::Ordinary => 0,
        IoClass::Idle => 3 << 13,
    };
    // SAFETY: takes integers and touches no memory; thread 0 is the calling one.
    let answer = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, class) };
    settled(answer)
}

/// Sets the niceness of the calling thread, not of its process.
pub fn set_nice(nice: i32) -> io::Result<()> {
    let who = gettid().as_raw_nonzero().get();
    // SAFETY: takes integers and touches no memory.
    let answer = unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, who, nice) };
    settled(answer)
}

/// Gives the calling thread the policy, niceness and CPUs of the process's first thread. For threads started by one
/// that is pinned or has another policy, which they inherit.
///
/// # Errors
///
/// The system refuses a part of it, which then stays unchanged.
pub fn be_ordinary() -> io::Result<()> {
    let first = getpid();
    let placed = sched_getaffinity(Some(first)).and_then(|set| sched_setaffinity(None, &set));
    let mut attributes = libc::sched_attr {
        size: SCHED_ATTR_SIZE,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let pid = first.as_raw_nonzero().get();
    let room = &raw mut attributes;
    // SAFETY: the kernel writes at most the given size, which is the structure's, to a local that nothing else uses
    // meanwhile.
    settled(unsafe { libc::syscall(libc::SYS_sched_getattr, pid, room, SCHED_ATTR_SIZE, 0) })?;
    // The first thread's reset-on-fork flag is not copied.
    attributes.sched_flags = 0;
    // SAFETY: the kernel reads the structure, of the size in its first field.
    settled(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })?;
    Ok(placed?)
}

fn settled(answer: libc::c_long) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns how many CPUs the machine can ever have; at least 1.
pub fn possible_cpus() -> usize {
    std::fs::read_to_string("/sys/devices/system/cpu/possible")
        .ok()
        .and_then(|list| highest(list.trim()))
        .map_or_else(|| allowed_cpus().last().map_or(1, |last| last + 1), |last| last + 1)
}

/// Returns the highest number in a list such as `0-3,8`.
fn highest(list: &str) -> Option<usize> {
    list.rsplit([',', '-']).next()?.parse().ok()
}

/// Returns the CPUs that the calling thread may run on, in order.
pub fn allowed_cpus() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
        Err(_) => Vec::new(),
    }
}

/// True if autogroup is on, so that niceness counts only within a session.
pub fn autogroup_enabled() -> bool {
    std::fs::read("/proc/sys/kernel/sched_autogroup_enabled").is_ok_and(|text| text.starts_with(b"1"))
}

/// Time that a thread has waited for a CPU while runnable.
#[derive(Debug)]
pub struct RunDelay(File);

impl RunDelay {
    /// Opens the calling thread's statistics, if the kernel has them.
    pub fn own() -> Option<Self> {
        File::open("/proc/thread-self/schedstat").ok().map(Self)
    }

    /// Total since the thread began.
    pub fn total(&self) -> Option<Duration> {
        let mut room = [0; 80];
        let filled = self.0.read_at(&mut room, 0).ok()?;
        let stat = std::str::from_utf8(&room[..filled]).ok()?;
        stat.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
    }
}

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(i32);

impl ThreadId {
    /// The calling thread.
    pub fn own() -> Self {
        Self(gettid().as_raw_nonzero().get())
    }

    /// Whether it runs, or would if it had a processor: the state in `/proc/self/task/TID/stat`, proc(5). False also if it
    /// has ended, or there is no /proc.
    pub fn is_runnable(self) -> bool {
        let stat = std::fs::read(format!("/proc/self/task/{}/stat", self.0)).unwrap_or_default();
        // The name, in brackets, may have any bytes in it.
        let name_end = stat.iter().rposition(|byte| *byte == b')');
        name_end.is_some_and(|end| stat.get(end + 2) == Some(&b'R'))
    }
}

/// Raises the limit of open files as far as permitted: to the kernel's maximum (`fs.nr_open`), or to the hard limit.
/// Returns the limit now in force.
pub fn raise_nofile_limit() -> u64 {
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|most| most.trim().parse().ok());
    if let Some(most) = most {
        let wanted = Rlimit { current: Some(most), maximum: Some(most) };
        // Refused without CAP_SYS_RESOURCE, which root may lack in a container.
        let _ = setrlimit(Resource::Nofile, wanted);
    }
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        // If this is refused, the limit stays, and is returned.
        let _ = setrlimit(Resource::Nofile, raised);
    }
    nofile_limit()
}

/// The limit of open files of this process.
pub fn nofile_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Lowers the limit of open files of this process by `count`, at most by half of it: they are left to another process with the same table
/// of descriptors, whose limit stays.
///
/// # Errors
/// Error of the system call.
pub fn leave_descriptors(count: u64) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let Some(now) = limit.current else { return Ok(()) };
    let lowered = Rlimit { current: Some(now.saturating_sub(count).max(now / 2)), maximum: limit.maximum };
    Ok(setrlimit(Resource::Nofile, lowered)?)
}

/// Names the calling thread, truncated to 15 bytes.
pub fn set_name(name: &str) -> io::Result<()> {
    let fits = &name[..name.floor_char_boundary(NAME_MAX)];
    Ok(rustix::thread::set_name(&CString::new(fits)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_a_thread(work: impl FnOnce() + Send + 'static) {
        std::thread::spawn(work).join().unwrap();
    }

    #[test]
    fn a_pinned_thread_may_run_on_one_cpu() {
        on_a_thread(|| {
            let last = *allowed_cpus().last().unwrap();
            assert!(last < possible_cpus());
            pin_to_cpu(last).unwrap();
            assert_eq!(allowed_cpus(), [last]);
        });
        assert!(pin_to_cpu(usize::MAX).is_err());
    }

    #[test]
    fn lists_of_cpus_end_with_the_highest() {
        assert_eq!(highest("0"), Some(0));
        assert_eq!(highest("0-127"), Some(127));
        assert_eq!(highest("0-3,8"), Some(8));
        assert_eq!(highest(""), None);
    }

    #[test]
    fn policy_niceness_and_name_are_the_threads_own() {
        on_a_thread(|| {
            set_policy(Policy::Idle).unwrap();
            set_nice(5).unwrap();
            set_name("a-name-that-is-too-long").unwrap();
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (name, rest) = stat.split_once(") ").unwrap();
            let fields: Vec<&str> = rest.split(' ').collect();
            assert!(name.ends_with("(a-name-that-is-"));
            assert_eq!((fields[16], fields[38]), ("5", "5"));
        });
        set_policy(Policy::Other).unwrap();
    }

    #[test]
    fn a_thread_that_inherits_a_schedule_can_be_ordinary() {
        /// Policy, niceness and CPUs of the thread at `task` in proc(5).
        fn schedule(task: &str) -> (String, String, String) {
            let stat = std::fs::read_to_string(format!("/proc/{task}/stat")).unwrap();
            let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
            let status = std::fs::read_to_string(format!("/proc/{task}/status")).unwrap();
            let cpus = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
            (fields[38].into(), fields[16].into(), cpus.into())
        }
        on_a_thread(|| {
            pin_to_cpu(*allowed_cpus().last().unwrap()).unwrap();
            set_nice(3).unwrap();
            set_policy(Policy::Idle).unwrap();
            on_a_thread(|| {
                assert_eq!(schedule("thread-self").0, "5", "it is inherited");
                be_ordinary().unwrap();
                assert_eq!(schedule("thread-self"), schedule("self"));
            });
        });
    }

    #[test]
    fn a_thread_that_waits_is_not_runnable() {
        let (id_sender, ids) = std::sync::mpsc::channel();
        let (waker, wait) = std::sync::mpsc::channel::<()>();
        let waits = std::thread::spawn(move || {
            set_name("a ) R name").unwrap();
            id_sender.send(ThreadId::own()).unwrap();
            wait.recv().unwrap();
        });
        let id = ids.recv().unwrap();
        while id.is_runnable() {
            std::thread::yield_now();
        }
        assert!(ThreadId::own().is_runnable());
        waker.send(()).unwrap();
        waits.join().unwrap();
        assert!(!id.is_runnable());
    }

    #[test]
    fn the_rest_answers() {
        let _ = autogroup_enabled();
        let waited = || RunDelay::own().and_then(|delay| delay.total());
        assert!(waited() <= waited());
        let limit = raise_nofile_limit();
        assert!(limit > 0);
        assert_eq!(raise_nofile_limit(), limit);
    }
}
