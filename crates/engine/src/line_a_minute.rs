//! One line of the log a minute, for what a program may repeat without end.

use fsstack_sync::time::{Duration, Instant};

/// Time between two lines of the log about the same.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// When it was logged last, and how often it has happened since.
#[derive(Debug)]
pub(crate) struct LineAMinute {
    logged: Option<Instant>,
    since: u64,
}

impl LineAMinute {
    /// It was not logged yet.
    pub(crate) const fn new() -> Self {
        Self { logged: None, since: 0 }
    }

    /// It happens `now`. Some if it has to be logged: with the number of times since the last line, which have none.
    pub(crate) fn count(&mut self, now: Instant) -> Option<u64> {
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < BETWEEN_LINES) {
            self.since += 1;
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.since))
    }

    /// How often it has happened since the last line.
    pub(crate) fn since(&self) -> u64 {
        self.since
    }

    /// When it was logged last.
    pub(crate) fn logged(&self) -> Option<Instant> {
        self.logged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_line_is_counted_in_the_next() {
        let (mut line, began) = (LineAMinute::new(), Instant::now());
        assert_eq!(line.count(began), Some(0));
        assert_eq!([line.count(began), line.count(began + BETWEEN_LINES / 2)], [None, None]);
        assert_eq!(line.count(began + BETWEEN_LINES), Some(2));
        assert_eq!(line.count(began + BETWEEN_LINES), None);
    }
}
