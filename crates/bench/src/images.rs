//! Images of the lab's disks: allocated before anything is measured, as a sparse block's first write is slower.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use fsstack_lab::MiB;
use fsstack_lab::branch::Layout;
use fsstack_lab::disk_limit::DiskLimit;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::machine;
use crate::workload::Bytes;

/// Directory for images in memory.
const MEMORY: &str = "/dev/shm";

/// Layout for new images of this size in total that lie in memory if they fit: allocated, if half of the room stays.
pub(crate) fn layout(total: MiB) -> Layout {
    if fits(Path::new(MEMORY), total.bytes()) { Layout::Preallocated } else { Layout::Sparse }
}

/// Allocates the holes of the images in a directory, if half of the room stays. Describes the result.
pub(crate) fn allocate(dir: &Path, limit: DiskLimit) -> Result<String> {
    let images: Vec<File> = images(dir).with_context(|| format!("images in {}", dir.display()))?;
    let (mut holes, mut all) = (0, 0);
    for image in &images {
        let found = image.metadata()?;
        holes += found.len().saturating_sub(std::os::unix::fs::MetadataExt::blocks(&found) * 512);
        all += found.len();
    }
    let able = 0 < all && fits(dir, holes);
    for image in images.iter().filter(|_| able) {
        fallocate(image, FallocateFlags::empty(), 0, image.metadata()?.len())?;
    }
    Ok(described(dir, if able { Layout::Preallocated } else { Layout::Sparse }, limit))
}

/// Describes disks that are images in `dir`.
pub(crate) fn described(dir: &Path, layout: Layout, limit: DiskLimit) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let fs_type = machine::mount_of(&dir).map(|(fs_type, ..)| fs_type).unwrap_or_default();
    let place = match (fs_type.as_str(), held(limit)) {
        ("tmpfs", Some(held)) => format!("disks are files in memory, {held}"),
        ("tmpfs", None) => "disks are files in memory, so CPU time is what is measured".to_owned(),
        (_, held) => {
            format!("disks are files on {fs_type}{}", held.map_or(String::new(), |held| format!(", {held}")))
        }
    };
    let how = match layout {
        Layout::Preallocated => "allocated beforehand",
        Layout::Sparse => "sparse: the first write to a block is slower",
    };
    format!("{place} ({how})")
}

/// Limit in words, if there is one.
fn held(limit: DiskLimit) -> Option<String> {
    let bytes = limit.bytes.map(|most| format!("{}/s", Bytes(most.get())));
    let requests = limit.requests.map(|most| format!("{most} requests a second"));
    let all: Vec<String> = bytes.into_iter().chain(requests).collect();
    (!all.is_empty()).then(|| format!("each held to {}", all.join(" and ")))
}

fn images(dir: &Path) -> Result<Vec<File>> {
    let mut images = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "img") {
            images.push(File::options().write(true).open(path)?);
        }
    }
    Ok(images)
}

/// True if twice `bytes` are free there, and in memory.
fn fits(dir: &Path, bytes: u64) -> bool {
    let room = statvfs(dir).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let unused = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    let unused = unused.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10;
    bytes.saturating_mul(2) <= room.min(unused)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn holes_of_images_are_allocated_where_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("b1.img");
        File::create(&image).unwrap().set_len(8 << 20).unwrap();
        fs::write(dir.path().join("b1.whole"), "").unwrap();
        let said = allocate(dir.path(), DiskLimit::default()).unwrap();
        let found = fs::metadata(&image).unwrap();
        assert_eq!(found.len(), 8 << 20);
        assert_eq!(8 << 20 <= found.blocks() * 512, said.contains("beforehand"), "{said}");
        assert!(!fits(dir.path(), u64::MAX / 2));
        assert!(allocate(&dir.path().join("none"), DiskLimit::default()).is_err());
        let limit = DiskLimit { bytes: NonZeroU64::new(40 << 20), requests: NonZeroU64::new(200) };
        let said = described(dir.path(), Layout::Sparse, limit);
        assert!(said.contains(", each held to 40 MiB/s and 200 requests a second (sparse"), "{said}");
    }
}
