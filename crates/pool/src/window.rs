//! A window of the local day, in which jobs are at work: `01:00-06:00`, or over midnight `22:30-05:00`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const HOUR: u16 = 60;
const DAY: u16 = 24 * HOUR;

/// A minute of the local day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DayMinute(u16);

impl DayMinute {
    /// The minute that lies `minutes` after midnight; one beyond the day is in the next.
    pub fn new(minutes: u16) -> Self {
        Self(minutes % DAY)
    }

    /// Minutes since midnight.
    pub fn minutes(self) -> u16 {
        self.0
    }
}

impl fmt::Display for DayMinute {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:02}:{:02}", self.0 / HOUR, self.0 % HOUR)
    }
}

/// The part of each day from one minute up to another, which is outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    from: DayMinute,
    to: DayMinute,
}

/// A text that is no window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no window of the day: write HH:MM-HH:MM with two different times, as 01:00-06:00 or 22:30-05:00"
)]
pub struct BadWindow(String);

impl Window {
    /// The window from `from` up to `to`; None if they are the same.
    pub fn new(from: DayMinute, to: DayMinute) -> Option<Self> {
        (from != to).then_some(Self { from, to })
    }

    /// Its first minute.
    pub fn from(self) -> DayMinute {
        self.from
    }

    /// The minute after its last.
    pub fn to(self) -> DayMinute {
        self.to
    }

    /// True if `now` is in it.
    pub fn contains(self, now: DayMinute) -> bool {
        match self.from < self.to {
            true => self.from <= now && now < self.to,
            false => self.from <= now || now < self.to,
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.from, self.to)
    }
}

impl FromStr for Window {
    type Err = BadWindow;

    fn from_str(text: &str) -> Result<Self, BadWindow> {
        let minute = |text: &str| {
            let (hour, minute) = text.split_once(':')?;
            let number = |text: &str, below: u16| {
                let is_number =
                    (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse::<u16>().ok().filter(|number| is_number && *number < below)
            };
            let minute = (minute.len() == 2).then_some(minute)?;
            Some(DayMinute(number(hour, 24)? * HOUR + number(minute, HOUR)?))
        };
        let window = text.split_once('-').and_then(|(from, to)| Self::new(minute(from)?, minute(to)?));
        window.ok_or_else(|| BadWindow(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(text: &str) -> Window {
        text.parse().unwrap()
    }

    fn at(hour: u16, minute: u16) -> DayMinute {
        DayMinute::new(hour * HOUR + minute)
    }

    #[test]
    fn the_last_minute_is_outside_and_midnight_is_crossed() {
        let night = window("01:00-06:00");
        let inside = [at(1, 0), at(5, 59)].map(|now| night.contains(now));
        let outside = [at(0, 59), at(6, 0), at(23, 0)].map(|now| night.contains(now));
        assert_eq!((inside, outside), ([true; 2], [false; 3]));
        let over_midnight = window("22:30-5:00");
        let inside = [at(22, 30), at(0, 0), at(4, 59)].map(|now| over_midnight.contains(now));
        assert_eq!((inside, over_midnight.contains(at(5, 0))), ([true; 3], false));
        assert_eq!(over_midnight.to_string(), "22:30-05:00");
        assert_eq!(DayMinute::new(DAY + 1), at(0, 1));
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for bad in [
            "",
            "-",
            "01:00",
            "01:00-01:00",
            "24:00-01:00",
            "1-6",
            "01:60-02:00",
            "+1:00-02:00",
            "01:0-02:00",
            "01:00-02:00-",
        ] {
            assert!(bad.parse::<Window>().unwrap_err().to_string().contains("01:00-06:00"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_window_and_the_rest_of_the_day_are_the_whole_day(from in 0..DAY, to in 0..DAY, now in 0..DAY) {
            let (from, to, now) = (DayMinute(from), DayMinute(to), DayMinute(now));
            match (Window::new(from, to), Window::new(to, from)) {
                (Some(one), Some(other)) => {
                    prop_assert!(one.contains(now) != other.contains(now));
                    prop_assert_eq!(one.to_string().parse::<Window>(), Ok(one));
                }
                _ => prop_assert_eq!(from, to),
            }
        }
    }
}
