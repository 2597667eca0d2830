//! Cost of the catalogue: creates, renames and unlinks in a pool that keeps one, and in one that does not.

use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

use crate::metadata::{MetadataAmount, open_dir, per_second};
use crate::report::{Sense, Table};
use crate::test_bed::{Contender, Server, TestBed};

/// The thread that keeps the catalogue waits this long after changes; a pause lets it end what a round has left.
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn run(test_bed: &TestBed, amount: MetadataAmount, tables: &mut Vec<Table>) -> Result<()> {
    let mut table = Table::new("Changes of names a second with the catalogue", Sense::MoreIsBetter);
    table.compare("catalogue", &["no-catalogue"], "the catalogue to none");
    let mut pools = Vec::new();
    for (name, options) in [("no-catalogue", &[][..]), ("catalogue", &["catalogue=on"])] {
        let contender = Contender::new(name, Server::Fsstack, &[&["create=mfs", "minfreespace=4M"], options]);
        pools.push((name, test_bed.stand(&contender, 2)?));
    }
    for round in 0..amount.rounds {
        for turn in 0..pools.len() {
            let (name, at) = &pools[(turn + round) % pools.len()];
            let dir = open_dir(at.path())?;
            let mut timed = |row: &str, act: &dyn Fn(usize) -> rustix::io::Result<()>| -> Result<()> {
                let began = Instant::now();
                (0..amount.names).try_for_each(act)?;
                table.put(row, name, per_second(amount.names, began.elapsed()));
                Ok(())
            };
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            timed("create", &|n| openat(&dir, format!("f-{n}"), flags, Mode::RUSR).map(drop))?;
            timed("rename", &|n| renameat(&dir, format!("f-{n}"), &dir, format!("g-{n}")))?;
            timed("unlink", &|n| unlinkat(&dir, format!("g-{n}"), AtFlags::empty()))?;
            std::thread::sleep(PAUSE);
        }
    }
    tables.push(table);
    pools.into_iter().try_for_each(|(_, at)| at.fall())
}
