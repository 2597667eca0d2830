//! Resolving handles, and branches that they wait for.

use super::branches::refused;
use super::{Served, catalogue};
use fsstack_control::Refusal;
use fsstack_control::api::{
    AwayBranch, BranchChanged, HandleEnd, HandleOf, HandlesRequest, HandlesTried, StaleRow, StaleRows,
    StaleRowsRequest,
};
use fsstack_engine::admin::handles::{GoneObject, HandleEnd as Known, gone_entries};
use fsstack_engine::admin::live::BadChange;
use fsstack_engine::catalogue::CataloguedBranch;
use fsstack_identity::number::Identity;
use fsstack_pool::{BranchId, Ino, Printable};
use std::path::Path;

/// Reason why a branch was not forgotten.
enum NotForgotten {
    /// Neither handles nor records wait for it.
    Unknown(Refusal),
    Refused(Refusal),
}

impl From<Refusal> for NotForgotten {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

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

    pub(super) fn look_at_rows(&self, request: &StaleRowsRequest) -> StaleRows {
        let (gone, next) = gone_entries(&self.union, request.from, request.remove);
        let row = |GoneObject { id, branches }| StaleRow {
            handle: HandleOf { number: id.ino.0, generation: id.generation },
            branches: branches.iter().map(|path| Printable::path(path).to_string()).collect(),
        };
        StaleRows { rows: gone.into_iter().map(row).collect(), next }
    }

    fn away(&self) -> Vec<AwayBranch> {
        let away = self.union.away().into_iter();
        away.map(|branch| AwayBranch { id: branch.id.get(), path: Printable::path(&branch.path).to_string() })
            .collect()
    }

    /// Declares that the branch named by `text`, an id or a path, will not come back. Its names leave the catalogue last: while it
    /// is not forgotten, they say what it has.
    pub(super) fn forget_branch(&self, text: &str) -> Result<BranchChanged, Refusal> {
        let former = self.former(text)?;
        let mut changed = match (self.forget_handles(text, former.as_ref()), &former) {
            (Ok(branch), _) => forgotten(shown(&branch)),
            // It was never exported: its names are all that is known.
            (Err(NotForgotten::Unknown(_)), Some(former)) => forgotten(catalogue::shown(&former.path)),
            (Err(NotForgotten::Unknown(refusal) | NotForgotten::Refused(refusal)), _) => return Err(refusal),
        };
        if former.is_some_and(|former| !self.union.forget_catalogued(former.id)) {
            changed.notes.push("its names may still be in the catalogue: see the daemon's log".to_owned());
        }
        Ok(changed)
    }

    fn forget_handles(
        &self,
        text: &str,
        former: Option<&CataloguedBranch>,
    ) -> Result<AwayBranch, NotForgotten> {
        let away = self.away();
        let there = |branch: &&AwayBranch| Path::new(&branch.path) == Path::new(text);
        let mut known = away.iter().filter(there).collect::<Vec<_>>();
        let catalogued =
            former.map(|former| AwayBranch { id: former.id.get(), path: catalogue::shown(&former.path) });
        // The index and the catalogue may know different branches that were at the same path.
        let is_new = |former: &&AwayBranch| known.iter().all(|known| known.id != former.id);
        let more = catalogued.as_ref().filter(is_new);
        known.extend(more);
        let branch = match (text.parse::<u16>(), known.as_slice()) {
            (Ok(id), _) => {
                let known = away.iter().find(|branch| branch.id == id).cloned();
                known.unwrap_or_else(|| AwayBranch { id, path: String::new() })
            }
            (Err(_), known) if self.is_in_the_pool(text) => return Err(in_the_pool(text, known).into()),
            (Err(_), []) => return Err(NotForgotten::Unknown(unknown(text, &away))),
            (Err(_), [one]) => (*one).clone(),
            (Err(_), several) => {
                return Err(NotForgotten::Refused(Refusal::usage(format!(
                    "{}: several branches were there: say which by its id: {}",
                    Printable(text.as_bytes()),
                    listed(several)
                ))));
            }
        };
        let id = BranchId::new(branch.id).ok_or_else(|| NotForgotten::Unknown(unknown(text, &away)))?;
        match self.union.give_up_branch(id) {
            Ok(()) => Ok(branch),
            Err(error @ BadChange::NotExported) => Err(NotForgotten::Unknown(refused(error))),
            Err(error) => Err(refused(error).into()),
        }
    }

    fn is_in_the_pool(&self, text: &str) -> bool {
        let is_it = |path: &Path| path == Path::new(text) || Printable::path(path).to_string() == text;
        self.union.pool().branches.iter().any(|branch| is_it(&branch.path))
    }
}

fn forgotten(branch: String) -> BranchChanged {
    BranchChanged {
        branch,
        from: "away".to_owned(),
        to: "forgotten".to_owned(),
        waits_for: 0,
        notes: Vec::new(),
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
