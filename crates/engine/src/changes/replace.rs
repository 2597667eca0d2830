//! Renaming a file over one that another branch has.
//!
//! Each branch is a journal of its own: after a power cut the one may lack what the other has. So a record on disk says what
//! is under way (`journal.rs`), the new name is on disk before the old file goes, and the old file is surely gone before the
//! record goes. Whatever is cut, the name means the old file or the new one, and the next mount leaves one of them.

use std::os::fd::AsFd;

use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::Result;
use fsstack_pool::BranchIx;
use fsstack_sys as sys;
use fsstack_sys::at::RenameFlags;

use crate::changes::names::{End, Half, begin, finish, has_no_links, note};
use crate::files::check_not_given_up;
use crate::pool::Pool;
use crate::recovery::journal::{Act, Object};
use crate::tree::Tree;

impl Tree {
    /// Renames `from`, a file on the branch `at`, over the file `to` that the branch `other` has. If that comes earlier it
    /// hides the new file until it is gone; if it comes later it is hidden.
    pub(crate) fn rename_over(
        &self,
        pool: &Pool,
        from: End<'_>,
        to: End<'_>,
        at: BranchIx,
        other: BranchIx,
    ) -> Result<()> {
        let (from_fd, to_fd) = (self.dirfd(pool, from.dir, at)?, self.dirfd(pool, to.dir, at)?);
        let is_earlier = pool.turn(other) < pool.turn(at);
        if is_earlier {
            match self.unlink_on(pool, to.dir, to.name, at) {
                Err(error) if !error.is_missing() => return Err(error),
                _ => {}
            }
        }
        // Paths in the record stay what they are until it is done with.
        let _tree_lock = self.tree_lock.read(pool)?;
        let replaced = Object::to_go(&self.stat_in(pool, to.dir, other, to.name)?);
        let moved = Object::of(&self.stat_in(pool, from.dir, at, from.name)?);
        let parts = [(other, replaced, Act::Remove), (at, moved, Act::There)];
        check_not_given_up()?;
        let record = begin(pool, from, to, &parts);
        let fds = (&*from_fd, &*to_fd);
        let done = match is_earlier {
            true => self.take_name(pool, from, to, (at, other), fds),
            false => self.take_name_before(pool, from, to, (at, other), fds),
        };
        self.both_changed(pool, at, from, to);
        finish(pool, record, &done);
        match done {
            Err(half) if half.done => {
                tracing::warn!(error = %half.error, name = ?to.name, "rename: the replaced object may remain, hidden, until the next mount");
                Ok(())
            }
            done => done.map_err(|half| half.error),
        }
    }

    /// Replaces a file that `other` hides until it is gone: until that moment nothing has changed, and from then on the file
    /// is there under its new name.
    fn take_name(
        &self,
        pool: &Pool,
        from: End<'_>,
        to: End<'_>,
        (at, other): (BranchIx, BranchIx),
        (from_fd, to_fd): (&DirFd, &DirFd),
    ) -> Result<(), Half> {
        let branch = pool.branch(at);
        let linked = branch.ask(|| sys::at::link(from_fd.as_fd(), from.name, to_fd.as_fd(), to.name));
        let linked = match linked {
            Err(error) if has_no_links(error) => {
                // No hard links here: out of sight for a moment.
                branch.ask(|| rename_to_free((from_fd, from), (to_fd, to)))?;
                false
            }
            linked => linked.map(|()| true)?,
        };
        let gone =
            self.sync_copy(pool, to.dir, at).and_then(|()| self.unlink_on(pool, to.dir, to.name, other));
        if let Err(error) = gone {
            // In a permit: a branch that hangs meanwhile refuses, and the record stays.
            let undone = branch.ask(|| match linked {
                true => sys::at::unlink(to_fd.as_fd(), to.name),
                false => rename_to_free((to_fd, to), (from_fd, from)),
            });
            return Err(Half::left(error, note(undone, to.name)));
        }
        let synced = self.sync_copy(pool, to.dir, other);
        if linked {
            branch.ask(|| sys::at::unlink(from_fd.as_fd(), from.name)).map_err(Half::stuck)?;
        }
        synced.map_err(Half::done)
    }

    /// Replaces a file that hides the one on `other` as soon as it has its name.
    fn take_name_before(
        &self,
        pool: &Pool,
        from: End<'_>,
        to: End<'_>,
        (at, other): (BranchIx, BranchIx),
        (from_fd, to_fd): (&DirFd, &DirFd),
    ) -> Result<(), Half> {
        let branch = pool.branch(at);
        let how = RenameFlags::empty();
        branch.ask(|| sys::at::rename(from_fd.as_fd(), from.name, to_fd.as_fd(), to.name, how))?;
        let synced = self.sync_copy(pool, to.dir, at);
        match synced.and_then(|()| self.unlink_on(pool, to.dir, to.name, other)) {
            // It may be gone, its answer being lost: the name must not go too. What is left of it is hidden.
            Err(error) if error.is_fault() && synced.is_ok() => Err(Half::done(error)),
            Err(error) => {
                let undone = branch.ask(|| rename_to_free((to_fd, to), (from_fd, from)));
                Err(Half::left(error, note(undone, to.name)))
            }
            Ok(()) => self.sync_copy(pool, to.dir, other).map_err(Half::done),
        }
    }
}

/// Renames to a name that is free, also where the file system knows no rename that takes no name away.
fn rename_to_free(
    (from_fd, from): (&DirFd, End<'_>),
    (to_fd, to): (&DirFd, End<'_>),
) -> Result<(), sys::SysError> {
    let how = RenameFlags::NOREPLACE;
    sys::at::rename_if_free(from_fd.as_fd(), from.name, to_fd.as_fd(), to.name, how)
}
