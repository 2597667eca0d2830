//! Freeing the callers that are stuck in a FUSE branch.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use fsstack_sys::fusectl::{self, NotAborted};

use crate::branch::Branch;

/// Why callers stay where they are.
#[derive(Debug, thiserror::Error)]
pub enum NotFreed {
    /// Only a FUSE connection can be aborted.
    #[error("{}: no FUSE mount: callers in it return when its server answers", .0.display())]
    NotFuse(PathBuf),
    /// The kernel does not let its connection be aborted.
    #[error(transparent)]
    Switch(#[from] NotAborted),
}

/// How long a branch may take for a question before it counts as silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// `FUSE_SUPER_MAGIC`.
pub const FUSE: u64 = 0x6573_5546;

impl Branch {
    /// Whether it does not answer a question that it is asked now. A file that is being closed there is no call that
    /// the monitor would see.
    pub fn is_silent(&self) -> bool {
        let (tell, answer) = mpsc::channel();
        let root = self.root();
        let asked = std::thread::Builder::new().name("branch-abort".into()).spawn(move || {
            let _said = fsstack_sys::file::statfs(root.as_fd());
            // Nobody may be waiting any more.
            let _heard = tell.send(());
        });
        asked.is_ok() && answer.recv_timeout(ANSWER_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout)
    }

    /// Aborts the FUSE connection behind the branch: callers stuck in it get an error at once, also programs outside of the
    /// pool. The branch is dead until it is mounted again.
    ///
    /// # Errors
    /// It is no FUSE mount, or the kernel does not let the daemon do that.
    pub fn free_callers(&self) -> Result<(), NotFreed> {
        if self.mount_root.f_type != FUSE {
            return Err(NotFreed::NotFuse(self.path.clone()));
        }
        // The kernel names a connection by its device's minor number; the major one of all of them is 0.
        let connection = fsstack_sys::stat::minor(self.dev());
        fusectl::abort(connection.into())?;
        tracing::warn!(branch = %self.path.display(), "FUSE connection of the branch aborted; it needs a new mount");
        Ok(())
    }
}
