//! Rollbacks of changes of names where a server answers EINVAL to a rename that must replace nothing.

use fsstack_sys::{Call, Errno, fault};

use crate::scenario;

/// The error of a branch in the middle, and the answer to the rollback's first rename, which is the next call.
#[test]
fn directories_go_back_on_servers_without_rename_flags() {
    for (name, refusals) in [
        ("rename_a_directory_of_three_branches", 3),
        ("rename_over_an_empty_directory_of_the_last_branch", 3),
        // Two of its three renames replace nothing, and are made without the flag.
        ("exchange_a_file_and_a_directory", 1),
    ] {
        let scenario = scenario::named(name);
        let test_bed = scenario.test_bed();
        let before = test_bed.seen();
        drop(test_bed);
        let test_bed = scenario.test_bed();
        let (_, calls) = fault::count(|| (scenario.act)(&test_bed.engine));
        let mut refused = 0;
        for nth in 1..=calls {
            let test_bed = scenario.test_bed();
            let act = || (scenario.act)(&test_bed.engine);
            let (result, failed) = fault::fail_twice(nth, 1, Errno::INVAL, act);
            if failed != Some(Call::Rename) || result.is_ok() {
                continue;
            }
            refused += 1;
            assert_eq!(test_bed.seen(), before, "{name}: call {nth}");
        }
        assert!(refused >= refusals, "{name}: {refused} renames refused");
    }
}
