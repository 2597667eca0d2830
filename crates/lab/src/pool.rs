//! A pool mounted by the real `mount.fsstack`, run as a process, over branches of the lab.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::branch::{Branch, Kind, Layout};
use crate::cleanup::{self, Entry};
use crate::daemon::{self, Process, SECCOMP};
use crate::rival::{Rival, Union};
use crate::shell::{Run, command};
use crate::watchdog::Watchdog;
use crate::{MiB, mounts, must, test_bed};

/// How long a daemon may take to end after its mount is gone.
const GRACE: Duration = Duration::from_secs(60);

/// Floor of a branch unless the test sets one.
const LAB_FLOOR: &str = "minfreespace=4M";

/// Environment variable with the `transport=` of pools whose test does not set it.
pub const TRANSPORT: &str = "FSSTACK_TEST_TRANSPORT";

/// A pool being described.
#[derive(Clone, Debug)]
#[must_use = "nothing exists before `mount`"]
pub struct Builder {
    branches: Vec<Wanted>,
    others: Vec<String>,
    options: Vec<String>,
    env: Vec<(OsString, OsString)>,
    home: Option<PathBuf>,
    helper: Option<PathBuf>,
    layout: Layout,
    limit: Duration,
    alone: bool,
}

#[derive(Clone, Debug)]
struct Wanted {
    name: String,
    kind: Kind,
    mode: Option<String>,
}

/// `mount.fsstack` refused: exit status and output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountRefused {
    /// mount(8)'s exit status: 1 usage, 2 system, 32 mount failed.
    pub code: i32,
    /// Its standard error.
    pub said: String,
}

impl fmt::Display for MountRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mount.fsstack ended with {}: {}", self.code, self.said.trim_end())
    }
}

impl std::error::Error for MountRefused {}

impl Default for Builder {
    fn default() -> Self {
        Self {
            branches: Vec::new(),
            others: Vec::new(),
            options: Vec::new(),
            env: Vec::new(),
            home: None,
            helper: None,
            layout: Layout::default(),
            // Below nextest's time limit of a test.
            limit: Duration::from_secs(330),
            alone: false,
        }
    }
}

impl Builder {
    /// A branch on an XFS of its own.
    pub fn xfs_branch(self, name: &str, size: MiB) -> Self {
        self.branch(name, Kind::Xfs(size))
    }

    /// A branch on an ext4 of its own.
    pub fn ext4_branch(self, name: &str, size: MiB) -> Self {
        self.branch(name, Kind::Ext4(size))
    }

    /// A branch on a btrfs of its own.
    pub fn btrfs_branch(self, name: &str, size: MiB) -> Self {
        self.branch(name, Kind::Btrfs(size))
    }

    /// A branch on a tmpfs of its own.
    pub fn tmpfs_branch(self, name: &str, size: MiB) -> Self {
        self.branch(name, Kind::Tmpfs(size))
    }

    /// A branch that is a plain directory.
    pub fn tmp_branch(self, name: &str) -> Self {
        self.branch(name, Kind::Plain)
    }

    /// A branch on a volume of the tests' lab; `volume` is one of `gluster::KINDS`.
    #[track_caller]
    pub fn gluster_branch(self, name: &str, volume: &str) -> Self {
        let volume = must(volume.parse().map_err(anyhow::Error::from), "a volume of the tests' lab");
        self.branch(name, Kind::Gluster(volume))
    }

    /// A branch served by another FUSE daemon.
    pub fn served_branch(self, name: &str) -> Self {
        self.branch(name, Kind::Served)
    }

    /// A branch of any kind.
    pub fn branch(mut self, name: &str, kind: Kind) -> Self {
        self.branches.push(Wanted { name: name.to_owned(), kind, mode: None });
        self
    }

    /// Mode after the last branch's `=`, such as `RO` or `RW,50G`.
    pub fn mode(mut self, mode: &str) -> Self {
        if let Some(last) = self.branches.last_mut() {
            last.mode = Some(mode.to_owned());
        }
        self
    }

    /// An option after `-o`.
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// A variable in the daemon's environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Existing directories as branches, after those of the lab.
    pub fn over(mut self, branches: &[impl AsRef<str>]) -> Self {
        self.others.extend(branches.iter().map(|branch| branch.as_ref().to_owned()));
        self
    }

    /// The directory to make everything in, instead of a fresh one.
    pub fn home(mut self, home: &Path) -> Self {
        self.home = Some(home.to_owned());
        self
    }

    /// The `mount.fsstack` to run, instead of the one `daemon::helper` finds.
    pub fn helper(mut self, helper: impl Into<PathBuf>) -> Self {
        self.helper = Some(helper.into());
        self
    }

    /// Allocates the images' blocks at once, as measurements need.
    pub fn preallocated(mut self) -> Self {
        self.layout = Layout::Preallocated;
        self
    }

    /// Time after which the pool's connection is aborted.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// No further branches on GlusterFS: for tests that count branches.
    pub fn no_others(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Makes the branches and mounts the pool; panics if it is refused.
    #[track_caller]
    pub fn mount(self) -> Pool {
        let mut pool = self.unmounted();
        pool.remount();
        pool
    }

    /// Makes the branches and tries to mount the pool.
    #[track_caller]
    pub fn try_mount(self) -> Result<Pool, MountRefused> {
        let mut pool = self.unmounted();
        must(pool.start(), "starting mount.fsstack").map(|()| pool)
    }

    /// Makes the branches only; `remount` mounts the pool.
    #[track_caller]
    pub fn unmounted(self) -> Pool {
        must(self.build(), "making the branches of a pool")
    }

    /// Makes the branches only, for callers other than tests.
    pub fn build(mut self) -> Result<Pool> {
        let home = self.home.take().map_or_else(|| cleanup::fresh("pool"), Ok)?;
        let home_entry = Entry::dir(&home)?;
        let target = home.join("pool");
        fs::create_dir_all(&target)?;
        let branches_dir = home.join("branches");
        let made = |(n, wanted): (usize, &Wanted)| {
            Branch::make(&wanted.name, test_bed::kind(n, wanted.kind)?, self.layout, &branches_dir)
        };
        let mut branches = self.branches.iter().enumerate().map(made).collect::<Result<Vec<_>>>()?;
        if self.takes_others() {
            for (name, kind) in test_bed::others(branches.len())? {
                let mode = Some("NC".to_owned());
                branches.push(Branch::make(&name, kind, self.layout, &branches_dir)?);
                self.branches.push(Wanted { name, kind, mode });
            }
        }
        let spec = |(branch, wanted): (&Branch, &Wanted)| match &wanted.mode {
            Some(mode) => format!("{}={mode}", branch.path().display()),
            None => branch.path().display().to_string(),
        };
        let source = branches.iter().zip(&self.branches).map(spec).chain(self.others);
        let source = source.collect::<Vec<_>>().join(":");
        Ok(Pool {
            source,
            options: self.options,
            env: self.env,
            helper: self.helper,
            limit: self.limit,
            target,
            mounting: Mounting::default(),
            branches,
            home: home_entry,
        })
    }

    /// True if it is to have a branch on each kind of volume.
    fn takes_others(&self) -> bool {
        let plain = !self.branches.is_empty() && self.branches.iter().all(|b| b.kind == Kind::Plain);
        test_bed::is_gluster() && plain && self.others.is_empty() && !self.alone
    }
}

/// A pool, mounted unless it was unmounted; everything below it is removed on drop.
#[derive(Debug)]
pub struct Pool {
    source: String,
    options: Vec<String>,
    env: Vec<(OsString, OsString)>,
    helper: Option<PathBuf>,
    limit: Duration,
    target: PathBuf,
    // Dropped in this order: the mount, the branches, their directory.
    mounting: Mounting,
    branches: Vec<Branch>,
    home: Entry,
}

/// The pool's mount, if it has one.
#[derive(Debug, Default)]
struct Mounting {
    live: Option<Live>,
}

/// State of a mounted pool.
#[derive(Debug)]
struct Live {
    daemon: Process,
    mount: Entry,
    _watchdog: Watchdog,
}

impl Pool {
    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.target
    }

    /// A path in the pool.
    #[must_use]
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.target.join(name)
    }

    /// The branches in their order.
    #[must_use]
    pub fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// A branch by its name.
    #[must_use]
    #[track_caller]
    pub fn branch(&self, name: &str) -> &Branch {
        let found = self.branches.iter().find(|b| b.name() == name).context("not a branch of this pool");
        must(found, name)
    }

    /// A branch by its name, to unmount and mount again.
    #[must_use]
    #[track_caller]
    pub fn branch_mut(&mut self, name: &str) -> &mut Branch {
        let found = self.branches.iter_mut().find(|b| b.name() == name).context("not a branch of this pool");
        must(found, name)
    }

    /// Writes a file through the pool.
    #[track_caller]
    pub fn write(&self, name: impl AsRef<Path>, bytes: &[u8]) {
        let path = self.at(name);
        must(fs::write(&path, bytes).map_err(Into::into), &path.display().to_string());
    }

    /// Reads a file through the pool.
    #[must_use]
    #[track_caller]
    pub fn read(&self, name: impl AsRef<Path>) -> Vec<u8> {
        let path = self.at(name);
        must(fs::read(&path).map_err(Into::into), &path.display().to_string())
    }

    /// Makes directories through the pool.
    #[track_caller]
    pub fn mkdir(&self, name: impl AsRef<Path>) {
        let path = self.at(name);
        must(fs::create_dir_all(&path).map_err(Into::into), &path.display().to_string());
    }

    /// The sorted names of a directory of the pool; `""` is its root.
    #[must_use]
    #[track_caller]
    pub fn list(&self, name: impl AsRef<Path>) -> Vec<OsString> {
        let path = self.at(name);
        let read = || fs::read_dir(&path)?.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>();
        let mut names = must(read(), &path.display().to_string());
        names.sort();
        names
    }

    /// Names of the branches that hold `name`, in their order, read from the branches.
    #[must_use]
    pub fn holders(&self, name: impl AsRef<Path>) -> Vec<&str> {
        let holds = |branch: &&Branch| branch.path().join(&name).symlink_metadata().is_ok();
        self.branches.iter().filter(holds).map(Branch::name).collect()
    }

    /// The process that serves the pool.
    #[must_use]
    #[track_caller]
    pub fn daemon(&self) -> Process {
        must(
            self.mounting.live.as_ref().map(|live| live.daemon).context("it is not mounted"),
            "the pool's daemon",
        )
    }

    /// The pool's state directory, unless an option sets another.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.target.with_file_name("state")
    }

    /// The command that mounts this pool.
    pub fn mount_command(&self) -> Result<Run> {
        let mut run =
            command(self.helper.clone().map_or_else(daemon::helper, Ok)?).arg(&self.source).arg(&self.target);
        let mut options = self.options.clone();
        let says_floor =
            |o: &String| ["minfreespace", "mlimit", "create=mlimit"].iter().any(|f| o.contains(f));
        if !options.iter().any(says_floor) {
            // The lab's branches are smaller than the default floor for servers.
            options.push(LAB_FLOOR.to_owned());
        }
        if !options.iter().any(|option| option.starts_with("state-dir=")) {
            options.push(format!("state-dir={}", self.state_dir().display()));
        }
        // `locks=branch` supports one transport only: see docs/options.md.
        for (variable, name, against) in
            [(TRANSPORT, "transport=", "locks=branch"), (SECCOMP, "seccomp=", "seccomp=")]
        {
            let says = |o: &String| o.contains(name) || o.contains(against);
            if let Ok(value) = std::env::var(variable)
                && !options.iter().any(says)
            {
                options.push(format!("{name}{value}"));
            }
        }
        run = run.arg("-o").arg(options.join(","));
        Ok(self.env.iter().fold(run, |run, (name, value)| run.env(name, value)))
    }

    /// Unmounts; the branches stay. Fails if force was needed or the daemon still runs.
    #[track_caller]
    pub fn unmount(&mut self) {
        must(self.mounting.stop(), "unmounting the pool");
    }

    /// Kills the daemon; the mount point is dead until `remount`.
    #[track_caller]
    pub fn kill_daemon(&self) {
        must(self.daemon().kill(), "killing the daemon");
    }

    /// Mounts again, after `unmount` or `kill_daemon`.
    #[track_caller]
    pub fn remount(&mut self) {
        let mounted = self.mounting.stop().and_then(|()| self.start());
        if let Err(refused) = must(mounted, "mounting the pool") {
            panic!("{refused}");
        }
    }

    /// Mounts again with other options.
    #[track_caller]
    pub fn remount_with(&mut self, options: &[&str]) {
        self.options = options.iter().map(|&option| option.to_owned()).collect();
        self.remount();
    }

    /// Mounts again over these of its branches, in that order and without their modes.
    #[track_caller]
    pub fn remount_of(&mut self, branches: &[&str]) {
        let paths = branches.iter().map(|name| self.branch(name).path().display().to_string());
        self.source = paths.collect::<Vec<_>>().join(":");
        self.remount();
    }

    /// Imitates a reboot: the daemon was killed, its branches come back in another order, with other device numbers.
    #[track_caller]
    pub fn reboot(&mut self) {
        self.kill_daemon();
        self.unmount();
        self.branches.iter_mut().for_each(Branch::unmount);
        self.branches.iter_mut().rev().for_each(Branch::remount);
        self.remount();
    }

    /// Like [`Self::remount_with`], for callers other than tests.
    pub fn try_remount_with(&mut self, options: &[&str]) -> Result<Result<(), MountRefused>> {
        self.options = options.iter().map(|&option| option.to_owned()).collect();
        self.mounting.stop()?;
        self.start()
    }

    /// Mounts a rival over the same branches.
    pub fn rival(&self, union: Union, options: &[&str]) -> Result<Rival> {
        let paths: Vec<&Path> = self.branches.iter().map(Branch::path).collect();
        Rival::mount(union, &paths, &self.target.with_file_name(union.program()), options)
    }

    /// Keeps the pool mounted after this process, until `take_down(name)`.
    pub fn keep(mut self, name: &str) -> Result<()> {
        // Entries are taken down last first.
        self.home.keep(name)?;
        self.branches.into_iter().try_for_each(|branch| branch.keep(name))?;
        self.mounting.live.take().map_or(Ok(()), |live| live.mount.keep(name))
    }

    fn start(&mut self) -> Result<Result<(), MountRefused>> {
        let mount = Entry::mount(&self.target)?;
        let output = self.mount_command()?.output()?;
        if output.code != 0 {
            return Ok(Err(MountRefused { code: output.code, said: output.stderr }));
        }
        if mounts::at(&self.target)?.is_none() {
            bail!("mount.fsstack ended with 0, but nothing is mounted: {}", output.stderr);
        }
        let daemon = daemon::server_of(&self.target)?;
        let watchdog = Watchdog::over(&self.target, self.limit)?;
        self.mounting.live = Some(Live { daemon, mount, _watchdog: watchdog });
        Ok(Ok(()))
    }
}

impl Mounting {
    fn stop(&mut self) -> Result<()> {
        let Some(live) = self.live.take() else { return Ok(()) };
        let unmounted = live.mount.undo();
        let ended = live.daemon.wait(GRACE);
        if ended.is_err() {
            live.daemon.kill()?;
        }
        unmounted.and(ended)
    }
}

impl Drop for Mounting {
    fn drop(&mut self) {
        if let Err(e) = self.stop() {
            // A second panic while a test unwinds would abort the process and leave everything behind.
            assert!(std::thread::panicking(), "the pool left something behind: {e:#}");
        }
    }
}
