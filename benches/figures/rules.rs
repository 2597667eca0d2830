//! Cost of placement rules: creates in pools with no rule and with 1000.
//!
//! Directories lie four levels deep, so that a rule has to be looked for on the way up. In the pool without rules the same ones are used.

use std::fs;
use std::time::Instant;

use anyhow::Result;
use fsstack_bench::turns;
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};

use crate::metadata::{MetadataAmount, open_dir, per_second};
use crate::report::{Sense, Table};
use crate::test_bed::{Contender, Server, TestBed};

const RULES: usize = 1000;
/// A directory that no rule is about, and one below a directory with a rule.
const DIRS: [(&str, &str); 2] =
    [("create, no rule applies", "plain/a/b/c"), ("create below a directory with a rule", "ruled-500/a/b/c")];

pub(crate) fn run(test_bed: &TestBed, amount: MetadataAmount, tables: &mut Vec<Table>) -> Result<()> {
    let mut table = Table::new("Creates a second with placement rules", Sense::MoreIsBetter);
    table.compare("1000-rules", &["no-rule"], "1000 rules to none");
    let rules: Vec<String> = (0..RULES).map(|n| format!("/ruled-{n}=mfs")).collect();
    // Lives as long as the run: options of a contender are literals otherwise.
    let option: &'static str = Box::leak(format!("place-rules={}", rules.join(":")).into_boxed_str());
    let mut pools = Vec::new();
    for (name, options) in [("no-rule", &[][..]), ("1000-rules", &[option])] {
        let contender = Contender::new(name, Server::Fsstack, &[&["create=mfs", "minfreespace=4M"], options]);
        let at = test_bed.stand(&contender, 2)?;
        DIRS.iter().try_for_each(|(_, dir)| fs::create_dir_all(at.path().join(dir)))?;
        pools.push((name, at));
    }
    for round in 0..amount.rounds {
        for (row, dir) in DIRS {
            for (name, at) in turns::of(&pools, round) {
                let dir = open_dir(&at.path().join(dir))?;
                let began = Instant::now();
                for n in 0..amount.names {
                    openat(
                        &dir,
                        format!("f-{n}"),
                        OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY,
                        Mode::RUSR,
                    )?;
                }
                table.put(row, name, per_second(amount.names, began.elapsed()));
                (0..amount.names).try_for_each(|n| unlinkat(&dir, format!("f-{n}"), AtFlags::empty()))?;
            }
        }
    }
    tables.push(table);
    pools.into_iter().try_for_each(|(_, at)| at.fall())
}
