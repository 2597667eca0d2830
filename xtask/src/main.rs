//! Tasks of this repository for developers and CI, one module each.

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

/// Tasks of the fsstack repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Xtask {
    /// Mount a pool over three XFS branches, fill, check and measure it, and leave it mounted.
    Demo(demo::Demo),
    /// Run GlusterFS on this machine, or other file systems for branches, with faults and a pool over it.
    Lab(lab::Lab),
    /// Run all checks: fmt, clippy, tidy, docs, and the tiers of tests.
    Test(test::Test),
    /// Cause each fault of docs/reliability.md for mhddfs, mergerfs and fsstack, and write the table.
    Faults(faults::Faults),
    /// Check the rules of this code base that the compiler does not know.
    Tidy(tidy::Tidy),
    /// Write the generated pages (options, commands, man pages, completions, the picture of the crates) and build the site.
    Docs(docs::Docs),
    /// Build the release files: Debian package, tarball, checksums, bill of materials, licences.
    Dist(dist::Dist),
    /// Run the criterion suites; arguments are passed to cargo bench.
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
        Xtask::Tidy(tidy) => tidy.run(),
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
