//! Shrinks a failing sequence.

use std::path::Path;

use crate::act::Act;
use crate::disk::Format;
use crate::plan::{Begin, Given, Plan, Then};

/// Maximum number of tried sequences, each of which is recorded and judged.
const TRIES: usize = 120;

/// Makes `plan` as short as possible while `is_wrong` holds.
pub(crate) fn shortest(mut plan: Plan, mut is_wrong: impl FnMut(&Plan) -> bool) -> Plan {
    let mut tries = 0;
    'shorter: loop {
        for candidate in shorter(&plan).into_iter().filter(can_be_done) {
            if tries == TRIES {
                return plan;
            }
            tries += 1;
            if is_wrong(&candidate) {
                plan = candidate;
                continue 'shorter;
            }
        }
        return plan;
    }
}

/// Plans with one element less.
fn shorter(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    for n in (0..plan.acts.len()).rev() {
        let mut less = plan.clone();
        less.acts.remove(n);
        let durable = plan.durable.iter().filter(|at| **at != n);
        less.durable = durable.map(|at| if n < *at { at - 1 } else { *at }).collect();
        all.push(less);
    }
    for n in (0..plan.given.len()).rev() {
        let mut less = plan.clone();
        less.given.remove(n);
        all.push(less);
        for copy in 0..plan.given[n].disks.len() {
            let mut less = plan.clone();
            less.given[n].disks.remove(copy);
            all.extend((!less.given[n].disks.is_empty()).then_some(less));
        }
    }
    all.extend(fewer_branches(plan));
    let full = (0..plan.branches.len()).filter(|at| plan.branches[*at].full);
    all.extend(full.map(|at| {
        let mut less = plan.clone();
        less.branches[at].full = false;
        less
    }));
    if plan.index_alone {
        all.push(Plan { index_alone: false, ..plan.clone() });
    }
    if plan.export {
        all.push(Plan { export: false, ..plan.clone() });
    }
    if plan.branches.iter().any(|branch| branch.format == Format::Xfs) {
        let mut less = plan.clone();
        less.branches.iter_mut().for_each(|branch| branch.format = Format::Ext4);
        all.push(less);
    }
    all
}

/// The plan without its last branch.
fn fewer_branches(plan: &Plan) -> Option<Plan> {
    let last = plan.branches.len().checked_sub(1)?;
    let is_used = plan.given.iter().any(|given| given.disks.contains(&last))
        || plan.branches[last].takes
        || matches!(plan.then, Then::Away(at, _) if at == last)
        || matches!(plan.begin, Begin::Without(at) if at == last);
    let mut less = plan.clone();
    less.branches.pop();
    (!is_used).then_some(less)
}

/// True if every object has a parent directory, and every operation an object.
fn can_be_done(plan: &Plan) -> bool {
    let has_dir = |disk: usize, path: &Path| {
        let mut dirs = plan.given.iter().filter(|given| given.is_dir() && given.disks.contains(&disk));
        path.as_os_str().is_empty() || dirs.any(|given| given.path == path)
    };
    let is_placed = plan.given.iter().all(|given| {
        given.disks.iter().all(|disk| given.path.parent().is_some_and(|above| has_dir(*disk, above)))
    });
    let is_linked = |(at, given): (usize, &Given)| match given.first_name() {
        None => true,
        Some(first) => plan.given[..at].iter().any(|one| one.path == *first && one.disks == given.disks),
    };
    let is_placed = is_placed && plan.given.iter().enumerate().all(is_linked);
    let joins = plan.acts.iter().any(|act| matches!(act, Act::Join(_)));
    let mut tree = plan.tree();
    let acts = plan.acts.iter().enumerate().all(|(n, act)| tree.apply(act, n).is_some());
    is_placed && acts && !plan.acts.is_empty() && joins == matches!(plan.begin, Begin::Without(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::{append, create, fsync, mkdir, remove};
    use crate::plan::{BranchPlan, dir, file};

    fn plan() -> Plan {
        let branch = |takes| BranchPlan { format: Format::Xfs, takes, full: !takes };
        Plan {
            name: "what goes comes back".to_owned(),
            branches: vec![branch(false), branch(true), branch(false)],
            export: true,
            index_alone: false,
            given: vec![
                dir(&[0, 2], "d"),
                dir(&[0], "e"),
                file(0, "d/f", "old"),
                file(0, "d/g", "other"),
                file(2, "d/h", "another"),
            ],
            acts: vec![
                mkdir("e/new"),
                append("d/g", "more"),
                remove("d/f"),
                mkdir("e/new/below"),
                create("d/f", "new"),
                fsync("d/g"),
                fsync("d/f"),
            ],
            durable: vec![4],
            then: Then::Mount,
            begin: Begin::Mounted,
        }
    }

    #[test]
    fn what_does_not_matter_is_left_out() {
        // As if the removed object came back before its replacement.
        let (mut tried, removed) = (0, remove("d/f"));
        let shortest = shortest(plan(), |plan| {
            tried += 1;
            let at = |act: &Act| plan.acts.iter().position(|known| known == act);
            let (gone, made) = (at(&removed), at(&create("d/f", "new")));
            gone.is_some() && gone < made && made < at(&fsync("d/f"))
        });
        assert_eq!(shortest.acts, [removed, create("d/f", "new"), fsync("d/f")]);
        let given: Vec<(&Path, &[usize])> =
            shortest.given.iter().map(|given| (given.path.as_path(), &given.disks[..])).collect();
        assert_eq!(given, [(Path::new("d"), &[0][..]), (Path::new("d/f"), &[0])]);
        assert_eq!(shortest.durable, [1], "it is still the create");
        let branches: Vec<_> =
            shortest.branches.iter().map(|branch| (branch.format, branch.takes, branch.full)).collect();
        assert_eq!(branches, [(Format::Ext4, false, false), (Format::Ext4, true, false)]);
        assert!(!shortest.export && tried <= TRIES, "{tried} tries");
    }

    #[test]
    fn what_cannot_be_done_is_not_tried() {
        shortest(plan(), |plan| {
            let mut tree = plan.tree();
            assert!(plan.acts.iter().enumerate().all(|(n, act)| tree.apply(act, n).is_some()));
            plan.acts.contains(&mkdir("e/new/below"))
        });
    }

    #[test]
    fn a_sequence_that_is_wrong_as_it_is_only_stays() {
        let whole = plan();
        let same = shortest(plan(), |_| false);
        assert_eq!((same.acts, same.given.len(), same.export), (whole.acts, whole.given.len(), true));
    }
}
