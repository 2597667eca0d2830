//! Arguments of the bench.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{
    control, copy, data, diagnosis, endurance, jobs, listings, many, metadata, nfs, programs, relocate,
    trees, upgrade,
};

/// A group of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Metadata,
    Busy,
    Trees,
    Listings,
    Programs,
    Distance,
    Data,
    Memory,
    Many,
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
    Jobs,
    JobCosts,
    Rules,
    Catalogue,
    Diagnosis,
    Slow,
    Breakdown,
    Endurance,
    Standstill,
    Waiting,
    Upgrade,
}

const PARTS: &[(&str, Part)] = &[
    ("meta", Part::Metadata),
    ("busy", Part::Busy),
    ("trees", Part::Trees),
    ("listings", Part::Listings),
    ("programs", Part::Programs),
    ("distance", Part::Distance),
    ("data", Part::Data),
    ("memory", Part::Memory),
    ("many", Part::Many),
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
    ("jobs", Part::Jobs),
    ("job-costs", Part::JobCosts),
    ("rules", Part::Rules),
    ("catalogue", Part::Catalogue),
    ("diagnosis", Part::Diagnosis),
    ("slow", Part::Slow),
    ("breakdown", Part::Breakdown),
    ("endurance", Part::Endurance),
    ("standstill", Part::Standstill),
    ("waiting", Part::Waiting),
    ("upgrade", Part::Upgrade),
];

/// Duration of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Under a minute, for a first look.
    Quick,
    /// Some minutes, for figures to quote.
    Full,
}

/// The command line.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) pace: Pace,
    rounds: Option<usize>,
    minutes: Option<u64>,
    only: Vec<Part>,
}

impl Arguments {
    /// Parses the words after `--`; cargo adds `--bench`.
    pub(crate) fn read(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut read = Self { pace: Pace::Quick, rounds: None, minutes: None, only: Vec::new() };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--bench" => {}
                "--quick" => read.pace = Pace::Quick,
                "--full" => read.pace = Pace::Full,
                "--rounds" => {
                    let count = words.next().context("--rounds wants a number")?;
                    read.rounds = Some(count.parse().with_context(|| format!("--rounds {count}"))?);
                }
                "--minutes" => {
                    let count = words.next().context("--minutes wants a number")?;
                    read.minutes = Some(count.parse().with_context(|| format!("--minutes {count}"))?);
                }
                "--only" => {
                    let named = words.next().context("--only wants a group of figures")?;
                    let part = PARTS.iter().find(|(name, _)| *name == named);
                    read.only.push(part.with_context(|| format!("no figures are called {named}"))?.1);
                }
                other => bail!(
                    "{other} is not known; there are --quick, --full, --rounds N, --minutes N, --only PART"
                ),
            }
        }
        Ok(read)
    }

    /// True if this group is requested.
    pub(crate) fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Number of rounds of each figure.
    pub(crate) fn rounds(&self) -> usize {
        let usual = match self.pace {
            Pace::Quick => 3,
            Pace::Full => 5,
        };
        self.rounds.unwrap_or(usual).max(1)
    }

    /// Amount of each metadata operation.
    pub(crate) fn metadata(&self) -> metadata::MetadataAmount {
        let (names, listed) = match self.pace {
            Pace::Quick => (500, 2_000),
            Pace::Full => (5_000, 10_000),
        };
        metadata::MetadataAmount { rounds: self.rounds(), names, listed }
    }

    /// Sizes of the listed directories.
    pub(crate) fn listings(&self) -> listings::ListingsAmount {
        let (warm, cold) = match self.pace {
            Pace::Quick => (2_000, 1_000),
            Pace::Full => (10_000, 100_000),
        };
        listings::ListingsAmount { rounds: self.rounds(), warm, cold }
    }

    /// Amount of work of many callers.
    pub(crate) fn many(&self) -> many::ManyAmount {
        let names = match self.pace {
            Pace::Quick => 2_000,
            Pace::Full => 20_000,
        };
        many::ManyAmount { rounds: self.rounds(), names }
    }

    /// Size of the trees for real programs.
    pub(crate) fn trees(&self) -> trees::TreesAmount {
        let (files, listed) = match self.pace {
            Pace::Quick => (500, 2_000),
            Pace::Full => (20_000, 10_000),
        };
        trees::TreesAmount { rounds: self.rounds(), files, listed }
    }

    /// Size of the tree that programs work on.
    pub(crate) fn programs(&self) -> programs::ProgramsAmount {
        let files = match self.pace {
            Pace::Quick => 500,
            Pace::Full => 8_000,
        };
        programs::ProgramsAmount { rounds: self.rounds(), files }
    }

    /// Amount of data.
    pub(crate) fn data(&self) -> data::DataAmount {
        let (mib, pages) = match self.pace {
            Pace::Quick => (64, 4_000),
            Pace::Full => (256, 40_000),
        };
        data::DataAmount { rounds: self.rounds(), mib, pages }
    }

    /// Amount of work while a pool is monitored.
    pub(crate) fn control(&self) -> control::ControlAmount {
        control::ControlAmount { metadata: self.metadata(), data: self.data(), statuses: 8 * self.rounds() }
    }

    /// Number of inodes.
    pub(crate) fn inodes(&self) -> usize {
        match self.pace {
            Pace::Quick => 20_000,
            Pace::Full => 200_000,
        }
    }

    /// Amount of work of NFS clients.
    pub(crate) fn nfs(&self) -> nfs::NfsAmount {
        let (mib, names) = match self.pace {
            Pace::Quick => (64, 300),
            Pace::Full => (256, 3_000),
        };
        nfs::NfsAmount { rounds: self.rounds(), mib, names }
    }

    /// Number of moved files in the index.
    pub(crate) fn indexed(&self) -> usize {
        match self.pace {
            Pace::Quick => 20_000,
            Pace::Full => 1_000_000,
        }
    }

    /// Amount of copied data.
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
            Pace::Full => (self.rounds.unwrap_or(3), 2048),
        }
    }

    /// Duration of the mixed work: that of `--minutes`, or an hour, only if the group is named.
    pub(crate) fn endurance(&self) -> endurance::EnduranceAmount {
        let (lasts, every_ms) = match self.pace {
            Pace::Full if self.only.contains(&Part::Endurance) => (60 * self.minutes.unwrap_or(60), 5000),
            _ => (12, 200),
        };
        endurance::EnduranceAmount {
            lasts: Duration::from_secs(lasts),
            every: Duration::from_millis(every_ms),
        }
    }

    /// Numbers of files that are open while the daemon is replaced.
    pub(crate) fn upgraded(&self) -> upgrade::UpgradeAmount {
        // Two deaths in all need no pause: three within a minute end the pool. More than five would take minutes for each number.
        let (open, kills): (&[usize], _) = match self.pace {
            Pace::Quick => (&[0, 1_000], 1),
            Pace::Full => (&[0, 1_000, 10_000, 100_000], self.rounds().min(5)),
        };
        upgrade::UpgradeAmount { metadata: self.metadata(), open, kills }
    }

    /// Number of checked files, and operations while a pool is watched.
    pub(crate) fn diagnosed(&self) -> diagnosis::DiagnosisAmount {
        let files = match self.pace {
            Pace::Quick => 20_000,
            Pace::Full => 1_000_000,
        };
        diagnosis::DiagnosisAmount { metadata: self.metadata(), files }
    }

    /// Rounds and files of a drain.
    pub(crate) fn drained(&self) -> jobs::JobsAmount {
        let (large, small, planned) = match self.pace {
            Pace::Quick => (2, 5_000, 20_000),
            Pace::Full => (8, 100_000, 1_000_000),
        };
        jobs::JobsAmount { rounds: self.rounds(), large, small, planned }
    }

    /// Size of the file that moves.
    pub(crate) fn relocated(&self) -> relocate::RelocateAmount {
        let mib = match self.pace {
            Pace::Quick => 512,
            Pace::Full => 2048,
        };
        relocate::RelocateAmount { rounds: self.rounds(), mib }
    }
}
