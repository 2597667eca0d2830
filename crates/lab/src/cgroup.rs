//! Groups of the kernel's cpu, memory and pids controllers (cgroup v1 or v2) for daemons and their clients.

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
        joined("cpu", &self.path)
    }
}

/// A group whose memory, page cache included, is limited. Removed on drop, when it must be empty.
#[derive(Debug)]
pub struct MemoryGroup {
    path: PathBuf,
    _entry: Entry,
}

impl MemoryGroup {
    /// Makes one that may use so many bytes; its name differs from those of other runs.
    pub fn new(name: &str, bytes: u64) -> Result<Self> {
        let top =
            top_of("memory")?.context("no memory controller is mounted here, or it is not switched on")?;
        let path = top.join(format!("fsstack-{name}-{}", std::process::id()));
        let entry = Entry::kernel_dir(&path)?;
        let known = ["memory.max", "memory.limit_in_bytes"].into_iter().find(|file| path.join(file).exists());
        let limit = path.join(known.with_context(|| format!("{} has no limit", path.display()))?);
        fs::write(&limit, bytes.to_string()).with_context(|| limit.display().to_string())?;
        Ok(Self { path, _entry: entry })
    }

    /// Moves this process, and what it starts, here until the result is dropped.
    pub fn join(&self) -> Result<Joined> {
        joined("memory", &self.path)
    }
}

/// Most memory that this process's groups allow, page cache included; `None` without a limit.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let top = top_of("memory").ok().flatten()?;
    let own = own_group("memory").ok()?;
    let dirs = Path::new(own.trim_start_matches('/')).ancestors();
    let limit = |dir: &Path| {
        let read = |file| fs::read_to_string(top.join(dir).join(file)).ok();
        let text = read("memory.max").or_else(|| read("memory.limit_in_bytes"))?;
        text.trim().parse::<u64>().ok()
    };
    // cgroup v1 says "none" by the largest number of pages.
    dirs.filter_map(limit).min().filter(|&least| least < i64::MAX as u64 >> 1)
}

/// Moves this process to a group of a controller.
fn joined(controller: &str, group: &Path) -> Result<Joined> {
    let top = top_of(controller)?.with_context(|| format!("the {controller} controller is gone"))?;
    let joined = Joined(top.join(own_group(controller)?.trim_start_matches('/')).join(MEMBERS));
    let members = group.join(MEMBERS);
    fs::write(&members, std::process::id().to_string()).with_context(|| members.display().to_string())?;
    Ok(joined)
}

/// This process's group of a controller, below the root of its hierarchy.
pub(crate) fn own_group(controller: &str) -> Result<String> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let ours = text.lines().filter_map(|line| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
        [_, controllers, path] if controllers.split(',').any(|one| one == controller) => Some((false, path)),
        [_, "", path] => Some((true, path)),
        _ => None,
    });
    // A controller's own hierarchy takes precedence over the unified one.
    let (_, path) = ours.min_by_key(|(unified, _)| *unified).context("this process is in no group")?;
    Ok(path.to_owned())
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

/// Root of a controller's hierarchy, as [`top`].
pub(crate) fn top_of(controller: &str) -> Result<Option<PathBuf>> {
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
