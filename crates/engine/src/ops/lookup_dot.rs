//! An object that the kernel forgot is asked for by its number: by an NFS server that holds a handle.

use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::{self as sys, Errno};

use crate::answer::Entry;
use crate::handles::by_number::{ByNumber, ConnectedDir, ResolvedNumber};
use crate::inode::clock::Moment;
use crate::inode::{Copies, Inode};
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::resolve::{entry, merge};
use crate::union::Union;

impl Union {
    /// The object `ino` itself. The kernel holds one more lookup of what is answered, and compares the generation.
    ///
    /// # Errors
    /// ESTALE if nothing has the number any more; EIO if that cannot be known.
    pub fn lookup_self(&self, ino: Ino) -> Result<Entry> {
        let pool = self.tree.pool.load();
        if let Ok(inode) = self.tree.inode(ino) {
            match self.getattr(ino, None) {
                Ok(attr) if attr.stat.nlink > 0 || inode.open_file().is_some() => {
                    return Ok(self.tree.count(&inode, attr.stat));
                }
                Ok(_) => {}
                // Gone: another object may have the number by now.
                Err(error) if error.errno() == Errno::STALE => {}
                Err(error) => return Err(error),
            }
        }
        Ok(match self.tree.resolve_number(&pool, ino)? {
            ResolvedNumber::File(file) => self.tree.enter_file(&pool, &file),
            ResolvedNumber::Dir(dir) => self.tree.enter_dir(&pool, &dir),
        })
    }

    /// The directory that the directory `ino` lies in. The kernel holds one more lookup of it.
    ///
    /// # Errors
    /// ENOENT for the root; ESTALE if the directory is gone; EIO if that cannot be known.
    pub fn lookup_parent(&self, ino: Ino) -> Result<Entry> {
        let pool = self.tree.pool.load();
        let dir = self.tree.dir(ino)?;
        if dir.is_root() {
            return Err(OpError::MISSING);
        }
        let known = dir.name().filter(|name| self.tree.leads_to(&pool, &name.parent, &name.name, &dir));
        let parent = match known {
            Some(name) => name.parent,
            None => {
                self.tree.reconnect(&pool, &dir)?;
                dir.name().ok_or(OpError::STALE)?.parent
            }
        };
        let attr = self.tree.dir_attr(&pool, &parent)?;
        Ok(self.tree.count(&parent, attr.stat))
    }
}

impl Tree {
    fn enter_file(&self, pool: &Pool, reached: &ByNumber) -> Entry {
        let (id, stat) = (reached.id, reached.stat);
        let asked = Moment::now();
        let name = self.name_of(pool, reached);
        let inode = self.inodes.looked_up(id, stat.kind(), || Inode::file(id, stat.kind(), reached.at));
        // Without a name it is opened by its number, until it is seen under one.
        if let Some((parent, name)) = name {
            inode.note_name(&parent, &name, stat.nlink, asked);
            self.seen.set(parent.id.ino, name.to_bytes(), id.ino);
        }
        entry(&inode, stat)
    }

    fn enter_dir(&self, pool: &Pool, found: &ConnectedDir) -> Entry {
        let inode = self.inodes.looked_up(found.id, sys::Kind::Dir, || Inode::dir(found.id, &found.copies));
        inode.update_copies(&found.copies);
        inode.note_name(&found.parent, &found.name, 1, found.copies.asked());
        self.seen.set(found.parent.id.ino, found.name.to_bytes(), found.id.ino);
        entry(&inode, merge(self, pool, &found.stats, found.copies.asked()))
    }

    /// The kernel holds one more lookup of an inode that is known.
    fn count(&self, inode: &Arc<Inode>, stat: sys::Stat) -> Entry {
        let counted = self.inodes.looked_up(inode.id, inode.kind, || again(inode));
        entry(&counted, stat)
    }
}

/// The kernel forgot the inode between the look at the table and the count: made again from what is known.
fn again(inode: &Inode) -> Inode {
    let made = if inode.is_dir() {
        Inode::dir(inode.id, &Copies::known(inode.copies_by_number()))
    } else {
        Inode::file(inode.id, inode.kind, inode.branch().unwrap_or(BranchIx(0)))
    };
    for name in inode.names().iter().rev() {
        made.note_name(&name.parent, &name.name, u32::MAX, Moment::KNOWN);
    }
    made
}
