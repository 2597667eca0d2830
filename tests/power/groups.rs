//! A branch is emptied of a file with several hard links.

use fsstack_lab::needs;

use crate::act::{Act, create, fsync};
use crate::disk::Format::{self, Ext4, Xfs};
use crate::plan::{Meanwhile, Then, dir, file, hard_link};
use crate::run::run;
use crate::second::{away, recovery_cut};
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
    away("a branch is away while hard links leave", drained(), &all);
}

#[test]
fn recovery_of_hard_links_is_cut() {
    needs!(root(), loops());
    recovery_cut("recovery of hard links is cut", drained());
}
