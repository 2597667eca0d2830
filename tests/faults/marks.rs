//! Each call that reads the mark of an object's identity fails once: the object gets no other number, and no other mark
//! is written.
//! mark is written.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use fsstack_engine::settings::{Degraded, Settings};
use fsstack_lab::{self as lab, MiB, needs};
use fsstack_pool::Ino;
use fsstack_sys::at::RenameFlags;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{Errno, fault};

use crate::engine::{Answer, Engine, settings};

const DIR: &str = "dir";

/// [`DIR`] was made on `a`, and `b` got a copy of it later, by a renamed file.
fn with_a_later_copy([a, b]: [&Path; 2], mount: &impl Fn() -> Engine) -> Engine {
    fs::create_dir(a.join(DIR)).unwrap();
    fs::write(b.join("f"), "f").unwrap();
    let engine = mount();
    engine.rename(Path::new("f"), &Path::new(DIR).join("f"), RenameFlags::empty()).unwrap();
    engine
}

/// Identity of [`DIR`].
fn known(engine: &Engine) -> Answer<(Ino, u64)> {
    engine.find(Path::new(DIR)).map(|entry| (entry.ino, entry.generation))
}

/// Each call of a first lookup of [`DIR`] fails once: no caller sees another identity, then or later. `check` examines
/// each failure's result.
fn stays_itself(mount: &impl Fn() -> Engine, before: (Ino, u64), check: impl Fn(&str)) {
    let engine = mount();
    let (now, calls) = fault::count(|| known(&engine));
    assert_eq!(now, Ok(before));
    drop(engine);
    for nth in 1..=calls {
        let engine = mount();
        let (answer, failed) = fault::fail(nth, Errno::IO, || known(&engine));
        assert!(answer.is_err() || answer == Ok(before), "{nth} of {calls} ({failed:?}): {answer:?}");
        drop(engine);
        let after = format!("after a failure at {nth} ({failed:?})");
        check(&after);
        assert_eq!(known(&mount()), Ok(before), "{after}");
    }
}

#[test]
fn a_directory_whose_mark_cannot_be_read_is_not_another() {
    needs!(root());
    let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(4)).unmounted();
    let state = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| pool.branch(name).path());
    let mount = || {
        let state_dir = Some(state.path().to_owned());
        let settings = Settings { nfs_export: true, state_dir, ..settings("ff") };
        Engine::over([a, b].into_iter(), settings)
    };
    let before = known(&with_a_later_copy([a, b], &mount)).unwrap();
    // The copy that the number came from is gone: the mark on the other one has it.
    fs::remove_dir(a.join(DIR)).unwrap();
    stays_itself(&mount, before, |_| ());
}

#[test]
fn a_look_that_missed_the_first_copy_parts_no_directory() {
    needs!(root(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).unmounted();
    let state = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| pool.branch(name).path());
    let mount = || {
        let state_dir = Some(state.path().to_owned());
        let degraded = Degraded::Read;
        let settings = Settings { nfs_export: true, state_dir, degraded, ..settings("ff") };
        Engine::over([a, b].into_iter(), settings)
    };
    let is_marked = || {
        let branch = fs::File::open(b).unwrap();
        xattr::get(On::Name(branch.as_fd(), c"dir"), c"trusted.fsstack.dir", &mut [0; 64]).is_ok()
    };
    drop(with_a_later_copy([a, b], &mount));
    assert!(is_marked());
    let before = known(&mount()).unwrap();
    stays_itself(&mount, before, |after| assert!(is_marked(), "{after}"));
}
