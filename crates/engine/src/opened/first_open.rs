//! The first open of a file: on its branch, with the access that serves the handles to come.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_sys::{self as sys, Errno, Kind, OFlags};

use super::choose::Facts;
use super::tables::Files;
use crate::files::capability::has_capability;
use crate::files::{Access, OpenFile, SET_ID, is_refused};
use crate::inode::Inode;
use crate::pool::Pool;
use crate::tree::Tree;

impl Files {
    /// The closed file `inode`, opened for an open with `flags`, which may `write`.
    ///
    /// # Errors
    /// The branch does not open it.
    pub(crate) fn open_on_branch(
        &self,
        tree: &Tree,
        pool: &Pool,
        inode: &Arc<Inode>,
        write: bool,
        flags: OFlags,
    ) -> Result<Arc<OpenFile>> {
        let (access, (at, fd, stat)) = if write {
            pool.branch(inode.branch().ok_or(OpError::STALE)?).check_mode()?;
            match tree.open_inode(pool, inode, Access::Write.flags()) {
                // An unprivileged daemon may be allowed to write and not to read.
                Err(error) if error.errno() == Errno::ACCESS => {
                    (Access::Write, tree.open_inode(pool, inode, OFlags::WRONLY)?)
                }
                // An append-only file.
                Err(error) if is_refused(error) && flags.contains(OFlags::APPEND) => {
                    (Access::Append, tree.open_inode(pool, inode, Access::Append.flags())?)
                }
                opened => (Access::Write, opened?),
            }
        } else {
            let access = self.access_to_read(pool, inode);
            (access, tree.open_inode(pool, inode, access.flags())?)
        };
        let stat = match access {
            // The kernel waits for ever for a server that hangs.
            Access::Name => pool.branch(at).ask(|| sys::at::stat_now(fd.as_fd()))?,
            Access::Read | Access::Write | Access::Append => stat,
        };
        let asks = write && inode.kind == Kind::File;
        let capable = asks && pool.branch(at).ask(|| Ok(has_capability(fd.as_fd())))?;
        // Not before: a thread stuck in the branch has nothing open there.
        let branch = pool.branch(at).acquire()?;
        let file = OpenFile::new(branch, fd, access, &stat, self.backings.clone());
        file.set_strips(capable || stat.mode & SET_ID != 0);
        Ok(Arc::new(file))
    }

    /// Access for opening the closed file `inode`, for a read. Where the kernel opens it again by itself, a second open
    /// costs as much, and its close more.
    fn access_to_read(&self, pool: &Pool, inode: &Arc<Inode>) -> Access {
        let Some(at) = inode.branch() else { return Access::Read };
        let branch = pool.branch(at);
        let facts = Facts { inode, branch, write: false, strips: false, append_only: false };
        let past_us = || self.choose(pool, facts).is_passthrough();
        if branch.opens_by_name() && past_us() { Access::Name } else { Access::Read }
    }
}
