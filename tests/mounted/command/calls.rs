//! `fsstack log` and `fsstack profile`: which calls they show, and that nothing is measured without them.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use fsstack_lab::{needs, until};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, open, openat, statat};
use serde_json::Value;

use super::*;
use crate::hung_branches::{FrozenDaemon, callers_waiting, described, filled};

fn log(pool: &Pool, more: &[&str]) -> Value {
    json("log", &[&["log", &at(pool)], more].concat())
}

/// Calls of one operation.
fn of<'a>(log: &'a Value, operation: &str) -> Vec<&'a Value> {
    log["calls"].as_array().unwrap().iter().filter(|call| call["operation"] == operation).collect()
}

#[test]
fn a_call_that_a_branch_keeps_long_is_logged_with_its_caller_path_and_branch() {
    needs!(mounting());
    let pool = filled(described().option("branch-timeout=60").no_others());
    assert_eq!(output_of(&["log", &at(&pool)]), "slow calls are not logged: --slow 100ms begins\n");
    let slow = log(&pool, &["--slow", "100ms"]);
    assert_eq!((&slow["threshold"]["micros"], slow["calls"].as_array().unwrap().len()), (&100_000.into(), 0));
    // Open, so that only the read has to wait.
    let file = File::open(pool.at("on-a/3")).unwrap();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let reader = thread::spawn(move || file.read_at(&mut [0; 16], 0).unwrap());
    until("the read waits", || callers_waiting() > 0);
    thread::sleep(Duration::from_millis(150));
    drop(frozen);
    assert_eq!(reader.join().unwrap(), "on-a/3".len());
    let slow = log(&pool, &[]);
    let reads = of(&slow, "read");
    let [read] = reads[..] else { panic!("{slow:#}") };
    assert_eq!(read["path"], "/on-a/3", "{slow:#}");
    assert_eq!(read["branch"], branch(&pool, "a"), "{slow:#}");
    assert!(read["micros"].as_u64().unwrap() >= 100_000 && read["error"].is_null(), "{slow:#}");
    assert_eq!(read["uid"], 0);
    // The kernel names the thread that waited, the log its process.
    assert_eq!(read["pid"], std::process::id(), "{slow:#}");
    let line = output_of(&["log", &at(&pool)]);
    assert!(line.contains("read /on-a/3  on ") && line.lines().count() == 1, "{line}");
}

#[test]
fn the_log_is_bounded_escapes_names_and_ends_when_it_is_off() {
    needs!(mounting());
    let pool = pool();
    pool.write("before", b"x");
    log(&pool, &["--slow", "0us"]);
    pool.write("new\nline", b"x");
    let slow = log(&pool, &[]);
    assert!(of(&slow, "create").iter().any(|call| call["path"] == "/new\\012line"), "{slow:#}");
    // The kernel sends the release of a file after its close was answered.
    let is_late = |call: &Value| call["operation"] == "release";
    let calls = slow["calls"].as_array().unwrap();
    assert!(calls.iter().all(|call| call["path"] != "/before" || is_late(call)), "{slow:#}");
    let text = output_of(&["log", &at(&pool)]);
    assert!(text.lines().all(|line| line.contains("Z  ")), "one line a call: {text}");
    for n in 0..600 {
        assert!(!pool.at(format!("missing-{n}")).exists());
        let _none = fs::create_dir(pool.at("before"));
        pool.write(format!("made-{n}"), b"x");
    }
    let slow = log(&pool, &["--slow", "off"]);
    let calls = slow["calls"].as_array().unwrap();
    assert_eq!((calls.len(), slow["threshold"].as_str()), (1000, Some("off")));
    assert!(slow["lost"].as_u64().unwrap() > 0);
    let last = calls.last().unwrap()["number"].clone();
    pool.write("after", b"x");
    // The last answer had the calls; then they are freed.
    let slow = log(&pool, &[]);
    assert_eq!((slow["calls"].as_array().unwrap().len(), &slow["lost"]), (0, &0.into()));
    log(&pool, &["--slow", "0us"]);
    pool.write("again", b"x");
    let slow = log(&pool, &[]);
    assert_eq!(slow["lost"], 0, "{slow:#}");
    assert!(last.as_u64() < slow["calls"][0]["number"].as_u64(), "{slow:#}");
    log(&pool, &["--slow", "off"]);
    let (code, line) = refused(&["log", &at(&pool), "--follow"]);
    assert!(code == 2 && line.contains("--slow 100ms"), "{line}");
    let (code, line) = refused(&["log", &at(&pool), "--slow", "fast"]);
    assert!(code == 2 && line.contains("such as 100ms"), "{line}");
}

#[test]
fn the_log_is_followed_as_json_lines() {
    needs!(mounting());
    let pool = pool();
    let home = tempfile::tempdir().unwrap();
    let (printed, pid) = (home.path().join("printed"), home.path().join("pid"));
    let scenario = format!(
        "echo $$ > {}; exec {} log {} --slow 0us --follow --json > {}",
        pid.display(),
        binary().display(),
        at(&pool),
        printed.display()
    );
    let following = thread::spawn(move || command("sh").args(["-c", &scenario]).output().unwrap());
    let mut n = 0;
    until("a call is printed", || {
        n += 1;
        pool.write(format!("file-{n}"), b"x");
        fs::read_to_string(&printed).is_ok_and(|text| text.contains("\"/file-"))
    });
    let pid: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    following.join().unwrap();
    let text = fs::read_to_string(&printed).unwrap();
    for line in text.lines().filter(|line| line.ends_with('}')) {
        let call: Value = serde_json::from_str(line).unwrap();
        assert!(call["number"].as_u64().unwrap() > 0, "{call:#}");
    }
}

/// Follows the slow calls of a pool; once one is printed, `end` is to make the command end.
fn followed_until(pool: &Pool, end: impl FnOnce()) -> Finished {
    let home = tempfile::tempdir().unwrap();
    let printed = home.path().join("printed");
    let scenario =
        format!("exec {} log {} --slow 0us --follow > {}", binary().display(), at(pool), printed.display());
    let following = thread::spawn(move || command("sh").args(["-c", &scenario]).output().unwrap());
    let mut n = 0;
    until("a call is printed", || {
        n += 1;
        pool.write(format!("file-{n}"), b"x");
        fs::read_to_string(&printed).is_ok_and(|text| text.contains(" /file-"))
    });
    end();
    following.join().unwrap()
}

#[test]
fn a_followed_log_ends_when_somebody_sets_it_to_off() {
    needs!(mounting());
    let pool = pool();
    let Finished { code, stderr, .. } = followed_until(&pool, || drop(log(&pool, &["--slow", "off"])));
    assert!(code == 1 && stderr.lines().count() == 1 && stderr.contains("--slow 100ms"), "{code}: {stderr}");
}

#[test]
fn a_followed_log_ends_when_the_daemon_is_upgraded() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("transport=dev").mount();
    let Finished { code, stderr, .. } = followed_until(&pool, || drop(output_of(&["upgrade", &at(&pool)])));
    assert!(code == 1 && stderr.lines().count() == 1 && stderr.contains("upgraded"), "{code}: {stderr}");
}

#[test]
fn a_profile_shows_calls_and_bytes_by_process_user_and_directory() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("write-path=stacked").no_others().mount();
    pool.mkdir("busy");
    pool.write("busy/file", &[b'x'; 4096]);
    let file = File::options().read(true).write(true).open(pool.at("busy/file")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let busy = thread::spawn(move || {
        while !told.load(Relaxed) {
            file.write_all_at(&[b'y'; 4096], 0).unwrap();
            file.read_exact_at(&mut [0; 4096], 0).unwrap();
        }
    });
    {
        let shown = |by: &str| json("profile", &["profile", &at(&pool), by, "--interval", "300ms"]);
        let profiles = ["--pid", "--uid", "--dir"].map(shown);
        for (profile, of) in profiles.iter().zip([None, Some("0"), Some("/busy")]) {
            let row = &profile["rows"][0];
            assert!(of.is_none_or(|of| row["of"] == of), "{profile:#}");
            let count = |key: &str| row[key].as_u64().unwrap();
            assert!(
                count("calls") > 0 && count("read_bytes") >= 4096 && count("written_bytes") >= 4096,
                "{profile:#}"
            );
            assert!(
                row["mean_us"].as_f64().unwrap() > 0.0 && row["busy"].as_f64().unwrap() > 0.0,
                "{profile:#}"
            );
        }
        assert!(!profiles[0]["rows"][0]["program"].as_str().unwrap().is_empty(), "{:#}", profiles[0]);
    }
    stop.store(true, Relaxed);
    busy.join().unwrap();
    let text = output_of(&["profile", &at(&pool), "--interval", "20ms"]);
    assert!(text.starts_with("PROCESS"), "{text}");
}

/// A process whose threads have names of their own, and make calls until there is a file `stop`.
const THREADS: &str = r#"
import os, sys, threading
pool, home = sys.argv[1:]
def work(n):
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write(f"worker-{n}")
    while not os.path.exists(home + "/stop"):
        open(f"{pool}/file-{n}", "wb").close()
threads = [threading.Thread(target=work, args=[n]) for n in range(4)]
for thread in threads:
    thread.start()
own = f"{os.getpid()} " + open("/proc/self/comm").read()
open(home + "/pid.new", "w").write(own)
os.rename(home + "/pid.new", home + "/pid")
for thread in threads:
    thread.join()
"#;

#[test]
fn the_threads_of_a_process_are_one_row_of_a_profile() {
    needs!(mounting(), program("python3"));
    let pool = pool();
    let home = tempfile::tempdir().unwrap();
    let work = command("python3").args(["-c", THREADS]).arg(pool.path()).arg(home.path());
    let working = thread::spawn(move || work.output().unwrap());
    let own = home.path().join("pid");
    until("the process works", || own.exists() && (0..4).all(|n| pool.at(format!("file-{n}")).exists()));
    let profile = json("profile", &["profile", &at(&pool), "--interval", "500ms"]);
    fs::write(home.path().join("stop"), b"").unwrap();
    let Finished { code, stderr, .. } = working.join().unwrap();
    assert_eq!(code, 0, "{stderr}");
    let own = fs::read_to_string(own).unwrap();
    let (pid, name) = own.trim().split_once(' ').unwrap();
    let program = |row: &Value| row["program"].as_str().unwrap_or_default().to_owned();
    let rows = profile["rows"].as_array().unwrap();
    let of_process: Vec<&Value> =
        rows.iter().filter(|row| row["of"] == pid || program(row).starts_with("worker")).collect();
    let [row] = of_process[..] else { panic!("{profile:#}") };
    assert_eq!((row["of"].as_str().unwrap(), program(row).as_str()), (pid, name), "{profile:#}");
    assert!(row["calls"].as_u64().unwrap() > 4, "{profile:#}");
}

#[test]
fn a_new_caller_has_a_row_after_more_callers_than_have_room() {
    needs!(mounting());
    let pool = pool();
    let in_dir = |dir: &str| assert!(!pool.at(dir).join("missing").exists());
    // Somebody looks from now on, for ten seconds.
    json("profile", &["profile", &at(&pool), "--dir", "--interval", "10ms"]);
    for n in 0..4500 {
        let dir = format!("dir-{n}");
        fs::create_dir(pool.at(&dir)).unwrap();
        in_dir(&dir);
    }
    pool.mkdir("fresh");
    let stop = AtomicBool::new(false);
    let profile = thread::scope(|threads| {
        threads.spawn(|| {
            let began = Instant::now();
            while !stop.load(Relaxed) && began.elapsed() < Duration::from_secs(60) {
                pool.write("fresh/file", b"x");
            }
        });
        let profile = json("profile", &["profile", &at(&pool), "--dir", "--interval", "300ms"]);
        stop.store(true, Relaxed);
        profile
    });
    let calls = |of: &str| {
        let row = profile["rows"].as_array().unwrap().iter().find(|row| row["of"] == of);
        row.map_or(0, |row| row["calls"].as_u64().unwrap())
    };
    assert!(calls("/fresh") > 0, "{profile:#}");
    // Rows that made room were counted before.
    assert!(calls("others") < 4000, "{profile:#}");
}

/// Directories in each other, by so long names that the last path has 375 KB.
const DEEP: usize = 1500;

fn long_name(depth: usize) -> String {
    format!("{depth:0>250}")
}

/// Opens each directory down to the last one, and looks for a missing name in it. With `make`, makes them.
fn walked_down(pool: &Pool, missing: &str, make: bool) -> OwnedFd {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY;
    let mut at = open(pool.path(), flags, Mode::empty()).unwrap();
    for depth in 0..DEEP {
        let name = long_name(depth);
        if make {
            mkdirat(&at, &name, Mode::RWXU).unwrap();
        }
        at = openat(&at, &name, flags, Mode::empty()).unwrap();
        assert!(statat(&at, missing, AtFlags::empty()).is_err());
    }
    at
}

/// A path of these directories has a bounded part: the last.
fn is_last_part(path: &str) -> bool {
    path.len() <= 4097 && path.starts_with("/.../0")
}

#[test]
fn paths_without_a_bound_take_bounded_memory() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").no_others().mount();
    drop(walked_down(&pool, "missing", true));
    let before = pool.daemon().resident().unwrap();
    let grown = |what: &str| {
        let grown = pool.daemon().resident().unwrap().saturating_sub(before);
        assert!(grown < 100 << 20, "{what}: the daemon grew by {grown} bytes");
    };

    log(&pool, &["--slow", "0us"]);
    let last = walked_down(&pool, "not-there", false);
    for n in 0..1000 {
        assert!(statat(&last, format!("missing-{n}"), AtFlags::empty()).is_err());
    }
    grown("slow calls");
    let slow = log(&pool, &["--slow", "off"]);
    let deep: Vec<&str> = of(&slow, "lookup").iter().filter_map(|call| call["path"].as_str()).collect();
    let ending = format!("/{}/missing-999", long_name(DEEP - 1));
    assert!(deep.iter().any(|path| is_last_part(path) && path.ends_with(&ending)), "{slow:#}");
    assert!(deep.iter().all(|path| path.len() <= 4097));

    thread::scope(|threads| {
        let watcher = threads.spawn(|| {
            until("a profile and a table show deep directories", || {
                let profile = json("profile", &["profile", &at(&pool), "--dir", "--interval", "300ms"]);
                let table = output_of(&["profile", &at(&pool), "--dir", "--interval", "300ms"]);
                let dirs: Vec<&str> =
                    profile["rows"].as_array().unwrap().iter().filter_map(|row| row["of"].as_str()).collect();
                assert!(dirs.iter().all(|dir| dir.len() <= 4097), "{profile:#}");
                dirs.iter().any(|dir| is_last_part(dir)) && table.contains("...")
            });
        });
        let mut walks = 0;
        while walks < 2 || !watcher.is_finished() {
            drop(walked_down(&pool, &format!("none-{walks}"), false));
            walks += 1;
        }
    });
    grown("totals by directory");
    drop(last);
    assert_eq!(command("rm").arg("-rf").arg(pool.at(long_name(0))).output().unwrap().code, 0);
    pool.unmount();
}

#[test]
fn other_users_see_no_calls() {
    needs!(mounting());
    let pool = pool();
    for arguments in [["log", &at(&pool)], ["profile", &at(&pool)], ["support", &at(&pool)]] {
        let Finished { code, stdout, .. } =
            command(binary()).args(arguments).as_user(1234, 1234).output().unwrap();
        assert_eq!((code, stdout.as_str()), (5, ""), "{arguments:?}");
    }
}
