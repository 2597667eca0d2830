//! `fsstack branch drain`, which begins a job, and `fsstack job`: jobs go on without the command.

use super::args::{Drain, Job, JobAction};
use super::show::{self, Style};
use super::table::{self, Side, Table, age};
use super::{Failed, pool};
use fsstack_control::Client;
use fsstack_control::api::{JobRequest, JobStatus, Jobs};
use fsstack_pool::Size;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// How often a job is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Objects that are named at the end of a drain.
const NAMED: usize = 10;

/// Begins to empty a branch, and shows how far it is until it ends.
pub(crate) fn drain(wish: &Drain, style: Style) -> Result<(), Failed> {
    let rate = match wish.rate.as_deref().map(str::parse::<Size>).transpose() {
        Ok(rate) => rate.map(|rate| rate.0),
        Err(error) => return Err(Failed::Usage(format!("--rate: {error}"))),
    };
    let shown = |path: &std::path::PathBuf| path.to_string_lossy().into_owned();
    let request = JobRequest::Drain {
        branch: shown(&wish.branch),
        to: wish.to.iter().map(shown).collect(),
        rate,
        dry_run: wish.dry_run,
    };
    let client = pool::find(&wish.pool)?.client();
    let mut job = only(client.jobs(&request)?)?;
    let display = style == Style::Human && io::stderr().is_terminal();
    while !job.over {
        if display {
            progress(&job);
        }
        std::thread::sleep(LOOK_EVERY);
        job = look(&client, job.id)?;
    }
    if display {
        // There is nothing to do where stderr is closed.
        let _ = io::stderr().write_all(b"\r\x1b[K");
    }
    if let Some(refusal) = &job.refusal {
        return Err(Failed::Refused(refusal.clone()));
    }
    show::answer(style, &job, |job| summary(job) + &named(job, NAMED))?;
    match job.state.as_str() {
        "done" => Ok(()),
        "planned" if job.staying == 0 => Ok(()),
        "planned" => {
            Err(Failed::Refused(format!("{}: objects that would stay on it: {}", job.branch, job.staying)))
        }
        "cancelled" => {
            Err(Failed::Refused(format!("job {} was cancelled; what was moved stays moved", job.id)))
        }
        _ => Err(Failed::Refused(format!("{}: objects that stay on it: {}", job.branch, job.staying))),
    }
}

pub(crate) fn run(wish: &Job, style: Style) -> Result<(), Failed> {
    match &wish.action {
        JobAction::List { pool } => {
            let jobs = pool::find(pool)?.client().jobs(&JobRequest::Show { job: None })?;
            show::answer(style, &jobs, list)
        }
        JobAction::Status { pool, job, why } => {
            let mut result = pool::find(pool)?.client().jobs(&JobRequest::Show { job: *job })?;
            let last =
                result.jobs.pop().ok_or(Failed::Missing("no job since the pool was mounted".to_owned()))?;
            let most = if *why { usize::MAX } else { 0 };
            show::answer(style, &last, |job| summary(job) + &named(job, most))
        }
        JobAction::Cancel { pool, job } => {
            let client = pool::find(pool)?.client();
            let mut result = only(client.jobs(&JobRequest::Cancel { job: *job })?)?;
            while !result.over {
                std::thread::sleep(LOOK_EVERY);
                result = look(&client, *job)?;
            }
            show::answer(style, &result, summary)
        }
    }
}

fn size(bytes: u64) -> String {
    table::size(Some(bytes))
}

fn only(mut jobs: Jobs) -> Result<JobStatus, Failed> {
    jobs.jobs.pop().ok_or(Failed::Dead("the daemon reported no job".to_owned()))
}

fn look(client: &Client, job: u64) -> Result<JobStatus, Failed> {
    only(client.jobs(&JobRequest::Show { job: Some(job) })?)
}

fn list(jobs: &Jobs) -> String {
    if jobs.jobs.is_empty() {
        return "no job since the pool was mounted\n".to_owned();
    }
    use Side::{Left, Right};
    let mut table = Table::new(&[
        ("JOB", Right),
        ("KIND", Left),
        ("BRANCH", Left),
        ("STATE", Left),
        ("FILES", Right),
        ("MOVED", Right),
        ("BYTES", Right),
        ("STAYING", Right),
    ]);
    for job in &jobs.jobs {
        table.row([
            job.id.to_string(),
            job.kind.clone(),
            job.branch.clone(),
            job.state.clone(),
            job.files.to_string(),
            job.moved_files.to_string(),
            size(job.moved_bytes),
            job.staying.to_string(),
        ]);
    }
    table.text()
}

fn summary(job: &JobStatus) -> String {
    let mut text = String::new();
    let JobStatus { id, kind, branch, state, .. } = job;
    let _ = writeln!(text, "job {id}, {kind} of {branch}: {state}, {}", age(job.seconds));
    if let Some(refusal) = &job.refusal {
        let _ = writeln!(text, "{refusal}");
    }
    let _ = writeln!(text, "found: {} files, {}", job.files, size(job.bytes));
    if job.dry_run {
        for target in &job.targets {
            let _ = writeln!(text, "to {}: {} files, {}", target.branch, target.files, size(target.bytes));
        }
    } else {
        let dirs = job.moved_directories;
        let _ =
            writeln!(text, "moved: {} files, {}, {dirs} directories", job.moved_files, size(job.moved_bytes));
    }
    if job.staying > 0 {
        let _ = writeln!(text, "staying: {}", job.staying);
    }
    if state == "done" {
        let _ = writeln!(text, "{branch} is empty: fsstack branch remove takes it out of the pool");
    }
    text
}

fn named(job: &JobStatus, most: usize) -> String {
    let line = |one: &fsstack_control::api::JobStaying| format!("  {}: {}\n", one.path, one.why);
    let mut text: String = job.stays.iter().take(most).map(line).collect();
    let named = job.stays.len().min(most) as u64;
    if most > 0 && named < job.staying {
        let _ = writeln!(text, "  and {} more", job.staying - named);
    }
    text
}

fn progress(job: &JobStatus) {
    let mut line = format!("\r\x1b[K{}: ", job.state);
    let _ = match job.state.as_str() {
        "counting" => write!(line, "{} files, {}", job.files, size(job.bytes)),
        _ => write!(
            line,
            "{} of {} files, {} of {}, {} staying",
            job.moved_files,
            job.files,
            size(job.moved_bytes),
            size(job.bytes),
            job.staying
        ),
    };
    if job.state == "moving" && job.seconds > 0 {
        let rate = job.moved_bytes / job.seconds;
        let _ = write!(line, ", {}/s", size(rate));
        if let Some(left) = job.bytes.saturating_sub(job.moved_bytes).checked_div(rate) {
            let _ = write!(line, ", {} left", age(left));
        }
    }
    // There is nothing to do where stderr is closed.
    let _ = io::stderr().write_all(line.as_bytes());
}
