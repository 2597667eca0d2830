//! A branch for a pool: a plain directory, a tmpfs, or a file system in an image behind a loop device.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FallocateFlags, fallocate, statvfs, syncfs};
use rustix::io::Errno;

use crate::cleanup::Entry;
use crate::daemon::{self, Process};
use crate::gluster::{Part, Volume};
use crate::shell::command;
use crate::{MiB, mounts, must, until};

/// Name of the file that `fill_until_free` writes.
pub const BALLAST: &str = ".lab-ballast";

/// Memory to leave free when an image goes to /dev/shm.
const SPARE_MEMORY: MiB = MiB(1024);

/// Longest wait for a busy branch to become unused.
const BRANCH_BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// File system of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory of the lab; all such branches share one file system.
    Plain,
    /// XFS with reflinks, on a loop device; at least 300 MiB.
    Xfs(MiB),
    /// ext4 on a loop device.
    Ext4(MiB),
    /// btrfs on a loop device; at least 110 MiB.
    Btrfs(MiB),
    /// A tmpfs of its own.
    Tmpfs(MiB),
    /// A directory of a volume of the tests' lab, mounted by a client of its own.
    Gluster(Volume),
    /// A FUSE mount of mergerfs over a plain directory beside it: its daemon can be killed and frozen.
    Served,
    /// The same with inode numbers that do not change by a rename, or when it is mounted again.
    Numbered,
    /// Like [`Self::Served`], without extended attributes, and so without ACLs: like many network file systems.
    Bare,
}

impl Kind {
    /// Whether its files lie in a plain directory beside it.
    fn is_served(self) -> bool {
        matches!(self, Self::Served | Self::Numbered | Self::Bare)
    }
}

/// Allocation of an image's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Blocks are allocated when first written: slow then, cheap for tests.
    #[default]
    Sparse,
    /// All blocks are allocated at once, as measurements need.
    Preallocated,
}

/// A branch; unmounted and deleted on drop.
#[derive(Debug)]
pub struct Branch {
    name: String,
    kind: Kind,
    path: PathBuf,
    image: Option<PathBuf>,
    // Dropped in this order: the mount, its device or daemon, the directory below.
    mount: Option<Entry>,
    image_entry: Option<Entry>,
    part: Option<Part>,
    dir: Entry,
}

impl Branch {
    /// Makes a branch called `name` in the directory `home`.
    pub fn make(name: &str, kind: Kind, layout: Layout, home: &Path) -> Result<Self> {
        let path = home.join(name);
        let dir = Entry::dir(&path)?;
        let (image, image_entry) = match kind {
            Kind::Plain | Kind::Tmpfs(_) | Kind::Gluster(_) | Kind::Served | Kind::Numbered | Kind::Bare => {
                (None, None)
            }
            Kind::Xfs(size) | Kind::Ext4(size) | Kind::Btrfs(size) => {
                let image = image_dir(size, home)?.join(image_name(&path));
                let entry = Entry::file(&image)?;
                format(&image, kind, size, layout)?;
                (Some(image), Some(entry))
            }
        };
        let part = match kind {
            Kind::Gluster(volume) => Some(Part::make(volume)?),
            _ => None,
        };
        let mut branch =
            Self { name: name.to_owned(), kind, path, image, mount: None, image_entry, part, dir };
        branch.attach()?;
        Ok(branch)
    }

    /// Its name in the pool's description.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its file system.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// File with its file system, for image-backed branches.
    #[must_use]
    pub fn image(&self) -> Option<&Path> {
        self.image.as_deref()
    }

    /// Bytes available to unprivileged users.
    #[must_use]
    #[track_caller]
    pub fn free(&self) -> u64 {
        let stat = must(statvfs(&self.path).map_err(Into::into), "statvfs of a branch");
        stat.f_bavail * stat.f_frsize
    }

    /// Its size in bytes.
    #[must_use]
    #[track_caller]
    pub fn size(&self) -> u64 {
        let stat = must(statvfs(&self.path).map_err(Into::into), "statvfs of a branch");
        stat.f_blocks * stat.f_frsize
    }

    /// Fills it until at most `left` is free.
    #[track_caller]
    pub fn fill_until_free(&self, left: MiB) {
        must(self.fill(left.bytes()), "filling a branch");
    }

    /// Frees what `fill_until_free` took.
    #[track_caller]
    pub fn drop_ballast(&self) {
        let path = self.path.join(BALLAST);
        // Truncated first: XFS frees the blocks of an unlinked file some time later.
        let emptied = OpenOptions::new().write(true).truncate(true).open(&path).map(drop);
        must(emptied.and_then(|()| fs::remove_file(&path)).map_err(Into::into), "removing the ballast");
    }

    /// Remounts it read-only while it is in use.
    #[track_caller]
    pub fn remount_ro(&self) {
        must(self.reconfigure("remount,ro"), "remounting a branch read-only");
    }

    /// Remounts it writable.
    #[track_caller]
    pub fn remount_rw(&self) {
        must(self.reconfigure("remount,rw"), "remounting a branch writable");
    }

    /// Has an ext4 branch that is mounted with `errors=remount-ro` find an error: it refuses all changes until it is mounted again.
    #[track_caller]
    pub fn find_an_error(&self) {
        must(self.reconfigure("remount,errors=remount-ro"), "remounting a branch for an error");
        must(self.trigger_error(), "an error of a branch's file system");
    }

    fn trigger_error(&self) -> Result<()> {
        let found = command("findmnt").args(["-n", "-o", "SOURCE", "--mountpoint"]).arg(&self.path);
        let found = found.output()?.check()?;
        let device = Path::new(found.stdout.trim()).file_name().context("a branch without a device")?;
        let trigger = Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error");
        std::fs::write(&trigger, "1").with_context(|| trigger.display().to_string())
    }

    /// Unmounts it; its directory stays, empty.
    #[track_caller]
    pub fn unmount(&mut self) {
        must(self.mount.take().map_or(Ok(()), Entry::undo), "unmounting a branch");
    }

    /// Detaches its mount while others still use it.
    #[track_caller]
    pub fn unmount_lazily(&mut self) {
        let detached = command("umount").arg("-l").arg(&self.path).run();
        must(detached, "detaching a branch");
        self.mount = None;
    }

    /// Unmounts it by force, as for a dead daemon or stuck callers.
    #[track_caller]
    pub fn unmount_by_force(&mut self) {
        let forced = command("umount").args(["-l", "-f"]).arg(&self.path).run();
        must(forced, "unmounting a branch by force");
        self.mount = None;
    }

    /// The process that serves it, if any.
    #[must_use]
    #[track_caller]
    pub fn daemon(&self) -> Process {
        must(daemon::server_of(&self.path), "a branch's daemon")
    }

    /// Where a served branch has its files, whatever the state of its daemon.
    #[must_use]
    pub fn below(&self) -> PathBuf {
        let mut below = self.path.clone().into_os_string();
        below.push(".below");
        below.into()
    }

    /// Mounts it again after `unmount`.
    #[track_caller]
    pub fn remount(&mut self) {
        must(self.attach(), "mounting a branch again");
    }

    /// Mounts its disk again after the file system on it was shut down or refuses changes, below a running pool. Until all users of that
    /// file system have released it, the kernel mounts it again as it is.
    #[track_caller]
    pub fn revive(&mut self) {
        self.unmount_lazily();
        until("the disk is mounted anew", || {
            self.remount();
            let mode = std::fs::metadata(&self.path).map(|root| root.permissions());
            let is_alive = mode.and_then(|mode| std::fs::set_permissions(&self.path, mode)).is_ok();
            if !is_alive {
                self.unmount_lazily();
            }
            is_alive
        });
    }

    /// Keeps it after this process, until `take_down(name)`.
    pub(crate) fn keep(self, name: &str) -> Result<()> {
        // Entries are taken down last first, so the directory is recorded before its content.
        self.dir.keep(name)?;
        self.image_entry.map_or(Ok(()), |entry| entry.keep(name))?;
        self.mount.map_or(Ok(()), |entry| entry.keep(name))
    }

    fn attach(&mut self) -> Result<()> {
        if let Some(part) = &self.part {
            let entry = Entry::mount(&self.path)?;
            part.mount(&self.path)?;
            self.mount = Some(entry);
            return Ok(());
        }
        let mount = match (self.kind, &self.image) {
            (Kind::Plain, _) => return Ok(()),
            (Kind::Tmpfs(size), _) => command("mount").args([
                "-t",
                "tmpfs",
                "-o",
                &format!("mode=755,size={}", size.bytes()),
                "tmpfs",
            ]),
            (Kind::Served | Kind::Numbered | Kind::Bare, _) => {
                let below = self.below();
                std::fs::create_dir_all(&below)?;
                // Without caches every request reaches the daemon.
                let mut options = "cache.attr=0,cache.entry=0,cache.statfs=0".to_owned();
                match self.kind {
                    Kind::Bare => options.push_str(",xattr=nosys"),
                    Kind::Numbered => options.push_str(",use_ino,inodecalc=devino-hash"),
                    _ => {}
                }
                command("mergerfs").args(["-o", &options]).arg(below)
            }
            // The loop device goes with the mount (autoclear).
            (_, Some(image)) => command("mount").args(["-o", "loop"]).arg(image),
            (_, None) => bail!("branch {} has no image", self.name),
        };
        ensure!(mounts::at(&self.path)?.is_none(), "{} is mounted already", self.path.display());
        let entry = Entry::mount(&self.path)?;
        mount.arg(&self.path).run()?;
        self.mount = Some(entry);
        Ok(())
    }

    fn reconfigure(&self, how: &str) -> Result<()> {
        ensure!(self.mount.is_some(), "branch {} is no mount of its own", self.name);
        let began = Instant::now();
        loop {
            // A pool closes a file shortly after the program that closed it has continued.
            let stat = command("mount").args(["-o", how]).arg(&self.path).output()?;
            let busy = stat.code != 0 && stat.stderr.contains("busy");
            if !busy || BRANCH_BUSY_TIMEOUT < began.elapsed() {
                return stat.check().map(drop);
            }
            sleep(Duration::from_millis(20));
        }
    }

    fn fill(&self, left: u64) -> Result<()> {
        ensure!(
            !matches!(self.kind, Kind::Plain | Kind::Gluster(_)) && !self.kind.is_served(),
            "{} shares its file system with others: filling it would fill theirs",
            self.name
        );
        let ballast = OpenOptions::new().create(true).append(true).open(self.path.join(BALLAST))?;
        let mut piece = u64::MAX;
        loop {
            // Space that was just freed or preallocated is counted only after a sync.
            syncfs(&ballast)?;
            piece = piece.min(self.free().saturating_sub(left));
            if piece < 4096 {
                return Ok(());
            }
            match fallocate(&ballast, FallocateFlags::empty(), ballast.metadata()?.len(), piece) {
                // The file system keeps some of its free space for its own metadata.
                Err(Errno::NOSPC) => piece /= 2,
                settled => settled.context("fallocate of the ballast")?,
            }
        }
    }
}

/// Images go to memory if they fit entirely, else beside the branch.
fn image_dir(size: MiB, home: &Path) -> Result<PathBuf> {
    let memory = Path::new("/dev/shm");
    let room = statvfs(memory).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
    let info = fs::read_to_string("/proc/meminfo").context("meminfo")?;
    let unused = info.lines().find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    let unused = unused.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10;
    let fits = size.bytes() + SPARE_MEMORY.bytes() <= room.min(unused);
    Ok(if fits { memory.to_owned() } else { home.to_owned() })
}

/// The branch's path as one name, so that images of several pools can share a directory.
fn image_name(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').replace('/', "-") + ".img"
}

fn format(image: &Path, kind: Kind, size: MiB, layout: Layout) -> Result<()> {
    let file = File::create(image).with_context(|| image.display().to_string())?;
    match layout {
        Layout::Sparse => file.set_len(size.bytes())?,
        Layout::Preallocated => fallocate(&file, FallocateFlags::empty(), 0, size.bytes())?,
    }
    // mkfs must not discard: that would free preallocated blocks.
    match kind {
        Kind::Xfs(_) => command("mkfs.xfs").args(["-q", "-f", "-K", "-m", "reflink=1"]).arg(image).run()?,
        Kind::Ext4(_) => command("mkfs.ext4").args(["-q", "-F", "-E", "nodiscard"]).arg(image).run()?,
        Kind::Btrfs(_) => command("mkfs.btrfs").args(["-q", "-f", "-K"]).arg(image).run()?,
        Kind::Plain | Kind::Tmpfs(_) | Kind::Gluster(_) | Kind::Served | Kind::Numbered | Kind::Bare => {
            bail!("{kind:?} has no image")
        }
    };
    Ok(())
}
