//! Last known space of a branch's file system: read by every create without a lock, replaced under one.

use std::sync::Arc;

use arc_swap::ArcSwap;
use fsstack_sync::ranked::{Ranked, RankedGuard, SPACE};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::file::FsSpace;

/// Lifetime of the figures of free space.
const KNOWN_SPACE_LIFETIME: Duration = Duration::from_secs(1);

/// The figures, and when they were asked for.
#[derive(Debug)]
pub(crate) struct KnownSpace {
    now: ArcSwap<(Instant, FsSpace)>,
    replacing: Ranked<(), SPACE>,
}

/// The right to replace the figures, until it drops.
pub(crate) struct Replacing<'a> {
    space: &'a KnownSpace,
    _lock: RankedGuard<'a, (), SPACE>,
}

impl KnownSpace {
    pub(crate) fn new(space: FsSpace) -> Self {
        Self { now: ArcSwap::from_pointee((Instant::now(), space)), replacing: Ranked::new(()) }
    }

    /// Returns the figures, whatever their age.
    pub(crate) fn last(&self) -> FsSpace {
        self.now.load().1
    }

    /// Returns the figures if they are young. Otherwise the caller is to ask for new ones; others get the old ones meanwhile.
    pub(crate) fn young(&self) -> Option<FsSpace> {
        let known = self.now.load();
        if known.0.elapsed() <= KNOWN_SPACE_LIFETIME {
            return Some(known.1);
        }
        let replacing = self.replace();
        let known = self.now.load();
        if known.0.elapsed() <= KNOWN_SPACE_LIFETIME {
            return Some(known.1); // another thread was faster
        }
        replacing.set(known.1);
        None
    }

    /// Waits for the right to replace the figures.
    pub(crate) fn replace(&self) -> Replacing<'_> {
        Replacing { space: self, _lock: self.replacing.lock() }
    }

    /// Drops the figures if they are from before `then`. Returns whether they were.
    pub(crate) fn distrust_before(&self, then: Instant) -> bool {
        let replacing = self.replace();
        let old = self.now.load().0 < then;
        if old {
            replacing.distrust();
        }
        old
    }
}

impl Replacing<'_> {
    /// `space` is known from now on.
    pub(crate) fn set(&self, space: FsSpace) {
        self.space.now.store(Arc::new((Instant::now(), space)));
    }

    /// The figures are to be asked for.
    pub(crate) fn distrust(&self) {
        if let Some(past) = Instant::now().checked_sub(KNOWN_SPACE_LIFETIME * 2) {
            self.space.now.store(Arc::new((past, self.space.last())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_asks_for_new_figures_and_the_others_get_the_old_ones() {
        let of = |free| FsSpace { free, ..FsSpace::default() };
        let known = KnownSpace::new(of(5));
        assert_eq!(known.young().map(|space| space.free), Some(5));
        known.replace().distrust();
        let asked = fsstack_sync::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| known.young().is_none())).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).filter(|asks| *asks).count()
        });
        assert_eq!(asked, 1);
        assert_eq!(known.young().map(|space| space.free), Some(5));
        known.replace().set(of(7));
        assert_eq!(known.last().free, 7);
        assert!(!known.distrust_before(Instant::now() - KNOWN_SPACE_LIFETIME));
        assert!(known.distrust_before(Instant::now() + KNOWN_SPACE_LIFETIME));
        assert!(known.young().is_none());
    }
}
