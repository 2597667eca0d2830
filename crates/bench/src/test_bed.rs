//! Targets for experiments without any from the user: GlusterFS volumes or XFS branches of the lab, with pools and
//! rivals over them. Removed on drop, except that a GlusterFS lab stays up for the next run.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use fsstack_lab::branch::Kind;
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::daemon::{self, Process};
use fsstack_lab::disk_limit::{Device, DiskLimit};
use fsstack_lab::disks::{Disks, Stack};
use fsstack_lab::ganesha::{self, Ganesha};
use fsstack_lab::gluster::{self, Gluster, Purge, Steps, Volume};
use fsstack_lab::network::Rate;
use fsstack_lab::rival::{Rival, Union};
use fsstack_lab::shell::command;
use fsstack_lab::{Branch, MiB, needs};
use rustix::fs::statvfs;

use crate::images;
use crate::memory::{self, HeldMemory};
use crate::plan::Export;
use crate::rivals::{first_line, options};
use crate::target::Target;
use crate::workload::Bytes;

/// Test beds of `--lab`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kinds {
    /// GlusterFS volumes in a container, as `cargo xtask lab` makes them.
    Gluster,
    /// XFS on loop devices over images in memory: no GlusterFS needed.
    Xfs,
}

/// Options of a lab.
#[derive(Clone, Debug)]
pub(crate) struct Lab {
    pub(crate) kind: Kinds,
    /// Volumes instead of the experiment's own.
    pub(crate) volumes: Vec<Volume>,
    pub(crate) wan: Option<Rate>,
    /// Most that each disk does.
    pub(crate) limit: DiskLimit,
    /// Memory that the run, and the daemons of its pools, are held to.
    pub(crate) memory: Option<Bytes>,
    /// Bytes that its volumes or branches must hold at once, in total.
    pub(crate) needed: u64,
}

/// Directories to measure or to stack upon.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// By name.
    pub(crate) dirs: Vec<(String, PathBuf)>,
    /// (target, note)
    pub(crate) notes: Vec<(String, String)>,
    /// (target, number of bricks that may be lost before a file is)
    pub(crate) bears: Vec<(String, u32)>,
    /// Description of the disks.
    pub(crate) disks: String,
    /// Rules that hold the disks to a rate.
    _limits: Vec<Entry>,
    _memory: Option<HeldMemory>,
    _branches: Vec<Branch>,
    _home: Option<Entry>,
    /// Lock against other users of the lab.
    _claim: Option<File>,
}

impl Lab {
    /// Makes the volumes, or as many XFS branches with the volumes' names.
    pub(crate) fn parts(&self, volumes: &[&str]) -> Result<Parts> {
        let named: Result<Vec<Volume>, _> = volumes.iter().map(|name| name.parse()).collect();
        let volumes = if self.volumes.is_empty() { named? } else { self.volumes.clone() };
        match self.kind {
            Kinds::Gluster => self.gluster(&volumes),
            Kinds::Xfs => self.xfs(volumes.len()),
        }
    }

    /// Holds this run to the memory that was asked for, once its images exist.
    pub(crate) fn hold_memory(&self, disks: &str) -> Result<Option<HeldMemory>> {
        let Some(memory) = self.memory else { return Ok(None) };
        ensure!(
            !(disks.contains("in memory") && disks.contains("sparse")),
            "--memory: the lab's images do not fit into memory twice over, and what is written to them would count: \
             set FSSTACK_LAB_DIR to a directory on a disk, or measure mounts of your own by --target"
        );
        memory::hold(memory).map(Some)
    }

    /// Number of parts.
    pub(crate) fn count(&self, volumes: &[&str]) -> usize {
        if self.volumes.is_empty() { volumes.len() } else { self.volumes.len() }
    }

    fn gluster(&self, volumes: &[Volume]) -> Result<Parts> {
        let missing = needs::gluster_ground();
        missing.map_err(|skip| {
            anyhow::anyhow!(
                "--lab {skip}: `cargo xtask lab up` installs what it can, `--lab xfs` does without"
            )
        })?;
        let bricks = volumes.iter().map(|volume| volume.bricks()).max().unwrap_or(8).max(8);
        let (wan, brick_size) = (self.wan, self.brick_size());
        let plan = gluster::Plan { volumes: volumes.to_vec(), bricks, brick_size, wan, engine: None };
        let lab = Gluster::named("lab")?;
        let claim = lab.claim()?;
        // Everything may be on the volume with the greatest overhead. Existing images have their space already.
        let most = volumes.iter().map(|volume| volume.on_bricks(self.needed)).max().unwrap_or(0);
        room(most.saturating_sub(taken(&lab.home().join("img"))))?;
        lab.up(&plan, Steps::Beside).context("bringing the GlusterFS lab up")?;
        let images = lab.home().join("img");
        let disks = images::allocate(&images, self.limit)?;
        let limits = self.limit.hold(&Device::of_images(&images)?)?;
        let mut parts = Parts { _claim: Some(claim), _limits: limits, disks, ..Parts::default() };
        for &volume in volumes {
            let name = volume.to_string();
            let far = self.wan.map_or(String::new(), |rate| format!(", behind a link of {rate}"));
            parts.notes.push((name.clone(), format!("{} bricks{far}", volume.bricks())));
            parts.bears.push((name.clone(), u32::try_from(volume.bears())?));
            parts.dirs.push((name, lab.mount_point(volume)));
        }
        parts._memory = self.hold_memory(&parts.disks)?;
        Ok(parts)
    }

    /// Makes XFS branches called `xfs1` and so on.
    pub(crate) fn xfs(&self, count: usize) -> Result<Parts> {
        needs::loops().map_err(|skip| anyhow::anyhow!("--lab xfs {skip}"))?;
        room(self.needed)?;
        // Each may have to hold everything, and the file system needs some space.
        let size = MiB(((self.needed / 8 * 9) >> 20) + 1024).max(MiB(2 << 10));
        let home = cleanup::fresh("bench")?;
        let layout = images::layout(MiB(size.0 * count as u64));
        let disks = images::described(Path::new("/dev/shm"), layout, self.limit);
        let mut parts = Parts { _home: Some(Entry::dir(&home)?), disks, ..Parts::default() };
        for n in 1..=count {
            let name = format!("xfs{n}");
            let branch = Branch::make(&name, Kind::Xfs(size), layout, &home)?;
            parts.dirs.push((name, branch.path().to_owned()));
            parts._branches.push(branch);
        }
        let devices: Result<Vec<Device>> = parts.dirs.iter().map(|(_, dir)| Device::below(dir)).collect();
        parts._limits = self.limit.hold(&devices?)?;
        parts._memory = self.hold_memory(&parts.disks)?;
        Ok(parts)
    }
}

impl Lab {
    /// The lab's default brick size, unless the data might not fit.
    fn brick_size(&self) -> MiB {
        let (wanted, quick) = (self.needed >> 20, gluster::Plan::default().brick_size);
        // Few different sizes, sparse: existing bricks are reused only if the size matches.
        if wanted < quick.0 / 4 * 3 { quick } else { MiB((2 * wanted).next_power_of_two().max(64 << 10)) }
    }
}

/// Refuses if the disk cannot hold the data: the lab's images are sparse.
pub(crate) fn room(needed: u64) -> Result<()> {
    let dir = cleanup::state_dir()?;
    let stat = statvfs(&dir)?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    ensure!(
        needed < free,
        "the lab's disks are files in {}, which has {} free, and the plan may write {} to them: \
         set FSSTACK_LAB_DIR to a roomier place, or measure mounts of your own by --target",
        dir.display(),
        Bytes(free),
        Bytes(needed)
    );
    Ok(())
}

/// Allocated bytes of a directory's files.
fn taken(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|found| found.blocks() * 512).sum()
}

/// A pool of this test bed.
#[derive(Debug)]
struct Pool {
    daemon: Process,
    // Dropped in this order.
    mount: Option<Entry>,
    _dir: Entry,
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            let undone = mount.undo().and_then(|()| self.daemon.wait(Duration::from_secs(10)));
            if let Err(e) = undone {
                eprintln!("fsstack-bench: unmounting a pool: {e:#}");
            }
        }
    }
}

/// Mounts and directories of an experiment.
#[derive(Debug, Default)]
pub(crate) struct TestBed {
    // Dropped in this order: upper layers before lower ones.
    servers: Vec<Arc<Mutex<Ganesha>>>,
    pools: Vec<Pool>,
    rivals: Vec<Rival>,
    /// Directories of the pools and rivals on the layers below.
    inner: Vec<Entry>,
    limits: Vec<Entry>,
    memory: Option<HeldMemory>,
    disks: Vec<Standing>,
    /// Description of the disks.
    pub(crate) about_disks: String,
    parts: Vec<Parts>,
    homes: Vec<Entry>,
}

impl TestBed {
    /// Nothing but a memory that this process is held to.
    pub(crate) fn held_to(memory: Option<Bytes>) -> Result<Self> {
        Ok(Self { memory: memory.map(memory::hold).transpose()?, ..Self::default() })
    }

    /// Keeps this process held to a memory.
    pub(crate) fn keep_memory(&mut self, held: Option<HeldMemory>) {
        self.memory = held;
    }

    /// Keeps what pools were stacked upon.
    pub(crate) fn keep(&mut self, parts: Parts) {
        self.parts.push(parts);
    }

    fn home(&mut self) -> Result<PathBuf> {
        let home = cleanup::fresh("bench")?;
        self.homes.push(Entry::dir(&home)?);
        Ok(home)
    }

    /// Makes a directory in each: pools and runs must not share a branch.
    fn own(&mut self, name: &str, dirs: &[&Path]) -> Result<Vec<PathBuf>> {
        let mut own = Vec::new();
        for dir in dirs {
            let path = dir.join(format!(".fsstack-bench-{name}-{}", std::process::id()));
            self.inner.push(Entry::new_dir(&path)?);
            own.push(path);
        }
        Ok(own)
    }

    /// Mounts a pool over directories.
    pub(crate) fn pool(&mut self, name: &str, branches: &[&Path], options: &str) -> Result<Target> {
        let target = self.home()?.join("pool");
        let dir = Entry::dir(&target)?;
        let mount = Entry::mount(&target)?;
        let branches = self.own(name, branches)?;
        let source = branches.iter().map(|b| b.display().to_string()).collect::<Vec<_>>().join(":");
        let run = command(daemon::helper()?).arg(source).arg(&target).arg("-o").arg(options);
        run.limit(Duration::from_secs(60)).run().with_context(|| format!("mounting the pool {name}"))?;
        let daemon = daemon::server_of(&target)?;
        self.pools.push(Pool { daemon, mount: Some(mount), _dir: dir });
        Ok(Target { name: name.to_owned(), dir: target })
    }

    /// Exports a target by its own NFS server.
    pub(crate) fn export(&mut self, target: &Target) -> Result<Export> {
        let home = self.home()?.join("server");
        let server = Ganesha::try_serve(&target.dir, &home)?;
        Ok(self.shown(target, server))
    }

    /// Exports a volume of the lab by its own NFS server, which is a client of the volume itself.
    pub(crate) fn export_volume(&mut self, target: &Target) -> Result<Export> {
        let home = self.home()?.join("server");
        let server = Ganesha::try_serve_volume(&Gluster::named("lab")?, target.name.parse()?, &home)?;
        Ok(self.shown(target, server))
    }

    fn shown(&mut self, target: &Target, server: Ganesha) -> Export {
        let (address, network) = (server.address(), server.network().map(Path::to_owned));
        let server = Arc::new(Mutex::new(server));
        let owner = Arc::downgrade(&server);
        self.servers.push(server);
        Export { target: target.name.clone(), server: address, network, owner, root: ganesha::ROOT.into() }
    }

    /// Mounts mhddfs and mergerfs over the same directories; each may fail with a reason.
    pub(crate) fn rivals(
        &mut self,
        group: &str,
        branches: &[&Path],
    ) -> Result<Vec<(String, Result<Target, String>)>> {
        let home = self.home()?;
        let mut stat = Vec::new();
        for union in [Union::Mhddfs, Union::Mergerfs] {
            let (name, at) = (format!("{group}{}", union.program()), home.join(union.program()));
            let mounted = match union.installed() {
                Err(skip) => Err(skip.to_string()),
                Ok(()) => match self.rival(union, &name, branches, &at) {
                    Ok(rival) => {
                        self.rivals.push(rival);
                        Ok(Target { name: name.clone(), dir: at })
                    }
                    Err(e) => Err(first_line(&e)),
                },
            };
            stat.push((name, mounted));
        }
        Ok(stat)
    }

    fn rival(&mut self, union: Union, name: &str, dirs: &[&Path], at: &Path) -> Result<Rival> {
        let mut own = self.own(name, dirs)?;
        if union == Union::Mhddfs && own.len() == 1 {
            // It needs at least two branches.
            own.extend(self.own(&format!("{name}-2"), dirs)?);
        }
        let own: Vec<&Path> = own.iter().map(PathBuf::as_path).collect();
        Rival::mount(union, &own, at, options(union))
    }

    /// Makes a file system on each available kind of disk; others with the reason.
    pub(crate) fn disks(
        &mut self,
        kinds: &[&str],
        size: MiB,
        limit: DiskLimit,
    ) -> Vec<(String, Result<Target, String>)> {
        let made =
            |kind: &&str| ((*kind).to_owned(), self.disk(kind, size, limit).map_err(|e| first_line(&e)));
        kinds.iter().map(made).collect()
    }

    fn disk(&mut self, kind: &str, size: MiB, limit: DiskLimit) -> Result<Target> {
        let disks = Disks::of_this_process(kind.parse()?)?;
        if let Stack::Raidz(compression) = disks.stack()
            && let Some(raidz) = self.disks.iter().find(|up| matches!(up.0.stack(), Stack::Raidz(_)))
        {
            // A machine has one zfs-fuse: this is a second file system on its disks.
            return Ok(Target { name: kind.to_owned(), dir: raidz.0.twin(compression)? });
        }
        // Four as in the publication, where they are one file system.
        let made = disks.up(if kind.contains("raid") { 4 } else { 1 }, size, Steps::Beside);
        let images = disks.images();
        // Recorded even after a failure, so that partly made disks are taken down.
        self.disks.push(Standing(disks));
        if made.is_ok() {
            self.about_disks = images::allocate(&images, limit)?;
            self.limits.extend(limit.hold(&Device::of_images(&images)?)?);
        }
        let dir = made?.into_iter().next().context("no file system was mounted")?;
        Ok(Target { name: kind.to_owned(), dir })
    }
}

/// Disks that are removed on drop.
#[derive(Debug)]
struct Standing(Disks);

impl Drop for Standing {
    fn drop(&mut self) {
        if let Err(e) = self.0.down(Purge::Everything, Steps::Quiet) {
            eprintln!("fsstack-bench: taking down {}: {e:#}", self.0.stack());
        }
    }
}
