//! Copies of a directory change out of band while a program holds it, and uses names in it without looking its own name up.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, Pool, needs};
use rustix::fs::{Mode, OFlags};

/// A directory of the pool that is held, and through which names are used.
struct HeldDir {
    dir: File,
}

impl HeldDir {
    fn at(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd()).into()
    }

    fn list(&self) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(self.at("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }
}

/// A pool with a directory on both branches, of which the first is preferred, and that is held and in use.
fn held(option: &str) -> (Pool, HeldDir) {
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").option(option).mount();
    for name in ["a", "b"] {
        fs::create_dir_all(pool.branch(name).path().join("above/dir")).unwrap();
    }
    let held = HeldDir { dir: File::open(pool.at("above/dir")).unwrap() };
    fs::write(held.at("name"), "").unwrap();
    fs::remove_file(held.at("name")).unwrap();
    (pool, held)
}

/// Repeats `act` until it works.
fn soon<T>(what: &str, act: impl Fn() -> std::io::Result<T>) -> T {
    let began = Instant::now();
    loop {
        match act() {
            Ok(done) => return done,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{what}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Makes a name, from what the pool has.
type Make = dyn Fn(&Pool, &Path) -> std::io::Result<()>;

fn names_are_made_beside_a_removed_copy(option: &str, removed: &str) {
    needs!(mounting());
    let makes: [(&str, &Make); 6] = [
        ("create", &|_, name| File::create_new(name).map(drop)),
        ("mkdir", &|_, name| fs::create_dir(name)),
        ("symlink", &|_, name| symlink("target", name)),
        ("rename", &|pool, name| fs::rename(pool.at("outside"), name)),
        ("link", &|pool, name| fs::hard_link(pool.at("outside"), name)),
        ("an unnamed file", &|_, name| {
            let flags = OFlags::TMPFILE | OFlags::RDWR;
            Ok(rustix::fs::open(name.parent().unwrap(), flags, Mode::RWXU).map(drop)?)
        }),
    ];
    for (what, make) in makes {
        let (pool, held) = held(option);
        pool.write("outside", b"");
        fs::remove_dir_all(pool.branch("a").path().join(removed)).unwrap();
        soon(what, || make(&pool, &held.at("new")));
    }
}

#[test]
fn names_are_made_in_a_held_directory_that_lost_a_copy() {
    names_are_made_beside_a_removed_copy("attr-timeout=1", "above/dir");
}

#[test]
fn names_are_made_in_a_held_directory_that_lost_a_copy_with_all_above() {
    names_are_made_beside_a_removed_copy("attr-timeout=1", "above");
}

#[test]
fn names_are_made_in_a_held_directory_of_a_watched_pool_that_lost_a_copy() {
    names_are_made_beside_a_removed_copy("out-of-band=watch", "above/dir");
}

#[test]
fn a_copy_that_is_made_anew_is_listed_in_a_held_directory() {
    needs!(mounting());
    let (pool, held) = held("attr-timeout=1");
    let copy = pool.branch("a").path().join("above/dir");
    fs::remove_dir(&copy).unwrap();
    fs::create_dir(&copy).unwrap();
    fs::write(copy.join("new"), "new").unwrap();
    let text = soon("open", || fs::read_to_string(held.at("new")));
    assert_eq!((text.as_str(), held.list()), ("new", vec!["new".into()]));
}

#[test]
fn a_copy_that_was_renamed_is_not_used_for_a_held_directory() {
    needs!(mounting());
    let (pool, held) = held("attr-timeout=1");
    let above = pool.branch("a").path().join("above");
    fs::rename(above.join("dir"), above.join("other")).unwrap();
    soon("look", || match fs::exists(above.join("dir")) {
        Ok(true) => Ok(()),
        _ => {
            let made = File::create_new(held.at("new")).and_then(|_| fs::remove_file(held.at("new")));
            made.and_then(|()| Err(std::io::Error::other("it is not on the branch")))
        }
    });
    fs::write(held.at("last"), "").unwrap();
    assert!(above.join("dir/last").exists() && !above.join("other/last").exists());
}
