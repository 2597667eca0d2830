//! Bricks: XFS images behind loop devices, in a tree that the server sees mounts appear in.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Gluster;
use crate::shell::command;
use crate::{MiB, mounts};

/// Longest wait for a busy image.
const IMAGE_BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes and mounts the missing ones of bricks `b1` to `b<count>`.
pub(super) fn ensure(lab: &Gluster, count: usize, size: MiB) -> Result<()> {
    ensure!(MiB(300) <= size, "a brick has at least 300 MiB (XFS wants them)");
    let tree = lab.home().join("bricks");
    if mounts::at(&tree)?.is_none() {
        lab.book().mount(&tree)?;
        command("mount").arg("--bind").args([&tree, &tree]).run()?;
    }
    // Before the first brick: a running server does not see new mounts in a private tree.
    command("mount").arg("--make-shared").arg(&tree).run()?;
    for n in 1..=count {
        let image = lab.home().join(format!("img/b{n}.img"));
        make(&image, size)?;
        let target = tree.join(format!("b{n}"));
        fs::create_dir_all(&target)?;
        if mounts::at(&target)?.is_none() {
            lab.book().mount(&target)?;
            mount(&image, &target)?;
        }
    }
    Ok(())
}

/// Mounts a brick. A process of a killed `up` may still be mounting it; it is then mounted shortly.
fn mount(image: &Path, target: &Path) -> Result<()> {
    let began = Instant::now();
    loop {
        // The loop device goes with the mount (autoclear).
        let output = command("mount").args(["-o", "loop,noatime"]).args([image, target]).output()?;
        if output.code == 0 || mounts::at(target)?.is_some() {
            return Ok(());
        }
        if IMAGE_BUSY_TIMEOUT < began.elapsed() {
            return output.check().map(drop);
        }
        sleep(Duration::from_millis(50));
    }
}

/// The names of the bricks that are mounted.
pub(super) fn mounted(lab: &Gluster) -> Result<Vec<String>> {
    let tree = lab.home().join("bricks");
    let all = mounts::below(&tree)?;
    let names = all.iter().filter_map(|m| m.target.strip_prefix(&tree).ok()?.to_str());
    let mut names: Vec<String> = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

fn make(image: &PathBuf, size: MiB) -> Result<()> {
    if let Ok(found) = fs::metadata(image) {
        let (has, wants) = (found.len() >> 20, size.0);
        ensure!(has == wants, "the bricks have {has} MiB, not {wants}: `lab down --purge` first");
        return Ok(());
    }
    // Under a temporary name until it is complete: a process of a killed `up` may still be writing another.
    let unfinished = image.with_extension(format!("unfinished-{}", process::id()));
    File::create(&unfinished)?.set_len(size.bytes())?;
    command("mkfs.xfs").args(["-q", "-f", "-K"]).arg(&unfinished).run()?;
    fs::rename(&unfinished, image).with_context(|| image.display().to_string())
}
