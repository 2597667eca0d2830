//! Sizes and floors in the notation that users write: `4G`, `1.5T`, `5%`.

use std::fmt;
use std::str::FromStr;

const UNITS: [(char, u32); 5] = [('P', 50), ('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// A number of bytes. Units are powers of 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// Reason why a text is not a size or floor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with a unit.
    #[error(
        "`{0}` is not a size: write a number with a unit, as 4G, 1.5T or 100MiB (k, M, G, T, P: powers of 1024)"
    )]
    NotASize(String),
    /// Neither a size nor a percentage.
    #[error("`{0}` is not a floor: write a size, as 50G or 100M, or a percentage, as 5%")]
    NotAFloor(String),
    /// More than 64 bits.
    #[error("`{0}` is too large: the most is 16383P")]
    TooLarge(String),
    /// More than 100 %.
    #[error("`{0}` is too large: the most is 100%")]
    PastWhole(String),
}

impl Size {
    /// Rounded down, for display: `1.2 GiB`.
    pub fn approx(self) -> impl fmt::Display {
        fmt::from_fn(move |out| {
            let Some((letter, shift)) = UNITS.into_iter().find(|(_, shift)| 0 < self.0 >> shift) else {
                return write!(out, "{} B", self.0);
            };
            let tenths = (u128::from(self.0) * 10) >> shift;
            match (tenths / 10, tenths % 10) {
                (whole, 0) => write!(out, "{whole} {letter}iB"),
                (whole, tenth) => write!(out, "{whole}.{tenth} {letter}iB"),
            }
        })
    }
}

/// A decimal number times 10^`places`, saturating; `None` if it is not one or has more places.
fn scaled(text: &str, places: usize) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || places.max(1) < fraction.len() {
        return None;
    }
    // All digits, so the only possible error is overflow.
    let whole: u128 = whole.parse().unwrap_or(u128::MAX);
    let fraction: u128 = format!("{fraction:0<places$}").parse().unwrap_or(0);
    Some(whole.saturating_mul(10_u128.pow(u32::try_from(places).ok()?)).saturating_add(fraction))
}

/// Returns the power of two of a unit.
fn shift(unit: &str) -> Option<u32> {
    let mut letters = unit.chars();
    let Some(letter) = letters.next() else { return Some(0) };
    if unit == "B" {
        return Some(0);
    }
    let (_, shift) = UNITS.into_iter().find(|(known, _)| *known == letter.to_ascii_uppercase())?;
    matches!(letters.as_str(), "" | "B" | "iB").then_some(shift)
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let not_a_size = || SizeError::NotASize(text.to_owned());
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let shift = shift(unit).ok_or_else(not_a_size)?;
        if shift == 0 && number.contains('.') {
            return Err(not_a_size());
        }
        let thousandths = scaled(number, 3).ok_or_else(not_a_size)?;
        let bytes = thousandths.saturating_mul(1 << shift) / 1000;
        u64::try_from(bytes).map(Self).map_err(|_| SizeError::TooLarge(text.to_owned()))
    }
}

/// Exact, in the largest unit that divides it; the parser reads it back as the same value.
impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = UNITS.into_iter().find(|(_, shift)| self.0 != 0 && self.0.is_multiple_of(1 << shift));
        match exact {
            Some((letter, shift)) => write!(out, "{}{letter}", self.0 >> shift),
            None => write!(out, "{}", self.0),
        }
    }
}

/// Space that a branch keeps free: nothing new is placed on it below that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// A number of bytes.
    Bytes(u64),
    /// Thousandths of the branch's size.
    PerMille(u16),
}

impl Floor {
    /// No floor: a branch may be filled up.
    pub const NONE: Self = Self::Bytes(0);
    /// mhddfs's `mlimit` when none is given, and mergerfs's `minfreespace`.
    pub const MLIMIT_DEFAULT: Self = Self::Bytes(4 << 30);
    /// Smallest `mlimit` in bytes: mhddfs raises smaller ones to it.
    pub const MLIMIT_LEAST: u64 = 50 << 20;

    /// Bytes of the floor on a branch of `total` bytes.
    pub fn bytes_of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::PerMille(thousandths) => {
                let bytes = u128::from(total) * u128::from(thousandths) / 1000;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }

    /// Reads mhddfs's `mlimit`: a bare number up to 100 is a percentage, and sizes are at least 50 MiB.
    pub fn from_mlimit(text: &str) -> Result<Self, SizeError> {
        if let Ok(percent @ 0..=100) = text.parse::<u16>() {
            return Ok(Self::PerMille(percent * 10));
        }
        text.parse().map(|floor| match floor {
            Self::Bytes(bytes) => Self::Bytes(bytes.max(Self::MLIMIT_LEAST)),
            Self::PerMille(thousandths) => Self::PerMille(thousandths),
        })
    }
}

impl FromStr for Floor {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let not_a_floor = || SizeError::NotAFloor(text.to_owned());
        match text.strip_suffix('%') {
            Some(number) => match scaled(number, 1).ok_or_else(not_a_floor)? {
                thousandths @ 0..=1000 => {
                    u16::try_from(thousandths).map(Self::PerMille).map_err(|_| not_a_floor())
                }
                _ => Err(SizeError::PastWhole(text.to_owned())),
            },
            None => match text.parse::<Size>() {
                Ok(Size(bytes)) => Ok(Self::Bytes(bytes)),
                Err(SizeError::NotASize(_)) => Err(not_a_floor()),
                Err(other) => Err(other),
            },
        }
    }
}

/// Prints a form that the parser reads back as the same value.
impl fmt::Display for Floor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes(bytes) => Size(bytes).fmt(out),
            Self::PerMille(thousandths) => match (thousandths / 10, thousandths % 10) {
                (whole, 0) => write!(out, "{whole}%"),
                (whole, tenth) => write!(out, "{whole}.{tenth}%"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    fn check_size(text: &str, expected: Expect) {
        let shown = match text.parse::<Size>() {
            Ok(size) => format!("{} {size}", size.0),
            Err(error) => error.to_string(),
        };
        expected.assert_eq(&shown);
    }

    fn check_floor(text: &str, expected: Expect) {
        let shown = text.parse::<Floor>().map_or_else(|e| e.to_string(), |f| format!("{f:?} {f}"));
        expected.assert_eq(&shown);
    }

    fn check_mlimit(text: &str, expected: Expect) {
        expected.assert_eq(&Floor::from_mlimit(text).map_or_else(|e| e.to_string(), |f| f.to_string()));
    }

    #[test]
    fn sizes() {
        check_size("4G", expect!["4294967296 4G"]);
        check_size("100MiB", expect!["104857600 100M"]);
        check_size("7kB", expect!["7168 7K"]);
        check_size("1.5T", expect!["1649267441664 1536G"]);
        check_size("0", expect!["0 0"]);
        check_size("512B", expect!["512 512"]);
        check_size("16383P", expect!["18445618173802708992 16383P"]);
        check_size("18446744073709551615", expect!["18446744073709551615 18446744073709551615"]);
    }

    #[test]
    fn sizes_refused() {
        check_size("16384P", expect!["`16384P` is too large: the most is 16383P"]);
        check_size(
            "99999999999999999999999999999999999999999999",
            expect!["`99999999999999999999999999999999999999999999` is too large: the most is 16383P"],
        );
        check_size(
            "1.5",
            expect![
                "`1.5` is not a size: write a number with a unit, as 4G, 1.5T or 100MiB (k, M, G, T, P: powers of 1024)"
            ],
        );
        check_size(
            "1.2345G",
            expect![
                "`1.2345G` is not a size: write a number with a unit, as 4G, 1.5T or 100MiB (k, M, G, T, P: powers of 1024)"
            ],
        );
        check_size(
            "4 G",
            expect![
                "`4 G` is not a size: write a number with a unit, as 4G, 1.5T or 100MiB (k, M, G, T, P: powers of 1024)"
            ],
        );
        check_size(
            "-1",
            expect![
                "`-1` is not a size: write a number with a unit, as 4G, 1.5T or 100MiB (k, M, G, T, P: powers of 1024)"
            ],
        );
        check_size(
            "G",
            expect![
                "`G` is not a size: write a number with a unit, as 4G, 1.5T or 100MiB (k, M, G, T, P: powers of 1024)"
            ],
        );
        check_size(
            "",
            expect![
                "`` is not a size: write a number with a unit, as 4G, 1.5T or 100MiB (k, M, G, T, P: powers of 1024)"
            ],
        );
        check_size(
            ".5G",
            expect![
                "`.5G` is not a size: write a number with a unit, as 4G, 1.5T or 100MiB (k, M, G, T, P: powers of 1024)"
            ],
        );
        check_size(
            "4X",
            expect![
                "`4X` is not a size: write a number with a unit, as 4G, 1.5T or 100MiB (k, M, G, T, P: powers of 1024)"
            ],
        );
        check_size(
            "4iB",
            expect![
                "`4iB` is not a size: write a number with a unit, as 4G, 1.5T or 100MiB (k, M, G, T, P: powers of 1024)"
            ],
        );
    }

    #[test]
    fn floors() {
        check_floor("50G", expect!["Bytes(53687091200) 50G"]);
        check_floor("5%", expect!["PerMille(50) 5%"]);
        check_floor("12.5%", expect!["PerMille(125) 12.5%"]);
        check_floor("100%", expect!["PerMille(1000) 100%"]);
        check_floor("100.1%", expect!["`100.1%` is too large: the most is 100%"]);
        check_floor(
            "1.25%",
            expect!["`1.25%` is not a floor: write a size, as 50G or 100M, or a percentage, as 5%"],
        );
        check_floor("%", expect!["`%` is not a floor: write a size, as 50G or 100M, or a percentage, as 5%"]);
        check_floor(
            "lots",
            expect!["`lots` is not a floor: write a size, as 50G or 100M, or a percentage, as 5%"],
        );
        check_floor("99999P", expect!["`99999P` is too large: the most is 16383P"]);
    }

    #[test]
    fn mlimit_has_the_meaning_mhddfs_gave_it() {
        check_mlimit("4G", expect!["4G"]);
        check_mlimit("20", expect!["20%"]);
        check_mlimit("100", expect!["100%"]);
        check_mlimit("101", expect!["50M"]);
        check_mlimit("10M", expect!["50M"]);
        check_mlimit("100m", expect!["100M"]);
        check_mlimit("7%", expect!["7%"]);
        check_mlimit("1T", expect!["1T"]);
        check_mlimit(
            "some",
            expect!["`some` is not a floor: write a size, as 50G or 100M, or a percentage, as 5%"],
        );
    }

    #[test]
    fn sizes_for_people_are_rounded_down() {
        let shown =
            [0, 1023, 1024, 1535, 1_288_490_188, 4 << 30, u64::MAX].map(|b| Size(b).approx().to_string());
        expect![[r#"
            [
                "0 B",
                "1023 B",
                "1 KiB",
                "1.4 KiB",
                "1.1 GiB",
                "4 GiB",
                "16383.9 PiB",
            ]
        "#]]
        .assert_debug_eq(&shown);
    }

    #[test]
    fn a_percentage_is_of_the_whole() {
        assert_eq!(Floor::PerMille(125).bytes_of(8000), 1000);
        assert_eq!(Floor::PerMille(1000).bytes_of(u64::MAX), u64::MAX);
        assert_eq!(Floor::Bytes(7).bytes_of(0), 7);
    }

    proptest! {
        #[test]
        fn printed_values_are_read_back(bytes: u64, shift in 0_u32..60, thousandths in 0_u16..=1000) {
            let size = Size(bytes >> shift << shift);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
            for floor in [Floor::Bytes(size.0), Floor::PerMille(thousandths)] {
                prop_assert_eq!(floor.to_string().parse(), Ok(floor));
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,12}|[0-9.]{0,40}[kKmMgGtTpP%]?(iB|B)?") {
            let _ = text.parse::<Size>();
            let _ = text.parse::<Floor>();
            let _ = Floor::from_mlimit(&text);
        }
    }
}
