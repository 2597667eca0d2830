//! Files go down a tier by themselves, and jobs keep to their window of the day.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use fsstack_lab::{self as lab, MiB, needs, until, until_within};

use super::drain::job;
use super::*;
use crate::relocate::{assert_clean, mib};
use crate::script::sh;

/// One fast branch, which takes what no rule is for, one slow one, and one of no class.
fn builder() -> lab::Builder {
    let pool = lab::pool().xfs_branch("fast", MiB(300)).mode("RW,class=fast");
    let pool = pool.xfs_branch("other", MiB(300)).xfs_branch("slow", MiB(400)).mode("RW,class=slow");
    pool.option("create=ff").option("minfreespace=8M").no_others()
}

fn tier(pool: &Pool) -> Value {
    json("tiers", &["tier", "status", &at(pool)])["tiers"][0].clone()
}

/// Waits until the tier has nothing to do.
fn settled(pool: &Pool) {
    until("the tier's files are down", || tier(pool)["state"] == "below-start");
}

/// Five files of 30 MiB, the first of them read least recently and written last, and one that a strict rule holds.
fn fill(pool: &Pool) {
    pool.mkdir("pinned");
    output_of(&["rule", "set", &at(pool), "/pinned", "@fast;strict"]);
    pool.write("pinned/file", &mib(9).repeat(30));
    for n in 0..5_u64 {
        pool.write(format!("{n}"), &mib(n).repeat(30));
    }
    sh(
        pool.path(),
        "touch -d 2001-01-01 pinned/file; for n in 0 1 2 3 4; do touch -m -d 200$((7 - n))-01-01 $n; touch -a -d 201$n-01-01 $n; done",
    );
}

/// Seconds of the last access on the branches.
fn read_at(pool: &Pool, path: &str) -> i64 {
    let at = pool.branch(pool.holders(path)[0]).path().join(path);
    fs::metadata(at).unwrap().atime()
}

/// The share of the fast class that is used, less `bytes`.
fn below(pool: &Pool, bytes: MiB) -> String {
    sh(pool.branch("fast").path(), "sync -f .");
    let free = rustix::fs::statvfs(pool.branch("fast").path()).unwrap();
    let used = (free.f_blocks - free.f_bavail) * free.f_frsize - bytes.bytes();
    let thousandths = used * 1000 / (free.f_blocks * free.f_frsize);
    format!("{}.{}%", thousandths / 10, thousandths % 10)
}

fn goes_down(order: &str, first: &str, second: &str) {
    let pool = builder().mount();
    fill(&pool);
    let paths = ["pinned/file", "0", "1", "2", "3", "4"];
    let before = paths.map(|path| (path, read_at(&pool, path), fs::metadata(pool.at(path)).unwrap().ino()));
    let (start, stop) = (below(&pool, MiB(20)), below(&pool, MiB(45)));
    let set =
        ["tier", "set", &at(&pool), "fast", "slow", "--start", &start, "--stop", &stop, "--order", order];
    let set = json("tiers", &set);
    assert_eq!(set["tiers"][0]["order"], order, "{set}");
    settled(&pool);
    assert_eq!(pool.holders("pinned/file"), ["fast"]);
    let down: Vec<&str> = paths.into_iter().filter(|path| pool.holders(*path) == ["slow"]).collect();
    let mut expected = [first, second];
    expected.sort_unstable();
    assert_eq!(down, expected, "{}", tier(&pool));
    for (path, read, ino) in before {
        assert_eq!(read_at(&pool, path), read, "a look at {path} has changed its atime");
        assert_eq!(fs::metadata(pool.at(path)).unwrap().ino(), ino);
    }
    let n: u64 = first.parse().unwrap();
    assert!(pool.read(first) == mib(n).repeat(30), "{first} has changed");
    let last = job(&pool);
    assert_eq!(
        (&last["kind"], &last["branch"], &last["moved_files"]),
        (&"tier".into(), &"fast>slow".into(), &2.into()),
        "{last}"
    );
    assert_clean(&pool);
}

#[test]
fn the_files_that_were_used_least_recently_go_down_until_there_is_room() {
    needs!(mounting(), loops());
    // The last access of each is later than its last change.
    goes_down("atime", "0", "1");
}

/// Its files were used least recently of all.
#[test]
fn a_fast_branch_that_takes_no_change_does_not_keep_the_others_full() {
    needs!(mounting(), loops());
    let mut pool = lab::pool().xfs_branch("fixed", MiB(300)).mode("RO,class=fast");
    pool = pool.xfs_branch("fast", MiB(300)).mode("RW,class=fast");
    let pool =
        pool.xfs_branch("slow", MiB(400)).mode("RW,class=slow").option("create=ff").no_others().mount();
    fs::write(pool.branch("fixed").path().join("coldest"), mib(9).repeat(60)).unwrap();
    sh(pool.branch("fixed").path(), "touch -d 2001-01-01 coldest");
    (0..3_u64).for_each(|n| pool.write(format!("{n}"), &mib(n).repeat(30)));
    let (start, stop) = (below(&pool, MiB(20)), below(&pool, MiB(45)));
    json("tiers", &["tier", "set", &at(&pool), "fast", "slow", "--start", &start, "--stop", &stop]);
    until("two are down", || (0..3).filter(|n| pool.holders(n.to_string()) == ["slow"]).count() == 2);
    settled(&pool);
    assert_eq!(pool.holders("coldest"), ["fixed"]);
}

#[test]
fn by_mtime_files_go_down_that_are_read_all_the_time() {
    needs!(mounting(), loops());
    goes_down("mtime", "4", "3");
}

#[test]
fn a_dry_run_names_the_files_that_go_down_and_sets_no_tier() {
    needs!(mounting(), loops());
    let pool = builder().mount();
    fill(&pool);
    let (at, start, stop) = (at(&pool), below(&pool, MiB(20)), below(&pool, MiB(45)));
    let set = [
        "tier",
        "set",
        &at,
        "fast",
        "slow",
        "--start",
        &start,
        "--stop",
        &stop,
        "--rate",
        "100M",
        "--make-way",
    ];
    let plan = json("job", &[&set[..], &["--dry-run"]].concat());
    let moves: Vec<_> = plan["plan"].as_array().unwrap().iter().map(|one| one["path"].clone()).collect();
    assert_eq!(
        (&plan["state"], &plan["kind"], moves),
        (&"planned".into(), &"tier".into(), vec!["0".into(), "1".into()]),
        "{plan}"
    );
    assert_eq!(output_of(&["tier", "status", &at]), "no tier: no file moves by itself\n");
    assert_eq!(pool.holders("0"), ["fast"]);
    let tiers = json("tiers", &set);
    assert!(tiers["tiers"][0]["tier"].as_str().unwrap().ends_with(";rate=100M;make-way"), "{tiers}");
    settled(&pool);
    let down = ["pinned/file", "0", "1", "2", "3", "4"].map(|path| pool.holders(path) == ["slow"]);
    assert_eq!(down, [false, true, true, false, false, false]);
}

/// The next plan would name it again.
#[test]
fn a_plan_has_no_file_that_would_stay() {
    needs!(mounting(), loops());
    if let Err(skip) = crate::script::passthrough() {
        return skip.announce();
    }
    let pool = builder()
        .option("passthrough-headroom=0")
        .option("write-path=passthrough")
        .option("relocate=off")
        .mount();
    fill(&pool);
    let (at, start, stop) = (at(&pool), below(&pool, MiB(20)), below(&pool, MiB(45)));
    let _held = fs::File::open(pool.at("0")).unwrap();
    let plan = |more: &[&str]| {
        let set = ["tier", "set", &at, "fast", "slow", "--start", &start, "--stop", &stop, "--dry-run"];
        let plan = json("job", &[&set[..], more].concat());
        plan["plan"].as_array().unwrap().iter().map(|one| one["path"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(plan(&[]), ["1", "2"]);
    assert_eq!(plan(&["--make-way"]), ["0", "1"]);
}

#[test]
fn what_is_younger_stays_and_the_tier_rests() {
    needs!(mounting(), loops());
    let pool = builder().mount();
    fill(&pool);
    pool.write("young", &mib(1).repeat(30));
    // Each of the old ones is enough; all but one of them are held by their age.
    let set = ["tier", "set", &at(&pool), "fast->slow", "--start", "50%", "--stop", "0%", "--min-age", "1h"];
    output_of(&set);
    until("the old ones are down", || {
        tier(&pool)["state"] == "resting" || tier(&pool)["state"] == "below-start"
    });
    assert_eq!(pool.holders("young"), ["fast"]);
    assert!((0..5).all(|n| pool.holders(format!("{n}").as_str()) == ["slow"]), "{}", tier(&pool));
    // Nothing is begun again and again: the old one is the last job of the tier.
    let jobs = json("jobs", &["job", "list", &at(&pool)]);
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1, "{jobs}");
}

#[test]
fn new_files_of_a_full_class_go_to_the_next_one_and_do_not_lie_against_their_rule() {
    needs!(mounting(), loops());
    let pool = builder().option("place-rules=/in=@fast").option("tiers=fast>slow;start=95%;stop=90%").mount();
    pool.mkdir("in");
    pool.write("in/1", b"x");
    assert_eq!(pool.holders("in/1"), ["fast"]);
    pool.branch("fast").fill_until_free(MiB(7));
    until("free space was asked for", || {
        pool.write("in/2", b"x");
        let on = pool.holders("in/2");
        fs::remove_file(pool.at("in/2")).unwrap();
        on == ["slow"]
    });
    let status = json("status", &["status", &at(&pool)]);
    assert_eq!(
        (&status["pools"][0]["misplaced"], &status["pools"][0]["tiers"][0]["fast"]),
        (&0.into(), &"fast".into())
    );
    let explained =
        json("explain-create", &["explain", &at(&pool), "create", pool.at("in/3").to_str().unwrap()]);
    assert!(explained["chosen"].as_str().unwrap().ends_with("slow"), "{explained}");
    let text = output_of(&["status", &at(&pool)]);
    assert!(text.contains("tier fast>slow: "), "{text}");
}

#[test]
fn a_tier_outlives_the_mount_and_the_daemon_and_makes_way() {
    needs!(mounting(), loops());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pool.toml");
    fs::write(&file, "# ours\n").unwrap();
    let pool = builder().option(&format!("config={}", file.display())).option("transport=dev");
    let mut pool = pool.option("relocate-speed=1M").mount();
    fill(&pool);
    let at = at(&pool);
    let set = ["tier", "set", &at, "fast", "slow", "--start", "60%", "--stop", "45%", "--persist"];
    assert_eq!(json("tiers", &set)["persisted"], file.to_str().unwrap());
    let text = "fast>slow;start=60%;stop=45%;order=atime";
    assert!(fs::read_to_string(&file).unwrap().contains(text));
    let is_moving = |pool: &Pool| tier(pool)["state"] == "moving";
    until("the tier moves", || is_moving(&pool));
    // Another job, and another daemon, need not wait for it.
    let plan = json("job", &["balance", &at, "--dry-run"]);
    assert_eq!(plan["state"], "planned", "{plan}");
    until("the tier moves again", || is_moving(&pool));
    let plan =
        json("job", &["tier", "set", &at, "fast", "slow", "--start", "60%", "--stop", "45%", "--dry-run"]);
    assert_eq!(plan["state"], "planned", "{plan}");
    until("the tier moves after its plan", || is_moving(&pool));
    let upgraded = output_of(&["upgrade", &at]);
    assert!(upgraded.contains(" -> "), "{upgraded}");
    assert_eq!(output_of(&["get", &at, "tiers"]), format!("{text}\n"));
    until("the tier moves after the upgrade", || is_moving(&pool));
    pool.remount();
    until("the tier moves after the mount", || is_moving(&pool));
    // Called off by the operator it rests.
    let job = tier(&pool)["job"].to_string();
    output_of(&["job", "cancel", &at, &job]);
    assert_eq!(tier(&pool)["state"], "resting");
    output_of(&["set", &at, "relocate-speed=0"]);
    output_of(&["tier", "set", &at, "fast>slow", "--start", "60%", "--stop", "45.5%"]);
    settled(&pool);
    output_of(&["tier", "remove", &at, "fast", "--persist"]);
    assert_eq!(output_of(&["tier", "status", &at]), "no tier: no file moves by itself\n");
    assert_clean(&pool);
}

/// A window that opens in two hours, by the clock of the machine.
pub(crate) fn later() -> String {
    let hours = sh(std::path::Path::new("/"), "echo $(date -d '2 hours' +%H):00-$(date -d '3 hours' +%H):59");
    hours.trim().to_owned()
}

/// A window that is open now and closes in one to two minutes, by the clock of the machine.
fn until_soon() -> String {
    let minutes = sh(std::path::Path::new("/"), "echo $(date +%H:%M)-$(date -d '120 seconds' +%H:%M)");
    minutes.trim().to_owned()
}

/// Small files move together, and together they take longer than the window.
#[test]
fn small_files_that_move_together_stop_with_the_window() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount();
    for n in 0..128 {
        pool.write(n.to_string(), &[7; 256 << 10]);
    }
    let at = at(&pool);
    let drain = ["branch", "drain", &at, &branch(&pool, "a"), "--rate", "16K", "--window", &until_soon()];
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| command(binary()).args(drain).limit(Duration::from_secs(400)).output());
        until("files are under way", || job(&pool)["state"] == "moving");
        until_within(Duration::from_secs(300), "the drain is parked", || job(&pool)["state"] == "parked");
        let parked = job(&pool);
        assert!(parked["moved_files"].as_u64() > Some(0), "what was copied has moved: {parked}");
        output_of(&["job", "cancel", &at, &parked["id"].to_string()]);
        drained.join().unwrap().unwrap();
    });
    for n in 0..128 {
        assert_eq!(pool.holders(n.to_string()).len(), 1);
        assert_eq!(pool.read(n.to_string()), [7; 256 << 10]);
    }
    assert_clean(&pool);
}

#[test]
fn a_job_outside_of_its_window_is_parked_and_says_so() {
    needs!(mounting(), loops());
    let pool = builder().mount();
    fill(&pool);
    output_of(&["rule", "remove", &at(&pool), "/pinned"]);
    let (at, window) = (at(&pool), later());
    let begun = std::thread::scope(|scope| {
        let drained =
            scope.spawn(|| run(&["branch", "drain", &at, &branch(&pool, "fast"), "--window", &window]));
        until("the drain is parked", || job(&pool)["state"] == "parked");
        let parked = job(&pool);
        assert_eq!(
            (&parked["window"], &parked["moved_files"]),
            (&window.as_str().into(), &0.into()),
            "{parked}"
        );
        let text = output_of(&["job", "status", &at]);
        assert!(text.contains(&format!("window {window}: parked until it opens")), "{text}");
        // It has counted, and the branch takes nothing new.
        assert_eq!(parked["files"], 6, "{parked}");
        assert_eq!(json("status", &["status", &at])["pools"][0]["branches"][0]["mode"], "NC");
        output_of(&["job", "cancel", &at, &parked["id"].to_string()]);
        drained.join().unwrap()
    });
    assert_eq!(begun.code, 1, "{}", begun.stderr);
    output_of(&["branch", "mode", &at, &branch(&pool, "fast"), "RW"]);
    output_of(&["tier", "set", &at, "fast", "slow", "--start", "20%", "--stop", "10%", "--window", &window]);
    assert_eq!(tier(&pool)["state"], "out-of-window");
    assert_eq!(pool.holders("0"), ["fast"]);
    let (code, line) = refused(&["balance", &at, "--window", "1-6"]);
    assert!(code == 2 && line.contains("write HH:MM-HH:MM"), "{line}");
}

#[test]
fn a_bad_tier_is_refused_in_one_line() {
    needs!(mounting());
    let pool =
        lab::pool().tmp_branch("a").mode("RW,class=fast").tmp_branch("b").mode("RW,class=slow").mount();
    let said = |rest: &[&str]| {
        let (code, line) = refused(&[&["tier", "set", &at(&pool)], rest].concat());
        format!("{code}: {line}")
    };
    assert_eq!(said(&["fast"]), "2: two classes: fsstack tier set POOL FAST SLOW");
    assert_eq!(
        said(&["fast", "slow", "--stop", "90%"]),
        "2: stop=90% is not below start=80%: files move until the class is as full as stop"
    );
    assert!(
        said(&["fast", "slwo"])
            .contains("3: @slwo: no branch of this pool has that class; there are fast, slow")
    );
    output_of(&["tier", "set", &at(&pool), "fast", "slow"]);
    assert!(said(&["slow", "fast"]).contains("would come back"));
    let (code, line) = refused(&["tier", "remove", &at(&pool), "slow"]);
    assert_eq!((code, line.as_str()), (3, "slow: no tier leads away from this class"));
}
