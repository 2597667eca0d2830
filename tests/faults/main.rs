//! Every system call of every changing operation fails once, in turn, with each errno that a branch may answer;
//! and the process is killed before every one of them. What was told must be what the next mount shows.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod bad_file;
mod beside;
mod check;
#[path = "../model/engine.rs"]
#[expect(dead_code, reason = "shared with the tests against the model")]
mod engine;
mod given_up;
mod handles;
mod journal;
mod kill;
mod late_errors;
mod marks;
mod moves;
mod on_its_way;
mod races;
mod scenario;

use check::Tree;
use fsstack_sys::{Call, Errno, fault};
use scenario::{SCENARIOS, Scenario};

/// What a failing branch may answer to any call, and what a process without descriptors is told.
const ERRNOS: [Errno; 5] = [Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::MFILE];

fn every_call_fails_once(scenario: &Scenario) {
    let before = scenario.ground().seen();
    // Counted where nothing was looked at yet, as when they fail.
    let mut ground = scenario.ground();
    let (done, calls) = fault::count(|| (scenario.act)(&ground.engine));
    assert_eq!(done, Ok(()), "{}: without a fault", scenario.name);
    let after = ground.seen();
    ground.engine.crash();
    assert_eq!(ground.seen(), after, "{}: after a remount", scenario.name);
    ground.assert_clean(&after, scenario);
    let mut wrong = Vec::new();
    for errno in ERRNOS {
        for nth in 1..=calls {
            let mut ground = scenario.ground();
            let (told, failed) = fault::fail(nth, errno, || (scenario.act)(&ground.engine));
            let mut blame = |what: String| {
                wrong.push(format!(
                    "{}: call {nth} ({failed:?}) {errno:?}, told {told:?}: {what}",
                    scenario.name
                ));
            };
            if told.is_err_and(|told| told != errno && told != Errno::IO) {
                blame("not an honest errno".to_owned());
            }
            let allowed = |seen: &Tree| match told {
                Ok(()) => *seen == after,
                Err(_) => *seen == before || *seen == after || scenario.between(&before, &after, seen),
            };
            let live = ground.seen();
            if !allowed(&live) {
                blame(format!("shown {live:?}"));
            }
            ground.engine.crash();
            let seen = ground.seen();
            if !allowed(&seen) {
                blame(format!("after a remount {seen:?}"));
            }
            if let Some(dirt) = ground.dirt(&seen, scenario) {
                blame(dirt);
            }
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

/// From each call on, all fail: the branches are out of reach, and the daemon lives on until they are back.
fn every_call_is_the_last(scenario: &Scenario) {
    let before = scenario.ground().seen();
    let mut ground = scenario.ground();
    let (_, calls) = fault::count(|| (scenario.act)(&ground.engine));
    ground.engine.crash();
    let after = ground.seen();
    let mut wrong = Vec::new();
    for nth in 1..=calls {
        let mut ground = scenario.ground();
        let (told, failed) = fault::cut_off(nth, Errno::NOTCONN, || (scenario.act)(&ground.engine));
        ground.engine.crash();
        let seen = ground.seen();
        let is_between = || told.is_err() && (seen == before || scenario.between(&before, &after, &seen));
        let wrong_tree = (seen != after && !is_between()).then(|| format!("after a remount {seen:?}"));
        if let Some(what) = wrong_tree.or_else(|| ground.dirt(&seen, scenario)) {
            wrong.push(format!("{}: cut off at {nth} ({failed:?}), told {told:?}: {what}", scenario.name));
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

/// What is said of a branch that it takes nothing more sends what is made to the next, at whichever call it is said.
#[test]
fn a_create_that_a_branch_has_no_quota_for_goes_to_the_next() {
    let scenario = scenario::named("create");
    for errno in [Errno::DQUOT, Errno::NOSPC, Errno::ROFS] {
        let ground = scenario.ground();
        let (_, calls) = fault::count(|| (scenario.act)(&ground.engine));
        assert_eq!(ground.holders("d/new"), [0]);
        let elsewhere = (1..=calls).filter(|nth| {
            let ground = scenario.ground();
            let (told, failed) = fault::fail(*nth, errno, || (scenario.act)(&ground.engine));
            (failed, told) == (Some(Call::Open), Ok(())) && ground.holders("d/new") == [1]
        });
        assert!(elsewhere.count() > 0, "{errno:?}");
    }
}

#[test]
fn branches_go_out_of_reach_at_every_call() {
    SCENARIOS.iter().for_each(every_call_is_the_last);
}

/// A test a scenario, so that each is told apart.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() { every_call_fails_once(scenario::named(stringify!($name))); })*

        #[test]
        fn every_scenario_has_a_test() {
            let named = [$(stringify!($name)),*];
            assert!(SCENARIOS.iter().map(|scenario| scenario.name).eq(named));
        }
    };
}

scenarios!(
    create,
    mkdir,
    symlink,
    link,
    skeleton,
    rename_within_a_branch,
    rename_into_a_missing_parent,
    rename_over_a_file_on_an_earlier_branch,
    rename_over_a_file_on_a_later_branch,
    rename_of_a_file_with_a_hidden_copy,
    rename_a_directory_of_three_branches,
    rename_over_an_empty_directory_of_three_branches,
    rename_over_an_empty_directory_elsewhere,
    exchange_files_of_two_branches,
    exchange_a_file_and_a_directory,
    unlink_with_duplicates,
    rmdir_of_three_branches,
    chmod_a_directory_of_three_branches,
    chmod_a_file,
    truncate,
    write,
    copy_range,
);
