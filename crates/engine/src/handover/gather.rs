//! The state of a pool at rest.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fsstack_branch::Branch;
use fsstack_branch::known_root::KnownRoot;
use fsstack_pool::BranchIx;
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sys::at::Mounts;

use super::{BranchRow, Gathered, KnownRootRow, PoolState};
use crate::files::OpenFile;
use crate::files::handed::OpenFileRow;
use crate::files::handed::{FdRow, NameRow};
use crate::inode::Inode;
use crate::inode::handed::InodeRow;
use crate::opened::handed::{DirHandleRow, FileHandleRow};
use crate::pool::Pool;
use crate::union::Union;

/// Numbers of descriptors, each named once: the next program owns each by one object.
#[derive(Default)]
struct Descriptors {
    named: HashSet<i32>,
    made: Vec<OwnedFd>,
}

impl Descriptors {
    fn note(&mut self, fd: BorrowedFd<'_>) -> io::Result<i32> {
        let number = fd.as_raw_fd();
        if self.named.insert(number) {
            return Ok(number);
        }
        let copy = fd.try_clone_to_owned()?;
        let number = copy.as_raw_fd();
        self.named.insert(number);
        self.made.push(copy);
        Ok(number)
    }
}

/// Inodes and their places in the list.
#[derive(Default)]
struct InodeList {
    list: Vec<(Arc<Inode>, Option<u64>)>,
    places: HashMap<*const Inode, usize>,
}

impl InodeList {
    fn add(&mut self, inode: Arc<Inode>, lookups: Option<u64>) {
        if let std::collections::hash_map::Entry::Vacant(free) = self.places.entry(Arc::as_ptr(&inode)) {
            free.insert(self.list.len());
            self.list.push((inode, lookups));
        }
    }

    fn place(&self, inode: &Arc<Inode>) -> Option<usize> {
        self.places.get(&Arc::as_ptr(inode)).copied()
    }
}

impl Union {
    /// The state, for another program. The pool must be at rest, or the state is only good to be looked at.
    ///
    /// # Errors
    /// A file is in use, or no descriptor is left.
    pub fn gather(&self) -> io::Result<Gathered> {
        let pool = self.tree.pool.load_full();
        let mut descriptors = Descriptors::default();
        let branches = branch_rows(&pool, &mut descriptors)?;
        let inodes = self.inode_list();
        let rows = inode_rows(&pool, &inodes, &mut descriptors)?;
        let (files, handles) = self.file_rows(&inodes, &mut descriptors)?;
        let state = PoolState {
            branches,
            line: pool.line().iter().map(|id| id.get()).collect(),
            next_handle: self.files.next_handle.load(Relaxed),
            inodes: rows,
            files,
            handles,
            dirs: self.dir_rows(&inodes)?,
            jobs: self.jobs.list.row(),
        };
        Ok(Gathered { state, descriptors: descriptors.named.into_iter().collect(), made: descriptors.made })
    }

    /// The state without what requests have made: for a look whether another program understands it.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn outline(&self) -> io::Result<PoolState> {
        let pool = self.tree.pool.load_full();
        Ok(PoolState {
            branches: branch_rows(&pool, &mut Descriptors::default())?,
            line: pool.line().iter().map(|id| id.get()).collect(),
            next_handle: self.files.next_handle.load(Relaxed),
            inodes: Vec::new(),
            files: Vec::new(),
            handles: Vec::new(),
            dirs: Vec::new(),
            jobs: self.jobs.list.row(),
        })
    }

    /// All inodes: those that the kernel knows, those of handles, and the directories above them.
    fn inode_list(&self) -> InodeList {
        let mut inodes = InodeList::default();
        for (inode, lookups) in self.tree.inodes.all_with_lookups() {
            inodes.add(inode, lookups);
        }
        let files = self.files.handles.iter().map(|open| open.inode.clone());
        let dirs = self.files.dirs.iter().map(|open| open.inode.clone());
        let of_handles: Vec<Arc<Inode>> = files.chain(dirs).collect();
        of_handles.into_iter().for_each(|inode| inodes.add(inode, None));
        let mut at = 0;
        while let Some((inode, _)) = inodes.list.get(at) {
            for name in inode.names() {
                inodes.add(name.parent, None);
            }
            at += 1;
        }
        inodes
    }

    fn file_rows(
        &self,
        inodes: &InodeList,
        descriptors: &mut Descriptors,
    ) -> io::Result<(Vec<OpenFileRow>, Vec<FileHandleRow>)> {
        let mut of: HashMap<*const OpenFile, (usize, usize)> = HashMap::new();
        for (place, (inode, _)) in inodes.list.iter().enumerate() {
            if let Some((file, handles)) = inode.open_count() {
                of.insert(Arc::as_ptr(&file), (place, handles));
            }
        }
        let mut known: HashMap<*const OpenFile, usize> = HashMap::new();
        let (mut files, mut handles) = (Vec::new(), Vec::with_capacity(self.files.handles.len()));
        let open: Vec<_> =
            self.files.handles.iter().map(|open| (*open.key(), open.value().clone())).collect();
        for (handle, open) in open {
            let at = Arc::as_ptr(&open.file);
            let file = match known.get(&at) {
                Some(file) => *file,
                None => {
                    let row = open.file.row(of.get(&at).copied(), &mut |fd| descriptors.note(fd))?;
                    files.push(row);
                    *known.entry(at).or_insert(files.len() - 1)
                }
            };
            let inode = inodes.place(&open.inode).ok_or(io::ErrorKind::ResourceBusy)?;
            handles.push(open.row(handle, inode, file));
        }
        Ok((files, handles))
    }

    fn dir_rows(&self, inodes: &InodeList) -> io::Result<Vec<DirHandleRow>> {
        let open: Vec<_> = self.files.dirs.iter().map(|open| (*open.key(), open.value().clone())).collect();
        let row = |(handle, open): (u64, Arc<crate::opened::DirHandle>)| {
            let inode = inodes.place(&open.inode)?;
            open.row(handle, inode)
        };
        let rows = open.into_iter().map(|open| row(open).ok_or_else(|| io::ErrorKind::ResourceBusy.into()));
        rows.collect()
    }
}

fn branch_rows(pool: &Pool, descriptors: &mut Descriptors) -> io::Result<Vec<BranchRow>> {
    let row = |branch: &Arc<crate::member::Member>| {
        Ok(BranchRow {
            slot: branch.ix.0,
            id: branch.id.get(),
            path: NameRow::of(branch.path.as_os_str().as_bytes()),
            mode: branch.given_mode().name().to_owned(),
            floor: branch.floor().map(|floor| floor.to_string()),
            min_inodes: branch.min_inodes(),
            cross_mounts: branch.mounts == Mounts::Cross,
            class: branch.class.as_ref().map(ToString::to_string),
            root: descriptors.note(branch.root().as_fd())?,
            object: (branch.dev(), branch.root_ino),
            known: known_root_row(branch),
            unsynced: branch.unsynced.row(branch.mount_generation()),
        })
    };
    pool.branches.iter().map(row).collect()
}

fn known_root_row(branch: &Branch) -> KnownRootRow {
    let KnownRoot { f_type, fsid, proof, was_listed, level, subvolume, .. } = branch.known_root();
    KnownRootRow {
        f_type,
        fsid,
        proof: proof.map(|proof| proof.value),
        was_listed,
        level,
        subvolume,
        joined: branch.joined(),
    }
}

fn inode_rows(pool: &Pool, inodes: &InodeList, descriptors: &mut Descriptors) -> io::Result<Vec<InodeRow>> {
    let current = |at: BranchIx| pool.branch(at).mount_generation();
    let row = |(inode, lookups): &(Arc<Inode>, Option<u64>)| {
        let mut row = inode.row(&current);
        row.lookups = *lookups;
        let name = |name: crate::inode::InodeName| {
            Some((inodes.place(&name.parent)?, NameRow::of(name.name.to_bytes())))
        };
        row.names = inode.names().into_iter().filter_map(name).collect();
        if let Some((branch, fd)) = inode.unlinked() {
            let is_current = fd.mount_generation == current(branch);
            row.unlinked = Some(FdRow { fd: descriptors.note(fd.as_fd())?, is_current });
        }
        Ok(row)
    };
    inodes.list.iter().map(row).collect()
}
