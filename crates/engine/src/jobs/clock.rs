//! Time of day by which jobs know whether they are in their window.

use std::fmt::Debug;
use std::sync::Arc;

use fsstack_pool::DayMinute;
use fsstack_sync::time::SystemTime;

use super::Jobs;

/// Source of the local time of day.
pub trait DayClock: Send + Sync + Debug {
    /// The time of day; None: it is not known, and every window is open.
    fn now(&self) -> Option<DayMinute>;
}

/// Time of day by the system's clock and time zone.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemDay;

impl DayClock for SystemDay {
    fn now(&self) -> Option<DayMinute> {
        fsstack_sys::local_time::minute_of_day(SystemTime::now()).map(DayMinute::new)
    }
}

impl Jobs {
    /// Windows of jobs that begin from now on open and close by `clock`, unless one was set before.
    pub(crate) fn set_day_clock(&self, clock: Arc<dyn DayClock>) {
        self.list.clock.get_or_init(|| clock);
    }

    pub(super) fn day_clock(&self) -> Arc<dyn DayClock> {
        self.list.clock.get_or_init(|| Arc::new(SystemDay)).clone()
    }
}
