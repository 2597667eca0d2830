//! Each call that opening a handle makes fails once. An existing object is never reported as gone, and is found
//! unchanged when the call succeeds again.
//!
//! Both for objects unknown to the daemon, as after a restart, and for known ones; on file systems that open objects by
//! number, and on those that are searched.

use std::cell::Cell;
use std::ffi::CString;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fsstack_engine::answer::Entry;
use fsstack_engine::files::route::NoBackings;
use fsstack_engine::ops::WriteTerms;
use fsstack_engine::settings::Settings;
use fsstack_engine::{OpError, Union};
use fsstack_lab::{self as lab, MiB, Pool, needs};
use fsstack_pool::{BranchSpec, EntryNameBuf, Ino};
use fsstack_sys::at::{Mounts, RenameFlags};
use fsstack_sys::{self as sys, Call, Errno, OFlags, fault};
use tempfile::TempDir;

use crate::engine::{Engine, settings};

/// Errors that any call of a branch, or of the daemon's machine, may return.
const ERRNOS: [Errno; 5] = [Errno::IO, Errno::ACCESS, Errno::NOMEM, Errno::MFILE, Errno::INTR];

/// Handle and attributes as kept by an NFS client.
#[derive(Clone, Debug)]
struct HeldHandle {
    path: &'static str,
    id: (Ino, u64),
    /// Parent, for a directory.
    above: Option<(Ino, u64)>,
}

type Told = Result<(Ino, u64), OpError>;

struct ExportedPool {
    branches: Pool,
    state: TempDir,
}

fn id(entry: Entry) -> (Ino, u64) {
    (entry.ino, entry.generation)
}

impl ExportedPool {
    fn mount(&self) -> Engine {
        let state_dir = Some(self.state.path().to_owned());
        let settings = Settings { nfs_export: true, state_dir, ..settings("ff") };
        Engine::over(self.roots().iter().map(PathBuf::as_path), settings)
    }

    /// Like [`Self::mount`], where that may fail.
    fn try_mount(&self) -> Option<Arc<Union>> {
        let state_dir = Some(self.state.path().to_owned());
        let settings = Settings { nfs_export: true, state_dir, ..settings("ff") };
        let specs = self.roots().map(BranchSpec::new);
        Some(Arc::new(Union::new(fsstack_engine::Pool::open(&specs, settings).ok()?, Arc::new(NoBackings))))
    }

    /// Renames `from` to `to` out of band, on each branch that has it.
    fn rename(&self, from: &str, to: &str) {
        for root in self.roots().iter().filter(|root| fs::symlink_metadata(root.join(from)).is_ok()) {
            fs::rename(root.join(from), root.join(to)).unwrap();
        }
    }

    /// Checks that failed calls left nothing behind.
    fn assert_unchanged(&self, held: &[HeldHandle]) {
        let engine = self.mount();
        for held in held {
            assert_eq!(at_last(&engine, |engine| itself(engine, held)).ok(), Some(held.id), "{held:?}");
            assert_eq!(hold(&engine, held.path).id, held.id, "{held:?}");
        }
    }

    fn roots(&self) -> [PathBuf; 2] {
        ["a", "b"].map(|name| self.branches.branch(name).path().to_owned())
    }

    /// One object of each kind, with their handles.
    fn filled(branches: Pool) -> (Self, Vec<HeldHandle>) {
        // In memory, because it is mounted a thousand times.
        let state = tempfile::tempdir_in("/dev/shm").unwrap();
        let test_bed = Self { branches, state };
        let [a, b] = test_bed.roots();
        for dir in ["d/sub", "both", "lost", "parted"] {
            fs::create_dir_all(a.join(dir)).unwrap();
        }
        for file in ["d/file", "d/hard", "d/moved"] {
            fs::write(a.join(file), file).unwrap();
        }
        symlink("file", a.join("d/link")).unwrap();
        fs::hard_link(a.join("d/hard"), a.join("d/sub/hard too")).unwrap();
        fs::create_dir(b.join("both")).unwrap();
        fs::write(b.join("both/on b"), "on b").unwrap();
        for file in ["f", "g"] {
            fs::write(b.join(file), file).unwrap();
        }
        let engine = test_bed.mount();
        // Later copies of directories on `b`, made by renaming files into them.
        for (from, to) in [("f", "lost/f"), ("g", "parted/g")] {
            engine.rename(Path::new(from), Path::new(to), RenameFlags::empty()).unwrap();
        }
        test_bed.branches.branch("a").fill_until_free(MiB(1));
        grow(&engine, "d/moved", 4 << 20);
        assert!(b.join("d/moved").exists() && !a.join("d/moved").exists());
        let paths = [
            "d",
            "d/file",
            "d/link",
            "d/hard",
            "d/moved",
            "d/sub",
            "both",
            "both/on b",
            "lost",
            "lost/f",
            "parted",
        ];
        let mut held: Vec<_> = paths.iter().map(|path| hold(&engine, path)).collect();
        drop(engine);
        // A directory loses its first copy; another is renamed on its second branch, and becomes two.
        fs::remove_dir(a.join("lost")).unwrap();
        fs::rename(b.join("parted"), b.join("parted too")).unwrap();
        let engine = test_bed.mount();
        held.extend(["parted too", "parted too/g"].iter().map(|path| hold(&engine, path)));
        for held in &held {
            assert_eq!(hold(&engine, held.path).id, held.id, "{held:?}");
        }
        drop(engine);
        (test_bed, held)
    }
}

fn hold(engine: &Engine, path: &'static str) -> HeldHandle {
    let entry = engine.find(Path::new(path)).unwrap();
    let above = Path::new(path).parent().filter(|above| !above.as_os_str().is_empty());
    let above = above.map_or((Ino::ROOT, 0), |above| id(engine.find(above).unwrap()));
    HeldHandle { path, id: id(entry), above: entry.attr.stat.is_dir().then_some(above) }
}

/// Writes at the end until everything is written.
fn grow(engine: &Engine, path: &str, mut len: usize) {
    let handle = engine.open(Path::new(path), OFlags::WRONLY).unwrap();
    let mut at = 0;
    while len > 0 {
        let done = engine.union.write(handle, at, &vec![b'm'; len.min(1 << 20)], WriteTerms::default());
        let done = done.unwrap();
        (at, len) = (at + done as u64, len - done);
    }
    engine.union.release(handle);
}

/// True if the kernel turns the error into ESTALE. A certain ENOENT is passed on and counts as ESTALE.
fn is_gone(answer: &Told) -> bool {
    answer.is_err_and(|error| error.errno() == Errno::STALE || error.is_missing_for_sure())
}

/// Request for the handle, and the expected result.
struct Question {
    about: &'static str,
    /// Steps before it.
    before: fn(&Engine, &HeldHandle),
    ask: fn(&Engine, &HeldHandle) -> Told,
    wanted: fn(&HeldHandle) -> Option<(Ino, u64)>,
}

fn itself(engine: &Engine, held: &HeldHandle) -> Told {
    engine.union.lookup_self(held.id.0).map(id)
}

fn known(engine: &Engine, held: &HeldHandle) {
    itself(engine, held).unwrap();
}

const QUESTIONS: [Question; 3] = [
    Question { about: "itself", before: |_, _| (), ask: itself, wanted: |held| Some(held.id) },
    Question { about: "itself, known", before: known, ask: itself, wanted: |held| Some(held.id) },
    Question {
        about: "what it is in",
        before: known,
        ask: |engine, held| engine.union.lookup_parent(held.id.0).map(id),
        wanted: |held| held.above,
    },
];

/// Result of the request, repeated until it is not "not now".
fn at_last(engine: &Engine, ask: impl Fn(&Engine) -> Told) -> Told {
    let began = Instant::now();
    loop {
        let answer = ask(engine);
        if answer.is_ok() || is_gone(&answer) || began.elapsed() > Duration::from_secs(60) {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Result for an NFS client, and the result without failures.
struct Answers {
    answer: Told,
    later: Told,
}

impl Answers {
    fn are_wrong(&self, wanted: (Ino, u64)) -> bool {
        let is_it = |answer: &Told| answer.as_ref().is_ok_and(|answer| *answer == wanted);
        is_gone(&self.answer) || self.answer.is_ok() && !is_it(&self.answer) || !is_it(&self.later)
    }
}

/// Each call fails once with each of `errnos`. `asks` makes the `nth` fail and returns it; `None` when there are no
/// more.
fn every_call_fails_once(
    held: &[HeldHandle],
    errnos: &[Errno],
    asks: impl Fn(&Question, &HeldHandle, u64, Errno) -> (Answers, Option<Call>),
) {
    let (mut wrong, mut failures) = (Vec::new(), 0);
    for question in &QUESTIONS {
        for held in held {
            let Some(wanted) = (question.wanted)(held) else { continue };
            for errno in errnos.iter().copied() {
                for nth in 1.. {
                    let (answers, failed) = asks(question, held, nth, errno);
                    if answers.are_wrong(wanted) {
                        let (about, Answers { answer, later }) = (question.about, answers);
                        wrong.push(format!(
                            "{}, {about}: call {nth} ({failed:?}) {errno:?}: answer {answer:?}, later {later:?}, it is {wanted:?}",
                            held.path
                        ));
                    }
                    if failed.is_none() {
                        break;
                    }
                    failures += 1;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {failures}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(failures > 500, "{failures}");
}

/// For a daemon that was just started, and objects at their last known paths.
fn after_a_mount(branches: Pool) {
    let (test_bed, held) = ExportedPool::filled(branches);
    // Each case takes a mount: for the engine the other errors are like NOMEM.
    every_call_fails_once(&held, &ERRNOS[..3], |question, held, nth, errno| {
        let engine = test_bed.mount();
        (question.before)(&engine, held);
        let (answer, failed) = fault::fail(nth, errno, || (question.ask)(&engine, held));
        let later = at_last(&engine, |engine| (question.ask)(engine, held));
        (Answers { answer, later }, failed)
    });
    test_bed.assert_unchanged(&held);
}

/// For objects that were renamed out of band to names that they never had.
fn after_a_rename(branches: Pool) {
    let (test_bed, held) = ExportedPool::filled(branches);
    let engine = test_bed.mount();
    let names = Cell::new(0);
    every_call_fails_once(&held, &ERRNOS, |question, held, nth, errno| {
        let fresh = || format!("{}~{}", held.path, names.replace(names.get() + 1));
        let (before, now) = (fresh(), fresh());
        test_bed.rename(held.path, &before);
        (question.before)(&engine, held);
        test_bed.rename(&before, &now);
        let (answer, failed) = fault::fail(nth, errno, || (question.ask)(&engine, held));
        let later = at_last(&engine, |engine| (question.ask)(engine, held));
        // Expected results, and further accepted ones.
        for (ino, _) in [Some(held.id), held.above].into_iter().flatten().filter(|(ino, _)| *ino != Ino::ROOT)
        {
            (0..100).for_each(|_| engine.union.forget(ino, 1));
        }
        test_bed.rename(&now, held.path);
        (Answers { answer, later }, failed)
    });
    drop(engine);
    test_bed.assert_unchanged(&held);
}

fn by_number() -> Pool {
    lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).unmounted()
}

fn looked_for() -> Pool {
    lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(16)).unmounted()
}

#[test]
fn existing_objects_are_never_gone_where_they_are_opened_by_number() {
    needs!(root(), loops());
    after_a_mount(by_number());
}

#[test]
fn renamed_objects_are_never_gone_where_they_are_opened_by_number() {
    needs!(root(), loops());
    after_a_rename(by_number());
}

#[test]
fn existing_objects_are_never_gone_where_they_are_searched() {
    needs!(root());
    after_a_mount(looked_for());
}

#[test]
fn renamed_objects_are_never_gone_where_they_are_searched() {
    needs!(root());
    after_a_rename(looked_for());
}

/// One copy does not answer, and the other was removed out of band.
#[test]
fn a_directory_is_not_gone_while_one_of_its_copies_cannot_be_asked() {
    needs!(root());
    let (test_bed, _) = ExportedPool::filled(looked_for());
    let [a, b] = test_bed.roots();
    for nth in 1.. {
        for root in [&a, &b] {
            fs::create_dir_all(root.join("two")).unwrap();
        }
        let engine = test_bed.mount();
        let held = hold(&engine, "two");
        fs::remove_dir(b.join("two")).unwrap();
        let ino = held.id.0;
        let (answer, failed) = fault::fail(nth, Errno::IO, || engine.union.getattr(ino, None).map(drop));
        let answer = answer.map_err(OpError::errno);
        assert!(matches!(answer, Ok(()) | Err(Errno::IO)), "{nth} ({failed:?}): {answer:?}");
        let mut value = [0; 8];
        let asked =
            || engine.union.getxattr(ino, c"user.none", fsstack_engine::Caller::DAEMON, &mut value).map(drop);
        let (answer, of_xattr) = fault::fail(nth, Errno::IO, asked);
        assert_ne!(answer.map_err(OpError::errno), Err(Errno::STALE), "{nth} ({of_xattr:?})");
        if failed.is_none() && of_xattr.is_none() {
            return assert!(nth > 2, "{nth}");
        }
    }
}

/// An identity that cannot be read at a mount is not replaced.
#[test]
fn a_mount_at_which_a_call_fails_changes_no_number() {
    needs!(root());
    let (test_bed, held) = ExportedPool::filled(looked_for());
    let pool = test_bed.mount().union.id();
    let mut wrong = Vec::new();
    for errno in ERRNOS {
        for nth in 1.. {
            let (mounted, failed) = fault::fail(nth, errno, || test_bed.try_mount());
            let mounts = mounted.is_some();
            if let Some(union) = mounted {
                union.destroy(); // a remaining reference would keep the index open
            }
            let engine = test_bed.mount();
            let others = held.iter().filter(|held| hold(&engine, held.path).id != held.id).count();
            if others > 0 || engine.union.id() != pool {
                let id = engine.union.id();
                wrong.push(format!(
                    "call {nth} ({failed:?}) {errno:?}: mounted {mounts}, {others} others, {id:?}"
                ));
            }
            if failed.is_none() {
                assert!(nth > 20 && mounts, "{nth}");
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A directory deeper than the kernel prints paths, in one that is moved to and fro.
#[test]
fn a_directory_that_is_moved_far_below_is_never_gone() {
    needs!(root(), loops());
    let (test_bed, _) = ExportedPool::filled(by_number());
    let [a, _] = test_bed.roots();
    let name = CString::new("n".repeat(200)).unwrap();
    let mut way = vec![sys::at::open_root(&a).unwrap()];
    for level in 0..26 {
        let last = way.last().unwrap();
        sys::at::mkdir(last.as_fd(), &name, 0o755).unwrap();
        if level == 23 {
            sys::at::mkdir(last.as_fd(), c"other", 0o755).unwrap();
        }
        way.push(sys::at::open_dir(last.as_fd(), &name, Mounts::Stay).unwrap());
    }
    let engine = test_bed.mount();
    let mut at = Ino::ROOT;
    for _ in 0..26 {
        let name = EntryNameBuf::from_bytes(name.to_bytes()).unwrap();
        at = engine.union.lookup(at, name.as_name()).unwrap().ino;
    }
    drop(engine);
    let other = sys::at::open_dir(way[23].as_fd(), c"other", Mounts::Stay).unwrap();
    let engine = test_bed.mount();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ends = [(&way[24], &name), (&other, &name)];
            for turn in 0.. {
                if over.load(Relaxed) && turn % 2 == 0 {
                    break;
                }
                let ((from, old), (to, new)) = (ends[turn % 2], ends[(turn + 1) % 2]);
                sys::at::rename(from.as_fd(), old, to.as_fd(), new, RenameFlags::empty()).unwrap();
            }
        });
        let gone = (0..2000).filter(|_| {
            let answer = engine.union.lookup_self(at).map(id);
            engine.union.forget(at, u64::from(answer.is_ok()));
            is_gone(&answer)
        });
        let gone = gone.count();
        over.store(true, Relaxed);
        assert_eq!(gone, 0);
    });
    assert_eq!(
        at_last(&engine, |engine| engine.union.lookup_self(at).map(id)).map(|(ino, _)| ino).ok(),
        Some(at)
    );
}
