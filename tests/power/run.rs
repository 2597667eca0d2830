//! Records scenarios, judges all states that cuts can leave, and reports.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::disk::Home;
use crate::judge::{Fault, Verdict, judge};
use crate::known::KNOWN;
use crate::page::Seen;
use crate::plan::Plan;
use crate::recording::{Cut, Recording};
use crate::report::report;

/// Number of states mounted at the same time; most of the work is waiting.
pub(crate) const WORKERS: usize = 4;

/// Result of one scenario.
pub(crate) struct Outcome {
    pub(crate) recording: Recording,
    pub(crate) wrong: Vec<(Cut, Vec<Fault>)>,
    seen: Seen,
}

/// Judges every cut of all `plans`; fails unless exactly the known ones are wrong.
pub(crate) fn run(family: &str, plans: Vec<Plan>) {
    let plans: Vec<Plan> = plans.into_iter().filter(|plan| is_wanted(&plan.name)).collect();
    let began = std::time::Instant::now();
    let recordings: Vec<Recording> = plans.into_iter().map(Recording::of).collect();
    println!("recorded {} in {:?}", recordings.len(), began.elapsed());
    report_all(family, recordings);
}

/// True if scenarios of that name are requested.
pub(crate) fn is_wanted(name: &str) -> bool {
    name.contains(&std::env::var("FSSTACK_POWER_ONLY").unwrap_or_default())
}

/// True in long runs.
pub(crate) fn is_long() -> bool {
    std::env::var_os("FSSTACK_POWER_LONG").is_some()
}

/// Like [`run`], for an existing recording.
pub(crate) fn report_all(family: &str, recordings: Vec<Recording>) {
    let began = std::time::Instant::now();
    let outcomes = judge_all(recordings);
    println!("judged in {:?}", began.elapsed());
    let judged: usize = outcomes.iter().map(|outcome| outcome.recording.cuts.len()).sum();
    let wrong: usize = outcomes.iter().map(|outcome| outcome.wrong.len()).sum();
    let mut complaints = String::new();
    for outcome in &outcomes {
        let name = &outcome.recording.plan.name;
        let known = KNOWN.iter().find(|(known, _)| name == known);
        match known {
            None if !outcome.wrong.is_empty() => complaints.push_str(&report(outcome)),
            Some((_, finding)) if outcome.wrong.is_empty() => {
                let _ = writeln!(
                    complaints,
                    "{name}: {finding} does not occur any more: strike it out in known.rs"
                );
            }
            _ => {}
        }
    }
    let rows: Vec<String> =
        outcomes.iter().flat_map(|outcome| outcome.seen.rows(&outcome.recording)).collect();
    tally(family, (outcomes.len(), judged, wrong), &rows.concat());
    assert!(complaints.is_empty(), "{complaints}");
}

pub(crate) fn judge_all(recordings: Vec<Recording>) -> Vec<Outcome> {
    let jobs: Vec<(usize, usize)> = recordings
        .iter()
        .enumerate()
        .flat_map(|(plan, recording)| (0..recording.cuts.len()).map(move |cut| (plan, cut)))
        .collect();
    let next = AtomicUsize::new(0);
    let verdicts: Mutex<BTreeMap<(usize, usize), Verdict>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let home = Home::new();
                while let Some((plan, cut)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let recording = &recordings[*plan];
                    let verdict = judge(recording, &recording.cuts[*cut], &home);
                    verdicts.lock().unwrap().insert((*plan, *cut), verdict);
                }
            });
        }
    });
    let new = |recording| Outcome { recording, wrong: Vec::new(), seen: Seen::default() };
    let mut outcomes: Vec<Outcome> = recordings.into_iter().map(new).collect();
    for ((plan, cut), verdict) in verdicts.into_inner().unwrap() {
        let Outcome { recording, wrong, seen } = &mut outcomes[plan];
        let cut = &recording.cuts[cut];
        seen.note(recording, cut, &verdict);
        if !verdict.faults.is_empty() {
            wrong.push((cut.clone(), verdict.faults));
        }
    }
    outcomes
}

/// Adds a line to the summary of `cargo xtask test`: scenarios, states and wrong ones of a family, after the `rows` of
/// the operations' table.
pub(crate) fn tally(family: &str, (scenarios, judged, wrong): (usize, usize, usize), rows: &str) {
    let line = format!("{family}\t{scenarios}\t{judged}\t{wrong}\n");
    print!("{line}");
    if let Some(list) = std::env::var_os("FSSTACK_POWER") {
        let mut list = OpenOptions::new().create(true).append(true).open(list).unwrap();
        list.write_all(format!("{rows}{line}").as_bytes()).unwrap();
    }
}
