//! A guest's kernel and NFS server, downloaded once from the distribution's packages. They are unpacked, not installed:
//! of a newer kernel's packages only the emulator runs on this machine.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use super::apt::{APT_TIMEOUT, Apt};
use crate::cleanup::{Standing, state_dir};
use crate::needs;
use crate::shell::{Run, command};

/// Journal of what is shared by all guests.
const BOOK: &str = "guest-packages";
/// Package that is unpacked besides the kernel.
const SERVER: &str = "nfs-kernel-server";
/// Kernels for virtual machines, by the names of their packages.
const KERNELS: &str = "^linux-image-[0-9].*-cloud-amd64$";
/// The program that runs guests.
const EMULATOR: &str = "qemu-system-x86_64";
/// Its packages: the emulator and its data files.
const EMULATORS: &[&str] = &["qemu-system-x86", "qemu-system-data", "seabios"];
/// First version that runs the kernel of the backports: 7.2 crashes.
const YOUNG: u32 = 10;
/// Environment variable with the kernel for guests.
const CHOICE: &str = "FSSTACK_GUEST_KERNEL";

/// Kernel of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The distribution's own, as on most servers.
    Distribution,
    /// The newest of the distribution's backports, for passthrough of FUSE.
    Backports,
}

impl Kernel {
    /// The one chosen by the environment.
    ///
    /// # Errors
    /// The environment names an unknown one.
    pub fn chosen() -> Result<Self> {
        match std::env::var(CHOICE).as_deref() {
            Err(_) | Ok("" | "distribution") => Ok(Self::Distribution),
            Ok("backports") => Ok(Self::Backports),
            Ok(other) => bail!("{CHOICE}={other}: it is distribution or backports"),
        }
    }

    /// Package name pattern of the series that the machine's QEMU can boot.
    fn series(self) -> &'static str {
        match self {
            Self::Distribution => "linux-image-6.1.",
            Self::Backports => "linux-image-6.12.",
        }
    }
}

/// The packages' contents.
#[derive(Clone, Debug)]
pub struct Packages {
    unpacked: PathBuf,
    version: String,
}

impl Packages {
    /// Returns the packages, downloaded before or now.
    ///
    /// # Errors
    /// They are not available here.
    pub fn fetched(kernel: Kernel) -> Result<Self> {
        let dir = state_dir()?.join("guest-packages");
        Standing::named(BOOK)?.dir(&dir)?;
        let dir = match kernel {
            Kernel::Distribution => dir,
            Kernel::Backports => dir.join("backports"),
        };
        fs::create_dir_all(&dir)?;
        let lock = File::create(dir.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let unpacked = dir.join("unpacked");
        if !unpacked.is_dir() {
            needs::program("apt-get").map_err(|skip| anyhow::anyhow!("{skip}"))?;
            fetch(kernel, &dir, &unpacked)?;
        }
        let modules = fs::read_dir(unpacked.join("lib/modules"))?.next().context("no modules")??;
        let version = modules.file_name().to_string_lossy().into_owned();
        Ok(Self { unpacked, version })
    }

    /// The kernel itself.
    pub(super) fn kernel(&self) -> PathBuf {
        self.unpacked.join(format!("boot/vmlinuz-{}", self.version))
    }

    /// Its version, as in the modules' path.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Root of all unpacked files.
    pub(super) fn unpacked(&self) -> &Path {
        &self.unpacked
    }

    /// The emulator: the machine's own, if none was downloaded with the kernel.
    pub(super) fn emulator(&self) -> Run {
        emulator_in(&self.unpacked)
    }
}

/// The emulator unpacked below `root`, else the machine's own.
fn emulator_in(root: &Path) -> Run {
    let program = root.join("usr/bin").join(EMULATOR);
    if !program.exists() {
        return command(EMULATOR);
    }
    let firmware = ["qemu", "seabios"].map(|dir| root.join("usr/share").join(dir));
    firmware.iter().fold(command(program), |run, dir| run.arg("-L").arg(dir))
}

fn fetch(kernel: Kernel, dir: &Path, unpacked: &Path) -> Result<()> {
    let fresh = dir.join("unfinished");
    if fresh.exists() {
        fs::remove_dir_all(&fresh)?;
    }
    let (debs, all) = (fresh.join("debs"), fresh.join("all"));
    fs::create_dir_all(&debs)?;
    let apt = match kernel {
        Kernel::Distribution => Apt::machines(),
        Kernel::Backports => Apt::backports(&dir.join("apt"))?,
    };
    let image = match newest(&apt, kernel.series())? {
        Some(image) => image,
        None => {
            // The package lists may be as old as the machine's image.
            apt.update()?;
            let none = || format!("no apt source has a kernel for virtual machines like {}", kernel.series());
            newest(&apt, kernel.series())?.with_context(none)?
        }
    };
    apt.download(&[&image], &debs)?;
    Apt::machines().download(&[SERVER], &debs)?;
    let ripe = kernel == Kernel::Distribution || is_young(&command(EMULATOR))?;
    if !ripe {
        apt.download(EMULATORS, &debs)?;
    }
    for deb in fs::read_dir(&debs)? {
        command("dpkg-deb").arg("-x").arg(deb?.path()).arg(&all).limit(APT_TIMEOUT).run()?;
    }
    // Newer kernels' packages use only the one path.
    if !all.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", all.join("lib"))?;
    }
    let modules = fs::read_dir(all.join("lib/modules"))?.next();
    let Some(modules) = modules.transpose()? else { bail!("{image} has no modules") };
    let version = modules.file_name();
    command("depmod").arg("-b").arg(&all).arg(&version).limit(APT_TIMEOUT).run()?;
    // Without matching libraries of an installed one it cannot even print its version.
    ensure!(ripe || is_young(&emulator_in(&all))?, "{image} needs QEMU {YOUNG}, which no apt source has");
    fs::rename(&all, unpacked)?;
    fs::remove_dir_all(&fresh).context("what was downloaded")
}

/// Package name of the newest kernel of the series.
fn newest(apt: &Apt, series: &str) -> Result<Option<String>> {
    let output = apt.run("apt-cache").args(["search", "--names-only", KERNELS]).run()?;
    let names = output.stdout.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.filter(|name| name.starts_with(series)).max_by_key(|name| build(name)).map(str::to_owned))
}

/// Numbers by which kernels of a series are ordered.
fn build(name: &str) -> Vec<u32> {
    let version = name.strip_suffix("-cloud-amd64").unwrap_or(name);
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// True if the emulator can run the kernel of the backports.
fn is_young(emulator: &Run) -> Result<bool> {
    let output = emulator.clone().arg("--version").run()?;
    let major = major(&output.stdout).with_context(|| format!("{EMULATOR} does not tell its version"))?;
    Ok(major >= YOUNG)
}

fn major(output: &str) -> Option<u32> {
    output.split_once(" version ")?.1.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_ordered_as_numbers() {
        let ordered = [
            "linux-image-cloud-amd64",
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.12.90+deb12-cloud-amd64",
            "linux-image-6.12.90+deb12.1-cloud-amd64",
            "linux-image-6.12.107+deb12-cloud-amd64",
        ];
        assert!(ordered.is_sorted_by_key(|name| build(name)), "{:?}", ordered.map(build));
    }

    #[test]
    fn the_version_of_an_emulator_is_read() {
        assert_eq!(major("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright"), Some(10));
        assert_eq!(major("QEMU emulator version 7.2.22"), Some(7));
        assert_eq!(major("something else"), None);
    }
}
