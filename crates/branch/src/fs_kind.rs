//! Kinds of file systems that branches may have.

/// Kind of a branch's file system, as far as the pool distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsKind {
    /// A local disk: calls do not wait for other hosts or processes, and write errors are returned by the write.
    Local,
    /// Like `Local`, and positions in a directory are 63-bit hashes in ascending order (ext4).
    LocalHashed,
    /// Served by another process or machine (FUSE, NFS, CIFS, Ceph): errors may come at close.
    Remote,
}

impl FsKind {
    /// From `f_type` of statfs(2).
    pub fn of(f_type: u64) -> Self {
        match f_type {
            0xef53 => Self::LocalHashed,
            0x5846_5342 | 0x9123_683e | 0x0102_1994 | 0x2fc1_2fc1 | 0xf2f5_2010 | 0x794c_7630
            | 0xca45_1a4e => {
                Self::Local // XFS, btrfs, tmpfs, ZFS, f2fs, overlayfs, bcachefs
            }
            _ => Self::Remote,
        }
    }

    /// True for a local disk.
    pub fn is_local(self) -> bool {
        self != Self::Remote
    }
}

/// `f_type` of an NFS mount.
pub(crate) const NFS: u64 = 0x6969;
