//! The published experiments as plans: cases, published figures, and findings from our own.

mod cluster_io;
mod double_fuse;
mod gluster_volumes;
mod nfs_nconnect;
mod raid_compare;

use anyhow::{Result, bail, ensure};

use crate::arguments::{Running, Which};
use crate::bonnie;
use crate::memory;
use crate::plan::{Cells, Plan, Repeated};
use crate::published::{Point, Published};
use crate::record::{Case, Figure, Results, Skipped};
use crate::report::pair;
use crate::target::Target;
use crate::test_bed::{Kinds, Lab, TestBed};
use crate::workload::{Bytes, Workload};

/// Seconds that a cell lasts which decides a bar: shorter ones scatter too much.
const CELL_SECONDS: f64 = 2.0;

/// A published experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// The cost of a second FUSE layer.
    DoubleFuse,
    /// Which GlusterFS volume type?
    GlusterVolumes,
    /// The general survey of cluster file systems.
    ClusterIo,
    /// File systems and RAID under a branch.
    RaidCompare,
    /// One NFS mount, several TCP connections.
    NfsNconnect,
}

impl Which {
    /// The experiment; `None` for all.
    pub(crate) fn name(self) -> Option<Name> {
        match self {
            Self::DoubleFuse => Some(Name::DoubleFuse),
            Self::GlusterVolumes => Some(Name::GlusterVolumes),
            Self::ClusterIo => Some(Name::ClusterIo),
            Self::RaidCompare => Some(Name::RaidCompare),
            Self::NfsNconnect => Some(Name::NfsNconnect),
            Self::All => None,
        }
    }
}

impl Name {
    /// All of them, in the order of EXPERIMENTS.
    pub(crate) const ALL: [Self; 5] =
        [Self::DoubleFuse, Self::GlusterVolumes, Self::ClusterIo, Self::RaidCompare, Self::NfsNconnect];

    /// Word on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::DoubleFuse => "double-fuse",
            Self::GlusterVolumes => "gluster-volumes",
            Self::ClusterIo => "cluster-io",
            Self::RaidCompare => "raid-compare",
            Self::NfsNconnect => "nfs-nconnect",
        }
    }
}

/// Size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Fits 2 CPUs, 24 GiB and about 5 minutes.
    Quick,
    /// The published sizes.
    Full,
}

impl Extent {
    /// Chooses by size.
    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// Content of an experiment, independent of the test bed.
struct Content {
    title: &'static str,
    figures: Vec<Figure>,
    cases: Vec<Case>,
    published: Vec<Published>,
    rounds: u32,
}

impl Content {
    /// `memory`: what the run is held to.
    fn of(name: Name, extent: Extent, memory: Option<Bytes>) -> Self {
        match name {
            Name::DoubleFuse => double_fuse::content(extent),
            Name::GlusterVolumes => gluster_volumes::content(extent),
            Name::ClusterIo => cluster_io::content(extent, memory),
            Name::RaidCompare => raid_compare::content(extent),
            Name::NfsNconnect => nfs_nconnect::content(extent),
        }
    }

    /// Adds a case.
    fn case(&mut self, figure: &str, name: String, x: (f64, String), workload: Workload) {
        self.cases.push(Case { name, figure: figure.to_owned(), x: x.0, x_label: x.1, workload });
    }
}

/// Makes the plan of an experiment with its test bed.
pub(crate) fn plan(
    name: Name,
    extent: Extent,
    memory: Option<Bytes>,
    running: &Running,
    lab: Option<&Lab>,
) -> Result<(Plan, TestBed)> {
    let content = Content::of(name, extent, memory);
    memory.map(|memory| memory::check(memory, &content.cases)).transpose()?;
    if lab.is_none() && running.targets.is_empty() {
        bail!(
            "{}: no targets: give --target NAME=DIR ({}), or --lab to have them made",
            name.word(),
            targets_of(name)
        );
    }
    let mut plan = Plan {
        name: name.word().to_owned(),
        title: content.title.to_owned(),
        targets: running.targets.clone(),
        baseline: String::new(),
        figures: content.figures,
        cases: content.cases,
        rounds: running.rounds.unwrap_or(content.rounds),
        rounds_max: running.rounds_max.or(running.rounds).unwrap_or(extent.pick(4, 16) * content.rounds),
        warmups: running.warmups.unwrap_or(1),
        bonnie_rounds: extent.pick(running.rounds.map_or(2, |rounds| rounds.div_ceil(3).min(2)), u32::MAX),
        cells: Cells {
            seconds: running.cell_seconds.unwrap_or(CELL_SECONDS),
            of: extent.pick(Repeated::OfBars, Repeated::All),
        },
        bars: Vec::new(),
        again: None,
        disks: None,
        seed: running.seed,
        published: content.published,
        skipped: Vec::new(),
        notes: Vec::new(),
        bears: Vec::new(),
        exports: Vec::new(),
    };
    let Some(lab) = lab else {
        name.complete(running, &mut plan);
        plan.check()?;
        announce(&plan, extent, plan.targets.len());
        return Ok((plan, TestBed::held_to(memory)?));
    };
    name.check(lab)?;
    if name == Name::NfsNconnect {
        nfs_nconnect::over_connections(extent, &mut plan);
    }
    // The expected cost is printed and checked before anything is made.
    let targets = plan.targets.len() + name.targets(lab) + 1;
    let lab = &Lab { needed: plan.bytes_needed(targets), ..lab.clone() };
    announce(&plan, extent, targets);
    let test_bed = match name {
        Name::DoubleFuse => double_fuse::test_bed(lab, &mut plan)?,
        Name::GlusterVolumes => gluster_volumes::test_bed(lab, &mut plan)?,
        Name::ClusterIo => cluster_io::test_bed(lab, &mut plan)?,
        Name::RaidCompare => raid_compare::test_bed(lab, &mut plan)?,
        Name::NfsNconnect => nfs_nconnect::test_bed(lab, &mut plan)?,
    };
    name.complete(running, &mut plan);
    plan.check()?;
    for skipped in &plan.skipped {
        eprintln!("  skipped: {}: {}", skipped.what, skipped.why);
    }
    Ok((plan, test_bed))
}

/// Announces the needs of a plan before it starts.
fn announce(plan: &Plan, extent: Extent, targets: usize) {
    let (free, moved) = (Bytes(plan.bytes_needed(targets)), Bytes(plan.bytes_moved(targets)));
    eprintln!(
        "{}: {} cases, {} rounds{}, {targets} targets; needs {free} free on each target, moves {moved} in all{}",
        plan.name,
        plan.cases.len(),
        plan.rounds,
        match plan.rounds_max {
            most if most == plan.rounds => String::new(),
            most => format!(" (up to {most} until bars are decided)"),
        },
        match extent {
            // At 300 MB/s, the speed of the published single volumes.
            Extent::Full => format!(", about {} minutes at 300 MB/s", moved.0 / 300_000_000 / 60 + 1),
            Extent::Quick => String::new(),
        }
    );
}

impl Name {
    /// Adds what depends on the targets: the baseline, the bars, and the baseline once more.
    fn complete(self, running: &Running, plan: &mut Plan) {
        plan.baseline = baseline(running, &plan.targets);
        match self {
            Self::DoubleFuse => double_fuse::bars(plan),
            Self::ClusterIo => plan.add_rate_bars("pool", cluster_io::BARS, 0.8),
            Self::NfsNconnect => nfs_nconnect::bars(plan),
            Self::RaidCompare => raid_compare::without_missing_program(plan, bonnie::installed()),
            Self::GlusterVolumes => gluster_volumes::without_servers(plan),
        }
        plan.add_again();
    }

    /// Refuses options that the experiment's test bed does not use.
    fn check(self, lab: &Lab) -> Result<()> {
        let volumes = matches!(self, Self::DoubleFuse | Self::GlusterVolumes | Self::ClusterIo);
        let given = [("--wan", lab.wan.is_some()), ("--volumes", !lab.volumes.is_empty())];
        for (option, _) in given.into_iter().filter(|(_, given)| *given) {
            ensure!(volumes, "{}: its test bed has no GlusterFS volumes: leave {option} away", self.word());
            ensure!(lab.kind == Kinds::Gluster, "--lab xfs has no GlusterFS volumes: leave {option} away");
        }
        Ok(())
    }

    /// Maximum number of targets of its test bed.
    fn targets(self, lab: &Lab) -> usize {
        match self {
            Self::DoubleFuse => double_fuse::targets(lab),
            Self::GlusterVolumes => gluster_volumes::targets(lab),
            Self::ClusterIo | Self::NfsNconnect => 2,
            Self::RaidCompare => raid_compare::KINDS.len(),
        }
    }
}

/// The requested baseline; else `direct`, in a group (`dt8.direct`) or alone; else the branch of an exported pool; else
/// parity without compression, to which the published ratios refer; else the first.
fn baseline(running: &Running, targets: &[Target]) -> String {
    let named = |name: &str| {
        targets
            .iter()
            .find(|t| t.name == name || t.name.strip_suffix(name).is_some_and(|group| group.ends_with('.')))
    };
    let known = ["direct", "branch", "zfs-raidz", "btrfs-raid5"].into_iter().find_map(named);
    let chosen = || known.or(targets.first()).map(|t| t.name.clone()).unwrap_or_default();
    running.baseline.clone().unwrap_or_else(chosen)
}

fn targets_of(name: Name) -> &'static str {
    match name {
        Name::DoubleFuse => "direct, passthrough, stacked, bulk-copy, mhddfs, mergerfs",
        Name::GlusterVolumes => "one for each volume, and nfs",
        Name::ClusterIo => "one for each file system",
        Name::RaidCompare => "one for each kind of disk",
        Name::NfsNconnect => "one for each number of connections, as nconnect1 and nconnect16",
    }
}

/// The question that an experiment answers, by the plan's name.
pub(crate) fn question(plan: &str) -> Option<&'static str> {
    let name = Name::ALL.into_iter().find(|name| name.word() == plan)?;
    Some(match name {
        Name::DoubleFuse => "what does a second FUSE layer cost?",
        Name::GlusterVolumes => "which volume type writes fastest?",
        Name::ClusterIo => "what does a pool over several volumes cost?",
        Name::RaidCompare => "what does compression below a branch gain?",
        Name::NfsNconnect => "what does a pool behind an NFS server cost?",
    })
}

/// The answer to it, of the one pair of targets that matters; `None` if that was not measured.
pub(crate) fn answer(results: &Results) -> Option<String> {
    let of_role = |role: &str, cases: &[&str]| {
        let mut targets = results.contenders().filter(|t| t.name.rsplit('.').next() == Some(role));
        targets.find_map(|target| pair(results, &target.name, cases))
    };
    match results.made.plan.as_str() {
        "double-fuse" => {
            let said = of_role("passthrough", &["write", "read"])?;
            Some(
                said + &double_fuse::beside_mhddfs(results)
                    .map_or(String::new(), |mhddfs| format!(" {mhddfs}")),
            )
        }
        "cluster-io" => of_role("pool", &["write sequential", "read sequential", "create", "stat"]),
        "nfs-nconnect" => of_role("pool", &["free, 1 connections", "free, 16 connections"]),
        "gluster-volumes" => gluster_volumes::says(results).into_iter().next(),
        "raid-compare" => raid_compare::says(results).into_iter().next(),
        _ => None,
    }
}

/// Findings specific to this experiment.
pub(crate) fn says(results: &Results) -> Vec<String> {
    match results.made.plan.as_str() {
        "double-fuse" => double_fuse::says(results),
        "cluster-io" => cluster_io::says(results),
        "gluster-volumes" => gluster_volumes::says(results),
        "nfs-nconnect" => nfs_nconnect::says(results),
        "raid-compare" => raid_compare::says(results),
        _ => Vec::new(),
    }
}

/// A size on an axis.
fn size_step(bytes: u64) -> (f64, String) {
    (bytes as f64, Bytes(bytes).to_string())
}

/// A number on an axis.
fn count_step(count: u32) -> (f64, String) {
    (count.into(), count.to_string())
}

/// A published value.
fn point(x: f64, x_label: &str, low: f64, high: f64) -> Point {
    Point { x, x_label: x_label.to_owned(), low, high }
}

/// A part of the plan that the lab cannot provide.
fn skipped(what: &str, why: impl ToString) -> Skipped {
    Skipped::of(what, why)
}
