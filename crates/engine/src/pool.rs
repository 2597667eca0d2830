//! The pool as one request sees it: its branches in order and its settings, one snapshot.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_pool::BranchSpec;
use fsstack_pool::{BranchId, BranchIx, Ino};
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, SysError};

use crate::branch::Branch;
use crate::home::Proof;
use crate::inode::number::{self, mix};
use crate::settings::Settings;

/// Branches of one pool at most: a set of them fits one word.
pub const MAX_BRANCHES: usize = 64;

/// One snapshot of the pool.
#[derive(Debug)]
pub struct Pool {
    /// The branches in order.
    pub branches: Vec<Arc<Branch>>,
    /// By slot: the branch that has it, or had it last.
    slots: Vec<Arc<Branch>>,
    /// By slot: its place in `line`.
    turns: Vec<usize>,
    /// The ids of the branches in order, with those that have left in between: a listing that stands at one of
    /// them goes on with what came after it.
    line: Vec<BranchId>,
    /// The settings.
    pub settings: Settings,
}

/// Why a pool cannot be made of these branches.
#[derive(Debug, thiserror::Error)]
pub enum BadPool {
    /// A branch does not open.
    #[error("branch {path}: {error}")]
    Branch {
        /// Its path.
        path: String,
        /// What the system said.
        error: SysError,
    },
    /// No or too many branches.
    #[error("a pool has 1 to {MAX_BRANCHES} branches, not {0}")]
    Number(usize),
}

impl Pool {
    /// Opens the branches.
    ///
    /// # Errors
    /// The first branch that does not open, or their number.
    pub fn open(specs: &[BranchSpec], settings: Settings) -> Result<Self, BadPool> {
        if specs.is_empty() || specs.len() > MAX_BRANCHES {
            return Err(BadPool::Number(specs.len()));
        }
        let mut branches: Vec<Arc<Branch>> = Vec::with_capacity(specs.len());
        for (at, spec) in specs.iter().enumerate() {
            let failed = |error| BadPool::Branch { path: spec.path.display().to_string(), error };
            let root = sys::at::open_root(&spec.path).map_err(failed)?;
            let taken: Vec<BranchId> = branches.iter().map(|branch| branch.id).collect();
            let (id, proof) = durable_id(&root, settings.privileged, &taken).map_err(failed)?;
            let ix = BranchIx::at(at).ok_or(BadPool::Number(specs.len()))?;
            branches.push(Arc::new(Branch::open(ix, id, spec, root, proof, &settings).map_err(failed)?));
        }
        Ok(Self::of(&branches, settings))
    }

    fn of(branches: &[Arc<Branch>], settings: Settings) -> Self {
        let line: Vec<BranchId> = branches.iter().map(|branch| branch.id).collect();
        let turns = (0..branches.len()).collect();
        Self { branches: branches.to_vec(), slots: branches.to_vec(), turns, line, settings }
    }

    /// The same pool with other settings.
    pub(crate) fn with_settings(&self, settings: Settings) -> Self {
        let Self { branches, slots, turns, line, .. } = self;
        let (branches, slots) = (branches.clone(), slots.clone());
        Self { branches, slots, turns: turns.clone(), line: line.clone(), settings }
    }

    /// All branches are disks of this machine.
    pub fn is_local(&self) -> bool {
        self.branches.iter().all(|branch| branch.kind.is_local())
    }

    /// The branch that the number was made from, if that can be read from it.
    pub fn branch_of(&self, ino: Ino) -> Option<BranchIx> {
        let id = number::branch_of(ino)?;
        self.branches.iter().find(|branch| branch.id == id).map(|branch| branch.ix)
    }

    /// The branch in the slot `ix`; one that has left answers that nothing is there.
    pub fn branch(&self, ix: BranchIx) -> &Arc<Branch> {
        &self.slots[ix.index()]
    }

    /// The branch in the slot `ix`, if it is part of the pool.
    pub fn live(&self, ix: BranchIx) -> Option<&Arc<Branch>> {
        self.branches.iter().find(|branch| branch.ix == ix)
    }

    /// What is compared to tell which of two branches comes first.
    pub fn turn(&self, ix: BranchIx) -> usize {
        self.turns[ix.index()]
    }
}

/// The id that is stored with the branch; made and stored when there is none, and when an earlier branch has the same
/// (by chance, or a disk copied block by block with its id). A branch that cannot store one (mounted read-only, no
/// attributes) has one from its file system's id, which most file systems keep.
fn durable_id(
    root: &OwnedFd,
    privileged: bool,
    taken: &[BranchId],
) -> Result<(BranchId, Option<Proof>), SysError> {
    let attribute: &'static CStr =
        if privileged { c"trusted.fsstack.branch" } else { c"user.fsstack.branch-id" };
    let on = On::Fd(root.as_fd());
    let mut value = [0_u8; 16];
    let known = matches!(xattr::get(on, attribute, &mut value), Ok(16));
    let is_free = |value: &[u8; 16]| !taken.contains(&id_of(u128::from_le_bytes(*value)));
    if known && is_free(&value) {
        return Ok((id_of(u128::from_le_bytes(value)), Some(Proof { attribute, value })));
    }
    let mut fresh = fresh_id(root)?;
    while !is_free(&fresh) {
        fresh = fresh_id(root)?;
    }
    let stored = xattr::set(on, attribute, &fresh, 0).is_ok();
    if known {
        tracing::warn!(
            "two branches have the same stored id: the later one is given another{}",
            if stored { "" } else { ", which it cannot store" }
        );
    }
    if stored {
        return Ok((id_of(u128::from_le_bytes(fresh)), Some(Proof { attribute, value: fresh })));
    }
    if !known {
        let fs = sys::file::statfs(root.as_fd())?;
        let stat = sys::at::stat_fd(root.as_fd())?;
        value[..8].copy_from_slice(&mix(fs.fsid).to_le_bytes());
        value[8..].copy_from_slice(&mix(fs.fsid ^ mix(stat.ino)).to_le_bytes());
    }
    // The same at each mount with the same branches before it.
    let mut word = u128::from_le_bytes(value);
    while taken.contains(&id_of(word)) {
        word = word.rotate_right(15).wrapping_add(1);
    }
    Ok((id_of(word), known.then_some(Proof { attribute, value })))
}

fn id_of(word: u128) -> BranchId {
    let low = u16::try_from(word & 0x7fff).unwrap_or(1).max(1);
    BranchId::new(low).unwrap_or(BranchId::MIN)
}

/// 16 bytes that no other branch has: time, process and the address space's own randomness.
fn fresh_id(root: &OwnedFd) -> Result<[u8; 16], SysError> {
    use std::hash::{BuildHasher, RandomState};
    let fs = sys::file::statfs(root.as_fd())?;
    let now = std::time::SystemTime::now();
    let mut id = [0_u8; 16];
    id[..8].copy_from_slice(&RandomState::new().hash_one((fs.fsid, now)).to_le_bytes());
    id[8..].copy_from_slice(&RandomState::new().hash_one((std::process::id(), now)).to_le_bytes());
    Ok(id)
}
