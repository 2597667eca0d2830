//! Daemons: the binary under test, which process serves a mount, and how it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::gluster::server;
use crate::mounts;

/// The variable that says which `seccomp=` pools are mounted with whose test does not say it.
pub const SECCOMP: &str = "FSSTACK_TEST_SECCOMP";

/// Programs that the lab lets serve a mount; no other process is ever ended.
const SERVERS: &[&str] = &["mount.fsstack", BUILT, FAULTY, "mergerfs", "mhddfs", "glusterfs"];

/// Cargo's name of the mount helper: no crate name may hold a dot.
const BUILT: &str = "mount-fsstack";

/// The one that dies where a test says.
const FAULTY: &str = "mount-fsstack-faulty";

/// A process, with its start time, which distinguishes it from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Clock ticks between the machine's start and its own.
    pub started: u64,
}

impl Process {
    /// The process with this number, if it lives.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything: count from the last one.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        // A zombie serves nobody; where nothing reaps orphans it would stay for ever. While other threads of it end, its sockets
        // are open, and take connections that nobody answers.
        let threads: u32 = fields.get(17)?.parse().ok()?;
        let alive = !matches!(*fields.first()?, "Z" | "X") || threads > 1;
        Some(Self { pid, started: fields.get(19)?.parse().ok()? }).filter(|_| alive)
    }

    /// The number of its parent.
    #[must_use]
    pub fn parent(self) -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    }

    /// Its first child that lives.
    #[must_use]
    pub fn child(self) -> Option<Self> {
        let path = format!("/proc/{}/task/{}/children", self.pid, self.pid);
        let children = fs::read_to_string(path).ok()?;
        children.split_whitespace().find_map(|child| Self::of(child.parse().ok()?))
    }

    /// Whether it still lives.
    #[must_use]
    pub fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Waits for its end.
    pub fn wait(self, limit: Duration) -> Result<()> {
        let began = Instant::now();
        while self.lives() {
            if limit < began.elapsed() {
                bail!(
                    "process {} did not end within {limit:?}; its threads are in {}",
                    self.pid,
                    self.waits()
                );
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// State of each thread and the kernel's functions it is in, for the report of a failed wait.
    fn waits(self) -> String {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let one = |thread: PathBuf| {
            let stack = text(thread.join("stack"));
            let calls = stack.lines().filter_map(|line| line.split_whitespace().last()).take(6);
            let status = text(thread.join("status"));
            let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or("gone");
            format!(
                "{}: {state}: {}",
                text(thread.join("comm")).trim(),
                calls.collect::<Vec<_>>().join(" < ")
            )
        };
        threads.map(|thread| one(thread.path())).collect::<Vec<_>>().join("; ")
    }

    /// Sends a signal, if it still lives.
    pub fn signal(self, signal: Signal) -> Result<()> {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.lives()) else { return Ok(()) };
        match kill_process(pid, signal) {
            // It ended meanwhile.
            Err(Errno::SRCH) => Ok(()),
            sent => sent.with_context(|| format!("signal to {}", self.pid)),
        }
    }

    /// Ends it at once, as a crash would.
    pub fn kill(self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.wait(Duration::from_secs(100))
    }

    /// Open file descriptors, for tests that look for leaks.
    pub fn open_files(self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid))?.count())
    }

    /// Threads.
    pub fn threads(self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/task", self.pid))?.count())
    }

    /// The CPU time that it has used.
    pub fn cpu(self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        let (_, fields) = stat.rsplit_once(')').context("no name in the state of a process")?;
        // utime and stime (proc(5)), in ticks of a hundredth of a second.
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        Ok(Duration::from_millis(ticks.sum::<Result<u64, _>>()? * 10))
    }

    /// Resident memory in bytes.
    pub fn resident(self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// The most memory that was ever resident, in bytes.
    pub fn most_resident(self) -> Result<u64> {
        self.memory("VmHWM:")
    }

    fn memory(self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line =
            status.lines().find_map(|l| l.strip_prefix(field)).with_context(|| format!("no {field}"))?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? << 10)
    }
}

/// The processes of `SERVERS` that were started for `target`.
pub fn serving(target: &Path) -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that ends while we look is no longer one.
        let Ok(arguments) = fs::read(format!("/proc/{pid}/cmdline")) else { continue };
        if is_server(&arguments) && mounts::names(&arguments, target) {
            found.extend(Process::of(pid));
        }
    }
    Ok(found)
}

/// The one process that serves `target`; with `restart=keep` its keeper, whose child that is.
pub fn server_of(target: &Path) -> Result<Process> {
    let mut all = serving(target)?;
    let known = all.clone();
    all.retain(|process| !process.parent().is_some_and(|parent| known.iter().any(|one| one.pid == parent)));
    match all.as_slice() {
        [one] => Ok(*one),
        [] => bail!("no daemon serves {}", target.display()),
        many => bail!("{} daemons serve {}", many.len(), target.display()),
    }
}

/// Every process of that program, by the first of its arguments.
pub(crate) fn of_program(program: &str) -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Some(process) = Process::of(pid) else { continue };
        let words = server::arguments(process);
        if words.first().is_some_and(|first| first.rsplit('/').next() == Some(program)) {
            found.push(process);
        }
    }
    Ok(found)
}

fn is_server(arguments: &[u8]) -> bool {
    let program = arguments.split(|&b| b == 0).next().unwrap_or_default();
    let name = program.rsplit(|&b| b == b'/').next().unwrap_or_default();
    SERVERS.iter().any(|server| server.as_bytes() == name)
}

/// The `mount.fsstack` under test: FSSTACK_BIN, or the one built beside the running program.
pub fn helper() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("FSSTACK_BIN") {
        let given = PathBuf::from(given);
        return given.canonicalize().with_context(|| format!("FSSTACK_BIN={}", given.display()));
    }
    let me = std::env::current_exe()?;
    let targets = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let near = me.ancestors().skip(1).take(4).map(Path::to_owned);
    let dirs = near.chain(targets).flat_map(|dir| [dir.clone(), dir.join("release"), dir.join("debug")]);
    dirs.map(|dir| dir.join(BUILT))
        .find(|candidate| candidate.is_file())
        .context("no mount-fsstack: run `cargo build -p fsstack-daemon -p fsstack-cli`, or set FSSTACK_BIN")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_live_and_are_no_server() {
        let me = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(me.lives());
        assert!(0 < me.open_files().unwrap() && 0 < me.resident().unwrap());
        assert!(!Process { started: me.started + 1, ..me }.lives());
        assert_eq!(serving(Path::new("/nowhere")).unwrap(), []);
    }

    #[test]
    fn only_known_programs_are_servers() {
        assert!(is_server(b"/x/mount.fsstack\0/a\0/mnt\0"));
        assert!(!is_server(b"umount\0/mnt\0"));
    }
}
