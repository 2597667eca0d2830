//! Identity of a branch's root: what a directory must be to be taken for the branch, at a remount and by the daemon after this one.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fsstack_pool::{BranchId, BranchIx, BranchSpec};
use fsstack_sys::file::FsSpace;
use fsstack_sys::handle::ByNumber;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Stat, SysError};

use crate::branch::{Branch, BranchBase, BranchOptions, FsKind};
use crate::health::probe::answers;
use crate::mount_root::{MountRoot, Proof};

/// Root of a branch that was opened once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownRoot {
    /// Device at that time; another mount of the branch may have another.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Type of the file system, from statfs(2).
    pub f_type: u64,
    /// Id of the file system; decides where no id of the branch is stored.
    pub fsid: u64,
    /// Stored id.
    pub proof: Option<Proof>,
    /// Its mount was in the mount table when it was opened.
    pub was_listed: bool,
    /// Number of pools stacked below it.
    pub level: u8,
    /// Subvolume of btrfs, if its objects are opened by number.
    pub subvolume: Option<u64>,
}

impl KnownRoot {
    /// Attributes of the directory `root`, if that is the branch; it is made to answer. May block for as long as it hangs.
    ///
    /// # Errors
    /// It does not answer.
    pub fn stat_of(&self, root: BorrowedFd<'_>) -> Result<Option<Stat>, SysError> {
        let space = sys::file::statfs(root)?;
        let stat = answers(root)?;
        let proven = match &self.proof {
            Some(proof) => {
                let mut value = [0; 16];
                matches!(xattr::get(On::Fd(root), proof.attribute, &mut value), Ok(16))
                    && value == proof.value
            }
            None => space.fsid == self.fsid,
        };
        Ok(Some(stat).filter(|stat| proven && stat.ino == self.ino && space.f_type == self.f_type))
    }

    /// True if the mount of `stat`, a directory on it, was in the mount table and is not any more.
    pub fn has_left(&self, stat: &Stat) -> bool {
        self.was_listed && is_unlisted(stat.mnt_id)
    }

    /// The branch that has this root and cannot be opened now: it is down, like one whose mount has gone, until it is found at its
    /// path. `why` is logged. It is looked for from [`Branch::look_for_it`] on. The mount with the id `silent` is the branch, and does not
    /// answer: descriptors of it are good when it does.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn branch_away(
        &self,
        ids: (BranchIx, BranchId),
        (spec, silent): (&BranchSpec, Option<u64>),
        options: BranchOptions,
        why: &str,
    ) -> Result<Arc<Branch>, SysError> {
        let KnownRoot { f_type, fsid, .. } = *self;
        let base = BranchBase {
            root_ino: self.ino,
            kind: FsKind::of(f_type),
            level: self.level,
            by_number: ByNumber::known(f_type, self.subvolume),
            mount_root: MountRoot::away(self, silent)?,
            // Nothing is free until it is asked.
            space: FsSpace {
                f_type,
                fsid,
                block_size: 4096,
                frag_size: 4096,
                name_max: 255,
                ..FsSpace::default()
            },
        };
        let branch = Branch::with_base(ids, spec, base, options);
        branch.is_down(&why);
        Ok(branch)
    }
}

/// True if no mount of the mount table has the id `mnt_id`.
pub(crate) fn is_unlisted(mnt_id: u64) -> bool {
    sys::mounts::list().is_ok_and(|all| all.iter().all(|mount| mount.id != mnt_id))
}

impl Branch {
    /// Identity of its root.
    pub fn known_root(&self) -> KnownRoot {
        KnownRoot {
            dev: self.dev(),
            ino: self.root_ino,
            f_type: self.mount_root.f_type,
            fsid: self.mount_root.fsid,
            proof: self.mount_root.proof,
            was_listed: self.mount_root.was_listed,
            level: self.level,
            subvolume: self.by_number.and_then(ByNumber::subvolume),
        }
    }
}
