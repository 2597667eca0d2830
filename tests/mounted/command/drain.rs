//! A branch is emptied and removed, invisibly to programs.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fsstack_lab::{self as lab, MiB, needs, until};

use super::*;
use crate::handles::{check, forget, hold};
use crate::relocate::{assert_clean, assert_mibs, mib, writer};
use crate::script::{passthrough, sh};

/// The tree as programs see it, except for atime and ctime, and the root's times.
pub(super) fn shown(pool: &Pool) -> Vec<String> {
    let text = sh(
        pool.path(),
        "find . -mindepth 1 -type d -printf '%P %y %m %U %G %T@ %i\\n'; \
         find . ! -type d -printf '%P %y %m %U %G %s %T@ %i %n %l\\n'; \
         find . -type f -print0 | xargs -0 -r sha256sum; \
         find . -print0 | sort -z | xargs -0 -r -n1 getfattr --absolute-names -dh -m - 2>/dev/null | paste -sd ' '",
    );
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[track_caller]
pub(super) fn assert_shown(pool: &Pool, before: &[String]) {
    let now = shown(pool);
    let gone: Vec<_> = before.iter().filter(|line| !now.contains(line)).collect();
    let new: Vec<_> = now.iter().filter(|line| !before.contains(line)).collect();
    assert!(gone.is_empty() && new.is_empty(), "before {gone:#?}, now {new:#?}");
}

pub(super) fn job(pool: &Pool) -> Value {
    json_of(&["job", "status", &at(pool), "--why"])
}

fn json_of(arguments: &[&str]) -> Value {
    let Finished { stdout, .. } = run(&[arguments, &["--json"]].concat());
    serde_json::from_str(&stdout).unwrap_or_default()
}

/// Checks that the branch is empty.
#[track_caller]
fn assert_empty(pool: &Pool, name: &str) {
    let left: Vec<_> =
        fs::read_dir(pool.branch(name).path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.is_empty() || left.iter().all(|name| name == "lost+found"), "{left:?}");
}

fn fill(pool: &Pool) {
    for n in 0..40 {
        pool.mkdir(format!("d{}/sub/leaf", n % 4));
        pool.write(format!("d{}/sub/{n}", n % 4), format!("file {n}").as_bytes());
    }
    pool.mkdir("empty/er");
    pool.write("film", &mib(3));
    File::create(pool.at("sparse")).unwrap().set_len(64 << 20).unwrap();
    for (old, new) in [("film", "d1/film2"), ("film", "d2/sub/film3"), ("d0/sub/0", "d0/sub/0b")] {
        fs::hard_link(pool.at(old), pool.at(new)).unwrap();
    }
    symlink("film", pool.at("d0/link")).unwrap();
    let _socket = UnixListener::bind(pool.at("d0/socket")).unwrap();
    sh(
        pool.path(),
        "mkfifo -m 640 d0/fifo; mknod d0/null c 1 3; chown -h 1:2 d0/link; chown 3:4 d0/fifo film; chmod 4755 film; \
         chmod 2775 d1; setfattr -n user.colour -v blue film; setfattr -n user.colour -v red d1/sub; \
         ln d0/fifo d3/fifo; ln -P d0/link d0/link2; \
         touch -h -d '2001-02-03 04:05:06.789' d0/link d0/fifo film d1/sub d2 .",
    );
}

fn everything_leaves(pool: Pool) {
    fill(&pool);
    // A directory on both branches, and files on the other branch only.
    fs::write(pool.branch("b").path().join("there"), "there").unwrap();
    let paths = ["d1/sub", "d0/link", "d0/fifo", "d0", "empty/er", "d2/sub/2", "d0/sub/0b"];
    let (before, handles) = (shown(&pool), paths.map(|path| hold(&pool, path)));
    let (at, a) = (at(&pool), branch(&pool, "a"));
    let planned = json("job", &["branch", "drain", &at, &a, "--dry-run"]);
    assert_eq!((&planned["state"], &planned["files"]), (&"planned".into(), &46.into()), "{planned}");
    assert_eq!(pool.holders("film"), ["a"]);
    let done = json("job", &["branch", "drain", &at, &a]);
    assert_eq!((&done["state"], &done["moved_files"]), (&"done".into(), &46.into()), "{done}");
    assert_empty(&pool, "a");
    assert_shown(&pool, &before);
    output_of(&["branch", "remove", &at, &a]);
    let mark = rustix::fs::getxattr(pool.branch("a").path(), c"trusted.fsstack.drain", &mut [0_u8; 64][..]);
    assert!(mark.is_err(), "the next pool would drain it");
    forget();
    assert_shown(&pool, &before);
    handles.iter().for_each(|held| check(&pool, held));
    assert_clean(&pool);
}

#[test]
fn all_that_a_branch_holds_leaves_it_unseen() {
    needs!(mounting(), loops(), drop_caches(), program("getfattr"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    everything_leaves(pool.option("create=ff").option("nfs-export").mount());
}

#[test]
fn all_that_a_branch_holds_leaves_it_for_another_file_system() {
    needs!(mounting(), loops(), drop_caches(), program("getfattr"));
    let pool = lab::pool().ext4_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=ff").option("nfs-export").mount();
    // It belongs to the file system, and stays.
    fs::remove_dir(pool.branch("a").path().join("lost+found")).unwrap();
    everything_leaves(pool);
}

#[test]
fn a_file_leaves_under_its_writers_and_readers() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=ff").option("write-path=stacked").mount();
    let file = writer(pool.at("film"));
    (0..8).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    let mut log = File::options().append(true).create(true).open(pool.at("log")).unwrap();
    let gone = writer(pool.at("gone"));
    gone.write_all_at(b"still read", 0).unwrap();
    let ended = AtomicBool::new(false);
    let lines = std::thread::scope(|scope| {
        let appends = scope.spawn(|| {
            let mut lines = 0_u32;
            while !ended.load(SeqCst) {
                writeln!(log, "{lines}").unwrap();
                lines += 1;
            }
            lines
        });
        output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
        ended.store(true, SeqCst);
        appends.join().unwrap()
    });
    assert_eq!((pool.holders("film"), pool.holders("log")), (vec!["b"], vec!["b"]));
    (8..12).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    drop(file);
    assert_mibs(&pool, "film", 12);
    let all: String = (0..lines).map(|n| format!("{n}\n")).collect();
    assert_eq!(String::from_utf8(pool.read("log")).unwrap(), all);
    fs::remove_file(pool.at("gone")).unwrap();
    let mut text = [0; 10];
    gone.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"still read");
    output_of(&["branch", "remove", &at(&pool), &branch(&pool, "a")]);
    assert_clean(&pool);
}

/// Checks that the drain of `a` has moved `other` to `b`, and waits for `film`, as `why` says.
#[track_caller]
pub(super) fn assert_waits_for_film(pool: &Pool, at: &str, why: &str) {
    until("the job waits", || run(&["job", "status", at]).stdout.contains("waiting"));
    assert_eq!((pool.holders("other"), pool.holders("film")), (vec!["b"], vec!["a"]));
    let shown = output_of(&["job", "status", at, "--why"]);
    assert!(shown.contains(&format!("film: {why}")), "{shown}");
}

/// The kernel reads and writes it by passthrough, or has it mapped: it moves when it is closed.
#[test]
fn a_file_open_by_passthrough_is_waited_for_and_named() {
    needs!(mounting(), loops());
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=ff").option("passthrough-headroom=0").mount();
    pool.write("other", b"other");
    let file = writer(pool.at("film"));
    file.write_all_at(&mib(0), 0).unwrap();
    let (at, a) = (at(&pool), branch(&pool, "a"));
    std::thread::scope(|scope| {
        let drains = scope.spawn(|| run(&["branch", "drain", &at, &a]));
        assert_waits_for_film(&pool, &at, "it is open by passthrough");
        assert!(output_of(&["status", &at]).contains("job 1: drain"));
        let figures = output_of(&["metrics", &at]);
        assert!(figures.contains("fsstack_job_moved_files{"), "{figures}");
        let (_, busy) = refused(&["branch", "drain", &at, &a]);
        assert!(busy.contains("job 1"), "{busy}");
        for change in [&["branch", "mode", &at, &a, "RW"][..], &["branch", "remove", &at, &a]] {
            let (_, why) = refused(change);
            assert!(why.contains("job 1 empties it"), "{change:?}: {why}");
        }
        file.write_all_at(&mib(1), 1 << 20).unwrap();
        drop(file);
        assert_eq!(drains.join().unwrap().code, 0);
    });
    assert_mibs(&pool, "film", 2);
    output_of(&["branch", "remove", &at, &a]);
    assert_mibs(&pool, "film", 2);
}

#[test]
fn a_dry_run_leaves_the_times_of_the_roots() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").mount();
    let time = |seconds| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    fs::write(pool.branch("a").path().join("film"), "x").unwrap();
    for (name, seconds) in [("a", 2_000_000_000), ("b", 1_000_000_000)] {
        let root = File::open(pool.branch(name).path()).unwrap();
        root.set_times(fs::FileTimes::new().set_accessed(time(seconds)).set_modified(time(seconds))).unwrap();
    }
    let planned = json("job", &["branch", "drain", &at(&pool), &branch(&pool, "a"), "--dry-run"]);
    assert_eq!(planned["state"], "planned", "{planned:#}");
    assert_eq!(fs::metadata(pool.branch("b").path()).unwrap().modified().unwrap(), time(1_000_000_000));
}

#[test]
fn a_job_whose_targets_were_all_taken_away_ends_and_says_so() {
    needs!(mounting(), loops());
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=ff").option("passthrough-headroom=0").mount();
    let file = writer(pool.at("film"));
    file.write_all_at(&mib(0), 0).unwrap();
    let (at, a) = (at(&pool), branch(&pool, "a"));
    std::thread::scope(|scope| {
        let drains = scope.spawn(|| run(&["branch", "drain", &at, &a]));
        until("the job waits", || run(&["job", "status", &at]).stdout.contains("waiting"));
        output_of(&["branch", "mode", &at, &branch(&pool, "b"), "RO"]);
        let Finished { code, stderr, .. } = drains.join().unwrap();
        assert!(code == 1 && stderr.contains("no branch is left that takes its files"), "{stderr}");
    });
    assert_eq!(pool.holders("film"), ["a"]);
}

/// The pool notices within a second.
#[test]
fn a_directory_made_behind_the_pools_back_goes_and_is_counted_once() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount();
    fs::create_dir(pool.branch("b").path().join("x")).unwrap();
    assert!(fs::metadata(pool.at("x")).unwrap().is_dir());
    fs::create_dir(pool.branch("a").path().join("x")).unwrap();
    let done = json("job", &["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    assert_eq!((&done["state"], &done["moved_directories"]), (&"done".into(), &1.into()), "{done}");
    assert_empty(&pool, "a");
}

#[test]
fn a_branch_that_does_not_fit_elsewhere_is_not_begun_with() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount();
    (0..20).for_each(|n| pool.write(format!("{n}"), &mib(n)));
    pool.branch("b").fill_until_free(MiB(8));
    let (code, why) = refused(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    assert!(code == 1 && why.contains("lack room") && why.contains("MiB"), "{why}");
    assert_eq!(pool.holders("7"), ["a"]);
    assert_eq!(json("status", &["status", &at(&pool)])["pools"][0]["branches"][0]["mode"], "RW");
    pool.branch("b").drop_ballast();
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    assert_eq!(json("status", &["status", &at(&pool)])["pools"][0]["branches"][0]["mode"], "NC");
    assert_eq!(pool.read("7"), mib(7));
}

#[test]
fn hidden_names_are_reported_before_anything_moves() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount();
    pool.write("film", b"shown");
    fs::write(pool.branch("b").path().join("film"), "hidden").unwrap();
    fs::write(pool.branch("b").path().join("other"), "other").unwrap();
    let (_, why) = refused(&["branch", "drain", &at(&pool), &branch(&pool, "b"), "--hidden=stop"]);
    assert!(why.contains("hidden") && why.contains("film"), "{why}");
    assert_eq!(pool.holders("other"), ["b"]);
    // Names are printable, whatever they contain.
    let odd = "film\u{1b}[31m\nred";
    for name in ["a", "b"] {
        fs::write(pool.branch(name).path().join(odd), "odd").unwrap();
    }
    let (_, why) = refused(&["branch", "drain", &at(&pool), &branch(&pool, "b")]);
    assert!(why.contains("[31m") && !why.contains('\u{1b}'), "{why}");
    fs::remove_file(pool.branch("a").path().join(odd)).unwrap();
    fs::remove_file(pool.branch("b").path().join(odd)).unwrap();
    // A file that hides another stays, with its reason; the dry run reports it.
    let Finished { code, stdout, .. } =
        run(&["branch", "drain", &at(&pool), &branch(&pool, "a"), "--dry-run"]);
    assert!(code == 1 && stdout.contains("film: it hides files"), "{stdout}");
    let Finished { code, stdout, .. } = run(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    assert!(code == 1 && stdout.contains("film: it hides files"), "{stdout}");
    assert_eq!(pool.read("film"), b"shown");
    assert_eq!(refused(&["branch", "drain", &at(&pool), &branch(&pool, "b"), "--hidden=all"]).0, 2);
}

#[test]
fn what_cannot_leave_is_named_and_the_rest_leaves() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount();
    pool.mkdir("d");
    pool.mkdir("e");
    pool.write("d/one", b"linked");
    // A name that the pool does not show: the branch is a directory of a larger file system.
    fs::hard_link(pool.at("d/one"), pool.at("e/two")).unwrap();
    fs::create_dir(pool.branch("a").path().join(".fsstack.moving")).unwrap();
    let outside = pool.branch("a").path().join(".fsstack.moving/three");
    fs::hard_link(pool.branch("a").path().join("d/one"), &outside).unwrap();
    pool.write("fixed", b"fixed");
    pool.write("d/free", b"free");
    sh(pool.path(), "chattr +i fixed");
    let Finished { code, stdout, .. } = run(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    sh(pool.path(), "chattr -i fixed");
    assert_eq!(code, 1, "{stdout}");
    for named in
        ["d/one: it has hard links", "e/two: it has hard links", "fixed: it is append-only or immutable"]
    {
        assert!(stdout.contains(named), "{stdout}");
    }
    assert_eq!((pool.holders("d/free"), pool.holders("d/one")), (vec!["b"], vec!["a"]));
    assert_eq!(job(&pool)["state"], "incomplete");
    fs::remove_file(&outside).unwrap();
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    assert_eq!((pool.read("d/one"), pool.read("e/two")), (b"linked".to_vec(), b"linked".to_vec()));
    assert_eq!(fs::metadata(pool.at("d/one")).unwrap().nlink(), 2);
    assert_empty(&pool, "a");
}

/// Killed, and cancelled, during a copy: moved files stay moved, and none is incomplete.
#[test]
fn a_drain_that_is_cut_short_is_begun_again() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let mut pool = pool.option("create=ff").option("write-path=stacked").mount();
    for n in 0..12 {
        pool.write(format!("small{n}"), format!("{n}").as_bytes());
    }
    (0..6).for_each(|n| pool.write(format!("large{n}"), &mib(n)));
    let (at, a) = (at(&pool), branch(&pool, "a"));
    let begin = |rate: &'static str| {
        let (at_, a) = (at.clone(), a.clone());
        let drains = std::thread::spawn(move || run(&["branch", "drain", &at_, &a, "--rate", rate]));
        until("it moves", || {
            let moved = &json_of(&["job", "status", &at])["state"];
            moved == "moving"
        });
        drains
    };
    let drains = begin("300k");
    output_of(&["job", "cancel", &at, "1"]);
    assert_eq!(drains.join().unwrap().code, 1);
    assert_eq!(job(&pool)["state"], "cancelled");
    let drains = begin("300k");
    pool.kill_daemon();
    assert_eq!(drains.join().unwrap().code, 4);
    // The next mount goes on with it; cancelled, it is not begun again.
    let mode = || json("status", &["status", &at])["pools"][0]["branches"][0]["mode"].clone();
    pool.remount();
    until("it goes on", || json_of(&["job", "status", &at])["state"] == "moving");
    assert_eq!(mode(), "NC");
    output_of(&["job", "cancel", &at, "1"]);
    pool.kill_daemon();
    pool.remount();
    assert_eq!((run(&["job", "status", &at]).code, mode()), (3, "RW".into()));
    output_of(&["branch", "drain", &at, &a]);
    assert_empty(&pool, "a");
    pool.kill_daemon();
    pool.remount();
    until("it finds nothing", || json_of(&["job", "status", &at])["state"] == "done");
    assert_eq!(mode(), "NC");
    (0..12).for_each(|n| assert_eq!(pool.read(format!("small{n}")), format!("{n}").as_bytes()));
    (0..6).for_each(|n| assert!(pool.read(format!("large{n}")) == mib(n), "large{n}"));
    assert_clean(&pool);
}

/// Files and links that are renamed, replaced, changed and removed while they move.
#[test]
fn what_changes_meanwhile_is_as_it_was_changed() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=ff").mount();
    const FILES: u32 = 400;
    for n in 0..FILES {
        pool.mkdir(format!("d{}", n % 7));
        pool.write(format!("d{}/{n}", n % 7), format!("{n}").repeat(100).as_bytes());
        symlink(format!("{n}"), pool.at(format!("d{}/link{n}", n % 7))).unwrap();
    }
    let ended = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let changers: Vec<_> = (0..2)
            .map(|one: u32| {
                let (pool, ended) = (&pool, &ended);
                scope.spawn(move || change(pool, one, FILES, ended))
            })
            .collect();
        let drained = run(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
        ended.store(true, SeqCst);
        let rounds: Vec<u32> = changers.into_iter().map(|one| one.join().unwrap()).collect();
        assert!(drained.code == 0 || drained.stdout.contains("staying"), "{}", drained.stderr);
        rounds
    });
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    output_of(&["branch", "remove", &at(&pool), &branch(&pool, "a")]);
    for n in 0..FILES {
        let (d, round) = (n % 7, rounds[(n % 2) as usize]);
        let mut text = String::new();
        File::open(pool.at(format!("d{d}/{n}"))).unwrap().read_to_string(&mut text).unwrap();
        let changes = if round > 0 { format!("+{}", round - 1) } else { String::new() };
        assert!(text.ends_with(&changes), "{n}, {round}: {text}");
        let link = pool.at(format!("d{d}/link{n}"));
        assert_eq!(fs::read_link(&link).unwrap().to_str().unwrap(), format!("{n}"));
        if round > 0 {
            assert_eq!(fs::symlink_metadata(&link).unwrap().uid(), round, "{n}");
        }
        assert!(!pool.at(format!("d{d}/{n}.new")).exists() && !pool.at(format!("d{d}/link{n}.old")).exists());
    }
    assert_eq!((0..7).map(|d| pool.list(format!("d{d}")).len()).sum::<usize>(), 2 * FILES as usize);
}

/// Number of times that all files of one half were changed.
fn change(pool: &Pool, half: u32, files: u32, ended: &AtomicBool) -> u32 {
    let mut round = 0;
    while !ended.load(SeqCst) {
        for n in (0..files).filter(|n| n % 2 == half) {
            let (name, link) = (pool.at(format!("d{}/{n}", n % 7)), pool.at(format!("d{}/link{n}", n % 7)));
            match n % 3 {
                0 => {
                    let new = name.with_extension("new");
                    fs::write(&new, format!("+{round}")).unwrap();
                    fs::rename(&new, &name).unwrap();
                }
                1 => {
                    let mut file = File::options().append(true).open(&name).unwrap();
                    file.write_all(format!("+{round}").as_bytes()).unwrap();
                }
                _ => {
                    fs::remove_file(&name).unwrap();
                    fs::write(&name, format!("+{round}")).unwrap();
                }
            }
            std::os::unix::fs::lchown(&link, Some(round + 1), None).unwrap();
            fs::rename(&link, link.with_extension("old")).unwrap();
            fs::rename(link.with_extension("old"), &link).unwrap();
        }
        round += 1;
    }
    round
}

/// The mark of a drain that has ended goes with the change of the mode, also where another program serves by then.
#[test]
fn a_branch_that_was_drained_before_an_upgrade_is_taken_back_for_good() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").option("transport=dev").mount();
    pool.write("file", b"content");
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    output_of(&["upgrade", &at(&pool)]);
    output_of(&["branch", "mode", &at(&pool), &branch(&pool, "a"), "RW"]);
    pool.remount();
    assert_eq!(json("jobs", &["job", "list", &at(&pool)])["jobs"].as_array().unwrap().len(), 0);
    assert_eq!(json("status", &["status", &at(&pool)])["pools"][0]["branches"][0]["mode"], "RW");
}
