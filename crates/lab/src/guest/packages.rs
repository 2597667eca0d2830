//! A guest's kernel and NFS server, taken once from the distribution's packages by the machine's own apt sources. They
//! are unpacked, not installed: nothing of them runs on this machine.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

use crate::ledger::{Standing, state_dir};
use crate::needs;
use crate::shell::command;

/// The book of what belongs to no single guest.
const BOOK: &str = "guest-packages";
/// What is unpacked besides the kernel.
const SERVER: &str = "nfs-kernel-server";
/// Kernels for virtual machines, by the names of their packages.
const KERNELS: &str = "^linux-image-[0-9].*-cloud-amd64$";
/// The series that the machine's QEMU is known to boot.
const SERIES: &str = "linux-image-6.1.";
/// Longer than a slow mirror takes.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// The packages' contents.
#[derive(Clone, Debug)]
pub struct Packages {
    unpacked: PathBuf,
    version: String,
}

impl Packages {
    /// As they were fetched once, or now.
    ///
    /// # Errors
    /// They cannot be had here.
    pub fn fetched() -> Result<Self> {
        let dir = state_dir()?.join("guest-packages");
        Standing::named(BOOK)?.dir(&dir)?;
        let lock = File::create(dir.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let unpacked = dir.join("unpacked");
        if !unpacked.is_dir() {
            needs::program("apt-get").map_err(|skip| anyhow::anyhow!("{skip}"))?;
            fetch(&dir, &unpacked)?;
        }
        let modules = fs::read_dir(unpacked.join("lib/modules"))?.next().context("no modules")??;
        let version = modules.file_name().to_string_lossy().into_owned();
        Ok(Self { unpacked, version })
    }

    /// The kernel itself.
    pub(super) fn kernel(&self) -> PathBuf {
        self.unpacked.join(format!("boot/vmlinuz-{}", self.version))
    }

    /// Its version, as its modules are sorted by.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Everything, by its path.
    pub(super) fn unpacked(&self) -> &Path {
        &self.unpacked
    }
}

fn fetch(dir: &Path, unpacked: &Path) -> Result<()> {
    let fresh = dir.join("unfinished");
    if fresh.exists() {
        fs::remove_dir_all(&fresh)?;
    }
    fs::create_dir_all(fresh.join("debs"))?;
    let kernel = match newest()? {
        Some(kernel) => kernel,
        None => {
            // The package lists may be as old as the machine's image.
            command("apt-get").args(["update", "-qq"]).limit(LIMIT).run()?;
            newest()?
                .context("the machine's apt sources have no kernel for virtual machines of the series 6.1")?
        }
    };
    let get = || {
        let debs = fresh.join("debs");
        command("apt-get").args(["download", "-qq", &kernel, SERVER]).dir(debs).limit(LIMIT).run()
    };
    get().or_else(|_| command("apt-get").args(["update", "-qq"]).limit(LIMIT).run().and_then(|_| get()))?;
    for deb in fs::read_dir(fresh.join("debs"))? {
        command("dpkg-deb").arg("-x").arg(deb?.path()).arg(fresh.join("all")).limit(LIMIT).run()?;
    }
    let modules = fs::read_dir(fresh.join("all/lib/modules"))?.next();
    let Some(modules) = modules.transpose()? else { bail!("{kernel} has no modules") };
    let version = modules.file_name();
    command("depmod").arg("-b").arg(fresh.join("all")).arg(&version).limit(LIMIT).run()?;
    fs::rename(fresh.join("all"), unpacked)?;
    fs::remove_dir_all(&fresh).context("what was downloaded")
}

/// The newest kernel of the series, as its package is called.
fn newest() -> Result<Option<String>> {
    let told = command("apt-cache").args(["search", "--names-only", KERNELS]).run()?;
    let names = told.stdout.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.filter(|name| name.starts_with(SERIES)).max_by_key(|name| build(name)).map(str::to_owned))
}

/// The number by which one kernel of the series follows another.
fn build(name: &str) -> u32 {
    name.split('-').filter_map(|part| part.parse().ok()).next_back().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_ordered_as_numbers() {
        assert!(build("linux-image-6.1.0-9-cloud-amd64") < build("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(build("linux-image-cloud-amd64"), 0);
    }
}
