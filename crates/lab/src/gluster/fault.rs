//! Faults of a server and their ends; GlusterFS's behaviour is described in docs/dev/lab.md.

use std::fs::{self, OpenOptions};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate, statvfs, syncfs};
use rustix::io::Errno;
use rustix::process::Signal;

use super::{Gluster, Volume, client, image, server};
use crate::MiB;
use crate::branch::BALLAST;
use crate::daemon::Process;

/// Target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All processes of the server.
    Server,
    /// The n-th brick of a volume, counted from 1.
    Brick(Volume, usize),
}

impl Gluster {
    /// Kills a brick's process, as in a crash; `heal` starts it again.
    pub fn kill_brick(&self, volume: Volume, n: usize) -> Result<()> {
        self.brick(volume, n)?.kill()
    }

    /// Stops the whole server; `heal` or `up` starts it again.
    pub fn stop(&self) -> Result<()> {
        server::remove(&self.home)
    }

    /// Freezes the server or a brick: connections stay, nothing answers. `thaw` ends it.
    pub fn freeze(&self, which: Which) -> Result<()> {
        let stand_still = |process: Process| process.signal(Signal::STOP);
        match which {
            Which::Brick(volume, n) => stand_still(self.brick(volume, n)?),
            Which::Server => {
                let init = server::init(&self.home).context("the lab's server does not run")?;
                let others = server::processes(&self.home)?.into_iter().filter(|p| *p != init);
                others.into_iter().try_for_each(stand_still)
            }
        }
    }

    /// Drops all packets between clients and server; `thaw` ends it.
    pub fn cut_link(&self) -> Result<()> {
        self.network().cut()
    }

    /// Fills a brick until at most `left` is free, for all volumes on it. `thaw` frees the space.
    pub fn fill(&self, brick: usize, left: MiB) -> Result<()> {
        let dir = self.home.join(format!("bricks/b{brick}"));
        ensure!(crate::mounts::at(&dir)?.is_some(), "there is no brick {brick}");
        let ballast = OpenOptions::new().create(true).append(true).open(dir.join(BALLAST))?;
        let mut piece = u64::MAX;
        loop {
            syncfs(&ballast)?;
            let stat = statvfs(&dir)?;
            piece = piece.min((stat.f_bavail * stat.f_frsize).saturating_sub(left.bytes()));
            if piece < 4096 {
                return Ok(());
            }
            match fallocate(&ballast, FallocateFlags::empty(), ballast.metadata()?.len(), piece) {
                Err(Errno::NOSPC) => piece /= 2,
                settled => settled.context("fallocate of the ballast")?,
            }
        }
    }

    /// Ends every freeze, restores the link, frees what `fill` took.
    pub fn thaw(&self) -> Result<()> {
        self.thaw_processes()?;
        self.network().mend()?;
        for name in super::bricks::mounted(self)? {
            let path = self.home.join("bricks").join(name).join(BALLAST);
            if path.exists() {
                // Truncated first: XFS frees the blocks of an unlinked file some time later.
                OpenOptions::new().write(true).truncate(true).open(&path)?;
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Starts what was stopped, and waits until the volumes are complete and nothing is left to heal.
    pub fn heal(&self, limit: Duration) -> Result<()> {
        if server::init(&self.home).is_none() {
            server::start(&self.home, &image::rootfs()?, None)?;
        }
        let began = Instant::now();
        let volumes = self.volumes()?;
        for &volume in &volumes {
            if !self.is_whole(volume)? {
                self.ensure_volume(volume)?;
            }
        }
        for volume in volumes {
            while !(self.is_whole(volume)? && self.is_back(volume)? && self.unhealed(volume)? == 0) {
                ensure!(began.elapsed() < limit, "{volume} is not whole after {limit:?}");
                sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    /// Volumes of the server.
    pub fn volumes(&self) -> Result<Vec<Volume>> {
        let stat = self.gluster(&["volume", "list"])?;
        Ok(stat.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }

    /// Number of names that some brick of the volume still lacks.
    pub fn unhealed(&self, volume: Volume) -> Result<u64> {
        if !volume.is_redundant() {
            return Ok(0);
        }
        let name = volume.to_string();
        // Refused until the healer has started.
        let _asked = self.gluster(&["volume", "heal", &name]);
        let Ok(stat) = self.gluster(&["volume", "heal", &name, "info", "summary"]) else {
            return Ok(u64::MAX);
        };
        let counts = stat.lines().filter_map(|line| line.strip_prefix("Total Number of entries:"));
        // A dash means a brick that could not be asked.
        Ok(counts.map(|count| count.trim().parse().unwrap_or(1_u64)).sum())
    }

    /// True if the lab's own client sees every brick again.
    fn is_back(&self, volume: Volume) -> Result<bool> {
        let target = self.mount_point(volume);
        Ok(crate::mounts::at(&target)?.is_none() || client::reaches_all(&target, volume))
    }

    /// Bricks of a volume with a running process.
    pub(super) fn live_bricks(&self, volume: Volume) -> Result<Vec<(usize, Process)>> {
        let mut live = Vec::new();
        for process in server::processes(&self.home)? {
            let words = server::arguments(process);
            let Some(at) = words.iter().position(|word| word == "--brick-name") else { continue };
            let named = words.get(at + 1);
            let n = (1..=volume.bricks())
                .find(|&n| named.is_some_and(|name| volume.brick(n).as_os_str() == &**name));
            live.extend(n.map(|n| (n, process)));
        }
        live.sort_by_key(|(n, _)| *n);
        Ok(live)
    }

    pub(super) fn thaw_processes(&self) -> Result<()> {
        let still = server::processes(&self.home)?.into_iter().filter(|p| server::is_stopped(*p));
        still.into_iter().try_for_each(|process| process.signal(Signal::CONT))
    }

    fn brick(&self, volume: Volume, n: usize) -> Result<Process> {
        ensure!((1..=volume.bricks()).contains(&n), "{volume} has {} bricks, none is {n}", volume.bricks());
        let live = self.live_bricks(volume)?;
        let found = live.into_iter().find(|(brick, _)| *brick == n).map(|(_, process)| process);
        found.with_context(|| format!("brick {n} of {volume} does not run"))
    }
}
