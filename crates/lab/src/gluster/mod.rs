//! A real GlusterFS on this machine: brick images, a server in a container, volumes, and their mounts.
//!
//! One lab is one directory, shared by all its users. `up` checks each thing before it makes it, so it repairs broken
//! parts and continues a killed run. Everything that it makes is recorded in the cleanup journal first.

mod bricks;
mod client;
mod fault;
mod image;
mod part;
pub mod server;
mod status;
mod steps;
mod volume;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::cleanup::{Standing, state_dir};
use crate::network::{Namespace, Rate};
use crate::shell::Run;
use crate::{MiB, mounts};

pub use fault::Which;
pub(crate) use part::Part;
pub use part::{KINDS, TESTS, lab_of_tests, plan_of_tests};
pub use status::{BrickStatus, Status, VolumeStatus};
pub use steps::Steps;
pub use volume::{NoVolume, Volume};

/// Where the server has its bricks.
const BRICKS: &str = "/bricks";

/// Seconds until a client gives up a silent server; with GlusterFS's default of 42 every fault takes long.
const PING_TIMEOUT: &str = "5";

/// Settings of every volume.
const SETTINGS: [(&str, &str); 5] = [
    // Otherwise a brick that was full counts as full for some seconds more.
    ("storage.reserve", "0"),
    ("performance.write-behind", "off"),
    ("performance.read-ahead", "off"),
    ("performance.cache-invalidation", "on"),
    ("network.ping-timeout", PING_TIMEOUT),
];

/// Content of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its volumes, all over the same bricks.
    pub volumes: Vec<Volume>,
    /// Number of bricks.
    pub bricks: usize,
    /// Size of each; sparse.
    pub brick_size: MiB,
    /// Rate of the link between clients and server, if it is limited.
    pub wan: Option<Rate>,
    /// `podman`, `docker` or `chroot`, instead of the first that works.
    pub engine: Option<String>,
}

impl Default for Plan {
    fn default() -> Self {
        let brick_size = MiB(4096);
        Self { volumes: Volume::PUBLISHED.to_vec(), bricks: 8, brick_size, wan: None, engine: None }
    }
}

/// A lab by name, up or not.
#[derive(Clone, Debug)]
pub struct Gluster {
    home: PathBuf,
    book: Standing,
    files: Standing,
}

impl Gluster {
    /// The lab called `name`.
    pub fn named(name: &str) -> Result<Self> {
        Ok(Self {
            home: state_dir()?.join("gluster").join(name),
            book: Standing::named(&format!("gluster-{name}"))?,
            files: Standing::named(&format!("gluster-{name}-files"))?,
        })
    }

    /// Its directory.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Mount point of a volume.
    #[must_use]
    pub fn mount_point(&self, volume: Volume) -> PathBuf {
        self.home.join("mnt").join(volume.to_string())
    }

    /// Journal for mounts on top of the lab; `down` takes them down first.
    #[must_use]
    pub fn book(&self) -> &Standing {
        &self.book
    }

    /// Makes, starts, mounts and repairs everything in the plan.
    pub fn up(&self, plan: &Plan, steps: Steps) -> Result<()> {
        let least = plan.volumes.iter().max_by_key(|volume| volume.bricks());
        if let Some(volume) = least.filter(|volume| plan.bricks < volume.bricks()) {
            bail!("{volume} needs {} bricks, there are {}: say --bricks", volume.bricks(), plan.bricks);
        }
        ensure!(crate::needs::root().is_ok(), "a GlusterFS lab needs root");
        let _one_at_a_time = self.lock()?;
        let rootfs = image::ensure(steps)?;
        self.files.dir(&self.home)?;
        for dir in ["img", "bricks", "state", "log", "mnt"] {
            fs::create_dir_all(self.home.join(dir))?;
        }
        steps.step(&format!("{} bricks", plan.bricks), || {
            bricks::ensure(self, plan.bricks, plan.brick_size)
        })?;
        steps.step("network", || self.connect(plan.wan))?;
        self.serve(plan, &rootfs, steps)?;
        for &volume in &plan.volumes {
            if !self.is_started(volume) || !self.is_whole(volume)? {
                steps.step(&format!("volume {volume}"), || self.ensure_volume(volume))?;
            }
        }
        for &volume in &plan.volumes {
            client::ensure(self, volume, steps)?;
        }
        Ok(())
    }

    /// Takes everything down; with `purge` also the files that make a later start faster.
    pub fn down(&self, purge: Purge, steps: Steps) -> Result<()> {
        let _one_at_a_time = self.lock()?;
        steps.step("server", || server::remove(&self.home))?;
        steps.step("mounts and network", || self.book.take_down().map(drop))?;
        if purge != Purge::Nothing {
            steps.step("images", || self.purge(purge))?;
        }
        let left = status::left(self)?;
        ensure!(left.is_empty(), "this is left of the lab: {}", left.join(", "));
        steps.note("nothing is left: no mount, loop device, namespace, process or control group")
    }

    /// Runs a program inside the server.
    pub fn inside(&self, program: &str) -> Result<Run> {
        server::inside(&self.home, program)
    }

    /// Runs one gluster CLI command and returns its output.
    pub fn gluster(&self, words: &[&str]) -> Result<String> {
        let began = Instant::now();
        loop {
            let run =
                self.inside("gluster")?.arg("--mode=script").args(words).limit(Duration::from_secs(120));
            let output = run.output()?;
            // The request of a killed process is still running.
            let busy = output.code != 0 && output.stderr.contains("Another transaction is in progress");
            if !busy || Duration::from_secs(60) < began.elapsed() {
                return Ok(output.check()?.stdout);
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// Runs a program here, in the clients' network.
    pub fn beside(&self, program: &str) -> Run {
        self.clients().run(program)
    }

    /// Mounts a volume, or the directory `below` of one, once more, with `options` of mount.glusterfs.
    pub fn mount(&self, volume: Volume, below: &str, options: &str, target: &Path) -> Result<()> {
        client::mount(self, volume, below, options, target)
    }

    /// Locks the lab for one user until the file is dropped; refused while it is locked.
    pub fn claim(&self) -> Result<fs::File> {
        let dir = self.home.parent().context("labs have a directory")?;
        fs::create_dir_all(dir)?;
        let claim = fs::File::create(self.home.with_extension("claim"))?;
        let name = self.home.file_name().unwrap_or_default().display();
        match flock(&claim, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                bail!("another run measures in the GlusterFS lab {name}: wait for its end")
            }
            done => done?,
        }
        Ok(claim)
    }

    fn lock(&self) -> Result<fs::File> {
        let dir = self.home.parent().context("labs have a directory")?;
        fs::create_dir_all(dir)?;
        let lock = fs::File::create(self.home.with_extension("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }

    fn network(&self) -> Namespace {
        server::namespace(&self.home)
    }

    /// Network namespaces of the server and of the clients.
    pub(crate) fn networks(&self) -> (PathBuf, PathBuf) {
        (self.network().path(), self.clients().path())
    }

    /// Namespace at the far end of the slow link.
    fn far(&self) -> Namespace {
        Namespace::named(&format!("{}-far", server::name_of(&self.home)))
    }

    fn clients(&self) -> Namespace {
        let far = self.far();
        if far.exists() { far } else { self.network() }
    }

    fn connect(&self, wan: Option<Rate>) -> Result<()> {
        let (near, far) = (self.network(), self.far());
        near.ensure(&self.book)?;
        if wan.is_some() != far.exists() {
            let pool = mounts::at(&self.home.join("pool"))?;
            ensure!(pool.is_none(), "its clients change their network: `lab pool --down` first");
            // Clients stay in the network in which they were mounted.
            client::unmount_all(self)?;
        }
        match wan {
            Some(rate) => near.link(&far, rate, &self.book)?,
            None => crate::network::remove_namespace(&far.path())?,
        }
        near.mend()
    }

    fn serve(&self, plan: &Plan, rootfs: &Path, steps: Steps) -> Result<()> {
        self.thaw_processes()?;
        let other = |family: &str| server::engine(&self.home).is_none_or(|engine| engine.family() != family);
        let runs = server::init(&self.home).is_some();
        if !runs || plan.engine.as_deref().is_some_and(other) {
            self.book.server(&self.home)?;
            steps.step("server", || server::start(&self.home, rootfs, plan.engine.as_deref()).map(drop))?;
        }
        self.bricks_are_seen()
    }

    /// Checks that the server sees the bricks' mounts; otherwise it would write to the disk below.
    fn bricks_are_seen(&self) -> Result<()> {
        let names = bricks::mounted(self)?;
        let paths = names.iter().map(|name| format!("{BRICKS}/{name}"));
        let output = self.inside("stat")?.args(["-f", "-c", "%T"]).args(paths).run()?.stdout;
        ensure!(
            output.lines().all(|kind| kind == "xfs"),
            "the server does not see the bricks' mounts: {output}"
        );
        Ok(())
    }

    fn ensure_volume(&self, volume: Volume) -> Result<()> {
        let name = volume.to_string();
        if !self.gluster(&["volume", "list"])?.lines().any(|line| line.trim() == name) {
            let words = volume.create_arguments();
            let words: Vec<&str> =
                ["volume", "create"].into_iter().chain(words.iter().map(String::as_str)).collect();
            self.gluster(&words)?;
        }
        if !self.is_set(volume) {
            let settings = SETTINGS.iter().flat_map(|(key, value)| [*key, *value]);
            let words: Vec<&str> = ["volume", "set", &name].into_iter().chain(settings).collect();
            self.gluster(&words)?;
        }
        // For a volume that is started already, only `force` starts missing bricks.
        self.gluster(&["volume", "start", &name, "force"]).map(drop)
    }

    /// The server's own description of a volume.
    fn info(&self, volume: Volume) -> String {
        let info = self.home.join("state/vols").join(volume.to_string()).join("info");
        fs::read_to_string(info).unwrap_or_default()
    }

    fn is_started(&self, volume: Volume) -> bool {
        self.is_set(volume) && self.info(volume).lines().any(|line| line == "status=1")
    }

    fn is_set(&self, volume: Volume) -> bool {
        let info = self.info(volume);
        SETTINGS.iter().all(|(key, value)| info.lines().any(|line| line == format!("{key}={value}")))
    }

    fn is_whole(&self, volume: Volume) -> Result<bool> {
        Ok(self.live_bricks(volume)?.len() == volume.bricks())
    }

    fn purge(&self, purge: Purge) -> Result<()> {
        client::release_mount_points(self)?;
        if server::engine(&self.home) == Some(server::Engine::Docker) {
            let image = format!("{}:1", server::name_of(&self.home));
            crate::shell::command("docker").args(["rmi", "-f", &image]).output()?;
        }
        self.files.take_down()?;
        let dir = self.home.parent().context("labs have a directory")?;
        let homes = fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path()));
        if purge == Purge::Everything && !homes.into_iter().any(|home| home.is_dir()) {
            image::remove()?;
        }
        Ok(())
    }
}

/// Extent of `down`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purge {
    /// Stops and unmounts everything.
    Nothing,
    /// Also removes the lab's files: images of its bricks, and its volumes with them.
    Bricks,
    /// Also removes the server's image, if no other lab has files.
    Everything,
}
