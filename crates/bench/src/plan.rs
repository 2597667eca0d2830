//! A plan: targets, cases, rounds. `compare`, experiments and plan files all become one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, Weak};

use anyhow::{Context, Result, bail, ensure};
use fsstack_lab::ganesha::Ganesha;

use crate::bar::{Limit, Promise};
use crate::measure::need;
use crate::published::Published;
use crate::record::{Case, Figure, Skipped};
use crate::target::Target;
use crate::workload::Engine;

/// The target to compare `target` with. In a group (`dt8.pool`, `dt8.direct`) it is the group's target with the
/// baseline's last name, if there is one; `None` for a baseline itself.
pub(crate) fn baseline_of<'a>(
    target: &str,
    baseline: &'a str,
    all: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let role = baseline.rsplit('.').next().unwrap_or(baseline);
    let own = target.rsplit_once('.').map(|(group, _)| format!("{group}.{role}"));
    let found = own.and_then(|own| all.into_iter().find(|name| **name == own)).unwrap_or(baseline);
    (found != target).then_some(found)
}

/// Cases, targets and rounds of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// A word for file names and readers of JSON.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) targets: Vec<Target>,
    /// The target that others are compared with.
    pub(crate) baseline: String,
    pub(crate) figures: Vec<Figure>,
    pub(crate) cases: Vec<Case>,
    pub(crate) rounds: u32,
    /// Most rounds for the targets of bars that are not decided.
    pub(crate) rounds_max: u32,
    /// Rounds before the first that counts.
    pub(crate) warmups: u32,
    /// Most rounds of bonnie++, which takes seconds for each of its runs, and no warm-up.
    pub(crate) bonnie_rounds: u32,
    pub(crate) cells: Cells,
    pub(crate) bars: Vec<Promise>,
    /// A target that is the baseline once more: its ratio shows what the run can tell.
    pub(crate) again: Option<String>,
    pub(crate) seed: u64,
    pub(crate) published: Vec<Published>,
    /// Cases that the plan had to leave out.
    pub(crate) skipped: Vec<Skipped>,
    /// Description of a lab's disks.
    pub(crate) disks: Option<String>,
    /// (target, note)
    pub(crate) notes: Vec<(String, String)>,
    /// (target, number of bricks that may be lost before a file is)
    pub(crate) bears: Vec<(String, u32)>,
    /// Targets exported by an NFS server.
    pub(crate) exports: Vec<Export>,
}

/// How long a case is measured on a target in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cells {
    /// Repeated until so many seconds are measured; 0 stands for once.
    pub(crate) seconds: f64,
    /// Which targets.
    pub(crate) of: Repeated,
}

/// Targets whose cells are repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// All.
    #[default]
    All,
    /// Those that a bar on the case is about, and their baselines.
    OfBars,
}

/// A target's NFS export.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    /// The target's name.
    pub(crate) target: String,
    pub(crate) server: SocketAddr,
    /// Network namespace from which it is reached, if that is not ours.
    pub(crate) network: Option<PathBuf>,
    /// The server, which the test bed owns.
    pub(crate) owner: Weak<Mutex<Ganesha>>,
    /// Directory of the target below the server's root.
    pub(crate) root: PathBuf,
}

impl Export {
    /// The server's process, which is another one after each restart.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.owner.upgrade()?.lock().unwrap_or_else(PoisonError::into_inner).pid()
    }

    /// Restarts the server: it then has nothing in its caches, nor has its client of a volume.
    pub(crate) fn restart(&self) -> Result<()> {
        let server = self.owner.upgrade().context("the server has ended")?;
        server.lock().unwrap_or_else(PoisonError::into_inner).try_restart()
    }
}

impl Plan {
    /// Refuses an impossible plan before anything is written.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.targets.is_empty(), "no targets: give at least one --target NAME=DIR");
        ensure!(0 < self.rounds, "no rounds: --rounds must be at least 1");
        ensure!(
            self.rounds <= self.rounds_max,
            "--rounds-max {} is less than the {} rounds",
            self.rounds_max,
            self.rounds
        );
        let Cells { seconds, .. } = self.cells;
        ensure!(
            seconds.is_finite() && (0.0..=3600.0).contains(&seconds),
            "--cell-seconds must lie between 0 and 3600"
        );
        ensure!(!self.cases.is_empty(), "nothing to measure: the plan has no cases");
        for (n, target) in self.targets.iter().enumerate() {
            let again = self.targets[..n].iter().any(|other| other.name == target.name);
            ensure!(!again, "two targets are called {}", target.name);
        }
        let known = self.targets.iter().any(|target| target.name == self.baseline);
        ensure!(known, "the baseline {} is not one of the targets", self.baseline);
        for (n, case) in self.cases.iter().enumerate() {
            case.workload.check(&case.name)?;
            ensure!(
                !self.cases[..n].iter().any(|other| other.name == case.name),
                "two cases are called {}",
                case.name
            );
        }
        let nfs = self.cases.iter().any(|case| case.workload.engine == Engine::Nfs);
        let shown = self.targets.iter().any(|target| self.export(&target.name).is_some());
        if nfs && !shown {
            bail!(
                "no NFS server shows the target {}: only `experiment nfs-nconnect --lab` and `gluster-volumes --lab` start one",
                self.targets[0].name
            );
        }
        let needed = self.bytes_needed(self.targets.len());
        self.targets.iter().try_for_each(|target| target.check(needed).map_err(Into::into))
    }

    /// Adds a target that is the baseline once more.
    pub(crate) fn add_again(&mut self) {
        let Some(baseline) = self.targets.iter().find(|target| target.name == self.baseline) else { return };
        let again = Target { name: format!("{}-again", baseline.name), dir: baseline.dir.clone() };
        if let Some(export) = self.export(&self.baseline).cloned() {
            self.exports.push(Export { target: again.name.clone(), ..export });
        }
        self.again = Some(again.name.clone());
        self.targets.push(again);
    }

    /// Adds bars: each target with that role reaches this part of its baseline's rate in the cases.
    pub(crate) fn add_rate_bars(&mut self, role: &str, cases: &[(&str, &str)], part: f64) {
        for target in self.of_role(role) {
            for (case, name) in cases {
                self.add_bar(name, case, &target, Limit::RateAtLeast(part));
            }
        }
    }

    /// Names of the targets with a role: `pool`, `dt8.pool`.
    pub(crate) fn of_role(&self, role: &str) -> Vec<String> {
        let names = self.targets.iter().map(|target| target.name.clone());
        names.filter(|name| name.rsplit('.').next() == Some(role)).collect()
    }

    /// Adds a bar, if the target has a baseline.
    pub(crate) fn add_bar(&mut self, name: &str, case: &str, target: &str, limit: Limit) {
        let all = self.targets.iter().map(|t| t.name.as_str());
        let Some(baseline) = baseline_of(target, &self.baseline, all).map(str::to_owned) else { return };
        let [name, case, target] = [name, case, target].map(str::to_owned);
        self.bars.push(Promise { name, case, target, baseline, limit });
    }

    /// True if the cells of `target` in a case are repeated until they last. Files that stay are moved once, and so are those
    /// in the same figure.
    pub(crate) fn repeats(&self, case: &Case, target: &str) -> bool {
        if self.cases.iter().any(|other| other.figure == case.figure && other.workload.is_kept()) {
            return false;
        }
        let mut bars = self.bars.iter().filter(|bar| bar.case == case.name);
        let about = |bar: &Promise| bar.target == target || bar.baseline == target;
        match self.cells.of {
            _ if self.cells.seconds <= 0.0 => false,
            Repeated::All => true,
            Repeated::OfBars if self.again.as_deref() == Some(target) => bars.next().is_some(),
            Repeated::OfBars => bars.any(about),
        }
    }

    /// The NFS export of a target.
    pub(crate) fn export(&self, target: &str) -> Option<&Export> {
        self.exports.iter().find(|export| export.target == target)
    }

    /// Free bytes that each of `targets` must have: all may be on one file system.
    pub(crate) fn bytes_needed(&self, targets: usize) -> u64 {
        self.cases.iter().map(|case| need(&case.workload, targets).0).max().unwrap_or(0)
    }

    /// Bytes written and read in total on `targets`, for the announcement.
    pub(crate) fn bytes_moved(&self, targets: usize) -> u64 {
        let each = |case: &Case| {
            let rounds = u64::from(self.rounds + self.warmups);
            // Files that are read are laid out in each round.
            let times = if case.workload.keeps_files() { 2 * rounds } else { rounds };
            case.workload.footprint().saturating_mul(times)
        };
        let one = self.cases.iter().map(each).fold(0_u64, u64::saturating_add);
        one.saturating_mul(targets as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_its_own_baseline() {
        let all = ["a.direct", "a.pool", "b.direct", "b.pool", "other"];
        let of = |target| baseline_of(target, "a.direct", all.into_iter());
        assert_eq!(of("a.pool"), Some("a.direct"));
        assert_eq!(of("b.pool"), Some("b.direct"));
        assert_eq!((of("b.direct"), of("a.direct")), (None, None));
        assert_eq!(of("other"), Some("a.direct"));
    }
}
