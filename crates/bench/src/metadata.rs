//! The metadata engine: timed calls on names. Prerequisites are made before the start and removed afterwards.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, renameat, statat, unlinkat};

use crate::pace::Schedule;
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
    let done = match PreparedNames::of(role, &dir) {
        Err(e) => {
            role.gate.enter(false);
            Err(e)
        }
        Ok(mut prepared) => role.gate.enter(true).map_or(Ok(None), |began| {
            let worked = match role.workload.op {
                Op::Readdir => list(role, &dir, &mut prepared.latencies),
                _ => each(role, &mut prepared, began),
            };
            let latencies = prepared.latencies;
            worked.map(|ops| Some(Done { began, ended: Instant::now(), ops, bytes: 0, latencies }))
        }),
    };
    role.gate.leave();
    done
}

/// A task before the start.
struct PreparedNames {
    /// Names are looked up from here, so that the kernel walks no path.
    dir: OwnedFd,
    names: Vec<CString>,
    latencies: Histogram<u64>,
}

impl PreparedNames {
    fn of(role: &Role<'_>, dir: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let named = |entry| CString::new(name(role.number, entry)).map_err(io::Error::other);
        Ok(Self {
            dir: openat(CWD, dir, flags, Mode::empty())?,
            names: (0..role.workload.entries.get()).map(named).collect::<io::Result<_>>()?,
            latencies: histogram()?,
        })
    }
}

fn each(role: &Role<'_>, prepared: &mut PreparedNames, began: Instant) -> io::Result<u64> {
    let PreparedNames { dir, names, latencies } = prepared;
    let mut ops = 0;
    let pace = Schedule::of(role.workload.rate, began);
    let mut now = Instant::now();
    for name in names.iter() {
        if role.stop.load(Ordering::Relaxed) {
            break;
        }
        let started = pace.await_start(ops, now);
        one(role.workload.op, dir.as_fd(), name)?;
        now = Instant::now();
        note(latencies, now.duration_since(started));
        ops += 1;
        if ops == 1 {
            role.gate.all_begun();
            now = Instant::now();
        }
    }
    Ok(ops)
}

/// Mode of new files, before the umask.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

fn one(op: Op, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let create =
        || openat(dir, name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC, FILE_MODE);
    let stat = || statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(drop);
    match op {
        Op::Create => drop(create()?),
        Op::Stat => stat()?,
        Op::Open => drop(openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?),
        Op::Rename => renameat(dir, name, dir, [name.to_bytes(), b".renamed"].concat())?,
        Op::Unlink => unlinkat(dir, name, AtFlags::empty())?,
        Op::Mkdir => mkdirat(dir, name, Mode::from_raw_mode(0o777))?,
        Op::Rmdir => unlinkat(dir, name, AtFlags::REMOVEDIR)?,
        Op::FileCycle => {
            drop(create()?);
            stat()?;
            unlinkat(dir, name, AtFlags::empty())?;
        }
        Op::DirCycle => {
            mkdirat(dir, name, Mode::from_raw_mode(0o777))?;
            stat()?;
            unlinkat(dir, name, AtFlags::REMOVEDIR)?;
        }
        Op::Readdir | Op::Write | Op::Read | Op::Rewrite => {
            return Err(io::Error::other(format!("{op} is no call on one name")));
        }
    }
    Ok(())
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
