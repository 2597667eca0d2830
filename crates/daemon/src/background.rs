//! From helper to daemon: the helper returns only when the mount answers, or with the daemon's own reason why not.
//!
//! The daemon holds one end of a pipe. It writes that the mount answers, or an exit code and a line. If it dies first, the
//! pipe closes with nothing in it, which is an answer too. Its standard streams are closed before it starts, so that a
//! reader of the helper's output does not wait for the daemon.

use fsstack_sync::Mutex;

use crate::launch::{LaunchError, launch};
use crate::problem::Failure;
use crate::settings::{RunIn, Settings};
use fsstack_sys::process::{self, Fork};
use fsstack_sys::thread::raise_nofile_limit;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::Arc;

/// Stands before the daemon's answer when the mount answers; other answers begin with the exit code.
const MOUNTED: u8 = 0;

/// Reports to the waiting helper that the mount answers; the first report counts, later ones are dropped.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<Mutex<Option<PipeWriter>>>);

impl Ready {
    fn telling(pipe: PipeWriter) -> Self {
        Self(Arc::new(Mutex::new(Some(pipe))))
    }

    /// The mount answers: the helper may return.
    pub fn announce(&self) {
        self.tell(MOUNTED, "");
    }

    fn refuse(&self, error: &LaunchError) {
        self.tell(error.failure.exit_code(), &error.text);
    }

    fn tell(&self, code: u8, text: &str) {
        let pipe = self.0.lock().take();
        // A helper that was killed hears nothing; the mount stands all the same.
        let _ = pipe.map(|mut pipe| pipe.write_all(&[&[code], text.as_bytes()].concat()));
    }
}

/// Serves the pool, in this process or in one of its own.
pub(crate) fn start(settings: Settings) -> Result<(), LaunchError> {
    // A lock or a pipe of the starting program would otherwise stay open as long as the pool is mounted.
    // Options were read before: `config=` may name an inherited descriptor.
    process::close_inherited()
        .map_err(|error| LaunchError::system(format!("inherited descriptors: {error}")))?;
    match settings.options.run_in {
        RunIn::Foreground => {
            take_limits();
            launch(settings, Ready::default())
        }
        RunIn::Background => detach(settings),
    }
}

fn detach(settings: Settings) -> Result<(), LaunchError> {
    let system = |what: &str, error: io::Error| LaunchError::system(format!("{what}: {error}"));
    let (answer, pipe) = io::pipe().map_err(|error| system("pipe", error))?;
    match process::fork().map_err(|error| system("fork", error))? {
        Fork::Parent(_) => {
            drop(pipe);
            hear(answer)
        }
        Fork::Child => {
            drop(answer);
            let ready = Ready::telling(pipe);
            let served = leave_terminal()
                .map_err(|error| system("the daemon cannot leave its terminal", error))
                .and_then(|()| launch(settings, ready.clone()));
            served.inspect_err(|error| ready.refuse(error))
        }
    }
}

fn hear(mut answer: PipeReader) -> Result<(), LaunchError> {
    let mut told = Vec::new();
    answer
        .read_to_end(&mut told)
        .map_err(|error| LaunchError::system(format!("the daemon is not heard: {error}")))?;
    match told.as_slice() {
        [MOUNTED, ..] => Ok(()),
        [code, text @ ..] => {
            let failure =
                [Failure::Usage, Failure::System].into_iter().find(|known| known.exit_code() == *code);
            let text = String::from_utf8_lossy(text).into_owned();
            Err(LaunchError { failure: failure.unwrap_or(Failure::Mount), text })
        }
        [] => Err(LaunchError::mount("the daemon ended before the mount answered; the log may say why")),
    }
}

/// A session of its own, which also is a scheduling group of its own; no directory kept busy; no terminal.
fn leave_terminal() -> io::Result<()> {
    process::setsid()?;
    std::env::set_current_dir("/")?;
    process::redirect_stdio_to_null()?;
    take_limits();
    Ok(())
}

/// Raises the limit of open files as far as possible, because every directory and open file of the pool needs one. Removes
/// the limit on their size and the umask, because each caller has its own.
pub(crate) fn take_limits() {
    raise_nofile_limit();
    process::lift_file_size_limit();
    process::umask(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(speak: impl FnOnce(&Ready)) -> Result<(), LaunchError> {
        let (answer, pipe) = io::pipe().unwrap();
        let ready = Ready::telling(pipe);
        speak(&ready);
        drop(ready);
        hear(answer)
    }

    #[test]
    fn the_helper_hears_that_the_mount_answers() {
        assert_eq!(heard(Ready::announce), Ok(()));
    }

    #[test]
    fn the_helper_hears_the_daemons_own_reason() {
        for error in [LaunchError::mount("no"), LaunchError::system("no memory")] {
            assert_eq!(heard(|ready| ready.refuse(&error)), Err(error));
        }
    }

    #[test]
    fn the_first_word_counts() {
        let twice = |ready: &Ready| {
            ready.announce();
            ready.refuse(&LaunchError::mount("later"));
        };
        assert_eq!(heard(twice), Ok(()));
    }

    #[test]
    fn a_daemon_that_died_is_noticed() {
        let silent = heard(|_| {}).unwrap_err();
        assert_eq!(silent.failure, Failure::Mount);
        assert!(silent.text.contains("ended before the mount answered"));
    }
}
