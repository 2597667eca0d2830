//! The ground of an experiment where the user has none: GlusterFS volumes or XFS branches of the lab, with pools and rivals
//! mounted over them. Everything that is made here goes when it drops; a GlusterFS lab stays up for the next run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use fsstack_lab::branch::{Kind, Layout};
use fsstack_lab::daemon::{self, Process};
use fsstack_lab::disks::{Disks, Stack};
use fsstack_lab::ganesha::{self, Ganesha};
use fsstack_lab::gluster::{self, Gluster, Purge, Steps, Volume};
use fsstack_lab::ledger::{self, Entry};
use fsstack_lab::network::Rate;
use fsstack_lab::rival::{Rival, Union};
use fsstack_lab::shell::command;
use fsstack_lab::{Branch, MiB, needs};

use crate::place::Target;
use crate::plan::Export;
use crate::rivals::{first_line, options};

/// What `--lab` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kinds {
    /// GlusterFS volumes in a container, as `cargo xtask lab` makes them.
    Gluster,
    /// XFS on loop devices over images in memory: no GlusterFS needed.
    Xfs,
}

/// A lab as it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Lab {
    pub(crate) kind: Kinds,
    /// Volumes instead of the experiment's own.
    pub(crate) volumes: Vec<Volume>,
    pub(crate) wan: Option<Rate>,
    pub(crate) brick_size: MiB,
    /// The size of an XFS branch.
    pub(crate) branch_size: MiB,
}

/// Directories to measure or to stack upon.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// By name.
    pub(crate) dirs: Vec<(String, PathBuf)>,
    /// (target, what is known of it).
    pub(crate) notes: Vec<(String, String)>,
    _branches: Vec<Branch>,
    _home: Option<Entry>,
}

impl Lab {
    /// The volumes, or as many XFS branches under the names of the volumes.
    pub(crate) fn parts(&self, volumes: &[&str]) -> Result<Parts> {
        let named: Result<Vec<Volume>, _> = volumes.iter().map(|name| name.parse()).collect();
        let volumes = if self.volumes.is_empty() { named? } else { self.volumes.clone() };
        match self.kind {
            Kinds::Gluster => self.gluster(&volumes),
            Kinds::Xfs => self.xfs(volumes.len()),
        }
    }

    fn gluster(&self, volumes: &[Volume]) -> Result<Parts> {
        let missing = needs::gluster_ground();
        missing.map_err(|skip| {
            anyhow::anyhow!(
                "--lab {skip}: `cargo xtask lab up` installs what it can, `--lab xfs` does without"
            )
        })?;
        let bricks = volumes.iter().map(|volume| volume.bricks()).max().unwrap_or(8).max(8);
        let (wan, brick_size) = (self.wan, self.brick_size);
        let plan = gluster::Plan { volumes: volumes.to_vec(), bricks, brick_size, wan, engine: None };
        let lab = Gluster::named("lab")?;
        lab.up(&plan, Steps::Quiet).context("bringing the GlusterFS lab up")?;
        let mut parts = Parts::default();
        for &volume in volumes {
            let name = volume.to_string();
            let bears = match volume.bears() {
                0 => "loses files with a brick".to_owned(),
                1 => "bears the loss of a brick".to_owned(),
                more => format!("bears the loss of {more} bricks"),
            };
            let far = self.wan.map_or(String::new(), |rate| format!(", behind a link of {rate}"));
            parts.notes.push((name.clone(), format!("{} bricks, {bears}{far}", volume.bricks())));
            parts.dirs.push((name, lab.mount_point(volume)));
        }
        Ok(parts)
    }

    /// That many XFS branches, called `xfs1` and so on.
    pub(crate) fn xfs(&self, count: usize) -> Result<Parts> {
        needs::loops().map_err(|skip| anyhow::anyhow!("--lab xfs {skip}"))?;
        let home = ledger::fresh("bench")?;
        let mut parts = Parts { _home: Some(Entry::dir(&home)?), ..Parts::default() };
        for n in 1..=count {
            let name = format!("xfs{n}");
            let branch = Branch::make(&name, Kind::Xfs(self.branch_size), Layout::Sparse, &home)?;
            parts.dirs.push((name, branch.path().to_owned()));
            parts._branches.push(branch);
        }
        Ok(parts)
    }
}

/// A pool that we mounted.
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

/// What was mounted and made for an experiment.
#[derive(Debug, Default)]
pub(crate) struct Ground {
    // Dropped in this order: what is stacked before what it stands on.
    servers: Vec<Ganesha>,
    pools: Vec<Pool>,
    rivals: Vec<Rival>,
    /// The pools' and rivals' directories on what they are stacked upon.
    inner: Vec<Entry>,
    disks: Vec<Standing>,
    parts: Vec<Parts>,
    homes: Vec<Entry>,
}

impl Ground {
    /// Keeps what pools were stacked upon.
    pub(crate) fn keep(&mut self, parts: Parts) {
        self.parts.push(parts);
    }

    fn home(&mut self) -> Result<PathBuf> {
        let home = ledger::fresh("bench")?;
        self.homes.push(Entry::dir(&home)?);
        Ok(home)
    }

    /// A directory of its own in each: no two pools may share a branch.
    fn own(&mut self, name: &str, dirs: &[&Path]) -> Result<Vec<PathBuf>> {
        let mut own = Vec::new();
        for dir in dirs {
            let path = dir.join(format!(".fsstack-bench-{name}"));
            self.inner.push(Entry::dir(&path)?);
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

    /// Has an NFS server of its own show a target.
    pub(crate) fn export(&mut self, target: &Target) -> Result<Export> {
        let home = self.home()?.join("server");
        let server = Ganesha::try_serve(&target.dir, &home)?;
        let export = Export {
            target: target.name.clone(),
            server: server.address(),
            pid: server.pid().context("the server has ended")?,
            root: ganesha::ROOT.into(),
        };
        self.servers.push(server);
        Ok(export)
    }

    /// Mounts mhddfs and mergerfs over the same; each with the reason if it is not there.
    pub(crate) fn rivals(
        &mut self,
        group: &str,
        branches: &[&Path],
    ) -> Result<Vec<(String, Result<Target, String>)>> {
        let home = self.home()?;
        let mut told = Vec::new();
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
            told.push((name, mounted));
        }
        Ok(told)
    }

    fn rival(&mut self, union: Union, name: &str, dirs: &[&Path], at: &Path) -> Result<Rival> {
        let mut own = self.own(name, dirs)?;
        if union == Union::Mhddfs && own.len() == 1 {
            // It takes two branches at least.
            own.extend(self.own(&format!("{name}-2"), dirs)?);
        }
        let own: Vec<&Path> = own.iter().map(PathBuf::as_path).collect();
        Rival::mount(union, &own, at, options(union))
    }

    /// A file system on each kind of disk that can be made here; the reason where it cannot.
    pub(crate) fn disks(&mut self, kinds: &[&str], size: MiB) -> Vec<(String, Result<Target, String>)> {
        let made = |kind: &&str| ((*kind).to_owned(), self.disk(kind, size).map_err(|e| first_line(&e)));
        kinds.iter().map(made).collect()
    }

    fn disk(&mut self, kind: &str, size: MiB) -> Result<Target> {
        let disks = Disks::of("bench", kind.parse()?)?;
        if let Stack::Raidz(compression) = disks.stack()
            && let Some(raidz) = self.disks.iter().find(|up| matches!(up.0.stack(), Stack::Raidz(_)))
        {
            // There is one zfs-fuse on a machine: this is a second file system on its disks.
            return Ok(Target { name: kind.to_owned(), dir: raidz.0.twin(compression)? });
        }
        // Four as in the publication, where they are one file system.
        let made = disks.up(if kind.contains("raid") { 4 } else { 1 }, size, Steps::Quiet);
        // Also what was made before something failed is taken down.
        self.disks.push(Standing(disks));
        let dir = made?.into_iter().next().context("no file system was mounted")?;
        Ok(Target { name: kind.to_owned(), dir })
    }
}

/// Disks that go when this drops.
#[derive(Debug)]
struct Standing(Disks);

impl Drop for Standing {
    fn drop(&mut self) {
        if let Err(e) = self.0.down(Purge::Everything, Steps::Quiet) {
            eprintln!("fsstack-bench: taking down {}: {e:#}", self.0.stack());
        }
    }
}
