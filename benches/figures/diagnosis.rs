//! Cost of looking at a pool: `fsstack check` beside `find -ls` of its branches, the status page, and operations while
//! `fsstack profile` watches.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use fsstack_lab::daemon;
use fsstack_lab::shell::command;

use crate::metadata::{self, MetadataAmount};
use crate::report::{Sense, Table};
use crate::test_bed::{CACHES_ON, Contender, Server, TestBed};

/// Names in a directory of the checked tree.
const IN_DIR: usize = 1000;
/// Every so many of them is on both branches.
const HIDDEN: usize = 1000;
const LIMIT: Duration = Duration::from_secs(900);
/// Number of branches on the status page.
const BRANCHES: usize = 64;
const CHECK: &str = "fsstack check";
const FIND: &str = "find -ls";
const ALONE: &str = "left-alone";
const WATCHED: &str = "watched";

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiagnosisAmount {
    pub(crate) metadata: MetadataAmount,
    /// Number of checked files.
    pub(crate) files: usize,
}

pub(crate) fn run(test_bed: &TestBed, amount: DiagnosisAmount, tables: &mut Vec<Table>) -> Result<()> {
    tables.push(profiled(test_bed, amount.metadata)?);
    tables.extend(pages(test_bed, amount.metadata.rounds)?);
    tables.push(checked(test_bed, amount)?);
    Ok(())
}

fn fsstack() -> Result<PathBuf> {
    Ok(daemon::helper()?.with_file_name("fsstack"))
}

/// Half of the files are on each of two branches, and all directories on both.
fn checked(test_bed: &TestBed, amount: DiagnosisAmount) -> Result<Table> {
    let title = format!("Seconds for {} files on two branches", amount.files);
    let mut table = Table::new(&title, Sense::LessIsBetter);
    table.compare(CHECK, &[FIND], "find's time to check's");
    let at = test_bed.stand(&Contender::new("checked", Server::Fsstack, &[&["minfreespace=64M"]]), 2)?;
    for number in 0..amount.files {
        let (dir, own) = ((number / IN_DIR).to_string(), number % 2);
        if number.is_multiple_of(IN_DIR) {
            at.parts().iter().try_for_each(|part| fs::create_dir(part.join(&dir)))?;
        }
        for (n, part) in at.parts().iter().enumerate() {
            if n == own || number.is_multiple_of(HIDDEN) {
                File::create(part.join(&dir).join(format!("file-{number}")))?;
            }
        }
    }
    for round in 0..amount.metadata.rounds {
        for turn in 0..2 {
            let began = Instant::now();
            if (round + turn).is_multiple_of(2) {
                // It ends with 1: there is something hidden.
                let found = command(fsstack()?).arg("check").arg(at.path()).limit(LIMIT).output()?;
                ensure!(found.stdout.lines().count() >= amount.files / HIDDEN, "{}", found.stderr);
                table.put("warm", CHECK, began.elapsed().as_secs_f64());
            } else {
                for part in at.parts() {
                    command("find").arg(part).arg("-ls").limit(LIMIT).run()?;
                }
                table.put("warm", FIND, began.elapsed().as_secs_f64());
            }
        }
    }
    at.fall()?;
    Ok(table)
}

fn pages(test_bed: &TestBed, rounds: usize) -> Result<[Table; 2]> {
    let mut took =
        Table::new(&format!("Milliseconds of the status page, {BRANCHES} branches"), Sense::LessIsBetter);
    let mut size = Table::new("KiB of the status page", Sense::LessIsBetter);
    let options = &["minfreespace=64M", "metrics=127.0.0.1:0"][..];
    let at = test_bed.stand(&Contender::new("shown", Server::Fsstack, &[options]), BRANCHES)?;
    let address = command(fsstack()?).arg("get").arg(at.path()).arg("metrics").run()?.stdout;
    let row = format!("{BRANCHES} branches");
    for _ in 0..20 * rounds {
        let began = Instant::now();
        let page = page(address.trim())?;
        took.put(&row, "page", began.elapsed().as_secs_f64() * 1e3);
        size.put(&row, "page", page.len() as f64 / 1024.0);
    }
    at.fall()?;
    Ok([took, size])
}

fn page(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, page) = answer.split_once("\r\n\r\n").context("no page")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
    Ok(page.to_owned())
}

fn profiled(test_bed: &TestBed, amount: MetadataAmount) -> Result<Table> {
    let title = "Operations a second, one client, while `fsstack profile` watches";
    let mut table = Table::new(title, Sense::MoreIsBetter);
    table.compare(WATCHED, &[ALONE], "watched to left alone");
    let own = &["minfreespace=64M", "passthrough-headroom=64M"][..];
    let contenders = [ALONE, WATCHED].map(|name| Contender::new(name, Server::Fsstack, &[own, CACHES_ON]));
    let standing = test_bed.stand_all(&contenders)?;
    let watched = standing.iter().find(|(of, _)| of.name == WATCHED).context("no pool is watched")?.1.path();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch_until(&over, watched));
        // Counting begins with the first request.
        std::thread::sleep(Duration::from_secs(1));
        let teams = standing.iter().map(|(of, at)| (*of, at)).collect::<Vec<_>>();
        let measured = metadata::rounds(&teams, metadata::ONE, amount, &mut table, None);
        over.store(true, Ordering::Relaxed);
        watcher.join().map_err(|_| anyhow!("the watcher panicked"))?.and(measured)
    })?;
    standing.into_iter().try_for_each(|(_, at)| at.fall())?;
    Ok(table)
}

/// Looks at the pool's callers all the time, in intervals of some seconds.
fn watch_until(over: &AtomicBool, pool: &Path) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        command(fsstack()?).args(["profile", "--json", "--interval", "5s"]).arg(pool).run()?;
    }
    Ok(())
}
