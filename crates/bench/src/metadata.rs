//! The metadata engine: timed calls on names. Prerequisites are made before the start and removed afterwards.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;

use crate::task::{Done, Role, histogram, note};
use crate::workload::{Files, Op, Workload};

/// The directory of task `number` in `work`.
fn dir_of(workload: &Workload, number: u32, work: &Path) -> PathBuf {
    match workload.files {
        Files::PerTask => work.join(format!("dir-{number}")),
        Files::Shared => work.join("dir"),
    }
}

/// Makes what the operation needs, directories and entries in them, until `stop` is set.
pub(crate) fn lay_out(workload: &Workload, work: &Path, stop: &AtomicBool) -> io::Result<()> {
    for number in 0..workload.tasks.get() {
        let dir = dir_of(workload, number, work);
        fs::create_dir_all(&dir)?;
        for entry in 0..workload.entries.get() {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let path = dir.join(name(number, entry));
            match workload.op {
                Op::Stat | Op::Open | Op::Rename | Op::Readdir | Op::Unlink => drop(File::create(path)?),
                Op::Rmdir => fs::create_dir(path)?,
                Op::Create
                | Op::Mkdir
                | Op::FileCycle
                | Op::DirCycle
                | Op::Write
                | Op::Read
                | Op::Rewrite => break,
            }
        }
    }
    Ok(())
}

fn name(number: u32, entry: u32) -> String {
    format!("{number}-{entry}")
}

/// Runs a task's part while the gate is open. `None`: another task failed to get ready.
pub(crate) fn run(role: &Role<'_>) -> io::Result<Option<Done>> {
    let dir = dir_of(role.workload, role.number, role.work);
    let entries = role.workload.entries.get();
    // Paths are built before the start.
    let paths: Vec<PathBuf> = (0..entries).map(|entry| dir.join(name(role.number, entry))).collect();
    let histogram = histogram();
    let done = match (role.gate.enter(histogram.is_ok()), histogram) {
        (_, Err(e)) => Err(e),
        (None, _) => Ok(None),
        (Some(began), Ok(mut latencies)) => {
            let worked = match role.workload.op {
                Op::Readdir => list(role, &dir, &mut latencies),
                _ => each(role, &paths, &mut latencies),
            };
            worked.map(|ops| Some(Done { began, ended: Instant::now(), ops, bytes: 0, latencies }))
        }
    };
    role.gate.leave();
    done
}

fn each(role: &Role<'_>, paths: &[PathBuf], latencies: &mut Histogram<u64>) -> io::Result<u64> {
    let mut ops = 0;
    let mut now = Instant::now();
    for path in paths {
        if role.stop.load(Ordering::Relaxed) {
            break;
        }
        one(role.workload.op, path)?;
        let then = std::mem::replace(&mut now, Instant::now());
        note(latencies, now.duration_since(then));
        ops += 1;
        if ops == 1 {
            role.gate.all_begun();
            now = Instant::now();
        }
    }
    Ok(ops)
}

fn one(op: Op, path: &Path) -> io::Result<()> {
    match op {
        Op::Create => File::create_new(path).map(drop),
        Op::Stat => fs::symlink_metadata(path).map(drop),
        Op::Open => File::open(path).map(drop),
        Op::Rename => fs::rename(path, path.with_extension("renamed")),
        Op::Unlink => fs::remove_file(path),
        Op::Mkdir => fs::create_dir(path),
        Op::Rmdir => fs::remove_dir(path),
        Op::FileCycle => {
            File::create_new(path)?;
            fs::symlink_metadata(path)?;
            fs::remove_file(path)
        }
        Op::DirCycle => {
            fs::create_dir(path)?;
            fs::symlink_metadata(path)?;
            fs::remove_dir(path)
        }
        Op::Readdir | Op::Write | Op::Read | Op::Rewrite => {
            Err(io::Error::other(format!("{op} is no call on one name")))
        }
    }
}

fn list(role: &Role<'_>, dir: &Path, latencies: &mut Histogram<u64>) -> io::Result<u64> {
    let (mut ops, mut then) = (0, Instant::now());
    for entry in fs::read_dir(dir)? {
        if role.stop.load(Ordering::Relaxed) {
            break;
        }
        entry?;
        let now = Instant::now();
        note(latencies, now.duration_since(then));
        then = now;
        ops += 1;
    }
    Ok(ops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_that_is_stopped_makes_no_more_names() {
        let work = tempfile::tempdir().unwrap();
        let workload = Workload { op: Op::Stat, ..Workload::default() };
        lay_out(&workload, work.path(), &AtomicBool::new(true)).unwrap();
        assert_eq!(fs::read_dir(work.path().join("dir-0")).unwrap().count(), 0);
    }
}
