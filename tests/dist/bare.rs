//! A system without a C library and without any distribution's programs: busybox, and what is unpacked there.

use std::fs;
use std::path::Path;
use std::time::Duration;

use fsstack_lab::shell::{Run, command, which};
use tempfile::TempDir;

/// Enters namespaces of its own, which end with it. `inside` runs a script in the system.
const ENTER: &str = "cd \"$1\"; mount -t proc proc proc; mount --rbind /sys sys; mount --rbind /dev dev; \
    mount -t tmpfs -o mode=755 tmpfs run; inside() { chroot . /bin/sh -euc \"$1\"; }; eval \"$2\"";

/// The system; removed on drop.
pub(crate) struct Bare(TempDir);

impl Bare {
    /// Nothing but busybox.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["bin", "dev", "etc", "proc", "root", "run", "srv", "sys", "tmp", "usr/sbin", "var/lib"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        fs::copy(which("busybox").unwrap(), dir.path().join("bin/busybox")).unwrap();
        fs::write(dir.path().join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
        fs::write(dir.path().join("etc/group"), "root:x:0:\n").unwrap();
        command("chroot").arg(dir.path()).args(["/bin/busybox", "--install", "-s", "/bin"]).run().unwrap();
        Self(dir)
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// A script of this machine's shell in the root of the system, with the system's mounts.
    pub(crate) fn script(&self, script: &str) -> Run {
        command("unshare")
            .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"])
            .args(["bash", "-euo", "pipefail", "-c", ENTER, "enter"])
            .arg(self.root())
            .arg(script)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env_remove("TMPDIR")
            .limit(Duration::from_secs(120))
    }
}
