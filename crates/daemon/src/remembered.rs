//! Records which branches were mount points when a pool last used them.
//!
//! A missing disk at boot leaves a bare directory that looks like an empty branch: files would go to the system's disk,
//! and names on the missing disk would not exist. So a former mount point must be one again, unless `require=directory`
//! is set. The list belongs to the machine, not to a pool.

use crate::settings::Branch;
use crate::world::World;
use fsstack_pool::Printable;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// File name of the list in the state directory: paths, each ended by a NUL.
const LIST: &str = "mounted-branches";

/// The list of former mount points.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remembered {
    folder: Option<PathBuf>,
}

impl Remembered {
    /// The list in the state directory; `None` records nothing.
    pub(crate) fn in_dir(folder: Option<&Path>) -> Self {
        Self { folder: folder.map(Path::to_owned) }
    }

    /// True if the branch at this canonical path was a mount point. False if the list cannot be read, which
    /// [`Self::cannot_tell`] reports.
    pub(crate) fn was_mount_point(&self, path: &Path) -> bool {
        self.folder.as_deref().is_some_and(|folder| read(folder).is_ok_and(|list| list.contains(path)))
    }

    /// Former mount points.
    pub(crate) fn list(&self) -> BTreeSet<PathBuf> {
        self.folder.as_deref().and_then(|folder| read(folder).ok()).unwrap_or_default()
    }

    /// Returns why the list cannot be read, with the remedy, on one line; `None` if it can.
    pub(crate) fn cannot_tell(&self) -> Option<String> {
        let folder = self.folder.as_deref()?;
        let error = read(folder).err()?;
        Some(format!(
            "{}: {error}: it says which branches were mount points; mend or remove it, or mount with require=directory if all disks are mounted",
            Printable::path(&folder.join(LIST))
        ))
    }

    /// Records the present state of these branches.
    pub(crate) fn note(&self, branches: &[Branch], world: &World) {
        let Some(folder) = &self.folder else { return };
        let (mut mounted, mut plain) = (Vec::new(), Vec::new());
        for branch in branches {
            let path = branch.spec.path.as_path();
            match world.mount_point(path) {
                Ok(true) => mounted.push(path),
                Ok(false) => plain.push(path),
                Err(_) => {} // unknown at the moment: keep its entry
            }
        }
        if let Err(error) = change(folder, &mounted, &plain) {
            tracing::warn!(%error, "state-dir: cannot record which branches are mount points; require=same has nothing to compare");
        }
    }
}

fn read(folder: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let text = match fs::read(folder.join(LIST)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let paths = text.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    Ok(paths.map(|path| PathBuf::from(OsString::from_vec(path.to_vec()))).collect())
}

fn change(folder: &Path, mounted: &[&Path], plain: &[&Path]) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let dir = fs::File::open(folder)?;
    flock(&dir, FlockOperation::LockExclusive)?;
    let known = read(folder)?;
    let mut list = known.clone();
    // The others are not checked: their mounts may hang.
    list.retain(|path| !plain.contains(&path.as_path()));
    list.extend(mounted.iter().map(|path| path.to_path_buf()));
    if list == known {
        return Ok(());
    }
    let draft = folder.join(format!("{LIST}.new"));
    let mut file = fsstack_sys::whole_file::make_new(&draft, 0o600)?;
    for path in &list {
        file.write_all(path.as_os_str().as_bytes())?;
        file.write_all(&[0])?;
    }
    file.sync_all()?;
    fs::rename(&draft, folder.join(LIST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_remembered_until_it_is_used_without() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let remembered = Remembered::in_dir(Some(&state));
        let (disk, other) = (dir.path().join("disk\n1"), dir.path().join("other"));
        fs::create_dir(&disk).unwrap();
        fs::create_dir(&other).unwrap();
        assert!(!remembered.was_mount_point(&disk));
        change(&state, &[&disk, &other], &[]).unwrap();
        assert!(remembered.was_mount_point(&disk) && remembered.was_mount_point(&other));
        change(&state, &[], &[&disk]).unwrap();
        assert_eq!(read(&state).unwrap(), BTreeSet::from([other]));
    }

    #[test]
    fn a_list_that_cannot_be_read_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let remembered = Remembered::in_dir(Some(dir.path()));
        assert_eq!(remembered.cannot_tell(), None, "there is none yet");
        fs::create_dir(dir.path().join(LIST)).unwrap();
        let told = remembered.cannot_tell().unwrap();
        assert!(
            told.contains("mounted-branches: Is a directory") && told.contains("require=directory"),
            "{told}"
        );
    }

    #[test]
    fn nothing_is_remembered_without_a_place() {
        let remembered = Remembered::in_dir(None);
        remembered.note(&[], &World::here());
        assert!(!remembered.was_mount_point(Path::new("/")));
    }
}
