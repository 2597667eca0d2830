//! The only module that starts programs: each with a time limit, captured output and no stdin.
//!
//! Output goes to unnamed files, not pipes: a daemon that inherits them cannot delay the end of file, and no pipe can
//! fill up.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

/// A program to run.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `output` or `run`"]
pub struct Run {
    program: OsString,
    args: Vec<OsString>,
    envs: Vec<(OsString, Option<OsString>)>,
    dir: Option<PathBuf>,
    user: Option<(u32, u32)>,
    limit: Duration,
    echo: Echo,
    /// Longest interval of checking for its end.
    pause: Duration,
}

/// Display of the program's output while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Echo {
    Captured,
    Shown,
    /// Unchanged output only.
    Passed,
}

/// Output of a program that ended by itself.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit status, or 128 + the signal that ended it.
    pub code: i32,
    /// Everything it wrote to its standard output.
    pub stdout: String,
    /// Everything it wrote to its standard error.
    pub stderr: String,
    line: String,
}

/// A command with a limit of 100 seconds: it ends one that hangs, and is no assertion. A machine with other work is slow.
pub fn command(program: impl AsRef<OsStr>) -> Run {
    Run {
        program: program.as_ref().to_owned(),
        args: Vec::new(),
        envs: Vec::new(),
        dir: None,
        user: None,
        limit: Duration::from_secs(100),
        echo: Echo::Captured,
        pause: Duration::from_millis(20),
    }
}

/// Path of `program` on PATH or in the system's sbin directories.
#[must_use]
pub fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}

/// Directory of libraries, which has one for each architecture.
const LIBRARIES: &str = "/usr/lib";

/// Path of `file` in the libraries of an architecture, as of a program's plug-in.
#[must_use]
pub fn library(file: &str) -> Option<PathBuf> {
    library_in(Path::new(LIBRARIES), file)
}

fn library_in(libraries: &Path, file: &str) -> Option<PathBuf> {
    let of_architectures = std::fs::read_dir(libraries).into_iter().flatten().flatten();
    of_architectures.map(|dir| dir.path().join(file)).find(|candidate| candidate.is_file())
}

impl Run {
    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.envs.push((name.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Removes an environment variable.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.envs.push((name.as_ref().to_owned(), None));
        self
    }

    /// Runs it in `dir`.
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Runs it as another user, without supplementary groups.
    pub fn as_user(mut self, uid: u32, gid: u32) -> Self {
        self.user = Some((uid, gid));
        self
    }

    /// Replaces the time limit.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Notices its end within a tenth of a millisecond, for measurements.
    pub fn measured(mut self) -> Self {
        self.pause = Duration::from_micros(100);
        self
    }

    /// Shows the command and its output while it runs.
    pub fn shown(mut self) -> Self {
        self.echo = Echo::Shown;
        self
    }

    /// Shows its output while it runs, and nothing else.
    pub fn passed_on(mut self) -> Self {
        self.echo = Echo::Passed;
        self
    }

    /// The command as text.
    #[must_use]
    pub fn line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    }

    /// Runs to the end; fails only if the program cannot start or exceeds its limit.
    pub fn output(self) -> Result<Finished> {
        self.output_unless(&|| false)?.context("it was stopped")
    }

    /// Like [`Self::output`], but kills the program and its children once `stopped` holds, and then returns `None`.
    pub fn output_unless(self, stopped: &dyn Fn() -> bool) -> Result<Option<Finished>> {
        let line = self.line();
        let out = tempfile::tempfile().context("a file for the output")?;
        let err = tempfile::tempfile().context("a file for the output")?;
        let mut show_out = Shown::new(self.echo, &out);
        let mut show_err = Shown::new(self.echo, &err);
        if self.echo == Echo::Shown {
            writeln!(std::io::stdout(), "+ {line}")?;
        }
        let mut child = self.start(&out, &err).with_context(|| format!("cannot start `{line}`"))?;
        let started = Instant::now();
        let mut pause = self.pause.min(Duration::from_millis(1));
        let status = loop {
            show_out.advance(&mut std::io::stdout())?;
            show_err.advance(&mut std::io::stderr())?;
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if self.limit < started.elapsed() {
                stop(&mut child, self.echo);
                bail!("`{line}` took longer than {:?}: {}", self.limit, text(&err)?.trim_end());
            }
            if stopped() {
                stop(&mut child, self.echo);
                return Ok(None);
            }
            sleep(pause);
            pause = (pause * 2).min(self.pause);
        };
        show_out.advance(&mut std::io::stdout())?;
        show_err.advance(&mut std::io::stderr())?;
        let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(-1);
        Ok(Some(Finished { code, stdout: text(&out)?, stderr: text(&err)?, line }))
    }

    /// Runs to the end; a non-zero exit is an error with the program's output.
    pub fn run(self) -> Result<Finished> {
        self.output()?.check()
    }

    fn start(&self, out: &File, err: &File) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
        if self.echo == Echo::Captured {
            // Its own group, so that a limit ends its children too; a shown program stays in the
            // terminal's, so that Ctrl-C reaches it.
            command.process_group(0);
        }
        for (name, value) in &self.envs {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        Ok(command.spawn()?)
    }
}

impl Finished {
    /// Returns itself if the exit status is 0, else an error with the output.
    pub fn check(self) -> Result<Self> {
        match self.code {
            0 => Ok(self),
            code => bail!("`{}` ended with {code}: {}{}", self.line, self.stdout, self.stderr.trim_end()),
        }
    }
}

/// A capture file and how much of it was displayed.
struct Shown<'f> {
    echo: Echo,
    file: &'f File,
    seen: u64,
}

impl<'f> Shown<'f> {
    fn new(echo: Echo, file: &'f File) -> Self {
        Self { echo, file, seen: 0 }
    }

    fn advance(&mut self, to: &mut dyn Write) -> Result<()> {
        if self.echo == Echo::Captured {
            return Ok(());
        }
        let mut piece = [0; 8192];
        loop {
            let got = self.file.read_at(&mut piece, self.seen)?;
            if got == 0 {
                return Ok(to.flush()?);
            }
            to.write_all(piece.get(..got).unwrap_or_default())?;
            self.seen += u64::try_from(got)?;
        }
    }
}

/// The whole of a capture file, read without moving the offset that the child writes at.
fn text(file: &File) -> Result<String> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len())?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Kills a child and its group; a child stuck in the kernel is abandoned after two seconds.
fn stop(child: &mut Child, echo: Echo) {
    let _gone_already = match (echo, i32::try_from(child.id()).ok().and_then(Pid::from_raw)) {
        (Echo::Captured, Some(group)) => kill_process_group(group, Signal::KILL).is_err(),
        _ => child.kill().is_err(),
    };
    for _ in 0..100 {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        sleep(Duration::from_millis(20));
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match word {
        "" => "''".to_owned(),
        word if word.chars().all(plain) => word.to_owned(),
        word => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn output_and_status_are_kept() {
        let done = command("sh").args(["-c", "echo out; echo err >&2; exit 3"]).output().unwrap();
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (3, "out\n", "err\n"));
        assert!(done.check().is_err());
    }

    #[test]
    fn a_limit_ends_the_program_and_its_children() {
        let began = Instant::now();
        let late = command("sh").args(["-c", "sleep 60 & wait"]).limit(Duration::from_millis(50)).run();
        assert!(late.is_err());
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_library_is_found_in_the_directory_of_its_architecture() {
        let libraries = tempfile::tempdir().unwrap();
        let dir = libraries.path().join("x86_64-linux-gnu/server");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("plugin.so"), "").unwrap();
        assert_eq!(library_in(libraries.path(), "server/plugin.so"), Some(dir.join("plugin.so")));
        assert_eq!(library_in(libraries.path(), "server/other.so"), None);
    }

    #[test]
    fn a_stop_ends_the_program() {
        let looks = AtomicU32::new(0);
        let stopped = || 2 < looks.fetch_add(1, Ordering::Relaxed);
        assert!(command("sleep").arg("60").output_unless(&stopped).unwrap().is_none());
        let ended = command("true").output_unless(&|| false).unwrap().unwrap();
        assert_eq!(ended.code, 0);
    }

    #[test]
    fn an_inherited_output_blocks_no_reader() {
        let began = Instant::now();
        command("sh").args(["-c", "sleep 4 & exit 0"]).run().unwrap();
        assert!(began.elapsed() < Duration::from_secs(3));
    }

    #[test]
    fn a_line_can_be_pasted_into_a_shell() {
        assert_eq!(command("echo").args(["a b", "it's", ""]).line(), r"echo 'a b' 'it'\''s' ''");
    }
}
