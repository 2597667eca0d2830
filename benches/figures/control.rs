//! Cost of monitoring a pool: status and metrics once a second, compared with a pool that is not monitored.
//!
//! The counters are kept in both cases; the difference is the answering threads and their reads. Also measured is the
//! client's cost: a status of sixteen branches while programs work.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use fsstack_lab::daemon;
use fsstack_lab::shell::command;

use crate::report::{Sense, Table};
use crate::test_bed::{CACHES_ON, Contender, Server, TestBed};
use crate::{data, metadata};

const ALONE: &str = "left-alone";
const ASKED: &str = "asked";
const PAUSE: Duration = Duration::from_secs(1);
const BRANCHES: usize = 16;
const WORKERS: usize = 4;

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlAmount {
    pub(crate) metadata: metadata::MetadataAmount,
    pub(crate) data: data::DataAmount,
    /// Number of timed status requests.
    pub(crate) statuses: usize,
}

pub(crate) fn run(test_bed: &TestBed, amount: ControlAmount, tables: &mut Vec<Table>) -> Result<()> {
    let own = &["minfreespace=64M", "passthrough-headroom=64M"][..];
    let contenders = [
        Contender::new(ALONE, Server::Fsstack, &[own, CACHES_ON]),
        Contender::new(ASKED, Server::Fsstack, &[own, CACHES_ON, &["metrics=127.0.0.1:0"]]),
    ];
    let standing = test_bed.stand_all(&contenders)?;
    let asked = standing.iter().find(|(of, _)| of.name == ASKED).context("nobody is asked")?.1.path();
    let over = AtomicBool::new(false);
    let tables_made = std::thread::scope(|scope| {
        let asker = scope.spawn(|| ask_until(&over, asked));
        let teams = standing.iter().map(|(of, at)| (*of, at)).collect::<Vec<_>>();
        let made = metadata_table(&teams, amount.metadata)
            .and_then(|metadata| Ok([metadata, data_table(&teams, amount.data)?]));
        over.store(true, Ordering::Relaxed);
        asker.join().map_err(|_| anyhow!("who asks panicked"))?.and(made)
    })?;
    tables.extend(tables_made);
    standing.into_iter().try_for_each(|(_, at)| at.fall())?;
    tables.push(status_table(test_bed, amount.statuses)?);
    Ok(())
}

type Stands<'a> = [(&'a Contender, &'a crate::test_bed::Standing)];

/// Requests like those of an operator's `watch` and a collector, by the real programs.
fn ask_until(over: &AtomicBool, pool: &Path) -> Result<()> {
    let program = daemon::helper()?.with_file_name("fsstack");
    while !over.load(Ordering::Relaxed) {
        command(&program).args(["status", "--json"]).arg(pool).run()?;
        command(&program).arg("metrics").arg(pool).run()?;
        sleep(PAUSE);
    }
    Ok(())
}

fn metadata_table(standing: &Stands<'_>, amount: metadata::MetadataAmount) -> Result<Table> {
    let mut table =
        Table::new("Operations a second, one client, of a pool that is asked", Sense::MoreIsBetter);
    table.compare(ASKED, &[ALONE], "asked to left alone");
    metadata::rounds(standing, metadata::ONE, amount, &mut table, None)?;
    Ok(table)
}

fn data_table(standing: &Stands<'_>, amount: data::DataAmount) -> Result<Table> {
    let mut table = Table::new("MiB a second by passthrough, of a pool that is asked", Sense::MoreIsBetter);
    table.compare(ASKED, &[ALONE], "asked to left alone");
    data::rounds(standing, amount, &mut table)?;
    Ok(table)
}

fn status_table(test_bed: &TestBed, count: usize) -> Result<Table> {
    let title = format!("Milliseconds of `fsstack status`, {BRANCHES} branches, {WORKERS} programs at work");
    let mut table = Table::new(&title, Sense::LessIsBetter);
    let at =
        test_bed.stand(&Contender::new("status", Server::Fsstack, &[&["minfreespace=64M"]]), BRANCHES)?;
    let program = daemon::helper()?.with_file_name("fsstack");
    // Timed by the shell: the lab checks for a command's end only every few milliseconds.
    let script = r#"began=$(date +%s%N); "$0" status "$1" > /dev/null; echo $(($(date +%s%N) - began))"#;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|n| {
                scope.spawn({
                    let (at, over) = (at.path(), &over);
                    move || work(at, n, over)
                })
            })
            .collect();
        let timed = (0..count).try_for_each(|_| {
            let output = command("sh").args(["-c", script]).arg(&program).arg(at.path()).run()?;
            table.put("fork to exit", "fsstack status", output.stdout.trim().parse::<f64>()? / 1e6);
            anyhow::Ok(())
        });
        over.store(true, Ordering::Relaxed);
        let worked =
            workers.into_iter().map(|worker| worker.join().map_err(|_| anyhow!("a worker panicked"))?);
        worked.collect::<Result<Vec<()>>>().and(timed)
    })?;
    at.fall()?;
    Ok(table)
}

/// Writes, reads and removes a file of 64 KiB without pauses.
fn work(pool: &Path, number: usize, over: &AtomicBool) -> Result<()> {
    let (file, bytes) = (pool.join(format!("worker-{number}")), vec![0x5a; 64 << 10]);
    while !over.load(Ordering::Relaxed) {
        fs::write(&file, &bytes)?;
        fs::read(&file)?;
        fs::remove_file(&file)?;
    }
    Ok(())
}
