//! Looking a name up.

use std::ffi::CStr;
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_branch::metrics::PoolCounter;
use fsstack_pool::EntryName;
use fsstack_pool::Ino;
use fsstack_sync::time::Duration;
use fsstack_sys as sys;

use crate::answer::Entry;
use crate::inode::Inode;
use crate::inode::clock::Moment;
use crate::pool::Pool;
use crate::settings::Degraded;
use crate::tree::Tree;
use crate::tree::recheck::recheck;
use crate::tree::resolve::{DirStats, entry, merge};

/// How long copies are believed in where each change is reported: a report finds a directory by what is cached of its name.
const WATCHED_RECHECK: Duration = Duration::from_secs(60);

impl Tree {
    /// `name` in the directory `parent`. The kernel holds one more lookup of what is answered.
    ///
    /// # Errors
    /// ENOENT if no branch has the name; EIO if one that might have it cannot be asked.
    pub(crate) fn lookup(&self, parent: Ino, name: EntryName<'_>) -> Result<Entry> {
        self.lookup_in(&self.inode(parent)?, name)
    }

    /// Like [`Self::lookup`], in a directory that was found already: the kernel need not know it.
    pub(crate) fn lookup_in(&self, parent: &Arc<Inode>, name: EntryName<'_>) -> Result<Entry> {
        if !parent.is_dir() {
            return Err(fsstack_sys::Errno::NOTDIR.into());
        }
        recheck(self, parent);
        let (pool, name) = (self.pool.load(), name.as_cstr());
        let asked = Moment::now();
        if let Some(entry) = self.lookup_at_cached_location(&pool, parent, name, asked) {
            self.metrics.note(PoolCounter::LookupKnown);
            return Ok(entry);
        }
        self.metrics.note(PoolCounter::LookupAsked);
        let found = self.find(&pool, parent, name).map_err(|error| out_of_sight(&pool, error))?;
        self.admit(&pool, parent, name, found, asked)
    }

    /// The kernel has forgotten `count` lookups of `ino`. Memory goes; the number keeps its meaning.
    pub(crate) fn forget(&self, ino: Ino, count: u64) {
        if self.inodes.forget(ino, count) {
            shrink(self);
        }
    }

    /// Asks only the branch where the name was seen last. None: all must be asked.
    fn lookup_at_cached_location(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        asked: Moment,
    ) -> Option<Entry> {
        let number = self.seen.get(parent.id.ino, name.to_bytes())?;
        let known = self.inodes.get(number);
        let Some(known) = known.as_ref().filter(|known| known.is_dir()) else {
            // A file that was moved is not where its number says.
            let at = known.and_then(|file| file.branch()).or_else(|| pool.branch_of(number))?;
            if !parent.is_looked_up_on(at) {
                return None;
            }
            let stat = self.stat_in(pool, parent, at, name).ok()?;
            return (!stat.is_dir()).then(|| self.admit_file(pool, parent, name, (at, stat), asked));
        };
        self.lookup_dir(pool, parent, name, known, asked)
    }

    /// The directory that the name meant last, if it still does and its copies were asked for lately.
    fn lookup_dir(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        dir: &Arc<Inode>,
        asked: Moment,
    ) -> Option<Entry> {
        if !self.knows_copies(pool, dir) || !dir.has_name(parent, name) {
            return None;
        }
        let mut stats = DirStats::new();
        for at in dir.copies() {
            // The first by its name, which must still lead there; the others follow.
            let stat = if stats.is_empty() {
                self.stat_in(pool, parent, at, name).ok()?
            } else {
                match self.ask_copy(pool, dir, at) {
                    Err(error) if error.is_fault() => dir.reported(at)?,
                    reported => reported.ok()?,
                }
            };
            if dir.copy_ino(at) != Some(stat.ino) || !stat.is_dir() {
                return None;
            }
            stats.push((at, stat));
        }
        if stats.is_empty() {
            return None;
        }
        // Counted only now that the answer is sure.
        let counted = self.inodes.looked_up(dir.id, sys::Kind::Dir, || unknown_again(dir));
        counted.note_name(parent, name, 1, asked);
        Some(entry(dir, merge(self, pool, &stats, asked)))
    }

    /// All branches were asked for copies of `dir` lately.
    pub(crate) fn knows_copies(&self, pool: &Pool, dir: &Inode) -> bool {
        let recheck = pool.settings.recheck;
        let lately = if self.is_watched() { recheck.max(WATCHED_RECHECK) } else { recheck };
        dir.checked().is_some_and(|asked| asked.elapsed() < lately) && !dir.is_unsure()
    }
}

/// The inode of a lookup of `ino` that was not the kernel's, held until [`release`].
pub(crate) fn hold(tree: &Tree, ino: Ino) -> Option<Arc<Inode>> {
    tree.inodes.hold(ino, 1).or_else(|| {
        // The kernel may have forgotten it since, and the lookups of before with it.
        tree.found_again(ino).ok()?;
        tree.inodes.hold(ino, 0)
    })
}

/// Ends what [`hold`] began.
pub(crate) fn release(tree: &Tree, ino: Ino) {
    if tree.inodes.release(ino) {
        shrink(tree);
    }
}

fn shrink(tree: &Tree) {
    if tree.inodes.shrink() {
        // Freed piece by piece, it would stay with the process.
        fsstack_sys::process::give_memory_back();
    }
}

/// With `degraded=read`, only reachable objects count. Differs from [`OpError::MISSING`], which may be cached.
fn out_of_sight(pool: &Pool, error: OpError) -> OpError {
    if pool.settings.degraded == Degraded::Read && error.is_fault() { OpError::OUT_OF_SIGHT } else { error }
}

/// The kernel forgot the directory between the look at the table and the count: made again from what is known.
pub(crate) fn unknown_again(dir: &Inode) -> Inode {
    Inode::dir(dir.id, &crate::inode::Copies::known(dir.copies_by_number()))
}
