//! Two hosts with one branch: another host's mount clears the hidden folder while this one works in it.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use fsstack_lab::{self as lab, needs};
use fsstack_sys::locks::{Lock, LockType, TO_THE_END, try_lock};
use fsstack_sys::{Call, Errno, fault};
use rustix::process::Signal;

use crate::engine::{Engine, settings};
use crate::journal::FOLDER;
use crate::kill;
use crate::moves::Branches;
use crate::scenario::{DRAIN, MOVE};

/// Takes the lock of an unlocked copy in `folder`, like a mount that is about to clear it.
fn take_lock(folder: PathBuf, held: &Rc<RefCell<Option<File>>>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut copies = entries.map(|entry| entry.unwrap().path());
    let Some(copy) = copies.find(|path| path.extension().is_some_and(|suffix| suffix == "part")) else {
        return;
    };
    let copy = File::options().read(true).write(true).open(copy).unwrap();
    let lock = Lock { start: 0, end: TO_THE_END, kind: LockType::Write, pid: 0 };
    if try_lock(copy.as_fd(), lock).is_ok() {
        held.replace(Some(copy));
    }
}

/// A branch without O_TMPFILE: another host's mount finds the copy before it is locked.
#[test]
fn a_copy_that_another_host_is_about_to_clear_is_made_again_under_another_name() {
    needs!(root());
    let branches = Branches::fresh();
    let engine = branches.mount();
    let (_, calls) = fault::count(|| (MOVE.act)(&engine));
    drop(engine);
    let (mut lost, mut wrong) = (0, Vec::new());
    for nth in 1..=calls {
        for later in 4..=8 {
            branches.reset();
            let engine = branches.mount();
            let held = Rc::new(RefCell::new(None));
            let (folder, holder) = (branches.paths()[1].join(FOLDER), held.clone());
            let take = move || take_lock(folder, &holder);
            let work = || fault::fail(nth, Errno::OPNOTSUPP, || (MOVE.act)(&engine));
            let ((answer, failed), _) = fault::before(nth + later, take, work);
            drop(engine);
            if failed == Some(Call::Open) && held.borrow().is_some() {
                lost += 1;
                if answer.is_err() {
                    wrong.push(format!("{nth} and {later} later: {answer:?}"));
                }
            }
        }
    }
    assert!(lost > 0, "the lock was never lost");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Symbolic links and fifos below a hidden folder.
fn staged_specials(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let entries = entries.map(|entry| entry.unwrap());
    let specials = entries.map(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => staged_specials(&entry.path()),
        kind => usize::from(!kind.is_file()),
    });
    specials.sum()
}

/// A drain moves a symbolic link and a fifo, which take no lock, while another host mounts the branches.
#[test]
fn a_copy_of_a_link_is_left_alone_by_another_hosts_mount() {
    needs!(root());
    let (mut staged, mut wrong) = (0, Vec::new());
    for nth in 1.. {
        let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
        let [a, b] = ["a", "b"].map(|name| pool.branch(name).path());
        DRAIN.prepare(&[a, b, b]);
        let folder = b.join(FOLDER);
        let mount = || {
            let before = staged_specials(&folder);
            if before > 0 {
                staged += 1;
                drop(Engine::over([a, b].into_iter(), settings("ff")));
                if staged_specials(&folder) < before {
                    wrong.push(nth);
                }
            }
        };
        if !kill::while_stopped(&DRAIN, &[a, b], (nth, Signal::KILL), mount) {
            break;
        }
    }
    assert!(staged > 0, "it was never stopped with such a copy");
    assert!(wrong.is_empty(), "cleared while in use at calls {wrong:?} of {staged}");
}
