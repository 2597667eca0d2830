//! Mounts of volumes with GlusterFS's client, in our mount namespace, with sockets in the lab's network.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Gluster, Steps, Volume};
use crate::mounts;
use crate::network::SERVER;
use crate::shell::command;

/// A client reconnects by itself some seconds after its server is back.
const RECONNECTS: Duration = Duration::from_secs(12);

/// Mounts a volume at its path in the lab, or repairs the mount.
pub(super) fn ensure(lab: &Gluster, volume: Volume, steps: Steps) -> Result<()> {
    let target = lab.mount_point(volume);
    if mounts::at(&target)?.is_some() {
        if usable(&target) {
            return Ok(());
        }
        let back = steps.step(&format!("client of {volume} comes back"), || Ok(waited(&target)))?;
        if back {
            return Ok(());
        }
        // An error here says that force was needed, as expected.
        let _forced = lab.book().unmount(&target);
    }
    steps.step(&format!("mount {volume}"), || {
        fs::create_dir_all(&target)?;
        // Refuses writes of programs that continue after the mount is gone.
        command("chattr").arg("+i").arg(&target).output()?;
        lab.book().mount(&target)?;
        mount(lab, volume, "", "", &target)
    })
}

/// True if a mount answers within a short time.
pub(super) fn usable(target: &Path) -> bool {
    command("stat").arg("-f").arg(target).limit(Duration::from_secs(3)).run().is_ok()
}

/// True if the client of a mount reports a connection to each brick. A running brick may not be connected yet.
pub(super) fn reaches_all(target: &Path, volume: Volume) -> bool {
    let connected = |n: usize| {
        let text = target.join(format!(".meta/graphs/active/{volume}-client-{n}/private"));
        let text = command("cat").arg(text).limit(Duration::from_secs(3)).run();
        // A client that does not answer counts as connected nowhere.
        text.is_ok_and(|text| text.stdout.lines().all(|line| line.trim() != "connected = 0"))
    };
    usable(target) && (0..volume.bricks()).all(connected)
}

fn waited(target: &Path) -> bool {
    let began = Instant::now();
    while began.elapsed() < RECONNECTS {
        if usable(target) {
            return true;
        }
        sleep(Duration::from_millis(200));
    }
    false
}

/// Mounts a volume, or the directory `below` of it, with additional options.
pub(super) fn mount(lab: &Gluster, volume: Volume, below: &str, options: &str, target: &Path) -> Result<()> {
    let log = lab.home().join("log").join(format!("mount-{volume}.log"));
    let slash = if below.is_empty() { "" } else { "/" };
    let source = format!("{SERVER}:/{volume}{slash}{below}");
    let comma = if options.is_empty() { "" } else { "," };
    lab.beside("mount")
        .args(["-t", "glusterfs", "-o", &format!("log-file={}{comma}{options}", log.display()), &source])
        .arg(target)
        .limit(Duration::from_secs(40))
        .run()
        .with_context(|| format!("{} may say why", log.display()))?;
    if mounts::at(target)?.is_none() {
        bail!("mount.glusterfs ended with 0, but nothing is mounted at {}", target.display());
    }
    Ok(())
}

/// Unmounts every volume.
pub(super) fn unmount_all(lab: &Gluster) -> Result<()> {
    for left in mounts::below(&lab.home().join("mnt"))?.iter().rev() {
        lab.book().unmount(&left.target)?;
    }
    Ok(())
}

/// Makes the bare mount points removable.
pub(super) fn release_mount_points(lab: &Gluster) -> Result<()> {
    let Ok(entries) = fs::read_dir(lab.home().join("mnt")) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if mounts::at(&path)?.is_none() {
            command("chattr").arg("-i").arg(path).output()?;
        }
    }
    Ok(())
}
