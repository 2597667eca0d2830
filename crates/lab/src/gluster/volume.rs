//! Volume types by their names: `dt8`, `dp8rd2`, `dt4rp2`, `dt2dp4rd1`, `rp3`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::BRICKS;
use crate::network::SERVER;

/// Kind of a volume, as in its name.
///
/// `dtN` distributes files over N sets, `rpN` keeps a file on N bricks, `dpNrdK` spreads it over N bricks
/// of which K may be lost. A volume of type `dt2dp4rd1` has eight bricks: two sets of four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Volume {
    sets: u8,
    set: Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Set {
    Brick,
    Replica(u8),
    Disperse { bricks: u8, redundancy: u8 },
}

/// A name that stands for no volume type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is no volume type: dtN, rpN, dpNrdK (N more than twice K), or dtN before one of those, as in dt4rp2"
)]
pub struct NoVolume(String);

impl Volume {
    /// The types that the published experiments use.
    pub const PUBLISHED: [Self; 6] = [
        Self { sets: 8, set: Set::Brick },
        Self { sets: 1, set: Set::Disperse { bricks: 8, redundancy: 2 } },
        Self { sets: 4, set: Set::Replica(2) },
        Self { sets: 2, set: Set::Disperse { bricks: 4, redundancy: 1 } },
        Self { sets: 1, set: Set::Replica(2) },
        Self { sets: 1, set: Set::Replica(3) },
    ];

    /// How many bricks it has.
    #[must_use]
    pub fn bricks(self) -> usize {
        let each = match self.set {
            Set::Brick => 1,
            Set::Replica(bricks) | Set::Disperse { bricks, .. } => bricks,
        };
        usize::from(self.sets) * usize::from(each)
    }

    /// True if a file survives the loss of any one brick.
    #[must_use]
    pub fn is_redundant(self) -> bool {
        0 < self.bears()
    }

    /// Number of arbitrary bricks that may be lost before a file is.
    #[must_use]
    pub fn bears(self) -> usize {
        usize::from(match self.set {
            Set::Brick => 0,
            Set::Replica(bricks) => bricks - 1,
            Set::Disperse { redundancy, .. } => redundancy,
        })
    }

    /// Bytes on all bricks together for `bytes` of file content.
    #[must_use]
    pub fn on_bricks(self, bytes: u64) -> u64 {
        let (of, usable) = match self.set {
            Set::Brick => (1, 1),
            Set::Replica(bricks) => (bricks, 1),
            Set::Disperse { bricks, redundancy } => (bricks, bricks - redundancy),
        };
        bytes.saturating_mul(of.into()).div_ceil(usable.into())
    }

    /// Arguments after `gluster volume create`.
    pub(super) fn create_arguments(self) -> Vec<String> {
        let mut words = vec![self.to_string()];
        match self.set {
            Set::Brick => {}
            Set::Replica(bricks) => words.extend(["replica".into(), bricks.to_string()]),
            Set::Disperse { bricks, redundancy } => words.extend([
                "disperse".into(),
                bricks.to_string(),
                "redundancy".into(),
                redundancy.to_string(),
            ]),
        }
        words.extend((1..=self.bricks()).map(|n| format!("{SERVER}:{}", self.brick(n).display())));
        words.push("force".into());
        words
    }

    /// Path of its n-th brick in the server, counted from 1.
    pub(super) fn brick(self, n: usize) -> PathBuf {
        Path::new(BRICKS).join(format!("b{n}")).join(self.to_string())
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.sets, self.set) {
            (1, Set::Brick) => f.write_str("dt1"),
            (1, _) => Ok(()),
            (sets, _) => write!(f, "dt{sets}"),
        }?;
        match self.set {
            Set::Brick => Ok(()),
            Set::Replica(bricks) => write!(f, "rp{bricks}"),
            Set::Disperse { bricks, redundancy } => write!(f, "dp{bricks}rd{redundancy}"),
        }
    }
}

impl FromStr for Volume {
    type Err = NoVolume;

    fn from_str(name: &str) -> Result<Self, NoVolume> {
        parse(name).ok_or_else(|| NoVolume(name.to_owned()))
    }
}

fn parse(name: &str) -> Option<Volume> {
    let (sets, rest) = match name.strip_prefix("dt") {
        Some(rest) => number(rest)?,
        None => (1, name),
    };
    let set = if let Some(rest) = rest.strip_prefix("rp") {
        let (bricks, rest) = number(rest)?;
        (rest.is_empty() && 2 <= bricks).then_some(Set::Replica(bricks))?
    } else if let Some(rest) = rest.strip_prefix("dp") {
        let (bricks, rest) = number(rest)?;
        let (redundancy, rest) = number(rest.strip_prefix("rd")?)?;
        (rest.is_empty() && redundancy < bricks - redundancy.min(bricks))
            .then_some(Set::Disperse { bricks, redundancy })?
    } else {
        (rest.is_empty() && !name.is_empty()).then_some(Set::Brick)?
    };
    Some(Volume { sets, set })
}

/// Parses a number from 1 to 99, and returns the rest.
fn number(text: &str) -> Option<(u8, &str)> {
    let (digits, rest) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let number = digits.parse().ok().filter(|n| (1..100).contains(n) && !digits.starts_with('0'))?;
    Some((number, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_alike() {
        for (name, bricks, bears) in [
            ("dt8", 8, 0),
            ("dp8rd2", 8, 2),
            ("dt4rp2", 8, 1),
            ("dt2dp4rd1", 8, 1),
            ("rp2", 2, 1),
            ("rp3", 3, 2),
        ] {
            let volume: Volume = name.parse().unwrap();
            let answer = (volume.to_string(), volume.bricks(), volume.bears());
            assert_eq!(answer, (name.to_owned(), bricks, bears));
        }
        assert!(Volume::PUBLISHED.iter().all(|v| v.to_string().parse() == Ok(*v)));
    }

    #[test]
    fn an_unknown_type_is_refused_by_name() {
        for name in
            ["", "dt", "dt0", "dt08", "rp1", "dp4", "dp4rd2", "dp4rd9", "dt8x", "rp2dt4", "xfs", "dt100"]
        {
            let refused = name.parse::<Volume>().unwrap_err();
            assert!(refused.to_string().starts_with(&format!("{name} is no volume type")), "{refused}");
        }
    }

    #[test]
    fn a_volume_is_created_by_its_type() {
        let words = "dt2rp2".parse::<Volume>().unwrap().create_arguments().join(" ");
        let bricks = (1..=4).map(|n| format!("10.77.7.2:/bricks/b{n}/dt2rp2")).collect::<Vec<_>>().join(" ");
        assert_eq!(words, format!("dt2rp2 replica 2 {bricks} force"));
    }
}
