//! Taking a directory's copy off a branch that is to be emptied.
//!
//! The directory keeps its number, attributes and times: another copy has the same attributes, or is made, and is on disk
//! before this one goes. That is done with the tree lock held, so no directory is renamed, removed or given a copy meanwhile.
//! The branch takes nothing new and has no file left: no request works in the copy.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::{OpError, Result};
use fsstack_identity::mark;
use fsstack_pool::BranchIx;
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sys::at::{SetTime, Times};
use fsstack_sys::file::sync_dir;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError};

use crate::handles::dir_number::{forget_copy, guard_number};
use crate::inode::{Inode, InodeName};
use crate::moves::Moves;
use crate::moves::job_move;
use crate::moves::reasons::OBSTRUCTED;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::inode_flags::InodeFlags;
use crate::tree::place::ancestors;
use crate::tree::placement::placement_in;
use crate::tree::quiet_dirs::set_times;
use crate::tree::skeleton::{DERIVED, is_private, names_of};
use crate::tree::unsynced_dirs::{NameEvent, changed_unseen};

/// Name and value.
type Attribute = (Vec<u8>, Vec<u8>);

/// Reason for a directory to stay whose copies differ.
pub(crate) const DIFFERS: &str = "its owner, mode, attributes or flags differ from those of its copies on other branches, which would show";
/// Reason for a directory to stay that was made on the branch, and not through the pool.
pub(crate) const NOT_KNOWN: &str =
    "it was made on the branch behind the pool's back, which has not seen it yet";
/// Reason for a directory to stay that is not empty there.
pub(crate) const NOT_EMPTY: &str = "it is not empty on the branch";

impl Moves {
    /// Removes the copy of `dir` on the branch `from`; one of `targets` gets one if there is no other. False: it is gone already.
    ///
    /// # Errors
    /// Why it stays.
    pub(crate) fn drop_copy_on(
        &self,
        dir: &Arc<Inode>,
        from: BranchIx,
        targets: &[BranchIx],
    ) -> Result<bool, &'static str> {
        let pool = self.tree.pool.load_full();
        let Some(name) = dir.name() else { return Ok(false) };
        if !dir.is_on(from) {
            // The walk has met it there.
            return Err(NOT_KNOWN);
        }
        if dir.copies().len() == 1 {
            self.tree.copy_elsewhere(&pool, dir, &name.parent, targets)?;
        }
        // A listing that was shown the name in this copy does not find it there when it comes to another one. Before the lock, as
        // directories are read for that.
        let follow = |name: &InodeName| self.files.listings_follow_dir(&self.tree, &pool, name, dir);
        let mut followed = vec![follow(&name)];
        let _tree_lock = self.tree.tree_lock.write(&pool).map_err(job_move::in_words)?;
        let before = name;
        let Some(name) = dir.name() else { return Ok(false) };
        if !dir.is_on(from) {
            return Ok(false);
        }
        if !name.is(&before.parent, &before.name) {
            followed.push(follow(&name));
        }
        let kept = self.tree.copies_kept(&pool, dir, from)?;
        self.tree.set_later_times(&pool, dir, &kept);
        let said = |error: OpError| match error.errno() {
            Errno::NOTEMPTY | Errno::EXIST => NOT_EMPTY,
            Errno::PERM => "it is append-only or immutable",
            _ => job_move::in_words(error),
        };
        self.tree.make_durable(&pool, dir, &kept.branches).map_err(said)?;
        let parent = self.tree.dirfd(&pool, &name.parent, from).map_err(said)?;
        let branch = pool.branch(from);
        self.tree.keep_number(&pool, dir, Some(from));
        guard_number(&self.tree, &pool, dir, from);
        // A lookup that asks one branch after the other may have come by the copy that stays before that was made.
        name.parent.has_new(&name.name);
        self.tree.relocations.fetch_add(1, SeqCst);
        let kept_times = self.tree.quiet_dirs.keep(branch, [&parent]);
        // Before it goes: a lookup that does not find it leaves it out.
        let was = dir.copy_on(from);
        branch.ask(|| sys::at::rmdir(parent.as_fd(), &name.name)).map_err(said)?;
        drop(kept_times);
        if let Some(was) = was {
            dir.drop_copy(from, was);
        }
        changed_unseen(&self.tree, &pool, from, (&name.parent, &name.name), NameEvent::Went);
        if let Err(error) = branch.ask(|| sync_dir(parent.as_fd())) {
            tracing::debug!(%error, "an empty directory may be back after a power cut");
        }
        if let Some((own, _)) = was {
            forget_copy(&self.tree, &pool, dir, (from, own));
        }
        Ok(true)
    }

    /// Whether the branches other than `from` show the root of the pool as it is now, but for its times.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check_root_without(&self, from: BranchIx) -> Result<(), &'static str> {
        self.tree.copies_kept(&self.tree.pool.load_full(), self.tree.inodes.root(), from).map(drop)
    }

    /// Like [`Self::check_root_without`]; the times are made so.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn root_shows_without(&self, from: BranchIx) -> Result<(), &'static str> {
        let pool = self.tree.pool.load_full();
        let root = self.tree.inodes.root();
        let kept = self.tree.copies_kept(&pool, root, from)?;
        self.tree.set_later_times(&pool, root, &kept);
        Ok(())
    }
}

/// The copies of a directory on other branches.
struct KeptCopies {
    branches: Vec<BranchIx>,
    /// Times that the first of them is to have: the later of each kind, as the pool shows the latest.
    later: Option<(BranchIx, Arc<DirFd>, Times)>,
}

impl Tree {
    fn copy_elsewhere(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        parent: &Arc<Inode>,
        targets: &[BranchIx],
    ) -> Result<(), &'static str> {
        let placement = placement_in(pool, parent).by_policy(&pool.settings.relocation.policy);
        let ranking = self.ranking(pool, parent, &placement, |branch, space| {
            let own = branch.floor().unwrap_or(pool.settings.floor);
            let floor = placement.floor(branch.ix, own).bytes_of(space.total);
            targets.contains(&branch.ix) && branch.takes_moves() && space.available > floor
        });
        let mut why = "no other branch has room for it";
        for at in ranking.order {
            match self.skeleton(pool, dir, at) {
                Ok(_) => return Ok(()),
                Err(error) if error.errno() == Errno::PERM => why = "it is append-only or immutable",
                Err(error) if error.is_obstructed() => why = OBSTRUCTED,
                Err(error) if error.is_unfit() => why = "no other branch can hold its attributes",
                Err(error) => why = job_move::in_words(error),
            }
        }
        Err(why)
    }

    /// The other copies of `dir`, the first of which shows what the copy on `from` shows, but for its times.
    fn copies_kept(&self, pool: &Pool, dir: &Arc<Inode>, from: BranchIx) -> Result<KeptCopies, &'static str> {
        self.check_whole(pool, dir).map_err(job_move::in_words)?;
        let copies = dir.copies();
        let kept: Vec<BranchIx> = copies.iter().copied().filter(|at| *at != from).collect();
        let Some(first) = kept.first().copied() else { return Err("no other branch has a copy of it") };
        if !copies.contains(&from) {
            return Ok(KeptCopies { branches: kept, later: None });
        }
        let look = |at| {
            let fd = self.dirfd(pool, dir, at)?;
            let stat = pool.branch(at).ask(|| sys::at::stat_fd(fd.as_fd()))?;
            Ok::<_, OpError>((fd, stat))
        };
        let (own, own_stat) = look(from).map_err(job_move::in_words)?;
        let (shown, shown_stat) = look(first).map_err(job_move::in_words)?;
        if copies.first() == Some(&from) {
            let rights = |stat: &Stat| (stat.mode & 0o7777, stat.uid, stat.gid);
            let like = || {
                let own = pool.branch(from).ask(|| attributes_of_dir(own.as_fd()))?;
                Ok::<_, OpError>(own == pool.branch(first).ask(|| attributes_of_dir(shown.as_fd()))?)
            };
            if rights(&own_stat) != rights(&shown_stat) || !like().map_err(job_move::in_words)? {
                return Err(DIFFERS);
            }
        }
        let is_later = own_stat.mtime > shown_stat.mtime || own_stat.atime > shown_stat.atime;
        let times = || Times {
            atime: SetTime::At(own_stat.atime.max(shown_stat.atime)),
            mtime: SetTime::At(own_stat.mtime.max(shown_stat.mtime)),
        };
        Ok(KeptCopies { branches: kept, later: is_later.then(|| (first, shown, times())) })
    }

    fn set_later_times(&self, pool: &Pool, dir: &Arc<Inode>, kept: &KeptCopies) {
        if let Some((first, copy, times)) = &kept.later {
            set_times(pool.branch(*first), copy.as_fd(), *times);
            self.catalogue_attributes(pool, dir);
        }
    }

    /// The other copies lead to the directory's number, and are found after a power cut.
    fn make_durable(&self, pool: &Pool, dir: &Arc<Inode>, kept: &[BranchIx]) -> Result<()> {
        for at in kept {
            let branch = pool.branch(*at);
            let Some(own) = dir.copy_ino(*at) else { continue };
            let fd = self.dirfd(pool, dir, *at)?;
            if branch.is_writable()
                && branch.ask(|| mark::read(On::Fd(fd.as_fd()), mark::DIR, own))? != Some(dir.id)
            {
                // A branch without such attributes gives the directory another number at the next mount.
                let _put = branch.ask(|| mark::put(On::Fd(fd.as_fd()), mark::DIR, dir.id, own));
            }
            self.note_copy(branch, On::Fd(fd.as_fd()), dir.id, own);
            for above in ancestors(dir) {
                let above = self.dirfd(pool, &above, *at)?;
                branch.ask_long(|| sync_dir(above.as_fd()))?;
            }
        }
        Ok(())
    }
}

/// Attributes and flags that the pool shows of a directory, besides owner, mode and times.
///
/// # Errors
/// The branch's error.
pub(crate) fn attributes_of_dir(dir: BorrowedFd<'_>) -> Result<(Vec<Attribute>, u32), SysError> {
    let dir = sys::at::reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
    attributes(dir.as_fd())
}

/// The same of a file or directory that is open to be read.
///
/// # Errors
/// The branch's error.
pub(crate) fn attributes(dir: BorrowedFd<'_>) -> Result<(Vec<Attribute>, u32), SysError> {
    let mut all = Vec::new();
    for raw in names_of(dir)?.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(raw) else { continue };
        if is_private(name.to_bytes()) || DERIVED.contains(&name.to_bytes()) {
            continue;
        }
        all.push((name.to_bytes().to_vec(), xattr::get_vec(On::Fd(dir), name)?));
    }
    all.sort();
    Ok((all, InodeFlags::of(dir.as_fd())?.promises()))
}
