//! Immutable and append-only files (`chattr +i`, `+a`): one that is open for writing is not opened again for later callers.

use std::os::fd::AsFd;

use fsstack_branch::error::Result;
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sys::{self as sys, Errno, Stat};

use super::{Access, OpenFile};

impl OpenFile {
    /// The branch's answer to a further open for writing, for which it is not asked once the file is open so.
    ///
    /// # Errors
    /// EPERM if the file is immutable, or append-only and the caller does more than append.
    pub(crate) fn check_fixed(&self, appends: bool) -> Result<()> {
        let refused = || self.immutable.load(Relaxed) || self.append_only.load(Relaxed) && !appends;
        if refused() {
            self.set_fixed(&self.stat()?); // it may have been changed out of band
        }
        if refused() { Err(Errno::PERM.into()) } else { Ok(()) }
    }

    /// Whether it may only be added to, as far as is known.
    pub(crate) fn is_append_only(&self) -> bool {
        self.append_only.load(Relaxed)
    }

    /// Writes back a store into a mapping of the file: the kernel, which does not know that the file is append-only, permits
    /// stores to everyone who has it open for writing.
    ///
    /// # Errors
    /// EPERM unless it has been open since before that: it would be written at the end.
    pub(crate) fn check_stored(&self) -> Result<()> {
        if self.is_append_only() && self.ask(sys::file::appends)? { Err(Errno::PERM.into()) } else { Ok(()) }
    }

    /// The file's inode flags were changed: these are its attributes now.
    pub(crate) fn set_fixed(&self, stat: &Stat) {
        self.immutable.store(stat.is_immutable(), Relaxed);
        if !stat.is_append_only()
            && self.placed().is_ok_and(|placed| placed.access == Access::Append)
            && let Err(error) = self.stop_appending()
        {
            // It stays so here: a later open for writing elsewhere tries again.
            return tracing::warn!(%error, "file no longer append-only: cannot reopen it; writes go to its end until the next open");
        }
        // Not before: a writer meanwhile would write at the end.
        self.append_only.store(stat.is_append_only(), Relaxed);
    }

    /// A handle opened to append appends, whatever offset a write names.
    fn stop_appending(&self) -> Result<()> {
        // Exclusively: `noatime.rs` reads and sets the descriptor's flags, too.
        let mut placed = self.hold_exclusively()?;
        if placed.access == Access::Append {
            placed.branch.ask(|| sys::file::stop_appending(placed.fd.as_fd()))?;
            placed.access = Access::Write;
        }
        Ok(())
    }
}
