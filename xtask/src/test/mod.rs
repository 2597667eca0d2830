//! `cargo xtask test`: all checks and tiers of tests, with a table of results.

mod counts;
mod lab;
mod power;
mod report;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use fsstack_lab::daemon::SECCOMP;
use fsstack_lab::debian::System;
use fsstack_lab::pool::TRANSPORT;
use fsstack_lab::shell::Run;
use fsstack_lab::{RingSwitch, Skip, needs};

use crate::demo::Demo;
use crate::install::{self, Runner};
use crate::{dist, docs, exec, tidy};
use report::{Report, ReportRow};

/// Arguments of `cargo xtask test`.
#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Only this tier, without the checks; may be given several times.
    #[arg(long, value_enum)]
    tier: Vec<Tier>,
    /// Seconds for each model of the tier `models`, in place of a number of orders.
    #[arg(long, value_name = "N")]
    model_seconds: Option<u32>,
    /// Seconds for each test of the tier `compare`, in place of eight.
    #[arg(long, value_name = "N")]
    compare_seconds: Option<u32>,
}

/// Tests with the same requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tier {
    /// Every crate's own tests, the engine on temporary directories, doc tests: no root, no FUSE.
    Unit,
    /// Random acts compared with a model and with a plain directory.
    Model,
    /// Random calls in a pool and on a local disk, while jobs move files, the daemon dies and branches go.
    Compare,
    /// Code with threads, in many orders of them, by a model checker.
    Models,
    /// Every system call failed once.
    Faults,
    /// Power cuts at every moment of every operation, on each branch alone.
    Power,
    /// Like power, with every order and every file system. Runs only when it is named.
    PowerLong,
    /// Real mounts.
    Mounted,
    /// The public suites, on XFS and on the pool.
    Posix,
    /// The pool exported by a real NFS server (nfs-ganesha on loopback). Runs only when it is named.
    Nfs,
    /// The pool exported by the kernel's own NFS server to its own client, in a virtual machine. Runs only when it is
    /// named.
    NfsGuest,
    /// Volumes of a real GlusterFS as branches: the scenarios of the mounted tier, and faults. Runs only when it is
    /// named.
    Lab,
    /// The packages that `cargo xtask dist` makes, installed, used and removed in a fresh system. Runs only when it is
    /// named.
    Dist,
    /// Tests that take minutes: a whole large build, a thousand mounts, the demo. Runs only when it is named.
    Long,
}

/// Transport of the pools under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestTransport {
    /// Chosen by the tests.
    Any,
    /// /dev/fuse.
    Dev,
    /// FUSE over `io_uring`.
    Ring,
}

impl TestTransport {
    /// Name of a tier with this transport in the table.
    fn of(self, tier: Tier) -> &'static str {
        match (tier, self) {
            (Tier::Unit, _) => "unit",
            (Tier::Model, _) => "model",
            (Tier::Compare, _) => "compare",
            (Tier::Models, _) => "models",
            (Tier::Faults, _) => "faults",
            (Tier::Power, _) => "power",
            (Tier::PowerLong, _) => "power-long",
            (Tier::Mounted, Self::Ring) => "mounted, ring",
            (Tier::Mounted, _) => "mounted",
            (Tier::Posix, Self::Ring) => "posix, ring",
            (Tier::Posix, _) => "posix",
            (Tier::Nfs, _) => "nfs",
            (Tier::NfsGuest, _) => "nfs-guest",
            (Tier::Lab, _) => "lab",
            (Tier::Dist, _) => "dist",
            (Tier::Long, Self::Ring) => "long, ring",
            (Tier::Long, _) => "long",
        }
    }

    /// Arguments for cargo, one list per command. Tests that choose their transport, and those of what does not depend on it
    /// (commands, jobs, the index), are two thirds of the time: they run with the first one only.
    fn commands(self, tier: Tier, runner: Runner) -> Vec<Vec<&'static str>> {
        let mut commands = tier.commands(runner);
        if (tier, self) == (Tier::Long, Self::Ring) {
            // Those with faults choose theirs.
            commands.truncate(1);
        }
        if (tier, self) == (Tier::Mounted, Self::Ring) {
            let without: &[&str] = match runner {
                Runner::Nextest => &[
                    "-E",
                    "not test(/^(command|keep|upgrade|handles_index|handles_index_lost)::|_by_the_(device|ring)(_with_.*)?$/)",
                ],
                Runner::Cargo => &[
                    "--",
                    "--skip=command::",
                    "--skip=keep::",
                    "--skip=upgrade::",
                    "--skip=handles_index",
                    "--skip=_by_the_device",
                    "--skip=_by_the_ring",
                ],
            };
            commands.iter_mut().for_each(|command| command.extend(without));
        }
        commands
    }

    /// Makes the tests of `run` use this transport.
    fn set_on(self, run: Run) -> Run {
        match self {
            Self::Any => run,
            Self::Dev => run.env(TRANSPORT, "dev"),
            Self::Ring => run.env(TRANSPORT, "ring"),
        }
    }

    /// Checks whether the transport is available.
    fn able(self) -> Result<(), Skip> {
        if self == Self::Ring { needs::rings() } else { Ok(()) }
    }
}

/// How long a model runs (`fsstack_sync::model::SECONDS`).
const MODEL_SECONDS: &str = "FSSTACK_MODEL_SECONDS";

/// How long a test of the tier `compare` runs (tests/compare/main.rs).
const COMPARE_SECONDS: &str = "FSSTACK_COMPARE";

/// The crates that have models, on a model checker's threads and locks.
const MODELS: &[&str] =
    &["-p", "fsstack-branch", "-p", "fsstack-engine", "-p", "fsstack-fuse", "--features", "shuttle", "--lib"];

/// Only the long tests, with a longer limit.
const LONG: &[&str] = &["--profile", "long", "--run-ignored", "only"];

impl Tier {
    /// Tiers that run if none is named.
    const ALWAYS: &[Self] = &[
        Self::Unit,
        Self::Model,
        Self::Compare,
        Self::Models,
        Self::Faults,
        Self::Power,
        Self::Mounted,
        Self::Posix,
    ];

    /// Transports of the tier, one after the other.
    fn transports(self) -> &'static [TestTransport] {
        match self {
            Self::Mounted | Self::Posix | Self::Long => &[TestTransport::Dev, TestTransport::Ring],
            // The tests of model and compare choose their transport; the faults are below the transports.
            Self::Unit
            | Self::Model
            | Self::Compare
            | Self::Models
            | Self::Faults
            | Self::Power
            | Self::PowerLong
            | Self::Nfs
            | Self::NfsGuest
            | Self::Lab
            | Self::Dist => &[TestTransport::Any],
        }
    }

    /// Build profile of the daemon under test.
    fn profile(self) -> &'static str {
        match self {
            // Unoptimised code is several times slower under emulation.
            Self::NfsGuest => "release",
            Self::Unit
            | Self::Model
            | Self::Compare
            | Self::Models
            | Self::Faults
            | Self::Power
            | Self::PowerLong
            | Self::Mounted
            | Self::Posix
            | Self::Nfs
            | Self::Lab
            | Self::Dist
            | Self::Long => "debug",
        }
    }

    /// Checks whether any of its tests can run here.
    fn able(self) -> Result<(), Skip> {
        match self {
            Self::Unit | Self::Model | Self::Models | Self::Faults => Ok(()),
            // The guest's kernel mounts the pools.
            Self::NfsGuest => needs::root(),
            Self::Power | Self::PowerLong => needs::loops(),
            Self::Mounted | Self::Long => needs::mounting(),
            Self::Dist => needs::mounting().and_then(|()| dist::able()),
            Self::Compare | Self::Posix | Self::Nfs => needs::mounting().and_then(|()| needs::loops()),
            Self::Lab => lab::able(),
        }
    }

    /// Arguments for cargo, one list per command.
    fn commands(self, runner: Runner) -> Vec<Vec<&'static str>> {
        let run: &[&str] = match runner {
            Runner::Nextest => &["nextest", "run", "--no-tests=pass"],
            Runner::Cargo => &["test", "--no-fail-fast"],
        };
        let with = |more: &[&'static str]| [run, more].concat();
        let one = |target| vec![with(&["-p", "fsstack-tests", "--test", target])];
        match self {
            Self::Unit => vec![
                with(&["--workspace", "--exclude", "fsstack-tests", "--lib", "--bins", "--tests"]),
                with(&["-p", "fsstack-tests", "--lib", "--test", "engine"]),
                vec!["test", "--doc", "--workspace"],
            ],
            Self::Model => one("model"),
            Self::Compare => one("compare"),
            Self::Models => vec![match runner {
                Runner::Nextest => [with(MODELS), vec!["-E", "test(models::)"]].concat(),
                Runner::Cargo => [with(MODELS), vec!["models::"]].concat(),
            }],
            Self::Faults => vec![with(&["-p", "fsstack-tests", "--features", "fault", "--test", "faults"])],
            Self::Power | Self::PowerLong => {
                vec![with(&["-p", "fsstack-tests", "--features", "fault", "--test", "power"])]
            }
            Self::Mounted => one("mounted"),
            Self::Posix => one("posix"),
            Self::Nfs => one("nfs"),
            Self::NfsGuest => one("nfs-guest"),
            Self::Lab => lab::commands(&with, runner),
            Self::Dist => one("dist"),
            Self::Long => {
                let with_faults = with(&["-p", "fsstack-tests", "--features", "fault", "--test", "faults"]);
                let only = match runner {
                    Runner::Nextest => LONG,
                    Runner::Cargo => &["--", "--ignored"],
                };
                [one("mounted").concat(), with_faults].map(|run| [run, only.to_vec()].concat()).into()
            }
        }
    }
}

impl Test {
    /// Variables that say how long tests run.
    fn lengths(&self) -> Vec<(&'static str, String)> {
        let lengths = [(MODEL_SECONDS, self.model_seconds), (COMPARE_SECONDS, self.compare_seconds)];
        lengths.into_iter().filter_map(|(name, seconds)| Some((name, seconds?.to_string()))).collect()
    }

    /// Runs everything and prints the table; fails if anything failed.
    pub(crate) fn run(self) -> Result<()> {
        // Tests that lack a program report a skip themselves.
        for needs in
            [install::TO_TEST, install::PEERS, install::TO_SHOW, install::TO_CONTAIN, install::TO_BENCH]
        {
            if let Err(e) = install::packages(needs) {
                eprintln!("{e:#}");
            }
        }
        let runner = install::runner();
        let mut report = Report::default();
        if self.tier.is_empty() {
            checks().into_iter().for_each(|row| report.add(row));
        }
        let tiers = if self.tier.is_empty() { Tier::ALWAYS } else { &self.tier };
        let mut helpers = HashMap::new();
        // Mounting a pool over the ring enables that for the whole machine.
        let _as_before = RingSwitch::kept();
        for (tier, transport) in
            tiers.iter().flat_map(|tier| tier.transports().iter().map(|transport| (*tier, *transport)))
        {
            let name = transport.of(tier);
            let helper =
                helpers.entry(tier.profile()).or_insert_with_key(|profile| exec::build_helper(profile));
            report.add(match (&*helper, tier.able().and_then(|()| transport.able())) {
                (Err(e), _) => ReportRow::new(name).failed(format!("{e:#}")),
                (Ok(_), Err(skip)) => ReportRow::new(name).skipped(skip.to_string()),
                (Ok(helper), Ok(())) => {
                    timed(|| run_tier(tier, transport, (runner, &self.lengths()), helper))
                }
            });
        }
        if tiers.contains(&Tier::Long) {
            report.add(timed(|| match needs::mounting().and_then(|()| needs::loops()) {
                Ok(()) => ReportRow::of("demo", Demo::up_and_down()),
                Err(skip) => ReportRow::new("demo").skipped(skip.to_string()),
            }));
        }
        report.add(timed(leftovers));
        println!("{report}");
        if report.failed() { bail!("not everything passed") } else { Ok(()) }
    }
}

fn checks() -> Vec<ReportRow> {
    let clippy = ["clippy", "--workspace", "--all-targets"];
    let faulty = ["clippy", "-p", "fsstack-tests", "--features", "fault", "--all-targets"];
    // What only a release build compiles: the one crate that has such code, without its dependencies.
    let release = ["rustc", "-q", "-p", "fsstack-sync", "--lib", "--profile", "check"];
    let modelled = [
        "clippy",
        "-p",
        "fsstack-sync",
        "-p",
        "fsstack-fuse",
        "-p",
        "fsstack-engine",
        "-p",
        "fsstack-branch",
    ];
    let as_modelled = ["--features", "shuttle", "--lib", "--tests"];
    let deny = ["--", "-D", "warnings"];
    let as_release = ["--", "-C", "debug-assertions=off", "-D", "warnings"];
    vec![
        timed(|| ReportRow::of("fmt", exec::cargo().args(["fmt", "--all", "--check"]).run().map(drop))),
        timed(|| ReportRow::of("clippy", exec::cargo().args(clippy).args(deny).run().map(drop))),
        timed(|| ReportRow::of("clippy +fault", exec::cargo().args(faulty).args(deny).run().map(drop))),
        timed(|| {
            let clippy = exec::cargo().args(modelled).args(as_modelled).args(deny);
            ReportRow::of("clippy +shuttle", clippy.run().map(drop))
        }),
        timed(|| ReportRow::of("release code", exec::cargo().args(release).args(as_release).run().map(drop))),
        timed(|| ReportRow::of("tidy", tidy::run())),
        timed(|| match docs::stale() {
            Ok(stale) => stale.into_iter().fold(ReportRow::new("docs").passed(1), ReportRow::failed),
            Err(e) => ReportRow::new("docs").failed(format!("{e:#}")),
        }),
    ]
}

fn run_tier(
    tier: Tier,
    transport: TestTransport,
    (runner, lengths): (Runner, &[(&str, String)]),
    helper: &PathBuf,
) -> ReportRow {
    let mut row = ReportRow::new(transport.of(tier));
    // Here and not in the tests, so that compiling a suite does not count as a test's time.
    let installed = match tier {
        Tier::Posix => install::suites(),
        Tier::Nfs => install::servers(install::TO_EXPORT),
        Tier::Lab => install::servers(install::TO_EXPORT_VOLUMES),
        Tier::NfsGuest => install::guest(),
        // The stress test runs fsx.
        Tier::Mounted | Tier::Long => install::suites().and_then(|()| install::sources()),
        Tier::Dist => prepare_dist(),
        Tier::Unit
        | Tier::Model
        | Tier::Compare
        | Tier::Models
        | Tier::Faults
        | Tier::Power
        | Tier::PowerLong => Ok(()),
    };
    if let Err(e) = installed {
        return row.failed(format!("{e:#}"));
    }
    if tier == Tier::Lab {
        return lab::run(row, &tier.commands(runner), helper);
    }
    if [Tier::Power, Tier::PowerLong].contains(&tier) {
        return power::run(row, &tier.commands(runner), helper, tier == Tier::PowerLong);
    }
    for args in transport.commands(tier, runner) {
        let run = lengths.iter().fold(exec::cargo().args(&args), |run, (name, value)| run.env(name, value));
        row = match run_counted(transport.set_on(run), helper) {
            Ok((counted, skips)) => row.counted(counted, skips),
            Err(e) => row.failed(format!("{e:#}")),
        };
    }
    row.not_empty()
}

/// Makes the packages, and the system for testing them. If that fails, it is reported here, and the tests skip.
fn prepare_dist() -> Result<()> {
    dist::Dist::default().make()?;
    if let Err(e) = install::packages(install::TO_RUN_ELSEWHERE) {
        eprintln!("{e:#}");
    }
    if let Err(e) = System::fresh() {
        eprintln!("no fresh system can be had: {e:#}");
    }
    Ok(())
}

fn run_counted(run: Run, helper: &PathBuf) -> Result<(counts::TestCounts, Vec<String>)> {
    let list = tempfile::NamedTempFile::new()?;
    // A system call outside the daemon's list kills it, and fails the test.
    let run = run.env("FSSTACK_BIN", helper).env("FSSTACK_SKIPS", list.path()).env(SECCOMP, "kill");
    let output = run.env("FSSTACK_DIST", dist::default_out()?).output()?;
    let mut counted = counts::read(&format!("{}\n{}", output.stdout, output.stderr));
    if output.code != 0 && counted.failed == 0 {
        // The tests did not start, or did not finish.
        counted.failed = 1;
    }
    let skips = fs::read_to_string(list.path())?.lines().map(str::to_owned).collect();
    Ok((counted, skips))
}

/// Takes down leftovers of killed tests; a failure to do so fails the run.
fn leftovers() -> ReportRow {
    ReportRow::of("clean up", fsstack_lab::sweep().map(drop))
}

fn timed(work: impl FnOnce() -> ReportRow) -> ReportRow {
    let began = Instant::now();
    let row = work();
    row.took(began.elapsed())
}
