//! Freeing the callers that are stuck in a FUSE branch.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use crate::branch::Branch;

/// Why callers stay where they are.
#[derive(Debug, thiserror::Error)]
pub enum NotFreed {
    /// Only a FUSE connection can be aborted.
    #[error("{}: no FUSE mount: callers in it return when its server answers", .0.display())]
    NotFuse(PathBuf),
    /// The kernel's switch cannot be written to.
    #[error("{}: {error} (is fusectl mounted at /sys/fs/fuse/connections?)", switch.display())]
    Switch {
        /// The file.
        switch: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// How long a branch may take for a question before it counts as silent.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where the kernel's switches are.
const SWITCHES: &str = "/sys/fs/fuse/connections";

fn mount_switches() -> bool {
    use fsstack_sys::mounts;
    let (name, at) = (std::ffi::OsStr::new("fusectl"), std::path::Path::new(SWITCHES));
    mounts::mount_fuse(name, at, "fusectl", mounts::MountFlags::empty(), "").is_ok()
}

/// `FUSE_SUPER_MAGIC`.
const FUSE: u64 = 0x6573_5546;

impl Branch {
    /// Whether it does not answer a question that it is asked now. A file that is being closed there is no call that
    /// the keeper would see.
    pub(crate) fn is_silent(&self) -> bool {
        let (tell, told) = mpsc::channel();
        let root = self.root();
        let asked = std::thread::Builder::new().name("silence".into()).spawn(move || {
            let _said = fsstack_sys::file::statfs(root.as_fd());
            // Nobody may be waiting any more.
            let _heard = tell.send(());
        });
        asked.is_ok() && told.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout)
    }

    /// Aborts the FUSE connection behind the branch: whoever is stuck in it gets an error at once, also programs outside
    /// of the pool, and the branch is dead until it is mounted again.
    ///
    /// # Errors
    /// It is no FUSE mount, or the kernel does not let the daemon do that.
    pub fn free_callers(&self) -> Result<(), NotFreed> {
        if self.home.f_type != FUSE {
            return Err(NotFreed::NotFuse(self.path.clone()));
        }
        // The kernel names a connection by its device's minor number; the major one of all of them is 0.
        let connection = fsstack_sys::stat::minor(self.dev());
        let switch = PathBuf::from(format!("{SWITCHES}/{connection}/abort"));
        let abort = || std::fs::write(&switch, "1");
        let aborted = match abort() {
            // No connection has a switch where the kernel's own file system for them is not mounted.
            Err(error) if error.kind() == io::ErrorKind::NotFound && mount_switches() => abort(),
            aborted => aborted,
        };
        aborted.map_err(|error| NotFreed::Switch { switch, error })?;
        tracing::warn!(branch = %self.path.display(), "the branch's FUSE connection was aborted");
        Ok(())
    }
}
