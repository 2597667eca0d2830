//! Sessions: the proof that the index has all marks of a branch.
//!
//! Each session of the index has a random id, made anew each time that an index is opened or created. The id is written to
//! the index and then to the branch (`trusted.fsstack.index` on its root) before the session's first mark there. Equal ids
//! prove that the index has every mark of that branch: none was set through another index, nor through this one after it was
//! closed and an old copy was put back.
//!
//! A copy taken in the middle of a session is like the index after a crash, which has all marks of files: docs/nfs.md does
//! not promise it. The index also holds how much of a branch was scanned.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fsstack_pool::BranchId;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{Errno, SysError};
use redb::TableDefinition;

use super::SharedIndex;
use super::store::{DbResult, Store, StoreWhen, table};
use crate::member::Member;
use crate::recover::sync_dir;

/// On the root of a branch: the session in which a mark was last put there. (Before there were sessions: the index's id.)
const SIGNED: &CStr = c"trusted.fsstack.index";

/// Files' marks are all in the index; directories' too.
pub(super) const FILES: u8 = 1;
pub(super) const ALL: u8 = 2;

/// Branches, and how far their marks are in here.
const BRANCHES: TableDefinition<'_, u16, u8> = TableDefinition::new("branches");
/// Session that each branch has on its root.
const SESSIONS: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("sessions");

/// Random id of a session.
pub(super) type Session = [u8; 16];

impl Store {
    /// How far the marks on a branch that bears `by` are in here: 0 not at all, 1 those of files, 2 those of directories too.
    pub(super) fn covered(&self, branch: BranchId, by: Session) -> DbResult<u8> {
        if !self.is_signed(branch, by)? {
            return Ok(0);
        }
        // What was noted of directories in the last second before a crash is lost.
        let most = if self.was_closed { ALL } else { FILES };
        Ok(self.level(branch)?.min(most))
    }

    /// Whether `by` is what the branch bears as far as is known here.
    fn is_signed(&self, branch: BranchId, by: Session) -> DbResult<bool> {
        Ok(by == self.session_of(branch)?.unwrap_or(self.id))
    }

    /// Whether files' marks on a branch that is not there to be asked were all in here when it was.
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

    /// Says how far they are. On disk when this returns.
    pub(super) fn set_covered(&self, branch: BranchId, level: u8) -> DbResult<()> {
        self.change(StoreWhen::Now, |tables| {
            tables.open_table(BRANCHES)?.insert(branch.get(), level)?;
            Ok(())
        })
    }

    /// The branch is about to bear `session`, and its marks are in here as far as `level` says then. On disk when this
    /// returns: what it was to bear before.
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
            // One after the other: the last one to sign knows most.
            tables.open_table(BRANCHES)?.insert(branch.get(), level())?;
            Ok(())
        })?;
        Ok(before)
    }
}

impl SharedIndex {
    /// How far the marks of `branch`, which bears `by`, are in the index.
    pub(super) fn level_of(&self, branch: &Member, by: Session) -> u8 {
        let Some(store) = self.store.load_full() else { return 0 };
        // One that is taken away before it was looked through has not been.
        let lacks = store.is_signed(branch.id, by).is_ok_and(|signed| !signed);
        if lacks && store.set_covered(branch.id, 0).is_err() {
            tracing::warn!(branch = %branch.path.display(), "index: cannot record that it lacks marks of the branch");
        }
        store.covered(branch.id, by).unwrap_or(0)
    }

    /// Before the session's first mark is put on a branch: it says so.
    pub(super) fn cover(&self, branch: &Member) {
        if branch.marks.signed.load(Relaxed) {
            return;
        }
        if let Some(store) = self.existing() {
            self.sign(&store, branch);
        }
    }

    /// Index and branch say that the session's marks there are in this index, as far as it is looked through now. (By no lock:
    /// the branch may hang.) False: the index does not say so.
    pub(super) fn sign(&self, store: &Arc<Store>, branch: &Member) -> bool {
        let mut store = store.clone();
        loop {
            let signed = store.sign(branch.id, Some(store.session), || self.level_now(branch));
            match &signed {
                Ok(before) => self.sign_root(&store, branch, *before),
                Err(error) => {
                    tracing::warn!(%error, branch = %branch.path.display(), "index: cannot sign the branch; the next mount scans it again");
                }
            }
            // The index may have failed meanwhile, and the one in its place have signed before.
            match self.store.load_full() {
                Some(current) if !Arc::ptr_eq(&current, &store) => store = current,
                _ => return signed.is_ok(),
            }
        }
    }

    fn sign_root(&self, store: &Store, branch: &Member, before: Option<Session>) {
        let root = branch.root();
        // The fsync of a marked file does not store what its branch's root says, on btrfs at least.
        let put = || {
            xattr::set(On::Fd(root.as_fd()), SIGNED, &store.session, 0)?;
            sync_dir(root.as_fd())
        };
        if let Err(error) = branch.ask_long(put) {
            // What cannot say so can have no marks, and bears what it bore. (Another thread may have noted its own try meanwhile.)
            tracing::debug!(%error, branch = %branch.path.display(), "the branch keeps no marks");
            let bears = branch.ask(|| signed_by(branch)).unwrap_or(before);
            if let Err(error) = store.sign(branch.id, bears, || self.level_now(branch)) {
                tracing::warn!(%error, branch = %branch.path.display(), "index: cannot sign the branch; the next mount scans it again");
            }
        }
        branch.marks.signed.store(true, Relaxed);
    }

    fn level_now(&self, branch: &Member) -> u8 {
        match (branch.marks.ask_files.load(Relaxed), branch.marks.ask_dirs.load(Relaxed)) {
            (true, _) => 0,
            (false, true) => FILES,
            (false, false) => self.most(),
        }
    }

    /// Directories are marked without a word to the index of a pool that is not exported.
    pub(super) fn most(&self) -> u8 {
        if self.exports { ALL } else { FILES }
    }
}

/// The session that the branch bears; None: it has no marks, or cannot have any.
pub(super) fn signed_by(branch: &Member) -> std::result::Result<Option<Session>, SysError> {
    let mut value = [0; 16];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_is_covered_by_who_put_the_last_mark_there() {
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
        // Not closed in order: directories of the last second are missing.
        let store = open();
        assert_eq!(store.covered(branch, session).unwrap(), FILES);
        assert!(store.had_files_of(branch).unwrap() && !store.had_files_of(BranchId::MAX).unwrap());
        drop(store);
        let store = open();
        store.sign(branch, Some(store.session), || FILES).unwrap();
        assert_eq!(store.covered(branch, store.session).unwrap(), FILES);
    }
}
