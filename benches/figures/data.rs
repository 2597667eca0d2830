//! Throughput of whole files in 1 MiB blocks, and of random 4 KiB blocks.
//!
//! Every contender has a file that is written and read once before timing, so that the page caches are warm and the
//! loop devices' memory is allocated. Dirty data is written back between the figures. With O_DIRECT the loop device's
//! speed is measured; without it a page of 4 KiB costs the page cache a microsecond, so that passthrough's overhead
//! shows. O_DIRECT has its own file, because it evicts pages that the other figures rely on.

use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::{Result, ensure};
use fsstack_bench::turns;
use fsstack_lab::rival::Union;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{pread, pwrite};

use crate::report::{Sense, Table};
use crate::test_bed::{Contender, Server, Standing, TestBed};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Operation on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataAct {
    WriteAll,
    ReadAll,
    WritePages,
    ReadPages,
    WriteDirect,
    ReadDirect,
}

impl DataAct {
    fn is_direct(self) -> bool {
        matches!(self, Self::WriteDirect | Self::ReadDirect)
    }
}

const ACTS: &[(DataAct, &str)] = &[
    (DataAct::WriteAll, "sequential write, 1 MiB"),
    (DataAct::ReadAll, "sequential read, 1 MiB"),
    (DataAct::WritePages, "random write, 4 KiB"),
    (DataAct::ReadPages, "random read, 4 KiB"),
    (DataAct::WriteDirect, "random write, 4 KiB, O_DIRECT"),
    (DataAct::ReadDirect, "random read, 4 KiB, O_DIRECT"),
];

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataAmount {
    pub(crate) rounds: usize,
    /// Size of the file in MiB.
    pub(crate) mib: usize,
    /// Number of random reads or writes.
    pub(crate) pages: usize,
}

fn contenders() -> Vec<Contender> {
    let rival = |files: &'static str| ["minfreespace=64M", files, "allow_other"];
    let own = |path: &'static str| ["minfreespace=64M", path];
    vec![
        Contender::new("xfs", Server::Branch, &[]),
        Contender::new("passthrough", Server::Fsstack, &[&own("write-path=passthrough")]),
        Contender::new("stacked", Server::Fsstack, &[&own("write-path=stacked")]),
        Contender::new("mergerfs-off", Server::Rival(Union::Mergerfs), &[&rival("cache.files=off")]),
        Contender::new(
            "mergerfs-auto-full",
            Server::Rival(Union::Mergerfs),
            &[&rival("cache.files=auto-full")],
        ),
        Contender::new(
            "mhddfs",
            Server::Rival(Union::Mhddfs),
            &[&["mlimit=64M", "allow_other", "default_permissions"]],
        ),
    ]
}

pub(crate) fn run(test_bed: &TestBed, amount: DataAmount, tables: &mut Vec<Table>) -> Result<()> {
    let here: Vec<_> = contenders().into_iter().filter(|contender| contender.missing().is_none()).collect();
    let standing = test_bed.stand_all(&here)?;
    let mut table = Table::new("MiB a second", Sense::MoreIsBetter);
    table.compare("passthrough", &["xfs"], "passthrough to xfs");
    table.compare("stacked", &["mergerfs-off", "mergerfs-auto-full"], "stacked to mergerfs");
    table.compare("stacked", &["mhddfs"], "stacked to mhddfs");
    table.notes.extend(here.iter().map(Contender::described));
    let rivals = contenders();
    table.notes.extend(rivals.iter().filter_map(|of| Some(format!("{}: {}", of.name, of.missing()?))));
    let stands: Vec<_> = standing.iter().map(|(of, at)| (*of, at)).collect();
    rounds(&stands, amount, &mut table)?;
    tables.push(table);
    standing.into_iter().try_for_each(|(_, at)| at.fall())
}

/// Runs every operation by every contender on its own file, round by round.
pub(crate) fn rounds(
    standing: &[(&Contender, &Standing)],
    amount: DataAmount,
    table: &mut Table,
) -> Result<()> {
    for (of, at) in standing {
        lay_out(&open(at, DataAct::WriteAll)?, amount)?;
        if matches!(of.server, Server::Branch | Server::Fsstack) {
            lay_out(&open(at, DataAct::WriteDirect)?, amount)?;
        }
    }
    for round in 0..amount.rounds {
        for (act, label) in ACTS {
            for (of, at) in turns::of(standing, round) {
                if act.is_direct() && matches!(of.server, Server::Rival(_)) {
                    continue; // mhddfs answers EINVAL
                }
                let file = open(at, *act)?;
                rustix::fs::sync();
                table.put(label, of.name, rate(&file, *act, amount)?);
            }
        }
    }
    Ok(())
}

fn open(at: &Standing, act: DataAct) -> Result<OwnedFd> {
    let how = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let (name, how) = if act.is_direct() { ("direct", how | OFlags::DIRECT) } else { ("data", how) };
    Ok(openat(CWD, at.path().join(name), how, Mode::from_raw_mode(0o644))?)
}

fn lay_out(file: &OwnedFd, amount: DataAmount) -> Result<()> {
    rate(file, DataAct::WriteAll, amount)?;
    rustix::fs::fsync(file)?;
    rate(file, DataAct::ReadAll, amount).map(drop)
}

/// MiB a second.
fn rate(file: &OwnedFd, act: DataAct, amount: DataAmount) -> Result<f64> {
    // O_DIRECT needs page-aligned memory.
    let mut memory = vec![0x5a_u8; MIB + PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    let block = &mut memory[start..start + MIB];
    let unit = match act {
        DataAct::WriteAll | DataAct::ReadAll => MIB,
        DataAct::WritePages | DataAct::ReadPages | DataAct::WriteDirect | DataAct::ReadDirect => PAGE,
    };
    let offsets: Vec<u64> = match act {
        DataAct::WriteAll | DataAct::ReadAll => (0..amount.mib as u64).map(|n| n << 20).collect(),
        DataAct::WritePages | DataAct::ReadPages => {
            Shuffle::default().pages(amount.pages, amount.mib).collect()
        }
        DataAct::WriteDirect | DataAct::ReadDirect => {
            Shuffle::default().pages(amount.pages / 4, amount.mib).collect()
        }
    };
    let began = Instant::now();
    for &offset in &offsets {
        let done = match act {
            DataAct::WriteAll | DataAct::WritePages | DataAct::WriteDirect => {
                pwrite(file, &block[..unit], offset)?
            }
            DataAct::ReadAll | DataAct::ReadPages | DataAct::ReadDirect => {
                pread(file, &mut block[..unit], offset)?
            }
        };
        ensure!(done == unit, "{done} bytes of {unit} at {offset}");
    }
    let took = began.elapsed().as_secs_f64();
    Ok(f64::from(u32::try_from(offsets.len() * (unit / PAGE))?) * 4.0 / 1024.0 / took)
}

/// The same pages in every run (xorshift64: Marsaglia, "Xorshift RNGs", 2003).
struct Shuffle(u64);

impl Default for Shuffle {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Shuffle {
    fn pages(mut self, count: usize, mib: usize) -> impl Iterator<Item = u64> {
        let pages = (mib * (MIB / PAGE)) as u64;
        (0..count).map(move |_| {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % pages * PAGE as u64
        })
    }
}
