//! Reading attributes.

use std::sync::Arc;

use fsstack_branch::error::Result;
use fsstack_identity::number::is_offline;
use fsstack_pool::{Handle, Ino};
use fsstack_sys::{self as sys, Errno};

use crate::answer::Attr;
use crate::catalogue::offline;
use crate::files::{Access, OpenFile, is_refused};
use crate::inode::Inode;
use crate::opened::FileHandle;
use crate::tree::Tree;
use crate::tree::pin::unlinked_fd;
use crate::union::Union;

impl Union {
    /// The attributes of `ino`, asked of the branch now.
    ///
    /// # Errors
    /// ESTALE if the object is gone; what the branch answered.
    pub fn getattr(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        if is_offline(ino) {
            return self.offline_attr(ino);
        }
        match self.attr_of_branches(ino, handle) {
            Err(error) if error.is_fault() && handle.is_none() => {
                self.row_by_catalogue(ino, error).map(|row| offline::attr(ino, &row))
            }
            reported => reported,
        }
    }

    fn attr_of_branches(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        let pool = self.tree.pool.load();
        if let Some(open) = handle.and_then(|handle| self.file(handle).ok()) {
            return Ok(Attr { ino, validity: open.inode.validity(), stat: open.file.stat()? });
        }
        let inode = self.tree.inode(ino)?;
        if inode.is_dir() {
            return self.tree.dir_attr(&pool, &inode);
        }
        let stat = match inode.open_file() {
            Some(file) => {
                self.tree.freshen(&inode, &file)?;
                file.stat()?
            }
            None => match self.tree.stat_by_name(&pool, &inode) {
                // No name of it is left, but the kernel has it still.
                Err(error) if error.errno() == Errno::STALE && unlinked_fd(&pool, &inode).is_some() => {
                    self.tree.pin(&pool, &inode)?.ask(&pool, sys::at::stat_fd)?
                }
                Err(error) => self.tree.file_by_number(&pool, &inode, error)?.stat,
                Ok(stat) => stat,
            },
        };
        Ok(Attr { ino, validity: inode.validity(), stat })
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// EINVAL if it is none; what the branch answered.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let pool = self.tree.pool.load();
        let inode = self.tree.inode(ino)?;
        if inode.kind != sys::Kind::Symlink {
            return Err(Errno::INVAL.into());
        }
        let pin = self.tree.pin(&pool, &inode)?;
        pin.ask(&pool, |fd| sys::at::readlink(fd, c""))
    }

    /// The open file of `handle`, if it is given and is a file's, on the present mount of its branch.
    ///
    /// # Errors
    /// It cannot be opened there.
    pub(crate) fn file_if_open(&self, handle: Option<Handle>) -> Result<Option<Arc<OpenFile>>> {
        let open = handle.filter(|handle| self.files.handles.contains_key(&handle.0));
        open.map(|handle| self.file(handle).map(|open| open.file)).transpose()
    }

    /// An open file's handle. The file is opened anew if its branch was mounted again meanwhile.
    pub(crate) fn file(&self, handle: Handle) -> Result<FileHandle> {
        let open = self.files.handles.get(&handle.0).map(|open| open.clone()).ok_or(Errno::BADF)?;
        self.tree.freshen(&open.inode, &open.file)?;
        Ok(open)
    }
}

impl Tree {
    /// Opens `file`, the open file of `inode`, anew if its branch was mounted again since.
    pub(crate) fn freshen(&self, inode: &Arc<Inode>, file: &OpenFile) -> Result<()> {
        while let Some(was) = file.stale()? {
            // A call that is stuck in it, on the old mount, keeps it as it is.
            drop(file.hold_exclusively()?);
            let pool = self.pool.load();
            let open = |how: Access| self.open_inode(&pool, inode, how.flags()).map(|(_, fd, _)| (how, fd));
            let opened = match open(was.access) {
                Err(error) if is_refused(error) && was.access == Access::Write && file.is_append_only() => {
                    open(Access::Append)
                }
                opened => opened,
            };
            let (access, fd) = match opened {
                // It became immutable or append-only since: writers get the error, readers go on.
                Err(error) if is_refused(error) && was.access.writes() => open(Access::Read)?,
                opened => opened?,
            };
            file.replace_mount(was, access, fd)?;
        }
        Ok(())
    }
}
