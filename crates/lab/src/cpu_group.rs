//! Groups of the kernel's cpu and pids controllers (cgroup v1 or v2) for daemons and their clients.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cleanup::Entry;

/// File by which a process enters a group.
const MEMBERS: &str = "cgroup.procs";

/// A group of this run, removed on drop, when it must be empty.
#[derive(Debug)]
pub struct CpuGroup {
    path: PathBuf,
    _entry: Entry,
}

impl CpuGroup {
    /// Makes one; its name differs from those of other runs.
    pub fn new(name: &str) -> Result<Self> {
        let top = top()?.context("no cpu controller is mounted here, or it is not switched on for groups")?;
        let path = top.join(format!("fsstack-{name}-{}", std::process::id()));
        let entry = Entry::kernel_dir(&path)?;
        let weight = ["cpu.weight", "cpu.shares"].into_iter().any(|file| path.join(file).exists());
        ensure!(weight, "{} has no weight of its own", path.display());
        Ok(Self { path, _entry: entry })
    }

    /// File to which a process's number is written to move it here.
    #[must_use]
    pub fn members(&self) -> PathBuf {
        self.path.join(MEMBERS)
    }

    /// Puts a process there.
    pub fn enter(&self, pid: i32) -> Result<()> {
        fs::write(self.members(), pid.to_string()).with_context(|| self.path.display().to_string())
    }

    /// Moves this process, and what it starts, here until the result is dropped.
    pub fn join(&self) -> Result<Joined> {
        let top = top()?.context("the cpu controller is gone")?;
        let before = fs::read_to_string("/proc/self/cgroup")?;
        let ours = before.lines().filter_map(|line| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
            [_, controllers, path] if controllers.split(',').any(|one| one == "cpu") => Some((false, path)),
            [_, "", path] => Some((true, path)),
            _ => None,
        });
        // A controller's own hierarchy takes precedence over the unified one.
        let (_, path) = ours.min_by_key(|(unified, _)| *unified).context("this process is in no group")?;
        let joined = Joined(top.join(path.trim_start_matches('/')).join(MEMBERS));
        self.enter(i32::try_from(std::process::id())?)?;
        Ok(joined)
    }
}

/// A group with counted and limited threads, as with `TasksMax=` of a service. Removed on drop.
#[derive(Debug)]
pub struct PidsGroup {
    path: PathBuf,
    _entry: Entry,
}

impl PidsGroup {
    /// Makes one; its name differs from those of other runs.
    pub fn new(name: &str) -> Result<Self> {
        let top = top_of("pids")?.context("no pids controller is mounted here, or it is not switched on")?;
        let path = top.join(format!("fsstack-{name}-{}", std::process::id()));
        let entry = Entry::kernel_dir(&path)?;
        Ok(Self { path, _entry: entry })
    }

    /// Puts a process there, with all of its threads.
    pub fn enter(&self, pid: i32) -> Result<()> {
        fs::write(self.path.join(MEMBERS), pid.to_string()).with_context(|| self.path.display().to_string())
    }

    /// Lets `more` threads start, and no further ones.
    pub fn bound(&self, more: u64) -> Result<()> {
        let now: u64 = fs::read_to_string(self.path.join("pids.current"))?.trim().parse()?;
        let bound = (now + more).to_string();
        fs::write(self.path.join("pids.max"), bound).with_context(|| self.path.display().to_string())
    }

    /// Removes the limit.
    pub fn unbound(&self) -> Result<()> {
        fs::write(self.path.join("pids.max"), "max").with_context(|| self.path.display().to_string())
    }
}

/// Group of this process before it joined another; it returns there on drop.
#[derive(Debug)]
pub struct Joined(PathBuf);

impl Drop for Joined {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.0, std::process::id().to_string()) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

/// Root of the hierarchy with the cpu controller, if it is mounted and enabled for groups.
pub(crate) fn top() -> Result<Option<PathBuf>> {
    top_of("cpu")
}

fn top_of(controller: &str) -> Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let has_it = |mount: &[&str]| match mount {
        [_, at, "cgroup", options, ..] => {
            options.split(',').any(|option| option == controller).then(|| PathBuf::from(at))
        }
        [_, at, "cgroup2", ..] => {
            let on = fs::read_to_string(Path::new(at).join("cgroup.subtree_control")).unwrap_or_default();
            on.split_whitespace().any(|name| name == controller).then(|| PathBuf::from(at))
        }
        _ => None,
    };
    Ok(mounts.lines().find_map(|line| has_it(&line.split(' ').collect::<Vec<_>>())))
}
