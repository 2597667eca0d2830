//! Generations of a branch's mount, beside probes and opens that end late.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_sync::{Mutex, model, thread};
use fsstack_sys as sys;

use super::super::monitor::MonitorState;
use crate::dir_fd::DirFd;
use crate::mount_root::MountedRoot;
use crate::mounted_fd::MountedFd;

/// One probe acts at a time, on the newest of what was found: a probe that was given up does not act.
#[test]
fn one_probe_acts_at_a_time() {
    model::check(|| {
        let state = Arc::new(Mutex::new(MonitorState::default()));
        let acting = Arc::new(Mutex::new(0_u64));
        let probes: Vec<_> = (0..2)
            .map(|_| {
                let (state, acting) = (state.clone(), acting.clone());
                thread::spawn(move || {
                    let number = {
                        let mut state = state.lock();
                        if state.is_probing() {
                            // It has not returned in time.
                            state.give_up();
                        }
                        if state.is_probing() {
                            return;
                        }
                        state.begin(fsstack_sync::time::Duration::ZERO)
                    };
                    if !state.lock().takes_turn(number) {
                        return;
                    }
                    // The branch goes to another mount: not one thread's act alone under the lock.
                    let before = std::mem::replace(&mut *acting.lock(), number);
                    assert_eq!(before, 0, "two probes act at once");
                    thread::yield_now();
                    *acting.lock() = 0;
                    state.lock().end();
                })
            })
            .collect();
        probes.into_iter().for_each(|probe| probe.join().unwrap());
    });
}

/// A directory that is opened while its branch is mounted again does not count as one of the new mount unless it is there (K1).
#[test]
fn a_late_open_is_of_the_mount_that_it_began_on() {
    let mounts = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let paths = mounts.each_ref().map(|mount| mount.path().to_owned());
    model::check(move || {
        let branch = super::remote(&paths[0], 1);
        let ino_of = |dir: &MountedFd| sys::at::stat_fd(dir.as_fd()).unwrap().ino;
        let remount = thread::spawn({
            let (branch, at) = (branch.clone(), paths[1].clone());
            move || {
                let root = sys::at::open_root(&at).unwrap();
                let stat = sys::at::stat_now(root.as_fd()).unwrap();
                let root = Arc::new(DirFd::pinned(MountedFd::root(root, branch.mount_generation() + 1)));
                let (dev, mnt_id) = (stat.dev, stat.mnt_id);
                let mounted =
                    MountedRoot { root, dev, mnt_id, left: false, subvolumes: None, unasked: false };
                branch.replace_root(mounted);
            }
        });
        let root = branch.root();
        thread::yield_now();
        let opened = root.opened(root.as_fd().try_clone_to_owned().unwrap());
        remount.join().unwrap();
        let is_there = ino_of(&opened) == ino_of(&branch.root());
        assert_eq!(opened.is_of_present_mount(&branch), is_there, "a directory of the mount that is gone");
    });
}
