//! A daemon dies in the middle of a request, and the next one does it once: `restart=keep`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use fsstack_lab::shell::{Finished, command};
use fsstack_lab::{self as lab, Pool, needs, until};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, XattrFlags, mknodat, renameat_with};

/// Places where a daemon dies: about to act, having acted, having noted the answer, having given it.
const PLACES: [&str; 4] = ["acts", "done", "performed", "answered"];

/// A pool whose daemon dies at `place` each time that the file exists.
fn pool(place: &str, file: &Path, options: &[&str]) -> Pool {
    let builder = lab::pool().tmp_branch("a").tmp_branch("b").tmp_branch("c");
    let log = format!("log={}", file.with_file_name("log").display());
    let builder = builder
        .option("restart=keep")
        .option("create=ff")
        .option("seccomp=off")
        .option(&log)
        .option("log-level=debug");
    let builder = options.iter().fold(builder, |builder, option| builder.option(option));
    builder
        .helper(env!("CARGO_BIN_EXE_mount-fsstack-faulty"))
        .env("FSSTACK_TEST_DEATHS", "any")
        .env("FSSTACK_TEST_KEEP", &format!("{place}:{}", file.display()))
        .mount()
}

/// Makes the daemon die in the next such request.
struct Trap<'a> {
    pool: &'a Pool,
    file: &'a Path,
    place: &'a str,
}

impl Trap<'_> {
    /// Does `work` with a death in it.
    #[track_caller]
    fn spring<T>(&self, what: &str, work: impl FnOnce() -> std::io::Result<T>) -> T {
        until("the daemon before", || self.pool.daemon().child().is_some());
        let before = self.pool.daemon().child().unwrap();
        File::create(self.file).unwrap();
        let done = work();
        if let Err(error) = &done {
            std::thread::sleep(Duration::from_millis(500));
            let log = fs::read_to_string(self.file.with_file_name("log")).unwrap_or_default();
            panic!("{what} at {}: {error}\n{log}", self.place);
        }
        until("the daemon dies", || !self.file.exists() && !before.lives());
        done.unwrap_or_else(|error| panic!("{what} at {}: {error}", self.place))
    }
}

#[test]
fn each_request_is_done_once_wherever_the_daemon_dies() {
    needs!(mounting());
    PLACES.into_iter().for_each(each_request_is_done_once);
}

/// The daemon dies when it has made a directory, and before it syncs it.
#[test]
fn what_was_done_is_on_disk_before_it_is_answered_if_the_mount_says_so() {
    needs!(mounting());
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("trap");
    for (options, syncs) in [(&[][..], false), (&["dirsync"], true), (&["sync"], true)] {
        let pool = pool("done", &file, options);
        let trap = Trap { pool: &pool, file: &file, place: "done" };
        trap.spring("mkdir", || fs::create_dir(pool.at("d")));
        assert!(pool.at("d").is_dir());
        let metrics =
            command(command_path()).arg("metrics").arg(pool.path()).output().unwrap().check().unwrap();
        let synced = metrics.stdout.contains("call=\"syncfs\"");
        assert_eq!(synced, syncs, "{options:?}: {}", metrics.stdout);
    }
}

fn each_request_is_done_once(place: &str) {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("trap");
    let pool = pool(place, &file, &[]);
    let at = |name: &str| pool.at(name);
    let trap = Trap { pool: &pool, file: &file, place };
    pool.mkdir("d");
    pool.write("d/old", b"old");
    pool.write("d/over", b"over");
    pool.mkdir("d/full/below");
    pool.mkdir("d/empty");
    // One with copies on two branches.
    fs::create_dir_all(pool.branch("b").path().join("d/twice")).unwrap();
    fs::create_dir_all(pool.branch("a").path().join("d/twice")).unwrap();

    let new = || File::options().write(true).create_new(true).mode(0o640).open(at("d/new"));
    let mut made = trap.spring("create", new);
    made.write_all(b"new").unwrap();
    drop(made);
    assert_eq!(fs::metadata(at("d/new")).unwrap().mode() & 0o7777, 0o640);
    let refused = File::options().write(true).create_new(true).open(at("d/new")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);

    trap.spring("mkdir", || fs::create_dir(at("d/dir")));
    trap.spring("mknod", || Ok(mknodat(CWD, at("d/fifo"), FileType::Fifo, Mode::RUSR, 0)?));
    trap.spring("symlink", || symlink("new", at("d/link")));
    assert_eq!(fs::read(at("d/link")).unwrap(), b"new");
    trap.spring("link", || fs::hard_link(at("d/old"), at("d/hard")));
    assert_eq!(fs::metadata(at("d/hard")).unwrap().nlink(), 2);
    trap.spring("unlink", || fs::remove_file(at("d/old")));
    trap.spring("rename", || fs::rename(at("d/hard"), at("d/moved")));
    trap.spring("rename over", || fs::rename(at("d/moved"), at("d/over")));
    assert_eq!(fs::read(at("d/over")).unwrap(), b"old");
    trap.spring("rename of a directory", || fs::rename(at("d/full"), at("d/deep")));
    trap.spring("rename without replacing", || {
        Ok(renameat_with(CWD, at("d/deep"), CWD, at("d/deeper"), RenameFlags::NOREPLACE)?)
    });
    trap.spring("rmdir", || fs::remove_dir(at("d/empty")));
    trap.spring("rmdir of two copies", || fs::remove_dir(at("d/twice")));
    let list = || Ok(fs::read_dir(at("d"))?.count());
    assert_eq!(trap.spring("opendir", list), 6);
    assert_eq!(trap.spring("open", || fs::read(at("d/over"))), b"old");

    attributes_are_set_once(&trap);
    let seen: BTreeMap<_, _> = fs::read_dir(at("d"))
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), entry.file_type().unwrap().is_dir())
        })
        .collect();
    let expected =
        [("deeper", true), ("dir", true), ("fifo", false), ("link", false), ("new", false), ("over", false)];
    assert_eq!(seen, expected.map(|(name, dir)| (name.to_owned(), dir)).into(), "{place}");
    assert_eq!(pool.holders("d/new"), ["a"]);
    assert!(at("d/deeper/below").is_dir());
    until("no handle is left over", || open_handles(&pool) == (0, 0));
}

/// Attributes of `d/over`.
fn attributes_are_set_once(trap: &Trap<'_>) {
    let file = trap.pool.at("d/over");
    let set = |flags| Ok(rustix::fs::setxattr(&file, "user.x", b"1", flags)?);
    trap.spring("setxattr", || set(XattrFlags::CREATE));
    assert!(set(XattrFlags::CREATE).is_err());
    let remove = || Ok::<(), std::io::Error>(rustix::fs::removexattr(&file, "user.x")?);
    trap.spring("removexattr", remove);
    assert!(remove().is_err());
}

/// Open files and directories, as the daemon counts them.
pub(crate) fn open_handles(pool: &Pool) -> (u64, u64) {
    let told = lab::shell::command(crate::kept::command_path())
        .args(["status", "--json", pool.path().to_str().unwrap()])
        .output()
        .unwrap();
    // The socket is there a moment later than the pool.
    let Ok(told) = serde_json::from_str::<serde_json::Value>(&told.stdout) else { return (1, 1) };
    let tables = &told["pools"][0]["tables"];
    (tables["files"].as_u64().unwrap(), tables["dirs"].as_u64().unwrap())
}

/// The command, which is built beside the daemon.
pub(crate) fn command_path() -> std::path::PathBuf {
    lab::daemon::helper().unwrap().with_file_name("fsstack")
}

#[test]
fn appends_are_done_once() {
    needs!(mounting());
    for place in PLACES {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("trap");
        let pool = pool(place, &file, &["write-path=stacked"]);
        let trap = Trap { pool: &pool, file: &file, place };
        let mut log = File::options().append(true).create(true).open(pool.at("log")).unwrap();
        let mut expected = Vec::new();
        for round in 0..8 {
            let line = format!("{round} {}\n", "x".repeat(round * 3000));
            trap.spring("append", || log.write_all(line.as_bytes()));
            expected.extend(line.into_bytes());
            // The same bytes again are another line.
            log.write_all(&expected[expected.len() - 2..]).unwrap();
            let last: Vec<u8> = expected[expected.len() - 2..].to_vec();
            expected.extend(last);
            assert!(fs::read(pool.at("log")).unwrap() == expected, "{place}, round {round}");
        }
    }
}

#[test]
fn an_exchange_that_cannot_be_told_from_none_is_an_error() {
    needs!(mounting());
    for place in ["acts", "done", "performed"] {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("trap");
        let pool = pool(place, &file, &[]);
        pool.write("one", b"1");
        pool.write("two", b"2");
        File::create(&file).unwrap();
        let done = renameat_with(CWD, pool.at("one"), CWD, pool.at("two"), RenameFlags::EXCHANGE);
        assert_eq!(done.is_ok(), place == "performed", "{place}: {done:?}");
        let both = (pool.read("one"), pool.read("two"));
        let exchanged = both == (b"2".to_vec(), b"1".to_vec());
        assert!(exchanged || both == (b"1".to_vec(), b"2".to_vec()), "{both:?}");
        assert_eq!(exchanged, place != "acts", "{place}: {both:?}, {done:?}");
    }
}

/// Work of one thread, in a directory of its own: each call succeeds, and what was done is there.
pub(crate) fn work(dir: &Path, over: &AtomicBool, done: &AtomicU64) {
    fs::create_dir(dir).unwrap();
    let at = |name: String| dir.join(name);
    let mut log = File::options().append(true).create(true).open(at("log".into())).unwrap();
    let mut round = 0_u64;
    while !over.load(SeqCst) {
        let text = format!("{round}\n").repeat(300);
        let (new, named) = (at(format!("new{round}")), at(format!("f{}", round % 20)));
        File::options().write(true).create_new(true).open(&new).unwrap().write_all(text.as_bytes()).unwrap();
        fs::rename(&new, &named).unwrap();
        fs::hard_link(&named, at("hard".into())).unwrap();
        assert_eq!(fs::read_to_string(&named).unwrap(), text);
        fs::remove_file(at("hard".into())).unwrap();
        fs::create_dir(at("d".into())).unwrap();
        symlink("to", at("d/l".into())).unwrap();
        fs::remove_file(at("d/l".into())).unwrap();
        fs::remove_dir(at("d".into())).unwrap();
        log.write_all(format!("{round}\n").as_bytes()).unwrap();
        assert!(fs::read_dir(dir).unwrap().count() <= 22);
        if round.is_multiple_of(3) {
            fs::remove_file(&named).unwrap();
        }
        round += 1;
        done.fetch_add(1, SeqCst);
    }
    let logged = fs::read_to_string(at("log".into())).unwrap();
    let expected: String = (0..round).map(|round| format!("{round}\n")).collect();
    assert!(logged == expected, "lines of the log are lost, or there twice");
}

#[test]
fn no_program_notices_thirty_deaths() {
    needs!(mounting());
    const DEATHS: usize = 30;
    for way in ["write-path=stacked", "write-path=auto"] {
        let home = tempfile::tempdir().unwrap();
        let pool = pool("never", &home.path().join("trap"), &[way]);
        let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (dir, over, done) = (pool.at(format!("t{thread}")), &over, &done);
                scope.spawn(move || work(&dir, over, done));
            }
            for death in 0..DEATHS {
                let reached = done.load(SeqCst);
                until("programs go on", || done.load(SeqCst) > reached + 3);
                // At another moment of the work each time.
                std::thread::sleep(Duration::from_micros(u64::try_from(death * 437 % 5000).unwrap()));
                pool.daemon().child().unwrap().kill().unwrap();
                until("another daemon", || pool.daemon().child().is_some());
            }
            over.store(true, SeqCst);
        });
        until("no handle is left over", || open_handles(&pool) == (0, 0));
    }
}

#[test]
fn a_next_daemon_that_does_not_serve_leaves_the_pool_to_the_program_before() {
    needs!(mounting());
    the_program_before_goes_on("restart=keep");
}

/// The process that serves becomes the program before again.
#[test]
fn a_program_that_does_not_serve_becomes_the_one_before_without_a_keeper_too() {
    needs!(mounting());
    the_program_before_goes_on("restart=off");
}

fn the_program_before_goes_on(restart: &str) {
    for (does, why) in [("refuse", "as the test asks"), ("panic", "panicked"), ("hang", "within 20 s")] {
        let pool = lab::pool().tmp_branch("a").option("transport=dev").option(restart);
        let pool =
            pool.helper(env!("CARGO_BIN_EXE_mount-fsstack-faulty")).env("FSSTACK_TEST_ADOPT", does).mount();
        let file = File::options().read(true).write(true).create(true).truncate(true).open(pool.at("file"));
        let mut file = file.unwrap();
        file.write_all(b"before").unwrap();
        fs::remove_file(pool.at("file")).unwrap();
        let known = pool.daemon();
        let upgraded = upgrade(&pool);
        assert_eq!(upgraded.code, 1, "{restart}, {does}: {}", upgraded.stderr);
        assert!(upgraded.stderr.contains(why), "{restart}, {does}: {}", upgraded.stderr);
        assert!(known.lives(), "{restart}, {does}");
        file.write_all(b", after").unwrap();
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before, after", "{restart}, {does}");
        // Work goes on as well.
        pool.write("other", does.as_bytes());
        assert_eq!(pool.read("other"), does.as_bytes(), "{restart}, {does}");
    }
}

pub(crate) fn upgrade(pool: &Pool) -> Finished {
    command(command_path()).arg("upgrade").arg(pool.path()).output().unwrap()
}

/// A state that is damaged or another version's leads nowhere: nothing is served by guesses. The log of the mount has the reason.
#[test]
fn a_keeper_that_cannot_read_the_state_ends_the_pool() {
    needs!(mounting());
    for damage in ["short", "changed", "newer"] {
        for is_upgrade in [false, true] {
            let log = tempfile::NamedTempFile::new().unwrap();
            let pool = lab::pool().tmp_branch("a").option("restart=keep");
            let mut pool = pool
                .option(&format!("log={}", log.path().display()))
                .helper(env!("CARGO_BIN_EXE_mount-fsstack-faulty"))
                .env("FSSTACK_TEST_STATE", damage)
                .mount();
            pool.write("file", b"x");
            let keeper = pool.daemon();
            if is_upgrade {
                // It has been checked with a state that is whole.
                let told = upgrade(&pool);
                assert_ne!(told.code, 0, "{damage}: {}", told.stdout);
                assert!(told.stderr.contains("the daemon ended"), "{damage}: {}", told.stderr);
            } else {
                keeper.child().unwrap().kill().unwrap();
            }
            until("the keeper ends", || !keeper.lives());
            assert!(lab::mounts::at(pool.path()).unwrap().is_none(), "{damage}: still mounted");
            let told = fs::read_to_string(log.path()).unwrap();
            assert!(told.contains("not started again") && told.contains("state"), "{damage}: {told}");
            pool.remount();
            assert_eq!(pool.read("file"), b"x");
        }
    }
}
