//! A branch is emptied of small files, which move as one batch. Some of them have several hard links.

use fsstack_lab::needs;

use crate::act::{Act, create, fsync};
use crate::disk::Format::{self, Ext4, Xfs};
use crate::plan::{Meanwhile, Plan, Then, dir, file, hard_link};
use crate::recording::Recording;
use crate::run::{is_wanted, report_all, run};
use crate::second::with;
use crate::single::Single;

fn drained() -> Single {
    let given = vec![
        dir(&[0], "d"),
        dir(&[0, 2], "e"),
        file(0, "d/one", "one"),
        file(0, "d/two", "the second"),
        file(0, "e/three", "three"),
        file(0, "e/four", "the fourth"),
    ];
    let acts = vec![Act::Drain(0), create("new", "new"), fsync("new")];
    Single::new("drain of small files", given, acts).placed_on(1)
}

/// Two files with several names.
fn drained_links() -> Single {
    let given = vec![
        dir(&[0], "d"),
        dir(&[0, 2], "e"),
        file(0, "d/one", "linked"),
        hard_link(0, "d/one", "e/three"),
        file(0, "e/four", "linked, too"),
        hard_link(0, "e/four", "d/five"),
    ];
    let acts = vec![Act::Drain(0), create("new", "new"), fsync("new")];
    Single::new("drain of small linked files", given, acts).placed_on(1)
}

fn recording(single: Single, formats: &[Format]) -> Option<Recording> {
    let plan: Plan = single.plan(formats, false, Then::Mount);
    is_wanted(&plan.name).then(|| Recording::of(plan))
}

#[test]
fn small_files_leave_a_branch() {
    needs!(root(), loops());
    let plan = |formats: &[Format], export| drained().plan(formats, export, Then::Mount);
    run("small files", vec![plan(&[Ext4; 3], true), plan(&[Xfs, Xfs, Ext4], false)]);
}

#[test]
fn small_linked_files_leave_a_branch() {
    needs!(root(), loops());
    let plan = |formats: &[Format], export| drained_links().plan(formats, export, Then::Mount);
    run("small linked files", vec![plan(&[Ext4; 3], true), plan(&[Xfs, Xfs, Ext4], false)]);
}

#[test]
fn a_branch_is_away_while_small_files_leave() {
    needs!(root(), loops());
    let all = [Meanwhile::Rename, Meanwhile::Remove, Meanwhile::Restrict, Meanwhile::Fill];
    away("a branch is away while small files leave", drained(), &all);
}

#[test]
fn a_branch_is_away_while_small_linked_files_leave() {
    needs!(root(), loops());
    let all = [
        Meanwhile::Rename,
        Meanwhile::RenameOne,
        Meanwhile::Remove,
        Meanwhile::RemoveOne,
        Meanwhile::Restrict,
        Meanwhile::Fill,
    ];
    away("a branch is away while small linked files leave", drained_links(), &all);
}

/// A mount without one of the two branches, on which `all` is done, after each kill.
fn away(title: &str, single: Single, all: &[Meanwhile]) {
    let thens: Vec<Then> =
        [0, 1].into_iter().flat_map(|away| all.iter().map(move |done| Then::Away(away, *done))).collect();
    let of = |recording: Recording| thens.iter().map(|then| with(&recording, *then)).collect::<Vec<_>>();
    report_all(title, recording(single, &[Ext4; 3]).into_iter().flat_map(of).collect());
}

#[test]
fn recovery_of_small_files_is_cut() {
    needs!(root(), loops());
    recovered("recovery of small files is cut", drained());
}

#[test]
fn recovery_of_small_linked_files_is_cut() {
    needs!(root(), loops());
    recovered("recovery of small linked files is cut", drained_links());
}

fn recovered(title: &str, single: Single) {
    let recovered = recording(single, &[Ext4; 3]).into_iter().flat_map(|recording| {
        let ways = [None, Some(0), Some(1)];
        let kills = recording.kills().into_iter();
        let all = kills.flat_map(|cut| ways.map(|away| recording.recovered(&cut, away)));
        all.collect::<Vec<_>>()
    });
    report_all(title, recovered.collect());
}
