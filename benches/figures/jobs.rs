//! Drains of a branch, beside what an operator would run between the branches: `cp -a` and `rsync -aHAX`.
//!
//! Both end with everything on disk: a drain syncs each file before the old one goes, the copies sync the file system at their end.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fsstack_bench::turns;
use fsstack_lab::branch::{Kind, Layout};
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::daemon;
use fsstack_lab::shell::command;
use fsstack_lab::{Branch, MiB};

use crate::least_calls;
use crate::relocate::lay_out;
use crate::report::{Sense, Table};

/// Size of a large file in MiB.
pub(crate) const LARGE: u64 = 256;
/// Files of 4 KiB in a directory.
const IN_DIR: usize = 1000;
/// Every so many of them has a second name.
const LINKED: usize = 10;
pub(crate) const LIMIT: Duration = Duration::from_secs(900);

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobsAmount {
    pub(crate) rounds: usize,
    /// Number of files of [`LARGE`] MiB.
    pub(crate) large: u64,
    /// Number of files of 4 KiB.
    pub(crate) small: usize,
    /// Number of files in a plan.
    pub(crate) planned: usize,
}

pub(crate) fn run(amount: JobsAmount, tables: &mut Vec<Table>) -> Result<()> {
    let home = cleanup::fresh("figures-jobs")?;
    let _home = Entry::dir(&home)?;
    let size = MiB(amount.large * LARGE + 1024);
    let make = |name: &str| Branch::make(name, Kind::Xfs(size), Layout::Preallocated, &home);
    let (a, b) = (make("a")?, make("b")?);
    let target = home.join("pool");
    let _target = Entry::dir(&target)?;

    let title = format!("Drain of {} files of {LARGE} MiB, MiB/s", amount.large);
    let mut large = Table::new(&title, Sense::MoreIsBetter);
    large.compare("drain", &["cp -a"], "drain to cp");
    let title = format!("Drain of {} files of 4 KiB, every {LINKED}th with two names, files/s", amount.small);
    let mut small = Table::new(&title, Sense::MoreIsBetter);
    small.compare("drain", &["rsync -aHAX"], "drain to rsync");
    small.compare("least calls", &["rsync -aHAX"], "least calls to rsync");
    let large_ways = [BringingOver::Drain, BringingOver::Copy(&["cp", "-a"])];
    let small_ways = [BringingOver::Drain, BringingOver::Copy(&["rsync", "-aHAX"]), BringingOver::LeastCalls];
    let data = a.path().join("data");
    for round in 0..amount.rounds {
        for &way in turns::of(&large_ways, round) {
            fs::create_dir(&data)?;
            (0..amount.large).try_for_each(|n| lay_out(&data.join(n.to_string()), LARGE))?;
            let mib = (amount.large * LARGE) as f64;
            large.put("large files", &way.name(), mib / moved(&a, &b, &target, way)?.as_secs_f64());
        }
        for &way in turns::of(&small_ways, round) {
            fs::create_dir(&data)?;
            small_files(&data, amount.small)?;
            let files = amount.small as f64;
            small.put("small files", &way.name(), files / moved(&a, &b, &target, way)?.as_secs_f64());
        }
    }
    tables.extend([large, small]);
    Ok(())
}

/// Way of bringing files to another branch.
#[derive(Clone, Copy, Debug)]
enum BringingOver {
    Drain,
    /// A program and its options.
    Copy(&'static [&'static str]),
    LeastCalls,
}

impl BringingOver {
    fn name(self) -> String {
        match self {
            Self::Drain => "drain".into(),
            Self::Copy(command) => command.join(" "),
            Self::LeastCalls => "least calls".into(),
        }
    }
}

pub(crate) fn small_files(data: &Path, count: usize) -> Result<()> {
    for n in 0..count {
        let dir = data.join((n / IN_DIR).to_string());
        if n.is_multiple_of(IN_DIR) {
            fs::create_dir(&dir)?;
        }
        let file = dir.join(n.to_string());
        fs::write(&file, [7; 4096])?;
        if n.is_multiple_of(LINKED) {
            fs::hard_link(&file, dir.join(format!("{n}-too")))?;
        }
    }
    Ok(())
}

/// Brings what is on `a` to `b`, where nothing is; returns how long that took. Both are empty afterwards.
fn moved(a: &Branch, b: &Branch, target: &Path, way: BringingOver) -> Result<Duration> {
    [a, b].iter().try_for_each(|branch| command("sync").arg("-f").arg(branch.path()).run().map(drop))?;
    let data = a.path().join("data");
    let took = match way {
        BringingOver::Drain => by_drain(a, b, target)?,
        BringingOver::Copy(copy) => {
            let (program, options) = copy.split_first().context("no program")?;
            let began = Instant::now();
            command(program).args(options).arg(&data).arg(b.path()).limit(LIMIT).run()?;
            command("sync").arg("-f").arg(b.path()).run()?;
            began.elapsed()
        }
        BringingOver::LeastCalls => {
            let began = Instant::now();
            least_calls::move_files(&data, &b.path().join("data"))?;
            began.elapsed()
        }
    };
    ensure!(b.path().join("data").exists(), "nothing was brought over");
    for left in [data, b.path().join("data")].iter().filter(|left| left.exists()) {
        fs::remove_dir_all(left)?;
    }
    Ok(took)
}

fn by_drain(a: &Branch, b: &Branch, target: &Path) -> Result<Duration> {
    let mount = Entry::mount(target)?;
    let source = format!("{}:{}", a.path().display(), b.path().display());
    command(daemon::helper()?).arg(source).arg(target).args(["-o", "minfreespace=64M"]).run()?;
    let fsstack = daemon::helper()?.with_file_name("fsstack");
    let began = Instant::now();
    command(&fsstack).args(["branch", "drain"]).arg(target).arg(a.path()).limit(LIMIT).run()?;
    let took = began.elapsed();
    command(&fsstack).args(["branch", "mode"]).arg(target).arg(a.path()).arg("RW").run()?;
    mount.undo()?;
    Ok(took)
}
