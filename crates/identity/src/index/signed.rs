//! Sessions: the proof that the index has all marks of a branch.
//!
//! Each session of the index has a random id, made anew each time that an index is opened or created. The id is written to
//! the index and then to the branch (`trusted.fsstack.index` on its root) before the session's first mark there. Equal ids
//! prove that the index has every mark of that branch: none was set through another index, nor through this one after it was
//! closed and an old copy was put back.
//!
//! A copy taken in the middle of a session counts as the index after a crash, which has all marks of files. It may lack
//! some: docs/nfs.md promises nothing for it. The index also holds how much of a branch was scanned: its level.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_pool::BranchId;
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sys::file::sync_dir;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{Call, Errno, SysError};
use redb::TableDefinition;

use super::SharedIndex;
use super::store::{DbResult, Store, StoreWhen, table};
use crate::marked_branch::MarkedBranch;

/// On the root of a branch: the session in which a mark was last put there. (Before there were sessions: the index's id.)
const SIGNED: &CStr = c"trusted.fsstack.index";

/// Level of a branch: all marks of files are in the index. Without that it is 0.
pub(super) const FILES: u8 = 1;
/// Level of a branch: all marks of files and of directories are in the index.
pub(super) const ALL: u8 = 2;

/// Level of each branch.
const BRANCHES: TableDefinition<'_, u16, u8> = TableDefinition::new("branches");
/// Session that each branch has on its root.
const SESSIONS: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("sessions");

/// Random id of a session.
pub(super) type Session = [u8; 16];

impl Store {
    /// Returns the level of a branch that bears the session `by`: 0, [`FILES`] or [`ALL`].
    pub(super) fn covered(&self, branch: BranchId, by: Session) -> DbResult<u8> {
        if !self.is_signed(branch, by)? {
            return Ok(0);
        }
        // Entries of directories from the last second before a crash are lost.
        let most = if self.was_closed { ALL } else { FILES };
        Ok(self.level(branch)?.min(most))
    }

    /// True if `by` is the session that the branch bears according to the index.
    fn is_signed(&self, branch: BranchId, by: Session) -> DbResult<bool> {
        Ok(by == self.session_of(branch)?.unwrap_or(self.id))
    }

    /// True if all marks of files on a branch that is away were in the index when it was last in the pool.
    pub(super) fn had_files_of(&self, branch: BranchId) -> DbResult<bool> {
        Ok(self.level(branch)? >= FILES)
    }

    fn level(&self, branch: BranchId) -> DbResult<u8> {
        let read = self.begin_read()?;
        let level = table(&read, BRANCHES)?.map(|table| table.get(branch.get())).transpose()?;
        Ok(level.flatten().map_or(0, |level| level.value()))
    }

    fn session_of(&self, branch: BranchId) -> DbResult<Option<Session>> {
        let read = self.begin_read()?;
        let session = table(&read, SESSIONS)?.map(|table| table.get(branch.get())).transpose()?;
        Ok(session.flatten().and_then(|session| session.value().try_into().ok()))
    }

    /// Sets the level of a branch. On disk when this returns.
    pub(super) fn set_covered(&self, branch: BranchId, level: u8) -> DbResult<()> {
        self.change(StoreWhen::Now, |tables| {
            tables.open_table(BRANCHES)?.insert(branch.get(), level)?;
            Ok(())
        })
    }

    /// Records that the branch is about to bear `session`, with the level that `level` returns inside the transaction.
    /// On disk when this returns. Returns the session that was recorded before.
    fn sign(
        &self,
        branch: BranchId,
        session: Option<Session>,
        level: impl FnOnce() -> u8,
    ) -> DbResult<Option<Session>> {
        let before = self.session_of(branch)?;
        self.change(StoreWhen::Now, |tables| {
            let mut sessions = tables.open_table(SESSIONS)?;
            match session {
                Some(session) => sessions.insert(branch.get(), session.as_slice())?,
                None => sessions.remove(branch.get())?,
            };
            // Transactions run one after the other, so the last one has the latest level.
            tables.open_table(BRANCHES)?.insert(branch.get(), level())?;
            Ok(())
        })?;
        Ok(before)
    }
}

impl SharedIndex {
    /// Returns the level of `branch`, which bears the session `by`. If the index expects another session, the level is 0,
    /// and the index records that.
    pub(super) fn level_of(&self, branch: &MarkedBranch, by: Session) -> u8 {
        let Some(store) = self.store.load_full() else { return 0 };
        // Recorded now: the branch may be removed before it is scanned.
        let lacks = store.is_signed(branch.id, by).is_ok_and(|signed| !signed);
        if lacks && store.set_covered(branch.id, 0).is_err() {
            tracing::warn!(branch = %branch.path.display(), "index: cannot record that it lacks marks of the branch");
        }
        store.covered(branch.id, by).unwrap_or(0)
    }

    /// Signs the branch before the session's first mark there.
    pub(super) fn cover(&self, branch: &MarkedBranch) {
        if branch.marks.signed.load(Relaxed) {
            return;
        }
        if let Some(store) = self.existing() {
            self.sign(&store, branch);
        }
    }

    /// Signs the branch: the index records its session and level, then the branch's root the session. No lock is held,
    /// since the branch may hang. False: the index could not record it.
    pub(super) fn sign(&self, store: &Arc<Store>, branch: &MarkedBranch) -> bool {
        let mut store = store.clone();
        loop {
            // The level says that these are known.
            let signed = self.write_pending(&store);
            let signed =
                signed.and_then(|()| store.sign(branch.id, Some(store.session), || self.level_now(branch)));
            match &signed {
                Ok(before) => self.sign_root(&store, branch, *before),
                Err(error) => {
                    tracing::warn!(%error, branch = %branch.path.display(), "index: cannot sign the branch; the next mount scans it again");
                }
            }
            // The index may have been replaced meanwhile, and its successor have signed before this one did.
            match self.store.load_full() {
                Some(current) if !Arc::ptr_eq(&current, &store) => store = current,
                _ => return signed.is_ok(),
            }
        }
    }

    fn sign_root(&self, store: &Store, branch: &MarkedBranch, before: Option<Session>) {
        let root = branch.root();
        // The fsync of a marked file does not store the xattrs of its branch's root, on btrfs at least.
        let put = || {
            xattr::set(On::Fd(root.as_fd()), SIGNED, &store.session, 0)?;
            sync_dir(root.as_fd())
        };
        let put = branch.ask_long(put);
        if let Err(error) = &put {
            // The index records what the branch really bears, as another thread may have recorded its own attempt meanwhile.
            tracing::debug!(%error, branch = %branch.path.display(), "the branch keeps no marks");
            let bears = branch.ask(|| signed_by(branch)).unwrap_or(before);
            if let Err(error) = store.sign(branch.id, bears, || self.level_now(branch)) {
                tracing::warn!(%error, branch = %branch.path.display(), "index: cannot sign the branch; the next mount scans it again");
            }
        }
        // A branch that cannot store the session can have no marks. After any other error the next mark tries again: a branch that has
        // marks and no session is taken for one without marks when the index is lost.
        let is_over = put.map_or_else(|error| can_have_none(error.errno()), |()| true);
        branch.marks.signed.store(is_over, Relaxed);
    }

    fn level_now(&self, branch: &MarkedBranch) -> u8 {
        match (branch.marks.ask_files.load(Relaxed), branch.marks.ask_dirs.load(Relaxed)) {
            (true, _) => 0,
            (false, true) => FILES,
            (false, false) => self.most(),
        }
    }

    /// Highest level in this pool: without `nfs-export` directories are marked without an entry in the index.
    pub(super) fn most(&self) -> u8 {
        if self.exports { ALL } else { FILES }
    }
}

/// The session that the branch bears; None: it has no marks, or cannot have any.
pub(super) fn signed_by(branch: &MarkedBranch) -> std::result::Result<Option<Session>, SysError> {
    let mut value = [0; 16];
    // One that is down has no root to ask, which is not one without marks.
    branch.check_open().map_err(|error| SysError { call: Call::Getxattr, errno: error.errno() })?;
    let root = branch.root();
    match xattr::get(On::Fd(root.as_fd()), SIGNED, &mut value) {
        Ok(16) => Ok(Some(value)),
        Ok(_) => Ok(Some([0; 16])), // not ours: whatever it means, the marks are not in our index
        Err(error)
            if matches!(error.errno, Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) =>
        {
            Ok(None)
        }
        Err(error) if error.errno == Errno::RANGE => Ok(Some([0; 16])),
        Err(error) => Err(error),
    }
}

/// Whether the error says that the branch can have no marks.
fn can_have_none(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_is_covered_by_the_index_of_its_last_session() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index.redb");
        let branch = BranchId::MIN;
        let open = || Store::open(&path).unwrap().unwrap();
        let store = Store::make(Some(&path), [9; 16]).unwrap();
        assert_eq!(store.covered(branch, [9; 16]).unwrap(), 0);
        store.set_covered(branch, ALL).unwrap();
        store.set_closed(true).unwrap();
        drop(store);
        // As versions without sessions left it.
        let store = open();
        store.set_closed(false).unwrap();
        assert_eq!(store.covered(branch, [9; 16]).unwrap(), ALL);
        assert_eq!(store.covered(branch, [8; 16]).unwrap(), 0);
        let session = store.session;
        assert_eq!(store.sign(branch, Some(session), || ALL).unwrap(), None);
        assert_eq!(store.covered(branch, session).unwrap(), ALL);
        assert_eq!(store.covered(branch, [9; 16]).unwrap(), 0, "an earlier version was here");
        store.set_closed(true).unwrap();
        drop(store);
        let store = open();
        assert_ne!(store.session, session);
        store.set_closed(false).unwrap();
        assert_eq!(store.covered(branch, session).unwrap(), ALL);
        // It could not be written to the branch.
        let next = store.session;
        assert_eq!(store.sign(branch, Some(next), || ALL).unwrap(), Some(session));
        store.sign(branch, Some(session), || ALL).unwrap();
        assert_eq!((store.covered(branch, session).unwrap(), store.covered(branch, next).unwrap()), (ALL, 0));
        drop(store);
        // Not closed cleanly: directories of the last second are missing.
        let store = open();
        assert_eq!(store.covered(branch, session).unwrap(), FILES);
        assert!(store.had_files_of(branch).unwrap() && !store.had_files_of(BranchId::MAX).unwrap());
        drop(store);
        let store = open();
        store.sign(branch, Some(store.session), || FILES).unwrap();
        assert_eq!(store.covered(branch, store.session).unwrap(), FILES);
    }
}
