//! A branch's health, as determined by failing calls and a probe.

use fsstack_branch::health::BranchState;

use crate::test_bed::TestBed;

#[test]
fn a_local_disk_has_no_calls_inside_and_cannot_be_aborted() {
    let test_bed = TestBed::new(1);
    let pool = test_bed.union.pool();
    assert_eq!((pool.branches[0].state(), pool.branches[0].inside()), (BranchState::Up, 0));
    assert!(!test_bed.union.may_hang());
    let refusal = pool.branches[0].free_callers().unwrap_err().to_string();
    assert!(refusal.contains("no FUSE mount"), "{refusal}");
}
