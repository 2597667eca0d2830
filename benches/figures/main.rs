//! Figures of a mounted pool, its branches and its rivals, for docs/figures/operations.md.
//!
//! `cargo bench -p fsstack-benches --bench figures` takes a quick look (under a minute); with `-- --full` it
//! measures. The tables go to standard output, every sample to figures.json in cargo's target directory.

mod arguments;
mod breadth;
mod breakdown;
mod catalogue;
mod conditions;
mod control;
mod copy;
mod data;
mod diagnosis;
mod distance;
mod endurance;
mod export;
mod frozen;
mod groups;
mod hogs;
mod index;
mod job_costs;
mod jobs;
mod least_calls;
mod listings;
mod many;
mod memory;
mod metadata;
mod nfs;
mod null;
mod programs;
mod queues;
mod relocate;
mod report;
mod rules;
mod slow;
mod standstill;
mod startup;
mod test_bed;
mod trees;
mod upgrade;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use fsstack_lab::shell::command;
use fsstack_lab::{MiB, needs};
use serde_json::json;

use arguments::{Arguments, Part};
use conditions::Conditions;
use report::Table;
use test_bed::TestBed;

type Figures = fn(&TestBed, &Arguments, &mut Vec<Table>) -> Result<()>;

const FIGURES: &[(Part, Figures)] = &[
    (Part::Metadata, |test_bed, asked, tables| metadata::run(test_bed, asked.metadata(), tables)),
    (Part::Busy, |test_bed, asked, tables| metadata::run_busy(test_bed, asked.metadata(), tables)),
    (Part::Trees, |test_bed, asked, tables| trees::run(test_bed, asked.trees(), tables)),
    (Part::Listings, |test_bed, asked, tables| listings::run(test_bed, asked.listings(), tables)),
    (Part::Programs, |test_bed, asked, tables| programs::run(test_bed, asked.programs(), tables)),
    (Part::Distance, |test_bed, asked, tables| distance::run(test_bed, asked.rounds(), tables)),
    (Part::Breadth, |test_bed, asked, tables| breadth::run(test_bed, asked.metadata(), tables)),
    (Part::Startup, |test_bed, asked, tables| startup::run(test_bed, asked.rounds(), tables)),
    (Part::Data, |test_bed, asked, tables| data::run(test_bed, asked.data(), tables)),
    (Part::Control, |test_bed, asked, tables| control::run(test_bed, asked.control(), tables)),
    (Part::Relocate, |_, asked, tables| relocate::run(asked.relocated(), tables)),
    (Part::Frozen, |_, asked, tables| frozen::run(asked.rounds(), tables)),
    (Part::Standstill, |_, asked, tables| {
        let (rounds, mib) = asked.standstill();
        standstill::run(rounds, mib, tables)
    }),
    (Part::Waiting, |_, asked, tables| standstill::run_waiting(asked.rounds(), tables)),
    (Part::Copy, |test_bed, asked, tables| copy::run(test_bed, asked.copied(), tables)),
    (Part::Groups, |test_bed, asked, tables| groups::run(test_bed, asked.metadata(), tables)),
    (Part::Export, |test_bed, asked, tables| export::run(test_bed, asked.metadata(), tables)),
    (Part::Nfs, |test_bed, asked, tables| nfs::run(test_bed, asked.nfs(), tables)),
    (Part::Index, |_, asked, tables| index::run(asked.indexed(), tables)),
    (Part::Jobs, |_, asked, tables| jobs::run(asked.drained(), tables)),
    (Part::JobCosts, |_, asked, tables| job_costs::run(asked.drained(), tables)),
    (Part::Rules, |test_bed, asked, tables| rules::run(test_bed, asked.metadata(), tables)),
    (Part::Catalogue, |test_bed, asked, tables| catalogue::run(test_bed, asked.metadata(), tables)),
    (Part::Diagnosis, |test_bed, asked, tables| diagnosis::run(test_bed, asked.diagnosed(), tables)),
    (Part::Upgrade, |test_bed, asked, tables| upgrade::run(test_bed, asked.upgraded(), tables)),
    (Part::Slow, |test_bed, asked, tables| slow::run(test_bed, asked.metadata(), tables)),
    (Part::Breakdown, |test_bed, asked, tables| breakdown::run(test_bed, asked.metadata(), tables)),
    (Part::Many, |_, asked, tables| many::run(asked.many(), tables)),
    (Part::Memory, |test_bed, asked, tables| memory::run(test_bed, asked.inodes(), tables)),
    (Part::Endurance, |test_bed, asked, tables| {
        endurance::run(test_bed, asked.endurance(), &target()?.join("endurance.svg"), tables)
    }),
];

fn main() -> ExitCode {
    let failure = match null::called(std::env::args().skip(1)) {
        Ok(true) => Ok(()),
        Ok(false) => Arguments::read(std::env::args().skip(1)).and_then(|arguments| measure(&arguments)),
        Err(error) => Err(error),
    };
    match failure {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _nobody_listens = writeln!(std::io::stderr(), "figures: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    if let Err(skip) = needs::mounting().and(needs::loops()) {
        skip.announce();
        return Ok(());
    }
    build()?;
    let test_bed = TestBed::new(2, MiB(2048))?;
    let mut tables: Vec<Table> = Vec::new();
    for (part, figures) in FIGURES {
        if arguments.wants(*part) {
            let shown = tables.len();
            figures(&test_bed, arguments, &mut tables)?;
            tables[shown..]
                .iter()
                .try_for_each(|table| writeln!(std::io::stdout(), "{}", table.markdown()))?;
        }
    }
    let conditions = Conditions::now(arguments.rounds());
    let mut out = std::io::stdout();
    writeln!(out, "{}", conditions.markdown())?;
    let kept = target()?.join("figures.json");
    let failure = json!({
        "conditions": conditions.json(),
        "tables": tables.iter().map(Table::json).collect::<Vec<_>>(),
    });
    std::fs::write(&kept, serde_json::to_string_pretty(&failure)?)?;
    Ok(writeln!(out, "Every sample is in {}.", kept.display())?)
}

/// Builds the released daemon, unless FSSTACK_BIN names one.
fn build() -> Result<()> {
    if std::env::var_os("FSSTACK_BIN").is_some() {
        return Ok(());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = command(cargo).args(["build", "--release", "-p", "fsstack-daemon", "-p", "fsstack-cli"]);
    built.dir(env!("CARGO_MANIFEST_DIR")).limit(Duration::from_secs(900)).run().map(drop)
}

/// Cargo's target directory, found by this program's own path.
fn target() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    own.ancestors().nth(3).map(PathBuf::from).context("this program is not in a target directory")
}
