//! Costs of jobs for others: latency of other files beside a drain, the bytes that a balance moves, and the memory of a plan.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fsstack_lab::branch::{Kind, Layout};
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::shell::{Finished, command};
use fsstack_lab::{Branch, MiB, daemon};
use rustix::fs::statvfs;

use crate::jobs::{JobsAmount, LARGE, LIMIT, small_files};
use crate::relocate::{Until, latencies, lay_out, put};
use crate::report::{Sense, Table};

/// Time for which an idle pool is measured.
const IDLE: Duration = Duration::from_secs(3);
/// Most that the p99 beside a job may be, as a multiple of the idle one.
const BAR: f64 = 2.0;
/// Files in a directory of those that a plan has.
const IN_DIR: usize = 10_000;
/// Hundredths of a branch's size that branches may be apart after a balance, its default.
const APART: f64 = 0.02;

pub(crate) fn run(amount: JobsAmount, tables: &mut Vec<Table>) -> Result<()> {
    let home = cleanup::fresh("figures-job-costs")?;
    let _home = Entry::dir(&home)?;
    tables.push(beside_drains(&home, amount)?);
    tables.push(balance(&home, amount.large)?);
    tables.push(memory_of_a_plan(&home, amount.planned)?);
    Ok(())
}

/// A pool with two branches, mounted.
struct TwoBranches {
    mount: Entry,
    _target: Entry,
    pool: std::path::PathBuf,
    a: Branch,
    b: Branch,
}

impl TwoBranches {
    fn mount(home: &Path, size: MiB, options: &str) -> Result<Self> {
        let make = |name: &str| Branch::make(name, Kind::Xfs(size), Layout::Preallocated, home);
        let (a, b) = (make("a")?, make("b")?);
        let pool = home.join("pool");
        let target = Entry::dir(&pool)?;
        let mount = Entry::mount(&pool)?;
        let source = format!("{}:{}", a.path().display(), b.path().display());
        command(daemon::helper()?).arg(source).arg(&pool).args(["-o", options]).run()?;
        Ok(Self { mount, _target: target, pool, a, b })
    }

    fn fsstack(&self, words: &[&str]) -> Result<Finished> {
        let fsstack = daemon::helper()?.with_file_name("fsstack");
        let (verb, rest) = words.split_first().context("no words")?;
        let (verb, rest) = match (*verb, rest.split_first()) {
            ("branch", Some((what, rest))) => (vec!["branch", *what], rest),
            _ => (vec![*verb], rest),
        };
        command(fsstack).args(verb).arg(&self.pool).args(rest).limit(LIMIT).output()?.check()
    }
}

/// Latency of two files on a branch to which another one is drained.
fn beside_drains(home: &Path, amount: JobsAmount) -> Result<Table> {
    let mut table = Table::new("Latency of other files beside a drain, microseconds", Sense::LessIsBetter);
    table.compare("large files", &["idle"], "large to idle");
    table.compare("small files", &["idle"], "small to idle");
    let bed = TwoBranches::mount(home, MiB(amount.large * LARGE + 1024), "minfreespace=64M")?;
    let names = ["other-1", "other-2"];
    names.iter().try_for_each(|name| lay_out(&bed.b.path().join(name), crate::relocate::OTHER))?;
    let open = |name: &str| OpenOptions::new().read(true).write(true).open(bed.pool.join(name));
    let others = [open(names[0])?, open(names[1])?];
    let data = bed.a.path().join("data");
    for _ in 0..amount.rounds {
        put_all(&mut table, "idle", &others, &Until::Passed(IDLE))?;
        for column in ["large files", "small files"] {
            fs::create_dir(&data)?;
            if column == "large files" {
                (0..amount.large).try_for_each(|n| lay_out(&data.join(n.to_string()), LARGE))?;
            } else {
                small_files(&data, amount.small)?;
            }
            [&bed.a, &bed.b]
                .iter()
                .try_for_each(|at| command("sync").arg("-f").arg(at.path()).run().map(drop))?;
            let branch = bed.a.path().display().to_string();
            let fsstack = daemon::helper()?.with_file_name("fsstack");
            let drain = command(fsstack).args(["branch", "drain"]).arg(&bed.pool).arg(&branch).limit(LIMIT);
            let drains = thread::spawn(move || drain.run().map(drop).map_err(std::io::Error::other));
            put_all(&mut table, column, &others, &Until::Finished(&drains))?;
            drains.join().map_err(|_| anyhow::anyhow!("the thread of the drain panicked"))??;
            bed.fsstack(&["branch", "mode", &branch, "RW"])?;
            fs::remove_dir_all(bed.pool.join("data"))?;
        }
    }
    for column in ["large files", "small files"] {
        for row in ["read 4 KiB, p99", "stat, p99"] {
            if let (Some(idle), Some(beside)) = (table.median_of(row, "idle"), table.median_of(row, column)) {
                let (times, met) = (beside / idle, if beside <= BAR * idle { "met" } else { "missed" });
                table.notes.push(format!("{row} beside a drain of {column}: {times:.2}; bar {BAR}: {met}"));
            }
        }
    }
    table.notes.push(format!(
        "one thread, two files on the other branch; {} files of {LARGE} MiB, {} of 4 KiB",
        amount.large, amount.small
    ));
    drop(others);
    bed.mount.undo()?;
    Ok(table)
}

fn put_all(table: &mut Table, column: &str, files: &[File; 2], until: &Until<'_>) -> Result<()> {
    for (name, samples) in latencies(files, until)? {
        put(table, name, column, samples);
    }
    Ok(())
}

/// Bytes that a balance moves, and the least that would do.
fn balance(home: &Path, large: u64) -> Result<Table> {
    let mut table = Table::new("Bytes that a balance moves, MiB", Sense::LessIsBetter);
    table.compare("moved", &["least"], "moved to the least");
    for (row, file) in [("files of 16 MiB", 16), ("files of 1 MiB", 1)] {
        let bed = TwoBranches::mount(home, MiB(large * LARGE + 1024), "minfreespace=64M")?;
        (0..large * LARGE / file).try_for_each(|n| lay_out(&bed.a.path().join(n.to_string()), file))?;
        [&bed.a, &bed.b]
            .iter()
            .try_for_each(|at| command("sync").arg("-f").arg(at.path()).run().map(drop))?;
        let free = |at: &Branch| -> Result<(f64, f64)> {
            let stat = statvfs(at.path())?;
            Ok(((stat.f_bavail * stat.f_frsize) as f64, (stat.f_blocks * stat.f_frsize) as f64))
        };
        let ((free_a, size), (free_b, _)) = (free(&bed.a)?, free(&bed.b)?);
        let least = ((free_b - free_a) - APART * size).max(0.0) / 2.0;
        bed.fsstack(&["balance"])?;
        let moved = free(&bed.a)?.0 - free_a;
        ensure!(moved > 0.0, "nothing was moved");
        table.put(row, "least", least / f64::from(1 << 20));
        table.put(row, "moved", moved / f64::from(1 << 20));
        bed.mount.undo()?;
    }
    table.notes.push(
        "two branches, of which one was empty; they may be 2 % of their size apart afterwards".to_owned(),
    );
    Ok(table)
}

/// Memory of the daemon while it lists empty files for a job.
fn memory_of_a_plan(home: &Path, files: usize) -> Result<Table> {
    let mut table =
        Table::new(&format!("Memory for a plan of {files} files, MiB more than before"), Sense::LessIsBetter);
    let jobs: [(&str, &[&str]); 2] =
        [("consolidate", &["consolidate", "/many", "--dry-run"]), ("balance", &["balance", "--dry-run"])];
    let bed = TwoBranches::mount(home, MiB(1024 + files as u64 / 500), "minfreespace=64M")?;
    let many = bed.a.path().join("many");
    for n in 0..files {
        let dir = many.join((n / IN_DIR).to_string());
        if n.is_multiple_of(IN_DIR) {
            fs::create_dir_all(&dir)?;
        }
        File::create(dir.join(format!("file-{n:07}")))?;
    }
    let to = bed.b.path().display().to_string();
    for (job, words) in jobs {
        let daemon = daemon::server_of(&bed.pool)?;
        let before = daemon.most_resident()?;
        let inside = bed.pool.join("many").display().to_string();
        let mut words: Vec<&str> =
            words.iter().map(|word| if *word == "/many" { inside.as_str() } else { word }).collect();
        if job == "consolidate" {
            words.extend(["--to", to.as_str()]);
        }
        let planned = bed.fsstack(&words)?;
        let more = daemon.most_resident()? - before;
        table.put(job, "fsstack", more as f64 / f64::from(1 << 20));
        table.notes.push(format!("{job}: {}", planned.stdout.lines().next().unwrap_or_default()));
    }
    bed.mount.undo()?;
    Ok(table)
}
