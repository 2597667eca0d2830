//! A branch as written in the pool's source: path, mode and floor.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::class::Class;
use crate::printable::Printable;
use crate::size::Floor;

/// Operations that a branch permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BranchMode {
    /// `RW`: anything.
    #[default]
    ReadWrite,
    /// `NC`, "no create": files are changed and removed, but none is placed here.
    NoCreate,
    /// `RO`: nothing is changed.
    ReadOnly,
}

/// A word that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a branch mode: write RW, NC (no create) or RO")]
pub struct UnknownMode(pub String);

impl BranchMode {
    /// `RW`, `NC` or `RO`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadWrite => "RW",
            Self::NoCreate => "NC",
            Self::ReadOnly => "RO",
        }
    }
}

impl FromStr for BranchMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        [Self::ReadWrite, Self::NoCreate, Self::ReadOnly]
            .into_iter()
            .find(|mode| mode.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

impl fmt::Display for BranchMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A branch, or several if its path is a pattern. `None` leaves a setting to the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchSpec {
    /// The directory, or a pattern if [`BranchSpec::has_glob`].
    pub path: PathBuf,
    /// Whether `path` is a pattern in the notation of the `glob` crate, not a directory.
    pub has_glob: bool,
    /// Operations that it permits.
    pub mode: BranchMode,
    /// Space that it keeps free.
    pub floor: Option<Floor>,
    /// Number of inodes that it keeps free.
    pub min_inodes: Option<u64>,
    /// Whether file systems mounted inside the branch are part of it.
    pub cross_mounts: bool,
    /// The class by which placement rules name it.
    pub class: Option<Class>,
}

impl BranchSpec {
    /// A plain directory with every setting at its default.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            has_glob: false,
            mode: BranchMode::default(),
            floor: None,
            min_inodes: None,
            cross_mounts: false,
            class: None,
        }
    }

    /// The pattern to expand, in the notation of the `glob` crate: escaped characters stand as `[*]`.
    pub fn pattern(&self) -> Option<&str> {
        self.path.to_str().filter(|_| self.has_glob)
    }

    /// These settings for `path`, one of the directories that match the pattern.
    #[must_use]
    pub fn at(&self, path: PathBuf) -> Self {
        Self { path, has_glob: false, ..self.clone() }
    }
}

/// Prints the grammar of [`parse_source`](crate::parse_source), which reads it back as the same value.
impl fmt::Display for BranchSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `#` is escaped because a path may begin with a prefix that is stripped from a source.
        let special: &[char] = match self.has_glob {
            true => &['\\', ':', ',', '=', '#'],
            false => &['\\', ':', ',', '=', '#', '*', '?', '['],
        };
        Printable::path(&self.path).fmt_escaping(special, out)?;
        write!(out, "={}", self.mode)?;
        if let Some(floor) = self.floor {
            write!(out, ",{floor}")?;
        }
        if let Some(least) = self.min_inodes {
            write!(out, ",min-inodes={least}")?;
        }
        if self.cross_mounts {
            out.write_str(",cross-mounts")?;
        }
        if let Some(class) = &self.class {
            write!(out, ",class={class}")?;
        }
        Ok(())
    }
}
