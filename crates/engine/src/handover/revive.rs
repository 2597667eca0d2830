//! The pool as a daemon that died has left it.
//!
//! A handle's number leads to its file: by the branch where it has a name, else to the descriptor that is still open. A descriptor that is
//! open already is used where it is good for the handles: errors of earlier writes are reported by it. A file that still has its number
//! and generation by its open descriptor is not searched for, and several threads look, as every caller waits for the last file. What
//! has no handle is found when
//! the kernel asks for it. Lookups are not counted: the kernel forgets an inode at once, and what is forgotten too early is found again.

use std::collections::HashMap;
use std::os::fd::{AsFd, RawFd};
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_branch::mounted_fd::{GONE_MOUNT, MountedFd};
use fsstack_branch::ranked::Ranked;
use fsstack_identity::number::{self, Identity};
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicUsize, Ordering::Relaxed};
use fsstack_sys::at::Mounts;
use fsstack_sys::handover::Inherited;
use fsstack_sys::{self as sys, Errno, Kind, OFlags, Stat};

use crate::files::capability::has_capability;
use crate::files::route::Route;
use crate::files::write_back_errors::ReportTo;
use crate::files::{Access, OpenFile, OpenedObject, SET_ID, SharedFile, is_refused};
use crate::handles::by_number::{ByNumber, KnownDirs, ResolvedNumber};
use crate::inode::clock::Moment;
use crate::inode::{Copies, Inode};
use crate::kept::Kept;
use crate::kept::rows::{HandleRow, OwedInRows};
use crate::opened::choose::Facts;
use crate::opened::followed::Followed;
use crate::opened::listing::Listing;
use crate::opened::{DirHandle, FileHandle};
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::unsynced_dirs::lost;
use crate::union::Union;

/// Handles that a dead daemon has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revived {
    /// Open again.
    pub handles: usize,
    /// Lost, as their file is found no more: programs get EBADF.
    pub lost: usize,
}

/// Descriptors that are still open, by device and inode number.
type OpenFds = HashMap<(u64, u64), Vec<RawFd>>;

/// Most threads that look for files.
const MOST_THREADS: usize = 8;

/// Descriptors and directories that are known while open files are looked for.
struct Search<'a> {
    pool: &'a Pool,
    fds: OpenFds,
    inherited: Mutex<&'a mut Inherited>,
    dirs: KnownDirs,
}

/// A file, how it is reached, and its name if it has one.
struct Reached {
    at: BranchIx,
    fd: MountedFd,
    stat: Stat,
    id: Identity,
    name: Option<(Arc<Inode>, std::ffi::CString)>,
}

impl Union {
    /// Opens what the rows of [`Self::kept`] say again. Before the first request.
    pub fn revive(&self, inherited: &mut Inherited) -> Revived {
        let Some(kept) = self.kept().cloned() else { return Revived::default() };
        self.tree.inodes.is_of_a_later_daemon();
        let pool = self.tree.pool.load_full();
        // Which names the previous daemon had not synced is unknown.
        pool.branches.iter().for_each(|branch| branch.unsynced.note_all(branch.mount_generation()));
        let mut fds = OpenFds::new();
        for number in inherited.numbers() {
            if let Ok(stat) = sys::keeper::stat_of(number) {
                fds.entry((stat.dev, stat.ino)).or_default().push(number);
            }
        }
        let mut told = Revived::default();
        let mut files: HashMap<u64, Vec<HandleRow>> = HashMap::new();
        for row in kept.handles() {
            if row.is_dir {
                self.revive_dir(row, &pool);
                told.handles += 1;
            } else {
                files.entry(row.ino.0).or_default().push(row);
            }
        }
        let files: Vec<Vec<HandleRow>> = files.into_values().collect();
        let search =
            Search { pool: &pool, fds, inherited: Mutex::new(inherited), dirs: KnownDirs::default() };
        let files = self.revive_files(&kept, &files, &search);
        told.handles += files.handles;
        told.lost += files.lost;
        told
    }

    /// Opens files again, in this thread and in others as far as there are CPUs.
    fn revive_files(&self, kept: &Kept, files: &[Vec<HandleRow>], search: &Search<'_>) -> Revived {
        let (next, told) = (AtomicUsize::new(0), Mutex::new(Revived::default()));
        let work = || {
            let mut own = Revived::default();
            while let Some(rows) = files.get(next.fetch_add(1, Relaxed)) {
                match self.revive_file(rows, search) {
                    Ok(()) => own.handles += rows.len(),
                    Err(error) => {
                        let ino = rows.first().map(|row| row.ino);
                        tracing::debug!(?ino, ?error, "restart=keep: an open file is found no more");
                        rows.iter().for_each(|row| kept.drop_row(row.number));
                        own.lost += rows.len();
                    }
                }
            }
            let mut told = told.lock();
            told.handles += own.handles;
            told.lost += own.lost;
        };
        let more = sys::thread::allowed_cpus().len().min(MOST_THREADS).min(files.len()).saturating_sub(1);
        fsstack_sync::thread::scope(|scope| {
            for _ in 0..more {
                let thread = fsstack_sync::thread::Builder::new().name("open-again".into());
                // Without it this thread does all.
                if let Err(error) = thread.spawn_scoped(scope, work) {
                    tracing::debug!(%error, "restart=keep: open files are looked for by fewer threads");
                    break;
                }
            }
            work();
        });
        told.into_inner()
    }

    fn revive_file(&self, rows: &[HandleRow], search: &Search<'_>) -> Result<()> {
        let pool = search.pool;
        let reached = reach_by_any(&self.tree, rows, search)?;
        let branch = pool.branch(reached.at);
        let writes = rows.iter().any(|row| row.writer.is_some());
        let (fd, access) = self.tree.open_as(&reached, writes, search)?;
        let kind = reached.stat.kind();
        // It may have one where the branch does not answer.
        let has_one =
            || if branch.is_open() { branch.ask(|| Ok(has_capability(fd.as_fd()))) } else { Ok(true) };
        let capable = writes && kind == Kind::File && has_one()?;
        let file = OpenFile::new(branch.acquire()?, fd, access, &reached.stat, self.files.backings.clone());
        file.set_strips(capable || reached.stat.mode & SET_ID != 0);
        file.owes_everything();
        let inode = self
            .tree
            .inodes
            .known_from_before(reached.id, kind, || Inode::file(reached.id, kind, reached.at));
        inode.found_on(reached.at);
        if number::identity(branch, &reached.stat) != reached.id {
            // It has moved. Without a name it is not in the index, and its branch may use its number again.
            self.tree.index.note_number(reached.id.ino);
        }
        if let Some((parent, name)) = &reached.name {
            inode.note_name(parent, name, reached.stat.nlink, Moment::KNOWN);
        }
        let facts = Facts {
            inode: &inode,
            branch,
            write: writes,
            strips: file.strips(),
            append_only: file.is_append_only(),
        };
        file.take_opens(self.files.choose(pool, facts), rows.iter().map(|row| (row.route, row.writer)));
        let file = Arc::new(file);
        inode.set_open(&file, rows.len());
        let object = OpenedObject::of(&reached.stat);
        let since = match rows.iter().any(|row| row.owed) {
            true => file.write_back_errors.was_left(lost(reached.at)),
            false => (0, 0),
        };
        for row in rows {
            if let Some(kept) = self.kept() {
                // It may have been moved since it was opened.
                kept.note_object(row.number, object, reached.at.0);
                file.write_back_errors.note_in(|| OwedInRows::of(kept, row.ino));
            }
            self.revive_handle(row, if row.owed { since.0 } else { since.1 }, &inode, &file);
        }
        Ok(())
    }

    /// Notes what `file`, the open file of an inode that is about to lose a name, is on its branch: after a move it is not what it was
    /// opened as, and without a name nothing else leads there.
    pub(crate) fn note_moved(&self, file: &Arc<OpenFile>, held: &SharedFile<'_>) {
        let Some(kept) = self.kept() else { return };
        let Some(object) = held.object() else { return };
        for open in self.files.handles.iter().filter(|open| Arc::ptr_eq(&open.file, file)) {
            if let Some(row) = open.row {
                kept.note_object(row, object, held.branch.ix.0);
            }
        }
    }

    fn revive_handle(&self, row: &HandleRow, since: u64, inode: &Arc<Inode>, file: &Arc<OpenFile>) {
        if matches!(row.route, Route::Passthrough(_) | Route::DirectBeside(_)) {
            inode.opened_past();
        }
        if row.mappable {
            inode.opened_mappable();
        }
        if !matches!(row.route, Route::Passthrough(_)) {
            file.has_reader(row.noatime);
        }
        let open = FileHandle {
            inode: inode.clone(),
            file: file.clone(),
            route: row.route,
            writer: row.writer,
            sync: row.sync,
            write_back_errors: ReportTo { handle: row.handle, since },
            mappable: row.mappable,
            noatime: row.noatime,
            appends: row.appends,
            row: Some(row.number),
        };
        self.files.handles.insert(row.handle.0, open);
    }

    /// A directory that is found no more is one that was removed: nothing is in it. If that is not known, its listing is an error.
    fn revive_dir(&self, row: HandleRow, pool: &Pool) {
        let id = Identity { ino: row.ino, generation: row.generation };
        let inode = match self.tree.found_again(row.ino) {
            Ok(inode) if inode.id == id && inode.is_dir() => inode,
            found => {
                let mut copies = Copies::known([]);
                if found.is_err_and(|error| error.errno() != Errno::STALE) {
                    pool.branches.iter().for_each(|branch| copies.unsure_of(branch.ix));
                }
                Arc::new(Inode::dir(id, &copies))
            }
        };
        let noatime = self.noatime_scope().directories;
        let memory = &self.files.listing_memory;
        let listing = Ranked::new(Listing::going_on(noatime, memory));
        let losses = inode.losses().into();
        let open = DirHandle {
            inode,
            listing,
            followed: if row.moved { Followed::lost(memory) } else { Followed::going_on(memory) },
            losses,
            is_kept: false.into(),
            row: self.kept().map(|kept| kept.row_of_dir(row.number)),
        };
        self.files.dirs.insert(row.handle.0, Arc::new(open));
    }
}

impl Tree {
    /// The file of `row`: by a descriptor that is open if it has no name any more, which on some branches only a walk would tell; else by
    /// its number, and if that does not lead there now, by the descriptor all the same. The number leads to what is open if that has the
    /// number, unless the index knows another place for it.
    fn reach(&self, row: &HandleRow, search: &Search<'_>) -> Result<Reached> {
        let pool = search.pool;
        let open = match self.reach_open(row, search) {
            // The index has one that was moved: then this is what the move has left.
            Some(removed) if removed.stat.nlink == 0 && self.index.places(row.ino).is_empty() => {
                return Ok(removed);
            }
            Some(open)
                if self.index.places(row.ino).is_empty()
                    && self.identity(pool, pool.branch(open.at), &open.stat) == open.id =>
            {
                let Reached { at, fd, stat, id, name: _ } = open;
                let file = ByNumber { at, fd, stat, id };
                let name = self.name_among(pool, &file, &search.dirs);
                return Ok(Reached { at: file.at, fd: file.fd, stat: file.stat, id: file.id, name });
            }
            open => open,
        };
        let failed = match self.resolve_number(pool, row.ino) {
            Ok(ResolvedNumber::File(file)) if file.id.generation == row.generation => {
                let name = self.name_among(pool, &file, &search.dirs);
                return Ok(Reached { at: file.at, fd: file.fd, stat: file.stat, id: file.id, name });
            }
            Ok(_) => OpError::STALE,
            Err(error) => error,
        };
        open.ok_or(failed)
    }

    /// The file of `row` by a descriptor that is open. A branch that does not answer, and may do so in the same mount, is not asked.
    fn reach_open(&self, row: &HandleRow, search: &Search<'_>) -> Option<Reached> {
        let branch = search.pool.live(BranchIx(row.branch))?;
        search.fds.get(&row.object.at)?.iter().find_map(|number| {
            let fd = search.inherited.lock().copy(*number).ok()?;
            let mount = branch.mnt_id();
            let stat = match branch.is_open() {
                true => branch.ask(|| branch.stat_fd(fd.as_fd())).ok(),
                false => sys::at::stat_kept(fd.as_fd()).ok().filter(|stat| stat.mnt_id == mount),
            }?;
            let id = Identity { ino: row.ino, generation: row.generation };
            // Its branch may have been mounted again since it was opened.
            let has_gone = branch.mounts == Mounts::Stay && mount != 0 && stat.mnt_id != mount;
            let generation = if has_gone { GONE_MOUNT } else { branch.mount_generation() };
            (OpenedObject::of(&stat) == row.object).then(|| Reached {
                at: branch.ix,
                fd: MountedFd::handed_over(fd, generation, branch),
                stat,
                id,
                name: None,
            })
        })
    }

    /// A descriptor of `reached` that is good for its handles: one that is open already, if there is one.
    fn open_as(&self, reached: &Reached, writes: bool, search: &Search<'_>) -> Result<(MountedFd, Access)> {
        let branch = search.pool.branch(reached.at);
        let is_good = |flags: OFlags| {
            let unfit = OFlags::PATH | OFlags::WRONLY | OFlags::APPEND | OFlags::NOATIME;
            !flags.intersects(unfit) && (!writes || flags.contains(OFlags::RDWR))
        };
        let object = (reached.stat.dev, reached.stat.ino);
        let open = search.fds.get(&object).into_iter().flatten();
        let mut good = open.filter(|number| sys::keeper::flags_of(**number).is_ok_and(is_good));
        let access = if writes { Access::Write } else { Access::Read };
        if let Some(fd) = good.find_map(|number| search.inherited.lock().take(*number).ok()) {
            return Ok((reached.fd.opened(fd), access));
        }
        if !branch.is_open() {
            // Opened for more by the first request that needs it.
            return Ok((reached.fd.one_more().map_err(OpError::Sys)?, Access::Name));
        }
        // All callers wait meanwhile: no wait for another program's lease.
        let at_once = if branch.kind.is_local() { OFlags::NONBLOCK } else { OFlags::empty() };
        let open = |access: Access| {
            let opened = branch.ask(|| sys::at::reopen(reached.fd.as_fd(), access.flags() | at_once));
            opened.map(|fd| (reached.fd.opened(fd), access))
        };
        let opened = match open(access) {
            // Opened for more by the first request that needs it.
            Err(error) if error.errno() == Errno::AGAIN => {
                let fd = branch.ask(|| sys::at::reopen(reached.fd.as_fd(), Access::Name.flags()))?;
                return Ok((reached.fd.opened(fd), Access::Name));
            }
            Err(error) if writes && is_refused(error) => open(Access::Append),
            opened => opened,
        };
        match opened {
            // It may be changed no more: writers get the error, readers go on.
            Err(error) if writes && (is_refused(error) || error.errno() == Errno::ROFS) => open(Access::Read),
            opened => opened,
        }
    }

    /// The inode that the kernel calls `ino`, of which this daemon does not know.
    ///
    /// # Errors
    /// ESTALE if there is none; EIO if that cannot be known.
    pub(crate) fn found_again(&self, ino: Ino) -> Result<Arc<Inode>> {
        if ino == Ino::ROOT {
            return Ok(self.inodes.root().clone());
        }
        if !self.inodes.is_uncertain() {
            return Err(OpError::STALE);
        }
        let (pool, asked) = (self.pool.load(), Moment::now());
        match self.resolve_number(&pool, ino)? {
            ResolvedNumber::File(file) => {
                let (id, kind) = (file.id, file.stat.kind());
                let name = self.name_of(&pool, &file);
                let inode = self.inodes.known_from_before(id, kind, || Inode::file(id, kind, file.at));
                if let Some((parent, name)) = name {
                    inode.note_name(&parent, &name, file.stat.nlink, asked);
                }
                Ok(inode)
            }
            ResolvedNumber::Dir(dir) => {
                let make = || Inode::dir(dir.id, &dir.copies);
                let inode = self.inodes.known_from_before(dir.id, Kind::Dir, make);
                inode.update_copies(&dir.copies);
                inode.note_name(&dir.parent, &dir.name, 1, dir.copies.asked());
                self.keep_number(&pool, &inode, None);
                Ok(inode)
            }
        }
    }
}

/// The file of `rows`, as any of them tells it: handles are opened while it moves, too.
fn reach_by_any(tree: &Tree, rows: &[HandleRow], search: &Search<'_>) -> Result<Reached> {
    let mut failed = OpError::STALE;
    for row in rows {
        match tree.reach(row, search) {
            Ok(reached) => return Ok(reached),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl Kept {
    /// Whether a daemon before this one has left it.
    pub fn is_left(&self) -> bool {
        self.daemons() > 1
    }
}
