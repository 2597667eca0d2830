//! File systems for branches other than GlusterFS: single disks, and disks combined with parity, all on loop devices.
//!
//! Like a GlusterFS lab they stay until they are taken down; `up` repairs them.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::cleanup::{Standing, fresh, state_dir};
use crate::daemon::{self, Process};
use crate::gluster::{Purge, Steps, server};
use crate::shell::{command, which};
use crate::{MiB, mounts};

/// File system made of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// An XFS on each.
    Xfs,
    /// An ext4 on each.
    Ext4,
    /// One btrfs over all: data as RAID 5, metadata as RAID 1; with the compression of that name, if any.
    BtrfsRaid5(Option<&'static str>),
    /// One pool of zfs-fuse over all, as raidz; with the compression of that name.
    Raidz(&'static str),
}

/// All stacks by their names.
const STACKS: [(&str, Stack); 8] = [
    ("xfs", Stack::Xfs),
    ("ext4", Stack::Ext4),
    ("btrfs-raid5", Stack::BtrfsRaid5(None)),
    ("btrfs-raid5-lzo", Stack::BtrfsRaid5(Some("lzo"))),
    ("btrfs-raid5-zstd", Stack::BtrfsRaid5(Some("zstd"))),
    ("zfs-raidz", Stack::Raidz("off")),
    ("zfs-raidz-lzjb", Stack::Raidz("lzjb")),
    ("zfs-raidz-gzip", Stack::Raidz("gzip")),
];

/// A name that stands for no stack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no ground: xfs, ext4, btrfs-raid5[-lzo|-zstd] or zfs-raidz[-lzjb|-gzip]")]
pub struct NoStack(String);

impl FromStr for Stack {
    type Err = NoStack;

    fn from_str(name: &str) -> Result<Self, NoStack> {
        let found = STACKS.iter().find(|(known, _)| *known == name);
        found.map(|(_, stack)| *stack).ok_or_else(|| NoStack(name.to_owned()))
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = STACKS.iter().find(|(_, stack)| stack == self);
        f.write_str(known.map_or("unnamed", |(name, _)| name))
    }
}

impl Stack {
    /// Programs that it needs, each with its Debian package.
    #[must_use]
    pub fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Xfs => &[("mkfs.xfs", "xfsprogs")],
            Self::Ext4 => &[("mkfs.ext4", "e2fsprogs")],
            Self::BtrfsRaid5(_) => &[("mkfs.btrfs", "btrfs-progs")],
            Self::Raidz(_) => &[("zfs-fuse", "zfs-fuse")],
        }
    }

    /// Checks that its programs exist, according to `found`.
    fn able(self, found: impl Fn(&str) -> bool) -> Result<()> {
        match self.needs().iter().find(|(program, _)| !found(program)) {
            Some((program, package)) => {
                bail!("{self} needs the program {program}, which is in the package {package}")
            }
            None => Ok(()),
        }
    }

    /// True if the disks form one file system.
    fn is_joint(self) -> bool {
        matches!(self, Self::BtrfsRaid5(_) | Self::Raidz(_))
    }
}

/// Disks of one lab that form one stack, up or not.
#[derive(Clone, Debug)]
pub struct Disks {
    stack: Stack,
    home: PathBuf,
    book: Standing,
    files: Standing,
}

impl Disks {
    /// Those of the lab called `lab`.
    pub fn of(lab: &str, stack: Stack) -> Result<Self> {
        Ok(Self {
            stack,
            home: state_dir()?.join("disks").join(lab).join(stack.to_string()),
            book: Standing::named(&format!("disks-{lab}-{stack}"))?,
            files: Standing::named(&format!("disks-{lab}-{stack}-files"))?,
        })
    }

    /// Disks of this process only, which end with it or are swept.
    pub fn of_this_process(stack: Stack) -> Result<Self> {
        let home = fresh(&format!("disks-{stack}"))?;
        let name = home.file_name().context("a name")?.to_string_lossy().into_owned();
        let book = Standing::of_this_process(&name)?;
        // One journal, so that everything is undone in one order.
        Ok(Self { stack, home, files: book.clone(), book })
    }

    /// All stacks for which the lab called `lab` has files.
    pub fn all(lab: &str) -> Result<Vec<Self>> {
        let stacks = STACKS.iter().map(|(_, stack)| Self::of(lab, *stack));
        stacks.filter(|disks| disks.as_ref().map_or(true, |disks| disks.home.exists())).collect()
    }

    /// File system made of them.
    #[must_use]
    pub fn stack(&self) -> Stack {
        self.stack
    }

    /// Where their file systems are mounted, in order.
    pub fn mounted(&self) -> Result<Vec<PathBuf>> {
        let mut paths: Vec<PathBuf> =
            mounts::below(&self.home.join("mnt"))?.into_iter().map(|mounted| mounted.target).collect();
        paths.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
        Ok(paths)
    }

    /// Makes and mounts `count` disks of `size`; existing files keep their content.
    pub fn up(&self, count: usize, size: MiB, steps: Steps) -> Result<Vec<PathBuf>> {
        ensure!(
            crate::needs::loop_devices().is_ok() && crate::needs::root().is_ok(),
            "disks need root and loop devices"
        );
        self.stack.able(|program| which(program).is_some())?;
        ensure!(!self.stack.is_joint() || 3 <= count, "{} needs at least 3 disks", self.stack);
        self.files.dir(&self.home)?;
        fs::create_dir_all(self.home.join("img"))?;
        steps.step(&format!("{} on {count} disks", self.stack), || match self.stack {
            Stack::Xfs | Stack::Ext4 => self.single(count, size),
            Stack::BtrfsRaid5(compression) => self.btrfs(count, size, compression),
            Stack::Raidz(compression) => self.raidz(count, size, compression),
        })?;
        self.mounted()
    }

    /// Makes another file system on the disks of a raidz that is up, with that compression.
    pub fn twin(&self, compression: &str) -> Result<PathBuf> {
        ensure!(matches!(self.stack, Stack::Raidz(_)), "{} holds one file system", self.stack);
        let target = self.home.join(format!("twin-{compression}"));
        if mounts::at(&target)?.is_some() {
            return Ok(target);
        }
        self.book.mount(&target)?;
        let name = format!("{}/{compression}", zpool_name(&self.home));
        let known = command("zfs").args(["list", "-H", "-o", "name"]).run()?.stdout;
        if known.lines().any(|line| line == name) {
            command("zfs").args(["mount", &name]).run()?;
        } else {
            let place = format!("mountpoint={}", target.display());
            let how = [format!("compression={compression}"), place];
            command("zfs").args(["create", "-o", &how[0], "-o", &how[1], &name]).run()?;
        }
        eventually(|| mounts::at(&target)?.context("it is not mounted"))?;
        Ok(target)
    }

    /// Unmounts them; with `purge` also removes their files.
    pub fn down(&self, purge: Purge, steps: Steps) -> Result<()> {
        steps.step(&self.stack.to_string(), || {
            self.book.take_down()?;
            if purge != Purge::Nothing {
                self.files.take_down()?;
            }
            let left = mounts::below(&self.home)?;
            ensure!(left.is_empty(), "{} mounts of {} are left", left.len(), self.stack);
            for n in 1..=64 {
                let device = device_of(&self.image(n))?;
                ensure!(device.is_none(), "a loop device of {} is left: {device:?}", self.stack);
            }
            Ok(())
        })
    }

    /// Directory of the images.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.home.join("img")
    }

    fn image(&self, n: usize) -> PathBuf {
        self.images().join(format!("d{n}.img"))
    }

    /// Makes an image of that size. True if it is new.
    fn make(&self, n: usize, size: MiB) -> Result<bool> {
        let image = self.image(n);
        if let Ok(found) = fs::metadata(&image) {
            let (has, wants) = (found.len() >> 20, size.0);
            ensure!(
                has == wants,
                "the disks of {} have {has} MiB, not {wants}: `lab down --purge` first",
                self.stack
            );
            return Ok(false);
        }
        File::create(&image)?.set_len(size.bytes())?;
        Ok(true)
    }

    fn single(&self, count: usize, size: MiB) -> Result<()> {
        for n in 1..=count {
            let (image, target) = (self.image(n), self.home.join(format!("mnt/d{n}")));
            fs::create_dir_all(&target)?;
            if mounts::at(&target)?.is_some() {
                continue;
            }
            // An image is complete when its mark exists.
            let whole = image.with_extension("whole");
            if self.make(n, size)? || !whole.exists() {
                match self.stack {
                    Stack::Ext4 => command("mkfs.ext4").args(["-q", "-F"]).arg(&image).run()?,
                    _ => command("mkfs.xfs").args(["-q", "-f"]).arg(&image).run()?,
                };
                File::create(whole)?;
            }
            self.book.mount(&target)?;
            command("mount").args(["-o", "loop,noatime"]).args([&image, &target]).run()?;
        }
        Ok(())
    }

    /// Attaches loop devices to all images.
    fn attach(&self, count: usize, size: MiB) -> Result<Vec<String>> {
        let attach = |n| -> Result<String> {
            let image = self.image(n);
            self.make(n, size)?;
            if let Some(device) = device_of(&image)? {
                return Ok(device);
            }
            self.book.loop_device(&image)?;
            Ok(command("losetup").args(["-f", "--show"]).arg(&image).run()?.stdout.trim().to_owned())
        };
        (1..=count).map(attach).collect()
    }

    fn btrfs(&self, count: usize, size: MiB, compression: Option<&str>) -> Result<()> {
        let target = self.home.join("mnt");
        if mounts::at(&target)?.is_some() {
            return Ok(());
        }
        let devices = self.attach(count, size)?;
        let whole = self.home.join("whole");
        if !whole.exists() {
            let profiles = ["-q", "-f", "-d", "raid5", "-m", "raid1"];
            command("mkfs.btrfs").args(profiles).args(&devices).run()?;
            File::create(whole)?;
        }
        fs::create_dir_all(&target)?;
        let mut options: Vec<String> = devices.iter().map(|device| format!("device={device}")).collect();
        options.push("noatime".into());
        options.extend(compression.map(|name| format!("compress={name}")));
        self.book.mount(&target)?;
        let first = devices.first().context("a disk")?;
        command("mount").args(["-t", "btrfs", "-o", &options.join(","), first]).arg(&target).run().map(drop)
    }

    fn raidz(&self, count: usize, size: MiB, compression: &str) -> Result<()> {
        let target = self.home.join("mnt");
        if mounts::at(&target)?.is_some() {
            return Ok(());
        }
        let serves = zfs_daemon(&self.home)?.is_some();
        ensure!(serves || !others_zfs()?, "another zfs-fuse runs on this machine, and there is room for one");
        let devices = self.attach(count, size)?;
        self.book.zfs(&self.home)?;
        self.book.mount(&target)?;
        if !serves {
            let mark = self.home.join("zfs-fuse");
            // With xattrs, which are off by default; in the foreground of a session of its own.
            let words = ["--fork", "zfs-fuse", "-n", "--enable-xattr", "--pidfile"];
            command("setsid").args(words).arg(mark).run()?;
        }
        let name = zpool_name(&self.home);
        let known = eventually(|| {
            command("zpool").args(["list", "-H", "-o", "name"]).run().map(|check| check.stdout)
        })?;
        if known.lines().any(|line| line == name) {
            return command("zfs").args(["mount", &name]).run().map(drop);
        }
        let whole = self.home.join("whole");
        if whole.exists() {
            command("zpool").args(["import", "-f", "-d", "/dev", &name]).run()?;
        } else {
            let words = ["create", "-f", "-m"];
            command("zpool").args(words).arg(&target).args([&name, "raidz"]).args(&devices).run()?;
            command("zfs").args(["set", &format!("compression={compression}"), &name]).run()?;
            File::create(whole)?;
        }
        eventually(|| mounts::at(&target)?.context("the pool is not mounted")).map(drop)
    }
}

/// The pool's name: a machine has one namespace of zfs pools.
fn zpool_name(home: &Path) -> String {
    server::name_of(home)
}

/// The daemon started for these disks.
fn zfs_daemon(home: &Path) -> Result<Option<Process>> {
    let mark = home.join("zfs-fuse").display().to_string();
    Ok(zfs_daemons()?.into_iter().find(|daemon| server::arguments(*daemon).contains(&mark)))
}

fn others_zfs() -> Result<bool> {
    Ok(!zfs_daemons()?.is_empty())
}

fn zfs_daemons() -> Result<Vec<Process>> {
    daemon::of_program("zfs-fuse")
}

/// True if a zfs-fuse of these disks runs.
pub(crate) fn zfs_stands(home: &Path) -> bool {
    zfs_daemon(home).is_ok_and(|daemon| daemon.is_some())
}

/// Exports the pool, so that it can be imported again, and ends the daemon.
pub(crate) fn end_zfs(home: &Path) -> Result<()> {
    let Some(daemon) = zfs_daemon(home)? else { return Ok(()) };
    // Without the export the next import must be forced, which it is.
    let _busy = command("zpool").args(["export", &zpool_name(home)]).output();
    daemon.signal(Signal::TERM)?;
    if daemon.wait(Duration::from_secs(60)).is_err() {
        daemon.kill()?;
    }
    Ok(())
}

/// The loop device of an image.
pub(crate) fn device_of(image: &Path) -> Result<Option<String>> {
    for entry in fs::read_dir("/sys/block")? {
        let dir = entry?.path();
        let Ok(file) = fs::read_to_string(dir.join("loop/backing_file")) else { continue };
        if Path::new(file.trim_end()) == image {
            let name = dir.file_name().context("a device")?.to_string_lossy().into_owned();
            return Ok(Some(format!("/dev/{name}")));
        }
    }
    Ok(None)
}

/// Detaches an image's loop device.
pub(crate) fn detach(image: &Path) -> Result<()> {
    let began = Instant::now();
    while let Some(device) = device_of(image)? {
        command("losetup").args(["-d", &device]).run()?;
        ensure!(began.elapsed() < Duration::from_secs(60), "{device} stays busy");
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn eventually<T>(ask: impl Fn() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        match ask() {
            Err(_) if began.elapsed() < Duration::from_secs(60) => sleep(Duration::from_millis(50)),
            settled => return settled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_read_and_written_alike() {
        for (name, stack) in STACKS {
            assert_eq!((name.parse(), stack.to_string().as_str()), (Ok(stack), name));
        }
        assert!("raid6".parse::<Stack>().unwrap_err().to_string().starts_with("raid6 is no ground"));
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let raidz: Stack = "zfs-raidz-lzjb".parse().unwrap();
        let lacks = raidz.able(|_| false).unwrap_err().to_string();
        assert_eq!(lacks, "zfs-raidz-lzjb needs the program zfs-fuse, which is in the package zfs-fuse");
        assert!(raidz.able(|program| program == "zfs-fuse").is_ok());
    }
}
