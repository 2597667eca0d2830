//! Errands: what people and CI ask of this repository, one module each.

mod demo;
mod dist;
mod docs;
mod exec;
mod faults;
mod install;
mod lab;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Errands of the fsstack repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Xtask {
    /// Mount a pool over three XFS branches, fill it, check it, measure it, leave it mounted.
    Demo(demo::Demo),
    /// A real GlusterFS on this machine, or other file systems for branches: up, down, faults, a pool over it.
    Lab(lab::Lab),
    /// Everything that passes for tested: fmt, clippy, tidy, docs, and the tiers of tests.
    Test(test::Test),
    /// Bring about each fault of docs/reliability.md for mhddfs, mergerfs and fsstack, and write the table.
    Faults(faults::Faults),
    /// The rules of this code base that no compiler knows.
    Tidy,
    /// Write the generated pages (options, commands, man pages, completions, the picture of the crates) and build the site.
    Docs(docs::Docs),
    /// Build what others are given: a Debian package, a tarball, their sums, a bill of materials, licences.
    Dist(dist::Dist),
    /// Run the criterion suites; arguments go to cargo bench.
    Bench {
        /// Arguments after `cargo bench -p fsstack-benches`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    let done = match Xtask::parse() {
        Xtask::Demo(demo) => demo.run(),
        Xtask::Lab(lab) => lab.run(),
        Xtask::Test(test) => test.run(),
        Xtask::Faults(faults) => faults.run(),
        Xtask::Tidy => tidy::run(),
        Xtask::Docs(docs) => docs.run(),
        Xtask::Dist(dist) => dist.run(),
        Xtask::Bench { args } => bench(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(args: &[String]) -> Result<()> {
    exec::cargo().args(["bench", "-p", "fsstack-benches"]).args(args).run().map(drop)
}
