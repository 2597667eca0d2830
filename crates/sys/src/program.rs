//! Runs external programs from root's search path.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs a program and waits for its end, however it ends.
///
/// # Errors
///
/// One line: why it did not run.
pub fn output(
    program: &str,
    package: &str,
    args: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<Output, String> {
    let mut command = Command::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let everywhere = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    if let Ok(path) = std::env::join_paths(everywhere) {
        command.env("PATH", path);
    }
    args(&mut command).output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{program} is not installed: install the package {package}"),
        _ => format!("{program}: {error}"),
    })
}

/// The program's error output, on one line.
pub fn said(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Runs a program and returns its output.
///
/// # Errors
///
/// One line: why it did not run, or its error output.
pub fn run(
    program: &str,
    package: &str,
    args: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<String, String> {
    let done = output(program, package, args)?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(format!("{program}: {}", said(&done))),
    }
}

/// Runs a program to its end, for at most `limit`, with nothing to read: whether it succeeded, and what it wrote to standard output and
/// standard error. One that takes longer is ended.
///
/// # Errors
/// One line: why it did not run, or that it took too long.
pub fn output_within(limit: Duration, program: &Path, args: &[&str]) -> Result<Output, String> {
    let mut command = Command::new(program);
    let spawned =
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| error.to_string())?;
    let began = Instant::now();
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            // What it wrote fits a pipe, or it would not have ended.
            Some(_) => return child.wait_with_output().map_err(|error| error.to_string()),
            None if limit <= began.elapsed() => {
                // It may end by itself at this moment.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no answer within {} s", limit.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Replaces the process by another program; returns only on error.
pub fn become_program(program: &Path, args: impl IntoIterator<Item = OsString>) -> io::Error {
    Command::new(program).args(args).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_output_of_a_program_is_returned() {
        let run = |line: &'static str| run("sh", "dash", |sh| sh.args(["-c", line]));
        assert_eq!(run("echo done"), Ok("done\n".to_owned()));
        assert_eq!(run("printf 'one\\n\\n two\\n' >&2; exit 1"), Err("sh: one; two".to_owned()));
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let why = run("no-such-program-x", "nothing", |command| command).unwrap_err();
        assert_eq!(why, "no-such-program-x is not installed: install the package nothing");
    }
}
