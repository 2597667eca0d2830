//! Out-of-band changes of the branches: noticed at once, and the kernel's cache is invalidated.
//!
//! The system reports every change on a branch's file system (fanotify), by directory and name, by any process. Changes by
//! this process are passed over. The rest is looked up among the inodes that the kernel knows; others cost a lookup.
//!
//! A change and a lookup may cross: the lookup saw the branch as it was, the change is reported, and only then the kernel
//! gets the lookup's answer, which it would keep. So each name is invalidated twice, the second time a while later. Dropped
//! events invalidate everything. Growth of a file that is kept open for writing is not reported (each write by passthrough
//! would be an event): it shows when the attributes expire.
//!
//! While nothing happens the thread sleeps until an event. While events come, it polls every few milliseconds instead:
//! processes that make changes then need not wake it.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_identity::index::open_path;
use fsstack_identity::number;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::fanotify::{Event, EventMask, Group, events};
use fsstack_sys::handle::{FileHandle, open_handle};
use fsstack_sys::{self as sys, OFlags, SysError};

use crate::inode::Inode;
use crate::member::Member;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::resolve::Found;
use crate::union::Union;

use crate::branch_watch::WatchedRoot;
pub use crate::branch_watch::{BranchWatch, Invalidator};

/// Pause between two polls for out-of-band changes while events come.
const EVENTS_READ_PAUSE: Duration = Duration::from_millis(5);
/// Empty polls before it sleeps until it is woken.
const QUIET_ROUNDS: u32 = 20;
/// Delay after which a changed name is invalidated a second time.
const INVALIDATE_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Inode numbers that were found in one round of reading; None: the kernel does not know the object.
type KnownHandles = HashMap<(BranchIx, FileHandle), Option<Ino>>;

impl BranchWatch {
    /// Reads events and invalidates what they change, for as long as the process lives.
    ///
    /// # Errors
    /// Events cannot be read any more.
    pub fn serve(&self, union: &Union) -> Result<(), SysError> {
        sys::identity::keep_capabilities()?;
        let mut buffer = vec![0; 64 << 10];
        let mut again: Vec<(Instant, Ino, CString)> = Vec::new();
        loop {
            self.group.wait()?;
            let mut quiet = 0;
            while quiet < QUIET_ROUNDS || !again.is_empty() {
                quiet += 1;
                loop {
                    let len = self.group.read(&mut buffer)?;
                    if len == 0 {
                        break;
                    }
                    quiet = 0;
                    // For these events only: what becomes known after they are read was looked up after the changes.
                    let mut known = KnownHandles::new();
                    let roots = self.roots.lock().clone();
                    for event in events(&buffer[..len]) {
                        self.pass_on(union, &roots, &event, &mut known, &mut again);
                    }
                }
                fsstack_sync::thread::sleep(EVENTS_READ_PAUSE);
                let now = Instant::now();
                let due = again.iter().take_while(|(due, ..)| *due <= now).count();
                for (_, parent, name) in again.drain(..due) {
                    union.tree.invalidate_name(parent, &name);
                    self.invalidator.name(parent, &name);
                }
            }
        }
    }

    fn pass_on(
        &self,
        union: &Union,
        roots: &[Arc<WatchedRoot>],
        event: &Event<'_>,
        known: &mut KnownHandles,
        again: &mut Vec<(Instant, Ino, CString)>,
    ) {
        if event.mask.has(EventMask::OVERFLOW) {
            tracing::info!("out-of-band=watch: notices lost; all cached names and attributes are dropped");
            union.tree.pool.load().branches.iter().for_each(|branch| branch.uncatalogued.note_all());
            return union.invalidate_all();
        }
        if event.pid == std::process::id() {
            return;
        }
        let pool = union.tree.pool.load();
        // Several branches may be on one file system.
        for root in roots.iter().filter(|root| root.fsid == event.fsid) {
            let mut find = |handle: &FileHandle| {
                let key = (root.at, handle.clone());
                *known.entry(key).or_insert_with(|| union.tree.number_of(&pool, root, handle))
            };
            if let (Some(branch), Some(dir)) = (catalogued(&pool, root), &event.dir) {
                let parent = event.name.and_then(|_| find(dir));
                catalogue(&union.tree, branch, root, (dir, event.name), parent);
            }
            if event.mask.has(EventMask::NAMES)
                && let (Some(dir), Some(name)) = (&event.dir, event.name)
                && let Some(parent) = find(dir)
            {
                let dir = union.tree.invalidate_name(parent, name);
                let dir = dir.filter(|_| event.mask.has(EventMask::OF_DIRECTORY));
                // Its number may be that of the copy that changed.
                let is_known_dir =
                    dir.inspect(|dir| union.tree.keep_number(&pool, dir, Some(root.at))).is_some();
                self.invalidator.name(parent, name);
                if is_known_dir && event.mask.has(EventMask::CAME) {
                    // Names below it may mean other objects now, and missing names may exist.
                    self.invalidator.all_names();
                }
                again.push((Instant::now() + INVALIDATE_AGAIN_AFTER, parent, name.to_owned()));
            }
            if event.mask.has(EventMask::ATTRIBUTES) || event.mask.has(EventMask::WRITTEN) {
                let object = event.object.as_ref().or(event.dir.as_ref().filter(|_| event.name.is_none()));
                match object.and_then(&mut find) {
                    Some(ino) if event.mask.has(EventMask::WRITTEN) => self.invalidator.data(ino),
                    Some(ino) => self.invalidator.attributes(ino),
                    None => {}
                }
            }
        }
    }
}

/// The branch of `root`, if its names are kept in the catalogue.
fn catalogued<'p>(pool: &'p Pool, root: &WatchedRoot) -> Option<&'p Arc<Member>> {
    pool.live(root.at).filter(|branch| branch.uncatalogued.is_on())
}

/// Has the catalogue look at `name` in the directory `dir` of `branch`, or at that directory itself; `known` is the directory's number
/// if the kernel knows it.
fn catalogue(
    tree: &Tree,
    branch: &Member,
    root: &WatchedRoot,
    (dir, name): (&FileHandle, Option<&CStr>),
    known: Option<Ino>,
) {
    let open = || open_handle(root.fd.as_fd(), dir, OFlags::PATH | OFlags::NOFOLLOW).ok();
    let above = |dir: OwnedFd| {
        let path = sys::at::path_below(root.fd.as_fd(), dir.as_fd()).ok()??;
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or_default();
        open_path(branch, path.get(..end)?).ok()
    };
    // One that is gone, or not of this branch, is a change of the directory above, or none.
    let Some((dir, stat)) = open().and_then(|dir| branch.stat_fd(dir.as_fd()).ok().map(|stat| (dir, stat)))
    else {
        return;
    };
    // A copy that the pool has not seen yet is not reached by the inode.
    let is_its_copy = |known: &Arc<Inode>| known.copy_ino(root.at) == Some(stat.ino);
    let known = known.and_then(|known| tree.inodes.get(known)).filter(is_its_copy);
    let listed = match (known, name) {
        (Some(known), _) => return branch.uncatalogued.note(known.id.ino.0, || known.clone(), name),
        (None, Some(_)) => Some(stat),
        // The directory itself is a name in the one above.
        (None, None) => above(dir).and_then(|above| branch.stat_fd(above.as_fd()).ok()),
    };
    if let Some(stat) = listed {
        branch.uncatalogued.note_number(number::number(branch, stat.dev, stat.ino).0);
    }
}

impl Union {
    /// Sets the receiver of invalidations.
    pub fn set_invalidator(&self, invalidator: Arc<dyn Invalidator>) {
        self.invalidator.get_or_init(|| invalidator);
    }

    /// Watches all branches. A thread must run [`BranchWatch::serve`] of the result.
    ///
    /// # Errors
    /// fanotify is not available, or not to this process.
    pub fn watch(&self, invalidator: Arc<dyn Invalidator>) -> Result<Arc<BranchWatch>, SysError> {
        let group = Group::new()?;
        self.set_invalidator(invalidator.clone());
        let watch = Arc::new(BranchWatch::new(group, invalidator, self.tree.is_watched.clone()));
        let pool = self.tree.pool.load();
        // One that is away is watched from its return on; nothing of it is cached until then.
        let unwatched = pool.branches.iter().filter(|branch| branch.is_open() && !watch.add(branch)).count();
        // Before it is known to those who add branches: one that cannot be watched takes it back.
        self.tree.is_watched.store(unwatched == 0, Relaxed);
        Ok(self.branch_watch.get_or_init(|| watch).clone())
    }

    /// True if every change on every branch is noticed at once, so that the kernel may cache answers for long.
    pub fn is_watched(&self) -> bool {
        self.tree.is_watched()
    }

    /// Follows branches that joined or left: changes the watch, and invalidates everything.
    pub(crate) fn branches_changed(&self, joined: Option<&Branch>, left: Option<&Member>) {
        if let Some(watch) = self.branch_watch.get() {
            if let Some(branch) = joined {
                watch.add(branch);
            }
            if let Some(branch) = left {
                watch.leave(branch.ix);
            }
        }
        if let Some(branch) = joined {
            self.catalogue_joined(branch.ix);
        }
        if let Some(branch) = left {
            // The thread that keeps its names ends.
            branch.uncatalogued.stop();
        }
        self.tree.parallel_lookup.start_threads(&self.tree.pool.load());
        self.invalidate_all();
    }

    /// Invalidates everything: locations, names, attributes and data are asked for again at their next use.
    pub fn invalidate_all(&self) {
        invalidate(self, NameNotices::AllOrEach, |_| true);
    }

    /// Invalidates all but the cached data of files. The kernel writes dirty data before it drops it, and no signal ends its wait: a
    /// daemon that is killed in it would wait for an answer that only the next one gives, which starts once it has ended. So does a notice
    /// of one name, for the lock of its directory.
    pub fn invalidate_names(&self) {
        invalidate(self, NameNotices::All, Inode::is_dir);
    }

    /// Forgets the locations of names after `branch` was mounted again, and which directories had no copy there.
    pub(crate) fn has_returned(&self, branch: &Branch) {
        self.tree.forget_hints();
        for inode in self.tree.inodes.all() {
            inode.invalidate();
            inode.invalidate_copy_on(branch.ix);
        }
        self.catalogue_anew(branch.ix);
        if let Some(watch) = self.branch_watch.get() {
            watch.returned(branch);
        }
    }
}

/// Notices that names are to be asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameNotices {
    /// One for all names, or none: they are asked for after their timeout.
    All,
    /// One for all names, or one for each that is known; missing ones are asked for after their timeout then.
    AllOrEach,
}

/// Invalidates locations, names and attributes, and the cached data of what `drops_data` chooses.
fn invalidate(union: &Union, names: NameNotices, drops_data: impl Fn(&Inode) -> bool) {
    union.tree.forget_hints();
    let Some(invalidator) = union.invalidator.get() else { return };
    let expired = invalidator.all_names() || names == NameNotices::All;
    for inode in union.tree.inodes.all() {
        inode.invalidate();
        for name in inode.names().iter().filter(|_| !expired) {
            invalidator.name(name.parent.id.ino, &name.name);
        }
        if drops_data(&inode) {
            invalidator.data(inode.id.ino);
        } else {
            invalidator.attributes(inode.id.ino);
        }
    }
}

impl Tree {
    /// Removes `name` in `parent` from the location cache, if it is a file's. Returns the directory that the kernel knows by it, whose
    /// copies will be asked for: the cache leads to it, for the next notice too.
    fn invalidate_name(&self, parent: Ino, name: &CStr) -> Option<Arc<Inode>> {
        let parent = self.inodes.get(parent)?;
        let dir = self.known(&parent, name).filter(|child| child.is_dir());
        parent.invalidate();
        if dir.is_none() {
            self.seen.forget(parent.id.ino, name.to_bytes());
        }
        dir.inspect(|dir| dir.invalidate())
    }

    /// Inode number of the object that `handle` names on a branch; None if the kernel does not know the object.
    fn number_of(&self, pool: &Pool, root: &WatchedRoot, handle: &FileHandle) -> Option<Ino> {
        let branch = pool.live(root.at)?;
        let fd = open_handle(root.fd.as_fd(), handle, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let stat = branch.stat_fd(fd.as_fd()).ok()?;
        if !stat.is_dir() {
            let ino = self.identity(pool, branch, &stat).ino;
            return self.inodes.get(ino).map(|inode| inode.id.ino);
        }
        if stat.ino == branch.root_ino && stat.dev == branch.dev() {
            return Some(Ino::ROOT);
        }
        let own = self.inodes.get(number::number(branch, stat.dev, stat.ino));
        let own = own.filter(|dir| dir.is_dir() && dir.copy_ino(root.at) == Some(stat.ino));
        own.or_else(|| {
            // A later copy of a directory, which has the first copy's number.
            let path = sys::at::path_below(root.fd.as_fd(), fd.as_fd()).ok()??;
            self.known_dir(pool, &path)
        })
        .map(|dir| dir.id.ino)
    }

    /// The directory at `path`, if the kernel knows it.
    fn known_dir(&self, pool: &Pool, path: &[u8]) -> Option<Arc<Inode>> {
        let mut at = self.inodes.root().clone();
        for raw in path.split(|byte| *byte == b'/').filter(|raw| !raw.is_empty()) {
            let name = CString::new(raw).ok()?;
            let known = self.known(&at, &name).filter(|inode| inode.is_dir());
            let next = known.or_else(|| {
                let Found::Dir(stats, _) = self.find(pool, &at, &name).ok()? else { return None };
                self.inodes.get(self.dir_identity(pool, &at, &name, &stats).ok()?.ino)
            });
            at = next?;
        }
        Some(at)
    }
}
