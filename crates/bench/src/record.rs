//! Result of a run: results.json, field by field. docs/bench-results.schema.json is its schema.

use serde::{Deserialize, Serialize};

use crate::bar::DecidedBar;
use crate::cache::Cold;
use crate::machine::Machine;
use crate::plan::baseline_of;
use crate::published::Published;
use crate::stack::Used;
use crate::stats::{Ratio, Spread};
use crate::workload::Workload;

/// Version of this format; increased when readers of the old one would misinterpret it.
pub(crate) const FORMAT: u32 = 2;

/// A run's results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Results {
    pub(crate) format: u32,
    pub(crate) made: Made,
    pub(crate) machine: Machine,
    pub(crate) targets: Vec<TargetRecord>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) cases: Vec<Case>,
    pub(crate) measurements: Vec<Measurement>,
    pub(crate) summaries: Vec<Summary>,
    pub(crate) skipped: Vec<Skipped>,
    /// Reason for ending before the plan's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended_early: Option<String>,
    pub(crate) published: Vec<Published>,
    /// Bars of the plan, decided.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) bars: Vec<DecidedBar>,
    /// Findings computed from the figures.
    pub(crate) says: Vec<String>,
}

/// Program, time and arguments of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Made {
    pub(crate) version: String,
    pub(crate) commit: String,
    pub(crate) command: Vec<String>,
    /// UTC, as in RFC 3339.
    pub(crate) began: String,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    pub(crate) title: String,
    /// Name of the plan: an experiment, `compare`, or the name in a plan file.
    pub(crate) plan: String,
    pub(crate) rounds: u32,
    /// Most rounds for the targets of bars that are not decided.
    #[serde(default)]
    pub(crate) rounds_max: u32,
    pub(crate) baseline: String,
    /// Description of a lab's disks.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) disks: Option<String>,
    pub(crate) caches: Vec<String>,
}

/// A directory that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TargetRecord {
    pub(crate) name: String,
    pub(crate) dir: String,
    pub(crate) fs_type: String,
    pub(crate) source: String,
    pub(crate) options: String,
    pub(crate) size_bytes: u64,
    pub(crate) free_bytes: u64,
    /// Number of bricks that may be lost before a file is, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) bears: Option<u32>,
    /// True for the baseline once more: its ratio shows what the run can tell.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(crate) again: bool,
    /// Further facts: versions, parts.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) notes: Vec<String>,
}

/// Type of plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WorkloadShape {
    /// A line per target over the cases' `x`.
    Lines,
    /// A group of bars per case.
    Bars,
}

/// Cases of one plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) shape: WorkloadShape,
    /// Unit of `x`.
    pub(crate) x_label: String,
    pub(crate) unit: String,
}

/// One workload of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) figure: String,
    pub(crate) x: f64,
    pub(crate) x_label: String,
    pub(crate) workload: Workload,
}

/// One round of one case on one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Measurement {
    pub(crate) case: String,
    pub(crate) target: String,
    pub(crate) round: u32,
    /// Bytes or operations a second, by the case's unit.
    pub(crate) rate: f64,
    pub(crate) bytes: u64,
    pub(crate) ops: u64,
    pub(crate) seconds: f64,
    /// How often the case was done: once, or until the cell lasted.
    #[serde(default = "once")]
    pub(crate) passes: u32,
    /// Between the first task's start and the last one's; none where these are not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) start_skew_us: Option<f64>,
    pub(crate) latency_us: Latency,
    /// By program, the bench itself first.
    pub(crate) used: Vec<Used>,
    pub(crate) machine_cpu_seconds: f64,
    /// Seconds between the two samples of CPU times.
    #[serde(default)]
    pub(crate) sampled_seconds: f64,
    /// How far caches were emptied, for a case that is to be cold.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) cold: Option<Cold>,
}

#[cfg(test)]
impl Measurement {
    /// One of a cell of two seconds, in which these programs ran.
    pub(crate) fn example(used: Vec<Used>) -> Self {
        Self {
            case: "write".into(),
            target: "t".into(),
            round: 0,
            rate: 1.0,
            bytes: 1,
            ops: 1,
            seconds: 2.0,
            passes: 1,
            start_skew_us: Some(0.0),
            latency_us: Latency { mean: 0.0, p50: 0.0, p99: None, p999: None, max: 0.0 },
            used,
            machine_cpu_seconds: 0.0,
            sampled_seconds: 2.0,
            cold: None,
        }
    }
}

fn once() -> u32 {
    1
}

/// Latencies of single operations, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Latency {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    /// The 99th percentile; none where fewer than ten operations took longer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) p99: Option<f64>,
    /// The 99.9th percentile, likewise.
    #[serde(rename = "p99.9", skip_serializing_if = "Option::is_none", default)]
    pub(crate) p999: Option<f64>,
    pub(crate) max: f64,
}

/// A case on a target over all its rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Summary {
    pub(crate) case: String,
    pub(crate) target: String,
    pub(crate) unit: String,
    pub(crate) rate: Spread,
    /// Ratio to the baseline in the same rounds; none for the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<Ratio>,
    /// Median seconds of a cell.
    #[serde(default)]
    pub(crate) seconds: f64,
    /// The worst of its cells, for a case that is to be cold.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) cold: Option<Cold>,
    pub(crate) latency_us: Latency,
    /// (fraction of the operations, microseconds within which they ended)
    pub(crate) latency_curve: Vec<(f64, f64)>,
    /// Median; none where no round has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) start_skew_us: Option<f64>,
    /// Median CPU microseconds of the whole stack for each MiB moved, or for each operation on names.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) cpu_us_each: Option<f64>,
    /// Median CPU seconds for each second measured, by program.
    pub(crate) cpu: Vec<CpuShare>,
}

/// CPU use of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct CpuShare {
    pub(crate) program: String,
    /// Average number of busy CPUs.
    pub(crate) cpus: f64,
    /// Fraction of the use of all programs in the stack.
    pub(crate) part: f64,
    /// Context switches a second, of both kinds.
    pub(crate) switches: f64,
}

/// A case that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Skipped {
    pub(crate) what: String,
    pub(crate) why: String,
    /// True if it was started and failed; false if it was skipped.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(crate) failed: bool,
}

impl Skipped {
    /// A skipped one, with the reason.
    pub(crate) fn of(what: impl Into<String>, why: impl ToString) -> Self {
        Self { what: what.into(), why: why.to_string(), failed: false }
    }

    /// One that failed.
    pub(crate) fn failed(what: impl Into<String>, why: impl ToString) -> Self {
        Self { what: what.into(), why: why.to_string(), failed: true }
    }
}

impl Results {
    /// A case by its name.
    pub(crate) fn case(&self, name: &str) -> Option<&Case> {
        self.cases.iter().find(|case| case.name == name)
    }

    /// Result of a case on a target.
    pub(crate) fn summary(&self, case: &str, target: &str) -> Option<&Summary> {
        self.summaries.iter().find(|s| s.case == case && s.target == target)
    }

    /// The cases of a figure that were measured on any target but the baseline's second one.
    pub(crate) fn cases_of<'a>(&'a self, figure: &'a str) -> impl Iterator<Item = &'a Case> {
        let measured =
            |case: &&Case| self.contenders().any(|target| self.summary(&case.name, &target.name).is_some());
        self.cases.iter().filter(move |case| case.figure == figure).filter(measured)
    }

    /// The target that `target` is compared with; `None` for a baseline.
    pub(crate) fn baseline_of(&self, target: &str) -> Option<&str> {
        baseline_of(target, &self.made.baseline, self.targets.iter().map(|t| t.name.as_str()))
    }

    /// The targets that are compared: all but the baseline's second measurement.
    pub(crate) fn contenders(&self) -> impl Iterator<Item = &TargetRecord> {
        self.targets.iter().filter(|target| !target.again)
    }

    /// Ratios of the baseline to itself, by case.
    pub(crate) fn resolutions(&self) -> impl Iterator<Item = (&str, &Ratio)> {
        let again = |s: &&Summary| self.targets.iter().any(|t| t.again && t.name == s.target);
        self.summaries.iter().filter(again).filter_map(|s| Some((s.case.as_str(), s.ratio.as_ref()?)))
    }

    /// True if all planned cases were measured.
    pub(crate) fn complete(&self) -> bool {
        self.ended_early.is_none() && !self.skipped.iter().any(|skipped| skipped.failed)
    }
}
