//! A plan: targets, cases, rounds. `compare`, experiments and plan files all become one.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};

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
#[derive(Clone, Debug)]
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
    /// Rounds before the first that counts.
    pub(crate) warmups: u32,
    pub(crate) seed: u64,
    pub(crate) published: Vec<Published>,
    /// Cases that the plan had to leave out.
    pub(crate) skipped: Vec<Skipped>,
    /// (target, note)
    pub(crate) notes: Vec<(String, String)>,
    /// (target, number of bricks that may be lost before a file is)
    pub(crate) bears: Vec<(String, u32)>,
    /// Targets exported by an NFS server.
    pub(crate) exports: Vec<Export>,
}

/// A target's NFS export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    /// The target's name.
    pub(crate) target: String,
    pub(crate) server: SocketAddr,
    /// The server's process.
    pub(crate) pid: u32,
    /// Directory of the target below the server's root.
    pub(crate) root: PathBuf,
}

impl Plan {
    /// Refuses an impossible plan before anything is written.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.targets.is_empty(), "no targets: give at least one --target NAME=DIR");
        ensure!(0 < self.rounds, "no rounds: --rounds must be at least 1");
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
        let alone = self.targets.iter().find(|target| self.export(&target.name).is_none());
        if let (true, Some(target)) = (nfs, alone) {
            bail!(
                "no NFS server shows the target {}: only `experiment nfs-nconnect --lab` starts one",
                target.name
            );
        }
        let needed = self.bytes_needed(self.targets.len());
        self.targets.iter().try_for_each(|target| target.check(needed).map_err(Into::into))
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
            let rounds = u64::from(self.rounds + self.warmups) + u64::from(case.workload.keeps_files());
            case.workload.footprint().saturating_mul(rounds)
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
