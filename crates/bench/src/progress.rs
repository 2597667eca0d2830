//! Progress and remaining time: a bar on a terminal, a line per case elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::plan::Plan;
use crate::workload::{Engine, Workload};

/// Progress shown while a run goes on.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    plain: bool,
}

/// Estimated cost of a workload in bytes; a name counts as 100 KiB.
fn weight(workload: &Workload) -> u64 {
    let tasks = u64::from(workload.tasks.get());
    if let Some(seconds) = workload.seconds {
        let millis = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_millis();
        return u64::try_from(millis).unwrap_or(u64::MAX).saturating_mul(200_000);
    }
    match workload.engine {
        Engine::Metadata => 2 * tasks * u64::from(workload.entries.get()) * (100 << 10),
        Engine::Null => 1 << 20,
        _ => tasks.saturating_mul(workload.file_size.0).saturating_add(1 << 20),
    }
}

impl Progress {
    /// For a run of `plan`.
    pub(crate) fn of(plan: &Plan) -> Self {
        let rounds = u64::from(plan.rounds + plan.warmups) * plan.targets.len() as u64;
        let all = plan.cases.iter().map(|case| weight(&case.workload)).fold(0, u64::saturating_add);
        let bar = ProgressBar::new(all.saturating_mul(rounds));
        let template = "[{elapsed}] {wide_bar} {percent}%, {eta} left  {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar, plain: !stderr().is_terminal() }
    }

    /// So many more rounds of `workload` are needed.
    pub(crate) fn more(&self, workload: &Workload, rounds: u64) {
        self.bar.inc_length(weight(workload).saturating_mul(rounds));
    }

    /// A case begins.
    pub(crate) fn case(&self, name: &str) {
        if self.plain {
            eprintln!("{name}");
        }
    }

    /// A round begins.
    pub(crate) fn round(&self, case: &str, target: &str, round: Option<u32>) {
        let round = round.map_or("round 0".to_owned(), |round| format!("round {}", round + 1));
        self.bar.set_message(format!("{case}: {target}, {round}"));
    }

    /// A round of `workload` ended or is skipped.
    pub(crate) fn done(&self, workload: &Workload) {
        self.bar.inc(weight(workload));
    }

    /// Prints a line at once.
    pub(crate) fn tell(&self, line: &str) {
        if self.plain { eprintln!("{line}") } else { self.bar.println(line) }
    }

    /// The run is over.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
