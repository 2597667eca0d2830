//! Effect of a hung branch on others: latency of reads, writes and stats on three branches, before the fourth one's
//! server is stopped, and from the first answered call in it.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fsstack_lab::branch::{Kind, Layout};
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::daemon;
use fsstack_lab::shell::{command, which};
use fsstack_lab::{Branch, Skip};
use rustix::process::Signal;

use crate::relocate::{Latencies, OTHER, Until, latencies, lay_out, put};
use crate::report::{Sense, Table};

/// Far longer than the timeout.
const LONG: Duration = Duration::from_secs(20);
const OPTIONS: &str =
    "create=ff,minfreespace=0,write-path=stacked,attr-timeout=0,entry-timeout=0,branch-timeout=2";
/// Number of programs that keep calling the hung branch.
const STUCK: usize = 8;

pub(crate) fn run(rounds: usize, tables: &mut Vec<Table>) -> Result<()> {
    if which("mergerfs").is_none() {
        Skip::because("needs mergerfs, which serves the branches").announce();
        return Ok(());
    }
    let home = cleanup::fresh("figures-frozen")?;
    let _home = Entry::dir(&home)?;
    let branches = ["a", "b", "c", "d"].map(|name| Branch::make(name, Kind::Served, Layout::Sparse, &home));
    let [a, b, c, d] = branches;
    let (frozen, others) = (a?, [b?, c?, d?]);
    let target = home.join("pool");
    let _target = Entry::dir(&target)?;
    let title = "Latency of files on three branches while a fourth hangs, microseconds";
    let mut table = Table::new(title, Sense::LessIsBetter);
    table.compare("hanging", &["before"], "hanging to before");
    table
        .notes
        .push(format!("one thread, two files; {STUCK} others ask the branch that hangs; `-o {OPTIONS}`"));
    fs::write(frozen.path().join("there"), "x")?;
    for branch in &others {
        lay_out(&branch.path().join(format!("other-{}", branch.name())), OTHER)?;
    }
    for _ in 0..rounds {
        let mount = Entry::mount(&target)?;
        let paths = [&frozen].into_iter().chain(&others).map(|branch| branch.path().display().to_string());
        let source = paths.collect::<Vec<_>>().join(":");
        command(daemon::helper()?).arg(source).arg(&target).args(["-o", OPTIONS]).run()?;
        fs::metadata(target.join("there"))?;
        let open = |name: &str| OpenOptions::new().read(true).write(true).open(target.join(name));
        let files = [open("other-b")?, open("other-d")?];
        for (name, samples) in latencies(&files, &Until::Passed(Duration::from_secs(3)))? {
            put(&mut table, name, "before", samples);
        }
        let server = frozen.daemon();
        server.signal(Signal::STOP)?;
        let measured = beside_the_stuck(&target, &files);
        server.signal(Signal::CONT)?;
        let (waited, measured) = measured?;
        ensure!(waited < LONG, "nobody was answered");
        for (name, samples) in measured {
            put(&mut table, name, "hanging", samples);
        }
        table.put("first answer to who asked the branch, ms", "hanging", waited.as_secs_f64() * 1e3);
        drop(files);
        mount.undo().context("unmounting")?;
    }
    tables.push(table);
    Ok(())
}

/// Wait of the first caller of the hung branch, and latencies of the others from then on.
fn beside_the_stuck(pool: &Path, files: &[File; 2]) -> Result<(Duration, Latencies)> {
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..STUCK {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    // Each gets an error, sooner or later; only the number matters.
                    let _result = fs::metadata(pool.join("there"));
                    answered.fetch_add(1, Relaxed);
                    thread::sleep(Duration::from_millis(50));
                }
            });
        }
        let began = Instant::now();
        while answered.load(Relaxed) == 0 && began.elapsed() < LONG {
            thread::sleep(Duration::from_millis(10));
        }
        let waited = began.elapsed();
        let measured = latencies(files, &Until::Passed(Duration::from_secs(3)));
        over.store(true, Relaxed);
        measured.map(|measured| (waited, measured))
    })
}
