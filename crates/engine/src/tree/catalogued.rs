//! Changes that the catalogue is to learn of, besides those that [`Tree::changed`] reports.

use std::ffi::CStr;
use std::sync::Arc;

use fsstack_pool::BranchIx;

use crate::inode::{Inode, InodeName};
use crate::pool::Pool;
use crate::tree::Tree;

impl Tree {
    /// `name` in the copy of `dir` on the branch `at` has changed.
    pub(crate) fn catalogue_name(&self, pool: &Pool, at: BranchIx, (dir, name): (&Arc<Inode>, &CStr)) {
        pool.branch(at).uncatalogued.note(dir.id.ino.0, || dir.clone(), Some(name));
    }

    /// Names may have gone from one of two branches to the other.
    pub(crate) fn catalogue_names<'n>(
        &self,
        pool: &Pool,
        branches: [BranchIx; 2],
        names: impl Iterator<Item = &'n InodeName>,
    ) {
        for name in names {
            branches.iter().for_each(|at| self.catalogue_name(pool, *at, (&name.parent, &name.name)));
        }
    }

    /// Attributes or the size of `inode` have changed.
    pub(crate) fn catalogue_attributes(&self, pool: &Pool, inode: &Arc<Inode>) {
        if inode.is_dir() {
            for at in inode.copies() {
                pool.branch(at).uncatalogued.note(inode.id.ino.0, || inode.clone(), None);
            }
        } else if let Some(at) = inode.branch()
            && pool.branch(at).uncatalogued.is_on()
        {
            for name in inode.names() {
                self.catalogue_name(pool, at, (&name.parent, &name.name));
            }
        }
    }
}
