//! Time of day in the local time zone.
#![allow(unsafe_code, reason = "localtime_r and tzset have no safe wrappers")]

use std::mem::MaybeUninit;
use std::time::{SystemTime, UNIX_EPOCH};

unsafe extern "C" {
    /// Reads /etc/localtime again if it is another file than before, which localtime_r leaves out.
    fn tzset();
}

/// Minutes since midnight at `time`, by the zone that the machine has now, unless TZ is set. None: there is no such local time.
pub fn minute_of_day(time: SystemTime) -> Option<u16> {
    let seconds = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let seconds = seconds.try_into().ok()?;
    // SAFETY: it takes no argument, has a lock of its own, and no thread of this process changes the environment.
    unsafe { tzset() };
    let mut parts = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both point to values that live during the call, and the second one may be written.
    let done = unsafe { libc::localtime_r(&raw const seconds, parts.as_mut_ptr()) };
    if done.is_null() {
        return None;
    }
    // SAFETY: the call has succeeded, so it has filled the value.
    let parts = unsafe { parts.assume_init() };
    u16::try_from(parts.tm_hour.checked_mul(60)?.checked_add(parts.tm_min)?)
        .ok()
        .filter(|minute| *minute < 1440)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn minutes_follow_each_other() {
        // Ten minutes without a change of the zone's rules, wherever it is.
        let minutes: Vec<u16> = (0..10)
            .filter_map(|minute| minute_of_day(UNIX_EPOCH + Duration::from_secs(1_800_000_000 + 60 * minute)))
            .collect();
        assert_eq!(minutes.len(), 10);
        assert!(minutes.windows(2).all(|pair| (pair[0] + 1) % 1440 == pair[1]), "{minutes:?}");
    }
}
