//! The grammar of tiers: `fast>slow;start=80%;stop=60%;order=atime;min-age=7d;window=01:00-06:00;rate=50M;make-way`.
//!
//! A tier moves files off the branches of one class when these are fuller than `start`, until they are as full as `stop`. Several
//! are separated by `:`. A part without `>` belongs to the one before it, as a window has `:` in it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use strum::{Display, EnumString, VariantNames};

use crate::class::{BadClass, Class};
use crate::nearest::suggestion;
use crate::size::Size;
use crate::window::{BadWindow, Window};

/// Words after `;`.
const WORDS: [&str; 7] = ["start=", "stop=", "order=", "min-age=", "window=", "rate=", "make-way"];
/// Thousandths in one.
const WHOLE: u16 = 1000;
/// Units of time, the longest first, with their seconds.
const UNITS: [(char, u64); 5] = [('w', 7 * 86_400), ('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];

/// Share of a class that is used, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsedShare(u16);

impl UsedShare {
    /// Bytes of `total`, rounded down.
    pub fn of(self, total: u64) -> u64 {
        let bytes = u128::from(total) * u128::from(self.0) / u128::from(WHOLE);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for UsedShare {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(out, "{}%", self.0 / 10),
            tenth => write!(out, "{}.{tenth}%", self.0 / 10),
        }
    }
}

impl FromStr for UsedShare {
    type Err = BadTier;

    fn from_str(text: &str) -> Result<Self, BadTier> {
        let digits =
            |text: &str| (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(());
        let share = text.strip_suffix('%').and_then(|text| {
            let (whole, tenth) = text.split_once('.').unwrap_or((text, "0"));
            digits(whole).and(digits(tenth)).filter(|()| tenth.len() == 1)?;
            let share = whole.parse::<u16>().ok()?.checked_mul(10)?.checked_add(tenth.parse().ok()?)?;
            (share <= WHOLE).then_some(Self(share))
        });
        share.ok_or_else(|| BadTier::Share(text.to_owned()))
    }
}

/// Order in which files leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum TierOrder {
    /// Those first that were read or written least recently.
    #[default]
    Atime,
    /// Those first that were written least recently, whether they are read or not.
    Mtime,
    /// The largest first.
    Size,
}

/// Files of a class that go to another one when it is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// The class that files leave.
    pub fast: Class,
    /// The class that takes them.
    pub slow: Class,
    /// Files leave when it is fuller.
    pub start: UsedShare,
    /// They leave until it is as full.
    pub stop: UsedShare,
    /// Which of them leave first.
    pub order: TierOrder,
    /// Files that were used in this time stay.
    pub min_age: Duration,
    /// Files leave in this part of the day only.
    pub window: Option<Window>,
    /// Bytes a second at most; None: the pool's own limit.
    pub rate: Option<Size>,
    /// Files that programs keep open by passthrough are stacked from their next first open, and leave under them.
    pub make_way: bool,
}

/// A text that is no tier, or tiers that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTier {
    /// No `>` between two classes.
    #[error(
        "`{0}` is not a tier: write FAST>SLOW[;start=80%][;stop=60%][;order=atime|mtime|size][;min-age=7d][;window=01:00-06:00][;rate=50M][;make-way]"
    )]
    Form(String),
    /// One of the classes.
    #[error("`{0}`: {1}")]
    Class(String, BadClass),
    /// Files would stay where they are.
    #[error("`{0}>{0}`: a tier leads to another class")]
    Same(Class),
    /// Not a share.
    #[error("`{0}` is not a share from 0% to 100%: write 80% or 62.5%")]
    Share(String),
    /// It would stop before it starts.
    #[error("stop={stop} is not below start={start}: files move until the class is as full as stop")]
    StopAbove {
        /// The start.
        start: UsedShare,
        /// The stop.
        stop: UsedShare,
    },
    /// No order.
    #[error("`order={0}`: write order=atime, mtime or size")]
    Order(String),
    /// No age.
    #[error("`min-age={0}`: write a number and a unit, as 7d, 12h, 90m or 30s")]
    Age(String),
    /// The window.
    #[error(transparent)]
    Window(#[from] BadWindow),
    /// No rate.
    #[error("`rate={0}`: write bytes a second, more than none, as 50M")]
    Rate(String),
    /// A word that is none of a tier's.
    #[error(
        "`{word}` is no word of a tier: write start=, stop=, order=, min-age=, window=, rate= or make-way{near}"
    )]
    Word {
        /// The word.
        word: String,
        /// The word that may have been meant.
        near: String,
    },
    /// A word that stands there twice.
    #[error("`{0}` stands twice in one tier: leave one out")]
    Twice(&'static str),
    /// Files would come back to where they were.
    #[error("files of the class {0} would come back to it: a tier above leads there")]
    Circle(Class),
}

fn parse_age(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let (_, seconds) = UNITS.iter().find(|(letter, _)| unit.chars().eq([*letter]))?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| number.parse::<u64>().ok()?.checked_mul(*seconds)).flatten().map(Duration::from_secs)
}

impl Tier {
    fn between(fast: Class, slow: Class) -> Self {
        let (start, stop, order) = (UsedShare(800), UsedShare(600), TierOrder::default());
        let (min_age, window, rate, make_way) = (Duration::ZERO, None, None, false);
        Self { fast, slow, start, stop, order, min_age, window, rate, make_way }
    }

    /// Applies the word after a `;`; returns its name.
    fn take_word(&mut self, word: &str) -> Result<&'static str, BadTier> {
        match word.split_once('=') {
            Some(("start", value)) => {
                self.start = value.parse()?;
                Ok("start=")
            }
            Some(("stop", value)) => {
                self.stop = value.parse()?;
                Ok("stop=")
            }
            Some(("order", value)) => {
                self.order = value.parse().map_err(|_| BadTier::Order(value.to_owned()))?;
                Ok("order=")
            }
            Some(("min-age", value)) => {
                self.min_age = parse_age(value).ok_or_else(|| BadTier::Age(value.to_owned()))?;
                Ok("min-age=")
            }
            Some(("window", value)) => {
                self.window = Some(value.parse()?);
                Ok("window=")
            }
            Some(("rate", value)) => {
                let rate = value.parse::<Size>().ok().filter(|rate| rate.0 > 0);
                self.rate = Some(rate.ok_or_else(|| BadTier::Rate(value.to_owned()))?);
                Ok("rate=")
            }
            None if word == "make-way" => {
                self.make_way = true;
                Ok("make-way")
            }
            _ => Err(BadTier::Word { word: word.to_owned(), near: suggestion(word, WORDS) }),
        }
    }
}

impl FromStr for Tier {
    type Err = BadTier;

    /// Reads one tier; between the classes `->` and an arrow are the same as `>`.
    fn from_str(text: &str) -> Result<Self, BadTier> {
        let mut words = text.split(';');
        let head = words.next().unwrap_or_default();
        let (fast, slow) = ["->", "\u{2192}", ">"]
            .iter()
            .find_map(|arrow| head.split_once(arrow))
            .ok_or_else(|| BadTier::Form(text.to_owned()))?;
        let class = |text: &str| {
            let text = text.trim();
            text.parse::<Class>().map_err(|error| BadTier::Class(text.to_owned(), error))
        };
        let (fast, slow) = (class(fast)?, class(slow)?);
        if fast == slow {
            return Err(BadTier::Same(fast));
        }
        let mut tier = Self::between(fast, slow);
        let mut seen = Vec::new();
        for word in words {
            let named = tier.take_word(word)?;
            if seen.contains(&named) {
                return Err(BadTier::Twice(named));
            }
            seen.push(named);
        }
        match (tier.start, tier.stop) {
            (start, stop) if stop >= start => Err(BadTier::StopAbove { start, stop }),
            _ => Ok(tier),
        }
    }
}

/// Prints the form that is read back as the same tier.
impl fmt::Display for Tier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fast, slow, start, stop, order, min_age, window, rate, make_way } = self;
        write!(out, "{fast}>{slow};start={start};stop={stop};order={order}")?;
        let seconds = min_age.as_secs();
        if let Some((letter, unit)) =
            UNITS.iter().find(|(_, unit)| seconds > 0 && seconds.is_multiple_of(*unit))
        {
            write!(out, ";min-age={}{letter}", seconds / unit)?;
        }
        if let Some(window) = window {
            write!(out, ";window={window}")?;
        }
        if let Some(rate) = rate {
            write!(out, ";rate={rate}")?;
        }
        if *make_way { out.write_str(";make-way") } else { Ok(()) }
    }
}

/// The tiers of a pool, one for each class that files leave: cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiers(Arc<[Arc<Tier>]>);

impl Tiers {
    /// These tiers and `tier`, in place of another one that files of its class leave by.
    ///
    /// # Errors
    /// Files would come back to where they were.
    pub fn with(&self, tier: Tier) -> Result<Self, BadTier> {
        let mut tiers = self.without(&tier.fast).0.to_vec();
        tiers.push(Arc::new(tier));
        tiers.sort_by(|one, other| one.fast.cmp(&other.fast));
        let tiers = Self(tiers.into());
        for tier in tiers.iter() {
            // Each class leads to one at most: a way that is longer than there are tiers comes back.
            let mut at = Some(tier);
            for _ in 0..tiers.0.len() {
                at = at.and_then(|at| tiers.of(&at.slow));
            }
            if at.is_some() {
                return Err(BadTier::Circle(tier.fast.clone()));
            }
        }
        Ok(tiers)
    }

    /// These tiers but the one that files of the class leave by.
    #[must_use]
    pub fn without(&self, fast: &Class) -> Self {
        Self(self.0.iter().filter(|tier| tier.fast != *fast).cloned().collect())
    }

    /// The tier that files of the class leave by.
    pub fn of(&self, fast: &Class) -> Option<&Arc<Tier>> {
        self.0.iter().find(|tier| tier.fast == *fast)
    }

    /// All of them, by class.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Tier>> {
        self.0.iter()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Tiers {
    type Err = BadTier;

    /// Reads a list; of two tiers for one class the later one holds.
    fn from_str(text: &str) -> Result<Self, BadTier> {
        let is_head =
            |part: &str| part.split(';').next().is_some_and(|head| head.contains(['>', '\u{2192}']));
        let mut parts: Vec<String> = Vec::new();
        for part in text.split(':') {
            match parts.last_mut() {
                Some(last) if !is_head(part) && last.contains(";window=") => {
                    last.push(':');
                    last.push_str(part);
                }
                _ => parts.push(part.to_owned()),
            }
        }
        let parts = parts.iter().filter(|part| !part.is_empty());
        parts.map(|part| part.parse::<Tier>()).try_fold(Self::default(), |tiers, tier| tiers.with(tier?))
    }
}

impl fmt::Display for Tiers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, tier) in self.0.iter().enumerate() {
            write!(out, "{}{tier}", if at == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;
    use crate::window::DayMinute;

    fn check(text: &str, expected: Expect) {
        let read = text.parse::<Tiers>();
        expected.assert_eq(&read.map_or_else(|error| error.to_string(), |tiers| tiers.to_string()));
    }

    #[test]
    fn tiers_are_read_with_their_windows() {
        check("fast>slow", expect!["fast>slow;start=80%;stop=60%;order=atime"]);
        check(
            "slow->cold;min-age=48h:fast\u{2192}slow;start=62.5%;stop=0%;order=size;window=22:30-5:00;min-age=90m",
            expect![
                "fast>slow;start=62.5%;stop=0%;order=size;min-age=90m;window=22:30-05:00:slow>cold;start=80%;stop=60%;order=atime;min-age=2d"
            ],
        );
        check(
            "a>b;window=01:00-06:00:b>c",
            expect![
                "a>b;start=80%;stop=60%;order=atime;window=01:00-06:00:b>c;start=80%;stop=60%;order=atime"
            ],
        );
        check(
            "a>b;window=01:00-06:00;rate=50M:b>c;make-way",
            expect![
                "a>b;start=80%;stop=60%;order=atime;window=01:00-06:00;rate=50M:b>c;start=80%;stop=60%;order=atime;make-way"
            ],
        );
        check("a>b:a>c", expect!["a>c;start=80%;stop=60%;order=atime"]);
        check("", expect![""]);
    }

    #[test]
    fn what_is_no_tier_is_refused_with_a_way_out() {
        check(
            "fast",
            expect![
                "`fast` is not a tier: write FAST>SLOW[;start=80%][;stop=60%][;order=atime|mtime|size][;min-age=7d][;window=01:00-06:00][;rate=50M][;make-way]"
            ],
        );
        check(
            "a>",
            expect!["``: not a class: write 1 to 32 letters, digits, `.`, `_` or `-`, as class=fast"],
        );
        check("a>a", expect!["`a>a`: a tier leads to another class"]);
        check(
            "a>b;stop=90%",
            expect!["stop=90% is not below start=80%: files move until the class is as full as stop"],
        );
        check("a>b;start=101%", expect!["`101%` is not a share from 0% to 100%: write 80% or 62.5%"]);
        check("a>b;order=ctime", expect!["`order=ctime`: write order=atime, mtime or size"]);
        check("a>b;min-age=7", expect!["`min-age=7`: write a number and a unit, as 7d, 12h, 90m or 30s"]);
        check(
            "a>b;minage=7d",
            expect![
                "`minage=7d` is no word of a tier: write start=, stop=, order=, min-age=, window=, rate= or make-way; did you mean \"min-age=\"?"
            ],
        );
        check("a>b;rate=0", expect!["`rate=0`: write bytes a second, more than none, as 50M"]);
        check("a>b;stop=1%;stop=2%", expect!["`stop=` stands twice in one tier: leave one out"]);
        check("a>b:b>c:c>a", expect!["files of the class a would come back to it: a tier above leads there"]);
    }

    proptest! {
        #[test]
        fn printed_tiers_are_read_back(
            rows in prop::collection::vec(("[a-z]{1,4}", "[A-Z]{1,4}", 0_u16..999, 1_u16..=1000, 0_u64..1 << 40, 0_usize..3, 0_u16..1440, 0_u16..1440), 0..4),
        ) {
            let tier = |(fast, slow, stop, more, age, order, from, to): (String, String, u16, u16, u64, usize, u16, u16)| Tier {
                fast: fast.parse().unwrap(),
                slow: slow.parse().unwrap(),
                start: UsedShare((stop + more).min(WHOLE)),
                stop: UsedShare(stop),
                order: [TierOrder::Atime, TierOrder::Mtime, TierOrder::Size][order],
                min_age: Duration::from_secs(age),
                window: Window::new(DayMinute::new(from), DayMinute::new(to)),
                rate: (age % 3 > 0).then_some(Size(age)),
                make_way: age % 2 == 1,
            };
            let tiers = rows.into_iter().map(tier).fold(Tiers::default(), |tiers, tier| tiers.with(tier).unwrap());
            prop_assert_eq!(tiers.to_string().parse::<Tiers>(), Ok(tiers));
        }

        #[test]
        fn no_text_ends_the_parser(text in "[a-c>:;=%0-9-]{0,40}") {
            let _read = text.parse::<Tiers>();
        }
    }
}
