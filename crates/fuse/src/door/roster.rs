//! The threads of a transport, and in which count each of them is.
//!
//! A thread is working, or resting, or aside (it waits for another request, or its own takes long), or stuck (another
//! thread answered its request). A [`Member`] moves between these; no count is changed by hand. How often a member began
//! and ended a request is its pulse, which costs two additions a request. A look at the pulses tells which request has been
//! served for long: its thread then counts as aside, so that slow calls on a local disk leave threads for everybody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// For each thread that may be at work, so many may be aside.
const ASIDE: usize = 8;
/// Time after which a request counts as long.
const LONG: Duration = Duration::from_millis(100);
/// Bit of a pulse: the request counts as long. The other bits count beginnings and ends, so an odd number is a request.
const IS_LONG: u64 = 1 << 63;
/// Pause between two looks at threads that are waited for.
const PAUSE: Duration = Duration::from_millis(2);

/// Threads of a transport.
#[derive(Debug)]
pub(super) struct Roster {
    rows: Mutex<Vec<Row>>,
    /// A member left.
    left: Condvar,
    counts: [AtomicUsize; 4],
    most_aside: usize,
}

/// Count that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Post {
    Working,
    Resting,
    Aside,
    Stuck,
}

/// Reasons why a thread does not count as working.
#[derive(Clone, Copy, Debug, Default)]
struct Reasons {
    rests: bool,
    /// It waits for another request.
    waits: bool,
    /// Its request takes long.
    is_long: bool,
    /// Another thread answered its request.
    is_stuck: bool,
}

#[derive(Debug)]
struct Row {
    member: Arc<Member>,
    reasons: Reasons,
    /// Pulse at the last look, and when it was first seen.
    seen: (u64, Instant),
}

/// One thread of a transport.
#[derive(Debug)]
pub(super) struct Member {
    roster: Arc<Roster>,
    /// CPU's queue or number.
    place: usize,
    pulse: AtomicU64,
}

/// A thread's membership, which ends when this drops.
#[derive(Debug)]
pub(super) struct Membership(Arc<Member>);

impl Reasons {
    fn post(self) -> Post {
        match self {
            Self { is_stuck: true, .. } => Post::Stuck,
            Self { waits: true, .. } | Self { is_long: true, .. } => Post::Aside,
            Self { rests: true, .. } => Post::Resting,
            _ => Post::Working,
        }
    }
}

impl Roster {
    /// A roster on which `ASIDE` times `max` threads may be aside.
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            rows: Mutex::default(),
            left: Condvar::new(),
            counts: Default::default(),
            most_aside: ASIDE * max,
        })
    }

    /// Counts one more thread as working. It may be started after that.
    pub(super) fn enter(self: &Arc<Self>, place: usize) -> Membership {
        let member = Arc::new(Member { roster: self.clone(), place, pulse: AtomicU64::new(0) });
        let mut rows = self.rows.lock();
        rows.push(Row { member: member.clone(), reasons: Reasons::default(), seen: (0, Instant::now()) });
        self.count(Post::Working).fetch_add(1, SeqCst);
        self.check(&rows);
        Membership(member)
    }

    /// Threads that work, or wait for a request.
    pub(super) fn working(&self) -> usize {
        self.count(Post::Working).load(SeqCst)
    }

    /// Threads that rest.
    pub(super) fn resting(&self) -> usize {
        self.count(Post::Resting).load(SeqCst)
    }

    /// Threads that wait for another request, or whose own takes long.
    pub(super) fn aside(&self) -> usize {
        self.count(Post::Aside).load(SeqCst)
    }

    /// Most threads that may be aside.
    pub(super) fn most_aside(&self) -> usize {
        self.most_aside
    }

    /// All threads, and how many of them belong to `place`.
    pub(super) fn all_and_at(&self, place: usize) -> (usize, usize) {
        let rows = self.rows.lock();
        (rows.len(), rows.iter().filter(|row| row.member.place == place).count())
    }

    /// Looks at all requests: those that take long put their threads aside. Returns how many unanswered requests were being
    /// served at an earlier look, too.
    pub(super) fn look(&self) -> usize {
        let (now, mut inside) = (Instant::now(), 0);
        let mut rows = self.rows.lock();
        for at in 0..rows.len() {
            let row = &mut rows[at];
            let pulse = row.member.pulse.load(SeqCst);
            let is_served = pulse & 1 == 1;
            let beat = pulse & !IS_LONG;
            if !is_served || row.seen.0 != beat {
                row.seen = (beat, now);
                continue;
            }
            inside += usize::from(!row.reasons.is_stuck);
            let counts = row.reasons.post() == Post::Working && row.seen.1 + LONG <= now;
            if counts && self.aside() < self.most_aside {
                // (The request may end at this moment.)
                let marked = row.member.pulse.compare_exchange(pulse, pulse | IS_LONG, SeqCst, SeqCst);
                if marked.is_ok() {
                    self.change(&mut rows, at, |reasons| reasons.is_long = true);
                }
            }
        }
        inside
    }

    /// Waits until no thread works, and for those that are aside until `deadline`. Those that are stuck are not waited for.
    pub(super) fn wait_until_left(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        loop {
            self.look();
            let mut rows = self.rows.lock();
            let at_work = self.working() + self.resting();
            if at_work == 0 && (self.aside() == 0 || deadline <= Instant::now()) {
                return;
            }
            self.left.wait_for(&mut rows, PAUSE);
        }
    }

    fn count(&self, post: Post) -> &AtomicUsize {
        &self.counts[post as usize]
    }

    fn change(&self, rows: &mut [Row], at: usize, by: impl FnOnce(&mut Reasons)) {
        let before = rows[at].reasons.post();
        by(&mut rows[at].reasons);
        let after = rows[at].reasons.post();
        if before != after {
            self.count(after).fetch_add(1, SeqCst);
            self.count(before).fetch_sub(1, SeqCst);
        }
        self.check(rows);
    }

    /// Every thread is in one count.
    fn check(&self, rows: &[Row]) {
        debug_assert_eq!(
            self.counts.iter().map(|count| count.load(SeqCst)).sum::<usize>(),
            rows.len(),
            "the counts of the roster are not its threads"
        );
    }
}

impl Member {
    /// Its CPU's queue or number.
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// It has taken a request.
    pub(super) fn begins(&self) {
        self.pulse.fetch_add(1, SeqCst);
    }

    /// It is done with its request.
    pub(super) fn ends(&self) {
        if self.pulse.fetch_add(1, SeqCst) & IS_LONG != 0 {
            self.pulse.fetch_and(!IS_LONG, SeqCst);
            self.change(|reasons| reasons.is_long = false);
        }
    }

    /// It is going to wait for another request: true if it does not count as working meanwhile, false if too many wait
    /// already.
    pub(super) fn steps_aside(&self) -> bool {
        if self.roster.most_aside <= self.roster.aside() {
            return false;
        }
        self.change(|reasons| reasons.waits = true);
        true
    }

    /// It waits no longer.
    pub(super) fn steps_back(&self) {
        self.change(|reasons| reasons.waits = false);
    }

    /// Another thread answered its request.
    pub(super) fn is_stuck(&self) {
        self.change(|reasons| reasons.is_stuck = true);
    }

    /// It has come back from the request that another thread answered.
    pub(super) fn is_back(&self) {
        self.change(|reasons| reasons.is_stuck = false);
    }

    /// It rests until it is called.
    pub(super) fn rests(&self) {
        self.change(|reasons| reasons.rests = true);
    }

    /// It rests no longer.
    pub(super) fn resumes(&self) {
        self.change(|reasons| reasons.rests = false);
    }

    fn change(&self, by: impl FnOnce(&mut Reasons)) {
        let mut rows = self.roster.rows.lock();
        let own = rows.iter().position(|row| std::ptr::eq(&raw const *row.member, self));
        // (It left: nobody counts it any more.)
        if let Some(at) = own {
            self.roster.change(&mut rows, at, by);
        }
    }
}

impl Membership {
    /// The member.
    pub(super) fn member(&self) -> &Arc<Member> {
        &self.0
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let roster = &self.0.roster;
        let mut rows = roster.rows.lock();
        if let Some(at) = rows.iter().position(|row| Arc::ptr_eq(&row.member, &self.0)) {
            let row = rows.swap_remove(at);
            roster.count(row.reasons.post()).fetch_sub(1, SeqCst);
        }
        roster.check(&rows);
        roster.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(roster: &Roster) -> [usize; 3] {
        [roster.working(), roster.aside(), roster.resting()]
    }

    /// Looks until `done`.
    fn looked_until(roster: &Roster, done: impl Fn(&Roster) -> bool) {
        let began = Instant::now();
        while !done(roster) {
            assert!(began.elapsed() < Duration::from_secs(60), "{roster:?}");
            roster.look();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn whoever_is_caught_while_aside_is_counted_once() {
        let roster = Roster::new(1);
        let (caught, other) = (roster.enter(0), roster.enter(0));
        assert!(caught.member().steps_aside());
        assert_eq!(counts(&roster), [1, 1, 0]);
        caught.member().is_stuck();
        assert_eq!(counts(&roster), [1, 0, 0]);
        // Back from the wait, not from the branch; then the other way round.
        caught.member().steps_back();
        assert_eq!(counts(&roster), [1, 0, 0]);
        caught.member().is_back();
        assert_eq!(counts(&roster), [2, 0, 0]);
        other.member().rests();
        drop((caught, other));
        assert_eq!(counts(&roster), [0, 0, 0]);
    }

    #[test]
    fn so_many_wait_and_no_more() {
        let roster = Roster::new(1);
        let all: Vec<_> = (0..=ASIDE).map(|place| roster.enter(place)).collect();
        assert!(all[..ASIDE].iter().all(|one| one.member().steps_aside()));
        assert!(!all[ASIDE].member().steps_aside());
        all[0].member().steps_back();
        assert!(all[ASIDE].member().steps_aside());
    }

    #[test]
    fn a_thread_whose_request_takes_long_is_aside_until_it_is_done() {
        let roster = Roster::new(1);
        let (slow, idle) = (roster.enter(0), roster.enter(1));
        slow.member().begins();
        looked_until(&roster, |roster| roster.aside() == 1);
        assert_eq!(roster.look(), 1);
        // It waits for another request besides.
        assert!(slow.member().steps_aside());
        slow.member().steps_back();
        assert_eq!(counts(&roster), [1, 1, 0]);
        slow.member().ends();
        assert_eq!(counts(&roster), [2, 0, 0]);
        assert_eq!(roster.look(), 0);
        drop(idle);
    }

    #[test]
    fn the_end_waits_for_whoever_works_and_not_for_the_stuck() {
        let roster = Roster::new(1);
        let (stuck, works) = (roster.enter(0), roster.enter(1));
        stuck.member().is_stuck();
        let (waits, ended) = (roster.clone(), std::sync::mpsc::channel());
        let waiter = std::thread::spawn(move || {
            waits.wait_until_left(Duration::from_secs(3600));
            ended.0.send(()).unwrap();
        });
        assert!(ended.1.recv_timeout(Duration::from_millis(50)).is_err(), "one of them still works");
        drop(works);
        ended.1.recv_timeout(Duration::from_secs(60)).unwrap();
        waiter.join().unwrap();
        drop(stuck);
    }
}
