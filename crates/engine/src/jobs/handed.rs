//! Jobs, as the next program of an upgrade is handed them.

use std::time::{Duration, Instant};

use fsstack_pool::{BranchIx, Ino};
use serde::{Deserialize, Serialize};

use super::interrupted::InterruptedList;
use super::order::Work;
use super::planning::level::By;
use super::rearrange::SETTLED_FOR;
use super::{BalanceOrder, ConsolidateOrder, JobList, Manner, RulesOrder};

/// State of jobs that outlives an upgrade, besides drains. Its form is part of the handover's format.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobsRow {
    list: Option<ListRow>,
    /// Files that a balance moved, and how many seconds ago.
    settled: Vec<(u64, u32)>,
}

/// An interrupted job that moves the files of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ListRow {
    job: u64,
    paused: bool,
    kind: ListKindRow,
    dir: Vec<u8>,
    manner: Manner,
    window: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum ListKindRow {
    Balance { by: By, tolerance: u32 },
    Consolidate { to: Option<u16> },
    Rules,
}

impl ListRow {
    /// None: drains and tiers are handed over otherwise.
    fn of(list: &InterruptedList) -> Option<Self> {
        let InterruptedList { work, job, paused } = list;
        let (kind, dir) = match work {
            Work::Balance(BalanceOrder { dir, by, tolerance, .. }) => {
                (ListKindRow::Balance { by: *by, tolerance: *tolerance }, dir)
            }
            Work::Consolidate(ConsolidateOrder { dir, to, .. }) => {
                (ListKindRow::Consolidate { to: to.map(|to| to.0) }, dir)
            }
            Work::Rules(RulesOrder { dir, .. }) => (ListKindRow::Rules, dir),
            Work::Drain(_) | Work::Tier(_) => return None,
        };
        let window = work.window().map(|window| window.to_string());
        Some(Self { job: *job, paused: *paused, kind, dir: dir.clone(), manner: work.manner(), window })
    }

    /// None: its window cannot be read.
    fn interrupted(&self) -> Option<InterruptedList> {
        let (dir, manner) = (self.dir.clone(), self.manner);
        let window = match &self.window {
            Some(window) => Some(window.parse().ok()?),
            None => None,
        };
        let work = match self.kind {
            ListKindRow::Balance { by, tolerance } => {
                Work::Balance(BalanceOrder { dir, by, tolerance, manner, window })
            }
            ListKindRow::Consolidate { to } => {
                Work::Consolidate(ConsolidateOrder { dir, to: to.map(BranchIx), manner, window })
            }
            ListKindRow::Rules => Work::Rules(RulesOrder { dir, manner, window }),
        };
        Some(InterruptedList { work, job: self.job, paused: self.paused })
    }
}

impl JobList {
    /// State that the next program needs.
    pub(crate) fn row(&self) -> JobsRow {
        let state = self.state.lock();
        let fresh = state.settled.iter().filter(|(_, moved)| moved.elapsed() < SETTLED_FOR);
        let seconds = |moved: &Instant| u32::try_from(moved.elapsed().as_secs()).unwrap_or(u32::MAX);
        let settled = fresh.map(|(ino, moved)| (ino.0, seconds(moved))).collect();
        JobsRow { list: state.interrupted_list.as_ref().and_then(ListRow::of), settled }
    }

    /// Takes over the state of an earlier program.
    ///
    /// # Errors
    /// It is damaged.
    pub(crate) fn take_row(&self, row: &JobsRow) -> Result<(), String> {
        let list = row.list.as_ref().map(|row| row.interrupted().ok_or("the window of a job cannot be read"));
        let list = list.transpose()?;
        let mut state = self.state.lock();
        state.begun = state.begun.max(list.as_ref().map_or(0, |list| list.job));
        state.interrupted_list = list;
        let moved = |ago: u32| Instant::now().checked_sub(Duration::from_secs(ago.into()));
        state.settled.extend(row.settled.iter().filter_map(|(ino, ago)| Some((Ino(*ino), moved(*ago)?))));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn a_job_is_taken_over_as_it_was() {
        let manner = Manner { rate: NonZeroU64::new(7), verify: true, make_way: true, dry_run: true };
        let (dir, window) = (b"a/b".to_vec(), "22:00-06:30".parse().ok());
        let works = [
            Work::Balance(BalanceOrder { dir: dir.clone(), by: By::Percent, tolerance: 200, manner, window }),
            Work::Consolidate(ConsolidateOrder { dir: dir.clone(), to: Some(BranchIx(3)), manner, window }),
            Work::Consolidate(ConsolidateOrder { dir: dir.clone(), to: None, manner, window: None }),
            Work::Rules(RulesOrder { dir, manner, window }),
        ];
        for work in works {
            let before = JobList::default();
            before.state.lock().settled.insert(Ino(7), Instant::now());
            before.state.lock().interrupted_list = Some(InterruptedList { work, job: 9, paused: true });
            let after = JobList::default();
            after.take_row(&before.row()).unwrap();
            let shown = |list: &JobList| format!("{:?}", list.state.lock().interrupted_list);
            assert_eq!(shown(&after), shown(&before));
            let state = after.state.lock();
            assert!(state.begun == 9 && state.settled.contains_key(&Ino(7)));
        }
        let work = Work::Rules(RulesOrder { dir: Vec::new(), manner, window });
        let mut list = ListRow::of(&InterruptedList { work, job: 1, paused: false }).unwrap();
        list.window = Some("never".to_owned());
        let damaged = JobsRow { list: Some(list), settled: Vec::new() };
        assert!(JobList::default().take_row(&damaged).is_err());
    }
}
