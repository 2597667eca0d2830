//! Making sure that what was written is kept.

use std::os::fd::AsFd;

use fsstack_pool::{Handle, Ino};
use fsstack_sys::{self as sys, OFlags};

use crate::error::Result;
use crate::union::Union;

impl Union {
    /// The file's data, and unless `data_only` its metadata, are on the branch's disk.
    ///
    /// # Errors
    /// What the branch answered.
    pub fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        let open = self.file(handle)?;
        open.file.ask_patiently(|fd| if data_only { sys::file::fdatasync(fd) } else { sys::file::fsync(fd) })
    }

    /// The directory's entries are on the disks of all branches that have a copy.
    ///
    /// # Errors
    /// What the first branch that failed answered; the others were asked all the same.
    pub fn fsyncdir(&self, ino: Ino, data_only: bool) -> Result<()> {
        let pool = self.pool.load();
        let dir = self.dir(ino)?;
        let mut all = Ok(());
        for at in dir.copies() {
            let synced = self.dirfd(&pool, &dir, at).and_then(|fd| {
                pool.branch(at).ask_patiently(|| {
                    let fd = sys::at::reopen(fd.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
                    if data_only { sys::file::fdatasync(fd.as_fd()) } else { sys::file::fsync(fd.as_fd()) }
                })
            });
            all = all.and(synced);
        }
        all
    }

    /// Everything written to the pool is on the branches' disks.
    ///
    /// # Errors
    /// What the first branch that failed answered; the others were asked all the same.
    pub fn syncfs(&self) -> Result<()> {
        let pool = self.pool.load();
        let mut all = Ok(());
        for branch in &pool.branches {
            let synced = branch.ask_patiently(|| {
                let fd = sys::at::reopen(branch.root().as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
                sys::file::syncfs(fd.as_fd())
            });
            all = all.and(synced);
        }
        all
    }
}
