//! A file that moves while it is written: every call fails once, and the process is killed before each. Afterwards
//! there is one complete file under the name, and nothing else.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fsstack_branch::health::BranchState;
use fsstack_engine::Caller;
use fsstack_engine::admin::live::Position;
use fsstack_engine::admin::mount_watch::MountWatch;
use fsstack_engine::answer::Entry;
use fsstack_engine::ops::WriteTerms;
use fsstack_engine::settings::Settings;
use fsstack_lab::{self as lab, MiB, Pool, needs};
use fsstack_pool::BranchSpec;
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{Call, Errno, OFlags, fault};
use rustix::fs::{FallocateFlags, fallocate};

use crate::check::{Entry as Seen, Tree, seen};
use crate::engine::{Engine, settings};
use crate::scenario::{FILM, MOVE, MOVE_WITH_ROOM, MOVED, MOVED_MORE};
use crate::{ERRNOS, kill};

/// `FALLOC_FL_KEEP_SIZE`.
const KEEP_SIZE: u32 = 0x01;
/// Bytes written after the branches are back.
const LATER: &str = "written when the branches were back";

/// The first branch has no room for the write, the second has, the third has not.
pub(crate) struct Branches(Pool);

impl Branches {
    pub(crate) fn fresh() -> Self {
        let pool = lab::pool().tmpfs_branch("a", MiB(1)).tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(1));
        let pool = pool.unmounted();
        for name in ["a", "c"] {
            let ballast = File::create(pool.branch(name).path().join("ballast")).unwrap();
            fallocate(ballast.as_fd(), FallocateFlags::empty(), 0, 800 << 10).unwrap();
        }
        let branches = Self(pool);
        // A first mount stores things on a branch that later mounts find: all others make the same calls.
        branches.reset();
        drop(branches.mount());
        branches
    }

    pub(crate) fn paths(&self) -> [&Path; 3] {
        ["a", "b", "c"].map(|name| self.0.branch(name).path())
    }

    /// The state before the move.
    pub(crate) fn reset(&self) {
        for path in self.paths() {
            for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    fs::remove_dir_all(entry).unwrap();
                } else if !entry.ends_with("ballast") {
                    fs::remove_file(entry).unwrap();
                }
            }
        }
        self.wait_for_room();
        MOVE.prepare(&self.paths());
    }

    /// Waits until the old copy's space is free. Other tests start processes, which have this one's descriptors until
    /// they execute their program.
    fn wait_for_room(&self) {
        let began = std::time::Instant::now();
        while self.0.branch("a").free() < 200 << 10 {
            assert!(began.elapsed().as_secs() < 10, "the old copy is still held");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Frees space for the write on the third branch too.
    fn with_another_roomy_one(self) -> Self {
        fs::remove_file(self.0.branch("c").path().join("ballast")).unwrap();
        self
    }

    /// Waits until suspect branches were probed, and interrupted operations on them settled.
    fn wait_until_up(engine: &Engine) {
        let began = Instant::now();
        while engine.union.pool().branches.iter().any(|branch| branch.state() != BranchState::Up) {
            assert!(began.elapsed() < Duration::from_secs(60), "a branch stays suspect");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn mount(&self) -> Engine {
        Engine::over(self.paths().into_iter(), settings("ff"))
    }

    /// A pool for an NFS server with a persistent index.
    fn exported(&self, state: Option<&Path>) -> Engine {
        let state_dir = state.map(Path::to_owned);
        let settings = Settings { nfs_export: true, state_dir, ..settings("ff") };
        Engine::over(self.paths().into_iter(), settings)
    }

    /// Differences between a mount and the branches; `result` is the writer's, if it got one.
    pub(crate) fn fault(&self, result: Option<Result<(), Errno>>) -> Option<String> {
        let shown: Tree = seen(&self.mount());
        let Some(Seen::File { text, mode: 0o640, links: 1 }) = shown.get(Path::new(FILM)) else {
            return Some("the file is not there as it was".to_owned());
        };
        let written = text.strip_prefix(MOVED).unwrap_or("lost");
        if !MOVED_MORE.starts_with(written) {
            return Some(format!("{} bytes of something else", text.len()));
        }
        if result == Some(Ok(())) && written != MOVED_MORE {
            return Some(format!("{} bytes are missing", MOVED_MORE.len() - written.len()));
        }
        let holders = self.0.holders(FILM);
        if holders.len() != 1 {
            return Some(format!("the file is on {holders:?}"));
        }
        let left = self.0.holders(".fsstack.moving");
        if !left.is_empty() {
            return Some(format!("a hidden folder is left on {left:?}"));
        }
        // A copy of a directory has the directory's attributes.
        let above = Path::new(FILM).ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
        let copies = above.flat_map(|dir| self.paths().map(|branch| branch.join(dir)));
        let unlike = |copy: &PathBuf| fs::symlink_metadata(copy).is_ok() && !is_like(copy);
        copies.into_iter().find(unlike).map(|copy| format!("not alike: {}", copy.display()))
    }
}

fn is_like(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let kept = rustix::fs::lgetxattr(dir, c"user.kept", &mut [0; 8][..]).is_ok();
    kept && dir.metadata().unwrap().mode() & 0o7777 == 0o751
}

#[test]
fn a_move_fails_at_every_call() {
    needs!(root());
    let branches = Branches::fresh();
    let engine = branches.mount();
    let (done, calls) = fault::count(|| (MOVE.act)(&engine));
    branches.wait_for_room();
    drop(engine);
    assert_eq!((done, branches.0.holders(FILM)), (Ok(()), vec!["b"]), "without a fault");
    assert_eq!(branches.fault(Some(done)), None);
    let mut wrong = Vec::new();
    for errno in ERRNOS {
        for nth in 1..=calls {
            branches.reset();
            let engine = branches.mount();
            let (result, failed) = fault::fail(nth, errno, || (MOVE.act)(&engine));
            drop(engine);
            let honest =
                result.is_ok_and(|()| true) || [errno, Errno::IO, Errno::NOSPC].map(Err).contains(&result);
            let fault =
                if honest { branches.fault(Some(result)) } else { Some("not an honest errno".to_owned()) };
            if let Some(fault) = fault {
                wrong.push(format!("call {nth} ({failed:?}) {errno:?}, result {result:?}: {fault}"));
            }
        }
    }
    assert!(wrong.is_empty(), "of {calls} calls:\n{}", wrong.join("\n"));
}

#[test]
fn writes_after_an_interrupted_move_count() {
    needs!(root());
    let branches = Branches::fresh();
    let engine = branches.mount();
    let (_, calls) = fault::count(|| (MOVE.act)(&engine));
    branches.wait_for_room();
    drop(engine);
    let mut wrong = Vec::new();
    for nth in 1..=calls {
        branches.reset();
        let engine = branches.mount();
        // Makes the change visible in its times.
        std::thread::sleep(std::time::Duration::from_millis(10));
        let (result, failed) = fault::cut_off(nth, Errno::NOTCONN, || (MOVE.act)(&engine));
        let later = engine.write(Path::new(FILM), Some(0), LATER.as_bytes());
        drop(engine);
        let shown = seen(&branches.mount());
        let holders = branches.0.holders(FILM);
        let what = match shown.get(Path::new(FILM)) {
            Some(Seen::File { text, .. }) if later.is_ok() && !text.starts_with(LATER) => {
                "what was written is lost"
            }
            Some(Seen::File { .. }) if holders.len() != 1 => "there are two of it",
            Some(Seen::File { .. }) if !branches.0.holders(".fsstack.moving").is_empty() => {
                "a hidden folder is left"
            }
            Some(Seen::File { .. }) => continue,
            _ => "the file is gone",
        };
        wrong.push(format!(
            "cut off at {nth} ({failed:?}), result {result:?}, then {later:?}: {what}, on {holders:?}"
        ));
    }
    assert!(wrong.is_empty(), "of {calls} calls:\n{}", wrong.join("\n"));
}

/// The target fails, and fails again when the move is to be undone; then it is back, with the file open all the time.
fn the_target_is_back_while_the_file_is_open(branches: &Branches) {
    let engine = branches.mount();
    let (_, calls) = fault::count(|| (MOVE.act)(&engine));
    branches.wait_for_room();
    drop(engine);
    let mut wrong = Vec::new();
    for (nth, later) in (1..=calls).flat_map(|nth| (1..=3).map(move |later| (nth, later))) {
        branches.reset();
        let engine = branches.mount();
        let _hosted = MountWatch::start(&engine.union, || {}).unwrap();
        let film = engine.open(Path::new(FILM), OFlags::RDWR).unwrap();
        let write = |at: usize, text: &str| {
            engine.union.write(film, at as u64, text.as_bytes(), WriteTerms::default())
        };
        let (result, failed) =
            fault::fail_twice(nth, later, Errno::NOTCONN, || write(MOVED.len(), MOVED_MORE));
        Branches::wait_until_up(&engine);
        let written = write(0, LATER);
        engine.union.release(film);
        drop((_hosted, engine));
        let shown = seen(&branches.mount());
        let holders = branches.0.holders(FILM);
        let what = match shown.get(Path::new(FILM)) {
            Some(Seen::File { text, .. }) if written.is_ok() && !text.starts_with(LATER) => {
                "what was written is lost"
            }
            Some(Seen::File { .. }) if holders.len() != 1 => "there are two of it",
            Some(Seen::File { .. }) => continue,
            _ => "the file is gone",
        };
        let result = result.map_err(|error| error.errno());
        wrong.push(format!(
            "{nth} ({failed:?}) and {later} later, result {result:?}, then {written:?}: {what}, on {holders:?}"
        ));
    }
    assert!(wrong.is_empty(), "of {calls} calls:\n{}", wrong.join("\n"));
}

#[test]
fn writes_to_a_file_whose_move_could_not_be_undone_count() {
    needs!(root());
    the_target_is_back_while_the_file_is_open(&Branches::fresh());
}

#[test]
fn a_move_that_could_not_be_undone_goes_nowhere_else() {
    needs!(root());
    the_target_is_back_while_the_file_is_open(&Branches::fresh().with_another_roomy_one());
}

/// A pool that was mounted before, so that its branches have their ids.
fn calls_of_a_move(branches: &Branches, mount: &impl Fn() -> Engine) -> u64 {
    drop(mount());
    branches.reset();
    let engine = mount();
    let (_, calls) = fault::count(|| (MOVE.act)(&engine));
    branches.wait_for_room();
    calls
}

/// The target fails, and fails again when the move is to be undone; the daemon ends before it is back. Whichever copy
/// the next mount takes, it is the same file.
#[test]
fn a_file_whose_move_could_not_be_undone_is_known_by_its_number() {
    needs!(root());
    let branches = Branches::fresh();
    let state = tempfile::tempdir().unwrap();
    let mount = || branches.exported(Some(state.path()));
    let calls = calls_of_a_move(&branches, &mount);
    let mut wrong = Vec::new();
    for (nth, later) in (1..=calls).flat_map(|nth| (1..=3).map(move |later| (nth, later))) {
        branches.reset();
        let engine = mount();
        let known = engine.find(Path::new(FILM)).unwrap();
        let (result, failed) = fault::fail_twice(nth, later, Errno::NOTCONN, || (MOVE.act)(&engine));
        let moved = branches.0.holders(FILM);
        drop(engine);
        let engine = mount();
        let is = |entry: &Entry| (entry.ino, entry.generation) == (known.ino, known.generation);
        let by_name = engine.find(Path::new(FILM));
        let by_number = engine.union.lookup_self(known.ino).map_err(|error| error.errno());
        drop(engine);
        if !by_name.as_ref().is_ok_and(is) || !by_number.as_ref().is_ok_and(is) {
            wrong.push(format!(
                "{nth} ({failed:?}) and {later} later, result {result:?}, on {moved:?}, then on {:?}: \
                 {:?} by its name, {:?} by its number",
                branches.0.holders(FILM),
                by_name.map(|entry| entry.ino.0 ^ known.ino.0),
                by_number.map(|entry| entry.ino.0 ^ known.ino.0),
            ));
        }
    }
    assert!(wrong.is_empty(), "of {calls} calls:\n{}", wrong.join("\n"));
}

/// With an index in memory only the mark on the file has its number: without a mark it is not moved.
#[test]
fn a_file_that_cannot_be_marked_keeps_its_number() {
    needs!(root());
    let branches = Branches::fresh();
    let mount = || branches.exported(None);
    let calls = calls_of_a_move(&branches, &mount);
    let mut wrong = Vec::new();
    for nth in 1..=calls {
        branches.reset();
        let engine = mount();
        let known = engine.find(Path::new(FILM)).unwrap();
        let (result, failed) = fault::fail(nth, Errno::IO, || (MOVE.act)(&engine));
        drop(engine);
        let now = mount().find(Path::new(FILM)).unwrap();
        if (now.ino, now.generation) != (known.ino, known.generation) {
            let holders = branches.0.holders(FILM);
            wrong.push(format!("{nth} ({failed:?}), result {result:?}, on {holders:?}"));
        }
    }
    assert!(wrong.is_empty(), "of {calls} calls:\n{}", wrong.join("\n"));
}

#[test]
fn a_move_is_killed_at_every_call() {
    needs!(root());
    let branches = Branches::fresh();
    let (mounting, calls) = kill::child(&MOVE, &branches.paths(), None).unwrap();
    assert!(calls >= 100, "{calls} kill points");
    let mut wrong = Vec::new();
    for nth in mounting + 1..=mounting + calls {
        branches.reset();
        if kill::child(&MOVE, &branches.paths(), Some(nth)).is_some() {
            wrong.push(format!("call {nth} of {mounting} + {calls} was not reached"));
        } else if let Some(fault) = branches.fault(None) {
            wrong.push(format!("killed at {nth} of {mounting} + {calls}: {fault}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Both copies of a file have its name, because the process was killed between the two steps. The pool is mounted
/// without the branch that the file was moved to, and that branch is added while the file is written, or is not.
#[test]
fn an_added_branch_changes_nothing_for_open_files() {
    needs!(root());
    let branches = Branches::fresh();
    let (mounting, _) = kill::child(&MOVE, &branches.paths(), None).unwrap();
    let [a, b, c] = branches.paths();
    let mut both = 0;
    let mut wrong = Vec::new();
    // Other threads of the child make calls too, so how many there are is only known when one ends by itself.
    for (nth, open) in (mounting + 1..).flat_map(|nth| [(nth, true), (nth, false)]) {
        branches.reset();
        if kill::child(&MOVE, &branches.paths(), Some(nth)).is_some() {
            break;
        }
        if branches.0.holders(FILM) != ["a", "b"] {
            continue;
        }
        both += 1;
        let engine = Engine::over([a, c].into_iter(), settings("ff"));
        let film = open.then(|| engine.open(Path::new(FILM), OFlags::RDWR).unwrap());
        engine.union.add_branch(&BranchSpec::new(b.to_owned()), Position::Last).unwrap();
        if let Some(film) = film {
            engine.union.write(film, 0, LATER.as_bytes(), WriteTerms::default()).unwrap();
            engine.union.release(film);
        }
        drop(engine);
        let begins = if open { LATER } else { MOVED };
        match seen(&branches.mount()).get(Path::new(FILM)) {
            Some(Seen::File { text, .. }) if !text.starts_with(begins) => {
                wrong.push(format!("killed at {nth}, open: {open}: what was written is lost"));
            }
            Some(Seen::File { .. }) if branches.0.holders(FILM).len() == 1 => {}
            _ => wrong.push(format!("killed at {nth}, open: {open}: on {:?}", branches.0.holders(FILM))),
        }
    }
    assert!(both > 0, "never were there two of it");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Contents of the film, and of its other name, after `deed`.
fn contents_after<'a>(deed: &str, written: &'a str) -> (Option<&'a str>, Option<&'a str>) {
    match deed {
        "rename" => (None, Some(MOVED)),
        "write" => (Some(written), None),
        "look" => (Some(MOVED), None),
        _ => (None, None),
    }
}

/// Both copies of a file have its name, because the process was killed between the two steps. The pool is mounted without one of
/// the branches, shows the other copy, and that is renamed, removed or written. The change stays when the branch is back.
#[test]
fn the_copy_that_is_shown_without_the_others_branch_is_the_file() {
    needs!(root());
    let branches = Branches::fresh();
    let (mounting, calls) = kill::child(&MOVE_WITH_ROOM, &branches.paths(), None).unwrap();
    let [a, b, c] = branches.paths();
    let other = Path::new("d/deep/other");
    let written = format!("{LATER}{}", &MOVED[LATER.len()..]);
    let (mut both, mut wrong) = (0, Vec::new());
    for (sweep, nth) in
        (0..3).flat_map(|sweep| (mounting + 1..=mounting + calls).map(move |nth| (sweep, nth)))
    {
        // Other threads make calls too: a sweep that misses the moment is repeated.
        if sweep > 0 && nth == mounting + 1 && both > 0 {
            break;
        }
        for ((away, here), deed, added) in [(b, a), (a, b)]
            .into_iter()
            .flat_map(|sides| ["rename", "unlink", "write", "look"].map(|deed| (sides, deed)))
            .flat_map(|(sides, deed)| [false, true].map(|added| (sides, deed, added)))
        {
            branches.reset();
            assert!(kill::child(&MOVE_WITH_ROOM, &branches.paths(), Some(nth)).is_none());
            if branches.0.holders(FILM) != ["a", "b"] {
                break;
            }
            both += 1;
            let engine = Engine::over([here, c].into_iter(), settings("ff"));
            match deed {
                "rename" => engine.rename(Path::new(FILM), other, RenameFlags::empty()).unwrap(),
                "unlink" => engine.unlink(Path::new(FILM)).unwrap(),
                "write" => engine.write(Path::new(FILM), Some(0), LATER.as_bytes()).unwrap(),
                _ => assert!(engine.find(Path::new(FILM)).is_ok()),
            }
            if added {
                engine.union.add_branch(&BranchSpec::new(away.to_owned()), Position::Last).unwrap();
            }
            drop(engine);
            let shown = seen(&branches.mount());
            let text = |name: &Path| match shown.get(name) {
                Some(Seen::File { text, .. }) => Some(text.as_str()),
                _ => None,
            };
            let expected = contents_after(deed, &written);
            let copies = branches.0.holders(FILM).len() + branches.0.holders(other).len();
            let left = branches.0.holders(".fsstack.moving");
            if (text(Path::new(FILM)), text(other)) != expected
                || copies != usize::from(deed != "unlink")
                || !left.is_empty()
            {
                let names: Vec<&PathBuf> = shown.keys().collect();
                wrong.push(format!(
                    "killed at {nth}, without {}, {deed}, added: {added}: {copies} copies, {names:?}, records on {left:?}",
                    away.display()
                ));
            }
        }
    }
    assert!(both > 0, "never were there two of it, in {calls} calls");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The old branch fails when the old name is to be removed, with the file open on the new one. The old copy gets
/// another mode out of band, and its branch is back.
#[test]
fn the_copy_that_is_open_keeps_its_name_whatever_became_of_the_old_one() {
    needs!(root());
    let branches = Branches::fresh();
    let [a, b, _] = branches.paths().map(|path| path.join(FILM));
    let mut both = 0;
    for (nth, later) in (1..=4).flat_map(|nth| (1..=3).map(move |later| (nth, later))) {
        branches.reset();
        let engine = branches.mount();
        let film = engine.open(Path::new(FILM), OFlags::RDWR).unwrap();
        let write = |at: usize, text: &str| {
            engine.union.write(film, at as u64, text.as_bytes(), WriteTerms::default())
        };
        // Allocates space without changing content.
        let reserve = || engine.union.fallocate(film, KEEP_SIZE, 0, 300 << 10, Caller::DAEMON);
        let (result, failed) = fault::fail_kind_twice((Call::Unlink, nth), later, Errno::NOTCONN, reserve);
        if result.is_err() || !a.exists() || !b.exists() {
            engine.union.release(film);
            continue;
        }
        both += 1;
        let modified = a.metadata().unwrap().modified().unwrap();
        File::options().write(true).open(&b).unwrap().set_modified(modified).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&a, mode).unwrap();
        let hosted = MountWatch::start(&engine.union, || {}).unwrap();
        // Gives cause to probe the old branch once more.
        let stat = || engine.find(Path::new("ballast")).map(drop);
        let (_, asked) = fault::fail(1, Errno::NOTCONN, stat);
        assert!(asked.is_some());
        std::thread::sleep(Duration::from_millis(300));
        Branches::wait_until_up(&engine);
        let written = write(0, LATER);
        assert!(written.is_ok(), "{nth} ({failed:?}) and {later} later: {written:?}");
        assert!(b.exists(), "{nth} ({failed:?}) and {later} later: what is open has lost its name");
        assert!(fs::read_to_string(&b).unwrap().starts_with(LATER));
        engine.union.release(film);
        drop((hosted, engine));
    }
    assert!(both > 0, "never were there two of it");
}
