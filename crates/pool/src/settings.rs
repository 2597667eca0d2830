//! The choices of a pool's administrator, each with its word: the options, `fsstack get` and the log say the same.

use strum::{Display, EnumString, VariantNames};

pub use strum::VariantNames as Words;

/// How bytes reach a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum WritePath {
    /// Decided at each file's first open: passthrough where kernel, privilege, branch and file allow it.
    #[default]
    Auto,
    /// The kernel reads and writes the branch's file itself, or there is no mount.
    Passthrough,
    /// The daemon reads and writes.
    Stacked,
}

/// Whether stacked files use the page cache of the FUSE layer, besides the branch's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum PageCache {
    /// No: requests go straight to the branch, whose own page cache is below.
    #[default]
    Off,
    /// Yes, writes go through.
    On,
    /// Yes, and writes are gathered; the kernel then has no passthrough.
    WriteBack,
}

/// Space that `statfs` calls available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum StatfsMode {
    /// All that is free on branches that can be written.
    #[default]
    #[strum(to_string = "all", serialize = "base")]
    All,
    /// Only what is free above the floors of branches that take new files.
    AsPlaced,
}

/// Where file locks are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Locks {
    /// In the kernel, for this mount.
    #[default]
    Local,
    /// On the branch's file too, where programs outside the pool see them.
    Branch,
}

/// Check before the old copy of a moved file is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Verify {
    /// Its size.
    #[default]
    Size,
    /// Its content too, read again from the new branch.
    #[strum(to_string = "checksum")]
    Content,
}

/// Answers while a branch is out of reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Degraded {
    /// An I/O error for names that may be on it; no such name is answered as missing.
    #[default]
    Strict,
    /// Reachable objects, as if there were no more. Nothing is made under a name that might be out of reach.
    Read,
}

/// Whether branches are changed out of band, and how that is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum OutOfBand {
    /// The kernel sends an event for each change.
    Watch,
    /// Cached names and attributes expire.
    #[default]
    Timeout,
    /// They are not changed.
    Never,
}

/// Handling of a system call outside the daemon's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Seccomp {
    /// It fails.
    #[default]
    On,
    /// It ends the daemon.
    Kill,
    /// It is made, and the kernel logs it.
    Log,
    /// There is no filter.
    Off,
}

/// Demands on a branch's directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Require {
    /// Same as when a pool last used it: a mount point must be one again.
    #[default]
    Same,
    /// Any directory.
    Directory,
    /// The root of a mount.
    MountPoint,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Display;
    use std::str::FromStr;

    fn check<T: FromStr + Display + Words>(expected: &[&str]) {
        assert_eq!(T::VARIANTS, expected);
        for word in expected {
            let value: T = word.parse().unwrap_or_else(|_| panic!("{word} is a word"));
            assert_eq!(value.to_string(), *word);
        }
        assert!("nonsense".parse::<T>().is_err());
    }

    #[test]
    fn each_word_is_read_and_printed() {
        check::<WritePath>(&["auto", "passthrough", "stacked"]);
        check::<PageCache>(&["off", "on", "writeback"]);
        check::<StatfsMode>(&["all", "as-placed"]);
        check::<Locks>(&["local", "branch"]);
        check::<Verify>(&["size", "checksum"]);
        check::<Degraded>(&["strict", "read"]);
        check::<OutOfBand>(&["watch", "timeout", "never"]);
        check::<Seccomp>(&["on", "kill", "log", "off"]);
        check::<Require>(&["same", "directory", "mountpoint"]);
        assert_eq!("base".parse(), Ok(StatfsMode::All));
    }
}
