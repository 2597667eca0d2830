//! Jobs, as an operator asks for them (`jobs/`).

use std::sync::Arc;

use fsstack_pool::{BranchIx, Tier};

use crate::jobs::{
    BadJob, BalanceOrder, ConsolidateOrder, DayClock, DrainOrder, JobView, JobsHeld, JobsLeft, RulesOrder,
    TierView, TiersHeld,
};
use crate::union::Union;

impl Union {
    /// Begins to empty a branch. What can be known only from a look at the branch shows later.
    ///
    /// # Errors
    /// It cannot begin.
    pub fn start_drain(&self, order: DrainOrder) -> Result<JobView, BadJob> {
        self.jobs.start_drain(order)
    }

    /// Begins to make branches about as full as each other.
    ///
    /// # Errors
    /// It cannot begin.
    pub fn start_balance(&self, order: BalanceOrder) -> Result<JobView, BadJob> {
        self.jobs.start_balance(order)
    }

    /// Begins to gather all files below a directory on one branch.
    ///
    /// # Errors
    /// It cannot begin.
    pub fn start_consolidate(&self, order: ConsolidateOrder) -> Result<JobView, BadJob> {
        self.jobs.start_consolidate(order)
    }

    /// Begins to move what lies against the placement rules.
    ///
    /// # Errors
    /// It cannot begin.
    pub fn start_rules(&self, order: RulesOrder) -> Result<JobView, BadJob> {
        self.jobs.start_rules(order)
    }

    /// Begins to look which files the tier would move now.
    ///
    /// # Errors
    /// It cannot begin.
    pub fn plan_tier(&self, tier: Tier) -> Result<JobView, BadJob> {
        self.jobs.plan_tier(tier)
    }

    /// The jobs at work, and the last that have ended, the oldest first.
    pub fn jobs(&self) -> Vec<JobView> {
        self.jobs.views()
    }

    /// Calls the job `id` off, for good: the next mount does not begin it again. What it has moved stays moved.
    ///
    /// # Errors
    /// There is no such job.
    pub fn cancel_job(&self, id: u64) -> Result<JobView, BadJob> {
        self.jobs.cancel_job(id)
    }

    /// Has the job `id` begin no further move until it is to go on. A move under way goes on to its end.
    ///
    /// # Errors
    /// There is no such job, or it has ended.
    pub fn pause_job(&self, id: u64, paused: bool) -> Result<JobView, BadJob> {
        self.jobs.pause_job(id, paused)
    }

    /// Begins jobs again that an earlier daemon did not end. Branches of drains take nothing new.
    pub fn resume_jobs(&self, which: JobsLeft) {
        match which {
            JobsLeft::All => self.jobs.resume_all(),
            JobsLeft::Interrupted => self.jobs.resume_interrupted(),
        }
    }

    /// The drain of the branch is over for good, if there was one: the operator wants something else of the branch.
    pub fn forget_drain(&self, ix: BranchIx) {
        self.jobs.forget_drain(ix);
    }

    /// Looks at the tiers from now on, and at once: they may be others than before.
    pub fn watch_tiers(&self) {
        self.jobs.watch_tiers();
    }

    /// Ends the tiers' jobs, of which none begins until the guards drop, and interrupts jobs that the next daemon begins again; they go
    /// on when the guards drop.
    pub fn hold_jobs(&self) -> (JobsHeld, TiersHeld<'_>) {
        let tiers = self.jobs.hold_tiers();
        // They go on first: a tier's job makes way for them.
        (self.jobs.hold_operators_jobs(), tiers)
    }

    /// The tiers as they are now.
    pub fn tiers(&self) -> Vec<TierView> {
        self.jobs.tiers()
    }

    /// Windows of jobs that begin from now on open and close by `clock`, unless one was set before.
    pub fn set_day_clock(&self, clock: Arc<dyn DayClock>) {
        self.jobs.set_day_clock(clock);
    }
}
