//! A pool from the state that another program has handed over.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_pool::{BranchId, BranchIx, BranchMode, BranchSpec};
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sys::handover::Inherited;
use smallvec::SmallVec;

use super::branches::open_within;
use super::{BranchRow, PoolState};
use crate::files::OpenFile;
use crate::files::handed::Unusable;
use crate::inode::{Inode, InodeName};
use crate::opened::{DirHandle, FileHandle};
use crate::pool::Pool;
use crate::settings::Settings;
use crate::tree::Tree;
use crate::union::Union;

fn take(inherited: &mut Inherited, fd: i32) -> Result<OwnedFd, Unusable> {
    inherited.take(fd).map_err(|error| format!("descriptor {fd}: {error}"))
}

/// Treatment of a branch that is away or does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// The pool is not opened.
    Fails,
    /// It is down.
    IsDown,
}

impl PoolState {
    /// The branches as a SOURCE would name them, in order.
    ///
    /// # Errors
    /// The state is damaged: one line.
    pub fn specs(&self) -> Result<Vec<BranchSpec>, String> {
        self.branches.iter().map(BranchRow::spec).collect()
    }

    /// Opens the pool with the roots of its branches. A branch that is away or does not answer is tried again for `retry`.
    ///
    /// # Errors
    /// The state is damaged, or a branch is away or does not answer and `unreachable` says so: one line.
    pub fn open(
        &self,
        settings: Settings,
        inherited: &Inherited,
        unreachable: Unreachable,
        retry: Duration,
    ) -> Result<Pool, String> {
        let left =
            self.branches.iter().map(|row| row.left(&settings)).collect::<Result<Vec<_>, Unusable>>()?;
        let roots =
            self.branches.iter().map(|row| inherited.copy(row.root).ok().map(Arc::new)).collect::<Vec<_>>();
        let opened = open_within(retry, settings.branch_timeout, left.iter().zip(&roots));
        if unreachable == Unreachable::Fails
            && let Some((branch, why)) =
                left.iter().zip(&opened).find_map(|(branch, opened)| Some((branch, opened.as_ref().err()?)))
        {
            return Err(branch.fails(why));
        }
        let branches = opened.into_iter().zip(left.iter().zip(roots));
        let branches =
            branches.map(|(opened, (branch, root))| opened.or_else(|why| branch.down(why, root.as_deref())));
        let branches = branches.collect::<Result<_, String>>()?;
        let line: Option<Vec<BranchId>> = self.line.iter().map(|id| BranchId::new(*id)).collect();
        Pool::adopt(branches, line.unwrap_or_default(), settings).map_err(|error| error.to_string())
    }
}

impl Union {
    /// Takes over `state`, of which this union's pool was opened. Before the first request.
    ///
    /// # Errors
    /// The state is damaged: one line. Nothing may be served then.
    pub fn take_over(&self, state: &PoolState, inherited: &mut Inherited) -> Result<(), String> {
        let pool = self.tree.pool.load_full();
        self.changes.lock().leave_vacant(pool.vacant());
        for (row, branch) in state.branches.iter().zip(&pool.branches) {
            branch.unsynced.take_row(&row.unsynced);
        }
        self.jobs.list.take_row(&state.jobs);
        // A branch that takes nothing new may have a drain mark, which the next change of its mode removes.
        let drained = pool.branches.iter().filter(|branch| branch.given_mode() == BranchMode::NoCreate);
        drained.for_each(|branch| self.jobs.list.note_drain_mark(branch.ix));
        let inodes = self.tree.take_inodes(state, inherited)?;
        let files = self.take_files(state, &pool, inherited)?;
        self.take_handles(state, &inodes, &files)?;
        // Never one that was given before, by a daemon that noted it elsewhere (`kept`).
        self.files.next_handle.fetch_max(state.next_handle, Relaxed);
        Ok(())
    }

    fn take_files(
        &self,
        state: &PoolState,
        pool: &Pool,
        inherited: &mut Inherited,
    ) -> Result<Vec<Arc<OpenFile>>, Unusable> {
        let mut files = Vec::with_capacity(state.files.len());
        for row in &state.files {
            let branch = pool.live(BranchIx(row.branch)).ok_or("an open file is on no branch")?;
            let branch = branch.acquire().map_err(|error| error.to_string())?;
            let world = (&pool.settings, self.files.backings.clone());
            let file = OpenFile::of_row(row, branch, world, &mut |fd| take(inherited, fd))?;
            files.push(Arc::new(file));
        }
        Ok(files)
    }

    fn take_handles(
        &self,
        state: &PoolState,
        inodes: &[Arc<Inode>],
        files: &[Arc<OpenFile>],
    ) -> Result<(), Unusable> {
        let inode = |at: usize| inodes.get(at).cloned().ok_or("a handle is of no inode");
        let mut used: HashMap<usize, usize> = HashMap::new();
        for row in &state.handles {
            let file = files.get(row.file).cloned().ok_or("a handle is of no open file")?;
            *used.entry(row.file).or_default() += 1;
            self.files.handles.insert(row.handle, FileHandle::of_row(row, inode(row.inode)?, file));
        }
        for (place, (row, file)) in state.files.iter().zip(files).enumerate() {
            let Some((of, handles)) = row.of else { continue };
            if used.get(&place) != Some(&handles) {
                return Err("an open file has another number of handles than it says".to_owned());
            }
            let inode = inode(of)?;
            inode.set_open(file, handles);
            // It may have moved away and back.
            self.tree.index.note_number(inode.id.ino);
        }
        for row in &state.dirs {
            let dir = inode(row.inode)?;
            let open = DirHandle::of_row(row, dir, &self.files.listing_memory)?;
            self.files.dirs.insert(row.handle, Arc::new(open));
        }
        Ok(())
    }
}

impl Tree {
    fn take_inodes(&self, state: &PoolState, inherited: &mut Inherited) -> Result<Vec<Arc<Inode>>, Unusable> {
        let mut inodes: Vec<Arc<Inode>> = Vec::with_capacity(state.inodes.len());
        for row in &state.inodes {
            let inode = match inodes.is_empty() {
                true => self.inodes.root().clone(),
                false => Arc::new(Inode::of_row(row)?),
            };
            if inode.id.ino.0 != row.ino {
                return Err("the list of inodes does not begin with the root".to_owned());
            }
            inode.take_row(row);
            inodes.push(inode);
        }
        for (row, inode) in state.inodes.iter().zip(&inodes).skip(1) {
            let mut names: SmallVec<[InodeName; 1]> = SmallVec::new();
            for (parent, name) in &row.names {
                let parent = inodes.get(*parent).filter(|parent| parent.is_dir());
                let (parent, name) = parent.zip(name.name()).ok_or("a name is damaged")?;
                names.push(InodeName::new(parent, &name));
            }
            inode.set_names(names);
            if let Some(unlinked) = row.unlinked {
                let fd = MountedFd::root(take(inherited, unlinked.fd)?, unlinked.mount_generation());
                inode.set_unlinked(Arc::<DirFd>::new(self.unlinked_inodes.count(fd)));
                // It may have moved away and back.
                self.index.note_number(inode.id.ino);
            }
            if let Some(lookups) = row.lookups {
                self.inodes.take_in(inode, lookups)?;
            }
        }
        for (_, inode) in state.inodes.iter().zip(&inodes).skip(1).filter(|(row, _)| row.lookups.is_none()) {
            self.inodes.take_in_aside(inode);
        }
        let pool = self.pool.load();
        for inode in &inodes {
            if inode.is_dir() {
                self.keep_number(&pool, inode, None);
            } else if inode.branch() != pool.branch_of(inode.id.ino) {
                // It has moved, and is not in the index if it has lost its name: its branch may use its number again.
                self.index.note_number(inode.id.ino);
            }
        }
        Ok(inodes)
    }
}
