//! Status of a lab: its running parts, and leftovers of one that should be down.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::fs::statvfs;

use super::{Gluster, bricks, client, server};
use crate::branch::BALLAST;
use crate::mounts;

/// A lab at one moment.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Status {
    /// Its directory.
    pub home: PathBuf,
    /// Engine that runs the server; none if it does not run.
    pub engine: Option<String>,
    /// The server's first process.
    pub server: Option<i32>,
    /// Some of the server's processes are frozen.
    pub frozen: bool,
    /// The network between clients and server is cut.
    pub cut: bool,
    /// Clients are behind a slow link.
    pub wan: bool,
    /// Its bricks.
    pub bricks: Vec<BrickStatus>,
    /// Its volumes.
    pub volumes: Vec<VolumeStatus>,
}

/// A brick's file system.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BrickStatus {
    /// `b1` and so on.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Bytes that may be taken.
    pub free: u64,
    /// A fault has filled it.
    pub filled: bool,
}

/// A volume.
#[derive(Clone, Debug, serde::Serialize)]
pub struct VolumeStatus {
    /// Its name, which is its type.
    pub name: String,
    /// How many bricks it has.
    pub bricks: usize,
    /// How many of them run.
    pub alive: usize,
    /// Where it is mounted, if it is.
    pub mount: Option<PathBuf>,
    /// The mount answers.
    pub usable: bool,
}

impl Gluster {
    /// Collects the status without changing anything.
    pub fn status(&self) -> Result<Status> {
        let processes = server::processes(&self.home)?;
        let init = server::init(&self.home);
        let network = self.network();
        let frozen = processes.iter().any(|process| server::is_stopped(*process));
        Ok(Status {
            home: self.home.clone(),
            engine: init.and(server::engine(&self.home)).map(server::Engine::name),
            server: init.map(|process| process.pid),
            frozen,
            cut: network.exists() && network.is_cut()?,
            wan: self.far().exists(),
            bricks: bricks::mounted(self)?.iter().map(|name| brick(self, name)).collect::<Result<_>>()?,
            volumes: self.volume_statuses()?,
        })
    }

    fn volume_statuses(&self) -> Result<Vec<VolumeStatus>> {
        let Ok(entries) = fs::read_dir(self.home.join("state/vols")) else { return Ok(Vec::new()) };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut volumes: Vec<super::Volume> = names.filter_map(|name| name.parse().ok()).collect();
        volumes.sort();
        volumes.into_iter().map(|volume| self.volume_status(volume)).collect()
    }

    fn volume_status(&self, volume: super::Volume) -> Result<VolumeStatus> {
        let target = self.mount_point(volume);
        let mounted = mounts::at(&target)?.is_some();
        Ok(VolumeStatus {
            name: volume.to_string(),
            bricks: volume.bricks(),
            alive: self.live_bricks(volume)?.len(),
            usable: mounted && client::usable(&target),
            mount: mounted.then_some(target),
        })
    }
}

fn brick(lab: &Gluster, name: &str) -> Result<BrickStatus> {
    let dir = lab.home().join("bricks").join(name);
    let stat = statvfs(&dir)?;
    Ok(BrickStatus {
        name: name.to_owned(),
        size: stat.f_blocks * stat.f_frsize,
        free: stat.f_bavail * stat.f_frsize,
        filled: dir.join(BALLAST).exists(),
    })
}

/// Leftovers of a lab that was taken down, each named; clients get a moment to end.
pub(super) fn left(lab: &Gluster) -> Result<Vec<String>> {
    let began = Instant::now();
    loop {
        let left = left_now(lab)?;
        if left.is_empty() || Duration::from_secs(5) < began.elapsed() {
            return Ok(left);
        }
        sleep(Duration::from_millis(50));
    }
}

fn left_now(lab: &Gluster) -> Result<Vec<String>> {
    let home = lab.home();
    let mut left: Vec<String> =
        mounts::below(home)?.iter().map(|m| format!("mount {}", m.target.display())).collect();
    left.extend(loops(home)?);
    for namespace in [lab.network(), lab.far()].iter().filter(|namespace| namespace.exists()) {
        left.push(format!("namespace {}", namespace.path().display()));
    }
    left.extend(processes(home)?);
    let groups = server::groups(&server::name_of(home));
    left.extend(groups.iter().map(|group| format!("control group {}", group.display())));
    Ok(left)
}

/// Loop devices whose file lies in the lab.
fn loops(home: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let dir = entry?.path();
        let Ok(file) = fs::read_to_string(dir.join("loop/backing_file")) else { continue };
        if Path::new(file.trim_end()).starts_with(home) {
            found.push(format!("loop device {}", dir.display()));
        }
    }
    Ok(found)
}

/// Processes of GlusterFS and of containers that were started for the lab.
fn processes(home: &Path) -> Result<Vec<String>> {
    // With the slash, because another lab's name may begin with this one's.
    let ours = format!("{}/", home.display());
    let programs = ["glusterfs", "glusterfsd", "glusterd", "conmon", "podman", "unshare"];
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Some(process) = crate::daemon::Process::of(pid) else { continue };
        let words = server::arguments(process);
        let program = words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default();
        if programs.contains(&program) && words.iter().any(|word| word.contains(&ours)) {
            found.push(format!("process {pid} ({program})"));
        }
    }
    Ok(found)
}
