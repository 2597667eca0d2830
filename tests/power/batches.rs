//! A branch is emptied of small files, which move as one batch.

use fsstack_lab::needs;

use crate::act::{Act, create, fsync};
use crate::disk::Format::{self, Ext4, Xfs};
use crate::plan::{Meanwhile, Plan, Then, dir, file};
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

fn recording(formats: &[Format]) -> Option<Recording> {
    let plan: Plan = drained().plan(formats, false, Then::Mount);
    is_wanted(&plan.name).then(|| Recording::of(plan))
}

#[test]
fn small_files_leave_a_branch() {
    needs!(root(), loops());
    let plan = |formats: &[Format], export| drained().plan(formats, export, Then::Mount);
    run("small files", vec![plan(&[Ext4; 3], true), plan(&[Xfs, Xfs, Ext4], false)]);
}

#[test]
fn a_branch_is_away_while_small_files_leave() {
    needs!(root(), loops());
    let all = [Meanwhile::Rename, Meanwhile::Remove, Meanwhile::Restrict, Meanwhile::Fill];
    let thens: Vec<Then> =
        [0, 1].into_iter().flat_map(|away| all.map(|done| Then::Away(away, done))).collect();
    let all = recording(&[Ext4; 3]).into_iter();
    let all =
        all.flat_map(|recording| thens.iter().map(move |then| with(&recording, *then)).collect::<Vec<_>>());
    report_all("a branch is away while small files leave", all.collect());
}

#[test]
fn recovery_of_small_files_is_cut() {
    needs!(root(), loops());
    let recordings = recording(&[Ext4; 3]).into_iter();
    let recovered = recordings.flat_map(|recording| {
        let ways = [None, Some(0), Some(1)];
        let kills = recording.kills().into_iter();
        let all = kills.flat_map(|cut| ways.map(|away| recording.recovered(&cut, away)));
        all.collect::<Vec<_>>()
    });
    report_all("recovery of small files is cut", recovered.collect());
}
