//! Loop devices held to a rate by the kernel's block throttling, so that disks are the limit as on a real server.
//!
//! A rule names a device in a control group. cgroup v1 takes rules in its root group, where kernel threads write dirty
//! pages back; a rule there does not hold for other groups, so each that exists gets it. cgroup v2 has no rules in its root
//! group; one for each group at the top holds for what is below, and for pages that its processes made dirty.
//! A process that is killed leaves its rules, so they are in the cleanup journal.

use std::fmt;
use std::fs;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::fs::{major, minor};

use crate::cgroup::{own_group, top_of};
use crate::cleanup::Entry;

/// Files of cgroup v1, one for each direction: bytes a second, requests a second.
const V1: [[&str; 2]; 2] = [
    ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"],
    ["blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device"],
];
/// File of cgroup v2.
const V2: &str = "io.max";

/// Most that a disk does in a second, reads and writes apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLimit {
    /// Bytes.
    pub bytes: Option<NonZeroU64>,
    /// Requests: a disk that takes 5 ms for each does 200.
    pub requests: Option<NonZeroU64>,
}

/// Block device by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    major: u32,
    minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl Device {
    /// The device that a file system of one disk is on.
    pub fn below(dir: &Path) -> Result<Self> {
        let number = dir.metadata().with_context(|| dir.display().to_string())?.dev();
        let device = Self { major: major(number), minor: minor(number) };
        let known = device.record();
        ensure!(known.exists(), "{} is not on a block device of its own", dir.display());
        Ok(device)
    }

    /// Loop devices of the images in a directory.
    pub fn of_images(dir: &Path) -> Result<Vec<Self>> {
        let dir = dir.canonicalize().with_context(|| dir.display().to_string())?;
        let mut devices = Vec::new();
        for entry in fs::read_dir("/sys/block")? {
            let block = entry?.path();
            let Ok(file) = fs::read_to_string(block.join("loop/backing_file")) else { continue };
            if Path::new(file.trim_end()).parent() != Some(&dir) {
                continue;
            }
            let numbers = fs::read_to_string(block.join("dev"))?;
            devices.push(Self::parse(numbers.trim_end()).context("numbers of a loop device")?);
        }
        devices.sort_unstable();
        Ok(devices)
    }

    fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// Its directory in sysfs, by which the cleanup journal names it.
    fn record(self) -> PathBuf {
        Path::new("/sys/dev/block").join(self.to_string())
    }

    fn of_record(record: &Path) -> Result<Self> {
        let name = record.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Self::parse(name).with_context(|| format!("{} is no device", record.display()))
    }
}

impl DiskLimit {
    /// True if it limits nothing.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Holds devices to it until the result is dropped.
    pub fn hold(self, devices: &[Device]) -> Result<Vec<Entry>> {
        if self.is_none() {
            return Ok(Vec::new());
        }
        let groups = groups()?;
        ensure!(!devices.is_empty(), "there are no loop devices to hold to a rate");
        let mut entries = Vec::new();
        for device in devices {
            entries.push(Entry::disk_limit(&device.record())?);
            groups.iter().try_for_each(|group| group.write(*device, self))?;
        }
        Ok(entries)
    }
}

/// Why no disk can be held to a rate here, if so.
pub(crate) fn able() -> Result<()> {
    groups().map(drop)
}

/// True if a rule for the device is left.
pub(crate) fn stands(record: &Path) -> bool {
    let Ok(device) = Device::of_record(record) else { return false };
    groups().is_ok_and(|groups| groups.iter().any(|group| group.has(device)))
}

/// Removes the rules for a device.
pub(crate) fn remove(record: &Path) -> Result<()> {
    let device = Device::of_record(record)?;
    groups()?
        .iter()
        .filter(|group| group.has(device))
        .try_for_each(|group| group.write(device, DiskLimit::default()))
}

/// Control group that takes rules.
struct Group {
    dir: PathBuf,
    /// cgroup v2.
    is_unified: bool,
}

/// Groups that need the rule, so that it holds for every process.
fn groups() -> Result<Vec<Group>> {
    if let Some(top) = top_of("blkio")? {
        let mut dirs = vec![top];
        let mut next = 0;
        while let Some(dir) = dirs.get(next).cloned() {
            next += 1;
            dirs.extend(below(&dir)?);
        }
        return Ok(dirs.into_iter().map(|dir| Group { dir, is_unified: false }).collect());
    }
    let top =
        top_of("io")?.context("no io controller (cgroup v2) or blkio controller (v1) is switched on here")?;
    ensure!(
        own_group("io")? != "/",
        "this process is in the root control group, where no disk can be held to a rate: start it by `systemd-run --scope`"
    );
    let able = below(&top)?.into_iter().filter(|dir| dir.join(V2).exists());
    Ok(able.map(|dir| Group { dir, is_unified: true }).collect())
}

/// Groups right below one.
fn below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

impl Group {
    fn write(&self, device: Device, limit: DiskLimit) -> Result<()> {
        for (file, rule) in rules(self.is_unified, device, limit) {
            let path = self.dir.join(file);
            match fs::write(&path, rule) {
                // A group may end meanwhile.
                Err(_) if !self.dir.exists() => return Ok(()),
                done => done.with_context(|| path.display().to_string())?,
            }
        }
        Ok(())
    }

    fn has(&self, device: Device) -> bool {
        let start = format!("{device} ");
        let has_rule = |file: &str| {
            let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
            text.lines().any(|line| line.starts_with(&start))
        };
        if self.is_unified { has_rule(V2) } else { V1.as_flattened().iter().any(|file| has_rule(file)) }
    }
}

/// Lines for a group's files.
fn rules(is_unified: bool, device: Device, limit: DiskLimit) -> Vec<(&'static str, String)> {
    if is_unified {
        let word = |most: Option<NonZeroU64>| most.map_or("max".to_owned(), |most| most.to_string());
        let (bytes, requests) = (word(limit.bytes), word(limit.requests));
        return vec![(V2, format!("{device} rbps={bytes} wbps={bytes} riops={requests} wiops={requests}"))];
    }
    // 0 removes a rule.
    let [bytes, requests] = [limit.bytes, limit.requests].map(|most| most.map_or(0, NonZeroU64::get));
    let both = |files: [&'static str; 2], most: u64| files.map(|file| (file, format!("{device} {most}")));
    [both(V1[0], bytes), both(V1[1], requests)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::{Kind, Layout};
    use crate::{Branch, MiB, cleanup, needs};

    const LIMIT: DiskLimit = DiskLimit { bytes: NonZeroU64::new(64 << 20), requests: NonZeroU64::new(400) };

    #[test]
    fn rules_are_written_in_the_words_of_either_version() {
        let device = Device { major: 7, minor: 3 };
        let words = |is_unified, limit| {
            let rules = rules(is_unified, device, limit);
            rules.into_iter().map(|(file, rule)| format!("{file}: {rule}")).collect::<Vec<_>>()
        };
        assert_eq!(words(true, LIMIT), ["io.max: 7:3 rbps=67108864 wbps=67108864 riops=400 wiops=400"]);
        assert_eq!(words(true, DiskLimit::default()), ["io.max: 7:3 rbps=max wbps=max riops=max wiops=max"]);
        assert_eq!(words(false, LIMIT).last().unwrap(), "blkio.throttle.write_iops_device: 7:3 400");
        assert_eq!(words(false, DiskLimit::default())[0], "blkio.throttle.read_bps_device: 7:3 0");
    }

    #[test]
    fn a_disk_is_held_until_the_result_is_dropped() {
        needs!(loops(), disk_limits());
        let home = cleanup::fresh("disk-limit").unwrap();
        let _dir = Entry::dir(&home).unwrap();
        let branch = Branch::make("held", Kind::Xfs(MiB(300)), Layout::Sparse, &home).unwrap();
        let device = Device::below(branch.path()).unwrap();
        let has_rule = || groups().unwrap().iter().any(|group| group.has(device));
        let held = LIMIT.hold(&[device]).unwrap();
        assert!(has_rule());
        assert!(stands(&device.record()));
        drop(held);
        assert!(!has_rule());

        // As a run that was killed leaves it.
        groups().unwrap()[0].write(device, LIMIT).unwrap();
        remove(&device.record()).unwrap();
        assert!(!has_rule());
        assert!(DiskLimit::default().hold(&[device]).unwrap().is_empty());
        assert!(LIMIT.hold(&[]).is_err());
    }
}
