//! The server's root file system, made once from the distribution's packages with the machine's apt sources.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::steps::Steps;
use crate::cleanup::{Standing, state_dir};
use crate::{cleanup, debian, mounts};

/// Journal of what is shared by all labs.
pub(super) const BOOK: &str = "gluster-image";

/// Packages besides Debian's essential ones.
const PACKAGES: &[&str] = &["glusterfs-server", "tini", "attr", "procps"];

/// Its path, if it is complete.
pub(super) fn rootfs() -> Result<PathBuf> {
    Ok(state_dir()?.join("gluster-image/rootfs"))
}

/// Makes it if it is missing.
pub(super) fn ensure(steps: Steps) -> Result<PathBuf> {
    let rootfs = rootfs()?;
    if !rootfs.is_dir() {
        steps.step("image from the distribution's packages", || build(&rootfs))?;
    }
    Ok(rootfs)
}

/// Removes it.
pub(super) fn remove() -> Result<()> {
    cleanup::take_down(BOOK).map(drop)
}

fn build(rootfs: &Path) -> Result<()> {
    let dir = rootfs.parent().context("the image's directory")?;
    let unfinished = dir.join("unfinished");
    for left in mounts::below(&unfinished)?.iter().rev() {
        mounts::detach(&left.target)?;
    }
    Standing::named(BOOK)?.dir(dir)?;
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    debian::bootstrap(&unfinished, PACKAGES)?;
    fs::create_dir_all(unfinished.join("bricks"))?;
    fs::rename(&unfinished, rootfs).context("the finished image")
}
