//! `fsstack-bench`: what stacking file systems costs, and which write path and volume type to use.

mod arguments;
mod buffers;
mod cache;
mod compare;
mod engine;
mod gate;
mod machine;
mod measure;
mod metadata;
mod order;
mod place;
mod plan;
mod plot;
mod progress;
mod published;
mod record;
mod report;
mod rivals;
mod run;
mod stack;
mod stats;
mod summary;
mod task;
mod workload;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::Parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use arguments::{Arguments, Command};
use plan::Plan;

/// Ended early: what was measured is written.
const PARTIAL: u8 = 3;
/// Ended by a signal.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
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
            let (plan, _mounted) = compare::plan(&given)?;
            measured(&plan, given.running.out.as_deref())
        }
    }
}

/// Runs a plan and shows what came of it.
fn measured(plan: &Plan, out: Option<&Path>) -> Result<ExitCode> {
    plan.check()?;
    out.map(report::prepare).transpose()?;
    let stop = stop_on_signals()?;
    let mut results = run::run(plan, &stop)?;
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
