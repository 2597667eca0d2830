//! Resolving handles, and branches that they wait for.

use super::Served;
use fsstack_control::Refusal;
use fsstack_control::api::{AwayBranch, BranchChanged, HandleEnd, HandleOf, HandlesRequest, HandlesTried};
use fsstack_engine::admin::handles::HandleEnd as Known;
use fsstack_identity::number::Identity;
use fsstack_pool::{BranchId, Ino, Printable};
use std::path::Path;

impl Served {
    pub(super) fn try_handles(&self, request: &HandlesRequest) -> HandlesTried {
        let end = |id| told(self.union.try_handle(id));
        let asked = request.handles.iter();
        let asked =
            asked.map(|handle| Identity { ino: Ino(handle.number), generation: handle.generation }).map(end);
        let indexed = self.union.some_indexed(request.indexed.into()).into_iter();
        HandlesTried {
            ends: asked.collect(),
            indexed: indexed.map(|id| HandleOf { number: id.ino.0, generation: id.generation }).collect(),
            away: self.away(),
        }
    }

    fn away(&self) -> Vec<AwayBranch> {
        let away = self.union.away().into_iter();
        away.map(|branch| AwayBranch { id: branch.id.get(), path: Printable::path(&branch.path).to_string() })
            .collect()
    }

    /// Declares that the branch named by `text`, an id or a path, will not come back.
    pub(super) fn forget_branch(&self, text: &str) -> Result<BranchChanged, Refusal> {
        let forgotten = self.forget_names(text);
        match (self.forget_handles(text), forgotten) {
            // It was never exported: its names were all that was known.
            (Err(_), Some(branch)) => Ok(BranchChanged {
                branch,
                from: "away".to_owned(),
                to: "forgotten".to_owned(),
                waits_for: 0,
                notes: Vec::new(),
            }),
            (done, _) => done,
        }
    }

    fn forget_handles(&self, text: &str) -> Result<BranchChanged, Refusal> {
        let away = self.away();
        let there = |branch: &&AwayBranch| Path::new(&branch.path) == Path::new(text);
        let known = away.iter().filter(there).collect::<Vec<_>>();
        let branch = match (text.parse::<u16>(), known.as_slice()) {
            (Ok(id), _) => {
                let known = away.iter().find(|branch| branch.id == id).cloned();
                known.unwrap_or_else(|| AwayBranch { id, path: String::new() })
            }
            (Err(_), known) if self.is_in_the_pool(text) => return Err(in_the_pool(text, known)),
            (Err(_), []) => return Err(unknown(text, &away)),
            (Err(_), [one]) => (*one).clone(),
            (Err(_), several) => {
                return Err(Refusal::usage(format!(
                    "{}: several branches were there: say which by its id: {}",
                    Printable(text.as_bytes()),
                    listed(several)
                )));
            }
        };
        let id = BranchId::new(branch.id).ok_or_else(|| unknown(text, &away))?;
        self.union.give_up_branch(id).map_err(super::branches::refused)?;
        Ok(BranchChanged {
            branch: shown(&branch),
            from: "away".to_owned(),
            to: "forgotten".to_owned(),
            waits_for: 0,
            notes: Vec::new(),
        })
    }

    fn is_in_the_pool(&self, text: &str) -> bool {
        let is_it = |path: &Path| path == Path::new(text) || Printable::path(path).to_string() == text;
        self.union.pool().branches.iter().any(|branch| is_it(&branch.path))
    }
}

/// Refuses a path that a branch of the pool has: another disk may have replaced the missing one there.
fn in_the_pool(text: &str, known: &[&AwayBranch]) -> Refusal {
    let before = match known {
        [] => String::new(),
        known => format!("; what was there before it is to be named by its id: {}", listed(known)),
    };
    Refusal::busy(format!(
        "{}: a branch of this pool: what is in the pool is not forgotten{before}",
        Printable(text.as_bytes())
    ))
}

fn unknown(text: &str, away: &[AwayBranch]) -> Refusal {
    let there_are = match away {
        [] => "there is none".to_owned(),
        away => format!("there are: {}", listed(&away.iter().collect::<Vec<_>>())),
    };
    Refusal::missing(format!(
        "{}: neither the id nor the path of a branch that was in this pool and is away; {there_are}",
        Printable(text.as_bytes())
    ))
}

fn listed(branches: &[&AwayBranch]) -> String {
    branches.iter().map(|branch| shown(branch)).collect::<Vec<_>>().join(", ")
}

fn shown(branch: &AwayBranch) -> String {
    match branch.path.as_str() {
        "" => branch.id.to_string(),
        path => format!("{} ({path})", branch.id),
    }
}

fn told(end: Known) -> HandleEnd {
    match end {
        Known::Found => HandleEnd::Found,
        Known::Stale => HandleEnd::Stale,
        Known::Unknown => HandleEnd::Unknown,
        Known::NotTried => HandleEnd::NotTried,
    }
}
