//! Effect of a moving file on others: latency of reads, writes and stats of other files, idle and meanwhile.
//!
//! A file of 2 GiB outgrows its branch. Until the write that found it full returns, one thread reads, writes and stats
//! two other files, one on each branch.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fsstack_lab::branch::{Kind, Layout};
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::daemon;
use fsstack_lab::shell::command;
use fsstack_lab::{Branch, MiB};
use rustix::fs::{FallocateFlags, fallocate};

use crate::report::{Sense, Table};

const PAGE: usize = 4096;
/// Size of each other file in MiB.
pub(crate) const OTHER: u64 = 32;
const OPTIONS: &str = "create=ff,minfreespace=64M,write-path=stacked,attr-timeout=0";

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelocateAmount {
    pub(crate) rounds: usize,
    /// Size of the moving file in MiB.
    pub(crate) mib: u64,
}

pub(crate) fn run(amount: RelocateAmount, tables: &mut Vec<Table>) -> Result<()> {
    let home = cleanup::fresh("figures-relocate")?;
    let _home = Entry::dir(&home)?;
    let make = |name: &str, size| Branch::make(name, Kind::Xfs(MiB(size)), Layout::Preallocated, &home);
    let (a, b) = (make("a", amount.mib + 400)?, make("b", amount.mib + 700)?);
    let target = home.join("pool");
    let _target = Entry::dir(&target)?;
    let title = format!("Latency of other files while one of {} MiB moves, microseconds", amount.mib);
    let mut table = Table::new(&title, Sense::LessIsBetter);
    table.compare("moving", &["idle"], "moving to idle");
    table.notes.push(format!("one thread, two other files, `-o {OPTIONS}`"));
    for _ in 0..amount.rounds {
        for branch in [&a, &b] {
            lay_out(&branch.path().join(format!("other-{}", branch.name())), OTHER)?;
        }
        lay_out(&a.path().join("film"), amount.mib)?;
        a.fill_until_free(MiB(8));
        let mount = Entry::mount(&target)?;
        let source = format!("{}:{}", a.path().display(), b.path().display());
        command(daemon::helper()?).arg(source).arg(&target).args(["-o", OPTIONS]).run()?;
        let others = [target.join("other-a"), target.join("other-b")];
        let others = others.map(|path| OpenOptions::new().read(true).write(true).open(path));
        let [one, other] = others;
        let others = [one?, other?];
        for (name, samples) in latencies(&others, &Until::Passed(Duration::from_secs(3)))? {
            put(&mut table, name, "idle", samples);
        }
        let film = OpenOptions::new().write(true).open(target.join("film"))?;
        let end = amount.mib << 20;
        let moving = thread::spawn(move || {
            // Its branch has room for 8 of these.
            (0..16_u64).try_for_each(|n| film.write_all_at(&[7; 1 << 20], end + (n << 20)))
        });
        for (name, samples) in latencies(&others, &Until::Finished(&moving))? {
            put(&mut table, name, "moving", samples);
        }
        moving.join().ok().context("the writer panicked")??;
        ensure!(b.path().join("film").exists(), "the file did not move");
        drop(others);
        mount.undo()?;
        fs::remove_file(b.path().join("film"))?;
        a.drop_ballast();
    }
    tables.push(table);
    Ok(())
}

/// End of a measurement.
pub(crate) enum Until<'a> {
    Passed(Duration),
    Finished(&'a thread::JoinHandle<std::io::Result<()>>),
}

/// Microseconds of each operation.
pub(crate) type Latencies = [(&'static str, Vec<f64>); 3];

/// Measures reads, writes and stats of the two files.
pub(crate) fn latencies(files: &[File; 2], until: &Until<'_>) -> Result<Latencies> {
    let mut took = [("read 4 KiB", Vec::new()), ("write 4 KiB", Vec::new()), ("stat", Vec::new())];
    let mut page = [0; PAGE];
    let began = Instant::now();
    let mut at = 1_u64;
    loop {
        let over = match until {
            Until::Passed(limit) => began.elapsed() > *limit,
            Until::Finished(thread) => thread.is_finished() && took[0].1.len() > 100,
        };
        if over {
            return Ok(took);
        }
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let file = &files[usize::from(at >> 63 == 1)];
        let offset = (at >> 20) % ((OTHER << 20) / PAGE as u64) * PAGE as u64;
        for (what, (_, samples)) in took.iter_mut().enumerate() {
            let asked = Instant::now();
            match what {
                0 => file.read_exact_at(&mut page, offset)?,
                1 => file.write_all_at(&page, offset)?,
                _ => {
                    file.metadata()?;
                }
            }
            samples.push(asked.elapsed().as_secs_f64() * 1e6);
        }
    }
}

pub(crate) fn put(table: &mut Table, name: &str, column: &str, mut samples: Vec<f64>) {
    samples.sort_by(f64::total_cmp);
    for (part, label) in [(50, "p50"), (99, "p99")] {
        if let Some(sample) = samples.get((samples.len() * part / 100).min(samples.len().saturating_sub(1))) {
            table.put(&format!("{name}, {label}"), column, *sample);
        }
    }
}

pub(crate) fn lay_out(path: &Path, mib: u64) -> Result<()> {
    let file = File::create(path)?;
    // Allocates exactly its blocks: XFS would preallocate more for a growing file.
    fallocate(&file, FallocateFlags::empty(), 0, mib << 20)?;
    let piece = vec![5; 1 << 20];
    (0..mib).try_for_each(|n| file.write_all_at(&piece, n << 20))?;
    Ok(file.sync_all()?)
}
