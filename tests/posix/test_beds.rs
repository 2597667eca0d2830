//! Pool configurations that the suites run on; FSSTACK_TEST_TRANSPORT selects the transport (`cargo xtask test` runs
//! all with both).

use std::time::Duration;

use fsstack_lab::{self as lab, MiB, Pool, Skip, needs};

/// The smallest possible XFS.
const SIZE: MiB = MiB(300);

/// Longer than a suite takes on a busy machine, shorter than nextest's limit.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// A pool that a suite runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestBed {
    /// Name of such pools in `expected.txt`.
    pub(crate) place: &'static str,
    options: &'static [&'static str],
}

/// New files go to the first branch, stacked.
pub(crate) const ONE_BRANCH_STACKED: TestBed =
    TestBed { place: "one-branch", options: &["create=ff", "write-path=stacked"] };
/// New files go to the first branch, with passthrough.
pub(crate) const ONE_BRANCH_PASSTHROUGH: TestBed =
    TestBed { place: "one-branch", options: &["create=ff", "write-path=passthrough"] };
/// New files go to any branch, stacked.
pub(crate) const SPREAD_STACKED: TestBed =
    TestBed { place: "spread", options: &["create=rand", "write-path=stacked"] };
/// New files go to any branch, with passthrough.
pub(crate) const SPREAD_PASSTHROUGH: TestBed =
    TestBed { place: "spread", options: &["create=rand", "write-path=passthrough"] };
/// The kernel caches neither names nor attributes: every access is a request.
pub(crate) const SPREAD_UNREMEMBERED: TestBed = TestBed {
    place: "spread",
    options: &["create=rand", "write-path=auto", "attr-timeout=0", "entry-timeout=0"],
};
/// With the write-back page cache.
pub(crate) const SPREAD_WRITEBACK: TestBed =
    TestBed { place: "spread", options: &["create=rand", "write-path=stacked", "page-cache=writeback"] };
/// A pool mounted without options.
pub(crate) const SPREAD_AUTO: TestBed =
    TestBed { place: "spread", options: &["create=rand", "write-path=auto"] };

/// A test for each test bed, with the same body.
macro_rules! on_each_ground {
    ($body:ident) => {
        $crate::test_beds::on_each_ground!(
            $body;
            one_branch_stacked ONE_BRANCH_STACKED,
            one_branch_passthrough ONE_BRANCH_PASSTHROUGH,
            spread_stacked SPREAD_STACKED,
            spread_passthrough SPREAD_PASSTHROUGH,
            spread_unremembered SPREAD_UNREMEMBERED,
            spread_writeback SPREAD_WRITEBACK,
            spread_auto SPREAD_AUTO,
        );
    };
    ($body:ident; $($test:ident $test_bed:ident),+ $(,)?) => {
        $(#[test]
        fn $test() {
            $body($crate::test_beds::$test_bed);
        })+
    };
}
pub(crate) use on_each_ground;

impl TestBed {
    /// Checks whether this machine supports such a pool.
    pub(crate) fn able() -> Result<(), Skip> {
        needs::mounting()?;
        needs::loops()
    }

    /// The pool, on three XFS branches.
    #[track_caller]
    pub(crate) fn mount(self) -> Pool {
        // The suites test device nodes and set-uid files; a floor would leave no branch to choose.
        let common = ["suid", "dev", "minfreespace=0"];
        let bare = ["a", "b", "c"].iter().fold(lab::pool(), |pool, branch| pool.xfs_branch(branch, SIZE));
        let options = common.iter().chain(self.options);
        options.fold(bare, |pool, option| pool.option(option)).limit(LIMIT).mount()
    }
}

/// An XFS without a pool, and a second one: the branches of a pool that is never mounted.
#[track_caller]
pub(crate) fn plain_xfs() -> Pool {
    lab::pool().xfs_branch("first", SIZE).xfs_branch("second", SIZE).unmounted()
}

/// Checks that a suite removed its files, and the pool left nothing on any branch.
#[track_caller]
pub(crate) fn assert_empty(pool: &Pool) {
    assert_eq!(pool.list(""), [""; 0]);
    for branch in pool.branches() {
        let left: Vec<_> =
            std::fs::read_dir(branch.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "on branch {}: {left:?}", branch.name());
    }
}
