//! Real programs on a generated tree of source files: seconds of each, and the requests that each waits for.
//!
//! Each program of [`fsstack_lab::programs`] is run by all contenders, in changing order, before the next program is.
//! In the first round what they print, and what they leave in the end, is compared with the branch. A last round is traced,
//! and its seconds do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use fsstack_bench::turns;
use fsstack_lab::programs::{self, Archive, PROGRAMS, Program};
use fsstack_lab::rival::Union;
use fsstack_lab::trace::What;
use fsstack_lab::{Skip, Trace, mounts};

use crate::report::{Sense, Table};
use crate::test_bed::{Contender, Server, Standing, TestBed};

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramsAmount {
    pub(crate) rounds: usize,
    /// Number of files of the tree.
    pub(crate) files: usize,
}

/// Requests that take less than this part of a program's waiting are not shown.
const LEAST: f64 = 0.02;
/// After this program all trees are there.
const LAST_TO_WRITE: &str = "rsync -a";
/// Buffer for the trace events of each CPU, in KiB.
const BUFFER: &str = "65536";
/// Requests that no program waits for.
const BACKGROUND: &[&str] = &["RELEASE", "RELEASEDIR", "FORGET", "BATCH_FORGET", "INTERRUPT"];

fn contenders() -> Vec<Contender> {
    let room = &["minfreespace=64M", "passthrough-headroom=64M"][..];
    // The options that docs/configure.md recommends for trees that nothing else changes.
    let never = &["out-of-band=never"][..];
    let bare = &["xattr=off"][..];
    let (dev, ring) = (&["transport=dev"][..], &["transport=ring"][..]);
    let mergerfs = &[
        "minfreespace=64M",
        "cache.attr=3600",
        "cache.entry=3600",
        "cache.negative_entry=3600",
        "cache.statfs=1",
        "cache.files=off",
        "allow_other",
    ];
    vec![
        Contender::new("dev", Server::Fsstack, &[room, dev, never]),
        Contender::new("ring", Server::Fsstack, &[room, ring, never]),
        Contender::new("dev-bare", Server::Fsstack, &[room, dev, never, bare]),
        Contender::new("ring-bare", Server::Fsstack, &[room, ring, never, bare]),
        Contender::new("mergerfs", Server::Rival(Union::Mergerfs), &[mergerfs]),
        Contender::new("mhddfs", Server::Rival(Union::Mhddfs), &[&["mlimit=64M", "allow_other"]]),
        Contender::new("xfs", Server::Branch, &[]),
    ]
}

/// Comparisons with the branch: how many times its seconds.
const TIMES: &[(&str, &str)] = &[
    ("dev", "dev, times xfs"),
    ("ring", "ring, times xfs"),
    ("dev-bare", "dev-bare, times xfs"),
    ("ring-bare", "ring-bare, times xfs"),
    ("mergerfs", "mergerfs, times xfs"),
];

pub(crate) fn run(test_bed: &TestBed, amount: ProgramsAmount, tables: &mut Vec<Table>) -> Result<()> {
    if let Err(skip) = programs::installed() {
        skip.announce();
        return Ok(());
    }
    let (here, missing): (Vec<_>, Vec<_>) =
        contenders().into_iter().partition(|contender| contender.missing().is_none());
    let standing = test_bed.stand_all(&here)?;
    let archive = Archive::of(amount.files)?;
    let each = format!("Seconds of real programs, a tree of {} files", amount.files);
    let [mut each, mut sum] = [each, "All of them, seconds".to_owned()].map(|title| {
        let mut table = Table::new(&title, Sense::LessIsBetter);
        TIMES.iter().for_each(|(of, heading)| table.compare("xfs", &[of], heading));
        table
    });
    let mut failed = Failed::new();
    for round in 0..amount.rounds {
        measure(&archive, &standing, (round, &mut failed), (&mut each, &mut sum))?;
    }
    each.notes.extend(failed.iter().map(|(rival, why)| format!("{rival} was left out from then on: {why}")));
    each.notes.extend(here.iter().map(Contender::described));
    each.notes.extend(missing.iter().filter_map(|of| Some(format!("{}: {}", of.name, of.missing()?))));
    tables.extend([each, sum]);
    let waiting = standing.iter().filter(|(of, _)| ["dev", "ring"].contains(&of.name));
    let waiting: Vec<_> = waiting.map(|(of, at)| (of.name, at)).collect();
    match waits(&archive, &waiting) {
        Ok(waits) => tables.extend(waits),
        Err(error) => Skip::because(format!("needs the trace events of fuse: {error:#}")).announce(),
    }
    standing.into_iter().try_for_each(|(of, at)| match at.fall() {
        Err(_) if failed.contains_key(of.name) => Ok(()),
        fallen => fallen,
    })
}

/// Makes the directory that a contender's programs work in, on all its branches.
fn work(at: &Standing, name: &str) -> Result<PathBuf> {
    at.parts().iter().try_for_each(|part| fs::create_dir(part.join(name)))?;
    Ok(at.path().join(name))
}

/// Rivals by which a program failed, and its error. They are left out from then on: mhddfs may crash under rsync.
type Failed = BTreeMap<&'static str, String>;

/// One round: every program by every contender.
fn measure(
    archive: &Archive,
    standing: &[(&Contender, Standing)],
    (round, failed): (usize, &mut Failed),
    (each, sum): (&mut Table, &mut Table),
) -> Result<()> {
    // On the branches: also of a rival that answers no more.
    let dirs = standing.iter().map(|(_, at)| work(at, &format!("work-{round}")));
    let dirs = dirs.collect::<Result<Vec<_>>>()?;
    let mut sums = vec![0.0; standing.len()];
    for program in PROGRAMS {
        let mut said = vec![Vec::new(); standing.len()];
        for n in turns::in_round(round, standing.len()) {
            let of = standing[n].0;
            if failed.contains_key(of.name) {
                continue;
            }
            // Data that one contender has not written yet must not be written while another one is measured.
            rustix::fs::sync();
            let ran = match archive.run(*program, &dirs[n]) {
                Err(error) if matches!(of.server, Server::Rival(_)) => {
                    failed.insert(of.name, format!("{error:#}"));
                    continue;
                }
                ran => ran?,
            };
            each.put(program.name, of.name, ran.seconds);
            sums[n] += ran.seconds;
            said[n] = ran.said;
        }
        if round == 0 {
            agree(*program, standing, &dirs, &said)?;
        }
    }
    let whole = standing.iter().zip(sums).filter(|((of, _), _)| !failed.contains_key(of.name));
    whole.for_each(|((of, _), seconds)| sum.put("sum", of.name, seconds));
    Ok(())
}

/// Compares what the contenders printed and left with the branch's.
fn agree(
    program: Program,
    standing: &[(&Contender, Standing)],
    dirs: &[PathBuf],
    said: &[Vec<String>],
) -> Result<()> {
    let branch = standing.iter().position(|(of, _)| of.server == Server::Branch).context("no branch")?;
    for (n, (of, _)) in standing.iter().enumerate().filter(|(_, (of, _))| of.server == Server::Fsstack) {
        let alike = !program.is_comparable || said[n] == said[branch];
        ensure!(alike, "{} prints something else by {}", program.name, of.name);
        if program.name == LAST_TO_WRITE {
            programs::compare(&dirs[n], &dirs[branch])?;
        }
    }
    Ok(())
}

/// Requests of a program: how many, and the seconds from each one's sending to its answer.
type Waits = BTreeMap<String, (usize, f64)>;

/// Traces each program once by each of the pools.
fn waits(archive: &Archive, pools: &[(&'static str, &Standing)]) -> Result<[Table; 2]> {
    let mut counts = Table::new("Requests of each program", Sense::LessIsBetter);
    let mut seconds = Table::new("Seconds from request to answer", Sense::LessIsBetter);
    let dirs: Vec<_> = pools.iter().map(|(_, at)| work(at, "traced")).collect::<Result<_>>()?;
    for program in PROGRAMS {
        let mut found: Vec<Waits> = Vec::new();
        for ((_, at), dir) in pools.iter().zip(&dirs) {
            let trace = traced(at)?;
            trace.set("tracing_on", "1")?;
            archive.run(*program, dir)?;
            trace.set("tracing_on", "0")?;
            found.push(waited(&trace)?);
        }
        let total = |waits: &Waits| -> f64 { waits.values().map(|(_, took)| took).sum() };
        let large = found.iter().flat_map(|waits| {
            let least = LEAST * total(waits);
            waits.iter().filter(move |(_, (_, took))| least < *took).map(|(name, _)| name.clone())
        });
        for name in large.collect::<BTreeSet<_>>() {
            for ((of, _), waits) in pools.iter().zip(&found) {
                let (count, took) = waits.get(&name).copied().unwrap_or_default();
                let row = format!("{}: {name}", program.name);
                counts.put(&row, of, f64::from(u32::try_from(count)?));
                seconds.put(&row, of, took);
            }
        }
    }
    seconds.notes.push("traced, which takes time itself; two processes may wait at the same time".into());
    Ok([counts, seconds])
}

/// A trace of the requests to `at`, not yet recording.
fn traced(at: &Standing) -> Result<Trace> {
    let connection = mounts::at(at.path())?.context("nothing is mounted there")?.connection();
    let trace = Trace::new(&format!("programs-{connection}"))?;
    trace.set("tracing_on", "0")?;
    trace.set("buffer_size_kb", BUFFER)?;
    for event in ["fuse_request_send", "fuse_request_end"] {
        trace.set(&format!("events/fuse/{event}/filter"), &format!("connection == {connection}"))?;
        trace.set(&format!("events/fuse/{event}/enable"), "1")?;
    }
    Ok(trace)
}

fn waited(trace: &Trace) -> Result<Waits> {
    let mut open = BTreeMap::new();
    let mut waits = Waits::new();
    for event in trace.events()? {
        match event.what {
            What::Sent { unique, name, .. } if !BACKGROUND.contains(&name.as_str()) => {
                open.insert(unique, (name, event.at));
            }
            What::Ended { unique, .. } => {
                if let Some((name, sent)) = open.remove(&unique) {
                    let wait = waits.entry(name).or_default();
                    wait.0 += 1;
                    wait.1 += std::time::Duration::from_micros(event.at - sent).as_secs_f64();
                }
            }
            What::Sent { .. } | What::Enter(_) | What::Exit(_) | What::Switch { .. } => {}
        }
    }
    Ok(waits)
}
