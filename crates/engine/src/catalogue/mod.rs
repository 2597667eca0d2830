//! Keeping the catalogue (`catalogue=on`): which names each branch has, for when it cannot be asked any more.
//!
//! Operations only remember which names they have changed (`Pending`). A thread for each branch asks the branch how these names are
//! now, and writes that. It also walks over the branch where that is not known: at the mount unless the catalogue was closed
//! cleanly and nothing but the pool changes the branch; when the branch was away; and when there were too many changes at a time.
//! A branch that hangs holds up its own thread only.
//!
//! The threads run under SCHED_IDLE and in the idle I/O class.

mod keeper;
mod look;
pub(crate) mod offline;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::thread;
pub use fsstack_catalogue::{Asked, CatalogueError, FoundName, Subject};
use fsstack_catalogue::{BranchRow, Catalogue, Knowledge, Upkeep};
use fsstack_identity::number::number;
use fsstack_pool::{BranchId, BranchIx};
use fsstack_sys::thread::{IoClass, Policy, set_io_class, set_nice, set_policy, set_policy_of};

use crate::member::Member;
use crate::union::Union;
use keeper::Keeper;

/// The database in the pool's folder.
const FILE: &str = "catalogue.redb";
/// How long the end of the pool waits for the threads of the catalogue.
const CATALOGUE_END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a daemon that is just ending may still have the catalogue open.
const CATALOGUE_IN_USE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a catalogue that is in use is opened again.
const CATALOGUE_IN_USE_PAUSE: Duration = Duration::from_millis(20);

/// A branch in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CataloguedBranch {
    /// Its id.
    pub id: BranchId,
    /// Its path.
    pub path: Vec<u8>,
    /// It is a branch of the pool now.
    pub in_pool: bool,
    /// How far it is known.
    pub known: Knowledge,
}

impl Union {
    /// Begins to keep the catalogue, if the pool is to have one. Without one it serves all the same.
    pub fn start_catalogue(self: &Arc<Self>) {
        let pool = self.pool();
        if !pool.settings.catalogue {
            return self.leave_catalogue();
        }
        if self.catalogue.load().is_some() {
            return;
        }
        let Some((dir, id)) = pool.settings.state_dir.as_deref().zip(self.id()) else {
            tracing::warn!(
                "catalogue=on: the pool has no id that is stored with its branches; no catalogue is kept"
            );
            return;
        };
        let file = dir.join(id.to_string()).join(FILE);
        match open(&file) {
            Ok(catalogue) => {
                self.catalogue.store(Some(Arc::new(Upkeep::new(catalogue))));
                pool.branches
                    .iter()
                    .for_each(|branch| self.catalogue_branch(branch, pool.settings.exclusive));
                self.trust_no_other();
            }
            Err(error) => {
                tracing::error!(%error, file = %file.display(), "catalogue cannot be opened; none is kept until the next mount");
            }
        }
    }

    /// Branches that this mount lacks may change unseen until a later one has them.
    fn trust_no_other(&self) {
        let Some(upkeep) = self.catalogue.load_full() else { return };
        if let Err(error) = upkeep.catalogue.trust_nothing() {
            fail(&upkeep, &error);
        }
    }

    /// This mount keeps no catalogue: one of an earlier mount is not relied on by a later one.
    fn leave_catalogue(&self) {
        let settings = &self.pool().settings;
        let Some((dir, id)) = settings.state_dir.as_deref().zip(self.id()) else { return };
        let file = dir.join(id.to_string()).join(FILE);
        if !file.exists() {
            return;
        }
        let left = open(&file).and_then(|catalogue| catalogue.trust_nothing());
        if let Err(error) = left {
            tracing::warn!(%error, file = %file.display(), "catalogue of an earlier mount cannot be opened; remove it, as it does not show what changes now");
        }
    }

    /// Begins to keep the names of `branch` in the catalogue, if there is one. `exclusive`: nothing but the pool has changed it since
    /// it was last kept.
    fn catalogue_branch(self: &Arc<Self>, branch: &Arc<Member>, exclusive: bool) {
        let Some(upkeep) = self.catalogue.load_full() else { return };
        // Inode numbers of other file systems may change with each mount.
        let trusted = exclusive && !branch.is_remote();
        let root = number(branch, branch.dev(), branch.root_ino).0;
        let keeper = match Keeper::begin(&upkeep, branch, root, trusted) {
            Ok(keeper) => keeper,
            Err(error) => return fail(&upkeep, &error),
        };
        branch.uncatalogued.start();
        let (me, mut at_work) = (Arc::downgrade(self), upkeep.begin());
        let started =
            thread::start(fsstack_sync::thread::Builder::new().name("catalogue".into()), move || {
                schedule(Policy::Idle);
                at_work.begun();
                keeper.keep(&me);
                drop(at_work);
            });
        if let Err(error) = started {
            branch.uncatalogued.stop();
            let as_of = upkeep.known(branch.id.get()).unwrap_or_default().as_of;
            upkeep.set_known(
                branch.id.get(),
                Knowledge { complete: false, walking: false, looking: false, as_of },
            );
            tracing::error!(%error, branch = %branch.path.display(), "catalogue: cannot start its thread; the branch's names are not kept");
        }
    }

    /// The branch `at` is part of the pool from now on.
    pub(crate) fn catalogue_joined(&self, at: BranchIx) {
        if let Some(union) = self.hosted()
            && let Some(branch) = union.pool().live(at)
        {
            // It was about to leave, and its thread still keeps its names.
            if branch.uncatalogued.is_on() {
                return branch.uncatalogued.note_all();
            }
            // Outside of the pool anybody may have changed it.
            union.catalogue_branch(branch, false);
        }
    }

    /// Has the branch `at` walked again: its names may have changed.
    pub(crate) fn catalogue_anew(&self, at: BranchIx) {
        if let Some(branch) = self.pool().live(at) {
            branch.uncatalogued.note_all();
        }
    }

    /// Ends the catalogue: all is on disk, and the next mount may rely on it. Returns it, unless it is still read.
    pub(crate) fn end_catalogue(&self) -> Option<Catalogue> {
        let upkeep = self.catalogue.swap(None)?;
        // Without a clean close the next mount walks the branches.
        let is_closed = self.close_catalogue(&upkeep, CATALOGUE_END_TIMEOUT);
        Arc::into_inner(upkeep).filter(|_| is_closed).map(|upkeep| upkeep.catalogue)
    }

    /// Like [`Self::end_catalogue`], within `timeout`; the file keeps its size. False: a thread of it is still inside a branch.
    pub(crate) fn end_catalogue_within(&self, timeout: Duration) -> bool {
        self.catalogue.swap(None).is_none_or(|upkeep| self.close_catalogue(&upkeep, timeout))
    }

    fn close_catalogue(&self, upkeep: &Upkeep, timeout: Duration) -> bool {
        let pool = self.pool();
        pool.branches.iter().for_each(|branch| branch.uncatalogued.stop());
        // A busy machine must not hold up the end of the pool, whatever the threads are at.
        upkeep.each_thread(|thread| scheduled(set_policy_of(thread, Policy::Other)));
        let has_ended = upkeep.wait_ended(timeout);
        if has_ended && let Err(error) = upkeep.close(pool.settings.exclusive) {
            tracing::warn!(%error, "catalogue: clean close failed; the next mount walks the branches");
        }
        has_ended
    }

    /// The branches in the catalogue: those of the pool first, in their order. None: there is no catalogue.
    ///
    /// # Errors
    /// The database failed.
    pub fn catalogued(&self) -> Option<Result<Vec<CataloguedBranch>, CatalogueError>> {
        let upkeep = self.catalogue.load_full()?;
        Some(upkeep.catalogue.branches().map(|rows| self.of_rows(&upkeep, rows)))
    }

    fn of_rows(&self, upkeep: &Upkeep, rows: Vec<(u16, BranchRow)>) -> Vec<CataloguedBranch> {
        let pool = self.pool();
        let place = |id: u16| pool.branches.iter().position(|branch| branch.id.get() == id);
        let mut all: Vec<_> = rows
            .into_iter()
            .filter_map(|(id, row)| {
                let BranchRow { complete, as_of, .. } = row;
                let place = place(id);
                let mut known =
                    upkeep.known(id).unwrap_or(Knowledge { complete, as_of, walking: false, looking: false });
                let branch = place.map(|at| &pool.branches[at]);
                // While the branch answers, no name is missing.
                if known.complete
                    && branch.is_some_and(|branch| branch.is_open() && branch.uncatalogued.is_empty())
                {
                    known.as_of = fsstack_catalogue::now();
                }
                let path = branch.map_or(row.path, |branch| path_bytes(&branch.path));
                let shown =
                    CataloguedBranch { id: BranchId::new(id)?, path, in_pool: branch.is_some(), known };
                Some((place.unwrap_or(usize::MAX), shown))
            })
            .collect();
        all.sort_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, branch)| branch).collect()
    }

    /// Asks the catalogue. None: there is no catalogue.
    ///
    /// # Errors
    /// The database failed.
    pub fn ask_catalogue<T>(
        &self,
        ask: impl FnOnce(&Catalogue) -> Result<T, CatalogueError>,
    ) -> Option<Result<T, CatalogueError>> {
        let upkeep = self.catalogue.load_full()?;
        Some(ask(&upkeep.catalogue))
    }

    /// Removes what is known of a branch that has left the pool. False: nothing was.
    pub fn forget_catalogued(&self, id: BranchId) -> bool {
        let Some(upkeep) = self.catalogue.load_full().filter(|_| !self.pool().has(id)) else { return false };
        let removed = upkeep.catalogue.change(|batch| {
            let known = batch.branch(id.get())?.is_some();
            batch.remove_branch(id.get())?;
            Ok(known)
        });
        match removed.and_then(|known| upkeep.catalogue.flush().map(|()| known)) {
            Ok(known) => known,
            Err(error) => {
                fail(&upkeep, &error);
                false
            }
        }
    }
}

/// Gives the calling thread the lowest priority of `policy`: the threads that serve requests may be under SCHED_IDLE, before which any
/// niceness comes.
fn schedule(policy: Policy) {
    scheduled(set_nice(19).and_then(|()| set_io_class(IoClass::Idle)).and_then(|()| set_policy(policy)));
}

fn scheduled(done: std::io::Result<()>) {
    if let Err(error) = done {
        tracing::debug!(%error, "catalogue: its thread is scheduled like others");
    }
}

/// Logs that the catalogue has failed, once.
fn fail(upkeep: &Upkeep, error: &CatalogueError) {
    if upkeep.fail() {
        tracing::error!(%error, "catalogue cannot be written; it is incomplete until the next mount");
    }
}

fn path_bytes(path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().to_vec()
}

/// Opens or makes the catalogue. A damaged one is kept beside the new one.
fn open(file: &Path) -> Result<Catalogue, CatalogueError> {
    let began = fsstack_sync::time::Instant::now();
    let io = |error| CatalogueError::from(redb::StorageError::Io(error));
    if !file.exists() {
        fsstack_sys::state::make_room(file).map_err(io)?;
    }
    loop {
        match Catalogue::open(file) {
            Err(error) if error.is_in_use() && began.elapsed() < CATALOGUE_IN_USE_TIMEOUT => {
                fsstack_sync::thread::sleep(CATALOGUE_IN_USE_PAUSE);
            }
            Err(error) if error.is_damage() => {
                tracing::error!(%error, file = %file.display(), "catalogue damaged; it is made anew from a walk over the branches");
                fsstack_sys::state::make_room(file).map_err(io)?;
                return Catalogue::open(file);
            }
            opened => return opened,
        }
    }
}
