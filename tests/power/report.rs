//! Reports a wrong state as shell commands, with the shortest sequence that leads to one.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::judge::Fault;
use crate::plan::{Plan, Then};
use crate::recording::{Cut, RecordedFrom, Recording};
use crate::run::{Outcome, judge_all};
use crate::second::with;
use crate::shrink::shortest;

/// Time limit for finding shorter sequences.
const TIME_LIMIT: Duration = Duration::from_secs(90);

/// A wrong state of a sequence.
struct WrongState {
    recording: Recording,
    cut: Cut,
    faults: Vec<Fault>,
}

/// One wrong state of each kind.
pub(crate) fn report(outcome: &Outcome) -> String {
    let name = &outcome.recording.plan.name;
    let mut text =
        format!("{name}: {} of {} states are wrong\n", outcome.wrong.len(), outcome.recording.cuts.len());
    let kinds: BTreeSet<&str> =
        outcome.wrong.iter().flat_map(|(_, faults)| faults.iter().map(|fault| fault.kind)).collect();
    let mut answer: BTreeSet<&str> = BTreeSet::new();
    for kind in kinds {
        if answer.contains(kind) {
            continue;
        }
        match shrunk(&outcome.recording, kind) {
            Some(WrongState { recording, cut, faults }) => {
                text.push_str(&replay(&recording, &cut, &faults));
                answer.extend(faults.iter().map(|fault| fault.kind));
            }
            None => {
                let least = least(&outcome.wrong, kind);
                text.extend(least.map(|(cut, faults)| replay(&outcome.recording, cut, faults)));
            }
        }
    }
    text
}

fn least<'a>(wrong: &'a [(Cut, Vec<Fault>)], kind: &str) -> Option<&'a (Cut, Vec<Fault>)> {
    let of_kind = wrong.iter().filter(|(_, faults)| faults.iter().any(|fault| fault.kind == kind));
    of_kind.min_by_key(|(cut, _)| (cut.progress, cut.lost))
}

/// The wrong state of the shortest sequence with the same fault.
fn shrunk(recording: &Recording, kind: &str) -> Option<WrongState> {
    let began = Instant::now();
    let mut found = None;
    shortest(recording.plan.clone(), |plan| {
        let wrong = (began.elapsed() < TIME_LIMIT).then(|| wrong_state(plan, recording, kind)).flatten();
        let is_wrong = wrong.is_some();
        found = wrong.or(found.take());
        is_wrong
    });
    found
}

/// Runs `plan` in the way of `like`.
fn wrong_state(plan: &Plan, like: &Recording, kind: &str) -> Option<WrongState> {
    let base = Plan { then: Then::Mount, name: "shortest".to_owned(), ..plan.clone() };
    let recording = Recording::tried(base).ok()?;
    let recordings = match (like.way, plan.then) {
        (RecordedFrom::Recovery(without), _) => {
            recording.crashes(1).iter().map(|cut| recording.recovered(cut, without)).collect()
        }
        (RecordedFrom::Acts, Then::Mount) => vec![recording],
        (RecordedFrom::Acts, then) => vec![with(&recording, then)],
    };
    let wrong = judge_all(recordings).into_iter().filter_map(|Outcome { recording, wrong, .. }| {
        let (cut, faults) = least(&wrong, kind)?.clone();
        Some(WrongState { recording, cut, faults })
    });
    wrong.min_by_key(|state| (state.cut.progress, state.cut.lost))
}

/// The commands, the cut, and the broken promise.
fn replay(recording: &Recording, cut: &Cut, faults: &[Fault]) -> String {
    let Recording { plan, disks, .. } = recording;
    let mut text = String::new();
    plan.typed().iter().for_each(|line| text.extend(["  ", line, "\n"]));
    for (n, act) in plan.acts.iter().enumerate().take(cut.progress.started) {
        let answered = if n < cut.progress.answered { "" } else { "   # not answered" };
        let _ = writeln!(text, "  {}{answered}", act.typed());
    }
    if let Some(between) = &recording.between {
        let _ = writeln!(text, "  # {between}");
    }
    let _ = writeln!(
        text,
        "  # {}",
        if cut.whole == Some(cut.progress) { "kill -9 of the daemon:" } else { "the power goes:" }
    );
    for (at, state) in cut.states.iter().enumerate() {
        let lost: Vec<&str> =
            disks[at].iter().skip(state + 1).map(|state| state.what.as_str()).take(6).collect();
        let lost = if lost.is_empty() { "nothing".to_owned() } else { lost.join(" | ") };
        let _ =
            writeln!(text, "  # b{at} has what was done up to: {}; it lost: {lost}", disks[at][*state].what);
    }
    let last = recording.index.len() - 1;
    if cut.index < last {
        let _ = writeln!(text, "  # the index's disk is in state {} of {last}", cut.index);
    }
    let then = plan.then.typed();
    let _ = writeln!(text, "  # {}", if then.is_empty() { "mount" } else { &then });
    for fault in faults {
        let _ = writeln!(text, "  -> {}: {}", fault.kind, fault.text);
    }
    text
}
