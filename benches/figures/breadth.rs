//! Cost of more branches: repeated lookups of a known name in pools of 1, 2 and 16 branches.
//!
//! The kernel caches no names, so every stat is one lookup; the names are on the last branch.

use std::ffi::CString;
use std::fs;
use std::time::Instant;

use anyhow::Result;
use fsstack_bench::turns;
use rustix::fs::{AtFlags, statat};

use crate::metadata::{MetadataAmount, open_dir, per_second};
use crate::report::{Sense, Table};
use crate::test_bed::{Contender, Server, TestBed};

const POOLS: &[(&str, usize)] = &[("1-branch", 1), ("2-branches", 2), ("16-branches", 16)];

pub(crate) fn run(test_bed: &TestBed, amount: MetadataAmount, tables: &mut Vec<Table>) -> Result<()> {
    let mut table =
        Table::new("Stats of a known name a second, looked up each time, by branches", Sense::MoreIsBetter);
    table.compare("16-branches", &["1-branch"], "16 to 1");
    table.compare("16-branches", &["2-branches"], "16 to 2");
    let asks = &["entry-timeout=0", "attr-timeout=120"][..];
    let mut pools = Vec::new();
    for (name, branches) in POOLS {
        let contender = Contender::new(name, Server::Fsstack, &[asks]);
        let at = test_bed.stand(&contender, *branches)?;
        let names = (0..amount.names).map(|n| CString::new(format!("known-{n}")));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        if let Some(last) = at.parts().last() {
            names
                .iter()
                .try_for_each(|n| fs::File::create(last.join(n.to_string_lossy().as_ref())).map(drop))?;
        }
        let dir = open_dir(at.path())?;
        names.iter().try_for_each(|name| statat(&dir, name, AtFlags::empty()).map(drop))?;
        pools.push((*name, at, dir, names));
    }
    for round in 0..amount.rounds {
        for (name, _, dir, names) in turns::of(&pools, round) {
            let began = Instant::now();
            names.iter().try_for_each(|name| statat(dir, name, AtFlags::empty()).map(drop))?;
            table.put("stat", name, per_second(names.len(), began.elapsed()));
        }
    }
    tables.push(table);
    pools.into_iter().try_for_each(|(_, at, dir, _)| {
        drop(dir);
        at.fall()
    })
}
