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
//! While nothing happens the thread sleeps for good. While much does, it comes by every few milliseconds and takes all
//! there is: a sleeping reader costs nobody a wake-up.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fsstack_branch::branch::Branch;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::fanotify::{Event, EventMask, Group, events};
use fsstack_sys::handle::{FileHandle, open_handle};
use fsstack_sys::{self as sys, OFlags, SysError};
use parking_lot::Mutex;

use crate::inode::Inode;
use crate::inode::number;
use crate::pool::Pool;
use crate::resolve::Found;
use crate::union::Union;

/// Between two looks, while there is something to see.
const READ_PAUSE: Duration = Duration::from_millis(5);
/// Empty polls before it sleeps until it is woken.
const QUIET_ROUNDS: u32 = 20;
/// After which a name is doubted again.
const INVALIDATE_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Receiver of invalidations: the kernel, which caches answers.
pub trait Invalidator: Send + Sync + Debug {
    /// `name` in `parent` is to be asked for again at its next use.
    fn name(&self, parent: Ino, name: &CStr);
    /// Every name is, and what was believed to be missing. False: the kernel has no such notice.
    fn all_names(&self) -> bool;
    /// The attributes of `ino` are.
    fn attributes(&self, ino: Ino);
    /// The attributes of `ino` are, and what is kept of its data is not to be read.
    fn data(&self, ino: Ino);
}

/// The branches that are watched.
#[derive(Debug)]
pub struct BranchWatch {
    group: Group,
    invalidator: Arc<dyn Invalidator>,
    /// Never held while the kernel is notified: it may wait for a request that waits for a change of this.
    roots: Mutex<Vec<Arc<WatchedRoot>>>,
    /// All branches are.
    complete: AtomicBool,
}

#[derive(Debug)]
struct WatchedRoot {
    at: BranchIx,
    fsid: u64,
    /// Readable: handles are opened by it.
    fd: OwnedFd,
}

/// Findings of one round of reading.
type KnownHandles = HashMap<(BranchIx, FileHandle), Option<Ino>>;

impl BranchWatch {
    /// Watches `branch` too. A branch that cannot be watched is logged, and the watch is not complete any more.
    pub(crate) fn add(&self, branch: &Branch) {
        let path = branch.path.display();
        if !branch.kind.is_local() {
            tracing::info!(branch = %path, "out-of-band=watch: a remote branch sends no notices; its changes are seen after the timeouts only");
            return self.complete.store(false, Relaxed);
        }
        match self.try_add(branch) {
            Ok(()) => {}
            Err(error) => {
                tracing::info!(branch = %path, %error, "out-of-band=watch: no notices from this branch; its changes are seen after the timeouts only");
                self.complete.store(false, Relaxed);
            }
        }
    }

    fn try_add(&self, branch: &Branch) -> Result<(), SysError> {
        let fd = sys::at::reopen(branch.root().as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let fsid = sys::file::statfs(fd.as_fd())?.fsid;
        self.group.watch(fd.as_fd())?;
        let mut roots = self.roots.lock();
        roots.retain(|root| root.at != branch.ix);
        roots.push(Arc::new(WatchedRoot { at: branch.ix, fsid, fd }));
        Ok(())
    }

    /// Nobody passes on what happens any more.
    pub fn give_up(&self) {
        self.complete.store(false, Relaxed);
        self.invalidator.all_names();
    }

    pub(crate) fn leave(&self, at: BranchIx) {
        self.roots.lock().retain(|root| root.at != at);
    }

    /// The branch was mounted again: what happened on it meanwhile is not known.
    pub(crate) fn returned(&self, branch: &Branch) {
        self.add(branch);
        self.invalidator.all_names();
    }

    /// Passes on what happens, for as long as the process lives.
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
                let mut known = KnownHandles::new();
                loop {
                    let len = self.group.read(&mut buffer)?;
                    if len == 0 {
                        break;
                    }
                    quiet = 0;
                    let roots = self.roots.lock().clone();
                    for event in events(&buffer[..len]) {
                        self.pass_on(union, &roots, &event, &mut known, &mut again);
                    }
                }
                std::thread::sleep(READ_PAUSE);
                let now = Instant::now();
                let due = again.iter().take_while(|(due, ..)| *due <= now).count();
                for (_, parent, name) in again.drain(..due) {
                    union.invalidate_name(parent, &name);
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
            return union.invalidate_all();
        }
        if event.pid == std::process::id() {
            return;
        }
        let pool = union.pool.load();
        // Several branches may be on one file system.
        for root in roots.iter().filter(|root| root.fsid == event.fsid) {
            let mut find = |handle: &FileHandle| {
                let key = (root.at, handle.clone());
                *known.entry(key).or_insert_with(|| union.number_of(&pool, root, handle))
            };
            if event.mask.has(EventMask::NAMES)
                && let (Some(dir), Some(name)) = (&event.dir, event.name)
                && let Some(parent) = find(dir)
            {
                let is_known_dir =
                    union.invalidate_name(parent, name) && event.mask.has(EventMask::OF_DIRECTORY);
                self.invalidator.name(parent, name);
                if is_known_dir && event.mask.has(EventMask::CAME) {
                    // What is below may mean something else too, and what was missing may be there.
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

impl Union {
    /// Sets the receiver of invalidations.
    pub fn set_invalidator(&self, invalidator: Arc<dyn Invalidator>) {
        self.invalidator.get_or_init(|| invalidator);
    }

    /// Watches all branches; `serve` of what is answered passes on what happens.
    ///
    /// # Errors
    /// The kernel does not tell, or not this process.
    pub fn watch(&self, invalidator: Arc<dyn Invalidator>) -> Result<Arc<BranchWatch>, SysError> {
        let group = Group::new()?;
        self.set_invalidator(invalidator.clone());
        let watch = Arc::new(BranchWatch {
            group,
            invalidator,
            roots: Mutex::default(),
            complete: AtomicBool::new(true),
        });
        for branch in &self.pool.load().branches {
            watch.add(branch);
        }
        Ok(self.watch.get_or_init(|| watch).clone())
    }

    /// Every change on every branch is noticed at once: the kernel may cache answers for long.
    pub fn is_watched(&self) -> bool {
        self.watch.get().is_some_and(|watch| watch.complete.load(Relaxed))
    }

    /// A branch joined the pool, or left it.
    pub(crate) fn branches_changed(&self, joined: Option<&Branch>, left: Option<BranchIx>) {
        if let Some(watch) = self.watch.get() {
            if let Some(branch) = joined {
                watch.add(branch);
            }
            if let Some(at) = left {
                watch.leave(at);
            }
        }
        self.parallel_lookup.start_threads(&self.pool.load());
        self.invalidate_all();
    }

    /// Nothing is believed any more: all is asked for again at its next use.
    pub fn invalidate_all(&self) {
        self.forget_hints();
        let Some(invalidator) = self.invalidator.get() else { return };
        let expired = invalidator.all_names();
        for inode in self.inodes.all() {
            inode.invalidate();
            for name in inode.names().iter().filter(|_| !expired) {
                invalidator.name(name.parent.id.ino, &name.name);
            }
            invalidator.data(inode.id.ino);
        }
    }

    /// The branch was mounted again: where names are is asked for again, and whether it has copies of directories that had
    /// none there.
    pub(crate) fn has_returned(&self, branch: &Branch) {
        self.forget_hints();
        for inode in self.inodes.all() {
            inode.invalidate();
            inode.invalidate_copy_on(branch.ix);
        }
        if let Some(watch) = self.watch.get() {
            watch.returned(branch);
        }
    }

    /// The hint of `name` in `parent` goes. Whether the kernel knows a directory by it.
    fn invalidate_name(&self, parent: Ino, name: &CStr) -> bool {
        let Some(parent) = self.inodes.get(parent) else { return false };
        let child = self.known(&parent, name);
        parent.invalidate();
        self.seen.forget(parent.id.ino, name.to_bytes());
        let dir = child.filter(|child| child.is_dir());
        dir.inspect(|dir| dir.invalidate()).is_some()
    }

    /// The number by which the kernel knows what `handle` names on a branch; None if it does not know it.
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
            // A copy of a directory that has another copy's number.
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
