//! Metrics of a branch: calls, times and errors, counted by the calling threads and summed on request.
//!
//! A counter is an atomic in the thread's shard, so that threads do not contend for cache lines. Reading the clock
//! costs more than counting: on a local disk one visit in [`SAMPLE`] is timed, on a remote branch every one. A visit
//! with several system calls is counted under its last one.

use std::cell::Cell;
use std::sync::OnceLock;

use fsstack_sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::{Call, Errno, SysError, count};

use crate::error::is_branch_fault;

/// On local disks one call in eight is timed.
pub(crate) const SAMPLE: u32 = 8;

/// Buckets of a histogram. Bucket n holds times below [`bucket_limit`] of n; the last one holds all longer ones.
pub const BUCKETS: usize = 27;

const SHARDS: usize = 8;
/// Shard of threads that no program waits for.
const ASIDE: usize = SHARDS;
/// Counters of a call: number, nanoseconds of the timed ones, and the buckets.
const ROW: usize = 2 + BUCKETS;
const ROWS: usize = Call::COUNT * ROW;

/// Class of an error that a branch returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Nothing has that name: an ordinary answer.
    Missing,
    /// No space or quota left.
    Full,
    /// Read-only file system.
    ReadOnly,
    /// Permission denied.
    Denied,
    /// Fault of the branch itself.
    Fault,
    /// Another.
    Other,
}

impl ErrorClass {
    /// All classes.
    pub const ALL: [Self; 6] =
        [Self::Missing, Self::Full, Self::ReadOnly, Self::Denied, Self::Fault, Self::Other];

    /// The class of `errno`.
    pub fn of(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NODATA => Self::Missing,
            Errno::NOSPC | Errno::DQUOT => Self::Full,
            Errno::ROFS => Self::ReadOnly,
            Errno::ACCESS | Errno::PERM => Self::Denied,
            errno if is_branch_fault(errno) => Self::Fault,
            _ => Self::Other,
        }
    }

    /// Label in tables and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Full => "full",
            Self::ReadOnly => "read-only",
            Self::Denied => "denied",
            Self::Fault => "fault",
            Self::Other => "other",
        }
    }
}

/// Counters of a branch other than its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchCounter {
    /// Bytes that the daemon read.
    ReadBytes,
    /// Bytes that the daemon wrote.
    WrittenBytes,
    /// Files moved to another branch.
    MovedAway,
    /// Files moved here from another branch.
    MovedHere,
}

/// Counters of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolCounter {
    /// Lookups that asked only the branch where the name was seen last.
    LookupKnown,
    /// Lookups that asked several branches.
    LookupAsked,
    /// Opens by passthrough.
    OpenPassthrough,
    /// Opens by the stacked path.
    OpenStacked,
}

const ERRORS: usize = ROWS;
const SUMS: usize = ERRORS + ErrorClass::ALL.len();
/// Visits in progress.
const INSIDE: usize = SUMS + 4;
const BRANCH: usize = INSIDE + 1;

/// Counters of one branch.
#[derive(Debug)]
pub struct BranchMetrics {
    numbers: Sharded,
    sample: u32,
}

/// A visit in progress.
pub(crate) struct TimedVisit {
    calls: u64,
    began: Option<Instant>,
}

impl BranchMetrics {
    /// Metrics of a branch; `local` for one on a local disk.
    pub(crate) fn new(local: bool) -> Self {
        Self { numbers: Sharded::new(BRANCH), sample: if local { SAMPLE } else { 1 } }
    }

    /// Runs and measures a visit's calls.
    pub(crate) fn time<T>(&self, call: impl FnOnce() -> Result<T, SysError>) -> Result<T, SysError> {
        let visit = self.begin();
        let shard = self.numbers.shard();
        add(shard, INSIDE, 1);
        let done = call();
        let inside = shard[INSIDE].fetch_sub(1, Relaxed);
        debug_assert!(inside > 0, "a call has left a branch that it was not in");
        self.end(&visit, done.as_ref().err());
        done
    }

    fn begin(&self) -> TimedVisit {
        let timed = TURN.with(|turn| {
            turn.set(turn.get().wrapping_add(1));
            turn.get().is_multiple_of(self.sample)
        });
        TimedVisit { calls: count::last().0, began: timed.then(Instant::now) }
    }

    fn end(&self, visit: &TimedVisit, error: Option<&SysError>) {
        let (calls, last) = count::last();
        let call = match (error, last) {
            (Some(error), _) => error.call,
            // Answered from a buffer, without a system call.
            (None, _) if calls == visit.calls => return,
            (None, Some(call)) => call,
            (None, None) => return,
        };
        let row = call as usize * ROW;
        let shard = self.numbers.shard();
        add(shard, row, 1);
        if let Some(began) = visit.began {
            let took = began.elapsed();
            add(shard, row + 1, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            add(shard, row + 2 + bucket(took), 1);
        }
        if let Some(error) = error {
            add(shard, ERRORS + ErrorClass::of(error.errno) as usize, 1);
        }
    }

    /// Adds `number` to a counter.
    pub fn add(&self, sum: BranchCounter, number: u64) {
        add(self.numbers.shard(), SUMS + sum as usize, number);
    }

    /// Returns how long calls took that programs may have waited for, by kind of call.
    pub fn times(&self) -> CallTimes {
        let mut times = CallTimes::default();
        let all = self.numbers.sum_of(&self.numbers.shards[..ASIDE]);
        for call in Call::ALL {
            let row = &all[call as usize * ROW..][..ROW];
            times.0[call as usize].copy_from_slice(&row[2..]);
        }
        times
    }

    /// Returns the current sums.
    pub fn snapshot(&self) -> BranchMetricsSnapshot {
        let all = self.numbers.sum();
        let row = |call: Call| {
            let row = &all[call as usize * ROW..][..ROW];
            let mut buckets = [0; BUCKETS];
            buckets.copy_from_slice(&row[2..]);
            CallSnapshot { call, count: row[0], timed: Duration::from_nanos(row[1]), buckets }
        };
        BranchMetricsSnapshot {
            calls: Call::ALL.into_iter().map(row).filter(|row| row.count > 0).collect(),
            errors: ErrorClass::ALL.map(|class| (class, all[ERRORS + class as usize])),
            read_bytes: all[SUMS + BranchCounter::ReadBytes as usize],
            written_bytes: all[SUMS + BranchCounter::WrittenBytes as usize],
            moved_away: all[SUMS + BranchCounter::MovedAway as usize],
            moved_here: all[SUMS + BranchCounter::MovedHere as usize],
            in_flight: all[INSIDE],
            sample: self.sample,
        }
    }
}

/// Calls to a branch since it was added.
#[derive(Clone, Debug)]
pub struct BranchMetricsSnapshot {
    /// By system call, without calls that were never made.
    pub calls: Vec<CallSnapshot>,
    /// Errors by kind.
    pub errors: [(ErrorClass, u64); ErrorClass::ALL.len()],
    /// Bytes that the daemon read for programs.
    pub read_bytes: u64,
    /// Bytes that the daemon wrote for programs.
    pub written_bytes: u64,
    /// Files moved off the branch because it was full.
    pub moved_away: u64,
    /// Files moved to it.
    pub moved_here: u64,
    /// Visits in progress.
    pub in_flight: u64,
    /// One visit in this many was timed.
    pub sample: u32,
}

/// One system call on one branch.
#[derive(Clone, Debug)]
pub struct CallSnapshot {
    /// The call.
    pub call: Call,
    /// Number of calls, exact.
    pub count: u64,
    /// Total time of the timed ones.
    pub timed: Duration,
    /// Histogram of the timed ones.
    pub buckets: [u64; BUCKETS],
}

impl BranchMetricsSnapshot {
    /// Returns the number of all calls.
    pub fn count(&self) -> u64 {
        self.calls.iter().map(|row| row.count).sum()
    }

    /// Returns the time within which `share` (0 to 1) of the calls ended, to a factor of two; `None` if none was timed.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let mut all = [0_u64; BUCKETS];
        for row in &self.calls {
            all.iter_mut().zip(row.buckets).for_each(|(sum, count)| *sum += count);
        }
        quantile(&all, share)
    }
}

impl CallSnapshot {
    /// Like [`BranchMetricsSnapshot::quantile`].
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        quantile(&self.buckets, share)
    }
}

fn quantile(buckets: &[u64; BUCKETS], share: f64) -> Option<Duration> {
    let total: u64 = buckets.iter().sum();
    let mut below = 0;
    for (at, count) in buckets.iter().enumerate() {
        below += count;
        if *count > 0 && below as f64 >= share * total as f64 {
            return Some(bucket_limit(at));
        }
    }
    None
}

/// Upper limit of a bucket: 256 ns for the first, doubled for each further one.
pub fn bucket_limit(bucket: usize) -> Duration {
    Duration::from_nanos(256_u64 << bucket.min(BUCKETS - 1))
}

fn bucket(took: Duration) -> usize {
    let quarters = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) >> 8;
    usize::try_from(u64::BITS - quarters.leading_zeros()).unwrap_or(0).min(BUCKETS - 1)
}

/// Histograms of the timed calls of a branch, one for each kind of call.
#[derive(Clone, Debug)]
pub struct CallTimes(Vec<[u64; BUCKETS]>);

impl Default for CallTimes {
    fn default() -> Self {
        Self(vec![[0; BUCKETS]; Call::COUNT])
    }
}

impl CallTimes {
    /// The histograms, in a fixed order of kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &[u64; BUCKETS]> {
        self.0.iter()
    }

    /// Number of all calls.
    pub fn total(&self) -> u64 {
        self.0.iter().flatten().sum()
    }

    /// Adds `number` calls of a kind to a bucket.
    pub fn count(&mut self, kind: usize, bucket: usize, number: u64) {
        self.0[kind][bucket] += number;
    }

    /// Adds the calls of `more`.
    pub fn add(&mut self, more: &Self) {
        self.with(more, u64::saturating_add);
    }

    /// The calls since the sums were as in `earlier`.
    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub);
        self
    }

    /// Forgets half of the calls of each bucket.
    pub fn halve(&mut self) {
        self.0.iter_mut().flatten().for_each(|count| *count /= 2);
    }

    fn with(&mut self, other: &Self, sum: impl Fn(u64, u64) -> u64) {
        let pairs = self.0.iter_mut().flatten().zip(other.0.iter().flatten());
        pairs.for_each(|(mine, others)| *mine = sum(*mine, *others));
    }
}

/// Counts calls of this thread as those that no program waits for.
pub fn count_aside() {
    SHARD.with(|shard| shard.set(ASIDE));
}

/// Counters of the pool since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolMetricsSnapshot {
    /// Lookups answered by the one branch where the name was seen last.
    pub lookups_known: u64,
    /// Lookups that asked all branches that hold the directory.
    pub lookups_asked: u64,
    /// Opens whose data the kernel transfers.
    pub opens_passthrough: u64,
    /// Opens whose data the daemon transfers.
    pub opens_stacked: u64,
}

/// Counters of the pool itself.
#[derive(Debug)]
pub struct PoolMetrics(Sharded);

impl Default for PoolMetrics {
    fn default() -> Self {
        Self(Sharded::new(4))
    }
}

impl PoolMetrics {
    /// Counts one event.
    pub fn note(&self, event: PoolCounter) {
        add(self.0.shard(), event as usize, 1);
    }

    /// Returns the current sums.
    pub fn snapshot(&self) -> PoolMetricsSnapshot {
        let all = self.0.sum();
        PoolMetricsSnapshot {
            lookups_known: all[PoolCounter::LookupKnown as usize],
            lookups_asked: all[PoolCounter::LookupAsked as usize],
            opens_passthrough: all[PoolCounter::OpenPassthrough as usize],
            opens_stacked: all[PoolCounter::OpenStacked as usize],
        }
    }
}

fsstack_sync::thread_local! {
    static TURN: Cell<u32> = const { Cell::new(0) };
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Counters in shards, one per group of threads; a shard is allocated by its first thread.
#[derive(Debug)]
struct Sharded {
    shards: [OnceLock<Box<[AtomicU64]>>; SHARDS + 1],
    len: usize,
}

impl Sharded {
    fn new(len: usize) -> Self {
        Self { shards: [const { OnceLock::new() }; SHARDS + 1], len }
    }

    fn shard(&self) -> &[AtomicU64] {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let at = SHARD.with(|shard| {
            if shard.get() == usize::MAX {
                shard.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
            }
            shard.get()
        });
        self.shards[at].get_or_init(|| (0..self.len).map(|_| AtomicU64::new(0)).collect())
    }

    fn sum(&self) -> Vec<u64> {
        self.sum_of(&self.shards)
    }

    fn sum_of(&self, shards: &[OnceLock<Box<[AtomicU64]>>]) -> Vec<u64> {
        let mut all = vec![0_u64; self.len];
        for shard in shards.iter().filter_map(OnceLock::get) {
            all.iter_mut().zip(shard).for_each(|(sum, number)| *sum = sum.wrapping_add(number.load(Relaxed)));
        }
        all
    }
}

fn add(shard: &[AtomicU64], at: usize, number: u64) {
    shard[at].fetch_add(number, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_whose_limit_it_is_below() {
        for nanos in [0, 1, 255, 256, 511, 512, 4095, 4096, 1 << 30] {
            let took = Duration::from_nanos(nanos);
            let at = bucket(took);
            assert!(took < bucket_limit(at), "{nanos} in {at}");
            assert!(at == 0 || bucket_limit(at - 1) <= took, "{nanos} in {at}");
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn threads_add_up_and_quantiles_are_limits() {
        let metrics = BranchMetrics::new(false);
        fsstack_sync::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let missing = SysError { call: Call::Stat, errno: Errno::NOENT };
                        assert!(metrics.time(|| Err::<(), _>(missing)).is_err());
                    }
                });
            }
        });
        let inside = metrics.time(|| Ok(metrics.snapshot().in_flight));
        assert_eq!(inside.ok(), Some(1));
        let snapshot = metrics.snapshot();
        assert_eq!(snapshot.in_flight, 0);
        assert_eq!(snapshot.count(), 2000, "the last one made no call");
        assert_eq!(snapshot.errors[0], (ErrorClass::Missing, 2000));
        assert_eq!(snapshot.calls[0].buckets.iter().sum::<u64>(), 2000);
        assert!(snapshot.quantile(0.5) <= snapshot.quantile(0.99));
        assert_eq!(BranchMetrics::new(true).snapshot().quantile(0.5), None);
    }

    #[test]
    fn calls_that_no_program_waits_for_are_counted_and_have_no_times() {
        let metrics = BranchMetrics::new(false);
        let call = || _ = metrics.time(|| Err::<(), _>(SysError { call: Call::Stat, errno: Errno::NOENT }));
        call();
        let before = metrics.times();
        fsstack_sync::thread::scope(|scope| {
            scope.spawn(|| {
                count_aside();
                call();
            });
        });
        assert_eq!(
            (before.total(), metrics.times().since(&before).total(), metrics.snapshot().count()),
            (1, 0, 2)
        );
    }
}
