//! The union file system: the tables that all operations share, and the way from an inode to a directory
//! descriptor on a branch.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwapOption;
use fsstack_catalogue::{Catalogue, Upkeep};
use fsstack_identity::index::{Index, IndexHealth};
use fsstack_identity::poolid::PoolId;
use fsstack_pool::Ino;
use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};
use fsstack_sync::ranked::{COPIES, Ranked};
use fsstack_sync::time::{Duration, Instant};

use crate::branch_watch::{BranchWatch, Invalidator};
use crate::bulk_copy::Copying;
use crate::files::noatime::NoatimeScope;
use crate::files::route::Backings;
use crate::inode::Inode;
use crate::jobs::Jobs;
use crate::kept::Kept;
use crate::member::Member;
use crate::member::events::PoolEvents;
use crate::moves::Moves;
use crate::opened::tables::Files;
use crate::pool::Pool;
use crate::pool_changes::PoolChanges;
use crate::tree::Tree;

/// The union file system. Requests come in as method calls (one file an operation in `ops`), from any
/// number of threads.
#[derive(Debug)]
pub struct Union {
    pub(crate) tree: Arc<Tree>,
    pub(crate) files: Arc<Files>,
    pub(crate) moves: Arc<Moves>,
    pub(crate) changes: Arc<PoolChanges>,
    /// Bulk copies under way. No call on a branch is made under it.
    pub(crate) copies: Ranked<HashMap<u64, Copying>, COPIES>,
    /// Receiver of invalidations.
    pub(crate) invalidator: OnceLock<Arc<dyn Invalidator>>,
    pub(crate) branch_watch: OnceLock<Arc<BranchWatch>>,
    pub(crate) jobs: Arc<Jobs>,
    id: Option<PoolId>,
    /// Some branch is served by others.
    pub(crate) may_hang: AtomicBool,
    transport: OnceLock<&'static str>,
    noatime_scope: OnceLock<NoatimeScope>,
    /// Receiver of the events of branches.
    pub(crate) events: Arc<PoolEvents>,
    /// Itself, once it is at work: for threads that outlive the request that starts them.
    me: OnceLock<Weak<Self>>,
    /// Memory that outlives the daemon.
    pub(crate) kept: OnceLock<Arc<Kept>>,
    /// The catalogue, while the pool keeps one.
    pub(crate) catalogue: ArcSwapOption<Upkeep>,
}

/// Sizes of the tables: for status, and for tests that nothing is left over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Inodes that the kernel has not forgotten, without the root.
    pub inodes: usize,
    /// Open file handles.
    pub files: usize,
    /// Open directory handles.
    pub dirs: usize,
    /// Open directory descriptors.
    pub dir_fds: usize,
    /// Entries that open listings may keep, of a bounded number.
    pub listing_entries: usize,
}

impl Union {
    /// The union of `pool`'s branches.
    /// What interrupted moves left on them is cleared first.
    pub fn new(pool: Pool, backings: Arc<dyn Backings>) -> Self {
        let ids = || PoolId::of(pool.marked().map(|branch| &**branch), pool.settings.pool_id);
        let id = pool.settings.privileged.then(ids).flatten();
        let index = Index::open(id, pool.settings.state_dir.as_deref(), pool.settings.nfs_export);
        crate::recovery::recover::clear(&pool, &index);
        let roots = pool.branches.iter().map(|branch| (branch.ix, branch.root_ino, branch.root()));
        let root = Inode::root(roots);
        pool.branches.iter().for_each(|branch| index.join(branch.marked()));
        index.admit(pool.marked());
        let may_hang = !pool.is_local();
        let tree = Arc::new(Tree::new(root, pool, index));
        let now = tree.pool.load_full();
        tree.parallel_lookup.start_threads(&now);
        let files = Arc::new(Files::new(now.settings.listing_entries, backings));
        let moves = Arc::new(Moves::new(tree.clone(), files.clone()));
        let changes = Arc::new(PoolChanges::new(tree.clone(), moves.clone()));
        let jobs = Arc::new(Jobs::new(id, tree.clone(), changes.clone(), moves.clone()));
        let events = Arc::new(PoolEvents::new(&tree.inodes));
        now.branches.iter().for_each(|branch| branch.reports_to(&events));
        Self {
            tree,
            files,
            moves,
            changes,
            copies: Ranked::default(),
            invalidator: OnceLock::new(),
            branch_watch: OnceLock::new(),
            jobs,
            id,
            may_hang: AtomicBool::new(may_hang),
            transport: OnceLock::new(),
            noatime_scope: OnceLock::new(),
            events,
            me: OnceLock::new(),
            kept: OnceLock::new(),
            catalogue: ArcSwapOption::empty(),
        }
    }

    /// From now on branches that come back are settled with this pool, and files are moved by threads of their own.
    pub(crate) fn host(self: &Arc<Self>) {
        let me = self.me.get_or_init(|| Arc::downgrade(self));
        self.events.host_is(me.clone());
        self.moves.host();
        // Those that the daemon before had, and that this one did not find.
        self.pool().branches.iter().for_each(|branch| branch.look_for_it());
    }

    /// Itself, once it is at work.
    pub(crate) fn hosted(&self) -> Option<Arc<Self>> {
        self.me.get().and_then(Weak::upgrade)
    }

    /// The pool as it is now.
    pub fn pool(&self) -> Arc<Pool> {
        self.tree.pool.load_full()
    }

    /// Whether some branch is served by others, and a call there may not return.
    pub fn may_hang(&self) -> bool {
        self.may_hang.load(Relaxed)
    }

    /// Whether NFS servers may export the pool (`nfs-export`).
    pub fn is_for_export(&self) -> bool {
        self.tree.pool.load().settings.nfs_export
    }

    /// Sets the transport's name: shown by `user.fsstack.transport` on the root, and without effect.
    pub fn set_transport(&self, name: &'static str) {
        self.transport.get_or_init(|| name);
    }

    /// Reading is to leave these access times alone.
    pub fn set_noatime_scope(&self, noatime_scope: NoatimeScope) {
        self.noatime_scope.get_or_init(|| noatime_scope);
    }

    pub(crate) fn noatime_scope(&self) -> NoatimeScope {
        self.noatime_scope.get().copied().unwrap_or_default()
    }

    pub(crate) fn transport(&self) -> Option<&'static str> {
        self.transport.get().copied()
    }

    /// The pool's id; None for a pool of a user without privileges, which is not stored, and where it cannot be read now.
    pub fn id(&self) -> Option<PoolId> {
        self.id
    }

    /// How the index of moved files and directories does.
    pub fn index_health(&self) -> IndexHealth {
        self.tree.index.health(self.tree.pool.load().marked())
    }

    /// Returns the sizes of the tables.
    pub fn held(&self) -> TableCounts {
        TableCounts {
            inodes: self.tree.inodes.len(),
            files: self.files.handles.len(),
            dirs: self.files.dirs.len(),
            dir_fds: self.tree.budget.open(),
            listing_entries: self.files.listing_memory.granted() + self.files.places_memory.granted(),
        }
    }

    /// Up to `most` regular files that the kernel has looked up and, as far as is known, not forgotten.
    pub fn some_files(&self, most: usize) -> Vec<Ino> {
        self.tree.inodes.some_files(most)
    }

    /// The mount is gone: closes and forgets everything.
    pub fn destroy(&self) {
        // First: the end of a job may take longer than the daemon waits.
        self.pool().keep_marks(&self.tree.index);
        self.jobs.list.end();
        self.moves.movers.end();
        self.end_all_copies();
        let catalogue = self.end_catalogue();
        self.files.handles.clear();
        self.files.dirs.clear();
        self.tree.inodes.clear();
        self.tree.index.close();
        // Last: the daemon does not wait for it for long.
        if let Some(Err(error)) = catalogue.map(Catalogue::shrink) {
            tracing::debug!(%error, "catalogue: its file was not made smaller");
        }
    }

    /// Like [`Self::destroy`], and waits for threads inside of a branch, for at most `timeout`; where all stuck ones are in
    /// branches that hang, not even that long. Then those branches' FUSE connections are aborted: a process does not end
    /// while one of its threads is in a call that does not return, or a file of its is to be closed.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn end(self: &Arc<Self>, timeout: Duration) -> std::io::Result<()> {
        /// How much later than its time limit a call counts as late.
        const MONITOR_DELAY: Duration = Duration::from_millis(300);
        /// Pause between two looks at what the end of a pool waits for.
        const CLOSING_LOOK_PAUSE: Duration = Duration::from_millis(2);
        let ending = self.clone();
        let closer = fsstack_sync::thread::Builder::new().name("closing".into());
        let closer = fsstack_branch::thread::start(closer, move || ending.destroy())?;
        let began = Instant::now();
        let mut aborted = false;
        loop {
            // Not kept: the end of a drain waits for those that do.
            let pool = self.pool();
            let stuck: Vec<_> = pool.branches.iter().filter(|branch| branch.is_stuck()).collect();
            if stuck.is_empty() && closer.is_finished() {
                return Ok(());
            }
            let hopeless = !stuck.is_empty() && stuck.iter().all(|branch| !branch.is_open());
            // The monitor sees that a call has overstayed a moment later.
            if began.elapsed() > timeout + timeout / 4 + MONITOR_DELAY
                || hopeless && began.elapsed() > MONITOR_DELAY
            {
                if aborted {
                    return Ok(()); // nothing more can be done for them
                }
                // One that answers is busy: others may be using it, and it returns. A branch that is away with no call
                // inside delays nobody, and its connection number may belong to another mount.
                let remote = pool.branches.iter().filter(|branch| branch.is_remote());
                let holds_up =
                    |branch: &&Arc<Member>| branch.is_stuck() && !branch.is_open() || branch.is_silent();
                for branch in remote.filter(holds_up) {
                    if let Err(error) = branch.free_callers() {
                        tracing::warn!(%error, branch = %branch.path.display(), "FUSE connection of a branch cannot be aborted; the daemon waits for the branch before it ends");
                    }
                }
                aborted = true;
                fsstack_sync::thread::sleep(MONITOR_DELAY);
            }
            drop(stuck);
            drop(pool);
            fsstack_sync::thread::sleep(CLOSING_LOOK_PAUSE);
        }
    }

    /// Handles are noted in `kept` from now on, for a daemon after this one.
    pub fn keep_in(&self, kept: Arc<Kept>) {
        self.files.next_handle.fetch_max(kept.first_handle(), Relaxed);
        self.kept.get_or_init(|| kept);
    }

    /// Memory that outlives the daemon, if there is any.
    pub fn kept(&self) -> Option<&Arc<Kept>> {
        self.kept.get()
    }
}
