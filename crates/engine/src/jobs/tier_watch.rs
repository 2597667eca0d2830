//! The thread that looks at the tiers: a class that is fuller than its tier's start has a job begun, one tier at a time.
//!
//! A job of a tier makes way: another job, an upgrade and the end of the daemon call it off, and the tier begins anew when they are
//! over. A tier whose job moved nothing rests, longer each time, and so does one whose job the operator cancelled: nothing spins.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fsstack_branch::thread;
use fsstack_pool::{Class, Tier};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Condvar, Mutex};

use super::Jobs;
use super::planning::tier::Fullness;
use super::tier::{fullness, givers, members};
use super::{BadJob, Job, JobState, TierRun};
use crate::pool::Pool;

/// How often the tiers are looked at.
const TIERS_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a tier rests whose job moved files: a file system may free their space a moment later, and what is not free yet would
/// have more files move than need be.
const TIER_REST_AFTER_MOVES: Duration = Duration::from_secs(10);
/// How long a tier rests at first whose job moved nothing.
const SHORTEST_TIER_REST: Duration = Duration::from_secs(60);
/// How long a tier rests at most whose job moved nothing.
const LONGEST_TIER_REST: Duration = Duration::from_secs(3600);

/// Present state of a tier, with the reason if it does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierState {
    /// The class is not fuller than start.
    BelowStart,
    /// It moves files, by this job.
    AtWork(u64),
    /// It is about to begin.
    Due,
    /// It is outside of its window.
    OutOfWindow,
    /// It begins after this job.
    Waits(u64),
    /// No branch that answers has this class.
    NoBranch(Class),
    /// No branch of the slower class takes anything, above its floor.
    NoRoom,
    /// Its last job moved nothing, or was cancelled.
    Rests {
        /// The job.
        job: u64,
        /// The operator cancelled it.
        cancelled: bool,
        /// Time until it begins again.
        left: Duration,
    },
}

/// A tier as it is now.
#[derive(Clone, Debug)]
pub struct TierView {
    /// The tier.
    pub tier: Arc<Tier>,
    /// Space of the class that files leave.
    pub fast: Fullness,
    /// Space of the class that takes them.
    pub slow: Fullness,
    /// Its state.
    pub state: TierState,
}

/// The last job of a tier, and its rest.
#[derive(Debug)]
struct Run {
    tier: Arc<Tier>,
    job: Arc<Job>,
    /// Rest after it, once it has ended, and the end of that.
    rest: Option<(Duration, Instant)>,
    /// Rest after the job before it.
    before: Duration,
}

impl Run {
    /// Takes note of the end of its job.
    fn settle(&mut self, now: Instant) {
        if self.rest.is_some() {
            return;
        }
        let progress = self.job.progress.lock();
        if progress.gone {
            let ended = progress.state;
            let rest = rest_after(progress.moved.files, ended, progress.is_cancelled, self.before);
            self.rest = Some((rest, now + rest));
        }
    }
}

/// Rest after a job that moved so many files and ended so, where the rest before it was `before`.
fn rest_after(moved: u64, ended: JobState, is_cancelled: bool, before: Duration) -> Duration {
    match ended {
        _ if is_cancelled => LONGEST_TIER_REST,
        // It made way, or its window has closed.
        JobState::Cancelled | JobState::OutOfWindow => Duration::ZERO,
        _ if moved > 0 => TIER_REST_AFTER_MOVES,
        _ => before.saturating_mul(2).clamp(SHORTEST_TIER_REST, LONGEST_TIER_REST),
    }
}

/// The tiers' thread, for those who change the tiers.
#[derive(Debug, Default)]
pub(super) struct TierWatch {
    /// Order: before the list of jobs.
    state: Mutex<WatchState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WatchState {
    is_started: bool,
    is_over: bool,
    /// No job of a tier begins while the pool changes hands.
    is_held: bool,
    /// Something has changed since the last look.
    is_due: bool,
    runs: HashMap<Class, Run>,
    /// Classes that files cannot leave for want of room, as was logged.
    full: HashSet<Class>,
}

impl TierWatch {
    /// No further job begins.
    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Waits for the next look. False: there is none.
    fn next_look(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_over && !state.is_due {
            self.changed.wait_for(&mut state, TIERS_LOOK_INTERVAL);
        }
        state.is_due = false;
        !state.is_over
    }

    /// Whether `state` is a want of room that was not logged yet.
    fn is_news(&self, tier: &Tier, state: &TierState) -> bool {
        let full = &mut self.state.lock().full;
        if *state == TierState::NoRoom {
            return full.insert(tier.fast.clone());
        }
        full.remove(&tier.fast);
        false
    }

    /// The job of the tier that is at work, or its rest, if there is one of them.
    fn last(&self, tier: &Arc<Tier>) -> Option<TierState> {
        let (mut state, now) = (self.state.lock(), Instant::now());
        let run = state.runs.get_mut(&tier.fast).filter(|run| run.tier == *tier)?;
        run.settle(now);
        let job = run.job.id;
        match run.rest {
            None => Some(TierState::AtWork(job)),
            Some((_, until)) if now < until => {
                let cancelled = run.job.progress.lock().is_cancelled;
                Some(TierState::Rests { job, cancelled, left: until - now })
            }
            Some(_) => None,
        }
    }
}

/// No job of a tier begins until this drops.
#[derive(Debug)]
#[must_use = "the tiers go on when this drops"]
pub struct TiersHeld<'a>(&'a TierWatch);

impl Drop for TiersHeld<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_held = false;
        self.0.changed.notify_all();
    }
}

impl Jobs {
    /// Looks at the tiers from now on, and at once: they may be others than before.
    pub(crate) fn watch_tiers(self: &Arc<Self>) {
        let watch = self.list.tiers.clone();
        {
            let mut state = watch.state.lock();
            state.is_due = true;
            watch.changed.notify_all();
            if state.is_started || state.is_over || self.pool().settings.tiers.is_empty() {
                return;
            }
            state.is_started = true;
        }
        let (me, mine) = (Arc::downgrade(self), watch.clone());
        let looks = move || {
            loop {
                let Some(jobs) = me.upgrade() else { return };
                jobs.look_at_tiers();
                drop(jobs);
                if !mine.next_look() {
                    return;
                }
            }
        };
        if let Err(error) = thread::start(fsstack_sync::thread::Builder::new().name("tiers".into()), looks) {
            tracing::warn!(%error, "tiers: cannot start a thread; files stay where they are until the tiers are set again");
            watch.state.lock().is_started = false;
        }
    }

    /// Ends the tiers' jobs; none begins until the guard drops.
    pub(crate) fn hold_tiers(&self) -> TiersHeld<'_> {
        self.list.tiers.state.lock().is_held = true;
        let held = TiersHeld(&self.list.tiers);
        // Whether they ended is asked for again when the pool is at rest.
        let _ended = self.list.end_yielding();
        held
    }

    /// The tiers as they are now.
    pub(crate) fn tiers(&self) -> Vec<TierView> {
        let pool = self.pool();
        let view = |tier: &Arc<Tier>| TierView {
            tier: tier.clone(),
            fast: fullness(givers(&pool, &tier.fast)),
            slow: fullness(members(&pool, &tier.slow)),
            state: self.tier_state(&pool, tier),
        };
        pool.settings.tiers.iter().map(view).collect()
    }

    fn tier_state(&self, pool: &Pool, tier: &Arc<Tier>) -> TierState {
        let last = self.list.tiers.last(tier);
        if let Some(at_work @ TierState::AtWork(_)) = last {
            return at_work;
        }
        if let Some(lacking) =
            [&tier.fast, &tier.slow].into_iter().find(|class| members(pool, class).next().is_none())
        {
            return TierState::NoBranch(lacking.clone());
        }
        if fullness(givers(pool, &tier.fast)).excess(tier) == 0 {
            return TierState::BelowStart;
        }
        if tier.window.is_some_and(|window| self.day_clock().now().is_some_and(|now| !window.contains(now))) {
            return TierState::OutOfWindow;
        }
        if let Some(rests) = last {
            return rests;
        }
        if let Some(job) = self.views().into_iter().find(|job| !job.state.is_over()) {
            return TierState::Waits(job.id);
        }
        if self.rooms_below(tier).iter().all(|room| room.bytes == 0) {
            return TierState::NoRoom;
        }
        TierState::Due
    }

    fn look_at_tiers(self: &Arc<Self>) {
        let pool = self.pool();
        let tiers = pool.settings.tiers.clone();
        self.list.tiers.state.lock().runs.retain(|fast, run| {
            let stays = tiers.of(fast) == Some(&run.tier);
            if !stays {
                run.job.call_off();
            }
            stays
        });
        for tier in tiers.iter() {
            let state = self.tier_state(&pool, tier);
            if self.list.tiers.is_news(tier, &state) {
                tracing::warn!(%tier, "tier: no branch of the slower class has room above its floor; files stay where they are");
            }
            if state == TierState::Due {
                self.begin_tier(tier);
            }
        }
    }

    fn begin_tier(self: &Arc<Self>, tier: &Arc<Tier>) {
        let mut watch = self.list.tiers.state.lock();
        if watch.is_over || watch.is_held {
            return;
        }
        let begun = self.start_tier(TierRun { tier: tier.clone(), dry_run: false }).map(|view| view.id);
        let job = match begun {
            Ok(id) => self.list.state.lock().jobs.iter().find(|job| job.id == id).cloned(),
            // It waits for the other one.
            Err(BadJob::Busy(_) | BadJob::Ending) => None,
            Err(error) => {
                tracing::warn!(%error, %tier, "tier: its job cannot begin");
                None
            }
        };
        if let Some(job) = job {
            let before = watch.runs.get(&tier.fast).filter(|run| run.tier == *tier);
            let before = before.and_then(|run| run.rest).map_or(Duration::ZERO, |(rest, _)| rest);
            watch.runs.insert(tier.fast.clone(), Run { tier: tier.clone(), job, rest: None, before });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_that_moves_nothing_rests_longer_each_time_and_one_that_made_way_does_not() {
        let rest = |before| rest_after(0, JobState::Incomplete, false, before);
        let mut rests = vec![rest(Duration::ZERO)];
        (0..8).for_each(|_| rests.push(rest(rests[rests.len() - 1])));
        assert_eq!(
            (rests[0], rests[1], rests[8]),
            (SHORTEST_TIER_REST, 2 * SHORTEST_TIER_REST, LONGEST_TIER_REST)
        );
        assert_eq!(rest_after(1, JobState::Incomplete, false, LONGEST_TIER_REST), TIER_REST_AFTER_MOVES);
        for made_way in [JobState::Cancelled, JobState::OutOfWindow] {
            assert_eq!(rest_after(0, made_way, false, LONGEST_TIER_REST), Duration::ZERO);
        }
        assert_eq!(rest_after(9, JobState::Cancelled, true, Duration::ZERO), LONGEST_TIER_REST);
    }
}
