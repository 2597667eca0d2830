//! The system calls that the daemon may make while it serves: a filter that the kernel applies to all threads
//! (seccomp(2)).
//!
//! The list has the calls that the pool's tests make, and those that the C libraries need. Nothing in it starts a
//! process, makes a namespace, loads a module, or inspects another process. The process can become another program,
//! which stays under the filter. Only rare calls have their
//! arguments checked: a call that is allowed with any arguments costs a bitmap lookup (Linux 5.11 and later). Calls of
//! requests come first.
//!
//! io_uring is allowed, and the filter does not see its operations (docs/dev/decisions/0037).
#![allow(unsafe_code, reason = "seccomp has no safe wrapper")]

use std::io;

use libc::{c_long, sock_filter};

/// Consequence of a call that is not on the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// It fails with ENOSYS and is written to the kernel's audit log.
    Refuse,
    /// It is made and written to the kernel's audit log.
    Log,
    /// The process is killed.
    Kill,
}

/// Condition under which a call is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Allowed with any arguments.
    Always,
    /// The argument with this number, taken as 32 bits, is one of these.
    Is(u32, &'static [u32]),
    /// The argument with this number has all of these bits.
    Has(u32, u32),
}

/// Architecture number: `AUDIT_ARCH_*` of `linux/audit.h`.
const ARCH: u32 = if cfg!(target_arch = "x86_64") { 0xC000_003E } else { 0xC000_00B7 };
/// Bit in the numbers of x86_64 calls with 32-bit pointers (x32).
const X32: u32 = 0x4000_0000;
/// Offsets in `struct seccomp_data`: call number, architecture, low half of the first argument.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

/// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JEQ | BPF_K`, and so on.
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

/// Allowed operations of prctl(2): names of threads and memory, capabilities, dumpability, the start of a program.
const PRCTL: &[u32] = &[
    libc::PR_SET_NAME.cast_unsigned(),
    libc::PR_GET_NAME.cast_unsigned(),
    libc::PR_CAPBSET_READ.cast_unsigned(),
    libc::PR_GET_SECUREBITS.cast_unsigned(),
    libc::PR_SET_SECUREBITS.cast_unsigned(),
    libc::PR_GET_DUMPABLE.cast_unsigned(),
    libc::PR_SET_VMA.cast_unsigned(),
    PR_GET_AUXV,
];

/// The auxiliary vector, which a program's start asks for (`linux/prctl.h`).
const PR_GET_AUXV: u32 = 0x4155_5856;

macro_rules! always {
    ($($name:ident)*) => { &[$((libc::$name, When::Always)),*] };
}

/// Calls of requests, of the transports, and of threads that run continuously.
const OFTEN: &[(c_long, When)] = always![
    SYS_io_uring_enter SYS_read SYS_writev SYS_write SYS_readv SYS_openat2 SYS_statx SYS_close SYS_ioctl SYS_setfsuid SYS_setfsgid
    SYS_setgroups SYS_umask SYS_futex SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2 SYS_getdents64
    SYS_lseek SYS_newfstatat SYS_fstat SYS_openat SYS_unlinkat SYS_mkdirat SYS_renameat2 SYS_linkat SYS_symlinkat
    SYS_mknodat SYS_readlinkat SYS_faccessat SYS_faccessat2 SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_utimensat
    SYS_ftruncate SYS_fallocate SYS_fsync SYS_fdatasync SYS_fcntl SYS_fgetxattr SYS_fsetxattr SYS_flistxattr
    SYS_fremovexattr SYS_getxattr SYS_setxattr SYS_listxattr SYS_removexattr SYS_lgetxattr SYS_lsetxattr SYS_llistxattr
    SYS_lremovexattr SYS_copy_file_range SYS_statfs SYS_fstatfs SYS_name_to_handle_at SYS_open_by_handle_at SYS_flock
    SYS_sync_file_range SYS_syncfs SYS_dup SYS_clock_gettime SYS_clock_nanosleep SYS_nanosleep
];

/// Calls of other threads, of thread start, and of the C library.
const SELDOM: &[(c_long, When)] = always![
    SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_signalfd4 SYS_pipe2
    SYS_dup3 SYS_socketpair SYS_bind SYS_listen SYS_accept4 SYS_accept SYS_connect SYS_getsockname SYS_getpeername SYS_getsockopt
    SYS_setsockopt SYS_sendto SYS_sendmsg SYS_sendmmsg SYS_recvfrom SYS_recvmsg SYS_recvmmsg SYS_shutdown
    SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_mincore SYS_msync SYS_brk SYS_membarrier SYS_mlock SYS_munlock
    SYS_exit SYS_exit_group SYS_set_robust_list SYS_get_robust_list SYS_rseq SYS_set_tid_address SYS_gettid SYS_getpid
    SYS_getppid SYS_getpgid SYS_getsid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getgroups SYS_getresuid SYS_getresgid
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigtimedwait SYS_sigaltstack SYS_tgkill SYS_tkill
    SYS_restart_syscall SYS_sched_yield SYS_sched_getaffinity SYS_sched_setaffinity SYS_sched_getattr SYS_sched_setattr
    SYS_sched_getscheduler SYS_sched_setscheduler SYS_sched_getparam SYS_sched_get_priority_min
    SYS_sched_get_priority_max SYS_getpriority SYS_setpriority SYS_ioprio_set SYS_capget SYS_capset SYS_getrandom SYS_gettimeofday
    SYS_clock_getres SYS_prlimit64 SYS_getrlimit SYS_setrlimit SYS_getrusage SYS_times SYS_uname SYS_sysinfo SYS_getcpu SYS_getcwd
    SYS_fchdir SYS_chdir SYS_sendfile SYS_splice SYS_tee SYS_fadvise64 SYS_readahead SYS_sync SYS_truncate SYS_renameat
    SYS_umount2 SYS_fanotify_init SYS_fanotify_mark SYS_io_uring_setup SYS_io_uring_register SYS_wait4 SYS_waitid
    SYS_memfd_create SYS_close_range
];

/// Further calls that exist on one architecture only and that its C libraries make.
#[cfg(target_arch = "x86_64")]
const OLD: &[(c_long, When)] = always![
    SYS_poll SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_mkdir SYS_rmdir SYS_unlink SYS_rename SYS_link SYS_symlink
    SYS_chmod SYS_chown SYS_lchown SYS_mknod SYS_dup2 SYS_pipe SYS_epoll_wait SYS_epoll_create SYS_eventfd SYS_signalfd SYS_select
    SYS_getpgrp SYS_time SYS_arch_prctl SYS_utimes SYS_futimesat SYS_creat
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[(c_long, When)] = &[];

/// Calls that libc does not name for all machines, and calls that are allowed with certain arguments only.
const SOMETIMES: &[(c_long, When)] = &[
    (crate::at::SYS_FCHMODAT2, When::Always),
    // Starts a thread, not a process.
    (libc::SYS_clone, When::Has(0, libc::CLONE_THREAD.cast_unsigned())),
    // Gives a thread a umask of its own.
    (libc::SYS_unshare, When::Is(0, &[libc::CLONE_FS.cast_unsigned()])),
    (libc::SYS_prctl, When::Is(0, PRCTL)),
    // For reconnecting to syslog after it restarted.
    (libc::SYS_socket, When::Is(0, &[libc::AF_UNIX.cast_unsigned()])),
    // Becomes another version of the daemon, under this filter (docs/dev/decisions/0068).
    (libc::SYS_execveat, When::Is(4, &[libc::AT_EMPTY_PATH.cast_unsigned()])),
    // Checks whether a process exists.
    (libc::SYS_kill, When::Is(1, if cfg!(feature = "fault") { &[0, 9] } else { &[0] })),
];

/// The list in words, one entry a string: a program that goes on under the filter of another must need no more.
pub fn allowed() -> Vec<String> {
    let entries = [OFTEN, SELDOM, OLD, SOMETIMES].into_iter().flatten();
    entries.map(|(number, when)| format!("{number} {when:?}")).collect()
}

/// Whether the process has a filter already.
pub fn is_confined() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}

/// Restricts all threads of the process, and those that they start, to the calls on the list. Sets `no_new_privs`, so
/// that no executed program gains rights.
///
/// # Errors
///
/// The kernel has no seccomp or refuses it. Nothing changed but `no_new_privs` of this thread, and clone3(2) may be ENOSYS.
pub fn confine(violation: Violation) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    install(&without_clone3(), libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW)?;
    // The mitigation of speculative store bypass is set per program; this filter must not switch it on.
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC
        | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW
        | match violation {
            Violation::Kill => 0,
            Violation::Refuse | Violation::Log => libc::SECCOMP_FILTER_FLAG_LOG,
        };
    install(&program(violation), flags)
}

fn install(program: &[sock_filter], flags: libc::c_ulong) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `len` instructions from a slice that outlives the call, and writes nothing.
    let installed =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    match installed {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has another filter"))),
    }
}

/// Filter program of its own for clone3(2), whose flags cannot be checked: ENOSYS makes the C library start threads by clone(2).
/// It tries clone3 for each thread, and this filter is installed without a flag to log what it refuses.
fn without_clone3() -> Vec<sock_filter> {
    let clone3 = u32::try_from(libc::SYS_clone3).unwrap_or(u32::MAX);
    vec![
        step(LOAD, NUMBER),
        jump(IF_EQUAL, clone3, 0, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned()),
        step(RETURN, libc::SECCOMP_RET_ALLOW),
    ]
}

/// Builds the filter program of the list.
fn program(violation: Violation) -> Vec<sock_filter> {
    let refused = step(
        RETURN,
        match violation {
            Violation::Refuse => libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(),
            Violation::Log => libc::SECCOMP_RET_LOG,
            Violation::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        },
    );
    let allowed = step(RETURN, libc::SECCOMP_RET_ALLOW);
    let mut steps = vec![step(LOAD, ARCHITECTURE), jump(IF_EQUAL, ARCH, 1, 0), refused, step(LOAD, NUMBER)];
    if cfg!(target_arch = "x86_64") {
        steps.extend([jump(IF_AT_LEAST, X32, 0, 1), refused]);
    }
    for (number, when) in [OFTEN, SELDOM, OLD, SOMETIMES].into_iter().flatten() {
        let then = match *when {
            When::Always => vec![allowed],
            When::Is(argument, values) => {
                let load = step(LOAD, FIRST_ARGUMENT + 8 * argument);
                let each = values.iter().flat_map(|value| [jump(IF_EQUAL, *value, 0, 1), allowed]);
                std::iter::once(load).chain(each).chain([refused]).collect()
            }
            When::Has(argument, bits) => {
                let load = step(LOAD, FIRST_ARGUMENT + 8 * argument);
                vec![load, step(AND, bits), jump(IF_EQUAL, bits, 0, 1), allowed, refused]
            }
        };
        // The list is short enough to be jumped over.
        let beyond = u8::try_from(then.len()).unwrap_or(u8::MAX);
        steps.push(jump(IF_EQUAL, u32::try_from(*number).unwrap_or(u32::MAX), 0, beyond));
        steps.extend(then);
    }
    // Refused by a filter of its own.
    steps.extend([jump(IF_EQUAL, u32::try_from(libc::SYS_clone3).unwrap_or(u32::MAX), 0, 1), allowed]);
    steps.push(refused);
    steps
}

const fn step(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only this thread gets the filter, which ends with it.
    fn on_a_confined_thread(work: impl FnOnce() + Send + 'static) {
        let confined = move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            install(&without_clone3(), 0).unwrap();
            install(&program(Violation::Refuse), 0).unwrap();
            work();
        };
        std::thread::spawn(confined).join().unwrap();
    }

    /// Calls clone3(2) in a way that starts nothing: its errno.
    fn clone3() -> Option<i32> {
        // SAFETY: the kernel reads no arguments of size 0, and refuses them.
        let started = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<u8>(), 0_usize) };
        assert_eq!(started, -1);
        io::Error::last_os_error().raw_os_error()
    }

    /// The filter of the list logs what it refuses.
    #[test]
    fn clone3_is_refused_by_the_filter_that_logs_nothing() {
        let by_the_list = std::thread::spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            install(&program(Violation::Refuse), 0).unwrap();
            clone3()
        });
        assert_eq!(by_the_list.join().unwrap(), Some(libc::EINVAL), "not by the list");
        on_a_confined_thread(|| assert_eq!(clone3(), Some(libc::ENOSYS)));
    }

    #[test]
    fn threads_and_files_are_allowed_and_programs_and_namespaces_are_not() {
        on_a_confined_thread(|| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("file"), "x").unwrap();
            let started = std::thread::spawn(|| std::process::Command::new("true").status());
            let refused = started.join().unwrap().unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ENOSYS), "a program");
            // SAFETY: the call only asks for a new namespace, and is refused.
            let namespace = unsafe { libc::unshare(libc::CLONE_NEWUTS) };
            let why = io::Error::last_os_error().raw_os_error();
            assert_eq!((namespace, why), (-1, Some(libc::ENOSYS)));
            assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_err(), "a socket of a network");
            assert!(std::os::unix::net::UnixDatagram::unbound().is_ok());
            assert!(crate::process::is_alive(i32::try_from(std::process::id()).unwrap()));
            assert_eq!(rustix::process::umask(rustix::fs::Mode::empty()).as_raw_mode() & 0o7000, 0);
        });
    }

    #[test]
    fn no_call_stands_on_the_list_twice() {
        let mut numbers: Vec<_> =
            [OFTEN, SELDOM, OLD, SOMETIMES].into_iter().flatten().map(|(number, _)| *number).collect();
        let all = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all);
    }

    /// The kernel refuses longer programs.
    #[test]
    fn the_filter_is_short_enough() {
        assert!(program(Violation::Kill).len() < libc::BPF_MAXINSNS.try_into().unwrap());
    }
}
