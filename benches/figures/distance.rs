//! Cost of a missing name with distant branches: one, and four.
//!
//! A distant branch is a file system that does nothing and takes two milliseconds for it. Four asked one after the
//! other would take four times as long as one.

use std::ffi::CString;
use std::time::Instant;

use anyhow::{Result, ensure};
use fsstack_bench::turns;
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use crate::metadata::open_dir;
use crate::report::{Sense, Table};
use crate::test_bed::{Contender, Server, TestBed};

/// The first belongs to one pool, the others to the other.
const FAR: [&str; 5] = ["far-0", "far-1", "far-2", "far-3", "far-4"];
const AWAY: &[&str] = &["2000"];
const NAMES: u32 = 100;

pub(crate) fn run(test_bed: &TestBed, rounds: usize, tables: &mut Vec<Table>) -> Result<()> {
    let mut table = Table::new("Milliseconds of a missing name, by branches 2 ms away", Sense::LessIsBetter);
    table.compare("4-branches", &["1-branch"], "4 to 1");
    let far: Vec<_> = FAR
        .iter()
        .map(|name| test_bed.stand(&Contender::new(name, Server::Null, &[AWAY]), 0))
        .collect::<Result<_>>()?;
    let asks = &["negative-timeout=0", "out-of-band=timeout"][..];
    let mut pools = Vec::new();
    for (name, own) in [("1-branch", &far[..1]), ("4-branches", &far[1..])] {
        let parts = own.iter().map(|at| at.path().to_owned()).collect();
        let at = test_bed.stand_over(&Contender::new(name, Server::Fsstack, &[asks]), parts)?;
        let dir = open_dir(at.path())?;
        pools.push((name, at, dir));
    }
    for round in 0..rounds {
        for (name, _, dir) in turns::of(&pools, round) {
            let began = Instant::now();
            for n in 0..NAMES {
                let missing = CString::new(format!("m{round}-{n}"))?;
                let answer = statat(dir, &missing, AtFlags::empty()).map(drop);
                ensure!(answer == Err(Errno::NOENT), "{missing:?}: {answer:?}");
            }
            table.put("stat of a missing name", name, began.elapsed().as_secs_f64() * 1e3 / f64::from(NAMES));
        }
    }
    tables.push(table);
    pools.into_iter().try_for_each(|(_, at, dir)| {
        drop(dir);
        at.fall()
    })?;
    far.into_iter().try_for_each(|at| at.fall())
}
