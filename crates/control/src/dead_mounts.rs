//! Mounts that killed daemons have left, by notes in the registry: `subtype=` may give them any type in the mount table.

use fsstack_sys::mounts::{self, MountInfo};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Suffix of a note's file name.
const SUFFIX: &str = ".dead";

/// A mount as the table had it when its daemon's entry was removed.
#[derive(Debug, Serialize, Deserialize)]
struct DeadMountNote {
    mount_point: Vec<u8>,
    device: u64,
}

impl DeadMountNote {
    fn is(&self, mount: &MountInfo) -> bool {
        mount.mount_point.as_os_str().as_bytes() == self.mount_point && mount.device() == self.device
    }
}

/// Notes the mount of the pool `id`, whose daemon is dead, if it is still there.
pub(crate) fn note(registry: &Path, id: &str, mount_point: &Path) {
    let table = mounts::list().unwrap_or_default();
    let Some(mount) = table.iter().rfind(|mount| mount.mount_point == mount_point && mount.is_fuse()) else {
        return;
    };
    let mount_point = mount_point.as_os_str().as_bytes().to_vec();
    let note = DeadMountNote { mount_point, device: mount.device() };
    // Without it the mount is known by its type, if that is fsstack's.
    let _ = serde_json::to_vec(&note).map(|text| fs::write(registry.join(format!("{id}{SUFFIX}")), text));
}

/// Removes the notes of mounts that are gone.
pub(crate) fn sweep(registry: &Path) {
    for (file, mount) in notes(registry) {
        if mount.is_none() {
            let _ = fs::remove_file(file);
        }
    }
}

/// Returns the mount points of the noted mounts that are still there.
pub fn mount_points(registry: &Path) -> Vec<PathBuf> {
    notes(registry).into_iter().filter_map(|(_, mount)| mount).collect()
}

/// Each note's file, and its mount point if it is still mounted.
fn notes(registry: &Path) -> Vec<(PathBuf, Option<PathBuf>)> {
    let files = fs::read_dir(registry).into_iter().flatten().flatten().map(|file| file.path());
    let files: Vec<PathBuf> =
        files.filter(|file| file.as_os_str().as_bytes().ends_with(SUFFIX.as_bytes())).collect();
    if files.is_empty() {
        return Vec::new();
    }
    let table = mounts::list().unwrap_or_default();
    let read = |file: PathBuf| {
        let note = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<DeadMountNote>(&text).ok());
        let mounted = note.filter(|note| table.iter().any(|mount| note.is(mount)));
        (file, mounted.map(|note| PathBuf::from(OsString::from_vec(note.mount_point))))
    };
    files.into_iter().map(read).collect()
}
