//! Small file systems in images, whose content is kept in memory and mounted repeatedly.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fsstack_lab::cleanup::Entry;
use fsstack_lab::shell::command;
use fsstack_sys::loop_device::LoopDevice;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// File system of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Ext4,
    Xfs,
}

impl Format {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// Size in bytes. An XFS has at least 300 MiB.
    fn size(self) -> u64 {
        match self {
            Self::Ext4 => 16 << 20,
            Self::Xfs => 300 << 20,
        }
    }

    /// An empty file system.
    pub(crate) fn empty(self) -> &'static Image {
        static EMPTY: [OnceLock<Image>; 2] = [OnceLock::new(), OnceLock::new()];
        EMPTY[usize::from(self == Self::Xfs)].get_or_init(|| self.make())
    }

    fn make(self) -> Image {
        let home = Home::new();
        let image = home.path.join("image");
        File::create(&image).unwrap().set_len(self.size()).unwrap();
        match self {
            Self::Ext4 => {
                let lazy = "nodiscard,lazy_itable_init=1,lazy_journal_init=1";
                command("mkfs.ext4")
                    .args(["-q", "-F", "-m", "0", "-E", lazy, "-O", "^resize_inode"])
                    .arg(&image)
                    .run()
            }
            Self::Xfs => command("mkfs.xfs").args(["-q", "-f", "-K"]).arg(&image).run(),
        }
        .unwrap();
        let made = Image::of(&File::open(&image).unwrap());
        let disk = home.mount(0, &made, self);
        if self == Self::Ext4 {
            fs::remove_dir(disk.path().join("lost+found")).unwrap();
        }
        disk.unmount_kept()
    }
}

/// Content of an image without zero pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    len: u64,
    parts: Vec<(u64, Arc<[u8]>)>,
}

/// Granularity of omitted zeros.
pub(crate) const PAGE: usize = 4096;

impl Image {
    /// Reads the present content of `file`.
    pub(crate) fn of(file: &File) -> Self {
        let len = file.metadata().unwrap().len();
        let mut parts = Vec::new();
        let mut at = 0;
        while let Ok(data) = seek(file, SeekFrom::Data(at)) {
            let end = seek(file, SeekFrom::Hole(data)).unwrap();
            let mut bytes = vec![0; usize::try_from(end - data).unwrap()];
            file.read_exact_at(&mut bytes, data).unwrap();
            parts.extend(without_zeros(data, &bytes));
            at = end;
        }
        Self { len, parts }
    }

    /// Writes it to a new file.
    fn put(&self, path: &Path) -> File {
        let _old = fs::remove_file(path);
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(self.len).unwrap();
        self.parts.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
        file
    }
}

/// Runs of nonzero pages.
fn without_zeros(from: u64, bytes: &[u8]) -> Vec<(u64, Arc<[u8]>)> {
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for (n, page) in bytes.chunks(PAGE).enumerate().filter(|(_, page)| **page != [0; PAGE][..page.len()]) {
        let at = from + (n * PAGE) as u64;
        match runs.last_mut() {
            Some((start, run)) if *start + run.len() as u64 == at => run.extend(page),
            _ => runs.push((at, page.to_vec())),
        }
    }
    runs.into_iter().map(|(at, run)| (at, run.into())).collect()
}

/// A directory in memory with mount points, which are unmounted even if the process is killed.
pub(crate) struct Home {
    path: PathBuf,
    _entries: Vec<Entry>,
}

/// Maximum number of disks mounted at once.
const MOUNTS: usize = 4;

impl Home {
    pub(crate) fn new() -> Self {
        let name = fsstack_lab::cleanup::fresh("power").unwrap();
        let path = Path::new("/dev/shm").join(name.file_name().unwrap());
        // Dropped last.
        let dir = Entry::new_dir(&path).unwrap();
        let mounts = (0..MOUNTS).map(|at| {
            let target = path.join(format!("{at}"));
            fs::create_dir(&target).unwrap();
            Entry::mount(&target).unwrap()
        });
        let _entries = mounts.collect::<Vec<_>>().into_iter().chain([dir]).collect();
        Self { path, _entries }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn image(&self, at: usize) -> PathBuf {
        self.path.join(format!("{at}.img"))
    }

    /// Mounts a disk with this content.
    pub(crate) fn mount(&self, at: usize, image: &Image, format: Format) -> Disk {
        let target = self.path.join(format!("{at}"));
        let file = image.put(&self.image(at));
        let device = LoopDevice::over(&file).unwrap();
        let data = if format == Format::Xfs { c"nouuid" } else { c"" };
        mount(device.path(), &target, format.name(), MountFlags::NOATIME, data).unwrap();
        Disk { target, image: file, mounted: true }
    }
}

/// A mounted file system.
pub(crate) struct Disk {
    target: PathBuf,
    image: File,
    mounted: bool,
}

impl Disk {
    pub(crate) fn path(&self) -> &Path {
        &self.target
    }

    /// Present content of the disk.
    pub(crate) fn image(&self) -> Image {
        Image::of(&self.image)
    }

    pub(crate) fn unmount(mut self) {
        self.take_off();
    }

    /// Unmounts it and returns the disk's content.
    pub(crate) fn unmount_kept(mut self) -> Image {
        self.take_off();
        self.image()
    }

    fn take_off(&mut self) {
        if !std::mem::take(&mut self.mounted) {
            return;
        }
        let began = Instant::now();
        // A process started by another thread has our descriptors until it executes its program.
        while unmount(&self.target, UnmountFlags::empty()) == Err(Errno::BUSY) {
            assert!(began.elapsed() < Duration::from_secs(60), "{} stays busy", self.target.display());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.take_off();
        }
    }
}
