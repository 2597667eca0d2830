//! Arguments of the bench.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{control, copy, data, endurance, metadata, nfs, relocate, trees};

/// A group of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Metadata,
    Busy,
    Trees,
    Distance,
    Data,
    Memory,
    Startup,
    Breadth,
    Relocate,
    Control,
    Frozen,
    Copy,
    Groups,
    Export,
    Nfs,
    Index,
    Slow,
    Breakdown,
    Endurance,
    Standstill,
    Waiting,
}

const PARTS: &[(&str, Part)] = &[
    ("meta", Part::Metadata),
    ("busy", Part::Busy),
    ("trees", Part::Trees),
    ("distance", Part::Distance),
    ("data", Part::Data),
    ("memory", Part::Memory),
    ("startup", Part::Startup),
    ("breadth", Part::Breadth),
    ("relocate", Part::Relocate),
    ("control", Part::Control),
    ("frozen", Part::Frozen),
    ("copy", Part::Copy),
    ("groups", Part::Groups),
    ("export", Part::Export),
    ("nfs", Part::Nfs),
    ("index", Part::Index),
    ("slow", Part::Slow),
    ("breakdown", Part::Breakdown),
    ("endurance", Part::Endurance),
    ("standstill", Part::Standstill),
    ("waiting", Part::Waiting),
];

/// How long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Under a minute: a look.
    Quick,
    /// Some minutes: figures to quote.
    Full,
}

/// The command line.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) pace: Pace,
    rounds: Option<usize>,
    only: Vec<Part>,
}

impl Arguments {
    /// From the words behind `--`; cargo adds `--bench`.
    pub(crate) fn read(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut read = Self { pace: Pace::Quick, rounds: None, only: Vec::new() };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--bench" => {}
                "--quick" => read.pace = Pace::Quick,
                "--full" => read.pace = Pace::Full,
                "--rounds" => {
                    let count = words.next().context("--rounds wants a number")?;
                    read.rounds = Some(count.parse().with_context(|| format!("--rounds {count}"))?);
                }
                "--only" => {
                    let named = words.next().context("--only wants a group of figures")?;
                    let part = PARTS.iter().find(|(name, _)| *name == named);
                    read.only.push(part.with_context(|| format!("no figures are called {named}"))?.1);
                }
                other => bail!("{other} is not known; there are --quick, --full, --rounds N, --only PART"),
            }
        }
        Ok(read)
    }

    /// Whether this group is asked for.
    pub(crate) fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Rounds of each figure.
    pub(crate) fn rounds(&self) -> usize {
        let usual = match self.pace {
            Pace::Quick => 3,
            Pace::Full => 5,
        };
        self.rounds.unwrap_or(usual).max(1)
    }

    /// How much of each metadata operation is done.
    pub(crate) fn metadata(&self) -> metadata::MetadataAmount {
        let (names, listed) = match self.pace {
            Pace::Quick => (500, 2_000),
            Pace::Full => (5_000, 10_000),
        };
        metadata::MetadataAmount { rounds: self.rounds(), names, listed }
    }

    /// How large the trees are that real programs work in.
    pub(crate) fn trees(&self) -> trees::TreesAmount {
        let (files, listed) = match self.pace {
            Pace::Quick => (500, 2_000),
            Pace::Full => (20_000, 10_000),
        };
        trees::TreesAmount { rounds: self.rounds(), files, listed }
    }

    /// How much data is moved.
    pub(crate) fn data(&self) -> data::DataAmount {
        let (mib, pages) = match self.pace {
            Pace::Quick => (64, 4_000),
            Pace::Full => (256, 40_000),
        };
        data::DataAmount { rounds: self.rounds(), mib, pages }
    }

    /// How much is done while a pool is asked.
    pub(crate) fn control(&self) -> control::ControlAmount {
        control::ControlAmount { metadata: self.metadata(), data: self.data(), statuses: 8 * self.rounds() }
    }

    /// How many inodes are held.
    pub(crate) fn inodes(&self) -> usize {
        match self.pace {
            Pace::Quick => 20_000,
            Pace::Full => 200_000,
        }
    }

    /// How much NFS clients do.
    pub(crate) fn nfs(&self) -> nfs::NfsAmount {
        let (mib, names) = match self.pace {
            Pace::Quick => (64, 300),
            Pace::Full => (256, 3_000),
        };
        nfs::NfsAmount { rounds: self.rounds(), mib, names }
    }

    /// How many moved files the index has.
    pub(crate) fn indexed(&self) -> usize {
        match self.pace {
            Pace::Quick => 20_000,
            Pace::Full => 1_000_000,
        }
    }

    /// How much is copied.
    pub(crate) fn copied(&self) -> copy::CopyAmount {
        let (files, mib) = match self.pace {
            Pace::Quick => (2_000, 128),
            Pace::Full => (20_000, 1024),
        };
        copy::CopyAmount { rounds: self.rounds(), files, mib }
    }

    /// Rounds, and the size in MiB of each file that moves meanwhile.
    pub(crate) fn standstill(&self) -> (usize, u64) {
        match self.pace {
            Pace::Quick => (1, 512),
            Pace::Full => (self.rounds.unwrap_or(1), 2048),
        }
    }

    /// How long the mixed work goes on. An hour is for those who name it.
    pub(crate) fn endurance(&self) -> endurance::EnduranceAmount {
        let (lasts, every_ms) = match self.pace {
            Pace::Full if self.only.contains(&Part::Endurance) => (3600, 5000),
            _ => (12, 200),
        };
        endurance::EnduranceAmount {
            lasts: Duration::from_secs(lasts),
            every: Duration::from_millis(every_ms),
        }
    }

    /// How large the file is that moves.
    pub(crate) fn relocated(&self) -> relocate::RelocateAmount {
        let mib = match self.pace {
            Pace::Quick => 512,
            Pace::Full => 2048,
        };
        relocate::RelocateAmount { rounds: self.rounds(), mib }
    }
}
