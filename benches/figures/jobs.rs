//! Drains of a branch, beside what an operator would run between the branches: `cp -a` and `rsync -aHAX`.
//!
//! Both end with everything on disk: a drain syncs each file before the old one goes, the copies sync the file system at their end.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fsstack_lab::branch::{Kind, Layout};
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::daemon;
use fsstack_lab::shell::command;
use fsstack_lab::{Branch, MiB};

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
    for round in 0..amount.rounds {
        for turn in 0..2 {
            let by_drain = (round + turn).is_multiple_of(2);
            let data = a.path().join("data");
            fs::create_dir(&data)?;
            (0..amount.large).try_for_each(|n| lay_out(&data.join(n.to_string()), LARGE))?;
            let took = moved(&a, &b, &target, by_drain, &["cp", "-a"])?;
            let mib = (amount.large * LARGE) as f64;
            large.put("large files", if by_drain { "drain" } else { "cp -a" }, mib / took.as_secs_f64());

            fs::create_dir(&data)?;
            small_files(&data, amount.small)?;
            let took = moved(&a, &b, &target, by_drain, &["rsync", "-aHAX"])?;
            let files = amount.small as f64;
            small.put(
                "small files",
                if by_drain { "drain" } else { "rsync -aHAX" },
                files / took.as_secs_f64(),
            );
        }
    }
    tables.extend([large, small]);
    Ok(())
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
fn moved(a: &Branch, b: &Branch, target: &Path, by_drain: bool, copy: &[&str]) -> Result<Duration> {
    [a, b].iter().try_for_each(|branch| command("sync").arg("-f").arg(branch.path()).run().map(drop))?;
    let data = a.path().join("data");
    let took = if by_drain {
        let mount = Entry::mount(target)?;
        let source = format!("{}:{}", a.path().display(), b.path().display());
        command(daemon::helper()?).arg(source).arg(target).args(["-o", "minfreespace=64M"]).run()?;
        let fsstack = daemon::helper()?.with_file_name("fsstack");
        let began = Instant::now();
        command(&fsstack).args(["branch", "drain"]).arg(target).arg(a.path()).limit(LIMIT).run()?;
        let took = began.elapsed();
        command(&fsstack).args(["branch", "mode"]).arg(target).arg(a.path()).arg("RW").run()?;
        mount.undo()?;
        took
    } else {
        let (program, options) = copy.split_first().context("no program")?;
        let began = Instant::now();
        command(program).args(options).arg(&data).arg(b.path()).limit(LIMIT).run()?;
        command("sync").arg("-f").arg(b.path()).run()?;
        began.elapsed()
    };
    ensure!(b.path().join("data").exists(), "nothing was brought over");
    for left in [data, b.path().join("data")].iter().filter(|left| left.exists()) {
        fs::remove_dir_all(left)?;
    }
    Ok(took)
}
