//! `fsstack-bench`: measures the cost of stacked file systems, to choose write paths and volume types.
//!
//! What is public here is shared with the figures of the project itself (`benches/figures`): the order of rounds, the statistics
//! and the conditions of a run.

mod arguments;
mod bar;
mod bonnie;
mod buffers;
mod cache;
mod cell;
mod compare;
mod compare_runs;
mod copying;
mod crosscheck;
mod engine;
mod experiment;
mod gate;
mod images;
pub mod machine;
mod measure;
mod memory;
mod metadata;
mod order;
mod pace;
mod plan;
mod plan_file;
mod plot;
mod progress;
mod published;
mod record;
mod report;
mod rivals;
mod run;
mod serving;
mod stack;
pub mod stats;
mod summary;
mod target;
mod task;
mod test_bed;
pub mod turns;
mod workload;

use std::num::NonZeroU64;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use fsstack_lab::disk_limit::DiskLimit;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use arguments::{Arguments, Command, Experiment, PlanFile};
use compare_runs::Outcome;
use experiment::{Extent, Name};
use plan::Plan;
use test_bed::Lab;

/// Ended early, or something failed; the results so far are written.
const PARTIAL: u8 = 3;
/// `compare-runs` found something worse.
const WORSE: u8 = 4;
/// Ended by a signal.
const INTERRUPTED: u8 = 130;

/// The program `fsstack-bench`.
#[must_use]
pub fn main() -> ExitCode {
    match ran(Arguments::parse()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("fsstack-bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn ran(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Command::Compare(given) => {
            // Before any mount, so that a signal leads to unmounting.
            let stop = stop_on_signals()?;
            let (plan, _mounted) = compare::plan(&given)?;
            measured(&plan, given.running.out.as_deref(), &stop)
        }
        Command::Experiment(given) => experiments(&given),
        Command::Plan(given) => planned(&given),
        Command::CrossCheck(given) => {
            let whole = crosscheck::run(&given, &*stop_on_signals()?)?;
            Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(PARTIAL) })
        }
        Command::CompareRuns(given) => {
            let outcome = compare_runs::compare(&given.before, &given.after, given.tolerance)?;
            Ok(ExitCode::from(if outcome == Outcome::Worse { WORSE } else { 0 }))
        }
    }
}

fn planned(given: &PlanFile) -> Result<ExitCode> {
    if given.list {
        for (name, text) in plan_file::BUILT_IN {
            let about = text.lines().next().unwrap_or_default();
            println!("{name:<14}  {}", about.trim_start_matches("# "));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let file = given.file.as_deref().context("no plan")?;
    let plan = plan_file::plan(file, &given.running)?;
    if given.print {
        println!("{}", serde_json::to_string_pretty(&plan.cases)?);
        return Ok(ExitCode::SUCCESS);
    }
    measured(&plan, given.running.out.as_deref(), &stop_on_signals()?)
}

/// Runs one experiment, or every possible one.
fn experiments(given: &Experiment) -> Result<ExitCode> {
    let rate = given.disk.map(|rate| NonZeroU64::new(rate.0).context("--disk 0 is no rate")).transpose()?;
    let limit = DiskLimit { bytes: rate, requests: given.disk_iops };
    let (volumes, wan) = (given.volumes.clone(), given.wan);
    let lab = given.lab.map(|kind| Lab { kind, volumes, wan, limit, memory: given.memory, needed: 0 });
    let extent = if given.full { Extent::Full } else { Extent::Quick };
    let running = if given.quick { given.running.quick() } else { given.running.clone() };
    let one = |name: Name, out: Option<&Path>, stop: &Arc<AtomicBool>| {
        let (plan, _ground) = experiment::plan(name, extent, given.memory, &running, lab.as_ref())?;
        measured(&plan, out, stop)
    };
    let (stop, out) = (stop_on_signals()?, given.running.out.as_deref());
    let Some(name) = given.which.name() else {
        let mut worst = ExitCode::SUCCESS;
        let mut measured = 0;
        for name in Name::ALL {
            let out = out.map(|out| out.join(name.word()));
            match one(name, out.as_deref(), &stop) {
                Ok(code) => {
                    measured += 1;
                    worst = if code == ExitCode::SUCCESS { worst } else { code };
                }
                Err(e) => eprintln!("fsstack-bench: skipped: {e:#}"),
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        ensure!(0 < measured, "no experiment could be run here");
        return Ok(worst);
    };
    one(name, out, &stop)
}

/// Runs a plan and prints the result.
fn measured(plan: &Plan, out: Option<&Path>, stop: &Arc<AtomicBool>) -> Result<ExitCode> {
    plan.check()?;
    out.map(report::prepare).transpose()?;
    let mut results = run::run(plan, stop)?;
    results.says = report::says(&results);
    out.map(|out| report::write(&results, out)).transpose()?;
    print!("{}", report::table(&results));
    Ok(match (stop.load(Ordering::Relaxed), results.complete()) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (_, false) => ExitCode::from(PARTIAL),
        _ => ExitCode::SUCCESS,
    })
}

/// A flag that the first Ctrl-C (or SIGTERM, SIGHUP) sets; the second ends the process at once.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .with_context(|| format!("handling signal {signal}"))?;
    }
    Ok(stop)
}
