//! Taking hidden objects away, so that a branch can be emptied: objects that another branch's object of the same name hides.
//!
//! A hidden object goes only while the pool shows another one of its name, which nobody can make, replace or rename meanwhile
//! (`Tree::create_guard`). It is as it was when it was compared or copied, and no process has it open or mapped, which a write
//! lease tells. So a program that still writes to it keeps it where it is.
//!
//! A comparison or copy takes as long as the object is large. No snapshot of the pool is kept meanwhile, for whose end other jobs
//! and changes of branches wait; the branches are kept in the pool.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::branch::Branch;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::Result;
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_pool::{BranchIx, Printable};
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError};

use crate::inode::Inode;
use crate::member::Member;
use crate::moves::Moves;
use crate::moves::directories::attributes;
use crate::moves::job_move::{self, Manner};
use crate::moves::reasons::FROZEN;
use crate::moves::set_aside::{KeptCopy, SetAside};
use crate::moves::transfer;
use crate::pool::Pool;
use crate::tree::Tree;

use crate::tree::resolve::Found;
use crate::tree::unsynced_dirs::{NameEvent, changed_unseen};

/// Fate of hidden objects in a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum HiddenCopies {
    /// It does not begin, or leaves them.
    #[default]
    Stop,
    /// They are set aside on another branch, outside of the pool's tree.
    Move,
    /// Those that are the same as what the pool shows are removed; others stay.
    Delete,
}

/// Reason for a hidden directory to stay.
pub(crate) const HIDDEN_DIR: &str =
    "it is a directory, hidden by another branch's object of this name: move or remove it on the branch";
/// Reason for a hidden object to stay that is not the same as the shown one.
pub(crate) const HIDDEN_DIFFERS: &str =
    "it is hidden, and differs from what the pool shows: --hidden=move sets it aside";
/// Reason for a hidden object to stay until it is closed.
pub(crate) const HIDDEN_OPEN: &str = "it is hidden, and a program may have it open";
const NO_LONGER: &str = "it was hidden, and was just used or changed";
/// Reason for a hidden object to stay on a remote branch.
pub(crate) const HIDDEN_REMOTE: &str =
    "it is hidden, and its branch is remote: whether a program has it open is not known there";
/// Reason for a hidden object to stay on a branch with mode RO, or mounted read-only.
pub(crate) const HIDDEN_READ_ONLY: &str = "it is hidden, and its branch takes no change";
const NO_KEEPER: &str = "it is hidden, and no branch has room to set it aside";

/// An object of a name.
struct HiddenObject {
    /// Open to be read, if it is a file, else by its name.
    fd: OwnedFd,
    stat: Stat,
}

impl HiddenObject {
    fn open(branch: &Branch, dir: &DirFd, name: &CStr) -> Result<Self> {
        branch.ask(|| {
            let stat = sys::at::stat(dir.as_fd(), name)?;
            let open = |how| sys::at::open(dir.as_fd(), name, how, 0, branch.mounts);
            let fd = match stat.is_file() {
                // A comparison does not change the time of access.
                true => sys::at::quietly(OFlags::RDONLY | OFlags::NONBLOCK, open)?,
                false => open(OFlags::PATH)?,
            };
            let opened = sys::at::stat_fd(fd.as_fd())?;
            match opened.ino == stat.ino {
                true => Ok(Self { fd, stat: opened }),
                false => Err(SysError { call: sys::Call::Open, errno: Errno::STALE }),
            }
        })
    }

    /// Checks that nobody has it open: a file that was opened when it was shown may still be written to, by the daemon or
    /// through a mapping.
    fn check_closed(&self, branch: &Branch) -> std::result::Result<(), &'static str> {
        let elsewhere = || branch.ask(|| sys::file::is_open_elsewhere(self.fd.as_fd())).unwrap_or(true);
        if self.stat.is_file() && elsewhere() { Err(HIDDEN_OPEN) } else { Ok(()) }
    }

    /// Whether the name still leads to it, unchanged.
    fn stands(&self, branch: &Branch, dir: &DirFd, name: &CStr) -> Result<bool> {
        let now = branch.ask(|| sys::at::stat(dir.as_fd(), name))?;
        let was = &self.stat;
        let same =
            |a: &Stat, b: &Stat| (a.ino, a.size, a.mtime, a.ctime) == (b.ino, b.size, b.mtime, b.ctime);
        Ok(same(&now, was))
    }

    /// Whether both have the same content, owner, mode and attributes. Their times are not compared.
    fn is_like(&self, other: &Self) -> std::result::Result<bool, SysError> {
        let facts = |stat: &Stat| (stat.kind(), stat.mode & 0o7777, stat.uid, stat.gid, stat.rdev());
        if facts(&self.stat) != facts(&other.stat) {
            return Ok(false);
        }
        if self.stat.is_symlink() {
            return Ok(sys::at::readlink(self.fd.as_fd(), c"")? == sys::at::readlink(other.fd.as_fd(), c"")?);
        }
        if !self.stat.is_file() {
            return Ok(true);
        }
        Ok(attributes(self.fd.as_fd())? == attributes(other.fd.as_fd())?
            && transfer::is_same(self.fd.as_fd(), other.fd.as_fd())?)
    }
}

/// A hidden object's name.
pub(crate) struct HiddenName<'n> {
    pub(crate) dir: &'n Arc<Inode>,
    pub(crate) name: &'n CStr,
    /// Its branch.
    pub(crate) at: BranchIx,
    /// Its path from the pool's root.
    pub(crate) path: &'n [u8],
}

impl HiddenName<'_> {
    /// Its branch, and its directory there.
    fn directory(&self, tree: &Tree) -> Result<(KeptBranch, Arc<DirFd>)> {
        let pool = tree.pool.load();
        Ok((KeptBranch::of(&pool, self.at)?, tree.dirfd(&pool, self.dir, self.at)?))
    }

    /// Opens the object that the pool shows.
    ///
    /// # Errors
    /// ESTALE if it is this one.
    fn open_shown(&self, tree: &Tree) -> Result<ShownObject> {
        let pool = tree.pool.load();
        let at = tree.shown_at(&pool, self)?;
        let (at, dir) = (KeptBranch::of(&pool, at)?, tree.dirfd(&pool, self.dir, at)?);
        drop(pool);
        let object = HiddenObject::open(&at.branch, &dir, self.name)?;
        Ok(ShownObject { at, dir, object })
    }
}

/// A branch that stays in the pool until this drops.
struct KeptBranch {
    branch: Arc<Member>,
    _stays: OpenFileRef,
}

impl KeptBranch {
    fn of(pool: &Pool, at: BranchIx) -> Result<Self> {
        let branch = pool.branch(at).clone();
        let stays = branch.acquire()?;
        Ok(Self { branch, _stays: stays })
    }
}

/// The object that the pool shows.
struct ShownObject {
    at: KeptBranch,
    dir: Arc<DirFd>,
    object: HiddenObject,
}

/// # Errors
/// Hidden objects stay on a branch that is remote or takes no change.
fn check_branch(branch: &Branch) -> std::result::Result<(), &'static str> {
    if branch.is_remote() {
        return Err(HIDDEN_REMOTE);
    }
    if branch.is_writable() { Ok(()) } else { Err(HIDDEN_READ_ONLY) }
}

impl Moves {
    /// Bytes that the hidden object needs on a branch that keeps it, if it can be taken away as `how` says. A dry run compares.
    ///
    /// # Errors
    /// Why it would stay.
    pub(crate) fn foresee_hidden(
        &self,
        hidden: &HiddenName<'_>,
        how: (HiddenCopies, Manner),
    ) -> std::result::Result<u64, &'static str> {
        let said = job_move::in_words;
        let (from, dir) = hidden.directory(&self.tree).map_err(said)?;
        let branch = &from.branch;
        check_branch(branch)?;
        let stat = branch.ask(|| sys::at::stat(dir.as_fd(), hidden.name)).map_err(said)?;
        if stat.is_dir() {
            return Err(HIDDEN_DIR);
        }
        if how.0 == HiddenCopies::Delete && how.1.dry_run {
            let object = HiddenObject::open(branch, &dir, hidden.name).map_err(said)?;
            if self.tree.differs_from_shown(hidden, (branch, &object)).map_err(said)? {
                return Err(HIDDEN_DIFFERS);
            }
        }
        Ok(stat.blocks.saturating_mul(512))
    }

    /// Takes the hidden object away as `how` says; one of `keepers`, each with the bytes it has room for, takes it if it is set aside.
    ///
    /// # Errors
    /// Why it stays.
    pub(crate) fn clear_hidden(
        &self,
        hidden: &HiddenName<'_>,
        how: (HiddenCopies, Manner),
        keepers: &[(BranchIx, u64)],
        goes_on: &dyn Fn() -> bool,
    ) -> std::result::Result<(), &'static str> {
        let said = job_move::in_words;
        let (from, dir) = hidden.directory(&self.tree).map_err(said)?;
        let branch = &from.branch;
        check_branch(branch)?;
        let object = HiddenObject::open(branch, &dir, hidden.name).map_err(said)?;
        if object.stat.is_dir() {
            return Err(HIDDEN_DIR);
        }
        object.check_closed(branch)?;
        let differs = self.tree.differs_from_shown(hidden, (branch, &object)).map_err(said)?;
        let kept = match how.0 {
            HiddenCopies::Stop => return Err(HIDDEN_DIFFERS),
            HiddenCopies::Delete if differs => return Err(HIDDEN_DIFFERS),
            HiddenCopies::Delete => {
                self.sync_shown(hidden).map_err(said)?;
                None
            }
            HiddenCopies::Move => {
                let branch: &Branch = branch;
                Some(self.set_aside(hidden, (branch, &object, differs), (how.1, keepers), goes_on)?)
            }
        };
        let removed = self.tree.remove_hidden(&self.tree.pool.load(), hidden, &object, &dir);
        match (&removed, kept) {
            (Ok(()), Some((to, kept))) => {
                tracing::info!(path = %Printable(hidden.path), branch = %to.branch.path.display(), kept = ?kept.name(), "hidden copy set aside");
            }
            (Err(_), Some((to, kept))) => kept.discard(&to.branch),
            (_, None) => {}
        }
        removed
    }

    /// Puts the object that the pool shows on disk, before another one of its name goes.
    fn sync_shown(&self, hidden: &HiddenName<'_>) -> Result<()> {
        let ShownObject { at, dir, object } = hidden.open_shown(&self.tree)?;
        at.branch.ask_long(|| {
            if object.stat.is_file() {
                sys::file::fsync(object.fd.as_fd())?;
            }
            sync_dir(dir.as_fd())
        })
    }

    /// Copies the hidden object to one of `keepers`, on disk.
    fn set_aside(
        &self,
        hidden: &HiddenName<'_>,
        (from, object, differs): (&Branch, &HiddenObject, bool),
        (manner, keepers): (Manner, &[(BranchIx, u64)]),
        goes_on: &dyn Fn() -> bool,
    ) -> std::result::Result<(KeptBranch, KeptCopy), &'static str> {
        let pool = self.tree.pool.load();
        let need = object.stat.blocks.saturating_mul(512);
        let fits = keepers.iter().filter(|(at, bytes)| *bytes > need && !pool.branch(*at).is_remote());
        let Some((keeper, _)) = fits.max_by_key(|(_, bytes)| bytes) else { return Err(NO_KEEPER) };
        let to = KeptBranch::of(&pool, *keeper).map_err(job_move::in_words)?;
        let relocation = manner.of(&pool.settings.relocation);
        drop(pool);
        let aside = SetAside { from, fd: object.fd.as_fd(), stat: &object.stat, path: hidden.path, differs };
        let kept = aside.copy_to(&to.branch, &relocation, goes_on).map_err(|error| match error.errno() {
            Errno::OPNOTSUPP | Errno::PERM => "it is hidden, and no branch can hold its attributes",
            Errno::NOSPC | Errno::DQUOT => NO_KEEPER,
            _ => job_move::in_words(error),
        })?;
        Ok((to, kept))
    }
}

impl Tree {
    /// Whether the pool shows another object of the name than `object`, which is the same but for its times.
    ///
    /// # Errors
    /// ESTALE if the object is not hidden.
    fn differs_from_shown(
        &self,
        hidden: &HiddenName<'_>,
        (from, object): (&Branch, &HiddenObject),
    ) -> Result<bool> {
        let shown = hidden.open_shown(self)?;
        if shown.object.stat.size != object.stat.size {
            return Ok(true);
        }
        let _inside = shown.at.branch.come_in(CallKind::Long)?;
        from.ask_long(|| object.is_like(&shown.object)).map(|is_like| !is_like)
    }

    /// The branch whose object of the name the pool shows.
    ///
    /// # Errors
    /// ESTALE if it is the one of `hidden`.
    fn shown_at(&self, pool: &Pool, hidden: &HiddenName<'_>) -> Result<BranchIx> {
        let at = match self.find(pool, hidden.dir, hidden.name)? {
            Found::File(at, _) => Some(at),
            Found::Dir(stats, _) => stats.first().map(|(at, _)| *at),
        };
        at.filter(|at| *at != hidden.at).ok_or(Errno::STALE.into())
    }

    /// Removes the name of the hidden `object`, if it still is hidden and as it was.
    fn remove_hidden(
        &self,
        pool: &Pool,
        hidden: &HiddenName<'_>,
        object: &HiddenObject,
        dir: &DirFd,
    ) -> std::result::Result<(), &'static str> {
        let branch = pool.branch(hidden.at);
        let said = job_move::in_words;
        let _made_by_nobody = self.create_guard(pool, hidden.dir, hidden.name).map_err(said)?;
        self.shown_at(pool, hidden).map_err(|_| NO_LONGER)?;
        object.check_closed(branch)?;
        match object.stands(branch, dir, hidden.name) {
            Ok(true) => {}
            Ok(false) => return Err(NO_LONGER),
            // The pool's users have removed the name.
            Err(error) if error.is_missing() => return Err(NO_LONGER),
            Err(error) => return Err(said(error)),
        }
        let kept_times = self.quiet_dirs.keep(branch, [dir]);
        branch.ask(|| sys::at::unlink(dir.as_fd(), hidden.name)).map_err(|error| match error.errno() {
            Errno::PERM => FROZEN,
            _ => said(error),
        })?;
        drop(kept_times);
        changed_unseen(self, pool, hidden.at, (hidden.dir, hidden.name), NameEvent::Went);
        if let Err(error) = branch.ask(|| sync_dir(dir.as_fd())) {
            tracing::debug!(%error, "a hidden name may be back after a power cut");
        }
        Ok(())
    }
}
