//! Extended attributes, ACLs among them, and the pool's own answers about a file.

use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::branch::LEVEL;
use fsstack_branch::caller::Caller;
use fsstack_branch::error::{OpError, Result};
use fsstack_identity::mark;
use fsstack_identity::number::is_offline;
use fsstack_pool::Ino;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Errno};

use crate::files::capability::{CAPABILITY, has_xattr};
use crate::files::route::Route;
use crate::inode::{Inode, InodeName};
use crate::ops::setattr::claim_mode;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::union::Union;

/// Prefix of the attributes that the pool answers itself. They cannot be set, and those that a branch has stored do not
/// show.
const OURS: &[u8] = b"user.fsstack.";
/// Attributes of mergerfs that the pool answers, too. Others under that prefix belong to the users.
const OURS_OF_MERGERFS: [&[u8]; 4] = [
    b"user.mergerfs.basepath",
    b"user.mergerfs.relpath",
    b"user.mergerfs.fullpath",
    b"user.mergerfs.allpaths",
];
/// Namespace whose permissions the kernel leaves to the file system.
const SYSTEM: &[u8] = b"system.";
const ACL_ACCESS: &CStr = c"system.posix_acl_access";
const ACL_DEFAULT: &CStr = c"system.posix_acl_default";

fn is_acl(name: &CStr) -> bool {
    [ACL_ACCESS, ACL_DEFAULT].contains(&name)
}

impl Union {
    /// Reads the attribute `name` of `ino` into `into`, and returns its length. An empty `into` asks for the length
    /// only.
    ///
    /// # Errors
    /// ENODATA if there is none, or it would be a path that `caller` may not be allowed to see; ERANGE if `into` is too small; the branch's error.
    pub fn getxattr(&self, ino: Ino, name: &CStr, caller: Caller, into: &mut [u8]) -> Result<usize> {
        if is_offline(ino) {
            // Not known; the kernel looks for an ACL before it lets a user see the object.
            return self.offline_attr(ino).and(Err(Errno::NODATA.into()));
        }
        let pool = self.tree.pool.load();
        let inode = self.tree.inode(ino)?;
        if is_ours(name.to_bytes()) {
            let value = self.about(&pool, &inode, name.to_bytes(), caller)?.ok_or(Errno::NODATA)?;
            return fill(into, &value);
        }
        if is_hidden(name.to_bytes()) {
            return Err(Errno::NODATA.into());
        }
        match self.tree.with_one(&pool, &inode, |on| xattr::get(on, name, into)) {
            Err(error) if is_acl(name) && is_by_catalogue(self, ino, error) => Err(Errno::NODATA.into()),
            read => read,
        }
    }

    /// Reads the access ACL of `ino` into `into`, and returns its length; None if it has none. In a pool that nothing else
    /// changes, and whose kernel sets no attributes (`xattr=off`), an object without an ACL gets none later: it is asked once.
    /// Not a directory on several branches: its attributes are another copy's while the first one's branch is away.
    ///
    /// # Errors
    /// ERANGE if `into` is too small; the branch's error.
    pub fn access_acl(&self, ino: Ino, into: &mut [u8]) -> Result<Option<usize>> {
        if is_offline(ino) {
            return self.offline_attr(ino).map(|_| None);
        }
        let pool = self.tree.pool.load();
        let inode = self.tree.inode(ino)?;
        let is_known = || if inode.is_dir() { inode.only_copy_lacks_acl() } else { inode.lacks_acl() };
        if pool.settings.exclusive && is_known() {
            return Ok(None);
        }
        let only = inode.only_copy();
        match self.tree.with_one(&pool, &inode, |on| xattr::get(on, ACL_ACCESS, into)) {
            Ok(len) => Ok(Some(len)),
            Err(error) if matches!(error.errno(), Errno::NODATA | Errno::OPNOTSUPP) => {
                match (only, error) {
                    _ if !pool.settings.exclusive => {}
                    (Some(only), OpError::Branch { branch, .. }) if branch == only.0 => {
                        inode.note_copy_without_acl(only);
                    }
                    _ if inode.is_dir() => {}
                    _ => inode.note_without_acl(),
                }
                Ok(None)
            }
            Err(error) if is_by_catalogue(self, ino, error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists the names of the attributes of `ino`, NUL-terminated, in `into`, and returns their length. An empty `into`
    /// asks for the length only.
    ///
    /// # Errors
    /// ERANGE if `into` is too small; the branch's error.
    pub fn listxattr(&self, ino: Ino, caller: Caller, into: &mut [u8]) -> Result<usize> {
        if is_offline(ino) {
            return self.offline_attr(ino).map(|_| 0);
        }
        let pool = self.tree.pool.load();
        let inode = self.tree.inode(ino)?;
        let mut names = match self.tree.with_one(&pool, &inode, xattr::list_vec) {
            Err(error) if is_by_catalogue(self, ino, error) => return Ok(0),
            names => names?,
        };
        // The daemon sees `trusted.` attributes, which only root may.
        let shown = |name: &[u8]| !is_hidden(name) && (!name.starts_with(b"trusted.") || caller.is_root());
        if !names.split(|byte| *byte == 0).all(shown) {
            names = names
                .split_inclusive(|byte| *byte == 0)
                .filter(|name| shown(name.strip_suffix(b"\0").unwrap_or(name)))
                .flatten()
                .copied()
                .collect();
        }
        fill(into, &names)
    }

    /// Sets the attribute `name` of `ino`, as setxattr(2) with `flags`; of a directory on all branches that
    /// have it. `kill_sgid`: the kernel has decided that an ACL set by this caller clears set-gid.
    ///
    /// # Errors
    /// EPERM for the pool's own names, and for those that are for root and the owner; the branch's error.
    pub fn setxattr(
        &self,
        ino: Ino,
        name: &CStr,
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
        caller: Caller,
    ) -> Result<()> {
        let pool = self.tree.pool.load();
        let inode = self.tree.inode(ino)?;
        self.tree.check_settable(&pool, &inode, name, caller)?;
        if inode.is_dir() {
            let mut on_copy = flags;
            if flags != 0 && inode.copies().len() > 1 {
                // `flags` ask whether the attribute is there: in what the pool shows, not on a later copy.
                self.tree.check_there(&pool, &inode, name, flags)?;
                on_copy = 0;
            }
            // A further copy may be where there are no such attributes, as a skeleton may be. The first one comes last.
            let last = Cell::new(Ok(()));
            let set = self.tree.on_all_copies(&pool, &inode, |fd| {
                last.set(xattr::set(On::Path(fd), name, value, on_copy));
                match last.get() {
                    Err(error) if error.errno == Errno::OPNOTSUPP && !is_acl(name) => return Ok(()),
                    set => set?,
                }
                look_anew(fd, name, value);
                // The kernel sets `kill_sgid` for either ACL; the default one has no part in the mode.
                if kill_sgid && name == ACL_ACCESS { clear_sgid(fd) } else { Ok(()) }
            });
            self.tree.attributes_changed(&pool, &inode);
            let at = inode.branch().ok_or(OpError::STALE)?;
            return set.and(last.get().map_err(|error| pool.branch(at).said(error)));
        }
        pool.branch(inode.branch().ok_or(OpError::STALE)?).check_mode()?;
        let pin = self.tree.pin(&pool, &inode)?;
        // Only root sets capabilities; only root may go on writing then.
        if name == CAPABILITY && inode.guard_set_id().is_some_and(|file| file.has_strange_writer(0)) {
            return Err(Errno::TXTBSY.into());
        }
        // The ACL is the mode, too.
        let _mode = if name == ACL_ACCESS { Some(claim_mode(&pool, &inode)?) } else { None };
        pin.change(&pool, |fd| {
            xattr::set(pin.on(fd), name, value, flags)?;
            look_anew(fd, name, value);
            Ok(())
        })?;
        if kill_sgid && name == ACL_ACCESS {
            pin.change(&pool, clear_sgid)?;
        }
        inode.note_changed();
        self.tree.catalogue_attributes(&pool, &inode);
        Ok(())
    }

    /// Removes the attribute `name` of `ino`; of a directory on all branches that have it.
    ///
    /// # Errors
    /// ENODATA if there is none; EPERM as for [`Self::setxattr`]; the branch's error.
    pub fn removexattr(&self, ino: Ino, name: &CStr, caller: Caller) -> Result<()> {
        let pool = self.tree.pool.load();
        let inode = self.tree.inode(ino)?;
        self.tree.check_settable(&pool, &inode, name, caller)?;
        if inode.is_dir() {
            // Removing an ACL that is not there is no error on any file system.
            if !is_acl(name) {
                self.tree.with_one(&pool, &inode, |on| xattr::get(on, name, &mut []))?;
            }
            let others = inode.copies().len() > 1;
            let removed =
                self.tree.on_all_copies(&pool, &inode, |fd| match xattr::remove(On::Path(fd), name) {
                    // A copy that never had it, or cannot have it.
                    Err(error) if error.errno == Errno::NODATA => Ok(()),
                    Err(error) if error.errno == Errno::OPNOTSUPP && others => Ok(()),
                    removed => removed.map(|()| look_anew(fd, name, &[])),
                });
            self.tree.attributes_changed(&pool, &inode);
            return removed;
        }
        pool.branch(inode.branch().ok_or(OpError::STALE)?).check_mode()?;
        let pin = self.tree.pin(&pool, &inode)?;
        pin.change(&pool, |fd| {
            xattr::remove(pin.on(fd), name)?;
            look_anew(fd, name, &[]);
            Ok(())
        })?;
        inode.note_changed();
        self.tree.catalogue_attributes(&pool, &inode);
        Ok(())
    }

    /// Value of the pool's own attribute `name` of the object; None if there is no such attribute.
    fn about(&self, pool: &Pool, inode: &Arc<Inode>, name: &[u8], caller: Caller) -> Result<Option<Vec<u8>>> {
        let at = inode.branch().ok_or(OpError::STALE)?;
        let branch = pool.branch(at).path.as_os_str().as_encoded_bytes().to_vec();
        let relative = || self.tree.path_for(pool, inode, caller);
        Ok(match name {
            b"user.fsstack.branch" | b"user.mergerfs.basepath" => Some(branch),
            b"user.fsstack.path" | b"user.mergerfs.fullpath" => Some([branch, relative()?.1].concat()),
            b"user.mergerfs.relpath" => {
                let (_, relative) = relative()?;
                Some(if relative.is_empty() { b"/".to_vec() } else { relative })
            }
            b"user.fsstack.paths" => Some(self.tree.all_paths(pool, inode, relative()?)?.join(&b'\n')),
            b"user.fsstack.copies" | b"user.mergerfs.allpaths" => {
                Some(self.tree.all_paths(pool, inode, relative()?)?.join(&b'\0'))
            }
            b"user.fsstack.transport" if inode.is_root() => {
                self.transport().map(|name| name.as_bytes().to_vec())
            }
            b"user.fsstack.id" if inode.is_root() => self.id().map(|id| id.to_string().into_bytes()),
            b"user.fsstack.index" if inode.is_root() => Some(self.index_health().to_string().into_bytes()),
            level if level == LEVEL.to_bytes() && inode.is_root() => {
                Some(pool.level().to_string().into_bytes())
            }
            b"user.fsstack.why" => Some(self.why(pool, inode)?.into_bytes()),
            b"user.fsstack.write-path" => Some(self.write_path(pool, inode)?.to_vec()),
            _ => None,
        })
    }

    fn write_path(&self, pool: &Pool, inode: &Arc<Inode>) -> Result<&'static [u8]> {
        if inode.kind != sys::Kind::File {
            return Err(Errno::NODATA.into());
        }
        let passthrough = match inode.open_file().and_then(|file| file.route()) {
            Some(route) => matches!(route, Route::Passthrough(_)),
            None => self.files.choose_closed(&self.tree, pool, inode)?.is_passthrough(),
        };
        Ok(if passthrough { b"passthrough" } else { b"stacked" })
    }

    /// Value of `user.fsstack.why`: what chose the write path, and why an open file stayed on a full branch.
    fn why(&self, pool: &Pool, inode: &Arc<Inode>) -> Result<String> {
        if inode.kind != sys::Kind::File {
            return Err(Errno::NODATA.into());
        }
        let open = inode.open_file();
        let Some((file, because)) = open.and_then(|file| file.because().map(|because| (file, because)))
        else {
            return Ok(self.files.choose_closed(&self.tree, pool, inode)?.to_string());
        };
        let mut why = because.to_string();
        let now = self.files.choose_again(pool, inode, &file);
        if now.is_passthrough() != because.is_passthrough() {
            why = format!("{why}; until its last close, then {now}");
        }
        if let Some(stays) = file.why() {
            why = format!("{why}; not moved from a full branch: {stays}");
        }
        Ok(why)
    }
}

impl Tree {
    /// Checks that `caller` may set or remove the attribute `name`. The kernel has checked the two POSIX ACLs and all
    /// namespaces but `system.`, which it leaves to the file system. The branch would check the daemon's rights, not
    /// the caller's. Of a caller that the kernel does not name (`idmap=on`) only root is known: which user owns the file
    /// depends on the caller's mount.
    ///
    /// # Errors
    /// EPERM for the pool's own names, and for others of `system.` unless the caller is root or the owner.
    fn check_settable(&self, pool: &Pool, inode: &Arc<Inode>, name: &CStr, caller: Caller) -> Result<()> {
        if is_hidden(name.to_bytes()) {
            return Err(Errno::PERM.into());
        }
        if !name.to_bytes().starts_with(SYSTEM) || is_acl(name) || caller.is_root() {
            return Ok(());
        }
        let owner = self.with_one(pool, inode, |on| match on {
            On::Fd(fd) | On::Path(fd) => sys::at::stat_fd(fd),
            On::Name(dir, name) => sys::at::stat(dir, name),
        })?;
        if owner.uid == caller.uid { Ok(()) } else { Err(Errno::PERM.into()) }
    }

    /// # Errors
    /// EEXIST or ENODATA, as `flags` of setxattr(2) ask for, if the directory's attribute is there or not.
    fn check_there(&self, pool: &Pool, dir: &Arc<Inode>, name: &CStr, flags: u32) -> Result<()> {
        match self.with_one(pool, dir, |on| xattr::get(on, name, &mut [])) {
            Ok(_) if flags & xattr::CREATE != 0 => Err(Errno::EXIST.into()),
            Err(error) if error.errno() == Errno::NODATA && flags & xattr::REPLACE == 0 => Ok(()),
            answered => answered.map(drop),
        }
    }

    /// Runs `ask` on the object; of a directory on the first copy that can be opened and whose branch is not out of reach.
    fn with_one<T>(
        &self,
        pool: &Pool,
        inode: &Arc<Inode>,
        mut ask: impl FnMut(On<'_>) -> Result<T, sys::SysError>,
    ) -> Result<T> {
        if !inode.is_dir() {
            let pin = self.pin_to_ask(pool, inode)?;
            return pin.ask(pool, |fd| ask(pin.on(fd)));
        }
        let mut last = OpError::STALE;
        for at in inode.copies() {
            match self.dirfd(pool, inode, at) {
                Ok(fd) => match pool.branch(at).ask(|| ask(On::Path(fd.as_fd()))) {
                    // A descriptor from before; the next copy's mode is shown, too.
                    Err(error) if error.is_fault() && !pool.branch(at).is_open() => {
                        last = last.of_copies(error)
                    }
                    asked => return asked,
                },
                Err(error) => last = last.of_copies(error),
            }
        }
        Err(last)
    }

    /// Paths on the branches of all copies, hidden ones too.
    fn all_paths(
        &self,
        pool: &Pool,
        inode: &Arc<Inode>,
        (name, relative): (Option<InodeName>, Vec<u8>),
    ) -> Result<Vec<Vec<u8>>> {
        let holders = match name {
            Some(name) if !inode.is_dir() => {
                self.find_all(pool, &name.parent, &name.name, None)?.into_iter().map(|(at, _)| at).collect()
            }
            _ => inode.copies(),
        };
        Ok(holders
            .iter()
            .map(|at| [pool.branch(*at).path.as_os_str().as_encoded_bytes(), relative.as_slice()].concat())
            .collect())
    }

    /// A name of the object for `caller`, and its path below the pool's root, with a leading slash; empty for the root. Of a file
    /// with several known names, another user's directory may have the one that was seen last: a caller other than root gets
    /// one in directories that all users may search.
    ///
    /// # Errors
    /// ENODATA if there is none.
    fn path_for(
        &self,
        pool: &Pool,
        inode: &Arc<Inode>,
        caller: Caller,
    ) -> Result<(Option<InodeName>, Vec<u8>)> {
        if inode.is_root() {
            return Ok((None, Vec::new()));
        }
        let mut names = inode.names();
        if names.len() > 1 && !caller.is_root() {
            names.retain(|name| self.is_open_to_all(pool, name));
        }
        let name = names.into_iter().next().ok_or(Errno::NODATA)?;
        let path = name.path().ok_or(Errno::NODATA)?;
        Ok((Some(name), [b"/", path.as_slice()].concat()))
    }

    /// Whether each user may search the directories above `name`: by the mode, of directories without an ACL.
    fn is_open_to_all(&self, pool: &Pool, name: &InodeName) -> bool {
        let mut dir = name.parent.clone();
        loop {
            let is_open = self.with_one(pool, &dir, |on| match on {
                On::Fd(fd) | On::Path(fd) => {
                    Ok(sys::at::stat_fd(fd)?.mode & 0o111 == 0o111 && !has_xattr(on, ACL_ACCESS))
                }
                On::Name(..) => Ok(false),
            });
            if !is_open.unwrap_or(false) {
                return false;
            }
            dir = match dir.name() {
                Some(name) => name.parent,
                None => return dir.is_root(),
            };
        }
    }
}

/// Whether `ino`, for which the branches have answered `error`, is shown from the catalogue, and its mode says who may see it. The kernel
/// looks for an ACL before it lets a user in. Where a directory may have one the catalogue shows the owner's permissions only, and the
/// kernel may still have the mode of before: the answer stays `error`.
fn is_by_catalogue(union: &Union, ino: Ino, error: OpError) -> bool {
    error.is_fault() && union.row_by_catalogue(ino, error).is_ok_and(|row| row.mode_decides())
}

fn is_ours(name: &[u8]) -> bool {
    name.starts_with(OURS) || OURS_OF_MERGERFS.contains(&name)
}

/// True for attributes whose stored form does not show: the pool's own, and those that it answers itself.
fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(mark::OWN_PREFIX) || is_ours(name)
}

/// Makes a GlusterFS branch show the mode that an ACL has changed. The kernel leaves ACLs to that mount's server and
/// shows the old mode for a second, and so does GlusterFS's client. A chmod to the mode that is in force already is
/// noticed at once.
fn look_anew(fd: BorrowedFd<'_>, name: &CStr, value: &[u8]) {
    if name != ACL_ACCESS {
        return;
    }
    // The ACL was set, as the caller wanted: an error here is not the caller's.
    if let (Ok(stat), Some(bits)) = (sys::at::stat_now(fd), mode_of(value))
        && stat.mode & 0o777 != bits
        && let Err(error) = sys::at::chmod_fd(fd, stat.mode & 0o7000 | bits)
    {
        tracing::debug!(%error, "a mode that an ACL has changed is remembered as it was");
    }
}

/// Permission bits of an object with this ACL; None if `acl` is not one.
fn mode_of(acl: &[u8]) -> Option<u32> {
    const VERSION: u32 = 2;
    const OWNER: u16 = 0x01;
    const GROUP: u16 = 0x04;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    let (version, entries) = acl.split_first_chunk()?;
    if u32::from_le_bytes(*version) != VERSION {
        return None;
    }
    let rights = |wanted: u16| {
        let (entries, _) = entries.as_chunks::<8>();
        let found = entries.iter().find(|entry| u16::from_le_bytes([entry[0], entry[1]]) == wanted)?;
        Some(u32::from(u16::from_le_bytes([found[2], found[3]]) & 0o7))
    };
    Some(rights(OWNER)? << 6 | rights(MASK).or(rights(GROUP))? << 3 | rights(OTHER)?)
}

fn clear_sgid(fd: BorrowedFd<'_>) -> Result<(), sys::SysError> {
    let mode = sys::at::stat_fd(fd)?.mode & 0o7777;
    if mode & 0o2000 == 0 { Ok(()) } else { sys::at::chmod_fd(fd, mode & !0o2000) }
}

fn fill(into: &mut [u8], value: &[u8]) -> Result<usize> {
    if into.is_empty() {
        return Ok(value.len());
    }
    let room = into.get_mut(..value.len()).ok_or(Errno::RANGE)?;
    room.copy_from_slice(value);
    Ok(value.len())
}
