//! The pool as one request sees it: its branches in order and its settings, one snapshot.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use fsstack_branch::mount_root::Proof;
use fsstack_identity::index::Index;
use fsstack_identity::marked_branch::MarkedBranch;
use fsstack_identity::number::{self, hash_name, mix};
use fsstack_identity::poolid::sync_root;
use fsstack_pool::BranchSpec;
use fsstack_pool::{BranchId, BranchIx, Ino, NamedBranch, RuleTree};
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Errno, SysError};

use crate::member::Member;
use crate::root_mark::{self, Origin, StoredId};
use crate::settings::Settings;
use crate::taken_back::TakenBack;

pub use crate::settings::MAX_BRANCHES;

/// One snapshot of the pool.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The branches in order.
    pub branches: Vec<Arc<Member>>,
    /// By slot: the branch that has it, or had it last.
    slots: Vec<Arc<Member>>,
    /// By slot: its place in `line`.
    turns: Vec<usize>,
    /// In a slot that this snapshot does not know yet: a branch that has left before it came.
    nobody: Arc<Member>,
    /// The ids of the branches in order, with those that have left in between: a listing that stands at one of
    /// them goes on with what came after it.
    line: Vec<BranchId>,
    /// Moves that this pool has given up, and whose new copies it could not remove.
    pub(crate) taken_back: Arc<TakenBack>,
    /// The settings.
    pub settings: Settings,
    /// The placement rules, with these branches.
    pub(crate) rules: Arc<RuleTree>,
}

/// Why a pool cannot be made of these branches.
#[derive(Debug, thiserror::Error)]
pub enum BadPool {
    /// A branch does not open.
    #[error("branch {path}: {error}")]
    Branch {
        /// Its path.
        path: String,
        /// Error of the system.
        error: SysError,
    },
    /// Only their order distinguishes two branches.
    #[error(
        "branch {path}: its id cannot be stored there, and another branch has the same: its handles would lead elsewhere; \
             mount it writable once, or leave out nfs-export"
    )]
    SameId {
        /// Its path.
        path: String,
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
        let claims = specs.iter().map(|spec| {
            let failed = |error| BadPool::Branch { path: spec.path.display().to_string(), error };
            let root = sys::at::open_root(&spec.path).map_err(failed)?;
            Claim::of(root.as_fd(), settings.privileged).map(|claim| (root, claim)).map_err(failed)
        });
        let claims: Vec<_> = claims.collect::<Result<_, BadPool>>()?;
        let sure: Vec<_> = claims.iter().map(|(_, claim)| claim.sure()).collect();
        let mut branches: Vec<Arc<Member>> = Vec::with_capacity(specs.len());
        for (at, (spec, (root, claim))) in specs.iter().zip(claims).enumerate() {
            let failed = |error| BadPool::Branch { path: spec.path.display().to_string(), error };
            // If two branches have one id, it belongs to the one whose mark names its directory, else to the first.
            let surer = sure[at..].iter().flatten().filter(|_| claim.value.is_some() && sure[at].is_none());
            let taken = branches.iter().map(|branch| branch.id).chain(surer.copied());
            let taken: Vec<BranchId> = taken.collect();
            let Stored { id, proof, by_order } =
                settle_id(&spec.path, root.as_fd(), settings.privileged, &claim, &taken).map_err(failed)?;
            if by_order && settings.nfs_export {
                return Err(BadPool::SameId { path: spec.path.display().to_string() });
            }
            let ix = BranchIx::at(at).ok_or(BadPool::Number(specs.len()))?;
            branches.push(Member::open((ix, id), spec, root, proof, &settings).map_err(failed)?);
        }
        let nobody =
            Member::nobody().map_err(|error| BadPool::Branch { path: "(none)".to_owned(), error })?;
        let line: Vec<BranchId> = branches.iter().map(|branch| branch.id).collect();
        let turns = (0..branches.len()).collect();
        let (slots, nobody, taken_back) = (branches.clone(), Arc::new(nobody), Arc::default());
        let rules = Arc::default();
        Ok(Self { slots, branches, turns, nobody, line, taken_back, settings, rules }.with_rules())
    }

    /// The pool of branches that another program has handed over; `line` is [`Self::line`] of that one's.
    ///
    /// # Errors
    /// Their number; two in one slot.
    pub(crate) fn adopt(
        branches: Vec<Arc<Member>>,
        line: Vec<BranchId>,
        settings: Settings,
    ) -> Result<Self, BadPool> {
        let last = branches.iter().map(|branch| branch.ix.index()).max().unwrap_or(usize::MAX);
        if branches.len() > MAX_BRANCHES || last >= MAX_BRANCHES {
            return Err(BadPool::Number(branches.len()));
        }
        let nowhere = |error| BadPool::Branch { path: "(none)".to_owned(), error };
        let nobody = Arc::new(Member::nobody().map_err(nowhere)?);
        let mut slots = vec![nobody.clone(); last + 1];
        for branch in &branches {
            if !Arc::ptr_eq(&slots[branch.ix.index()], &nobody) {
                return Err(BadPool::Number(last));
            }
            slots[branch.ix.index()] = branch.clone();
        }
        let has = |branch: &&Arc<Member>| !line.contains(&branch.id);
        let lacking: Vec<BranchId> = branches.iter().filter(has).map(|branch| branch.id).collect();
        let line = [line, lacking].concat();
        let turn = |branch: &Arc<Member>| line.iter().position(|id| *id == branch.id);
        let turns = slots
            .iter()
            .map(|branch| {
                if Arc::ptr_eq(branch, &nobody) { None } else { turn(branch) }.unwrap_or(usize::MAX)
            })
            .collect();
        let (taken_back, rules) = (Arc::default(), Arc::default());
        Ok(Self { slots, branches, turns, nobody, line, taken_back, settings, rules }.with_rules())
    }

    /// The ids of the branches in order, with those that have left in between.
    pub(crate) fn line(&self) -> &[BranchId] {
        &self.line
    }

    /// Slots that no branch has.
    pub(crate) fn vacant(&self) -> Vec<BranchIx> {
        let vacant = (0..self.slots.len()).filter_map(BranchIx::at);
        vacant.filter(|ix| self.live(*ix).is_none()).collect()
    }

    /// The same pool with other settings.
    pub(crate) fn with_settings(&self, settings: Settings) -> Self {
        Self { settings, ..self.clone() }.with_rules()
    }

    /// The pool with the rules that its settings and branches ask for.
    fn with_rules(self) -> Self {
        let rules = rules_with(&self.settings, &self.branches);
        Self { rules: Arc::new(rules), ..self }
    }

    /// The pool with one branch more, in the slot that it names, after `before` others.
    pub(crate) fn with_branch(&self, branch: Arc<Member>, before: usize) -> Self {
        let mut more = self.clone();
        more.line.retain(|id| *id != branch.id);
        let at = match before.checked_sub(1).and_then(|last| self.branches.get(last)) {
            None => 0,
            Some(last) => more.line.iter().position(|id| *id == last.id).map_or(0, |last| last + 1),
        };
        more.line.insert(at, branch.id);
        if branch.ix.index() == more.slots.len() {
            more.slots.push(branch.clone());
        } else {
            more.slots[branch.ix.index()] = branch.clone();
        }
        more.branches.insert(before.min(more.branches.len()), branch);
        let turn = |branch: &Arc<Member>| more.line.iter().position(|id| *id == branch.id);
        more.turns = more.slots.iter().map(|branch| turn(branch).unwrap_or(usize::MAX)).collect();
        more.with_rules()
    }

    /// The pool without the branch `ix`, which keeps its slot until another gets it.
    pub(crate) fn without(&self, ix: BranchIx) -> Self {
        let mut less = self.clone();
        less.branches.retain(|branch| branch.ix != ix);
        less.with_rules()
    }

    /// Slots that were ever used.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Where the branch with this id, which may have left, is or was in the order.
    pub(crate) fn turn_of(&self, id: BranchId) -> Option<usize> {
        self.line.iter().position(|known| *known == id)
    }

    /// All branches are disks of this machine.
    pub fn is_local(&self) -> bool {
        self.branches.iter().all(|branch| branch.kind.is_local())
    }

    /// Number of calls that may be inside branches at once and not return.
    pub fn most_hanging(&self) -> usize {
        let remote = self.branches.iter().filter(|branch| branch.is_remote()).count();
        remote.saturating_mul(self.settings.branch_inflight)
    }

    /// Directories have one copy, and no NFS client knows one by the number of a copy on another branch.
    pub(crate) fn is_one_plain_branch(&self) -> bool {
        self.branches.len() == 1 && !self.settings.nfs_export
    }

    /// Whether the branch `id` is in the pool.
    pub(crate) fn has(&self, id: BranchId) -> bool {
        self.branches.iter().any(|branch| branch.id == id)
    }

    /// The branches as the index knows them.
    pub(crate) fn marked(&self) -> impl Iterator<Item = &MarkedBranch> + Clone {
        self.branches.iter().map(|branch| &**branch.marked())
    }

    /// The branch that the number was made from, if that can be read from it.
    pub fn branch_of(&self, ino: Ino) -> Option<BranchIx> {
        let id = number::branch_of(ino)?;
        self.branches.iter().find(|branch| branch.id == id).map(|branch| branch.ix)
    }

    /// The branch in the slot `ix`; one that has left answers that nothing is there.
    pub fn branch(&self, ix: BranchIx) -> &Arc<Member> {
        self.slots.get(ix.index()).unwrap_or(&self.nobody)
    }

    /// The branch in the slot `ix`, if it is part of the pool.
    pub fn live(&self, ix: BranchIx) -> Option<&Arc<Member>> {
        self.branches.iter().find(|branch| branch.ix == ix)
    }

    /// Position that tells which of two branches comes first.
    pub fn turn(&self, ix: BranchIx) -> usize {
        self.turns.get(ix.index()).copied().unwrap_or(usize::MAX)
    }
}

/// The placement rules of a pool of these branches.
fn rules_with(settings: &Settings, branches: &[Arc<Member>]) -> RuleTree {
    let named: Vec<NamedBranch<'_>> = branches
        .iter()
        .map(|branch| NamedBranch { branch: branch.ix, path: &branch.path, class: branch.class.as_ref() })
        .collect();
    RuleTree::new(&settings.placement, &settings.create, &settings.tiers, &named)
}

/// Identity of a branch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) id: BranchId,
    /// None: it is not stored.
    pub(crate) proof: Option<Proof>,
    /// An earlier branch has the id that this one would have: among others it has another.
    pub(crate) by_order: bool,
}

/// Attribute of a branch's root with its id.
pub(crate) fn id_attribute(privileged: bool) -> &'static CStr {
    if privileged { c"trusted.fsstack.branch" } else { c"user.fsstack.branch-id" }
}

/// The id that a branch has stored.
#[derive(Debug)]
pub(crate) struct Claim {
    attribute: &'static CStr,
    /// None: it has none, or has that of the directory that its marks were copied from.
    value: Option<StoredId>,
    /// False: there may be one that the daemon is not shown.
    may_store: bool,
    origin: Origin,
}

impl Claim {
    /// # Errors
    /// It is not known whether the branch has an id.
    fn of(root: BorrowedFd<'_>, privileged: bool) -> Result<Self, SysError> {
        let attribute = id_attribute(privileged);
        let mut value = [0; 16];
        let (known, may_store) = match xattr::get(On::Fd(root), attribute, &mut value) {
            Ok(len) => (len == 16, true),
            Err(error) => match error.errno {
                Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::RANGE => {
                    (false, true)
                }
                // There may be one that the daemon is not shown.
                Errno::ACCESS | Errno::PERM => (false, false),
                // Not known to have none: another one must not be stored over it.
                _ => return Err(error),
            },
        };
        let origin = if known { root_mark::origin(root, privileged, &value) } else { Origin::Unknown };
        let value = Some(value).filter(|_| known && origin != Origin::Copied);
        Ok(Self { attribute, value, may_store, origin })
    }

    /// Its id, if it surely is that of this branch.
    fn sure(&self) -> Option<BranchId> {
        let value = self.value.filter(|_| self.origin == Origin::Here);
        value.map(|value| id_of(u128::from_le_bytes(value)))
    }

    fn stored(&self, value: StoredId) -> Stored {
        let proof = Some(Proof { attribute: self.attribute, value });
        Stored { id: id_of(u128::from_le_bytes(value)), proof, by_order: false }
    }

    /// Stores `value` on the branch's root, in place of the marks of another directory.
    fn store(&self, root: BorrowedFd<'_>, privileged: bool, value: &StoredId) -> bool {
        let kept = self.may_store && xattr::set(On::Fd(root), self.attribute, value, 0).is_ok();
        if kept {
            root_mark::put(root, privileged, value);
            sync_root(root);
        }
        kept
    }
}

/// The id that is stored with the branch at `path`; made and stored when there is none, and when another branch has the same
/// (by chance, or a disk copied with its id). A branch that cannot store one (mounted read-only, no attributes) has one from
/// what it is.
pub(crate) fn durable_id(
    path: &Path,
    root: BorrowedFd<'_>,
    privileged: bool,
    taken: &[BranchId],
) -> Result<Stored, SysError> {
    settle_id(path, root, privileged, &Claim::of(root, privileged)?, taken)
}

/// Like [`durable_id`], of a branch that has the stored id of `claim`.
fn settle_id(
    path: &Path,
    root: BorrowedFd<'_>,
    privileged: bool,
    claim: &Claim,
    taken: &[BranchId],
) -> Result<Stored, SysError> {
    let path = path.display();
    let is_free = |value: &StoredId| !taken.contains(&id_of(u128::from_le_bytes(*value)));
    if let Some(value) = claim.value.filter(is_free) {
        if claim.origin != Origin::Here && root_mark::put(root, privileged, &value) {
            sync_root(root);
        }
        return Ok(claim.stored(value));
    }
    let mut fresh = fresh_id(root)?;
    while !is_free(&fresh) {
        fresh = fresh_id(root)?;
    }
    if claim.origin == Origin::Copied {
        tracing::warn!(branch = %path, "the marks on the branch's root were copied from another directory: it counts as a new branch");
    }
    if claim.origin == Origin::Copied || claim.value.is_some() {
        root_mark::clear(root);
    }
    let kept = claim.store(root, privileged, &fresh);
    if claim.value.is_some() {
        tracing::warn!(
            branch = %path,
            "two branches have the same stored id; this one gets a new one{}",
            if kept { "" } else { ", which it cannot store" }
        );
    }
    if kept {
        return Ok(claim.stored(fresh));
    }
    let value = claim.value.map_or_else(|| what_it_is(root), Ok)?;
    // The same at each mount with the same branches before it.
    let by_order = !is_free(&value);
    let mut word = u128::from_le_bytes(value);
    while taken.contains(&id_of(word)) {
        word = word.rotate_right(15).wrapping_add(1);
    }
    let proof = claim.value.map(|value| Proof { attribute: claim.attribute, value });
    Ok(Stored { id: id_of(word), proof, by_order })
}

/// Gives a branch of a pool at work its id again if the marks of another root were copied onto its own. None: it has not stored
/// that id. And whether marks had been copied there.
pub(crate) fn keep_id(
    root: BorrowedFd<'_>,
    privileged: bool,
    id: BranchId,
) -> Result<(Option<Proof>, bool), SysError> {
    let claim = Claim::of(root, privileged)?;
    let is_own = |value: &StoredId| id_of(u128::from_le_bytes(*value)) == id;
    let proof = |value| Some(Proof { attribute: claim.attribute, value });
    if claim.origin != Origin::Copied {
        return Ok((claim.value.filter(is_own).and_then(proof), false));
    }
    let word = u128::from_le_bytes(fresh_id(root)?) & !u128::from(ID_BITS) | u128::from(id.get());
    let value = word.to_le_bytes();
    let kept = claim.store(root, privileged, &value);
    Ok((proof(value).filter(|_| kept), kept))
}

impl Pool {
    /// Stores the ids of branches and pool again where those of another branch were copied over them: `mergerfs.balance` ends with
    /// that. Called when the pool ends. Branches that others serve are left out, as they may hang: the next mount gives them new ids.
    pub(crate) fn keep_marks(&self, index: &Index) {
        for branch in self.branches.iter().filter(|branch| branch.is_writable() && !branch.is_remote()) {
            let root = branch.root();
            let kept = branch.ask(|| keep_id(root.as_fd(), self.settings.privileged, branch.id));
            let path = branch.path.display();
            match kept {
                Ok((_, false)) => {}
                Ok((_, true)) => {
                    tracing::info!(branch = %path, "marks of another directory were copied onto the branch's root; it has its own again");
                    index.mark_root_again(branch);
                }
                Err(error) => {
                    tracing::debug!(%error, branch = %path, "it is not known whether the branch still has its id");
                }
            }
        }
    }
}

/// Which directory of which file system: by their ids, which most file systems keep; where one has none (NFS, FUSE) by what is
/// mounted, and the path on it.
fn what_it_is(root: BorrowedFd<'_>) -> Result<[u8; 16], SysError> {
    let fs = sys::file::statfs(root)?;
    let stat = sys::at::stat_fd(root)?;
    let mounts = if fs.fsid == 0 { sys::mounts::list().unwrap_or_default() } else { Vec::new() };
    let word = match mounts.into_iter().find(|mount| mount.id == stat.mnt_id) {
        None => mix(fs.fsid ^ mix(stat.ino)),
        Some(mount) => {
            let all = sys::at::open_root(Path::new("/"))?;
            let path = sys::at::path_below(all.as_fd(), root)?.unwrap_or_default();
            let path = Path::new("/").join(OsStr::from_bytes(&path));
            let below = path.strip_prefix(&mount.mount_point).unwrap_or(&path);
            let dir = mount.root.join(below);
            let source = hash_name(Ino(fs.f_type), mount.source.as_bytes());
            hash_name(Ino(source), dir.as_os_str().as_bytes())
        }
    };
    let mut value = [0; 16];
    value[..8].copy_from_slice(&word.to_le_bytes());
    value[8..].copy_from_slice(&mix(word).to_le_bytes());
    Ok(value)
}

/// Bits of a stored id that are the branch's id.
const ID_BITS: u16 = 0x7fff;

fn id_of(word: u128) -> BranchId {
    let low = u16::try_from(word & u128::from(ID_BITS)).unwrap_or(1).max(1);
    BranchId::new(low).unwrap_or(BranchId::MIN)
}

/// 16 bytes that no other branch has: time, process and the address space's own randomness.
fn fresh_id(root: BorrowedFd<'_>) -> Result<[u8; 16], SysError> {
    use std::hash::{BuildHasher, RandomState};
    let fs = sys::file::statfs(root)?;
    let now = fsstack_sync::time::SystemTime::now();
    let mut id = [0_u8; 16];
    id[..8].copy_from_slice(&RandomState::new().hash_one((fs.fsid, now)).to_le_bytes());
    id[8..].copy_from_slice(&RandomState::new().hash_one((std::process::id(), now)).to_le_bytes());
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_that_stores_nothing_has_the_same_id_whatever_comes_before_it() {
        // No file system of one's own takes attributes less gladly.
        let roots = ["/proc/sys", "/proc/fs"].map(|path| sys::at::open_root(Path::new(path)).unwrap());
        let alone = roots.each_ref().map(|root| durable_id(Path::new("/"), root.as_fd(), true, &[]).unwrap());
        assert_ne!(alone[0].id, alone[1].id);
        for (root, alone, other) in [(&roots[0], &alone[0], &alone[1]), (&roots[1], &alone[1], &alone[0])] {
            assert_eq!((alone.by_order, &alone.proof), (false, &None));
            assert_eq!(&durable_id(Path::new("/"), root.as_fd(), true, &[other.id]).unwrap(), alone);
            let again = durable_id(Path::new("/"), root.as_fd(), true, &[alone.id]).unwrap();
            assert!(again.by_order && again.id != alone.id);
        }
    }
}
