//! A virtual machine with a stock kernel of the distribution, for features that this machine's own kernel may lack: the
//! kernel's NFS server and client.
//!
//! Its root file system is made of this machine's programs ([`root`]). Its kernel comes from the distribution's
//! packages ([`packages`]): the release's own, or with `FSSTACK_GUEST_KERNEL=backports` a newer one. It runs one
//! scenario by the given program and powers itself off. Nothing that it writes remains: its disks are new, and its root
//! is written to a scratch file of QEMU's.

mod apt;
mod packages;
mod root;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cleanup::{self, Entry};
use crate::shell::command;
use crate::{MiB, must, needs};

pub use packages::{Kernel, Packages};

/// Last line of the console at a regular end.
const DONE: &str = "fsstack-guest: done";
/// Environment variable with QEMU's accelerator; emulation works everywhere.
const ACCELERATOR: &str = "FSSTACK_GUEST_ACCEL";
/// Without features that cost much under emulation and are not needed: byte-wise string moves, checks of each access to
/// a program's memory, one more level of page tables. They take a third of the CPU time of copying, pipes and forks
/// with QEMU 7.2.
const CPU: &str = "max,erms=off,fsrm=off,smap=off,smep=off,la57=off";
/// Time limit for making an image: longer than any takes.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(120);

/// A machine ready to start.
#[derive(Debug)]
pub struct Guest {
    packages: Packages,
    root: PathBuf,
    home: PathBuf,
    _home: Entry,
}

/// The two disks of a guest, both XFS.
#[derive(Clone, Copy, Debug)]
pub struct GuestDisks {
    /// The size of each.
    pub size: MiB,
    /// Directories that the first disk has from the start, with their number of empty files: `stays0` and so on. Making
    /// a hundred thousand takes an emulated machine a minute.
    pub filled: &'static [(&'static str, usize)],
}

impl GuestDisks {
    /// Prototype for mkfs.xfs with the first files.
    fn prototype(&self) -> String {
        let dir = |(name, files): &(&str, usize)| {
            let files = (0..*files).map(|n| format!("stays{n} ---644 0 0 /dev/null\n")).collect::<String>();
            format!("{name} d--755 0 0\n{files}$\n")
        };
        format!("/\n0 0\nd--755 0 0\n{}$\n", self.filled.iter().map(dir).collect::<String>())
    }
}

/// Console of a guest after its scenario.
#[derive(Debug)]
pub struct Lived {
    /// All that was written to it.
    pub console: String,
}

impl Guest {
    /// Checks whether a guest can run here.
    pub fn able() -> Result<(), needs::Skip> {
        needs::root()?;
        [
            "qemu-system-x86_64",
            "busybox",
            "depmod",
            "modprobe",
            "mkfs.ext4",
            "mkfs.xfs",
            "dpkg-deb",
            "mount.nfs",
        ]
        .into_iter()
        .chain(["rpcbind", "rpc.statd"])
        .try_for_each(needs::program)?;
        let fetched = Packages::fetched(must(Kernel::chosen(), "which kernel a guest has"));
        fetched.map(drop).map_err(|e| needs::Skip::because(format!("needs a kernel for a guest: {e:#}")))
    }

    /// A machine that runs scenarios with the program `teller`, mounts pools with `helper`, and has further files of
    /// this machine at their paths, programs with their libraries.
    #[track_caller]
    pub fn new(teller: &Path, helper: &Path, files: &[PathBuf]) -> Self {
        must(Self::make(teller, helper, files), "making a guest")
    }

    fn make(teller: &Path, helper: &Path, files: &[PathBuf]) -> Result<Self> {
        let packages = Packages::fetched(Kernel::chosen()?)?;
        let home = cleanup::fresh("guest")?;
        let entry = Entry::dir(&home)?;
        let root = root::image(&home, &packages, teller, helper, files)?;
        root::initrd(&home, &packages)?;
        Ok(Self { packages, root, home, _home: entry })
    }

    /// Starts it, runs `scenario` with these disks, and waits for its end.
    #[track_caller]
    pub fn live(&self, scenario: &str, disks: GuestDisks, limit: Duration) -> Lived {
        let console = must(self.boot(scenario, disks, limit), "running a guest");
        let done = console.lines().any(|line| line.trim_end() == DONE);
        assert!(done, "the guest did not live `{scenario}` to its end:\n{console}");
        Lived { console }
    }

    fn boot(&self, scenario: &str, disks: GuestDisks, limit: Duration) -> Result<String> {
        let accelerator = std::env::var(ACCELERATOR);
        let accelerator = accelerator.as_deref().unwrap_or("tcg,thread=multi,tb-size=256");
        let console = self.home.join("console");
        let mut qemu = self
            .packages
            .emulator()
            .args(["-accel", accelerator, "-cpu", CPU, "-machine", "q35", "-m", "1536", "-smp", "2"])
            .args(["-nographic", "-nodefaults", "-no-reboot", "-serial"])
            .arg(format!("file:{}", console.display()))
            .arg("-kernel")
            .arg(self.packages.kernel())
            .arg("-initrd")
            .arg(self.home.join("initrd"))
            .arg("-append")
            .arg(format!(
                "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off random.trust_cpu=on tsc=reliable scenario={scenario}"
            ));
        let drive = |image: &Path, more: &str| {
            format!("file={},if=virtio,format=raw,cache=unsafe{more}", image.display())
        };
        qemu = qemu.arg("-drive").arg(drive(&self.root, ",snapshot=on"));
        let prototype = self.home.join("prototype");
        write(&prototype, &disks.prototype())?;
        for (name, files) in [("one", Some(&prototype)), ("two", None)] {
            let image = self.home.join(name);
            File::create(&image)?.set_len(disks.size.bytes())?;
            let files = files.into_iter().flat_map(|files| [OsStr::new("-p"), files.as_os_str()]);
            command("mkfs.xfs").args(["-q", "-f"]).args(files).arg(&image).limit(IMAGE_TIMEOUT).run()?;
            qemu = qemu.arg("-drive").arg(drive(&image, ""));
        }
        let output = qemu.limit(limit).output();
        let console = fs::read(&console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console).into_owned();
        let output = output.with_context(|| console.clone())?;
        ensure!(output.code == 0, "qemu ended with {}: {}{console}", output.code, output.stderr);
        Ok(console)
    }
}

/// Writes a file, with its directory.
fn write(path: &Path, text: &str) -> Result<()> {
    let dir = path.parent().context("a file in a directory")?;
    fs::create_dir_all(dir)?;
    fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prototype_has_each_directory_with_its_files() {
        let disks = GuestDisks { size: MiB(512), filled: &[("large", 2), ("small", 0)] };
        assert_eq!(
            disks.prototype(),
            "/\n0 0\nd--755 0 0\nlarge d--755 0 0\nstays0 ---644 0 0 /dev/null\nstays1 ---644 0 0 /dev/null\n$\nsmall d--755 0 0\n$\n$\n"
        );
    }
}
