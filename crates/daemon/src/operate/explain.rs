//! Explains the placement of existing and new objects.

use super::Served;
use crate::values;
use fsstack_control::Refusal;
use fsstack_control::api::{Explained, PlacementExplained, RankedBranch, WritePathExplained, exact};
use fsstack_engine::OpError;
use fsstack_engine::admin::explain::{Placement, RankedCandidate, WritePathReasons};
use fsstack_engine::files::decision::PathDecision;
use fsstack_engine::member::Member;
use fsstack_pool::Printable;
use fsstack_sys::{Errno, Kind};
use std::path::Path;

/// Reason for which the kernel refuses all changes of programs.
const READ_ONLY: &str = "the pool is mounted read-only (EROFS): mount -o remount,rw lets programs change it";

impl Served {
    pub(super) fn explain_path(&self, path: &[u8]) -> Result<Explained, Refusal> {
        let told = self.union.explain(path).map_err(|error| self.refused(path, error, "this"))?;
        let shown = |path: &Path| Printable::path(path).to_string();
        let pool = self.union.pool();
        let first =
            told.at.copies.first().map(|copy| shown(&pool.branch(copy.branch).path)).unwrap_or_default();
        let mut notes: Vec<String> = Vec::new();
        if self.is_read_only() {
            notes.push(READ_ONLY.to_owned());
        }
        let hidden = told.at.copies.iter().filter(|copy| !copy.served);
        notes.extend(hidden.map(|copy| format!("hidden by the first: {}", shown(&copy.path))));
        notes.extend(told.at.unknown.iter().map(|branch| format!("could not be asked: {}", shown(branch))));
        if told.rule.as_ref().is_some_and(|rule| rule.is_against) {
            notes
                .push("it lies against its placement rule: fsstack balance POOL --rules moves it".to_owned());
        }
        if let Some(stays) = told.way.as_ref().and_then(|way| way.stays.as_ref()) {
            notes.push(format!("not moved when its branch was full: {stays}"));
        }
        if let Some(WritePathReasons { is: Some(is), would, .. }) = &told.way
            && is.is_passthrough() != would.is_passthrough()
        {
            notes.push(format!("opened anew after its last close, it goes {would}"));
        }
        Ok(Explained {
            path: Printable(path).to_string(),
            path_base64: exact(path),
            kind: kind(told.at.kind).to_owned(),
            branch: first,
            rule: told.rule.as_ref().map(|rule| rule.rule.clone()),
            copies: told.at.copies.iter().map(|copy| shown(&copy.path)).collect(),
            write_path: told.way.as_ref().map(way),
            notes,
        })
    }

    pub(super) fn explain_placement(&self, path: &[u8], size: u64) -> Result<PlacementExplained, Refusal> {
        let told = self
            .union
            .explain_create(path, size)
            .map_err(|error| self.refused(path, error, "creating this"))?;
        // The engine ranks without the size, as for a create: the first of the ranking takes the file.
        let chosen = told.ranking.iter().find(|branch| branch.turn.is_some());
        let verdict = verdict(&told, chosen, size);
        Ok(PlacementExplained {
            path: Printable(path).to_string(),
            path_base64: exact(path),
            size,
            create: told.policy.clone(),
            rule: told.rule.clone(),
            parent: format!("/{}", Printable(&told.parent)),
            ranking: told.ranking.iter().map(ranked).collect(),
            chosen: chosen.map(|branch| Printable::path(&branch.path).to_string()),
            verdict: if self.is_read_only() {
                format!("nothing, as {READ_ONLY}; else {verdict}")
            } else {
                verdict
            },
        })
    }
}

impl Served {
    /// Refusal for the error of a request about `path`; `subject` names what is EIO while a branch is away.
    fn refused(&self, path: &[u8], error: OpError, subject: &str) -> Refusal {
        let shown = format!("/{}", Printable(path));
        if error.is_fault() {
            return Refusal::failed(format!("{shown}: {}", self.branches_away(error, subject)));
        }
        match error.errno() {
            Errno::NOENT | Errno::STALE => Refusal::missing(format!("{shown}: not in the pool")),
            Errno::EXIST => {
                Refusal::usage(format!("{shown}: it exists already: fsstack explain tells of it"))
            }
            Errno::NOTDIR => Refusal::usage(format!("{shown}: a file is on the way")),
            Errno::INVAL => Refusal::usage(format!("{shown}: write the path without . and ..")),
            errno => Refusal::failed(format!("{shown}: {errno}")),
        }
    }

    /// Names the branches that an error of a branch is about, with their states, and the consequence.
    fn branches_away(&self, error: OpError, subject: &str) -> String {
        let pool = self.union.pool();
        let degraded = pool.settings.degraded;
        let is_up = |branch: &Member| matches!(branch.state().name(), "up" | "read-only");
        let of = |branch: &Member| {
            let shown = Printable::path(&branch.path);
            if is_up(branch) {
                format!("branch {shown} does not answer")
            } else {
                format!("branch {shown} is {}", branch.state().name())
            }
        };
        let branches: Vec<String> = match error {
            OpError::Branch { branch, .. } => vec![of(pool.branch(branch))],
            OpError::Sys(_) | OpError::NoBranch(_) | OpError::Refused(_) => {
                pool.branches.iter().filter(|branch| !is_up(branch)).map(|branch| of(branch)).collect()
            }
        };
        let which =
            if branches.is_empty() { "a branch does not answer".to_owned() } else { branches.join(", ") };
        format!(
            "{which}; {subject} is EIO (degraded={degraded}) until it is back, or removed by fsstack branch remove"
        )
    }
}

fn verdict(told: &Placement, chosen: Option<&RankedCandidate>, size: u64) -> String {
    let Some(chosen) = chosen else {
        return "no branch can take it: each is refused for the reason beside it".to_owned();
    };
    let mut text = format!("{}: {}", Printable::path(&chosen.path), chosen.why);
    if told.by_lot {
        text.push_str("; by lot: the next one may go elsewhere");
    }
    if size != 0 && !chosen.fits {
        let next = told.ranking.iter().find(|branch| branch.turn.is_some() && branch.fits);
        match next {
            Some(next) => text.push_str(&format!(
                "; it has no room for all of that and its floor: a bulk copy, which knows the size, takes {}",
                Printable::path(&next.path)
            )),
            None => text.push_str("; no branch has room for all of that and its floor"),
        }
    }
    text
}

fn ranked(branch: &RankedCandidate) -> RankedBranch {
    RankedBranch {
        branch: Printable::path(&branch.path).to_string(),
        rank: branch.turn.map(values::count),
        why: branch.why.clone(),
        mode: branch.facts.mode.name().to_owned(),
        reachable: branch.facts.reachable,
        available: branch.facts.space.available,
        floor: branch.facts.floor.bytes_of(branch.facts.space.total),
        holds: values::count(branch.facts.deepest),
        holds_parent: branch.facts.holds_parent,
        fits: branch.fits,
    }
}

fn way(way: &WritePathReasons) -> WritePathExplained {
    let decision = way.is.as_ref().unwrap_or(&way.would);
    WritePathExplained {
        now: path_of(decision).to_owned(),
        open: way.is.is_some(),
        setting: decision.set.to_string(),
        decided_by: decision
            .rule
            .as_ref()
            .map_or_else(|| "pool".to_owned(), |rule| format!("/{}", Printable(rule.dir.path()))),
        reason: decision.to_string(),
    }
}

fn path_of(decision: &PathDecision) -> &'static str {
    if decision.is_passthrough() { "passthrough" } else { "stacked" }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Dir => "directory",
        Kind::Symlink => "symbolic link",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::Char | Kind::Block => "device",
    }
}
