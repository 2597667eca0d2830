//! Frees callers stuck in a FUSE branch.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use fsstack_sync::mpsc;
use fsstack_sys::fusectl::{self, NotAborted};

use crate::branch::Branch;

/// Reason why callers were not freed.
#[derive(Debug, thiserror::Error)]
pub enum NotFreed {
    /// Only a FUSE connection can be aborted.
    #[error("{}: no FUSE mount: callers in it return when its server answers", .0.display())]
    NotFuse(PathBuf),
    /// The kernel did not abort the connection.
    #[error(transparent)]
    Switch(#[from] NotAborted),
}

/// Time limit for an answer before a branch counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// `FUSE_SUPER_MAGIC`.
pub const FUSE: u64 = 0x6573_5546;

impl Branch {
    /// Sends a request now; true if it gets no answer. The monitor does not see a pending close, so it cannot decide
    /// this.
    pub fn is_silent(&self) -> bool {
        let (tell, answer) = mpsc::channel();
        let root = self.root();
        let asked = fsstack_sync::thread::Builder::new().name("branch-abort".into()).spawn(move || {
            let _said = fsstack_sys::file::statfs(root.as_fd());
            // The receiver may have timed out.
            let _heard = tell.send(());
        });
        asked.is_ok() && answer.recv_timeout(SILENT_AFTER) == Err(mpsc::RecvTimeoutError::Timeout)
    }

    /// Aborts the FUSE connection of the branch: all stuck callers get an error at once, also programs outside the
    /// pool. The branch is dead until it is mounted again.
    ///
    /// # Errors
    ///
    /// It is not a FUSE mount, or the daemon may not abort it.
    pub fn free_callers(&self) -> Result<(), NotFreed> {
        if self.mount_root.f_type != FUSE {
            return Err(NotFreed::NotFuse(self.path.clone()));
        }
        fusectl::abort(fusectl::connection_of(self.dev()))?;
        tracing::warn!(branch = %self.path.display(), "FUSE connection of the branch aborted; it needs a new mount");
        Ok(())
    }
}
