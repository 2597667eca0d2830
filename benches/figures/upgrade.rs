//! The longest call of a program while the daemon is replaced or dies, with many files open; and what `restart=keep` costs meanwhile.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use fsstack_lab::daemon::{self, Process};
use fsstack_lab::shell::command;

use crate::metadata;
use crate::report::{Sense, Table};
use crate::test_bed::{CACHES_ON, Contender, Server, Standing, TestBed};

const OWN: &[&str] = &["minfreespace=64M", "passthrough-headroom=64M", "transport=dev"];
const PLAIN: &str = "plain";
const KEPT: &str = "kept";
/// Handovers between two looks at the memory.
const HANDOVERS: usize = 10;
/// Files of one directory.
const IN_A_DIR: usize = 1000;

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpgradeAmount {
    pub(crate) metadata: metadata::MetadataAmount,
    /// Numbers of open files.
    pub(crate) open: &'static [usize],
    /// Deaths of the daemon for each of them.
    pub(crate) kills: usize,
}

pub(crate) fn run(test_bed: &TestBed, amount: UpgradeAmount, tables: &mut Vec<Table>) -> Result<()> {
    let contenders = [
        Contender::new(PLAIN, Server::Fsstack, &[OWN, CACHES_ON]),
        Contender::new(KEPT, Server::Fsstack, &[OWN, CACHES_ON, &["restart=keep"]]),
    ];
    let standing = test_bed.stand_all(&contenders)?;
    let mut rates = Table::new("Operations a second, one client, with `restart=keep`", Sense::MoreIsBetter);
    rates.compare(KEPT, &[PLAIN], "kept to plain");
    let teams = standing.iter().map(|(of, at)| (*of, at)).collect::<Vec<_>>();
    metadata::rounds(&teams, metadata::ONE, amount.metadata, &mut rates, None)?;
    standing.into_iter().try_for_each(|(_, at)| at.fall())?;
    tables.push(rates);
    tables.push(pauses(test_bed, amount)?);
    Ok(())
}

fn pauses(test_bed: &TestBed, amount: UpgradeAmount) -> Result<Table> {
    let limit = usize::try_from(fsstack_sys::thread::raise_nofile_limit()).unwrap_or(usize::MAX);
    let (able, unable): (Vec<usize>, Vec<usize>) =
        amount.open.iter().partition(|open| **open + 2048 <= limit);
    let title = "Milliseconds of the longest call during a handover, by open files";
    let mut table = Table::new(title, Sense::LessIsBetter);
    table.notes.push("one thread asks for names that are not there, without pause; `fsstack upgrade`, or kill -9 of the daemon".into());
    if !unable.is_empty() {
        table.notes.push(format!("without {unable:?}: {limit} descriptors may be open here"));
    }
    // Without caches: each name that is not there is a request.
    let contenders = [
        Contender::new(PLAIN, Server::Fsstack, &[OWN]),
        Contender::new(KEPT, Server::Fsstack, &[OWN, &["restart=keep"]]),
    ];
    let mut deaths = Vec::new();
    for (contender, column) in contenders.iter().zip(["upgrade", "upgrade, kept"]) {
        let at = test_bed.stand(contender, 2)?;
        let mut files = Vec::new();
        for open in &able {
            open_more(at.path(), *open, &mut files)?;
            let row = open.to_string();
            for _ in 0..amount.metadata.rounds {
                table.put(&row, column, ms(longest_call(at.path(), || upgrade(&at))?));
            }
            let kills = if contender.name == KEPT { amount.kills } else { 0 };
            for _ in 0..kills {
                wait_for_a_death(&mut deaths);
                table.put(&row, "kill -9, kept", ms(longest_call(at.path(), || kill(&at))?));
            }
        }
        drop(files);
        for handovers in ["ten", "twenty"] {
            (0..HANDOVERS).try_for_each(|_| upgrade(&at))?;
            let resident = serving(&at)?.resident()?;
            let row = format!("MiB resident after {handovers} handovers without open files");
            table.put(&row, column, (resident >> 10) as f64 / 1024.0);
        }
        at.fall()?;
    }
    Ok(table)
}

/// Waits until one more death is not the third within a minute, which ends the pool.
fn wait_for_a_death(deaths: &mut Vec<Instant>) {
    if let Some(last_but_one) = deaths.len().checked_sub(2).map(|at| deaths[at]) {
        thread::sleep(Duration::from_secs(61).saturating_sub(last_but_one.elapsed()));
    }
    deaths.push(Instant::now());
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Opens files in the pool until there are `count`.
fn open_more(pool: &Path, count: usize, files: &mut Vec<File>) -> Result<()> {
    for n in files.len()..count {
        let dir = pool.join(format!("open-{}", n / IN_A_DIR));
        if n % IN_A_DIR == 0 {
            fs::create_dir_all(&dir)?;
        }
        files.push(File::create(dir.join(n.to_string()))?);
    }
    Ok(())
}

/// The process that answers.
fn serving(at: &Standing) -> Result<Process> {
    let known = at.daemon()?;
    Ok(known.child().unwrap_or(known))
}

/// The longest call of a program from before `handover` until the pool has answered after it.
fn longest_call(pool: &Path, handover: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let (mut longest, mut n) = (Duration::ZERO, 0_u64);
            while !over.load(Relaxed) {
                let began = Instant::now();
                let answer = fs::symlink_metadata(pool.join(format!("missing-{n}")));
                longest = longest.max(began.elapsed());
                ensure!(
                    answer.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound),
                    "a missing name: {answer:?}"
                );
                n += 1;
            }
            Ok(longest)
        });
        let done = handover().and_then(|()| Ok(fs::metadata(pool).map(drop)?));
        over.store(true, Relaxed);
        let longest = caller.join().map_err(|_| anyhow!("the caller panicked"))?;
        done.and(longest)
    })
}

fn upgrade(at: &Standing) -> Result<()> {
    let program = daemon::helper()?.with_file_name("fsstack");
    command(program).arg("upgrade").arg(at.path()).limit(Duration::from_secs(120)).run().map(drop)
}

fn kill(at: &Standing) -> Result<()> {
    let keeper = at.daemon()?;
    let dies = keeper.child().context("the keeper has no daemon")?;
    dies.kill()?;
    let began = Instant::now();
    while keeper.child().is_none_or(|next| next == dies) {
        ensure!(began.elapsed() < Duration::from_secs(120), "the keeper starts no other daemon");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
