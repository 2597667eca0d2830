//! Where the daemon stands among those who share the CPUs: in a session of its own, in a cpu cgroup of its own, and in one
//! with the programs that use it; each alone and beside a busy loop on each CPU.
//!
//! The kernel shares a CPU out among groups first, and among the threads of a group then: SCHED_IDLE counts inside a group
//! only (docs/performance.md).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::ground::{CACHES_ON, Contender, Ground, Server};
use crate::metadata::{self, Amount};
use crate::report::{Sense, Table};

/// Daemons that are groups of their own.
const APART: &[(&str, &[&str])] = &[
    ("dev-session", &["transport=dev"]),
    ("ring-session", &["transport=ring"]),
    ("dev-cgroup", &["transport=dev", "door-scheduling=idle"]),
    ("ring-cgroup", &["transport=ring", "door-scheduling=idle"]),
];

/// Daemons that share a group with their clients.
const TOGETHER: &[(&str, &[&str])] = &[
    ("dev-auto", &["transport=dev"]),
    ("ring-auto", &["transport=ring"]),
    ("dev-nice", &["transport=dev", "door-scheduling=nice"]),
    ("ring-nice", &["transport=ring", "door-scheduling=nice"]),
];

pub(crate) fn run(ground: &Ground, amount: Amount, tables: &mut Vec<Table>) -> Result<()> {
    let Some(home) = controller()? else {
        let mut table = Table::new("Operations a second, by the daemon's group", Sense::MoreIsBetter);
        table.notes.push("not measured: no cpu controller is mounted here".into());
        tables.push(table);
        return Ok(());
    };
    let own = Group::new(&home, "fsstack-figures-daemon")?;
    let named = |name: &&str| name.ends_with("-cgroup");
    measure(ground, amount, APART, "the daemon in a session, in a cpu cgroup", tables, |name, pid| {
        if named(&name) { own.enter(pid) } else { Ok(()) }
    })?;
    let shared = Group::new(&home, "fsstack-figures-all")?;
    let _back = shared.join(&home)?;
    measure(ground, amount, TOGETHER, "the daemon in its clients' cgroup", tables, |_, pid| shared.enter(pid))
}

fn measure(
    ground: &Ground,
    amount: Amount,
    daemons: &[(&'static str, &[&'static str])],
    what: &str,
    tables: &mut Vec<Table>,
    settle: impl Fn(&str, i32) -> Result<()>,
) -> Result<()> {
    let room = &["minfreespace=64M", "passthrough-headroom=64M"][..];
    let contenders: Vec<_> = daemons
        .iter()
        .map(|(name, options)| Contender::new(name, Server::Fsstack, &[room, CACHES_ON, options]))
        .collect();
    let standing = ground.stand_all(&contenders)?;
    for (of, at) in &standing {
        settle(of.name, at.daemon()?.pid)?;
    }
    let stands: Vec<_> = standing.iter().map(|(of, at)| (*of, at)).collect();
    for crowd in [metadata::ONE, metadata::HARD_PRESSED] {
        let amount = if crowd.has_hogs() { amount.a_fifth() } else { amount };
        let mut table = Table::new(&format!("{}; {what}", crowd.title()), Sense::MoreIsBetter);
        metadata::rounds(&stands, crowd, amount, &mut table, None)?;
        tables.push(table);
    }
    standing.into_iter().try_for_each(|(_, at)| at.fall())
}

/// The directory of our own group below the cpu controller, if that is mounted.
fn controller() -> Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let has_cpu = |mount: &[&str]| match mount {
        [_, at, "cgroup", options, ..] => {
            options.split(',').any(|option| option == "cpu").then(|| at.to_string())
        }
        [_, at, "cgroup2", ..] => {
            let there = fs::read_to_string(Path::new(at).join("cgroup.subtree_control")).unwrap_or_default();
            there.split_whitespace().any(|name| name == "cpu").then(|| at.to_string())
        }
        _ => None,
    };
    let found = mounts.lines().find_map(|line| has_cpu(&line.split(' ').collect::<Vec<_>>()));
    Ok(found.map(PathBuf::from))
}

/// A cgroup of this run, removed when it drops: nobody is in it any more then.
struct Group(PathBuf);

impl Group {
    fn new(home: &Path, name: &str) -> Result<Self> {
        let path = home.join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(error).with_context(|| path.display().to_string())
            }
            _ => Ok(Self(path)),
        }
    }

    fn enter(&self, pid: i32) -> Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).with_context(|| self.0.display().to_string())
    }

    /// This process, and what it starts, until the answer drops.
    fn join(&self, home: &Path) -> Result<Back> {
        let before = fs::read_to_string("/proc/self/cgroup")?;
        let ours = before.lines().find_map(|line| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
            [_, controllers, path]
                if controllers.is_empty() || controllers.split(',').any(|one| one == "cpu") =>
            {
                Some(path.trim_start_matches('/').to_owned())
            }
            _ => None,
        });
        let back = Back(home.join(ours.unwrap_or_default()));
        self.enter(i32::try_from(std::process::id())?)?;
        Ok(back)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

/// Where this process was before.
struct Back(PathBuf);

impl Drop for Back {
    fn drop(&mut self) {
        if let Err(error) = fs::write(self.0.join("cgroup.procs"), std::process::id().to_string()) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}
