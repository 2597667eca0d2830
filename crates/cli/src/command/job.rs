//! `fsstack branch drain`, `balance` and `consolidate`, which begin a job, and `fsstack job`: jobs go on without the command.

use fsstack_sync::time::{Duration, Instant};

use super::args::{Balance, Consolidate, Drain, Job, JobAction, Manner};
use super::show::{self, Style};
use super::table::{self, Side, Table, age};
use super::upgrade::SILENCE_TIMEOUT;
use super::{Failed, branch_word, pool, typed_dir};
use fsstack_control::api::{BalanceBy, HiddenObjects, JobMove, JobRequest, JobStatus, Jobs};
use fsstack_control::{Client, ClientError};
use fsstack_pool::Size;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

/// How often a job is looked at.
const JOB_LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Objects that are named at the end of a job.
const NAMED: usize = 10;

/// Begins to empty a branch, and shows how far it is until it ends.
pub(crate) fn drain(wish: &Drain, style: Style) -> Result<(), Failed> {
    let request = JobRequest::Drain {
        branch: branch_word::path(&wish.branch),
        to: wish.to.iter().map(|to| branch_word::path(to)).collect(),
        hidden: match wish.hidden.as_str() {
            "move" => HiddenObjects::Move,
            "delete" => HiddenObjects::Delete,
            _ => HiddenObjects::Stop,
        },
        rate: rate(&wish.manner)?,
        verify: wish.manner.verify,
        window: wish.manner.window.clone(),
        make_way: wish.manner.make_way,
        dry_run: wish.manner.dry_run,
    };
    follow(&pool::find(&wish.pool)?.client(), &request, style)
}

/// Begins to balance the branches of a pool, and shows how far it is until it ends.
pub(crate) fn balance(wish: &Balance, style: Style) -> Result<(), Failed> {
    let pool = pool::find(&wish.pool)?;
    let dir = wish.dir.as_deref().map(|dir| dir_of(&pool, dir)).transpose()?;
    let dir = dir.unwrap_or_default();
    if wish.rules {
        let Manner { verify, make_way, dry_run, .. } = wish.manner;
        let window = wish.manner.window.clone();
        let rate = rate(&wish.manner)?;
        let request = JobRequest::Rules { dir, rate, verify, window, make_way, dry_run };
        return follow(&pool.client(), &request, style);
    }
    let request = JobRequest::Balance {
        dir,
        by: if wish.by == "free" { BalanceBy::Free } else { BalanceBy::Percent },
        until: hundredths(&wish.until)?,
        rate: rate(&wish.manner)?,
        verify: wish.manner.verify,
        window: wish.manner.window.clone(),
        make_way: wish.manner.make_way,
        dry_run: wish.manner.dry_run,
    };
    follow(&pool.client(), &request, style)
}

/// Begins to gather a directory on one branch, and shows how far it is until it ends.
pub(crate) fn consolidate(wish: &Consolidate, style: Style) -> Result<(), Failed> {
    let pool = pool::find(&wish.pool)?;
    let request = JobRequest::Consolidate {
        dir: dir_of(&pool, &wish.dir)?,
        to: wish.to.as_deref().map(branch_word::path),
        rate: rate(&wish.manner)?,
        verify: wish.manner.verify,
        window: wish.manner.window.clone(),
        make_way: wish.manner.make_way,
        dry_run: wish.manner.dry_run,
    };
    follow(&pool.client(), &request, style)
}

/// Shows what a tier would move now.
pub(super) fn plan_tier(client: &Client, tier: String, style: Style) -> Result<(), Failed> {
    follow(client, &JobRequest::PlanTier { tier }, style)
}

fn dir_of(pool: &pool::Pool, typed: &Path) -> Result<String, Failed> {
    Ok(typed_dir::or_from_root(pool, typed)?.to_string())
}

fn rate(manner: &Manner) -> Result<Option<u64>, Failed> {
    let size = manner.rate.as_deref().map(str::parse::<Size>).transpose();
    size.map(|size| size.map(|size| size.0)).map_err(|error| Failed::Usage(format!("--rate: {error}")))
}

/// A percentage in hundredths: `2%`, `0.5`.
fn hundredths(typed: &str) -> Result<u32, Failed> {
    let bad = || Failed::Usage(format!("--until {typed}: a percentage from 0 to 100, such as 2% or 0.5%"));
    let (whole, part) =
        typed.trim_end_matches('%').split_once('.').unwrap_or((typed.trim_end_matches('%'), ""));
    if part.len() > 2 || !part.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(bad());
    }
    let whole: u32 = whole.parse().map_err(|_| bad())?;
    let part: u32 = format!("{part:0<2}").parse().map_err(|_| bad())?;
    whole
        .checked_mul(100)
        .and_then(|whole| whole.checked_add(part))
        .filter(|all| *all <= 10_000)
        .ok_or_else(bad)
}

/// Starts a job and shows how far it is until it ends.
fn follow(client: &Client, request: &JobRequest, style: Style) -> Result<(), Failed> {
    let mut job = only(client.jobs(request)?)?;
    let display = style == Style::Human && io::stderr().is_terminal();
    while !job.over {
        if display {
            progress(&job);
        }
        fsstack_sync::thread::sleep(JOB_LOOK_INTERVAL);
        job = look(client, job.id)?;
    }
    if display {
        // There is nothing to do where stderr is closed.
        let _ = io::stderr().write_all(b"\r\x1b[K");
    }
    if let Some(refusal) = &job.refusal {
        return Err(Failed::Refused(refusal.clone()));
    }
    if job.dry_run {
        job = look(client, job.id)?;
    }
    show::answer(style, &job, |job| summary(job) + &planned(job) + &named(job, NAMED))?;
    let stay =
        |how: &str| Err(Failed::Refused(format!("{}: objects that {how}: {}", job.branch, job.staying)));
    match job.state.as_str() {
        "done" => Ok(()),
        "planned" if job.staying == 0 => Ok(()),
        "planned" => stay("would stay where they are"),
        "cancelled" => {
            Err(Failed::Refused(format!("job {} was cancelled; what was moved stays moved", job.id)))
        }
        _ => stay("stay where they are"),
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
        JobAction::Pause { pool, job } => {
            let paused = pool::find(pool)?.client().jobs(&JobRequest::Pause { job: *job })?;
            show::answer(style, &only(paused)?, summary)
        }
        JobAction::Resume { pool, job } => {
            let resumed = pool::find(pool)?.client().jobs(&JobRequest::Resume { job: *job })?;
            show::answer(style, &only(resumed)?, summary)
        }
        JobAction::Cancel { pool, job } => {
            let client = pool::find(pool)?.client();
            let mut result = only(client.jobs(&JobRequest::Cancel { job: *job })?)?;
            while !result.over {
                fsstack_sync::thread::sleep(JOB_LOOK_INTERVAL);
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

/// Asks again where the connection has ended: the job goes on in the next daemon (`fsstack upgrade`, `restart=keep`).
fn look(client: &Client, job: u64) -> Result<JobStatus, Failed> {
    let asked = Instant::now();
    loop {
        match client.jobs(&JobRequest::Show { job: Some(job) }) {
            Err(ClientError::NoAnswer(..)) if asked.elapsed() < SILENCE_TIMEOUT => {
                fsstack_sync::thread::sleep(JOB_LOOK_INTERVAL)
            }
            answer => return only(answer?),
        }
    }
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
    if let Some(window) = &job.window {
        let parked = if state == "parked" { ": parked until it opens" } else { "" };
        let _ = writeln!(text, "window {window}{parked}");
    }
    if !job.over && job.at_work_percent < 100 {
        let percent = job.at_work_percent;
        let _ = writeln!(text, "at work for {percent} % of the time: programs wait longer for its branches");
    }
    if let Some(refusal) = &job.refusal {
        let _ = writeln!(text, "{refusal}");
    }
    let found = if kind == "drain" { "found" } else { "to move" };
    let _ = writeln!(text, "{found}: {} files, {}", job.files, size(job.bytes));
    if job.dry_run {
        for target in &job.targets {
            let _ = writeln!(text, "to {}: {} files, {}", target.branch, target.files, size(target.bytes));
        }
    } else {
        let _ = write!(text, "moved: {} files, {}", job.moved_files, size(job.moved_bytes));
        let dirs = job.moved_directories;
        let _ = if kind == "drain" { writeln!(text, ", {dirs} directories") } else { writeln!(text) };
    }
    if job.staying > 0 {
        let _ = writeln!(text, "staying: {}", job.staying);
    }
    if state == "done" && kind == "drain" {
        let _ = writeln!(text, "{branch} is empty: fsstack branch remove takes it out of the pool");
    }
    text
}

/// The moves that a dry run has planned.
fn planned(job: &JobStatus) -> String {
    let line = |one: &JobMove| format!("  /{}: {}, {} -> {}\n", one.path, size(one.bytes), one.from, one.to);
    let mut text: String = job.plan.iter().map(line).collect();
    let shown = job.plan.len() as u64;
    if shown > 0 && shown < job.files {
        let _ = writeln!(text, "  and {} more", job.files - shown);
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
        "parked" => write!(line, "outside of the window {}", job.window.as_deref().unwrap_or_default()),
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
