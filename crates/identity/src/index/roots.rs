//! The pool's members, recorded on the root of each branch. If the index is lost while a branch is away, the others
//! still tell that objects may be on it.
//!
//! Each root has the pool's id and the ids of its branches, without those that were given up (`trusted.fsstack.members`). It
//! is read when a branch joins, and written when it differs from the index. Entries of another pool are ignored.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use fsstack_branch::branch::Branch;
use fsstack_pool::BranchId;
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sys::xattr::{self, On};

use super::signed::FILES;
use super::store::{DbResult, Store};
use super::{Index, SharedIndex};
use crate::marked_branch::MarkedBranch;
use crate::poolid::PoolId;

/// The attribute of a branch's root.
const MEMBERS: &CStr = c"trusted.fsstack.members";
/// Bit beside a branch's id of 15 bits: objects of the branch may have numbers that do not contain its id.
const HASHED: u16 = 1 << 15;
/// Maximum number of members that are recorded: more than one pool ever had.
const MOST: usize = 512;

/// Members: where each was last if that is known, and whether its objects may have numbers that do not contain its id.
pub(super) type Members = BTreeMap<BranchId, (PathBuf, bool)>;

impl Index {
    /// Follows a change of the members; the branches `come` have joined. Members recorded on their roots are known when
    /// this returns. The roots are written a moment later by the index's thread, since a branch may hang.
    pub fn admit<'a>(&self, come: impl Iterator<Item = &'a MarkedBranch>) {
        let shared = &self.shared;
        if shared.exports && shared.existing().is_some() {
            shared.learn_members(come);
            shared.review();
            shared.roots_due.store(true, Relaxed);
            self.start();
            shared.wake.notify_one();
        }
    }

    /// Files on a branch that is not in the pool may have marks that are not in the index.
    pub fn lacks_away(&self, is_here: impl Fn(BranchId) -> bool) -> bool {
        self.shared.read(|store| lacks(store, &is_here)).unwrap_or(false)
    }

    /// True if the number that a new object would have may belong to an older one whose mark is not in the index. No
    /// call is made: the answer is of the last change of the branches.
    pub fn may_lack<'a>(&self, mut branches: impl Iterator<Item = &'a MarkedBranch>) -> bool {
        let shared = &self.shared;
        shared.exports && (shared.lacks_away.load(Relaxed) || branches.any(|branch| branch.asks_marks()))
    }
}

impl Index {
    /// Stores the pool's id and the index's session on the branch's root again, whose marks were overwritten.
    pub fn mark_root_again(&self, branch: &MarkedBranch) {
        if let Some(id) = self.shared.pool {
            id.store_again(branch);
        }
        if let Some(store) = self.shared.store.load_full() {
            self.shared.sign(&store, branch);
        }
    }
}

/// Whether files' marks on a member that is away are not all in the index.
fn lacks(store: &Store, is_here: &dyn Fn(BranchId) -> bool) -> DbResult<bool> {
    for (id, _) in store.members()? {
        if !is_here(id) && !store.had_files_of(id)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Members known to the index, and those on the roots of branches. Branches that were given up are left out.
fn known(store: &Store, reported: &[u16]) -> DbResult<Members> {
    let mut members = Members::new();
    for (id, path) in store.members()? {
        members.insert(id, (path, false));
    }
    for word in reported {
        let Some(id) = BranchId::new(word & !HASHED) else { continue };
        if !members.contains_key(&id) && !store.is_gone(id)? {
            store.note_member(id, Path::new(""))?;
            if word & HASHED != 0 {
                store.note_hashed(id)?;
            }
            members.insert(id, (PathBuf::new(), false));
        }
    }
    for id in store.hashed()? {
        members.entry(id).or_default().1 = true;
    }
    Ok(members)
}

impl SharedIndex {
    pub(super) fn present(&self) -> Vec<Arc<MarkedBranch>> {
        let branches = self.branches.lock();
        branches.iter().filter_map(Weak::upgrade).filter(|branch| !branch.is_gone()).collect()
    }

    /// Determines again whether marks of branches that are away may be missing.
    pub(super) fn review(&self) {
        let present = self.present();
        let has = |id: BranchId| present.iter().any(|branch| branch.id == id);
        let lacks = self.with(|store| lacks(store, &has)).unwrap_or(false);
        self.lacks_away.store(lacks, Relaxed);
    }

    /// Records that no file on the branch is marked.
    pub(super) fn has_no_file(&self, branch: &Branch) {
        self.with(|store| match store.had_files_of(branch.id)? {
            true => Ok(()),
            false => store.set_covered(branch.id, FILES),
        });
    }

    /// Adds the members listed on the roots of the joined branches to the index, and remembers the index's own, should it
    /// fail.
    fn learn_members<'a>(&self, come: impl Iterator<Item = &'a MarkedBranch>) {
        let reported: Vec<u16> = come.flat_map(|branch| self.members_on(branch)).collect();
        // Asked without the lock: an index that fails here is rebuilt with the remembered members, under the lock.
        if let Some(members) = self.with(|store| known(store, &reported)) {
            *self.members.lock() = members;
        }
    }

    /// Records the members of the last index in one that was made anew.
    pub(super) fn note_members(&self) {
        let Some(store) = self.store.load_full() else { return };
        let members = self.members.lock().clone();
        for (id, (path, hashed)) in members {
            let noted = store.note_member(id, &path);
            let noted = noted.and_then(|()| if hashed { store.note_hashed(id) } else { Ok(()) });
            if let Err(error) = noted {
                tracing::warn!(%error, %id, "index: cannot record the branch");
            }
        }
        let present = self.present();
        let has = |id: BranchId| present.iter().any(|branch| branch.id == id);
        self.lacks_away.store(lacks(&store, &has).unwrap_or(true), Relaxed);
    }

    /// Members listed on the root of `branch` for this pool.
    fn members_on(&self, branch: &Branch) -> Vec<u16> {
        let (Some(PoolId(pool)), Some(reported)) = (self.pool, read(branch)) else { return Vec::new() };
        match reported.strip_prefix(&pool) {
            Some(ids) => ids.as_chunks::<2>().0.iter().map(|id| u16::from_le_bytes(*id)).collect(),
            None => Vec::new(),
        }
    }

    /// Writes the members to the root of each branch that has others.
    pub(super) fn write_roots(&self) {
        let Some(PoolId(pool)) = self.pool else { return };
        let known = self.with(|store| Ok((store.members()?, store.hashed()?)));
        let Some((members, hashed)) = known else { return };
        let mut ids: Vec<u16> = members.iter().map(|(id, _)| id.get()).collect();
        ids.sort_unstable();
        ids.truncate(MOST);
        let flag = |id: &u16| if hashed.iter().any(|known| known.get() == *id) { HASHED } else { 0 };
        let ids = ids.iter().flat_map(|id| (id | flag(id)).to_le_bytes());
        let value: Vec<u8> = pool.into_iter().chain(ids).collect();
        for branch in self.present() {
            if branch.check_open().is_err() || read(&branch).is_some_and(|reported| reported == value) {
                continue;
            }
            let root = branch.root();
            if let Err(error) = branch.ask(|| xattr::set(On::Fd(root.as_fd()), MEMBERS, &value, 0)) {
                tracing::debug!(%error, branch = %branch.path.display(), "the branch does not keep which others there are");
            }
        }
    }
}

fn read(branch: &Branch) -> Option<Vec<u8>> {
    let mut value = vec![0; 16 + 2 * MOST];
    let root = branch.root();
    let len = branch.ask(|| xattr::get(On::Fd(root.as_fd()), MEMBERS, &mut value)).ok()?;
    value.truncate(len);
    Some(value)
}
