//! How long the kernel keeps names and attributes.

use std::time::Duration;

/// Timeouts of the kernel's caches.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Names.
    pub entry: Duration,
    /// Attributes.
    pub attr: Duration,
    /// Negative entries: that a name is missing.
    pub negative: Duration,
    /// Timeouts of names and of missing names while all changes on all branches are watched.
    pub watched: (Duration, Duration),
}

impl Timeouts {
    /// Age from which attributes are sent again with a listing: they are close to their expiry.
    pub(super) fn fresh(&self) -> Duration {
        self.attr.min(self.entry) / 2
    }
}
