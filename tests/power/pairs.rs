//! Something is removed or changed on one branch, and something replaces it, or is made beside it, on another.

use fsstack_lab::needs;

use crate::act::{Act, append, chmod, commit, create, fsync, mkdir, remove, rename, rmdir};
use crate::disk::Format;
use crate::plan::{Begin, BranchPlan, Plan, Then, dir, file};
use crate::run::{is_long, run};

const FIRSTS: [&str; 6] = ["remove", "rename", "chmod", "rmdir", "rename of a directory", "move"];
const SECONDS: [&str; 6] =
    ["create and fsync", "create and COMMIT", "mkdir", "mkdir, create and fsync", "move", "skeleton"];

fn long(letter: &str) -> String {
    letter.repeat(400 << 10)
}

/// The first operation, the directory's name after it, and the name that is free after it.
fn first(which: &str) -> (Act, &'static str, &'static str) {
    match which {
        "remove" => (remove("d/f"), "d", "f"),
        "rename" => (rename("d/f", "d/other"), "d", "f"),
        "chmod" => (chmod("d", 0o700), "d", "new"),
        "rmdir" => (rmdir("d/sub"), "d", "sub"),
        "rename of a directory" => (rename("d", "e"), "e", "new"),
        _ => (append("d/film", &long("m")), "d", "new"),
    }
}

fn second(which: &str, dir: &str, name: &str) -> Vec<Act> {
    let path = format!("{dir}/{name}");
    let inside = format!("{path}/inside");
    match which {
        "create and fsync" => vec![create(&path, "new"), fsync(&path)],
        "create and COMMIT" => vec![create(&path, "new"), commit(&path)],
        "mkdir" => vec![mkdir(&path)],
        "mkdir, create and fsync" => vec![mkdir(&path), create(&inside, "inside"), fsync(&inside)],
        "move" => vec![append(&format!("{dir}/show"), &long("s"))],
        _ => vec![create(&format!("{dir}/beside"), "beside")],
    }
}

/// Old objects are on the branch `old`, new ones go to the other.
fn plan(first_act: &str, second_act: &str, formats: [Format; 2], old: usize, export: bool) -> Plan {
    let (act, at, name) = first(first_act);
    let branch = |n: usize| BranchPlan { format: formats[n], takes: n != old, full: n == old };
    let given = vec![
        dir(&[old], "d"),
        dir(&[old], "d/sub"),
        file(old, "d/f", "old"),
        file(old, "d/film", "film"),
        file(old, "d/show", "show"),
    ];
    // Only NFS clients have handles.
    let export = export || second_act.contains("COMMIT");
    let [a, b] = formats.map(Format::name);
    let export_text = if export { ", exported" } else { "" };
    Plan {
        name: format!("{first_act}; {second_act} ({a}, {b}, old on {old}{export_text})"),
        branches: vec![branch(0), branch(1)],
        export,
        index_alone: is_long(),
        given,
        acts: [vec![act], second(second_act, at, name)].concat(),
        durable: vec![],
        then: Then::Mount,
        begin: Begin::Mounted,
    }
}

fn pairs(formats: [Format; 2], old: usize, export: bool, wanted: fn(&str, &str) -> bool) -> Vec<Plan> {
    let all = FIRSTS.into_iter().flat_map(|first| SECONDS.map(|second| (first, second)));
    let all = all.filter(|(first, second)| wanted(first, second));
    all.map(|(first, second)| plan(first, second, formats, old, export)).collect()
}

#[test]
fn pairs_on_ext4_old_first() {
    needs!(root(), loops());
    run("pairs, ext4, the old branch first", pairs([Format::Ext4; 2], 0, false, |_, _| true));
}

#[test]
fn pairs_on_ext4_old_last() {
    needs!(root(), loops());
    run("pairs, ext4, the old branch last", pairs([Format::Ext4; 2], 1, true, |_, _| true));
}

#[test]
fn pairs_on_xfs() {
    needs!(root(), loops());
    // The journal matters, not the operation that fills it.
    let wanted =
        |first: &str, second: &str| is_long() || first != "move" && !["move", "mkdir"].contains(&second);
    run("pairs, XFS and ext4", pairs([Format::Xfs, Format::Ext4], 0, true, wanted));
}
