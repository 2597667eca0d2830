//! Giving a branch the directories that it lacks.
//!
//! A skeleton is made with the tree lock held shared, so that no directory of it is renamed or removed meanwhile. The removal
//! of a directory's only copy holds the tree lock shared too, and the directory itself (`Inode::go`). A change of its
//! attributes keeps new copies away meanwhile (`inode/copy_guards.rs`). Of two threads that want the same skeleton the later one
//! waits, and finds it there. It gets owner, mode, attributes and times of its model before its name shows; where the server
//! cannot give a directory a name without taking another's away, it is made under its name, and is closed until it is complete.
//!
//! Renames and removals on the path to it on other branches are on disk before: each branch is a journal of its own.
//!
//! A branch that cannot hold an ACL, or keep the promise of an inode flag, is given no copy. With the mode alone the copy
//! would let in more users than the directory does, and new entries would lack the promise.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::caller::as_owner;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::entries::is_dot;
use fsstack_branch::error::{OpError, Result};
use fsstack_identity::mark;
use fsstack_identity::number::{Identity, mix};
use fsstack_pool::BranchIx;
use fsstack_sys::at::{RenameFlags, SetTime, Times};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError};

use crate::inode::{Inode, InodeName};
use crate::member::Member;
use crate::member::staged::fresh_name;
use crate::pool::Pool;
use crate::recovery::hidden_folder;
use crate::tree::Tree;
use crate::tree::clashes::ClashReport;
use crate::tree::inode_flags::InodeFlags;
use crate::tree::tree_lock::unless_stuck;
use crate::tree::unsynced_dirs::{NameEvent, changed_unseen};

impl Tree {
    /// The descriptor of `dir` on the branch `at`, which is given a copy if it has none.
    ///
    /// # Errors
    /// ENOENT if the directory was removed; the branch's error.
    pub(crate) fn skeleton(&self, pool: &Pool, dir: &Arc<Inode>, at: BranchIx) -> Result<Arc<DirFd>> {
        match self.dirfd(pool, dir, at) {
            Err(error) if error.is_missing() || error.errno() == Errno::STALE => {}
            settled if dir.is_on(at) => return settled,
            _ => {}
        }
        let _tree_lock = self.tree_lock.read(pool)?;
        self.skeleton_under_tree_lock(pool, dir, at)
    }

    /// Like [`Self::skeleton`], where the caller holds the tree lock.
    pub(crate) fn skeleton_under_tree_lock(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        at: BranchIx,
    ) -> Result<Arc<DirFd>> {
        let mut below: Vec<(Arc<Inode>, InodeName)> = Vec::new();
        let mut upper = dir.clone();
        let mut fd = loop {
            // A branch that is just being added has the root before the root knows of it.
            if (upper.is_root() || upper.is_on(at))
                && let Ok(fd) = self.dirfd(pool, &upper, at)
            {
                break fd;
            }
            let name = upper.name().ok_or(OpError::MISSING)?;
            let parent = name.parent.clone();
            below.push((upper, name));
            upper = parent;
        };
        if !below.is_empty() {
            // If a power cut lost a rename on the path and kept the copy, one directory would be two.
            self.sync_way(pool, dir, Some(at))?;
            self.sync_attributes(pool, dir, at)?;
        }
        while let Some((inode, name)) = below.pop() {
            let branch = pool.branch(at);
            if inode.is_unfit_for(at) {
                return Err(branch.said(SysError { call: sys::Call::Setxattr, errno: Errno::OPNOTSUPP }));
            }
            fd = self.copy_dir(pool, branch, &fd, &inode, &name).inspect_err(|error| {
                self.catalogue_name(pool, at, (&name.parent, &name.name));
                if error.is_unfit() {
                    inode.note_unfit(at);
                    self.report_unfit(branch, &inode);
                }
            })?;
        }
        Ok(fd)
    }

    /// Logs once that new entries of `dir` are not put on `branch`.
    fn report_unfit(&self, branch: &Branch, dir: &Arc<Inode>) {
        if self.unfit.tell(mix(dir.id.ino.0 ^ u64::from(branch.ix.0))) == ClashReport::Before {
            return;
        }
        let (path, branch) = (dir.path().unwrap_or_default(), branch.path.display());
        let path = String::from_utf8_lossy(&path);
        tracing::warn!(%branch, ?path, "directory: the branch cannot hold its ACL or keep its inode flags; new entries go to other branches; remove the ACL (setfacl -b) or the flags (chattr) to use the branch");
    }

    fn copy_dir(
        &self,
        pool: &Pool,
        branch: &Member,
        parent: &DirFd,
        dir: &Arc<Inode>,
        name: &InodeName,
    ) -> Result<Arc<DirFd>> {
        let _copy_guard = unless_stuck(pool, || dir.grow(branch.ix), || dir.is_kept_by_stuck_at(branch.ix))?;
        let source_at = dir.copies().first().copied().ok_or(OpError::STALE)?;
        let source = self.dirfd(pool, dir, source_at)?;
        // Within the limits of its own branch: a thread that it keeps is given up, and the new copy's branch is not to blame.
        let model = pool.branch(source_at).ask(|| DirModel::of(source.as_fd()))?;
        if model.stat.nlink == 0 {
            return Err(OpError::MISSING); // removed since it was opened
        }
        if model.stat.is_immutable() || model.stat.is_append_only() {
            return Err(Errno::PERM.into()); // on a further branch it could be filled, and emptied
        }
        let above = &name.parent;
        let born = above.born();
        let made = branch.ask(|| make_like(branch, parent.as_fd(), &name.name, &model, dir.id))?;
        if above.is_being_filled() || above.born() != born {
            // Its times were set back, over those of a create of another thread.
            let now = Times { atime: SetTime::Omit, mtime: SetTime::Now };
            branch.ask(|| sys::at::utimens_fd(parent.as_fd(), now))?;
        }
        let stat = branch.ask(|| sys::at::stat_fd(made.as_fd()))?;
        changed_unseen(self, pool, branch.ix, (&name.parent, &name.name), NameEvent::Came);
        // It may have been found there, unmarked.
        self.note_copy(branch, On::Fd(made.as_fd()), dir.id, stat.ino);
        let fd = Arc::new(self.budget.count(parent.opened(made)));
        dir.add_copy(branch.ix, stat.ino, Some(fd.clone()), |at| pool.turn(at));
        self.keep_number(pool, dir, None);
        self.budget.opened(&self.inodes, dir, branch.ix);
        Ok(fd)
    }
}

/// Attributes of a directory that a new copy of it gets.
struct DirModel {
    stat: Stat,
    xattrs: Xattrs,
    inode_flags: InodeFlags,
}

impl DirModel {
    fn of(source: BorrowedFd<'_>) -> Result<Self, SysError> {
        let inode_flags = match sys::at::reopen(source, OFlags::RDONLY) {
            Ok(source) => InodeFlags::of(source.as_fd())?,
            // Flags that cannot be read are left out.
            Err(_) => InodeFlags::default(),
        };
        Ok(Self { stat: sys::at::stat_fd(source)?, xattrs: xattrs_of(source)?, inode_flags })
    }
}

/// Makes the directory `name` in `parent` like `model`.
fn make_like(
    branch: &Branch,
    parent: BorrowedFd<'_>,
    name: &CStr,
    model: &DirModel,
    id: Identity,
) -> Result<OwnedFd, SysError> {
    match sys::at::open_dir(parent, name, branch.mounts) {
        Err(error) if error.errno == Errno::NOENT => {}
        settled => return settled,
    }
    let before = sys::at::stat_fd(parent)?;
    let apart = || make_in_folder(branch, parent, name, model, id);
    // An unfinished copy may go at any time: another host's mount clears the folder, and the copy is made anew.
    let made = match hidden_folder::unless_removed(apart) {
        // An ACL that cannot be set in the folder cannot be set in place either.
        Err(error) if error.call == sys::Call::Setxattr => return Err(error),
        Err(error) if lacks_folder(error.errno) => make_in_place(branch, parent, name, model, id)?,
        made => made?,
    };
    branch.note_made();
    // The parent's copy got an entry, the parent itself did not change: its times stay.
    let times = Times { atime: SetTime::At(before.atime), mtime: SetTime::At(before.mtime) };
    if let Err(error) = sys::at::utimens_fd(parent, times) {
        sys::at::rmdir(parent, name)?;
        return Err(error);
    }
    Ok(made)
}

/// The reason may be the hidden folder: a server that does not let root make it, something else that a user has put there, or a
/// directory with a quota or a key of its own.
fn lacks_folder(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::PERM
            | Errno::ACCESS
            | Errno::XDEV
            | Errno::OPNOTSUPP
            | Errno::INVAL
            | Errno::NOSYS
            | Errno::NOTDIR
            | Errno::LOOP
    )
}

/// Makes it in the branch's hidden folder and then gives it its name: it never shows half made.
fn make_in_folder(
    branch: &Branch,
    parent: BorrowedFd<'_>,
    name: &CStr,
    model: &DirModel,
    id: Identity,
) -> Result<OwnedFd, SysError> {
    let apart = fresh_name(c".dir");
    let (folder, ()) = hidden_folder::in_folder(branch, |folder| sys::at::mkdir(folder, &apart, 0o700))?;
    let named = sys::at::open_dir(folder.as_fd(), &apart, branch.mounts).and_then(|fd| {
        clone_dir_metadata(fd.as_fd(), model, id)?;
        sys::at::rename(folder.as_fd(), &apart, parent, name, RenameFlags::NOREPLACE)?;
        Ok(fd)
    });
    if named.is_err()
        && let Err(error) = sys::at::rmdir(folder.as_fd(), &apart)
        && error.errno != Errno::NOENT
    {
        tracing::warn!(%error, branch = %branch.path.display(), "copy of a directory: rollback failed; the next mount clears it");
    }
    hidden_folder::leave(branch);
    match named {
        Err(error) if error.errno == Errno::EXIST => sys::at::open_dir(parent, name, branch.mounts),
        named => named,
    }
}

/// Makes it under its name, never wider than its model: as its owner, so that it is theirs from the first moment, or, where
/// a server does not let them make a name there, as the daemon (everybody's directory in `/home` is made by root). Users
/// with write access to `parent`, out of band, may put another directory in its place meanwhile.
fn make_in_place(
    branch: &Branch,
    parent: BorrowedFd<'_>,
    name: &CStr,
    model: &DirModel,
    id: Identity,
) -> Result<OwnedFd, SysError> {
    let owner = &model.stat;
    // A daemon without root's rights has to look into it.
    let closed = if sys::identity::is_root() { 0o700 & owner.mode } else { 0o700 };
    let mut is_owners = true;
    let made = as_owner(owner, || sys::at::mkdir(parent, name, closed)).or_else(|error| {
        if !sys::identity::is_root() || !matches!(error.errno, Errno::ACCESS | Errno::PERM) {
            return Err(error);
        }
        is_owners = false;
        sys::at::mkdir(parent, name, 0)
    });
    match made {
        Ok(()) => {}
        Err(error) if error.errno == Errno::EXIST => {
            return sys::at::open_dir(parent, name, branch.mounts);
        }
        Err(error) => return Err(error),
    }
    let filled = sys::at::open_dir(parent, name, branch.mounts).and_then(|fd| {
        if is_owners {
            check_made(fd.as_fd(), owner.uid)?;
        } else {
            check_made(fd.as_fd(), 0)?;
            // A kill from here on leaves what one leaves that its owner made.
            sys::at::chown_fd(fd.as_fd(), Some(owner.uid), Some(owner.gid))?;
            sys::at::chmod_fd(fd.as_fd(), closed)?;
        }
        clone_dir_metadata(fd.as_fd(), model, id).map(|()| fd)
    });
    if filled.is_err()
        // No copy is better than a wrong one.
        && let Err(error) = sys::at::rmdir(parent, name)
    {
        tracing::warn!(%error, ?name, branch = %branch.path.display(), "copy of a directory: rollback failed; an incomplete directory stays, which its owner alone can enter");
    }
    filled
}

/// Asserts that `fd` may be the directory that was just made by `uid`: it is theirs, and empty. Another one must not
/// change: a user may have put it there to have it given away, or opened.
///
/// # Errors
/// EPERM if it is another directory; the error of looking at it.
fn check_made(fd: BorrowedFd<'_>, uid: u32) -> Result<(), SysError> {
    let is_theirs = sys::at::stat_fd(fd)?.uid == uid;
    let mut entries = Dirents::new(sys::at::reopen(fd, OFlags::RDONLY | OFlags::DIRECTORY)?, 1024);
    let mut is_empty = true;
    while let Some(entry) = entries.next()? {
        is_empty &= is_dot(entry.name);
    }
    let refused = SysError { call: sys::Call::Stat, errno: Errno::PERM };
    if is_theirs && is_empty { Ok(()) } else { Err(refused) }
}

fn clone_dir_metadata(fd: BorrowedFd<'_>, model: &DirModel, id: Identity) -> Result<(), SysError> {
    let DirModel { stat: model, xattrs, inode_flags } = model;
    let own = sys::at::stat_fd(fd)?;
    if (own.uid, own.gid) != (model.uid, model.gid) {
        // A set-gid parent gave its own group.
        sys::at::chown_fd(fd, Some(model.uid), Some(model.gid))?;
    }
    put_xattrs(fd, xattrs, Unfit::LeftOut)?;
    let _put = mark::put(On::Fd(fd), mark::DIR, id, own.ino);
    sys::at::chmod_fd(fd, model.mode & 0o7777)?;
    copy_inode_flags(fd, *inode_flags)?;
    sys::at::utimens_fd(fd, Times { atime: SetTime::At(model.atime), mtime: SetTime::At(model.mtime) })
}

/// Attributes that belong to the branch's own file system, or to the pool on that branch.
pub(crate) fn is_private(name: &[u8]) -> bool {
    [mark::OWN_PREFIX, b"trusted.glusterfs", b"trusted.gfid", b"trusted.overlay", b"glusterfs."]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Handling of an attribute that the other file system cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is left out: better a directory without it than none. An ACL is not: without it the mode would let in more users.
    LeftOut,
    /// The copy fails: read access to a file may depend on it.
    Refused,
}

/// Attributes that a file system derives from copied ones, and others have no place for.
pub(crate) const DERIVED: [&[u8]; 5] =
    [b"security.selinux", b"security.ima", b"security.evm", b"system.nfs4_acl", b"system.cifs_acl"];

/// Access lists, which new entries inherit from their directory.
const INHERITED: [&CStr; 2] = [c"system.posix_acl_access", c"system.posix_acl_default"];

/// Extended attributes: names and values.
type Xattrs = Vec<(CString, Vec<u8>)>;

/// Copies the extended attributes of `from` to `to`, access lists among them, except those of a file system itself or of a
/// pool. An access list that `from` does not have is removed: it came from the directory where `to` was made.
///
/// # Errors
/// One cannot be read or removed, or `to` cannot have it and `unfit` says so.
pub fn copy_xattrs(to: BorrowedFd<'_>, from: BorrowedFd<'_>, unfit: Unfit) -> Result<(), SysError> {
    put_xattrs(to, &xattrs_of(from)?, unfit)
}

/// The attributes of `from` that a copy gets.
fn xattrs_of(from: BorrowedFd<'_>) -> Result<Xattrs, SysError> {
    let names = names_of(from)?;
    let mut xattrs = Xattrs::new();
    for raw in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(raw) else { continue };
        if is_private(name.to_bytes()) {
            continue;
        }
        match xattr::get_vec(On::Fd(from), name) {
            Ok(value) => xattrs.push((name.to_owned(), value)),
            Err(error) if error.errno == Errno::NODATA => {}
            Err(error) => return Err(error),
        }
    }
    Ok(xattrs)
}

fn put_xattrs(to: BorrowedFd<'_>, xattrs: &Xattrs, unfit: Unfit) -> Result<(), SysError> {
    let own = names_of(to)?;
    for list in INHERITED {
        if has(&own, list)
            && xattrs.iter().all(|(name, _)| name.as_c_str() != list)
            && let Err(error) = xattr::remove(On::Fd(to), list)
            && !matches!(error.errno, Errno::NODATA | Errno::OPNOTSUPP)
        {
            return Err(error);
        }
    }
    for (name, value) in xattrs {
        match xattr::set(On::Fd(to), name, value, 0) {
            // Attributes that the other file system, or an unprivileged daemon, cannot have.
            Err(error)
                if matches!(error.errno, Errno::OPNOTSUPP | Errno::PERM)
                    && (DERIVED.contains(&name.to_bytes())
                        || unfit == Unfit::LeftOut && !INHERITED.contains(&name.as_c_str())) => {}
            done => done?,
        }
    }
    Ok(())
}

/// The names of all attributes, each with a NUL after it; none where the file system has none.
pub(crate) fn names_of(fd: BorrowedFd<'_>) -> Result<Vec<u8>, SysError> {
    match xattr::list_vec(On::Fd(fd)) {
        Err(error) if error.errno == Errno::OPNOTSUPP => Ok(Vec::new()),
        names => names,
    }
}

fn has(names: &[u8], name: &CStr) -> bool {
    names.split_inclusive(|byte| *byte == 0).any(|other| other == name.to_bytes_with_nul())
}

/// Copies the flags of a directory, which new entries inherit, as far as the other file system has them.
///
/// # Errors
/// EOPNOTSUPP if it does not keep a promise; the branch is out of order.
fn copy_inode_flags(to: BorrowedFd<'_>, inode_flags: InodeFlags) -> Result<(), SysError> {
    if inode_flags == InodeFlags::default() {
        return Ok(());
    }
    let to = sys::at::reopen(to, OFlags::RDONLY)?;
    inode_flags.begin(to.as_fd())?;
    inode_flags.finish(to.as_fd())?;
    inode_flags.check_promises(to.as_fd())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn an_object_put_in_place_of_a_new_directory_is_not_taken_for_it() {
        if !fsstack_sys::identity::is_root() {
            return;
        }
        let mount_root = tempfile::tempdir().unwrap();
        let open = || sys::at::open_root(mount_root.path()).unwrap();
        let is = |owner| {
            chown(mount_root.path(), Some(owner), None).unwrap();
            check_made(open().as_fd(), 1234)
        };
        is(1234).unwrap();
        assert_eq!(is(0).unwrap_err().errno, Errno::PERM);
        fs::write(mount_root.path().join("secret"), "").unwrap();
        assert_eq!(is(1234).unwrap_err().errno, Errno::PERM);
    }
}
