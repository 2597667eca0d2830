//! Finding an object by its number on a branch whose file system opens nothing by number (GlusterFS, tmpfs, NFS).
//!
//! The index remembers where an object was seen (`index/names.rs`); what is there now is looked at, and must have the
//! number. If it has not, the branch is looked through, name by name: listings tell inode numbers, so that no object
//! is asked itself. Everything that is come by on the way is remembered: the next one that is asked for costs no look.
//!
//! What is renamed in the pool during the look may be passed by. So "nothing has the number" is believed only of a look
//! that began after the question, and during no part of which anything was being renamed; that saw a whole branch; and
//! all of which is remembered. Else it is not known. A look of somebody else's that began after the question is as good
//! as one's own. What is moved behind the pool's back just then may be missed.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::{self as sys, Errno, Kind, OFlags, Stat};
use parking_lot::Mutex;

use crate::branch::Branch;
use crate::entries::{Entries, Listed};
use crate::error::{OpError, Result};
use crate::index::{KeptBy, Name, open_path};
use crate::inode::number;
use crate::pool::Pool;
use crate::union::Union;

/// The root of a branch, as the parent of a name.
const ROOT: Ino = Ino(0);
/// Names that are put into the index at once.
const BATCH: usize = 4096;
/// Deeper than trees are: entries of different moments may go in a circle.
const DEEPEST: usize = 4096;
/// How long somebody else's look is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Looks through a branch.
#[derive(Debug, Default)]
pub(crate) struct Searches {
    /// Held by whoever looks.
    turn: Mutex<()>,
    /// How many looks have begun.
    begun: AtomicU64,
    /// Which of them was the last that saw everything, and what remembers it.
    whole: Mutex<Option<(u64, KeptBy)>>,
    /// Renames in the pool that are under way, and that are over.
    moving: AtomicUsize,
    moved: AtomicU64,
}

impl Searches {
    /// How many renames are over, if none is under way.
    fn quiet(&self) -> Option<u64> {
        // (One that ends in between is counted.)
        (self.moving.load(SeqCst) == 0).then(|| self.moved.load(SeqCst))
    }

    /// By what the look that began after the first `asked` is remembered, if one saw everything.
    fn seen_since(&self, asked: u64) -> Option<KeptBy> {
        self.whole.lock().filter(|(look, _)| *look > asked).map(|(_, kept_by)| kept_by)
    }
}

/// Something is being renamed in the pool, until this drops.
#[must_use = "a look through a branch meanwhile may miss it"]
pub(crate) struct Moving<'a>(&'a Pool);

impl Pool {
    fn searched(&self) -> impl Iterator<Item = &Searches> {
        let searched = self.branches.iter().filter(|branch| branch.by_number.is_none());
        searched.map(|branch| &branch.searches)
    }

    pub(crate) fn moving(&self) -> Moving<'_> {
        self.searched().for_each(|searches| _ = searches.moving.fetch_add(1, SeqCst));
        Moving(self)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        for searches in self.0.searched() {
            searches.moved.fetch_add(1, SeqCst);
            searches.moving.fetch_sub(1, SeqCst);
        }
    }
}

impl Union {
    /// What has the number `natural`, which does not tell the branch, on the branches that must be searched.
    ///
    /// # Errors
    /// A branch cannot be asked, and no other has it.
    pub(crate) fn search_all(&self, pool: &Pool, natural: Ino) -> Result<Option<(BranchIx, OwnedFd, Stat)>> {
        let mut unsure = None;
        for branch in pool.branches.iter().filter(|branch| branch.by_number.is_none()) {
            match self.search(branch, natural) {
                Ok(Some((fd, stat))) => return Ok(Some((branch.ix, fd, stat))),
                Ok(None) => {}
                Err(error) => unsure = Some(error),
            }
        }
        unsure.map_or(Ok(None), Err)
    }

    /// What has the number `natural` on `branch`.
    ///
    /// # Errors
    /// That cannot be known.
    pub(crate) fn search(&self, branch: &Branch, natural: Ino) -> Result<Option<(OwnedFd, Stat)>> {
        let searches = &branch.searches;
        let asked = searches.begun.load(SeqCst);
        if let Some(found) = self.where_it_was(branch, natural)? {
            return Ok(Some(found));
        }
        let turn = searches.turn.try_lock_for(PATIENCE).ok_or(OpError::UNSURE)?;
        if searches.seen_since(asked).is_none() {
            let this = searches.begun.fetch_add(1, SeqCst) + 1;
            let before = searches.quiet();
            let kept_by = self.look_through(branch)?;
            if before.is_some() && before == searches.quiet() {
                *searches.whole.lock() = Some((this, kept_by));
            }
        }
        drop(turn);
        match self.where_it_was(branch, natural)? {
            Some(found) => Ok(Some(found)),
            None => {
                // What remembers may have failed in between, and then it knew nothing.
                let seen = searches.seen_since(asked).filter(|by| self.index.keeper() == Some(*by));
                seen.map(|_| None).ok_or(OpError::UNSURE)
            }
        }
    }

    /// The object, if it is where it was seen last.
    fn where_it_was(&self, branch: &Branch, natural: Ino) -> Result<Option<(OwnedFd, Stat)>> {
        let Some(path) = self.remembered(branch, natural) else { return Ok(None) };
        let opened = branch.ask(|| {
            let mut names = path.iter().rev().peekable();
            let mut dir = sys::at::reopen(branch.root().as_fd(), OFlags::PATH | OFlags::DIRECTORY)?;
            while let Some(name) = names.next() {
                if names.peek().is_none() {
                    return sys::at::open(dir.as_fd(), name, OFlags::PATH, 0, branch.mounts);
                }
                dir = sys::at::open_dir(dir.as_fd(), name, branch.mounts)?;
            }
            Ok(dir)
        });
        let fd = match opened {
            Err(error) if is_elsewhere(error.errno()) => return Ok(None),
            opened => opened?,
        };
        let stat = branch.ask(|| branch.stat_fd(fd.as_fd()))?;
        let is_it = stat.nlink > 0 && number::number(branch, stat.dev, stat.ino) == natural;
        Ok(is_it.then_some((fd, stat)))
    }

    /// The names that led to the object, the last one first.
    fn remembered(&self, branch: &Branch, natural: Ino) -> Option<Vec<CString>> {
        let mut names = Vec::new();
        let mut at = natural;
        while at != ROOT {
            let seen =
                self.index.name(at).filter(|seen| seen.branch == branch.id && names.len() < DEEPEST)?;
            names.push(CString::new(seen.name).ok()?);
            at = seen.parent;
        }
        Some(names)
    }

    /// Remembers where everything on `branch` is: what has it.
    ///
    /// # Errors
    /// The branch cannot be seen as a whole, or not all of it is remembered.
    fn look_through(&self, branch: &Branch) -> Result<KeptBy> {
        tracing::info!(branch = %branch.path.display(), "looking for an object by its number, which this branch's file system cannot do");
        let mut waiting = vec![(Vec::new(), ROOT)];
        let mut rows = Vec::with_capacity(BATCH);
        let kept_by = self.index.note_names(&mut rows).ok_or(OpError::UNSURE)?;
        let keep = |rows: &mut Vec<_>| match self.index.note_names(rows) {
            Some(by) if by == kept_by => Ok(()),
            _ => Err(OpError::UNSURE),
        };
        while let Some((path, parent)) = waiting.pop() {
            let opened =
                branch.ask(|| open_path(branch, &path)).and_then(|dir| Entries::of(branch, dir.as_fd()));
            let mut entries = match opened {
                Err(error) if is_elsewhere(error.errno()) => continue,
                opened => opened?,
            };
            while let Some(Listed { kind, ino, name }) = entries.next()? {
                let natural = number::number(branch, branch.dev(), ino);
                if kind.is_none_or(|kind| kind == Kind::Dir) {
                    let mut below = path.clone();
                    if !below.is_empty() {
                        below.push(b'/');
                    }
                    below.extend_from_slice(name.to_bytes());
                    waiting.push((below, natural));
                }
                rows.push((natural, Name { branch: branch.id, parent, name: name.into_bytes() }));
                if rows.len() >= BATCH {
                    keep(&mut rows)?;
                }
            }
        }
        keep(&mut rows)?;
        Ok(kept_by)
    }
}

/// What is no directory any more, or was renamed, has nothing in it.
fn is_elsewhere(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::XDEV)
}
