//! Jobs, as the operator asks for them and sees them.

use super::Served;
use fsstack_control::Refusal;
use fsstack_control::api::{JobRequest, JobStatus, JobStaying, JobTarget, Jobs};
use fsstack_engine::jobs::{BadJob, DrainOrder, JobView};
use fsstack_pool::Printable;
use std::num::NonZeroU64;

impl Served {
    pub(super) fn obey_job(&self, request: &JobRequest) -> Result<Jobs, Refusal> {
        let one = |view: JobView| Jobs { jobs: vec![self.tell_job(&view)] };
        match request {
            JobRequest::Drain { branch, to, rate, dry_run } => {
                let from = self.known(branch)?.ix;
                let to = to.iter().map(|to| self.known(to).map(|to| to.ix)).collect::<Result<_, _>>()?;
                let rate = match rate {
                    Some(rate) => {
                        Some(NonZeroU64::new(*rate).ok_or(Refusal::usage("rate: 0 moves nothing"))?)
                    }
                    None => None,
                };
                let order = DrainOrder { from, to, rate, dry_run: *dry_run };
                self.union.start_drain(order).map(one).map_err(|error| refused(branch, &error))
            }
            JobRequest::Show { job: None } => Ok(Jobs { jobs: self.tell_jobs() }),
            JobRequest::Show { job: Some(job) } => {
                let found = self.union.jobs().into_iter().find(|view| view.id == *job);
                found.map(one).ok_or_else(|| refused("", &BadJob::NoJob(*job)))
            }
            JobRequest::Cancel { job } => {
                self.union.cancel_job(*job).map(one).map_err(|error| refused("", &error))
            }
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
            kind: "drain".to_owned(),
            branch: Printable(view.path.as_bytes()).to_string(),
            state: view.state.name().to_owned(),
            over: view.state.is_over(),
            dry_run: view.dry_run,
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
            stays: view
                .named
                .iter()
                .map(|one| JobStaying { path: Printable(&one.path).to_string(), why: one.why.to_owned() })
                .collect(),
            seconds: view.took.as_secs(),
        }
    }
}

fn refused(branch: &str, error: &BadJob) -> Refusal {
    let text = if branch.is_empty() { error.to_string() } else { format!("{branch}: {error}") };
    match error {
        BadJob::NoBranch | BadJob::NoJob(_) => Refusal::missing(text),
        BadJob::Busy(_) | BadJob::ReadOnly | BadJob::Ending => Refusal::busy(text),
        BadJob::NoTarget => Refusal::usage(text),
        BadJob::NoThread(_) => Refusal::failed(text),
    }
}
