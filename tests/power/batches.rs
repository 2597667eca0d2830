//! A branch is emptied of small files, which move as one batch. Some of them have several hard links.

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

#[test]
fn recovery_of_small_files_is_cut() {
    needs!(root(), loops());
    recovery_cut("recovery of small files is cut", drained());
}

#[test]
fn recovery_of_small_linked_files_is_cut() {
    needs!(root(), loops());
    recovery_cut("recovery of small linked files is cut", drained_links());
}
