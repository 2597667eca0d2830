//! Names of objects by the kernel's numbers, for those who watch calls. No branch is asked.

use fsstack_pool::{BranchIx, Ino};

use crate::union::Union;

/// Stands for the beginning of a path that is too long.
const MARK: &[u8] = b"...";

impl Union {
    /// The path of an object by its last known name, below the pool's root. A path of more than `longest` bytes is its
    /// last part, after `...`.
    pub fn known_path(&self, ino: Ino, longest: usize) -> Option<Vec<u8>> {
        let mut at = self.tree.inodes.get(ino)?;
        let mut names = Vec::new();
        // With a slash after each name, and room for the mark.
        let mut length = MARK.len();
        while !at.is_root() {
            let name = at.name()?;
            length += name.name.to_bytes().len() + 1;
            if longest < length {
                names.push(MARK.to_vec());
                break;
            }
            names.push(name.name.to_bytes().to_vec());
            at = name.parent;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// The directory that an object is in, or the directory itself.
    pub fn known_dir(&self, ino: Ino) -> Option<Ino> {
        let inode = self.tree.inodes.get(ino)?;
        if inode.is_dir() { Some(inode.id.ino) } else { Some(inode.name()?.parent.id.ino) }
    }

    /// The branch of a file.
    pub fn known_branch(&self, ino: Ino) -> Option<BranchIx> {
        self.tree.inodes.get(ino).filter(|inode| !inode.is_dir())?.branch()
    }
}
