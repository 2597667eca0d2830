//! Changes that the catalogue is to learn of, besides those that [`Tree::changed`] reports.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_identity::number::number;
use fsstack_pool::BranchIx;
use fsstack_sys::{self as sys, Kind};

use crate::inode::{Inode, InodeName};
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::pin::unlinked_fd;

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
            let names = inode.names();
            for name in &names {
                self.catalogue_name(pool, at, (&name.parent, &name.name));
            }
            if names.is_empty() && inode.has_more_names() {
                catalogue_unnamed(pool, at, inode);
            }
        }
    }
}

/// The file `inode` has lost a name, by which a change may have been reported that was not looked at. The caller holds no file.
pub(crate) fn catalogue_lost_name(tree: &Tree, pool: &Pool, inode: Option<&Arc<Inode>>) {
    if let Some(inode) = inode.filter(|inode| inode.has_more_names()) {
        tree.catalogue_attributes(pool, inode);
    }
}

/// The file `inode`, of which no name is known any more, has changed. It may have others.
fn catalogue_unnamed(pool: &Pool, at: BranchIx, inode: &Arc<Inode>) {
    if inode.kind != Kind::File {
        return;
    }
    // It is not searched for: who can change it has it open, or it has just lost a name.
    let stat = match (inode.open_file(), unlinked_fd(pool, inode)) {
        (Some(file), _) if file.mount_generation() == Some(pool.branch(at).mount_generation()) => file.stat(),
        (_, Some((at, fd))) => pool.branch(at).ask(|| sys::at::stat_fd(fd.as_fd())),
        // The branch was mounted again, and is walked for that; or its file is being moved, and its names are looked at then.
        (Some(_) | None, None) => return,
    };
    match stat {
        Ok(stat) if stat.nlink == 0 => {}
        Ok(stat) => {
            let branch = pool.branch(at);
            branch.uncatalogued.note_file(number(branch, stat.dev, stat.ino).0);
        }
        // The branch does not answer: it is walked when it does.
        Err(error) => tracing::debug!(%error, "catalogue: a changed file cannot be looked at"),
    }
}
