//! Runs a command in a child process, so that the shell gets its result although a thread of it is stuck in a file system.
//!
//! A request that a FUSE server has read, and does not answer, cannot be given up even by SIGKILL: the process stays until
//! the server answers or its connection is aborted. Such a child is left behind, without standard streams.

use fsstack_sys::process::{Fork, Signal, SignalFd, block_signals, fork, redirect_stdio_to_null, wait_for};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, kill_process, set_parent_process_death_signal};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// Signals that end a command in order; a hangup not where it was started to outlast that (nohup(1)).
pub(crate) fn ending_signals() -> Vec<Signal> {
    let hangup = Some(Signal::Hup).filter(|hangup| !hangup.is_ignored());
    [Signal::Int, Signal::Term].into_iter().chain(hangup).collect()
}

/// Runs `work` in a child process. Returns its exit code as soon as it is known, in the child too.
///
/// # Errors
/// No process can be made.
pub(crate) fn apart(work: impl FnOnce() -> u8) -> io::Result<u8> {
    let (mut tell, mut told) = UnixStream::pair()?;
    match fork()? {
        Fork::Child => {
            drop(told);
            // Where it is refused, only a killed parent leaves the child at work.
            let _ = set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
            let code = work();
            let _ = io::stdout().flush();
            // The parent's readers are not to wait for this process.
            let _ = redirect_stdio_to_null();
            let _ = tell.write_all(&[code]);
            Ok(code)
        }
        Fork::Parent(child) => {
            drop(tell);
            let signals = ending_signals();
            block_signals(&signals)?;
            let signals = SignalFd::new(&signals)?;
            loop {
                let mut events = [PollFd::new(&told, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
                rustix::io::retry_on_intr(|| poll(&mut events, None))?;
                let [result, signal] = events.map(|event| !event.revents().is_empty());
                if signal && let Some(pid) = Pid::from_raw(child) {
                    signals.wait()?;
                    // The child may have ended.
                    let _ = kill_process(pid, rustix::process::Signal::TERM);
                }
                if result {
                    let mut code = [0];
                    return match told.read_exact(&mut code) {
                        Ok(()) => Ok(code[0]),
                        // It has ended without a result.
                        Err(_) => wait_for(child).map(|code| u8::try_from(code).unwrap_or(1)),
                    };
                }
            }
        }
    }
}
