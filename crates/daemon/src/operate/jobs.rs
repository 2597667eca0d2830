//! Jobs, as the operator asks for them and sees them.

use super::Served;
use super::rules::dir_of;
use fsstack_control::Refusal;
use fsstack_control::api::{
    BalanceBy, HiddenObjects, JobMove, JobRequest, JobStatus, JobStaying, JobTarget, Jobs, exact,
};
use fsstack_engine::jobs::planning::level::By;
use fsstack_engine::jobs::{
    BadJob, BalanceOrder, ConsolidateOrder, DrainOrder, HiddenCopies, JobView, Manner, MovingList,
    PlannedMove, RulesOrder,
};
use fsstack_pool::{Printable, Window};
use std::num::NonZeroU64;

impl Served {
    pub(super) fn obey_job(&self, request: &JobRequest) -> Result<Jobs, Refusal> {
        let one = |view: JobView| Jobs { jobs: vec![self.tell_job(&view)] };
        let answer = |view: Result<JobView, BadJob>| view.map(one).map_err(|error| refused("", &error));
        match request {
            JobRequest::Drain { branch, to, hidden, rate, verify, window, make_way, dry_run } => {
                let from = self.known(branch)?.ix;
                let to = to.iter().map(|to| self.known(to).map(|to| to.ix)).collect::<Result<_, _>>()?;
                let manner =
                    Manner { rate: rate_of(*rate)?, verify: *verify, make_way: *make_way, dry_run: *dry_run };
                let window = window_of(window.as_deref())?;
                let hidden = match hidden {
                    HiddenObjects::Stop => HiddenCopies::Stop,
                    HiddenObjects::Move => HiddenCopies::Move,
                    HiddenObjects::Delete => HiddenCopies::Delete,
                };
                let order = DrainOrder { from, to, hidden, manner, window };
                self.union.start_drain(order).map(one).map_err(|error| refused(branch, &error))
            }
            JobRequest::Balance { dir, by, until, rate, verify, window, make_way, dry_run } => {
                let by = match by {
                    BalanceBy::Free => By::Free,
                    BalanceBy::Percent => By::Percent,
                };
                let manner =
                    Manner { rate: rate_of(*rate)?, verify: *verify, make_way: *make_way, dry_run: *dry_run };
                let window = window_of(window.as_deref())?;
                let order = BalanceOrder { dir: dir_of(dir)?, by, tolerance: *until, manner, window };
                answer(self.union.start_balance(order))
            }
            JobRequest::Rules { dir, rate, verify, window, make_way, dry_run } => {
                let manner =
                    Manner { rate: rate_of(*rate)?, verify: *verify, make_way: *make_way, dry_run: *dry_run };
                let window = window_of(window.as_deref())?;
                let order = RulesOrder { dir: dir_of(dir)?, manner, window };
                answer(self.union.start_rules(order))
            }
            JobRequest::Consolidate { dir, to, rate, verify, window, make_way, dry_run } => {
                let to = to.as_deref().map(|to| self.known(to).map(|to| to.ix)).transpose()?;
                let manner =
                    Manner { rate: rate_of(*rate)?, verify: *verify, make_way: *make_way, dry_run: *dry_run };
                let window = window_of(window.as_deref())?;
                let order = ConsolidateOrder { dir: dir_of(dir)?, to, manner, window };
                answer(self.union.start_consolidate(order))
            }
            JobRequest::PlanTier { tier } => answer(self.union.plan_tier(self.tier_of(tier)?)),
            JobRequest::Pause { job } => answer(self.union.pause_job(*job, true)),
            JobRequest::Resume { job } => answer(self.union.pause_job(*job, false)),
            JobRequest::Show { job: None } => Ok(Jobs { jobs: self.tell_jobs() }),
            JobRequest::Show { job: Some(job) } => {
                let found = self.union.jobs().into_iter().find(|view| view.id == *job);
                let view = found.ok_or_else(|| refused("", &BadJob::NoJob(*job)))?;
                let plan = self.tell_plan(&view);
                Ok(Jobs { jobs: vec![JobStatus { plan, ..self.tell_job(&view) }] })
            }
            JobRequest::Cancel { job } => answer(self.union.cancel_job(*job)),
        }
    }

    fn tell_jobs(&self) -> Vec<JobStatus> {
        self.union.jobs().iter().map(|view| self.tell_job(view)).collect()
    }

    /// Those at work.
    pub(super) fn jobs_at_work(&self) -> Vec<JobStatus> {
        self.tell_jobs().into_iter().filter(|job| !job.over).collect()
    }

    fn tell_job(&self, view: &JobView) -> JobStatus {
        let pool = self.union.pool();
        let shares = view.shares.iter().filter(|share| share.files > 0);
        JobStatus {
            id: view.id,
            kind: view.kind.to_owned(),
            branch: Printable(view.subject.as_bytes()).to_string(),
            state: view.state.name().to_owned(),
            over: view.state.is_over(),
            dry_run: view.dry_run,
            window: view.window.map(|window| window.to_string()),
            at_work_percent: view.at_work,
            refusal: view.refusal.clone(),
            files: view.found.files,
            bytes: view.found.bytes,
            moved_files: view.moved.files,
            moved_bytes: view.moved.bytes,
            moved_directories: view.dirs,
            targets: shares
                .map(|share| JobTarget {
                    branch: Printable::path(&pool.branch(share.branch).path).to_string(),
                    files: share.files,
                    bytes: share.bytes,
                })
                .collect(),
            staying: view.staying,
            untried: view.untried,
            stays: view
                .named
                .iter()
                .map(|one| JobStaying {
                    path: Printable(&one.path).to_string(),
                    path_base64: exact(&one.path),
                    why: one.why.to_owned(),
                })
                .collect(),
            seconds: view.took.as_secs(),
            plan: Vec::new(),
        }
    }

    fn tell_plan(&self, view: &JobView) -> Vec<JobMove> {
        let pool = self.union.pool();
        let branch = |at| Printable::path(&pool.branch(at).path).to_string();
        let tell = |list: &MovingList| {
            let one = |planned: &PlannedMove| {
                let path = list.path(planned);
                JobMove {
                    path: Printable(&path).to_string(),
                    path_base64: exact(&path),
                    bytes: planned.bytes,
                    from: branch(planned.from),
                    to: branch(planned.to),
                }
            };
            list.moves().iter().map(one).collect()
        };
        view.planned.as_deref().map(tell).unwrap_or_default()
    }
}

fn rate_of(asked: Option<u64>) -> Result<Option<NonZeroU64>, Refusal> {
    let some = |rate| NonZeroU64::new(rate).ok_or(Refusal::usage("rate: 0 moves nothing"));
    asked.map(some).transpose()
}

fn window_of(typed: Option<&str>) -> Result<Option<Window>, Refusal> {
    let window = typed.map(str::parse::<Window>).transpose();
    window.map_err(|error| Refusal::usage(format!("window: {error}")))
}

fn refused(branch: &str, error: &BadJob) -> Refusal {
    let text = if branch.is_empty() { error.to_string() } else { format!("{branch}: {error}") };
    match error {
        BadJob::NoBranch | BadJob::NoJob(_) | BadJob::NoDirectory(_) | BadJob::NoRules => {
            Refusal::missing(text)
        }
        BadJob::Busy(_) | BadJob::Over(_) | BadJob::ReadOnly | BadJob::Ending => Refusal::busy(text),
        BadJob::NoTarget => Refusal::usage(text),
        BadJob::NoThread(_) => Refusal::failed(text),
    }
}
