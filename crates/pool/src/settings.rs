//! A pool's settings that are a choice of words. Options, `fsstack get` and the log use the same words.

use std::ffi::CStr;

use strum::{Display, EnumString, VariantNames};

pub use strum::VariantNames as Words;

/// I/O mode: how bytes reach a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum WritePath {
    /// Passthrough where kernel, privilege, branch and file allow it, decided at each file's first open.
    #[default]
    Auto,
    /// The kernel reads and writes the branch's file itself; if it cannot, mounting fails.
    Passthrough,
    /// The daemon reads and writes.
    Stacked,
}

/// Whether stacked files use the page cache of the FUSE layer in addition to the branch's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum PageCache {
    /// No: requests go straight to the branch, which has its own page cache.
    #[default]
    Off,
    /// Yes, write-through.
    On,
    /// Yes, with write-back; the kernel then has no passthrough.
    WriteBack,
}

/// Space that `statfs` reports as available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum StatfsMode {
    /// All free space.
    #[default]
    #[strum(to_string = "all", serialize = "base")]
    All,
    /// Free space of branches that are not NC.
    IgnoreNc,
    /// Free space of branches that are neither NC nor RO.
    IgnoreRo,
    /// Only free space above the floors of branches that take new files.
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

/// Whether files have extended attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Xattrs {
    /// Those that the branch keeps, and the pool's own.
    #[default]
    #[strum(to_string = "on", serialize = "passthrough")]
    On,
    /// None: after the first refusal the kernel asks for no attribute again.
    #[strum(to_string = "off", serialize = "noattr", serialize = "nosys")]
    Off,
}

/// mergerfs's control file in the pool's root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum ControlFile {
    /// Its keys can be read, and set by the operator.
    #[default]
    On,
    /// Its keys can be read.
    Read,
    /// There is none: the name is one like any other.
    Off,
}

impl ControlFile {
    /// Its name in the root.
    pub const NAME: &CStr = c".mergerfs";

    /// Whether `name` in the root is that of the control file.
    pub fn has(self, name: &CStr) -> bool {
        self != Self::Off && name == Self::NAME
    }
}

/// Check before a moved file's old copy is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Verify {
    /// Size only.
    #[default]
    Size,
    /// Content too, read back from the new branch.
    #[strum(to_string = "checksum")]
    Content,
}

/// Replies while a branch is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Degraded {
    /// EIO for names that may be on it; no such name is reported as missing.
    #[default]
    Strict,
    /// Reachable objects, as if there were no others. A name that the unreachable branch may hold cannot be created.
    Read,
    /// Names and attributes of unreachable objects from the catalogue; all else about them is EIO.
    Catalogue,
}

/// Whether branches change out of band, and how that is noticed.
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

/// Consequence of a system call outside the daemon's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Seccomp {
    /// It fails with ENOSYS.
    #[default]
    On,
    /// It kills the daemon.
    Kill,
    /// It is made, and the kernel logs it.
    Log,
    /// There is no filter.
    Off,
}

/// Consequence of the daemon's death for the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Restart {
    /// It ends.
    #[default]
    Off,
    /// A keeper starts the daemon again.
    Keep,
    /// `Keep` where that is possible beside the other options and on this kernel, else `Off`.
    Auto,
}

/// Requirement on a branch's directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Require {
    /// Same kind as when a pool last used it: a mount point must be one again.
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
        check::<StatfsMode>(&["all", "ignore-nc", "ignore-ro", "as-placed"]);
        check::<Locks>(&["local", "branch"]);
        check::<Verify>(&["size", "checksum"]);
        check::<Degraded>(&["strict", "read", "catalogue"]);
        check::<OutOfBand>(&["watch", "timeout", "never"]);
        check::<Seccomp>(&["on", "kill", "log", "off"]);
        check::<Restart>(&["off", "keep", "auto"]);
        check::<Require>(&["same", "directory", "mountpoint"]);
        assert_eq!("base".parse(), Ok(StatfsMode::All));
    }
}
