//! File handles held by an NFS server: after every event they lead to their original objects.

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use fsstack_lab::branch::Kind;
use fsstack_lab::{self as lab, MiB, Pool, needs, until};
use fsstack_sys::handle::{FileHandle, name_to_handle, open_handle};
use fsstack_sys::{Errno, OFlags, at};

use crate::command as operator;
use crate::script::sh;

/// Objects held in each test: a file, a directory, a symlink, one of two hard links, and deeper ones.
const HELD: [&str; 6] = ["d/file", "d", "d/link", "d/hard", "d/sub", "d/sub/deep"];

fn pool() -> Pool {
    let pool = unfilled();
    fill(&pool);
    pool
}

fn unfilled() -> Pool {
    lab::pool()
        .xfs_branch("x", MiB(300))
        .ext4_branch("e", MiB(100))
        .option("create=ff")
        .option("nfs-export")
        .mount()
}

pub(crate) fn fill(pool: &Pool) {
    pool.mkdir("d/sub");
    pool.write("d/file", b"file");
    pool.write("d/hard", b"hard");
    pool.write("d/sub/deep", b"deep");
    fs::hard_link(pool.at("d/hard"), pool.at("d/sub/hard too")).unwrap();
    symlink("file", pool.at("d/link")).unwrap();
    // Half of them on the second branch.
    pool.write("other", b"other");
}

/// A handle with its expected object.
#[derive(Debug)]
pub(crate) struct HeldHandle {
    path: String,
    handle: FileHandle,
    pub(crate) ino: u64,
    pub(crate) content: Option<String>,
}

impl HeldHandle {
    pub(crate) fn is_the_same_as(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

fn name(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

pub(crate) fn hold(pool: &Pool, path: &str) -> HeldHandle {
    let root = File::open(pool.path()).unwrap();
    let handle = name_to_handle(root.as_fd(), &name(Path::new(path))).unwrap();
    let meta = fs::symlink_metadata(pool.at(path)).unwrap();
    let content = meta.is_file().then(|| fs::read_to_string(pool.at(path)).unwrap());
    HeldHandle { path: path.to_owned(), handle, ino: meta.ino(), content }
}

pub(crate) fn hold_all(pool: &Pool) -> Vec<HeldHandle> {
    HELD.iter().map(|path| hold(pool, path)).collect()
}

pub(crate) fn open(pool: &Pool, held: &HeldHandle, flags: OFlags) -> Result<OwnedFd, Errno> {
    let root = File::open(pool.path()).unwrap();
    open_handle(root.as_fd(), &held.handle, flags).map_err(|error| error.errno)
}

/// Checks that the handle leads to its object and to no other.
#[track_caller]
pub(crate) fn check(pool: &Pool, held: &HeldHandle) {
    let fd = match open(pool, held, OFlags::PATH | OFlags::NOFOLLOW) {
        Ok(fd) => fd,
        Err(error) => panic!("{}: {error}", held.path),
    };
    assert_eq!(at::stat_fd(fd.as_fd()).unwrap().ino, held.ino, "{}", held.path);
    if let Some(content) = &held.content {
        let mut file = File::from(open(pool, held, OFlags::RDWR).unwrap());
        assert_eq!(&std::io::read_to_string(&mut file).unwrap(), content, "{}", held.path);
    }
    if at::stat_fd(fd.as_fd()).unwrap().is_dir() {
        drop(open(pool, held, OFlags::RDONLY | OFlags::DIRECTORY).unwrap());
    }
}

/// Checks that the handle is stale: at once, or when all marks of directories are known (ENOMEM until then,
/// docs/dev/decisions/0026).
#[track_caller]
pub(crate) fn check_stale(pool: &Pool, held: &HeldHandle) {
    let began = std::time::Instant::now();
    loop {
        match open(pool, held, OFlags::PATH).err() {
            Some(Errno::NOMEM) if began.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            failure => return assert_eq!(failure, Some(Errno::STALE), "{}", held.path),
        }
    }
}

/// Makes the kernel forget everything unused.
pub(crate) fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

/// Like [`forget`], and waits for the daemon, which FORGET may reach after later requests.
pub(crate) fn forget_everywhere(pool: &Pool) {
    let at = operator::at(pool);
    until("the daemon has forgotten all objects", || {
        forget();
        operator::json("status", &["status", &at])["pools"][0]["tables"]["inodes"] == 0
    });
}

/// Runs `event` on the pool while handles are held.
#[track_caller]
pub(crate) fn over(pool: &mut Pool, event: impl FnOnce(&mut Pool)) {
    let held = hold_all(pool);
    event(pool);
    for held in &held {
        check(pool, held);
    }
    forget();
    // In reverse too, so that each is the first one once.
    for held in held.iter().rev() {
        check(pool, held);
        forget();
    }
}

#[test]
fn handles_outlive_what_the_kernel_forgets() {
    needs!(mounting(), loops(), drop_caches());
    let mut pool = pool();
    over(&mut pool, |_| forget());
    over(&mut pool, |_| ());
}

/// It was not looked up since the kernel forgot it, so no path locates it.
#[test]
fn what_lies_in_the_hidden_folder_is_not_reached_by_a_handle() {
    needs!(mounting(), loops(), drop_caches());
    for kind in [Kind::Xfs(MiB(300)), Kind::Ext4(MiB(100))] {
        let pool = lab::pool().branch("x", kind).option("nfs-export").mount();
        let held = ["half", "deep/copied"].map(|path| {
            pool.mkdir("deep");
            pool.write(path, b"a copy");
            hold(&pool, path)
        });
        let (root, hidden) = (pool.branch("x").path(), pool.branch("x").path().join(".fsstack.moving"));
        fs::create_dir(&hidden).unwrap();
        fs::set_permissions(&hidden, Permissions::from_mode(0o700)).unwrap();
        for name in ["half", "deep"] {
            fs::rename(root.join(name), hidden.join(name)).unwrap();
        }
        for held in &held {
            forget_everywhere(&pool);
            check_stale(&pool, held);
        }
        for name in ["half", "deep"] {
            fs::rename(hidden.join(name), root.join(name)).unwrap();
        }
        for held in &held {
            forget_everywhere(&pool);
            check(&pool, held);
        }
    }
}

#[test]
fn handles_outlive_a_remount() {
    needs!(mounting(), loops(), drop_caches());
    let mut pool = pool();
    over(&mut pool, Pool::remount);
}

#[test]
fn handles_outlive_a_crash_of_the_daemon() {
    needs!(mounting(), loops(), drop_caches());
    let mut pool = pool();
    over(&mut pool, |pool| {
        pool.kill_daemon();
        pool.remount();
    });
}

#[test]
fn handles_outlive_renames_in_the_pool() {
    needs!(mounting(), loops(), drop_caches());
    let mut pool = pool();
    let held = hold_all(&pool);
    fs::rename(pool.at("d/file"), pool.at("moved")).unwrap();
    fs::rename(pool.at("d/sub"), pool.at("sub too")).unwrap();
    fs::rename(pool.at("d"), pool.at("e")).unwrap();
    for held in &held {
        check(&pool, held);
        forget();
        check(&pool, held);
    }
    pool.remount();
    held.iter().for_each(|held| check(&pool, held));
}

#[test]
fn handles_outlive_renames_behind_the_pools_back() {
    needs!(mounting(), loops(), drop_caches());
    let mut pool = pool();
    for remounts in [false, true] {
        let held = hold_all(&pool);
        let x = pool.branch("x").path().to_owned();
        sh(&x, "mkdir -p new; mv d/file new/file2; mv d/sub new/sub2; mv d new/d2");
        if remounts {
            pool.remount();
        }
        for held in &held {
            check(&pool, held);
            forget();
            check(&pool, held);
        }
        sh(&x, "mv new/d2 d; mv new/sub2 d/sub; mv new/file2 d/file");
        held.iter().for_each(|held| check(&pool, held));
    }
}

#[test]
fn a_handle_of_what_was_removed_is_stale_for_good() {
    needs!(mounting(), loops(), drop_caches());
    let pool = pool();
    let held = hold_all(&pool);
    sh(pool.path(), "rm -rf d");
    for _ in 0..3 {
        for held in &held {
            check_stale(&pool, held);
        }
        // Their inode numbers are reused.
        sh(pool.path(), "rm -rf d more");
        fill(&pool);
        sh(pool.path(), "for i in $(seq 40); do mkdir -p more/$i; echo > more/$i/f; ln -s x more/$i/l; done");
        forget();
    }
}

/// A pool with a nearly full first branch and a file `film` that was moved to the second; and its handle from before
/// the move.
pub(crate) fn moved() -> (Pool, HeldHandle) {
    let pool = lab::pool().xfs_branch("x", MiB(310)).xfs_branch("y", MiB(400)).option("create=ff");
    let pool = pool.option("write-path=stacked").option("nfs-export").mount();
    pool.mkdir("d");
    pool.write("d/film", b"");
    let mut held = hold(&pool, "d/film");
    pool.branch("x").fill_until_free(MiB(12));
    grow(&pool, "d/film");
    held.content = None;
    (pool, held)
}

/// Writes until the file exceeds its branch's free space.
pub(crate) fn grow(pool: &Pool, name: &str) {
    fs::write(pool.at(name), lab::zeros(MiB(24))).unwrap();
    assert_eq!(pool.holders(name), ["y"]);
}

#[test]
fn handles_outlive_a_move_to_another_branch() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    check(&pool, &held);
    forget();
    check(&pool, &held);
    pool.remount();
    check(&pool, &held);
    forget();
    assert_eq!(fs::metadata(pool.at("d/film")).unwrap().ino(), held.ino);
    assert_eq!(hold(&pool, "d/film").handle, held.handle);
    assert!(sh(pool.path(), "ls -iU d").contains(&held.ino.to_string()));
    pool.kill_daemon();
    pool.remount();
    check(&pool, &held);
    // Out of band, on the new branch.
    fs::rename(pool.branch("y").path().join("d/film"), pool.branch("y").path().join("reel")).unwrap();
    forget();
    check(&pool, &held);
    fs::remove_file(pool.at("reel")).unwrap();
    forget();
    check_stale(&pool, &held);
}

#[test]
fn a_lost_index_is_made_anew_from_the_marks() {
    needs!(mounting(), loops(), drop_caches());
    for damage in ["rm index.redb", "truncate -s 100 index.redb", "printf garbage > index.redb"] {
        let (mut pool, held) = moved();
        pool.unmount();
        sh(pool.state_dir(), &format!("cd */; {damage}"));
        pool.remount();
        // A lookup by name knows the number at once. The number leads to it as soon as its mark is found; until then it
        // is unreachable, never stale.
        assert_eq!(fs::metadata(pool.at("d/film")).unwrap().ino(), held.ino, "{damage}");
        forget();
        let began = std::time::Instant::now();
        while let Err(error) = open(&pool, &held, OFlags::PATH) {
            assert_eq!(error, Errno::NOMEM, "{damage}");
            assert!(began.elapsed() < Duration::from_secs(60), "{damage}");
            std::thread::sleep(Duration::from_millis(5));
        }
        check(&pool, &held);
        pool.remount();
        check(&pool, &held);
    }
}

#[test]
fn a_directory_is_found_when_its_first_copy_is_gone() {
    needs!(mounting(), loops(), drop_caches());
    let mut pool =
        lab::pool().xfs_branch("x", MiB(300)).xfs_branch("y", MiB(300)).option("nfs-export").unmounted();
    // Two copies from before the pool, and one that the pool makes.
    for branch in ["x", "y"] {
        fs::create_dir(pool.branch(branch).path().join("both")).unwrap();
    }
    fs::write(pool.branch("y").path().join("both/f"), "f").unwrap();
    fs::create_dir(pool.branch("x").path().join("made")).unwrap();
    fs::write(pool.branch("y").path().join("g"), "g").unwrap();
    pool.remount();
    fs::rename(pool.at("g"), pool.at("made/g")).unwrap();
    assert_eq!(pool.holders("made"), ["x", "y"]);
    let held: Vec<_> = ["both", "made", "both/f", "made/g"].map(|path| hold(&pool, path)).into();
    let again = |pool: &Pool| {
        for held in &held {
            check(pool, held);
            forget();
            check(pool, held);
            assert_eq!(hold(pool, &held.path).handle, held.handle, "{}", held.path);
        }
    };
    again(&pool);
    for dir in ["both", "made"] {
        fs::remove_dir(pool.branch("x").path().join(dir)).unwrap();
    }
    again(&pool);
    pool.remount();
    again(&pool);
    pool.kill_daemon();
    pool.remount();
    let began = std::time::Instant::now();
    while open(&pool, &held[1], OFlags::PATH).err() == Some(Errno::NOMEM) {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    again(&pool);
}

/// Deeper than paths that the kernel prints.
#[test]
fn handles_of_a_tree_that_is_deeper_than_a_path() {
    needs!(mounting(), loops(), drop_caches());
    let mut pool = unfilled();
    let name = CString::new("n".repeat(200)).unwrap();
    let mut way = vec![OwnedFd::from(File::open(pool.path()).unwrap())];
    for _ in 0..30 {
        let last = way.last().unwrap();
        at::mkdir(last.as_fd(), &name, 0o755).unwrap();
        way.push(at::open_dir(last.as_fd(), &name, at::Mounts::Stay).unwrap());
    }
    at::mkdir(way[29].as_fd(), c"beside", 0o755).unwrap();
    let held: Vec<HeldHandle> = [20, 25, 30]
        .map(|level| {
            let handle = name_to_handle(way[level - 1].as_fd(), &name).unwrap();
            let ino = at::stat_fd(way[level].as_fd()).unwrap().ino;
            HeldHandle { path: format!("level {level}"), handle, ino, content: None }
        })
        .into();
    drop(way);
    for remounts in [false, true] {
        if remounts {
            pool.remount();
        }
        for held in held.iter().rev() {
            forget();
            check(&pool, held);
        }
    }
}

/// The daemon has no descriptor left: that does not make the object stale.
#[test]
fn a_handle_is_never_stale_for_want_of_descriptors() {
    needs!(mounting(), loops(), drop_caches());
    let pool = pool();
    let held = hold_all(&pool);
    // Recently used entries survive one drop.
    (0..3).for_each(|_| forget());
    let daemon = rustix::process::Pid::from_raw(pool.daemon().pid);
    let limit = |current| {
        let whole = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = rustix::process::Rlimit { current: Some(current), ..whole };
        rustix::process::prlimit(daemon, rustix::process::Resource::Nofile, limit).unwrap()
    };
    let before = limit(3);
    let file = fs::read(pool.at("other")).err().and_then(|error| error.raw_os_error());
    let failure: Vec<_> = held.iter().map(|held| open(&pool, held, OFlags::PATH).err()).collect();
    limit(before.current.unwrap_or(1 << 16));
    assert_eq!(file, Some(Errno::NFILE.raw_os_error()), "a program gets ENFILE");
    assert!(failure.iter().all(|failure| matches!(failure, None | Some(Errno::NOMEM))), "{failure:?}");
    assert!(failure.contains(&Some(Errno::NOMEM)), "{failure:?}");
    held.iter().for_each(|held| check(&pool, held));
}
