//! Counters of the pool: calls by branch, bytes, errors, and the sources of lookups.

use fsstack_branch::metrics::{BranchMetricsSnapshot, ErrorClass};
use fsstack_engine::ops::WriteTerms;
use fsstack_sys::{Call, Errno, OFlags};

use crate::test_bed::TestBed;

fn calls(metrics: &BranchMetricsSnapshot, call: Call) -> u64 {
    metrics.calls.iter().find(|row| row.call == call).map_or(0, |row| row.count)
}

fn errors(metrics: &BranchMetricsSnapshot, class: ErrorClass) -> u64 {
    metrics.errors.iter().find(|(of, _)| *of == class).map_or(0, |(_, count)| *count)
}

#[test]
fn each_branch_counts_what_it_was_asked() {
    let pool = TestBed::new(2);
    pool.put(1, "film", "12345678");
    let before = pool.union.status();
    assert_eq!(pool.find("film").map(drop), Ok(()));
    assert_eq!(pool.find("none").map(drop), Err(Errno::NOENT));
    let after = pool.union.status();
    let metrics = |at: usize| (&before.branches[at].metrics, &after.branches[at].metrics);
    let (old, new) = metrics(0);
    assert_eq!(calls(new, Call::Stat) - calls(old, Call::Stat), 2);
    assert_eq!(errors(new, ErrorClass::Missing) - errors(old, ErrorClass::Missing), 2);
    let (old, new) = metrics(1);
    assert_eq!(errors(new, ErrorClass::Missing) - errors(old, ErrorClass::Missing), 1);
    assert!(errors(new, ErrorClass::Fault) == 0 && new.sample > 0);
}

#[test]
fn bytes_through_the_daemon_are_exact() {
    let pool = TestBed::new(2);
    let film = pool.create("film").unwrap();
    assert_eq!(pool.union.write(film.handle, 0, &[7; 1000], WriteTerms::default()).unwrap(), 1000);
    assert_eq!(pool.union.write(film.handle, 1000, &[7; 24], WriteTerms::default()).unwrap(), 24);
    assert_eq!(pool.union.read(film.handle, 24, &mut [0; 4096]).unwrap(), 1000);
    pool.close(film);
    let status = pool.union.status();
    let bytes: Vec<_> = status
        .branches
        .iter()
        .map(|branch| (branch.metrics.read_bytes, branch.metrics.written_bytes))
        .collect();
    assert_eq!(bytes, [(1000, 1024), (0, 0)]);
    assert_eq!((status.metrics.opens_passthrough, status.metrics.opens_stacked), (0, 1));
}

#[test]
fn visits_are_timed_and_lookups_distinguished() {
    let pool = TestBed::new(2);
    pool.put(0, "film", "x");
    (0..100).for_each(|_| assert!(pool.find("film").is_ok()));
    let status = pool.union.status();
    assert_eq!((status.metrics.lookups_known, status.metrics.lookups_asked), (99, 1));
    let metrics = &status.branches[0].metrics;
    let (half, most) = (metrics.quantile(0.5).unwrap(), metrics.quantile(0.99).unwrap());
    assert!(half <= most && !half.is_zero());
    let film = pool.ino("film");
    let open = pool.open(film, OFlags::RDONLY).unwrap();
    let open_files: Vec<_> = pool.union.status().branches.iter().map(|branch| branch.open_files).collect();
    assert_eq!(open_files, [1, 0]);
    pool.close(open);
}
