//! `fsstack branch`: branches of a mounted pool.

use super::args::{BranchAction, BranchArguments};
use super::show::{self, Style};
use super::{Failed, abort, branch_word, catalogue, job, pool};
use fsstack_control::api::{BranchChanged, BranchRequest};
use fsstack_control::operator::RefusalKind;
use fsstack_control::{ClientError, Refusal};
use std::time::Duration;

/// Interval of counting the open files of a branch that is being removed.
const REMOVAL_LOOK_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn run(wish: &BranchArguments, style: Style) -> Result<(), Failed> {
    let (word, request) = match &wish.action {
        BranchAction::Add { pool, branch } => {
            (pool, BranchRequest::Add { branch: branch_word::spec(branch) })
        }
        BranchAction::Remove { pool, branch, when_idle } => (
            pool,
            BranchRequest::Remove {
                branch: branch_word::path(branch),
                when_idle: *when_idle,
                only_ask: false,
            },
        ),
        BranchAction::Mode { pool, branch, mode } => {
            (pool, BranchRequest::Mode { branch: branch_word::path(branch), mode: mode.clone() })
        }
        BranchAction::Floor { pool, branch, floor } => {
            (pool, BranchRequest::Floor { branch: branch_word::path(branch), floor: floor.clone() })
        }
        BranchAction::Forget { pool, branch } => {
            (pool, BranchRequest::Forget { branch: branch_word::path_or_id(branch) })
        }
        BranchAction::Lost { pool, branch } => return catalogue::lost(pool, branch, style),
        BranchAction::Drain(wish) => return job::drain(wish, style),
        BranchAction::Abort { pool, branch } => return abort::run(pool, branch, style),
    };
    let client = pool::find(word)?.client();
    let mut changed = client.branch(&request)?;
    while changed.waits_for != 0 {
        fsstack_sync::thread::sleep(REMOVAL_LOOK_INTERVAL);
        let branch = changed.branch.clone();
        let ask = BranchRequest::Remove { branch, when_idle: true, only_ask: true };
        changed = match client.branch(&ask) {
            // The branch was removed when its last file was closed, between two requests.
            Err(ClientError::Refused(Refusal { kind: RefusalKind::Missing, .. })) => {
                BranchChanged { to: String::new(), waits_for: 0, ..changed }
            }
            result => result?,
        };
    }
    show::answer(style, &changed, human)
}

fn human(changed: &BranchChanged) -> String {
    let mut text = match (changed.from.as_str(), changed.to.as_str()) {
        ("", to) => format!("{} is a branch now: {to}\n", changed.branch),
        (_, "forgotten") => {
            format!("branch {} is forgotten: handles of what was there are stale\n", changed.branch)
        }
        (_, "") => format!("{} is no branch any more; its files stay on it\n", changed.branch),
        (from, to) => format!("{}: {from} -> {to}\n", changed.branch),
    };
    changed.notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    text
}
