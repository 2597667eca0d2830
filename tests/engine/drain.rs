//! Drains in one process, with bounds that a test can reach.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use fsstack_engine::jobs::{DrainOrder, HiddenCopies, JobState, JobView, Manner};
use fsstack_engine::settings::Settings;
use fsstack_lab::needs::Skip;
use fsstack_pool::BranchIx;
use fsstack_pool::BranchMode::ReadWrite;

use crate::test_bed::{TestBed, distinct_homes, settings};

const LIMIT: Duration = Duration::from_secs(60);

fn drain(pool: &TestBed) -> JobView {
    let manner = Manner::default();
    let order =
        DrainOrder { from: BranchIx(0), to: Vec::new(), hidden: HiddenCopies::Stop, manner, window: None };
    let id = pool.union.start_drain(order).unwrap().id;
    let began = Instant::now();
    loop {
        let job = pool.union.jobs().into_iter().find(|job| job.id == id).unwrap();
        if job.state.is_over() {
            return job;
        }
        assert!(began.elapsed() < LIMIT, "the drain goes on: {job:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A pool over two file systems whose walks remember 20 names of files with several.
fn pool() -> Result<TestBed, Skip> {
    let settings = Settings { linked_names: 20, ..settings() };
    Ok(TestBed::over(distinct_homes()?, &[ReadWrite; 2], settings))
}

/// Files of which the second names are met after all first names.
fn put_linked(pool: &TestBed, files: usize) {
    for dir in ["first", "second"] {
        pool.put_dir(0, dir);
    }
    for n in 0..files {
        pool.put(0, &format!("first/{n}"), &n.to_string());
        fs::hard_link(pool.on(0, &format!("first/{n}")), pool.on(0, &format!("second/{n}"))).unwrap();
    }
}

fn check_linked(pool: &TestBed, files: usize) {
    for n in 0..files {
        let [first, second] = ["first", "second"].map(|dir| pool.on(1, &format!("{dir}/{n}")));
        assert_eq!(fs::read_to_string(&first).unwrap(), n.to_string());
        assert_eq!(first.metadata().unwrap().ino(), second.metadata().unwrap().ino(), "{n} is one file");
    }
}

/// A user can give any number of files second names in a directory that is walked last: the daemon does not remember all of them.
#[test]
fn more_hard_links_than_a_walk_remembers_move_by_further_walks() {
    let pool = match pool() {
        Ok(pool) => pool,
        Err(skip) => return skip.announce(),
    };
    put_linked(&pool, 100);
    let job = drain(&pool);
    assert_eq!((job.state, job.staying), (JobState::Done, 0), "{job:?}");
    assert_eq!(
        (job.found.files, job.moved.files),
        (100, 100),
        "those that the first walk left out count too"
    );
    check_linked(&pool, 100);
}

#[test]
fn a_file_with_more_hard_links_than_any_walk_remembers_stays_and_says_so() {
    let pool = match pool() {
        Ok(pool) => pool,
        Err(skip) => return skip.announce(),
    };
    put_linked(&pool, 5);
    for n in 0..30 {
        fs::hard_link(pool.on(0, "first/0"), pool.on(0, &format!("second/more-{n}"))).unwrap();
    }
    let job = drain(&pool);
    assert_eq!((job.state, job.moved.files), (JobState::Incomplete, 4), "{job:?}");
    assert_eq!(job.staying, 32, "each of its names");
    let named = job.named.first().expect("a name");
    assert!(named.why.contains("more hard links than jobs remember"), "{}", named.why);
}
