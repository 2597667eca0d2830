//! A branch is emptied of a file with several hard links.

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
        file(0, "d/one", "linked"),
        hard_link(0, "d/one", "d/two"),
        hard_link(0, "d/one", "e/three"),
    ];
    let acts = vec![Act::Drain(0), create("new", "new"), fsync("new")];
    Single::new("drain of hard links", given, acts).placed_on(1)
}

fn recording(formats: &[Format]) -> Option<Recording> {
    let plan: Plan = drained().plan(formats, false, Then::Mount);
    is_wanted(&plan.name).then(|| Recording::of(plan))
}

#[test]
fn hard_links_leave_a_branch() {
    needs!(root(), loops());
    let plan = |formats: &[Format], export| drained().plan(formats, export, Then::Mount);
    run("hard links", vec![plan(&[Ext4; 3], true), plan(&[Xfs, Xfs, Ext4], false)]);
}

/// All kills while something is in a hidden folder, and every power cut then that loses nothing of the record.
#[test]
fn a_branch_is_away_while_hard_links_leave() {
    needs!(root(), loops());
    let all = [
        Meanwhile::Rename,
        Meanwhile::RenameOne,
        Meanwhile::Remove,
        Meanwhile::RemoveOne,
        Meanwhile::Restrict,
        Meanwhile::Fill,
    ];
    let thens: Vec<Then> =
        [0, 1].into_iter().flat_map(|away| all.map(|done| Then::Away(away, done))).collect();
    let all = recording(&[Ext4; 3]).into_iter();
    let all =
        all.flat_map(|recording| thens.iter().map(move |then| with(&recording, *then)).collect::<Vec<_>>());
    report_all("a branch is away while hard links leave", all.collect());
}

#[test]
fn recovery_of_hard_links_is_cut() {
    needs!(root(), loops());
    let recordings = recording(&[Ext4; 3]).into_iter();
    let recovered = recordings.flat_map(|recording| {
        let ways = [None, Some(0), Some(1)];
        let kills = recording.kills().into_iter();
        let all = kills.flat_map(|cut| ways.map(|away| recording.recovered(&cut, away)));
        all.collect::<Vec<_>>()
    });
    report_all("recovery of hard links is cut", recovered.collect());
}
