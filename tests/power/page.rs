//! Observed results of each operation, for the table in docs/dev/semantics.md: `cargo xtask test --tier power` compares the two.

use std::collections::{BTreeMap, BTreeSet};

use crate::act::Act;
use crate::judge::Verdict;
use crate::model::is_first_synced;
use crate::plan::{Begin, Then};
use crate::recording::{Cut, Recording};

/// Event during an operation: a column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Column {
    Killed,
    Cut,
    CutSynced,
    Away,
}

impl Column {
    fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed after the answer",
            Self::Cut => "power cut after the answer",
            Self::CutSynced => "power cut after a sync",
            Self::Away => "branch away",
        }
    }
}

/// Whether it was done then, in all observed states; for [`Column::Away`], whether it was kept.
#[derive(Debug, Default)]
pub(crate) struct Seen(BTreeMap<Column, BTreeSet<bool>>);

impl Seen {
    pub(crate) fn note(&mut self, recording: &Recording, cut: &Cut, verdict: &Verdict) {
        let Recording { plan, given, .. } = recording;
        if matches!(plan.then, Then::Away(..)) {
            self.0.entry(Column::Away).or_default().insert(verdict.faults.is_empty());
        }
        let is_first = matches!(plan.then, Then::Mount) && recording.between.is_none();
        // A drained branch shows in no tree.
        let is_first = is_first && !matches!(plan.acts[0], Act::Drain(_));
        if !is_first || plan.begin != Begin::Mounted || plan.acts[0].is_sync() {
            return;
        }
        // Before its answer, each operation may be done or not.
        if let Some(done) = verdict.done.filter(|_| cut.progress.answered > 0) {
            let is_synced = is_first_synced(given, &plan.acts, cut.progress.answered, &plan.durable);
            let column = if is_synced { Column::CutSynced } else { Column::Cut };
            self.0.entry(column).or_default().insert(done);
            if cut.whole.is_some_and(|whole| whole.answered > 0) {
                self.0.entry(Column::Killed).or_default().insert(done);
            }
        }
    }

    /// Lines with a scenario's name, a column, and the observation.
    pub(crate) fn rows(&self, recording: &Recording) -> Vec<String> {
        let name = recording.plan.name.split(" (").next().unwrap_or_default();
        let said = |column: Column, seen: &BTreeSet<bool>| match (
            column,
            seen.contains(&true),
            seen.contains(&false),
        ) {
            (Column::Away, _, false) => "kept",
            (Column::Away, ..) => "not always kept",
            (_, true, true) => "done or not",
            (_, true, false) => "done",
            (_, false, _) => "not done",
        };
        let row = |(column, seen): (&Column, &BTreeSet<bool>)| {
            format!("row\t{name}\t{}\t{}\n", column.name(), said(*column, seen))
        };
        self.0.iter().map(row).collect()
    }
}
