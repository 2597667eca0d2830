//! Two threads and one file: the second runs completely before the n-th call of the first, for every n.

use std::cell::RefCell;
use std::ffi::CString;
use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use fsstack_engine::admin::live::Position;
use fsstack_engine::ops::{Change, LockKind, LockRequest, LockType, WriteTerms};
use fsstack_engine::settings::{Locks, Settings};
use fsstack_engine::{Caller, Union};
use fsstack_lab::needs;
use fsstack_pool::{BranchMode, BranchSpec, EntryName, Handle, Ino};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{Errno, OFlags, fault};

use crate::engine::{Engine, settings};
use crate::moves::Branches;
use crate::scenario::{FILM, MOVED, MOVED_MORE};

/// How long the first thread waits for the second, which may itself have to wait for the first.
const HEADSTART: Duration = Duration::from_millis(300);

/// Access ACL of a file with the mode 0600.
const CLOSED_ACL: [u8; 28] = [
    2, 0, 0, 0, // version
    1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, // owner
    4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // group
    0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // others
];

/// Runs `first`, and `second` on another thread from before its `nth` call. Returns the result of `first`, after both;
/// `None` if it makes fewer calls.
fn meet<T>(nth: u64, second: impl FnOnce() + Send + 'static, first: impl FnOnce() -> T) -> Option<T> {
    let started: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
    let slot = started.clone();
    let deed = move || {
        let second = thread::spawn(second);
        let began = Instant::now();
        while !second.is_finished() && began.elapsed() < HEADSTART {
            thread::sleep(Duration::from_millis(1));
        }
        slot.replace(Some(second));
    };
    let (done, reached) = fault::before(nth, deed, first);
    let second = started.take();
    second.into_iter().for_each(|second| second.join().unwrap());
    reached.then_some(done)
}

/// Writes past the end through `handle`, so that the file has to move.
fn outgrow(union: &Union, handle: Handle) {
    let (at, more) = (MOVED.len() as u64, MOVED_MORE.as_bytes());
    assert_eq!(union.write(handle, at, more, WriteTerms::default()).unwrap(), more.len());
}

fn open(union: &Union, ino: Ino) -> Handle {
    union.open(ino, OFlags::RDWR, Caller::DAEMON).unwrap().handle
}

fn move_and_close(union: &Union, ino: Ino) {
    let handle = open(union, ino);
    outgrow(union, handle);
    union.release(handle);
}

#[test]
fn an_open_that_another_ones_move_overtakes_writes_into_the_file() {
    needs!(root());
    let branches = Branches::fresh();
    for nth in 1.. {
        branches.reset();
        let engine = branches.mount();
        let ino = engine.ino(Path::new(FILM)).unwrap();
        let other = engine.union.clone();
        let Some(handle) = meet(nth, move || move_and_close(&other, ino), || open(&engine.union, ino)) else {
            assert!(nth > 2, "an open makes calls");
            break;
        };
        assert_eq!(engine.union.write(handle, 0, b"written", WriteTerms::default()).unwrap(), 7);
        engine.union.release(handle);
        let text = engine.read(Path::new(FILM)).unwrap();
        assert!(text.starts_with(b"written"), "lost when it is overtaken at call {nth}");
        assert_eq!(text.len(), MOVED.len() + MOVED_MORE.len());
    }
}

fn lock(union: &Union, handle: Handle, owner: u64) -> Result<(), Errno> {
    let request = LockRequest { owner, kind: LockKind::Whole, how: LockType::Write };
    union.lock(handle, request, None).map_err(|error| error.errno())
}

#[test]
fn one_lock_has_one_owner_though_the_file_moves_meanwhile() {
    needs!(root());
    let branches = Branches::fresh();
    let locking = Settings { locks: Locks::Branch, ..settings("ff") };
    for nth in 1.. {
        branches.reset();
        let engine = Engine::over(branches.paths().into_iter(), locking.clone());
        let union: &Arc<Union> = &engine.union;
        let ino = engine.ino(Path::new(FILM)).unwrap();
        let (first, second) = (open(union, ino), open(union, ino));
        let other = union.clone();
        // The lock may prevent the move.
        let outgrow = move || {
            let (at, more) = (MOVED.len() as u64, MOVED_MORE.as_bytes());
            let _told = other.write(second, at, more, WriteTerms::default());
        };
        let Some(answer) = meet(nth, outgrow, || lock(union, first, 1)) else {
            assert!(nth > 1, "a lock makes calls");
            break;
        };
        assert_eq!(answer, Ok(()));
        assert_eq!(lock(union, second, 2), Err(Errno::AGAIN), "moved at call {nth}");
        [first, second].into_iter().for_each(|handle| union.release(handle));
    }
}

/// The file leaves its branch while the removal asks others for copies of it.
#[test]
fn a_file_is_removed_though_it_moves_meanwhile() {
    needs!(root());
    removed_while_it_moves(|_| ());
}

#[test]
fn a_file_is_renamed_though_it_moves_meanwhile() {
    needs!(root());
    let renamed = Path::new(FILM).with_file_name("renamed");
    let rename = |union: &Union, dir, name: EntryName<'_>| {
        union.rename((dir, name), (dir, EntryName::new(c"renamed").unwrap()), RenameFlags::empty())
    };
    meets_its_move(|_| (), rename, Some(&renamed));
}

#[test]
fn a_file_whose_directory_is_on_all_branches_is_removed_though_it_moves_meanwhile() {
    needs!(root());
    let dir = Path::new(FILM).parent().unwrap();
    removed_while_it_moves(|branches| {
        for branch in branches.paths() {
            fs::create_dir_all(branch.join(dir)).unwrap();
        }
    });
}

fn removed_while_it_moves(prepare: impl Fn(&Branches)) {
    meets_its_move(prepare, |union, dir, name| union.unlink(dir, name), None);
}

/// The file moves before each call of `act`, which takes its name away; `renamed` is the path that it has afterwards.
fn meets_its_move<E: Debug>(
    prepare: impl Fn(&Branches),
    act: impl Fn(&Union, Ino, EntryName<'_>) -> Result<(), E>,
    renamed: Option<&Path>,
) {
    let branches = Branches::fresh();
    for nth in 1.. {
        branches.reset();
        prepare(&branches);
        let engine = branches.mount();
        let (dir, name) = FILM.rsplit_once('/').unwrap();
        let (ino, dir) = (engine.ino(Path::new(FILM)).unwrap(), engine.ino(Path::new(dir)).unwrap());
        let other = engine.union.clone();
        // It may be gone before.
        let moves = move || {
            if let Ok(opened) = other.open(ino, OFlags::RDWR, Caller::DAEMON) {
                let (at, more) = (MOVED.len() as u64, MOVED_MORE.as_bytes());
                let _told = other.write(opened.handle, at, more, WriteTerms::default());
                other.release(opened.handle);
            }
        };
        let name = CString::new(name).unwrap();
        let act = || act(&engine.union, dir, EntryName::new(&name).unwrap());
        let Some(done) = meet(nth, moves, act) else {
            assert!(nth > 2, "it makes calls");
            break;
        };
        assert!(done.is_ok(), "{done:?} where it moves before call {nth}");
        let holders =
            |path: &Path| branches.paths().iter().filter(|branch| branch.join(path).exists()).count();
        assert_eq!(holders(Path::new(FILM)), 0, "it is left where it moves before call {nth}");
        if let Some(renamed) = renamed {
            assert_eq!(holders(renamed), 1, "branches that have it where it moves before call {nth}");
        }
    }
}

/// A close gives up the locks that its process has, not one that another thread of it gets at the same time.
#[test]
fn a_lock_is_kept_though_its_owner_closes_the_file_meanwhile() {
    for nth in 1.. {
        let home = tempfile::tempdir().unwrap();
        let engine =
            Engine::over([home.path()].into_iter(), Settings { locks: Locks::Branch, ..settings("ff") });
        engine.create(Path::new("film"), 0o644).unwrap();
        let ino = engine.ino(Path::new("film")).unwrap();
        let (handle, other) = (open(&engine.union, ino), engine.union.clone());
        // So the owner is known before.
        let range = LockKind::Range { start: 0, end: 9 };
        engine.union.lock(handle, LockRequest { owner: 1, kind: range, how: LockType::Write }, None).unwrap();
        let Some(answer) = meet(nth, move || other.unlock_all(handle, 1), || lock(&engine.union, handle, 1))
        else {
            assert!(nth > 1, "a lock makes calls");
            break;
        };
        assert_eq!(answer, Ok(()));
        assert_eq!(lock(&engine.union, handle, 2), Err(Errno::AGAIN), "closed at call {nth}");
        engine.union.release(handle);
    }
}

#[test]
fn a_directorys_times_stay_those_of_a_create_beside_a_new_copy_in_it() {
    for nth in 1.. {
        let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [kept, filled] = homes.each_ref().map(|home| home.path().to_owned());
        std::fs::create_dir(kept.join("d")).unwrap();
        for home in [&kept, &filled] {
            let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            std::fs::File::open(home).unwrap().set_modified(long_ago).unwrap();
        }
        let specs = vec![
            BranchSpec { mode: BranchMode::NoCreate, ..BranchSpec::new(kept) },
            BranchSpec::new(filled.clone()),
        ];
        let engine = Engine::of(specs, settings("ff"));
        let other = engine.union.clone();
        let create = move || {
            let name = EntryName::new(c"new").unwrap();
            let made = other.create(Ino::ROOT, name, 0o644, OFlags::WRONLY, Caller::DAEMON).unwrap();
            other.release(made.opened.handle);
        };
        let first = || engine.create(Path::new("d/film"), 0o644);
        let Some(made) = meet(nth, create, first) else {
            assert!(nth > 5, "a new copy of a directory makes calls");
            break;
        };
        made.unwrap();
        let changed = |path: &Path| path.metadata().unwrap().modified().unwrap();
        assert!(changed(&filled.join("new")) <= changed(&filled), "made at call {nth}");
    }
}

/// Whichever call on the new disk hangs, unrelated requests do not wait for it.
#[test]
fn a_setting_changes_while_a_new_branch_is_asked() {
    for nth in 1.. {
        let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let engine = Engine::over([homes[0].path()].into_iter(), settings("ff"));
        let other = engine.union.clone();
        let change = move || {
            let (tell, answer) = channel();
            thread::spawn(move || tell.send(other.change(|settings| settings.min_inodes = 7)));
            answer.recv_timeout(Duration::from_secs(60)).expect("it waits for the new branch").unwrap();
        };
        let spec = BranchSpec::new(homes[1].path().to_owned());
        let (added, reached) = fault::before(nth, change, || engine.union.add_branch(&spec, Position::Last));
        added.unwrap();
        if !reached {
            assert!(nth > 3, "a new branch is asked");
            break;
        }
        let pool = engine.union.pool();
        assert_eq!((pool.branches.len(), pool.settings.min_inodes), (2, 7), "changed at call {nth}");
    }
}

/// A thread looks up a file of the later branch before each call of the rename.
#[test]
fn a_directory_in_use_keeps_its_copies_while_one_above_it_is_renamed() {
    for nth in 1.. {
        let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        homes.iter().for_each(|home| fs::create_dir_all(home.path().join("d/x")).unwrap());
        fs::write(homes[1].path().join("d/x/film"), "").unwrap();
        let always_asks = Settings { recheck: Duration::ZERO, ..settings("ff") };
        let engine = Engine::over(homes.iter().map(|home| home.path()), always_asks);
        let x = engine.ino(Path::new("d/x")).unwrap();
        let other = engine.union.clone();
        let look = move || {
            other.lookup(x, EntryName::new(c"film").unwrap()).unwrap();
        };
        let name = |name| EntryName::new(name).unwrap();
        let rename =
            || engine.union.rename((Ino::ROOT, name(c"d")), (Ino::ROOT, name(c"e")), RenameFlags::empty());
        let Some(renamed) = meet(nth, look, rename) else {
            assert!(nth > 5, "a rename on two branches makes calls");
            break;
        };
        renamed.unwrap();
        engine.union.lookup(x, name(c"film")).unwrap();
    }
}

#[test]
fn a_directory_in_use_has_its_own_files_while_it_is_exchanged_with_another() {
    for nth in 1.. {
        let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for home in &homes {
            ["a/sub", "b/sub"].iter().for_each(|dir| fs::create_dir_all(home.path().join(dir)).unwrap());
        }
        fs::write(homes[0].path().join("a/film"), "").unwrap();
        fs::write(homes[0].path().join("a/sub/film"), "").unwrap();
        let always_asks = Settings { recheck: Duration::ZERO, ..settings("ff") };
        let engine = Engine::over(homes.iter().map(|home| home.path()), always_asks);
        let [b, below] = ["b", "b/sub"].map(|dir| engine.ino(Path::new(dir)).unwrap());
        let other = engine.union.clone();
        let look = move || {
            for dir in [b, below] {
                let found = other.lookup(dir, EntryName::new(c"film").unwrap());
                assert_eq!(found.unwrap_err().errno(), Errno::NOENT);
            }
        };
        let name = |name| EntryName::new(name).unwrap();
        let exchange =
            || engine.union.rename((Ino::ROOT, name(c"a")), (Ino::ROOT, name(c"b")), RenameFlags::EXCHANGE);
        let Some(exchanged) = meet(nth, look, exchange) else {
            assert!(nth > 5, "an exchange on two branches makes calls");
            break;
        };
        exchanged.unwrap();
    }
}

fn set_mode(union: &Union, ino: Ino, mode: u32) {
    let change = Change { mode: Some(mode), ..Change::default() };
    union.setattr(ino, None, change, Caller::DAEMON).unwrap();
}

/// The kernel does not keep a chmod and an asynchronous direct write within the file apart.
#[test]
fn a_mode_that_is_set_beside_a_strangers_write_stays() {
    needs!(root());
    let stranger = Caller { uid: 1000, gid: 1000, ..Caller::DAEMON };
    let strips = WriteTerms { strips: Some(stranger), ..WriteTerms::default() };
    let changes: [fn(&Union, Ino); 2] = [
        |union, ino| set_mode(union, ino, 0o600),
        |union, ino| {
            union.setxattr(ino, c"system.posix_acl_access", &CLOSED_ACL, 0, false, Caller::DAEMON).unwrap();
        },
    ];
    for change in changes {
        for nth in 1.. {
            let home = tempfile::tempdir().unwrap();
            let engine = Engine::over([home.path()].into_iter(), settings("ff"));
            engine.create(Path::new("film"), 0o644).unwrap();
            let ino = engine.ino(Path::new("film")).unwrap();
            let (handle, other) = (open(&engine.union, ino), engine.union.clone());
            set_mode(&engine.union, ino, 0o4777);
            let write = || engine.union.write(handle, 0, b"x", strips);
            let Some(written) = meet(nth, move || change(&other, ino), write) else {
                assert!(nth > 2, "a write that strips makes calls");
                break;
            };
            assert_eq!(written.unwrap(), 1);
            let mode = engine.union.getattr(ino, None).unwrap().stat.mode & 0o7777;
            assert_eq!(mode & 0o777, 0o600, "set before call {nth}");
            engine.union.release(handle);
        }
    }
}
