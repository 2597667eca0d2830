//! An interrupted move of which one side is not the pool's any more: the old copy was renamed out of its branch, or the
//! folder with a record belongs to another user.
//! with a record is somebody else's.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use fsstack_lab::{self as lab, MiB, needs};

use crate::check::{Entry as Seen, seen};
use crate::engine::{Engine, settings};
use crate::journal::FOLDER;
use crate::kill;
use crate::moves::Branches;
use crate::scenario::{FILM, MOVE_WITH_ROOM, MOVED};

/// Fills the disk at `path`, so that the film cannot grow there.
fn fill(path: &Path) {
    let mut full = 0;
    while fs::write(path.join(format!("ballast.{full}")), [1; 64 << 10]).is_ok() {
        full += 1;
    }
    (full - 2..=full).for_each(|last| fs::remove_file(path.join(format!("ballast.{last}"))).unwrap());
}

#[test]
fn an_old_copy_outside_of_its_branch_is_not_the_file() {
    needs!(root(), loops());
    let mut disk = lab::pool().ext4_branch("a", MiB(16)).unmounted();
    let others = lab::pool().tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(1)).unmounted();
    let (outside, branch) = (disk.branch("a").path().to_owned(), disk.branch("a").path().join("branch"));
    let all = [&branch, others.branch("b").path(), others.branch("c").path()];
    let reset = || {
        for left in all.iter().flat_map(|path| ["d", FOLDER].map(|name| path.join(name))) {
            if left.exists() {
                fs::remove_dir_all(left).unwrap();
            }
        }
        MOVE_WITH_ROOM.prepare(&all);
    };
    let holders = || all[..2].iter().map(|path| path.join(FILM).exists()).collect::<Vec<_>>();
    let mount = || Engine::over(all.into_iter(), settings("ff"));
    fs::create_dir(&branch).unwrap();
    MOVE_WITH_ROOM.prepare(&all);
    fill(&outside);
    drop(mount());
    reset();
    let (mounting, calls) = kill::child(&MOVE_WITH_ROOM, &all, None).unwrap();
    assert_eq!(holders(), [false, true], "without a kill");
    let (mut both, mut wrong) = (0, Vec::new());
    for (nth, is_cold) in (mounting + 1..=mounting + calls).flat_map(|nth| [(nth, false), (nth, true)]) {
        reset();
        assert!(kill::child(&MOVE_WITH_ROOM, &all, Some(nth)).is_none());
        if holders() != [true, true] {
            continue;
        }
        both += 1;
        fs::rename(branch.join(FILM), outside.join("film")).unwrap();
        if is_cold {
            // The kernel knows no path of any file.
            disk.branch_mut("a").unmount();
            disk.branch_mut("a").remount();
        }
        let shown = seen(&mount());
        if !matches!(shown.get(Path::new(FILM)), Some(Seen::File { text, .. }) if text == MOVED) {
            wrong.push(format!("killed at {nth}, cold: {is_cold}: {:?}, on {:?}", shown.keys(), holders()));
        }
        fs::remove_file(outside.join("film")).unwrap();
    }
    assert!(both > 0, "never were there two of it");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The pool is mounted without the target, and the intent on the other branch says that the old copy is the file. Then
/// the folder with that intent belongs to another user and is ignored.
#[test]
fn another_users_folder_does_not_count_as_a_record_of_a_move() {
    needs!(root());
    let branches = Branches::fresh();
    let (mounting, calls) = kill::child(&MOVE_WITH_ROOM, &branches.paths(), None).unwrap();
    let [a, b, c] = branches.paths();
    let has = |name: &str| [a, b].map(|branch| branch.join(name).exists());
    let (mut both, mut wrong) = (0, Vec::new());
    for nth in mounting + 1..=mounting + calls {
        branches.reset();
        assert!(kill::child(&MOVE_WITH_ROOM, &branches.paths(), Some(nth)).is_none());
        if has(FILM) != [true; 2] || has(FOLDER) != [true; 2] {
            continue;
        }
        both += 1;
        drop(Engine::over([a, c].into_iter(), settings("ff")));
        chown(a.join(FOLDER), Some(65534), None).unwrap();
        drop(branches.mount());
        if has(FILM) != [false, true] {
            wrong.push(format!("killed at {nth}: on {:?}", has(FILM)));
        }
    }
    assert!(both > 0, "never were there two of it");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
