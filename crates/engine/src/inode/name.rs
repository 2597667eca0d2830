//! Names of inodes: a directory, and a name there.

use std::ffi::CStr;
use std::sync::Arc;

use super::Inode;

/// A name of an inode.
#[derive(Clone, Debug)]
pub struct InodeName {
    /// The directory that has it.
    pub parent: Arc<Inode>,
    /// The name there.
    pub name: Arc<CStr>,
}

impl InodeName {
    /// `name` in `parent`.
    pub fn new(parent: &Arc<Inode>, name: &CStr) -> Self {
        Self { parent: parent.clone(), name: name.into() }
    }

    /// The path below the pool's root, without a leading slash.
    pub(crate) fn path(&self) -> Option<Vec<u8>> {
        let mut path = self.parent.path()?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(self.name.to_bytes());
        Some(path)
    }

    pub(crate) fn is(&self, parent: &Inode, name: &CStr) -> bool {
        self.parent.id.ino == parent.id.ino && *self.name == *name
    }
}
