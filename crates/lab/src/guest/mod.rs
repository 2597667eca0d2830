//! A virtual machine with a stock kernel of the distribution, for what this machine's own kernel may not have: the
//! kernel's NFS server and client.
//!
//! Its root file system is made of this machine's programs ([`root`]), its kernel comes from the distribution's packages
//! ([`packages`]): its own, or, if `FSSTACK_GUEST_KERNEL=backports` asks for it, a newer one. It lives for one scenario, run by
//! the program that it is given, and powers itself off. All it writes is gone then: its disks are fresh, its root is written
//! to a scratch file of QEMU's.

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

/// Last line of the console at the regular end.
const DONE: &str = "fsstack-guest: done";
/// Says which accelerator QEMU is to use; emulation works everywhere.
const ACCELERATOR: &str = "FSSTACK_GUEST_ACCEL";
/// Without what costs an emulated machine much and gives it nothing: strings moved byte by byte, checks of each access to a
/// program's memory, one level more of page tables. (A third of the CPU time of copying, pipes and forks, by QEMU 7.2.)
const CPU: &str = "max,erms=off,fsrm=off,smap=off,smep=off,la57=off";
/// Longer than making a file system takes.
const LIMIT: Duration = Duration::from_secs(120);

/// A machine that can be started.
#[derive(Debug)]
pub struct Guest {
    packages: Packages,
    root: PathBuf,
    home: PathBuf,
    _home: Entry,
}

/// The two disks of a guest, both with an XFS.
#[derive(Clone, Copy, Debug)]
pub struct GuestDisks {
    /// The size of each.
    pub size: MiB,
    /// Directories that the first one has from the beginning, and how many empty files are in each: `stays0` and so on.
    /// Making a hundred thousand takes an emulated machine a minute.
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

/// The console of a guest that lived its scenario.
#[derive(Debug)]
pub struct Lived {
    /// All that was written to it.
    pub console: String,
}

impl Guest {
    /// Why there can be none here.
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

    /// A machine that runs its scenarios by the program `teller`, mounts pools by `helper`, and has further files of this
    /// machine in their places, programs with the libraries that they need.
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

    /// Starts it, has it live `scenario` with such disks, and waits for its end.
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
            command("mkfs.xfs").args(["-q", "-f"]).args(files).arg(&image).limit(LIMIT).run()?;
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

/// A file with the whole of `text`, its directory made first.
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
