//! Cost of the catalogue: creates, renames and unlinks in a pool that keeps one, and in one that does not.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use fsstack_bench::turns;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

use crate::metadata::{MetadataAmount, open_dir, per_second};
use crate::report::{Sense, Table};
use crate::test_bed::{Contender, Server, TestBed};

/// A pause after each round, so that what the thread of the catalogue has left is not work beside the other pool's round. It waits
/// a second at most before it looks at changes.
const PAUSE: Duration = Duration::from_millis(1500);
/// Times the names of a round. The longer rounds take so long that the thread works beside them.
const LENGTHS: [usize; 2] = [1, 4];

pub(crate) fn run(test_bed: &TestBed, amount: MetadataAmount, tables: &mut Vec<Table>) -> Result<()> {
    let mut table = Table::new("Changes of names a second with the catalogue", Sense::MoreIsBetter);
    table.compare("catalogue", &["no-catalogue"], "the catalogue to none");
    let mut pools = Vec::new();
    for (name, options) in [("no-catalogue", &[][..]), ("catalogue", &["catalogue=on"])] {
        let contender = Contender::new(name, Server::Fsstack, &[&["create=ff", "minfreespace=4M"], options]);
        pools.push((name, test_bed.stand(&contender, 2)?));
    }
    for round in 0..amount.rounds {
        for length in LENGTHS {
            for (name, at) in turns::of(&pools, round) {
                one_round(&mut table, name, &open_dir(at.path())?, amount.names * length)?;
                std::thread::sleep(PAUSE);
            }
        }
    }
    tables.push(table);
    pools.into_iter().try_for_each(|(_, at)| at.fall())
}

fn one_round(table: &mut Table, pool: &str, dir: &OwnedFd, names: usize) -> Result<()> {
    let mut timed = |act: &str, change: &dyn Fn(usize) -> rustix::io::Result<()>| -> Result<()> {
        let began = Instant::now();
        (0..names).try_for_each(change)?;
        table.put(&format!("{act}, {names} names"), pool, per_second(names, began.elapsed()));
        Ok(())
    };
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    timed("create", &|n| openat(dir, format!("f-{n}"), flags, Mode::RUSR).map(drop))?;
    timed("rename", &|n| renameat(dir, format!("f-{n}"), dir, format!("g-{n}")))?;
    timed("unlink", &|n| unlinkat(dir, format!("g-{n}"), AtFlags::empty()))
}
