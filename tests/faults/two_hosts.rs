//! Two hosts with one branch: another host's mount clears the hidden folder while this one works in it.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;

use fsstack_lab::needs;
use fsstack_sys::locks::{Lock, LockType, TO_THE_END, try_lock};
use fsstack_sys::{Call, Errno, fault};

use crate::journal::FOLDER;
use crate::moves::Branches;
use crate::scenario::MOVE;

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
