//! Second faults: recovery is interrupted, a branch is missing and back, branches are reordered.

use fsstack_lab::needs;

use crate::disk::Format::{Ext4, Xfs};
use crate::model::Progress;
use crate::plan::{Meanwhile, Plan, Then};
use crate::recording::Recording;
use crate::run::{is_long, is_wanted, report_all};
use crate::single::{Single, few_steps, many_steps, programs};

/// Recordings of what takes many steps; in a long run, of all single operations and sequences of programs. `export`: handles of NFS clients are judged, too.
fn recordings(formats: &[crate::disk::Format], export: bool) -> Vec<Recording> {
    let singles = if is_long() { [many_steps(), few_steps(), programs()].concat() } else { many_steps() };
    recordings_of(singles, formats, export)
}

fn recordings_of(singles: Vec<Single>, formats: &[crate::disk::Format], export: bool) -> Vec<Recording> {
    let plan = |single: Single| Plan { index_alone: is_long(), ..single.plan(formats, export, Then::Mount) };
    let plans = singles.into_iter().map(plan).filter(|plan| is_wanted(&plan.name));
    plans.map(Recording::of).collect()
}

/// Step between the power cuts, of those that leave something to settle, that are judged: every one in a long run.
fn crash_step() -> usize {
    if is_long() { 1 } else { 48 }
}

/// Every branch in turn, with all changes made without it.
fn aways() -> Vec<Then> {
    let all = [Meanwhile::Rename, Meanwhile::Remove, Meanwhile::Fill];
    (0..3).flat_map(|away| all.map(|meanwhile| Then::Away(away, meanwhile))).collect()
}

/// The same cuts, followed by other steps.
pub(crate) fn with(recording: &Recording, then: Then) -> Recording {
    let plan = recording.plan.clone();
    let cuts = if is_long() { recording.cuts.clone() } else { recording.kills() };
    Recording {
        plan: Plan { name: format!("{}; {}", plan.name, then.typed()), then, ..plan },
        cuts,
        ..recording.clone()
    }
}

/// Mounts without each of the two branches of a move, on which `all` is done, after each kill of `single`; then with all branches.
pub(crate) fn away(title: &str, single: Single, all: &[Meanwhile]) {
    let thens: Vec<Then> =
        [0, 1].into_iter().flat_map(|away| all.iter().map(move |done| Then::Away(away, *done))).collect();
    let of = |recording: Recording| thens.iter().map(|then| with(&recording, *then)).collect::<Vec<_>>();
    report_all(title, recordings_of(vec![single], &[Ext4; 3], false).into_iter().flat_map(of).collect());
}

/// Cuts the recovery of `single` after each of its kills, with all branches and without each of the two branches of a move.
pub(crate) fn recovery_cut(title: &str, single: Single) {
    let of = |recording: Recording| {
        let ways = [None, Some(0), Some(1)];
        let crashes = recording.crashes(crash_step()).into_iter();
        crashes.flat_map(|cut| ways.map(|away| recording.recovered(&cut, away))).collect::<Vec<_>>()
    };
    report_all(title, recordings_of(vec![single], &[Ext4; 3], false).into_iter().flat_map(of).collect());
}

#[test]
fn recovery_is_cut() {
    needs!(root(), loops());
    let recordings = recordings(&[Ext4; 3], is_long());
    let recovered = recordings.iter().flat_map(|recording| {
        recording.crashes(crash_step()).into_iter().map(|cut| recording.recovered(&cut, None))
    });
    report_all("recovery is cut", recovered.collect());
}

#[test]
fn recovery_without_a_branch_is_cut() {
    needs!(root(), loops());
    let recordings = recordings(&[Ext4; 3], is_long());
    let recovered = recordings.iter().flat_map(|recording| {
        let crashes = recording.crashes(crash_step()).into_iter();
        crashes.flat_map(move |cut| (0..3).map(move |away| recording.recovered(&cut, Some(away))))
    });
    report_all("recovery without a branch is cut", recovered.collect());
}

#[test]
fn a_branch_is_away_and_back() {
    needs!(root(), loops());
    let recordings = recordings(&[Xfs, Ext4, Ext4], true);
    let thens = aways();
    let all = recordings.iter().flat_map(|recording| thens.iter().map(|then| with(recording, *then)));
    report_all("a branch is away and back", all.collect());
}

/// Nothing is left to settle then: the operation was answered, and is kept.
#[test]
fn a_branch_is_away_after_the_answer() {
    needs!(root(), loops());
    let thens = aways();
    let recordings = recordings_of([few_steps(), programs()].concat(), &[Ext4; 3], true);
    let answered = |recording: &Recording, then: &Then| {
        let all = Progress { started: recording.plan.acts.len(), answered: recording.plan.acts.len() };
        let cut = recording.cuts.iter().find(|cut| cut.lost == 0 && cut.whole == Some(all)).cloned();
        Recording { cuts: cut.into_iter().collect(), ..with(recording, *then) }
    };
    let all = recordings.iter().flat_map(|recording| thens.iter().map(|then| answered(recording, then)));
    report_all("a branch is away after the answer", all.collect());
}

#[test]
fn the_order_is_another() {
    needs!(root(), loops());
    let all = recordings(&[Ext4; 3], true).iter().map(|recording| with(recording, Then::Reversed)).collect();
    report_all("another order", all);
}
