//! Removal of a branch, beside opens, probes and a new mount.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_sync::atomic::{AtomicUsize, Ordering::SeqCst};
use fsstack_sync::{model, thread};
use fsstack_sys as sys;

use crate::dir_fd::DirFd;
use crate::mount_root::MountedRoot;
use crate::mounted_fd::MountedFd;

/// A branch leaves only when no file is open on it, and no file is opened on one that has left.
#[test]
fn a_branch_leaves_with_no_file_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    model::check(move || {
        let branch = super::remote(&path, 1);
        let open = Arc::new(AtomicUsize::new(0));
        let openers: Vec<_> = (0..2)
            .map(|_| {
                let (branch, open) = (branch.clone(), open.clone());
                thread::spawn(move || {
                    let Ok(file) = branch.acquire() else { return };
                    open.fetch_add(1, SeqCst);
                    assert!(!branch.is_gone(), "a file is open on a branch that has left");
                    open.fetch_sub(1, SeqCst);
                    // Closed to all users, and later by its thread: one file less.
                    file.move_out();
                })
            })
            .collect();
        if branch.shut().is_ok() {
            assert_eq!(open.load(SeqCst), 0, "it left with a file open");
            assert!(branch.acquire().is_err());
        }
        openers.into_iter().for_each(|opener| opener.join().unwrap());
        assert_eq!(branch.open_files(), 0);
        assert!(branch.is_gone() || branch.shut().is_ok());
    });
}

/// The disk of a branch that has left can be unmounted, though a probe finds it mounted again at the same time.
#[test]
fn a_branch_that_has_left_holds_no_root() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    model::check(move || {
        let branch = super::remote(&path, 1);
        let (probed, at) = (branch.clone(), path.clone());
        let probe = thread::spawn(move || {
            let root = sys::at::open_root(&at).unwrap();
            let stat = sys::at::stat_now(root.as_fd()).unwrap();
            let root = Arc::new(DirFd::pinned(MountedFd::root(root, probed.mount_generation() + 1)));
            let mounted = MountedRoot {
                root,
                dev: stat.dev,
                mnt_id: stat.mnt_id,
                left: false,
                subvolumes: None,
                unasked: false,
            };
            probed.replace_root(mounted);
        });
        branch.shut().unwrap();
        branch.let_go();
        probe.join().unwrap();
        assert_eq!(branch.dev(), 0, "the root of a disk that has left is open");
    });
}
