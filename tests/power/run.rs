//! Records scenarios, judges all that cuts may leave of them, and reports.

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

/// So many states are mounted at the same time: much of it is waiting.
const WORKERS: usize = 4;

/// What came of one scenario.
struct Outcome {
    recording: Recording,
    wrong: Vec<(Cut, Vec<Fault>)>,
    seen: Seen,
}

/// Judges every cut of every one of `plans`: fails unless exactly the known ones are wrong.
pub(crate) fn run(family: &str, plans: Vec<Plan>) {
    let plans: Vec<Plan> = plans.into_iter().filter(|plan| is_wanted(&plan.name)).collect();
    let began = std::time::Instant::now();
    let recordings: Vec<Recording> = plans.into_iter().map(Recording::of).collect();
    println!("recorded {} in {:?}", recordings.len(), began.elapsed());
    report_all(family, recordings);
}

/// Whether scenarios of that name are asked for.
pub(crate) fn is_wanted(name: &str) -> bool {
    name.contains(&std::env::var("FSSTACK_POWER_ONLY").unwrap_or_default())
}

/// Whether there is time for all of it.
pub(crate) fn is_long() -> bool {
    std::env::var_os("FSSTACK_POWER_LONG").is_some()
}

/// As [`run`], of what was recorded.
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
    tally(family, &outcomes, judged, wrong);
    assert!(complaints.is_empty(), "{complaints}");
}

fn judge_all(recordings: Vec<Recording>) -> Vec<Outcome> {
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

/// The wrong state that is the least to explain.
fn report(outcome: &Outcome) -> String {
    let Recording { plan, kept, .. } = &outcome.recording;
    let mut text = format!(
        "{}: {} of {} states are wrong\n",
        plan.name,
        outcome.wrong.len(),
        outcome.recording.cuts.len()
    );
    let kinds: std::collections::BTreeSet<&str> =
        outcome.wrong.iter().flat_map(|(_, faults)| faults.iter().map(|fault| fault.kind)).collect();
    for kind in kinds {
        let of_kind =
            outcome.wrong.iter().filter(|(_, faults)| faults.iter().any(|fault| fault.kind == kind));
        let Some((cut, faults)) = of_kind.min_by_key(|(cut, _)| (cut.progress, cut.lost)) else { continue };
        for (n, act) in plan.acts.iter().enumerate().take(cut.progress.started) {
            let answered = if n < cut.progress.answered { "" } else { "   # not answered" };
            let _ = writeln!(text, "  {}{answered}", act.typed());
        }
        if let Some(between) = &outcome.recording.between {
            let _ = writeln!(text, "  # {between}");
        }
        for (at, state) in cut.states.iter().enumerate() {
            let lost = kept.disks[at].iter().skip(state + 1).map(|state| state.what.as_str());
            let last = &kept.disks[at][*state].what;
            let lost = lost.take(6).collect::<Vec<_>>().join(" | ");
            let _ = writeln!(
                text,
                "  branch {at} ({}) has: {last}; not: {lost}",
                plan.branches[at].format.name()
            );
        }
        let _ = writeln!(text, "  # {}", plan.then.typed());
        for fault in faults {
            let _ = writeln!(text, "  -> {}: {}", fault.kind, fault.text);
        }
    }
    text
}

/// Adds a line to what `cargo xtask test` prints at its end.
fn tally(family: &str, outcomes: &[Outcome], judged: usize, wrong: usize) {
    let line = format!("{family}\t{}\t{judged}\t{wrong}\n", outcomes.len());
    print!("{line}");
    if let Some(list) = std::env::var_os("FSSTACK_POWER") {
        let mut list = OpenOptions::new().create(true).append(true).open(list).unwrap();
        let rows = outcomes.iter().flat_map(|outcome| outcome.seen.rows(&outcome.recording));
        list.write_all(rows.chain([line]).collect::<String>().as_bytes()).unwrap();
    }
}
