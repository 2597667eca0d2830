//! Names of objects by the kernel's numbers, for those who watch calls. No branch is asked.

use fsstack_pool::{BranchIx, Ino};

use crate::union::Union;

impl Union {
    /// The path of an object by its last known name, below the pool's root.
    pub fn known_path(&self, ino: Ino) -> Option<Vec<u8>> {
        self.tree.inodes.get(ino)?.path()
    }

    /// The path of the directory that an object is in, or of the directory itself.
    pub fn known_parent(&self, ino: Ino) -> Option<Vec<u8>> {
        let inode = self.tree.inodes.get(ino)?;
        if inode.is_dir() { inode.path() } else { inode.name()?.parent.path() }
    }

    /// The branch of a file.
    pub fn known_branch(&self, ino: Ino) -> Option<BranchIx> {
        self.tree.inodes.get(ino).filter(|inode| !inode.is_dir())?.branch()
    }
}
