//! Finding an object by its number on a branch whose file system opens nothing by number (GlusterFS, tmpfs, NFS).
//!
//! The index remembers where an object was seen (`index/names.rs`); what is there now is looked at, and must have the
//! number. If it has not, the branch is looked through, name by name: listings tell inode numbers, so that no object
//! is asked itself. Everything that is come by on the way is remembered: the next one that is asked for costs no look.
//!
//! What is renamed in the pool during the look may be passed by. So "nothing has the number" is believed only of a look
//! that began after the question, and during which nothing was renamed on the branch; else it is not known. A look of
//! somebody else's that began after the question is as good as one's own. What is moved behind the pool's back just
//! then may be missed.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::{self as sys, Errno, Kind, OFlags, Stat};
use parking_lot::Mutex;

use crate::branch::Branch;
use crate::error::{OpError, Result};
use crate::index::{Name, open_path};
use crate::inode::number;
use crate::ops::rmdir::is_dot;
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
    /// Which of them was the last that saw everything.
    whole: AtomicU64,
    /// Renames in the pool.
    moves: AtomicU64,
}

impl Searches {
    /// Something has another name in the pool.
    pub(crate) fn note_move(&self) {
        self.moves.fetch_add(1, SeqCst);
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
        if searches.whole.load(SeqCst) <= asked {
            let this = searches.begun.fetch_add(1, SeqCst) + 1;
            let moves = searches.moves.load(SeqCst);
            self.look_through(branch)?;
            if moves == searches.moves.load(SeqCst) {
                searches.whole.store(this, SeqCst);
            }
        }
        drop(turn);
        match self.where_it_was(branch, natural)? {
            None if searches.whole.load(SeqCst) <= asked => Err(OpError::UNSURE),
            found => Ok(found),
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

    /// Remembers where everything on `branch` is.
    fn look_through(&self, branch: &Branch) -> Result<()> {
        tracing::info!(branch = %branch.path.display(), "looking for an object by its number, which this branch's file system cannot do");
        let mut waiting = vec![(Vec::new(), ROOT)];
        let mut rows = Vec::with_capacity(BATCH);
        while let Some((path, parent)) = waiting.pop() {
            let opened = branch.ask(|| {
                let dir = open_path(branch, &path)?;
                sys::at::reopen(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)
            });
            let dir = match opened {
                Err(error) if is_elsewhere(error.errno()) => continue,
                opened => opened?,
            };
            let mut entries = Dirents::new(dir, 32 << 10);
            while let Some((kind, inode, name)) = branch.ask_patiently(|| {
                let next = entries.next()?;
                Ok(next.map(|entry| (entry.kind, entry.ino, CString::from(entry.name))))
            })? {
                if is_dot(&name) {
                    continue;
                }
                let natural = number::number(branch, branch.dev(), inode);
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
                    self.index.note_names(&mut rows);
                }
            }
        }
        self.index.note_names(&mut rows);
        Ok(())
    }
}

/// What is no directory any more, or was renamed, has nothing in it.
fn is_elsewhere(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::XDEV)
}
