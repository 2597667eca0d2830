//! Branches are balanced, and directories gathered, while programs use the pool.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use fsstack_lab::{self as lab, MiB, needs, until};

use super::drain::{assert_shown, job, shown};
use super::*;
use crate::handles::{check, forget, hold};
use crate::relocate::{assert_clean, mib, writer};
use crate::script::{passthrough, sh};

/// Used share of a branch in percent.
fn used(pool: &Pool, name: &str) -> f64 {
    let free = rustix::fs::statvfs(pool.branch(name).path()).unwrap();
    100.0 - 100.0 * free.f_bavail as f64 / free.f_blocks as f64
}

/// Paths of a job's plan.
fn planned(job: &Value) -> Vec<String> {
    let path = |one: &Value| one["path"].as_str().unwrap().to_owned();
    job["plan"].as_array().into_iter().flatten().map(path).collect()
}

fn two() -> lab::Builder {
    lab::pool()
        .xfs_branch("a", MiB(300))
        .xfs_branch("b", MiB(300))
        .option("create=ff")
        .option("minfreespace=8M")
}

#[test]
fn a_new_branch_gets_its_share_unseen() {
    needs!(mounting(), loops(), drop_caches(), program("getfattr"));
    let pool = two().option("nfs-export").mount();
    for n in 0..80 {
        pool.mkdir(format!("d{}", n % 8));
        pool.write(format!("d{}/{n}", n % 8), &mib(n));
    }
    fs::hard_link(pool.at("d0/0"), pool.at("d1/linked")).unwrap();
    pool.write("text", b"text");
    std::os::unix::fs::symlink("../text", pool.at("d1/link")).unwrap();
    File::create(pool.at("sparse")).unwrap().set_len(64 << 20).unwrap();
    sh(pool.path(), "setfattr -n user.colour -v blue d2/2; chmod 4755 d3/3; touch -d '2001-02-03' d4/4 d4");
    let (before, handles) = (shown(&pool), ["text", "d3", "d1/link"].map(|path| hold(&pool, path)));
    let (at, apart) = (at(&pool), used(&pool, "a") - used(&pool, "b"));
    assert!(apart > 20.0, "{apart}");

    let plan = json("job", &["balance", &at, "--dry-run"]);
    assert_eq!((&plan["state"], &plan["kind"]), (&"planned".into(), &"balance".into()), "{plan}");
    assert_eq!(pool.holders("d0/0"), ["a"]);
    let paths = planned(&plan);
    assert_eq!(plan["files"], paths.len(), "{plan}");
    // No more than is needed to bring both within two percent: 300 MiB each.
    let least = (apart - 2.0) / 2.0 * 3.0;
    assert!(plan["bytes"].as_f64().unwrap() <= (least + 1.0) * 1_048_576.0, "{plan}");

    let done = json("job", &["balance", &at]);
    assert_eq!((&done["state"], &done["moved_bytes"]), (&"done".into(), &plan["bytes"]), "{done}");
    let on_b: Vec<&String> = paths.iter().filter(|path| pool.holders(path.as_str()) == ["b"]).collect();
    assert_eq!(on_b.len(), paths.len(), "the run did what the dry run said");
    assert!((used(&pool, "a") - used(&pool, "b")).abs() < 4.0, "{} {}", used(&pool, "a"), used(&pool, "b"));
    forget();
    assert_shown(&pool, &before);
    handles.iter().for_each(|held| check(&pool, held));
    // Nothing more is to do, and nothing goes back.
    let again = json("job", &["balance", &at, "--until", "4%"]);
    assert_eq!((&again["state"], &again["files"]), (&"done".into(), &0.into()), "{again}");
    pool.branch("b").fill_until_free(MiB(16));
    let back = json("job", &["balance", &at, "--dry-run"]);
    assert!(planned(&back).iter().all(|path| !paths.contains(path)), "{back}");
    assert_clean(&pool);
}

#[test]
fn only_files_below_the_directory_move_and_directories_stay_together() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=epff").option("minfreespace=8M").mount();
    for n in 0..60 {
        pool.mkdir(format!("films/f{}", n % 6));
        pool.write(format!("films/f{}/{n}", n % 6), &mib(n));
    }
    pool.mkdir("other");
    (0..10).for_each(|n| pool.write(format!("other/{n}"), &mib(n)));
    let done = json("job", &["balance", &at(&pool), "films", "--by", "free", "--until", "5%"]);
    assert_eq!((&done["state"], &done["branch"]), (&"done".into(), &"/films".into()), "{done}");
    assert!(done["moved_files"].as_u64().unwrap() > 0, "{done}");
    assert!((0..10).all(|n| pool.holders(format!("other/{n}").as_str()) == ["a"]));
    // Less than a directory was left to move: files of one directory make it up.
    let is_torn = |dir: &u64| {
        let on = (0..10).map(|n| pool.holders(format!("films/f{dir}/{}", dir + 6 * n).as_str()).concat());
        on.collect::<std::collections::HashSet<_>>().len() > 1
    };
    let torn: Vec<u64> = (0..6).filter(is_torn).collect();
    assert!(torn.len() <= 1, "directories torn apart: {torn:?}");
}

#[test]
fn a_scattered_directory_comes_together() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).xfs_branch("c", MiB(300));
    let pool = pool.option("create=ff").option("minfreespace=8M").option("write-path=stacked").mount();
    let on = |name: &str| pool.branch(name).path().join("show/season");
    for (name, files) in [("a", 0..2_u64), ("b", 2..7), ("c", 7..9)] {
        fs::create_dir_all(on(name)).unwrap();
        files.for_each(|n| fs::write(on(name).join(n.to_string()), mib(n)).unwrap());
    }
    fs::write(pool.branch("a").path().join("apart"), "apart").unwrap();
    let file = writer(pool.at("show/season/0"));
    let (at, c) = (at(&pool), branch(&pool, "c"));
    let plan = json("job", &["consolidate", &at, "show", "--dry-run"]);
    assert_eq!(
        (&plan["files"], &plan["targets"][0]["branch"]),
        (&4.into(), &branch(&pool, "b").into()),
        "{plan}"
    );
    let mut named = planned(&plan);
    named.sort_unstable();
    assert_eq!(named, [0, 1, 7, 8].map(|n| format!("show/season/{n}")));
    let before = named.iter().map(|path| pool.holders(path.as_str())).collect::<Vec<_>>();
    assert_eq!(before, [["a"], ["a"], ["c"], ["c"]], "a dry run moves nothing");
    let moved = json("job", &["consolidate", &at, "show"]);
    assert_eq!((&moved["moved_files"], &moved["moved_bytes"]), (&plan["files"], &plan["bytes"]), "{moved}");
    assert!((0..9).all(|n| pool.holders(format!("show/season/{n}").as_str()) == ["b"]));
    assert_eq!(pool.holders("apart"), ["a"]);
    // The writer has followed.
    file.write_all_at(&mib(5), 1 << 20).unwrap();
    assert_eq!(pool.read("show/season/0")[1 << 20..], mib(5));
    let moved = json("job", &["consolidate", &at, "show/season", "--to", &c, "--verify"]);
    assert_eq!((&moved["state"], &moved["moved_files"]), (&"done".into(), &9.into()), "{moved}");
    assert!((0..9).all(|n| pool.holders(format!("show/season/{n}").as_str()) == ["c"]));
    // No room: nothing moves.
    pool.branch("a").fill_until_free(MiB(10));
    let (code, why) = refused(&["consolidate", &at, "show", "--to", &branch(&pool, "a")]);
    assert!(code == 1 && why.contains("no branch that may take it has room"), "{why}");
    assert_eq!(pool.holders("show/season/8"), ["c"]);
}

#[test]
fn a_job_pauses_goes_on_and_is_not_begun_twice() {
    needs!(mounting(), loops());
    let pool = two().option("write-path=stacked").mount();
    (0..30).for_each(|n| pool.write(format!("{n}"), &mib(n)));
    let at = at(&pool);
    std::thread::scope(|scope| {
        let balance = scope.spawn(|| run(&["balance", &at, "--rate", "4M", "--until", "0%"]));
        until("a file has moved", || job(&pool)["moved_files"].as_u64().is_some_and(|moved| moved > 0));
        let paused = json("job", &["job", "pause", &at, "1"]);
        assert_eq!(paused["state"], "paused", "{paused}");
        let (_, busy) = refused(&["balance", &at]);
        assert!(busy.contains("job 1 is at work"), "{busy}");
        let (_, busy) = refused(&["branch", "drain", &at, &branch(&pool, "a")]);
        assert!(busy.contains("job 1 is at work"), "{busy}");
        // The move under way ends; no other begins.
        let mut moved = job(&pool)["moved_files"].clone();
        until("no file moves", || {
            let last = std::mem::replace(&mut moved, job(&pool)["moved_files"].clone());
            std::thread::sleep(std::time::Duration::from_millis(600));
            last == moved && job(&pool)["moved_files"] == moved
        });
        assert_eq!(job(&pool)["state"], "paused");
        let resumed = json("job", &["job", "resume", &at, "1"]);
        assert_ne!(resumed["state"], "paused", "{resumed}");
        until("it goes on", || job(&pool)["moved_files"] != moved);
        output_of(&["job", "cancel", &at, "1"]);
        assert_eq!(balance.join().unwrap().code, 1);
    });
    let (_, over) = refused(&["job", "pause", &at, "1"]);
    assert!(over.contains("has ended"), "{over}");
    assert_clean(&pool);
}

/// A pause that cuts a pass short is no failed try, however often it is asked for.
#[test]
fn a_job_that_pauses_often_still_moves_everything() {
    needs!(mounting(), loops());
    let pool = two().option("write-path=stacked").mount();
    (0..16).for_each(|n| pool.write(format!("{n}"), &mib(n)));
    let (at, to) = (at(&pool), branch(&pool, "b"));
    let moved = || job(&pool)["moved_files"].as_u64().unwrap_or_default();
    std::thread::scope(|scope| {
        let gather = scope.spawn(|| run(&["consolidate", &at, "/", "--to", &to, "--rate", "4M"]));
        for round in 0..5 {
            let before = moved();
            until("a file has moved", || moved() > before);
            let paused = json("job", &["job", "pause", &at, "1"]);
            assert_eq!(paused["state"], "paused", "round {round}: {paused}");
            // What the pass has left is counted when it ends.
            until("the pass is over", || {
                let now = job(&pool);
                let count = |key: &str| now[key].as_u64().unwrap_or_default();
                count("moved_files") + count("untried") == count("files") && count("staying") == 0
            });
            output_of(&["job", "resume", &at, "1"]);
        }
        let Finished { code, stdout, stderr, .. } = gather.join().unwrap();
        assert_eq!(code, 0, "{stdout}{stderr}");
    });
    assert!((0..16).all(|n| pool.holders(n.to_string().as_str()) == ["b"]));
    assert_clean(&pool);
}

/// Files that a kernel reads by passthrough stay, with their reason; others take no harm.
#[test]
fn what_cannot_move_is_named_and_the_rest_moves() {
    needs!(mounting(), loops(), program("chattr"));
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool = two().option("passthrough-headroom=0").mount();
    (0..8).for_each(|n| pool.write(n.to_string(), &mib(n)));
    let held = File::open(pool.at("3")).unwrap();
    sh(pool.path(), "chattr +i 5");
    let to = branch(&pool, "b");
    let Finished { code, stdout, .. } = run(&["consolidate", &at(&pool), "/", "--to", &to]);
    sh(pool.path(), "chattr -i 5");
    assert_eq!(code, 1, "{stdout}");
    assert!(
        stdout.contains("3: it is open by passthrough")
            && stdout.contains("5: it is append-only or immutable"),
        "{stdout}"
    );
    assert_eq!((pool.holders("3"), pool.holders("5"), pool.holders("4")), (vec!["a"], vec!["a"], vec!["b"]));
    drop(held);
    output_of(&["consolidate", &at(&pool), "/", "--to", &to]);
    assert!(
        (0..8).all(|n| pool.holders(n.to_string().as_str()) == ["b"] && pool.read(n.to_string()) == mib(n))
    );
}

/// Killed during a copy: each file is whole on one branch, and the job is begun again by hand.
#[test]
fn a_balance_that_is_killed_leaves_whole_files() {
    needs!(mounting(), loops());
    let mut pool = two().option("write-path=stacked").mount();
    (0..20).for_each(|n| pool.write(format!("{n}"), &mib(n)));
    let inodes: Vec<u64> = (0..20).map(|n| fs::metadata(pool.at(n.to_string())).unwrap().ino()).collect();
    let at = at(&pool);
    std::thread::scope(|scope| {
        let balance = scope.spawn(|| run(&["balance", &at, "--rate", "3M", "--until", "0%"]));
        until("a file has moved", || job(&pool)["moved_files"].as_u64().is_some_and(|moved| moved > 0));
        pool.kill_daemon();
        assert_eq!(balance.join().unwrap().code, 4);
    });
    pool.remount();
    for (n, ino) in (0..20).zip(inodes) {
        let name = n.to_string();
        assert_eq!(pool.holders(name.as_str()).len(), 1, "{name}");
        assert_eq!((pool.read(name.as_str()), fs::metadata(pool.at(&name)).unwrap().ino()), (mib(n), ino));
    }
    output_of(&["balance", &at]);
    assert!((used(&pool, "a") - used(&pool, "b")).abs() < 4.0);
    assert_clean(&pool);
}

#[test]
fn bad_wishes_are_refused_in_one_line() {
    needs!(mounting());
    let pool = pool();
    pool.write("file", b"some");
    let at = at(&pool);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["balance", &at, "nowhere"], 3, "no such directory"),
        (&["balance", &at, "file"], 3, "not a directory"),
        (&["balance", &at, "--until", "200%"], 2, "a percentage"),
        (&["balance", &at, "--rate", "fast"], 2, "--rate"),
        (&["consolidate", &at, "/", "--to", "/nowhere"], 3, "/nowhere"),
        (&["job", "pause", &at, "7"], 3, "no job 7"),
    ];
    for (arguments, code, text) in cases {
        let (given, why) = refused(arguments);
        assert!(given == code && why.contains(text), "{arguments:?}: {given} {why}");
    }
    // Both branches are on one file system: there is nothing to balance.
    let done = json("job", &["balance", &at]);
    assert_eq!((&done["state"], &done["files"]), (&"done".into(), &0.into()), "{done}");
}

/// Nothing is changed on a branch with mode RO.
#[test]
fn files_of_a_read_only_branch_stay() {
    needs!(mounting(), loops());
    let mut pool = two().unmounted();
    fs::create_dir(pool.branch("a").path().join("show")).unwrap();
    fs::write(pool.branch("a").path().join("show/small"), "small").unwrap();
    fs::write(pool.branch("a").path().join("show/large"), mib(3)).unwrap();
    pool.remount();
    output_of(&["branch", "mode", &at(&pool), &branch(&pool, "a"), "RO"]);
    let (code, why) = refused(&["consolidate", &at(&pool), "show", "--to", &branch(&pool, "b")]);
    assert!(code == 1 && why.contains("stay where they are: 2"), "{code} {why}");
    assert_eq!([pool.holders("show/small"), pool.holders("show/large")], [["a"], ["a"]]);
}
