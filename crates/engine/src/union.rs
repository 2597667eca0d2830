//! The union file system: the tables that all operations share, and the way from an inode to a directory
//! descriptor on a branch.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use fsstack_branch::branch::Branch;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::metrics::PoolMetrics;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::at::Mounts;
use fsstack_sys::{self as sys, Errno, Stat, SysError};
use parking_lot::Mutex;

use crate::admin::Admin;
use crate::files::noatime::NoatimeScope;
use crate::files::route::Backings;
use crate::files::tables::Files;
use crate::identity::index::{Index, IndexHealth};
use crate::identity::poolid::PoolId;
use crate::jobs::JobList;
use crate::kept::Kept;
use crate::moves::Moves;
use crate::pool::Pool;
use crate::recovery::branch_recovery::PoolEvents;
use crate::tree::Tree;
use crate::tree::inode::{Inode, InodeName};
use crate::tree::resolve::Found;
use crate::tree::tree_lock::TreeLock;

/// The union file system. Requests come in as method calls (one file an operation in `ops`), from any
/// number of threads.
#[derive(Debug)]
pub struct Union {
    pub(crate) pool: ArcSwap<Pool>,
    pub(crate) tree: Tree,
    pub(crate) files: Files,
    pub(crate) moves: Moves,
    pub(crate) admin: Admin,
    pub(crate) jobs: JobList,
    pub(crate) index: Index,
    id: Option<PoolId>,
    pub(crate) pool_metrics: PoolMetrics,
    /// Some branch is served by others.
    pub(crate) may_hang: AtomicBool,
    transport: OnceLock<&'static str>,
    noatime_scope: OnceLock<NoatimeScope>,
    /// Itself, for branches that come back.
    pub(crate) events: Arc<PoolEvents>,
    /// Memory that outlives the daemon.
    pub(crate) kept: OnceLock<Arc<Kept>>,
    /// A daemon before this one has died, and fsync owes what that one had noted.
    pub(crate) owes_sync: Mutex<bool>,
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
        crate::recovery::recover::clear(&pool);
        let roots = pool.branches.iter().map(|branch| (branch.ix, branch.root_ino, branch.root()));
        let root = Inode::root(roots);
        let id = pool.settings.privileged.then(|| PoolId::of(&pool.branches)).flatten();
        let index = Index::open(id, &pool.settings);
        pool.branches.iter().for_each(|branch| index.join(branch));
        index.admit(&pool.branches);
        let tree = Tree::new(root, pool.settings.dir_fds);
        tree.parallel_lookup.start_threads(&pool);
        let events = Arc::new(PoolEvents::new(&tree.inodes));
        pool.branches.iter().for_each(|branch| branch.reports_to(&events));
        Self {
            tree,
            files: Files::new(pool.settings.listing_entries, backings),
            moves: Moves::default(),
            admin: Admin::default(),
            jobs: JobList::default(),
            index,
            id,
            pool_metrics: PoolMetrics::default(),
            may_hang: AtomicBool::new(!pool.is_local()),
            transport: OnceLock::new(),
            noatime_scope: OnceLock::new(),
            events,
            kept: OnceLock::new(),
            owes_sync: Mutex::new(false),
            pool: ArcSwap::from_pointee(pool),
        }
    }

    /// The pool as it is now.
    pub fn pool(&self) -> Arc<Pool> {
        self.pool.load_full()
    }

    /// Whether some branch is served by others, and a call there may not return.
    pub fn may_hang(&self) -> bool {
        self.may_hang.load(Relaxed)
    }

    /// Whether NFS servers may export the pool (`nfs-export`).
    pub fn is_for_export(&self) -> bool {
        self.pool.load().settings.nfs_export
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
        self.index.health(&self.pool.load().branches)
    }

    /// Returns the sizes of the tables.
    pub fn held(&self) -> TableCounts {
        TableCounts {
            inodes: self.tree.inodes.len(),
            files: self.files.handles.len(),
            dirs: self.files.dirs.len(),
            dir_fds: self.tree.budget.open(),
            listing_entries: self.files.listing_memory.granted(),
        }
    }

    /// Up to `most` regular files that the kernel has looked up and, as far as is known, not forgotten.
    pub fn some_files(&self, most: usize) -> Vec<Ino> {
        self.tree.inodes.some_files(most)
    }

    /// The mount is gone: closes and forgets everything.
    pub fn destroy(&self) {
        self.jobs.end();
        self.moves.movers.end();
        self.end_all_copies();
        self.files.handles.clear();
        self.files.dirs.clear();
        self.tree.inodes.clear();
        self.index.close();
    }

    /// Like [`Self::destroy`], and waits for threads inside of a branch, for at most `timeout`; where all stuck ones are in
    /// branches that hang, not even that long. Then those branches' FUSE connections are aborted: a process does not end
    /// while one of its threads is in a call that does not return, or a file of its is to be closed.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn end(self: &Arc<Self>, timeout: Duration) -> std::io::Result<()> {
        const MONITOR_DELAY: Duration = Duration::from_millis(300);
        let pool = self.pool();
        let ending = self.clone();
        let closer = std::thread::Builder::new().name("closing".into());
        let closer = fsstack_branch::thread::start(closer, move || ending.destroy())?;
        let began = Instant::now();
        let mut aborted = false;
        loop {
            let stuck: Vec<_> = pool.branches.iter().filter(|branch| branch.is_stuck()).collect();
            if stuck.is_empty() && closer.is_finished() {
                return Ok(());
            }
            let hopeless = stuck.iter().all(|branch| !branch.is_open());
            // The monitor sees that a call has overstayed a moment later.
            if began.elapsed() > timeout + timeout / 4 + MONITOR_DELAY
                || hopeless && began.elapsed() > MONITOR_DELAY
            {
                if aborted {
                    return Ok(()); // nothing more can be done for them
                }
                // One that answers is busy: others may be using it, and it returns.
                let remote = pool.branches.iter().filter(|branch| branch.is_remote());
                for branch in remote.filter(|branch| !branch.is_open() || branch.is_silent()) {
                    if let Err(error) = branch.free_callers() {
                        tracing::warn!(%error, branch = %branch.path.display(), "FUSE connection of a branch cannot be aborted; the daemon waits for the branch before it ends");
                    }
                }
                aborted = true;
                std::thread::sleep(MONITOR_DELAY);
            }
            std::thread::sleep(Duration::from_millis(2));
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

    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        match self.tree.inodes.get(ino) {
            Some(inode) => Ok(inode),
            None => self.found_again(ino),
        }
    }

    /// The inode `ino`, which must be a directory.
    pub(crate) fn dir(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.inode(ino)?;
        if inode.is_dir() { Ok(inode) } else { Err(Errno::NOTDIR.into()) }
    }

    /// The live inode that `name` in `parent` was last known to mean.
    pub(crate) fn known(&self, parent: &Inode, name: &CStr) -> Option<Arc<Inode>> {
        let ino = self.tree.seen.get(parent.id.ino, name.to_bytes())?;
        self.tree.inodes.get(ino).filter(|inode| inode.has_name(parent, name))
    }

    /// Like [`Self::known`] of a file; asks the branches where the cache entry was evicted.
    pub(crate) fn known_or_found(&self, pool: &Pool, parent: &Arc<Inode>, name: &CStr) -> Option<Arc<Inode>> {
        self.known(parent, name).or_else(|| {
            let Found::File(at, stat) = self.find(pool, parent, name).ok()? else { return None };
            let id = self.identity(pool, pool.branch(at), &stat);
            self.tree.inodes.get(id.ino).filter(|inode| inode.id == id)
        })
    }

    /// The descriptor of `dir`'s copy on `branch`.
    ///
    /// # Errors
    /// ENOENT if there is no copy there, or not any more; what the branch answered.
    pub(crate) fn dirfd(&self, pool: &Pool, dir: &Arc<Inode>, branch: BranchIx) -> Result<Arc<DirFd>> {
        let on = pool.branch(branch);
        let mount_generation = on.mount_generation();
        // A descriptor from before the branch was mounted again leads to the mount that is gone.
        let known =
            |dir: &Inode| dir.cached_dirfd(branch).filter(|fd| fd.mount_generation == mount_generation);
        if let Some(fd) = known(dir) {
            return Ok(fd);
        }
        let walked = match self.walk(pool, dir, branch, &known) {
            // Not there, or a directory above was just renamed: that is known while all names stay.
            Err(error) if is_astray(error) && !TreeLock::is_held_here() => {
                let _tree_lock = self.tree.tree_lock.read(pool)?;
                self.walk(pool, dir, branch, &known)
            }
            walked => walked,
        };
        match walked {
            // Renamed out of band.
            Err(error) if is_astray(error) && pool.settings.nfs_export => {
                self.reconnected(pool, dir).map_or(Err(error), |()| self.walk(pool, dir, branch, &known))
            }
            walked => walked,
        }
    }

    fn walk(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        branch: BranchIx,
        known: &dyn Fn(&Inode) -> Option<Arc<DirFd>>,
    ) -> Result<Arc<DirFd>> {
        // Up to the first directory that is open, then down again: as deep as the tree may be, without
        // recursion, and each step one name below one descriptor.
        let mut below: Vec<(Arc<Inode>, InodeName)> = Vec::new();
        let mut at = dir.clone();
        let mut fd = loop {
            if at.is_root() {
                break pool.branch(branch).root();
            }
            if let Some(fd) = known(&at) {
                break fd;
            }
            let name = at.name().ok_or(OpError::MISSING)?;
            let parent = name.parent.clone();
            below.push((at, name));
            at = parent;
        };
        while let Some((inode, name)) = below.pop() {
            fd = self.open_copy(pool.branch(branch), &fd, &inode, &name)?;
        }
        Ok(fd)
    }

    fn open_copy(
        &self,
        branch: &Branch,
        parent: &DirFd,
        dir: &Arc<Inode>,
        name: &InodeName,
    ) -> Result<Arc<DirFd>> {
        let opened = branch.ask(|| sys::at::open_dir(parent.as_fd(), &name.name, branch.mounts));
        let opened = opened.inspect_err(|error| {
            if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) && TreeLock::is_held_here() {
                dir.drop_copy(branch.ix);
            }
        })?;
        let stat = branch.ask(|| sys::at::stat_fd(opened.as_fd()))?;
        if dir.copy_ino(branch.ix) != Some(stat.ino) {
            // Replaced out of band: another directory has this name now.
            if TreeLock::is_held_here() {
                dir.drop_copy(branch.ix);
            }
            return Err(OpError::MISSING);
        }
        let fd = Arc::new(self.tree.budget.count(parent.opened(opened)));
        if dir.keep_dirfd(branch, &fd) {
            self.tree.budget.opened(&self.tree.inodes, dir, branch.ix);
        }
        Ok(fd)
    }

    /// Asks `branch` for `name` in `dir`.
    pub(crate) fn stat_in(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        branch: BranchIx,
        name: &CStr,
    ) -> Result<Stat> {
        let fd = self.dirfd(pool, dir, branch)?;
        let branch = pool.branch(branch);
        let stat = branch.ask(|| branch.stat(fd.as_fd(), name))?;
        self.check_mount(branch, &stat)?;
        Ok(stat)
    }

    /// A mount inside a branch is not entered unless the branch asks for it.
    pub(crate) fn check_mount(&self, branch: &Branch, stat: &Stat) -> Result<()> {
        if branch.mounts == Mounts::Stay && stat.mnt_id != branch.mnt_id() {
            tracing::info!(branch = %branch.path.display(), "mount inside the branch not entered");
            return Err(branch.said(SysError { call: sys::Call::Stat, errno: Errno::ACCESS }));
        }
        Ok(())
    }
}

/// A name on the way to a directory led nowhere, or elsewhere.
pub(crate) fn is_astray(error: OpError) -> bool {
    matches!(error.errno(), Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE)
}
