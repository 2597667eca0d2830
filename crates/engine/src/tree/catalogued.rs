//! Changes that the catalogue is to learn of, besides those that [`Tree::changed`] reports.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_identity::number::number;
use fsstack_pool::BranchIx;
use fsstack_sys as sys;

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
            let names = inode.names();
            for name in &names {
                self.catalogue_name(pool, at, (&name.parent, &name.name));
            }
            if names.is_empty() && inode.had_links() {
                catalogue_unnamed(pool, at, inode);
            }
        }
    }
}

/// The file `inode` has lost a name, by which a change may have been reported that was not looked at. The caller holds no file.
pub(crate) fn catalogue_lost_name(tree: &Tree, pool: &Pool, inode: Option<&Arc<Inode>>) {
    if let Some(inode) = inode.filter(|inode| inode.had_links()) {
        tree.catalogue_attributes(pool, inode);
    }
}

/// The file `inode`, of which no name is known any more, has changed. It may have others.
fn catalogue_unnamed(pool: &Pool, at: BranchIx, inode: &Arc<Inode>) {
    // It is not searched for: who can change it has it open, or it has just lost a name.
    let stat = match (inode.open_file(), inode.unlinked()) {
        (Some(file), _) => file.ask(sys::at::stat_fd),
        (None, Some((at, fd))) => pool.branch(at).ask(|| sys::at::stat_fd(fd.as_fd())),
        (None, None) => return,
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
