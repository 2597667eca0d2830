//! A block device for a pool to be mounted as `fuseblk`: for NFS servers that tell file systems apart by what lies on
//! their device (nfs-ganesha), so that their handles survive a remount.
//!
//! The device is a loop device over a small sparse file with an empty ext4, which has the UUID that the operator chose.
//! Nothing is ever written to it. It is set to go with its last user, so that it goes with the mount, however that
//! ends; only the file, which is made anew when it is not as it should be, stays.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fsstack_engine::poolid::PoolId;
use fsstack_pool::Printable;

/// Size of the file, of which a few blocks are there.
const SIZE: u64 = 64 << 20;

/// Where an ext4 has its superblock, and in that what it is known by and the UUID.
const SUPERBLOCK: u64 = 1024;
const MAGIC: Range<usize> = 0x38..0x3a;
const UUID: Range<usize> = 0x68..0x78;
const EXT4: [u8; 2] = [0x53, 0xef];

/// A loop device that goes with the mount.
#[derive(Debug)]
pub(crate) struct Device {
    path: PathBuf,
}

impl Device {
    /// A device that has `uuid`, over a file in `folder`.
    ///
    /// # Errors
    /// A line: what, why, and the way out.
    pub(crate) fn make(folder: &Path, uuid: PoolId) -> Result<Self, String> {
        let image = folder.join(format!("identity-{uuid}.img"));
        if !is_whole(&image, uuid) {
            make_image(&image, uuid)?;
        }
        let shown = Printable::path(&image).to_string();
        let told = run("losetup", "mount", |losetup| losetup.args(["--find", "--show"]).arg(&image))
            .map_err(|why| format!("nfs-identity={uuid}: {shown}: no loop device: {why}"))?;
        Ok(Self { path: PathBuf::from(told.trim()) })
    }

    /// What is to be mounted.
    pub(crate) fn path(&self) -> OsString {
        self.path.clone().into()
    }
}

impl Drop for Device {
    /// Gives the device up: while it is mounted, that means when it is unmounted.
    fn drop(&mut self) {
        if let Err(why) = run("losetup", "mount", |losetup| losetup.arg("--detach").arg(&self.path)) {
            tracing::warn!("{}: stays: {why}", Printable::path(&self.path));
        }
    }
}

fn make_image(image: &Path, uuid: PoolId) -> Result<(), String> {
    let shown = Printable::path(image).to_string();
    let failed =
        |error: io::Error| format!("nfs-identity={uuid}: {shown}: {error}: choose another state-dir=");
    // Whole under its name, or not there.
    let fresh = image.with_extension("new");
    if let Some(folder) = image.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::File::create(&fresh).and_then(|file| file.set_len(SIZE)).map_err(failed)?;
    let text = uuid.to_string();
    run("mkfs.ext4", "e2fsprogs", |mkfs| {
        mkfs.args(["-q", "-F", "-O", "^has_journal", "-U", &text]).arg(&fresh)
    })
    .map_err(|why| format!("nfs-identity={uuid}: {shown}: {why}"))?;
    let renamed =
        fs::File::open(&fresh).and_then(|file| file.sync_all()).and_then(|()| fs::rename(&fresh, image));
    renamed.map_err(failed)
}

/// Whether the file is as it was made: a machine that stops may leave an empty one under any name.
fn is_whole(image: &Path, uuid: PoolId) -> bool {
    let mut found = [0; UUID.end - MAGIC.start];
    let read = fs::File::open(image).and_then(|file| {
        file.read_exact_at(&mut found, SUPERBLOCK + MAGIC.start as u64)?;
        file.metadata()
    });
    read.is_ok_and(|meta| meta.is_file() && meta.len() == SIZE)
        && found.starts_with(&EXT4)
        && found.ends_with(&uuid.0)
}

fn run(
    program: &str,
    package: &str,
    args: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<String, String> {
    let mut command = Command::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let everywhere = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    if let Ok(path) = std::env::join_paths(everywhere) {
        command.env("PATH", path);
    }
    match args(&mut command).output() {
        Ok(told) if told.status.success() => Ok(String::from_utf8_lossy(&told.stdout).into_owned()),
        Ok(told) => Err(format!("{program}: {}", String::from_utf8_lossy(&told.stderr).trim())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("{program} is not installed: install the package {package}"))
        }
        Err(error) => Err(format!("{program}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_as_it_was_made_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (image, uuid) = (dir.path().join("identity.img"), PoolId::fresh());
        assert!(!is_whole(&image, uuid));
        let file = fs::File::create(&image).unwrap();
        file.set_len(SIZE).unwrap();
        assert!(!is_whole(&image, uuid), "empty");
        file.write_all_at(&EXT4, SUPERBLOCK + MAGIC.start as u64).unwrap();
        assert!(!is_whole(&image, uuid), "another UUID");
        file.write_all_at(&uuid.0, SUPERBLOCK + UUID.start as u64).unwrap();
        assert!(is_whole(&image, uuid));
        file.set_len(SIZE / 2).unwrap();
        assert!(!is_whole(&image, uuid), "cut off");
    }
}
