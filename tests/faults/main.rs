//! Every system call of every changing operation fails once, in turn, with each errno that a branch may answer;
//! and the process is killed before every one of them. The next mount must show each acknowledged change.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod bad_file;
mod beside;
mod birthless;
mod catalogue;
mod check;
mod check_fixed;
mod drained;
#[path = "../model/engine.rs"]
#[expect(dead_code, reason = "shared with the tests against the model")]
mod engine;
mod frozen_calls;
mod full_source;
mod given_up;
mod handles;
mod hidden;
mod journal;
mod kept;
mod kept_calls;
mod kill;
mod lacking;
mod late_errors;
mod made_writable;
mod many_deaths;
mod marks;
mod mounted_again;
mod moved_out;
mod moves;
mod on_its_way;
mod races;
mod rollbacks;
mod scenario;
mod shown_apart;
mod two_hosts;

use std::path::Path;

use check::Tree;
use fsstack_sys::{Call, Errno, fault};
use scenario::{SCENARIOS, Scenario};

/// Errors of a failing branch for any call, and the error of a process without descriptors.
const ERRNOS: [Errno; 5] = [Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::MFILE];

fn every_call_fails_once(scenario: &Scenario) {
    let before = scenario.test_bed().seen();
    // Counted without earlier lookups, as when the calls fail.
    let mut test_bed = scenario.test_bed();
    let (done, calls) = fault::count(|| (scenario.act)(&test_bed.engine));
    assert_eq!(done, Ok(()), "{}: without a fault", scenario.name);
    let after = test_bed.seen();
    test_bed.engine.crash();
    assert_eq!(test_bed.seen(), after, "{}: after a remount", scenario.name);
    test_bed.assert_clean(&after, scenario);
    let mut wrong = Vec::new();
    for errno in ERRNOS {
        for nth in 1..=calls {
            let mut test_bed = scenario.test_bed();
            let (result, failed) = fault::fail(nth, errno, || (scenario.act)(&test_bed.engine));
            let mut blame = |what: String| {
                wrong.push(format!(
                    "{}: call {nth} ({failed:?}) {errno:?}, result {result:?}: {what}",
                    scenario.name
                ));
            };
            if result.is_err_and(|result| result != errno && result != Errno::IO) {
                blame("not an honest errno".to_owned());
            }
            let allowed = |seen: &Tree| match result {
                Ok(()) => *seen == after,
                Err(_) => *seen == before || *seen == after || scenario.between(&before, &after, seen),
            };
            let live = test_bed.seen();
            if !allowed(&live) {
                blame(format!("shown {live:?}"));
            }
            test_bed.engine.crash();
            let seen = test_bed.seen();
            if !allowed(&seen) {
                blame(format!("after a remount {seen:?}"));
            }
            if let Some(dirt) = test_bed.dirt(&seen, scenario) {
                blame(dirt);
            }
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

/// From each call on, all fail: the branches are unreachable, and the daemon runs on until they are back.
fn every_call_is_the_last(scenario: &Scenario) {
    let before = scenario.test_bed().seen();
    let mut test_bed = scenario.test_bed();
    let (_, calls) = fault::count(|| (scenario.act)(&test_bed.engine));
    test_bed.engine.crash();
    let after = test_bed.seen();
    let mut wrong = Vec::new();
    for nth in 1..=calls {
        let mut test_bed = scenario.test_bed();
        let (result, failed) = fault::cut_off(nth, Errno::NOTCONN, || (scenario.act)(&test_bed.engine));
        test_bed.engine.crash();
        let seen = test_bed.seen();
        let is_between = || result.is_err() && (seen == before || scenario.between(&before, &after, &seen));
        let wrong_tree = (seen != after && !is_between()).then(|| format!("after a remount {seen:?}"));
        if let Some(what) = wrong_tree.or_else(|| test_bed.dirt(&seen, scenario)) {
            wrong
                .push(format!("{}: cut off at {nth} ({failed:?}), result {result:?}: {what}", scenario.name));
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

/// A branch that is full at any call sends a new object to the next branch, as does one with shorter names.
#[test]
fn a_create_that_a_branch_has_no_quota_for_goes_to_the_next() {
    let scenario = scenario::named("create");
    for errno in [Errno::DQUOT, Errno::NOSPC, Errno::ROFS, Errno::NAMETOOLONG] {
        let test_bed = scenario.test_bed();
        let (_, calls) = fault::count(|| (scenario.act)(&test_bed.engine));
        assert_eq!(test_bed.holders("d/new"), [0]);
        let elsewhere = (1..=calls).filter(|nth| {
            let test_bed = scenario.test_bed();
            let (result, failed) = fault::fail(*nth, errno, || (scenario.act)(&test_bed.engine));
            (failed, result) == (Some(Call::Open), Ok(())) && test_bed.holders("d/new") == [1]
        });
        assert!(elsewhere.count() > 0, "{errno:?}");
    }
}

/// eCryptfs has shorter names, and others refuse some.
#[test]
fn a_name_that_one_branch_cannot_have_is_found_on_another() {
    let scenario = scenario::named("rename_over_a_file_on_an_earlier_branch");
    for errno in [Errno::NAMETOOLONG, Errno::INVAL] {
        let test_bed = scenario.test_bed();
        let find = |name: &str| test_bed.engine.find(Path::new(name)).map(drop);
        let (found, failed) = fault::fail(1, errno, || find("from"));
        assert_eq!((found, failed), (Ok(()), Some(Call::Stat)), "{errno:?}");
        // It may be none of theirs: that is said if none can have it, else it is missing.
        assert_eq!(fault::fail(1, errno, || find("missing")).0, Err(Errno::NOENT), "{errno:?}");
        assert_eq!(fault::cut_off(1, errno, || find("other")).0, Err(errno), "{errno:?}");
    }
}

#[test]
fn a_create_that_no_branch_has_quota_for_says_so() {
    let scenario = scenario::named("create");
    let (_, calls) = fault::count(|| (scenario.act)(&scenario.test_bed().engine));
    let mut refused = 0;
    for nth in 1..=calls {
        let test_bed = scenario.test_bed();
        let (result, failed) = fault::cut_off(nth, Errno::DQUOT, || (scenario.act)(&test_bed.engine));
        assert_ne!(result, Err(Errno::NOSPC), "call {nth}: {failed:?}");
        refused += usize::from((failed, result) == (Some(Call::Open), Err(Errno::DQUOT)));
    }
    assert!(refused > 0);
}

#[test]
fn branches_go_out_of_reach_at_every_call() {
    SCENARIOS.iter().for_each(every_call_is_the_last);
}

/// One test per scenario, so that each is reported separately.
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
    rename_over_an_empty_directory_of_the_last_branch,
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
