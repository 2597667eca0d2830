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
