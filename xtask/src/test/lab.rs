//! The lab tier: starts its GlusterFS before the tests, and always takes it down after them.

use std::path::PathBuf;

use anyhow::Result;
use fsstack_lab::gluster::{self, Gluster, Purge, Steps};
use fsstack_lab::{Skip, needs, test_bed};

use super::report::ReportRow;
use crate::exec;
use crate::install::{self, Runner};

/// Tests of the mounted tier that run again on volumes. Excluded are tests that are not about file systems, make too
/// many files for GlusterFS, or use a substitute for it.
const ON_VOLUMES: &str = "binary(mounted) and not test(/^(tools|lifetime|sources|refusals|mount8|live|builds|large|churn|missing_parts)/)";

/// Checks whether GlusterFS can run here.
pub(super) fn able() -> Result<(), Skip> {
    needs::mounting()?;
    // Requirements that are still missing are named when they are checked.
    let installed = install::packages(install::TO_GLUSTER);
    needs::gluster_ground().map_err(|skip| match installed {
        Ok(()) => skip,
        Err(e) => Skip::because(format!("{skip} ({e:#})")),
    })
}

/// Faults first, then the scenarios, which need a healthy lab.
pub(super) fn commands(
    with: &dyn Fn(&[&'static str]) -> Vec<&'static str>,
    runner: Runner,
) -> Vec<Vec<&'static str>> {
    let tests = ["-p", "fsstack-tests", "--test"];
    match runner {
        Runner::Nextest => vec![
            with(&[&tests[..], &["lab"]].concat()),
            with(&[&tests[..], &["mounted", "-E", ON_VOLUMES]].concat()),
            with(&[&tests[..], &["nfs", "must_be_searched"]].concat()),
        ],
        // In one process, so one after the other; without tests that a pattern cannot select.
        Runner::Cargo => vec![with(&[&tests[..], &["lab", "--", "--test-threads=1"]].concat())],
    }
}

/// Runs the commands in a lab of their own.
pub(super) fn run(mut row: ReportRow, commands: &[Vec<&'static str>], helper: &PathBuf) -> ReportRow {
    let lab = match up() {
        Ok(lab) => lab,
        Err(e) => return row.skipped(format!("GlusterFS cannot be had here, {}", first_line(&e))),
    };
    for args in commands {
        let output =
            super::run_counted(exec::cargo().args(args).env(test_bed::VARIABLE, ground_of(args)), helper);
        row = match output {
            Ok((counted, skips)) => row.counted(counted, skips),
            Err(e) => row.failed(format!("{e:#}")),
        };
    }
    match lab.down(Purge::Bricks, Steps::Shown) {
        Ok(()) => row.not_empty(),
        Err(e) => row.failed(format!("{e:#}")),
    }
}

fn up() -> Result<Gluster> {
    let lab = Gluster::named(gluster::TESTS)?;
    let made = lab.up(&gluster::plan_of_tests()?, Steps::Shown);
    if let Err(e) = made {
        // No leftovers of an attempt.
        lab.down(Purge::Bricks, Steps::Shown)?;
        return Err(e);
    }
    Ok(lab)
}

/// The fault scenarios choose each branch's file system themselves.
fn ground_of(args: &[&str]) -> &'static str {
    if ["mounted", "nfs"].iter().any(|scenarios| args.contains(scenarios)) { "gluster" } else { "machine" }
}

fn first_line(e: &anyhow::Error) -> String {
    format!("{e:#}").lines().next().unwrap_or_default().replace(": ", ", ")
}
