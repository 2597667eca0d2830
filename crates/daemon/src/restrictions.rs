//! Restrictive mount flags: `nosuid`, `nodev`, `noexec`.
//!
//! An administrator who mounts a branch with one of them does not trust its content. Through the pool the kernel checks
//! only the pool's own flags, whatever branch a file is on. So the pool's mount has each flag that any branch's mount
//! has.

use crate::settings::{MountFlags, Settings};
use fsstack_control::local_locks::mount_of;
use fsstack_control::registry::{DirectoryId, RegistryBranch};
use fsstack_pool::Printable;
use fsstack_sys::mounts::MountInfo;
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use std::fmt;
use std::path::Path;

/// Restrictions of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restrictions {
    no_suid: bool,
    no_devices: bool,
    no_programs: bool,
}

impl Restrictions {
    /// Returns those of the mount that `path` is on; none if it is not in the mount table.
    pub(crate) fn at(path: &Path, table: &[MountInfo]) -> Self {
        mount_of(path, table).map(Self::of).unwrap_or_default()
    }

    /// Returns those of the mount of a pool's branch; `None` if its path leads to another directory now: the branch is away, and
    /// the mount below is not its own. Makes no request to its file system, which may hang.
    pub(crate) fn of_branch(branch: &RegistryBranch, table: &[MountInfo]) -> Option<Self> {
        let path = branch.path();
        let how = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let found = statx(CWD, &path, how, StatxFlags::BASIC_STATS).ok()?;
        let device = makedev(found.stx_dev_major, found.stx_dev_minor);
        let is_it = branch.id == DirectoryId { device, inode: found.stx_ino };
        mount_of(&path, table).filter(|_| is_it).map(Self::of)
    }

    /// Returns those that `flags` have.
    pub(crate) fn held(flags: &MountFlags) -> Self {
        Self { no_suid: !flags.suid, no_devices: !flags.devices, no_programs: !flags.execute }
    }

    fn of(mount: &MountInfo) -> Self {
        let has = |word: &str| mount.options.split(',').any(|option| option == word);
        Self { no_suid: has("nosuid"), no_devices: has("nodev"), no_programs: has("noexec") }
    }

    /// Returns those that a mount with `flags` lacks.
    pub(crate) fn beyond(self, flags: &MountFlags) -> Self {
        Self {
            no_suid: self.no_suid && flags.suid,
            no_devices: self.no_devices && flags.devices,
            no_programs: self.no_programs && flags.execute,
        }
    }

    /// Applies them to `flags`.
    pub(crate) fn put_on(self, flags: &mut MountFlags) {
        flags.suid &= !self.no_suid;
        flags.devices &= !self.no_devices;
        flags.execute &= !self.no_programs;
    }

    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for Restrictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(self.no_suid, "nosuid"), (self.no_devices, "nodev"), (self.no_programs, "noexec")];
        let words: Vec<_> = all.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect();
        f.write_str(&words.join(","))
    }
}

/// Adds the restrictions of all branches to the mount's flags, with a log line for each branch that adds one.
pub(crate) fn inherited(settings: &Settings, table: &[MountInfo]) -> Settings {
    let mut settings = settings.clone();
    for branch in &settings.branches {
        let new = Restrictions::at(&branch.spec.path, table).beyond(&settings.flags);
        if !new.is_none() {
            let (pool, branch) = (Printable::path(&settings.mount_point), Printable::path(&branch.spec.path));
            tracing::info!(
                "{pool}: mounted {new}, as branch {branch} is; mount the branch without it to lift that"
            );
            new.put_on(&mut settings.flags);
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::AccessTimes;

    #[test]
    fn restrictions_add_up_and_lift_nothing() {
        let mut flags = MountFlags {
            read_only: false,
            access_times: AccessTimes::Relative,
            directory_access_times: true,
            suid: true,
            devices: false,
            execute: true,
            synchronous: false,
            synchronous_directories: false,
        };
        let untrusted = Restrictions { no_suid: true, no_devices: true, no_programs: false };
        assert_eq!(untrusted.to_string(), "nosuid,nodev");
        let new = untrusted.beyond(&flags);
        assert_eq!(new.to_string(), "nosuid");
        new.put_on(&mut flags);
        assert!(!flags.suid && !flags.devices && flags.execute);
        assert!(untrusted.beyond(&flags).is_none());
        Restrictions::default().put_on(&mut flags);
        assert!(!flags.suid && !flags.devices && flags.execute);
    }
}
