//! The open file of an inode: one for all handles, also beside moves.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use fsstack_branch::branch::BranchOptions;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_branch::{Branch, OpError};
use fsstack_pool::{BranchId, BranchIx, BranchSpec};
use fsstack_sync::{Mutex, model, thread};
use fsstack_sys::{self as sys, Kind};

use super::{ID, X, Y};
use crate::files::route::NoBackings;
use crate::files::{Access, OpenFile};
use crate::inode::Inode;

/// The branches, and on which of them the file has its name.
#[derive(Debug)]
struct FileOnDisks {
    branches: [Arc<Branch>; 2],
    name: Mutex<BranchIx>,
    /// Open files, and the branch that each one's descriptor is on.
    files: Mutex<Vec<(Arc<OpenFile>, BranchIx)>>,
}

impl FileOnDisks {
    fn at(paths: &[std::path::PathBuf; 2]) -> Arc<Self> {
        let branches = [(X, &paths[0]), (Y, &paths[1])].map(|(ix, path)| branch(ix, path));
        Arc::new(Self { branches, name: Mutex::new(X), files: Mutex::default() })
    }

    /// Opens the file by its name.
    fn open(&self) -> Result<Arc<OpenFile>, OpError> {
        let at = *self.name.lock();
        let branch = &self.branches[usize::from(at.0)];
        let root = branch.root();
        let fd: OwnedFd = root.as_fd().try_clone_to_owned().unwrap();
        let stat = sys::at::stat_fd(fd.as_fd()).unwrap();
        thread::yield_now();
        let fd = MountedFd::root(fd, 0);
        let file = OpenFile::new(branch.acquire()?, fd, Access::Read, &stat, Arc::new(NoBackings));
        let file = Arc::new(file);
        self.files.lock().push((file.clone(), at));
        Ok(file)
    }

    /// Moves the file to Y: the name, and the descriptor of its open file.
    fn relocate(&self, inode: &Inode, file: &Arc<OpenFile>) {
        *self.name.lock() = Y;
        if let Some((_, at)) = self.files.lock().iter_mut().find(|(open, _)| Arc::ptr_eq(open, file)) {
            *at = Y;
        }
        inode.moved_to(Y);
    }

    /// The branch that `file` is on.
    fn of(&self, file: &Arc<OpenFile>) -> Option<BranchIx> {
        self.files.lock().iter().find(|(open, _)| Arc::ptr_eq(open, file)).map(|(_, at)| *at)
    }
}

fn branch(ix: BranchIx, path: &Path) -> Arc<Branch> {
    let root = sys::at::open_root(path).unwrap();
    let options = BranchOptions {
        timeout: std::time::Duration::ZERO,
        inflight: 1,
        privileged: false,
        exact_generations: false,
    };
    Branch::open(ix, BranchId::MAX, &BranchSpec::new(path.to_owned()), root, None, options).unwrap()
}

/// All handles have one open file, which is where the name is: no write goes to a file without a name (K2).
#[test]
fn an_open_beside_a_move_has_the_file_that_has_the_name() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let paths = dirs.each_ref().map(|dir| dir.path().to_owned());
    model::check(move || {
        let disks = FileOnDisks::at(&paths);
        let inode = Arc::new(Inode::file(ID, Kind::File, X));
        let open = |inode: &Inode, disks: &FileOnDisks| {
            inode.open_with(|_| Ok::<(), OpError>(()), || disks.open()).unwrap()
        };
        let slow = {
            let (inode, disks) = (inode.clone(), disks.clone());
            thread::spawn(move || open(&inode, &disks))
        };
        let mover = {
            let (inode, disks) = (inode.clone(), disks.clone());
            thread::spawn(move || {
                let file = open(&inode, &disks);
                disks.relocate(&inode, &file);
                inode.close_handle();
            })
        };
        let file = slow.join().unwrap();
        mover.join().unwrap();
        assert_eq!(disks.of(&file), Some(*disks.name.lock()), "it is open where it has no name");
        let is_it = inode.open_file().is_some_and(|open| Arc::ptr_eq(&open, &file));
        assert!(is_it, "a later open would get another file");
        assert!(inode.close_handle().is_some(), "the last handle gives the file back");
        assert!(inode.open_file().is_none());
    });
}
