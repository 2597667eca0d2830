//! Branches that take a drained branch's files: those that were named, and one that dies meanwhile.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use fsstack_lab::{self as lab, MiB, needs, until};

use super::drain::job;
use super::*;
use crate::relocate::{assert_clean, mib};
use crate::script::{log_with, sh};

#[test]
fn only_named_branches_take_files_and_the_tree_is_the_same_without_the_drained_one() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).xfs_branch("c", MiB(300));
    let pool = pool.option("create=ff").mount();
    for n in 0..30_u32 {
        pool.mkdir(format!("d{}/e", n % 5));
        pool.write(format!("d{}/e/{n}", n % 5), &mib(n.into())[..1024 * usize::try_from(n).unwrap()]);
    }
    pool.write("large", &mib(7).repeat(9));
    fs::hard_link(pool.at("large"), pool.at("d0/linked")).unwrap();
    symlink("../large", pool.at("d1/link")).unwrap();
    let before = tempfile::tempdir().unwrap();
    sh(pool.path(), &format!("cp -a . {}", before.path().display()));
    let (at, a, c) = (at(&pool), branch(&pool, "a"), branch(&pool, "c"));
    let done = json("job", &["branch", "drain", &at, &a, "--to", &c, "--verify"]);
    let to: Vec<_> =
        done["targets"].as_array().unwrap().iter().map(|target| target["branch"].clone()).collect();
    assert_eq!((&done["state"], to), (&"done".into(), vec![c.clone().into()]), "{done}");
    assert!(fs::read_dir(pool.branch("b").path()).unwrap().next().is_none());
    output_of(&["branch", "remove", &at, &a]);
    sh(pool.path(), &format!("diff -r --no-dereference . {}", before.path().display()));
    assert_eq!(pool.holders("large"), ["c"]);
    assert_clean(&pool);
}

/// Which of the targets takes a file is decided when it moves, so only their sum is promised.
#[test]
fn a_dry_run_says_what_the_run_does() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).xfs_branch("c", MiB(300));
    let pool = pool.option("create=ff").mount();
    (0..40).for_each(|n| pool.write(format!("{n}"), &mib(n)));
    fs::hard_link(pool.at("1"), pool.at("linked")).unwrap();
    (0..10).for_each(|n| fs::write(pool.at(format!("small{n}")), "small").unwrap());
    for name in ["hides", "fixed"] {
        pool.write(name, name.as_bytes());
    }
    fs::write(pool.branch("b").path().join("hides"), "hidden").unwrap();
    sh(pool.path(), "chattr +i fixed");
    let (at, a) = (at(&pool), branch(&pool, "a"));
    let names = ["b", "c"];
    let held = || {
        names.map(|name| {
            let text = sh(pool.branch(name).path(), "find . -name '[0-9s]*' -type f -printf '%b\\n'");
            let blocks: Vec<u64> = text.lines().map(|blocks| blocks.parse().unwrap()).collect();
            (blocks.len() as u64, blocks.iter().sum::<u64>() * 512)
        })
    };
    assert_eq!(held(), [(0, 0); 2]);
    let of = |arguments: &[&str]| -> Value {
        let drained = run(&[&["--json", "branch", "drain", &at, &a], arguments].concat());
        assert_eq!(drained.code, 1, "{}", drained.stdout);
        checked("job", &drained.stdout)
    };
    let (planned, done) = (of(&["--dry-run"]), of(&[]));
    sh(pool.path(), "chattr -i fixed");
    assert_eq!((&planned["state"], &done["state"]), (&"planned".into(), &"incomplete".into()));
    assert_eq!((&planned["files"], &planned["bytes"]), (&done["moved_files"], &done["moved_bytes"]));
    let stays = |job: &Value| {
        let mut stays: Vec<_> = job["stays"].as_array().unwrap().iter().map(Value::to_string).collect();
        stays.sort_unstable();
        stays
    };
    assert_eq!((stays(&planned), &planned["staying"]), (stays(&done), &done["staying"]));
    assert_eq!((stays(&planned).len(), &planned["targets"]), (2, &done["targets"]), "{planned} {done}");
    let held = held();
    let sum = (held[0].0 + held[1].0, held[0].1 + held[1].1);
    assert_eq!(
        (planned["files"].as_u64(), planned["bytes"].as_u64()),
        (Some(sum.0), Some(sum.1)),
        "{held:?}"
    );
    for (target, (_, held)) in planned["targets"].as_array().unwrap().iter().zip(held) {
        let share = target["bytes"].as_u64().unwrap();
        assert!(share > 0 && share.abs_diff(held) <= sum.1 / 4, "{target}: {held}");
    }
    assert_clean(&pool);
}

/// Moved files are there again with the branch; the others stay where they are.
#[test]
fn a_target_that_dies_in_the_middle_of_a_drain_costs_no_file() {
    needs!(mounting(), loops(), program("mergerfs"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).served_branch("b").option("create=ff");
    let mut pool = pool.option("write-path=stacked").mount();
    const FILES: u64 = 24;
    (0..FILES).for_each(|n| pool.write(format!("{n}"), &mib(n)));
    let (at, a) = (at(&pool), branch(&pool, "a"));
    let drains = std::thread::spawn({
        let (at, a) = (at.clone(), a.clone());
        move || run(&["branch", "drain", &at, &a, "--rate", "2M"])
    });
    until("some have moved", || job_of(&at)["moved_files"].as_u64().is_some_and(|moved| moved >= 2));
    pool.branch("b").daemon().kill().unwrap();
    until("one cannot be moved", || {
        let job = job_of(&at);
        job["over"] == true || job["staying"].as_u64().is_some_and(|staying| staying > 0)
    });
    // Each is whole on the branch that answers, or is not shown as another's.
    let on_a = (0..FILES)
        .filter(|n| fs::read(pool.branch("a").path().join(n.to_string())).is_ok_and(|all| all == mib(*n)));
    assert!(on_a.count() > 0, "{}", job(&pool));
    pool.branch_mut("b").unmount_by_force();
    pool.branch_mut("b").remount();
    until("all are shown", || {
        (0..FILES).all(|n| fs::read(pool.at(n.to_string())).is_ok_and(|all| all == mib(n)))
    });
    drains.join().unwrap();
    output_of(&["branch", "drain", &at, &a]);
    output_of(&["branch", "remove", &at, &a]);
    (0..FILES).for_each(|n| assert!(pool.read(n.to_string()) == mib(n), "{n}"));
    assert_clean(&pool);
}

#[test]
fn a_drain_that_the_next_mount_refuses_to_resume_is_in_the_log() {
    needs!(mounting(), loops());
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let mut pool = pool.option("create=ff").option(&format!("log={}", log.path().display())).mount();
    (0..20).for_each(|n| pool.write(format!("{n}"), &mib(n)));
    let (at, a) = (at(&pool), branch(&pool, "a"));
    let drains = std::thread::spawn({
        let (at, a) = (at.clone(), a.clone());
        move || run(&["branch", "drain", &at, &a, "--rate", "1M"])
    });
    until("it moves", || job_of(&at)["state"] == "moving");
    pool.kill_daemon();
    drains.join().unwrap();
    pool.branch("b").fill_until_free(MiB(8));
    pool.remount();
    let said = log_with(log.path(), "drain not resumed");
    assert!(said.contains("lack room"), "{said}");
}

/// A pool that is mounted read-only after its daemon was killed while it drained a branch: its path, and the branch's.
fn drained_and_read_only() -> (Pool, String, String) {
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").mount();
    (0..20).for_each(|n| pool.write(format!("{n}"), &mib(n)));
    let (at, drained) = (at(&pool), branch(&pool, "a"));
    let drains = std::thread::spawn({
        let (at, drained) = (at.clone(), drained.clone());
        move || run(&["branch", "drain", &at, &drained, "--rate", "1M"])
    });
    until("it moves", || job_of(&at)["state"] == "moving");
    pool.kill_daemon();
    drains.join().unwrap();
    pool.remount_with(&["create=ff", "ro"]);
    assert_eq!(job_of(&at), Value::Null);
    (pool, at, drained)
}

/// It goes on once the pool may be written. Commands tell of it meanwhile.
#[test]
fn a_drain_does_not_go_on_in_a_pool_that_is_mounted_read_only() {
    needs!(mounting());
    let (pool, at, drained) = drained_and_read_only();
    let told = output_of(&["status", &at]);
    assert!(told.contains("mounted read-only"), "{told}");
    let explained = json("explain", &["explain", pool.at("19").to_str().unwrap()]);
    assert!(explained["notes"].to_string().contains("mounted read-only"), "{explained}");
    let placed = output_of(&["explain", &at, "create", pool.at("new").to_str().unwrap()]);
    assert!(placed.contains("mounted read-only"), "{placed}");
    let checked = run(&["doctor", &at]);
    assert!(checked.stdout.contains("mounted read-only"), "{}", checked.stdout);
    assert_eq!(remount(&pool, "rw").code, 0);
    let job = job_of(&at);
    assert_eq!(job["branch"], drained);
    output_of(&["job", "cancel", &at, &job["id"].to_string()]);
}

#[test]
fn a_drain_goes_on_in_a_pool_that_is_remounted_past_the_helper() {
    needs!(mounting(), root());
    let (pool, at, drained) = drained_and_read_only();
    sh(pool.path(), &format!("mount -i -o remount,rw {at}"));
    until("it goes on", || job_of(&at)["branch"] == drained.as_str());
    output_of(&["job", "cancel", &at, &job_of(&at)["id"].to_string()]);
}

/// Bytes that are being copied are reserved, and still left to move.
#[test]
fn a_second_drain_counts_what_the_first_one_copies_once() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).xfs_branch("c", MiB(300));
    let pool = pool.option("create=ff").option("minfreespace=4M").no_others().mount();
    fs::write(pool.branch("a").path().join("large"), mib(1).repeat(110)).unwrap();
    fs::write(pool.branch("b").path().join("other"), mib(2).repeat(80)).unwrap();
    let (at, [a, b, c]) = (at(&pool), ["a", "b", "c"].map(|name| branch(&pool, name)));
    let drains = std::thread::spawn({
        let (at, a, c) = (at.clone(), a.clone(), c.clone());
        move || run(&["branch", "drain", &at, &a, "--to", &c, "--rate", "1M"])
    });
    let reserved = || {
        let status = json("status", &["status", &at]);
        status["pools"][0]["branches"][2]["reserved"].as_u64().unwrap()
    };
    until("it is being copied", || 100 << 20 < reserved());
    let planned = run(&["branch", "drain", &at, &b, "--to", &c, "--dry-run"]);
    output_of(&["job", "cancel", &at, "1"]);
    drains.join().unwrap();
    assert_eq!(planned.code, 0, "{}", planned.stderr);
}

/// The order of a tier, and programs, see who has used it.
#[test]
fn a_move_that_is_called_off_leaves_the_access_time() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount();
    pool.write("film", &mib(7).repeat(20));
    sh(pool.path(), "touch -a -d '2001-02-03 04:05:06' film");
    let (at, drained) = (at(&pool), branch(&pool, "a"));
    let drains = std::thread::spawn({
        let (at, drained) = (at.clone(), drained.clone());
        move || run(&["branch", "drain", &at, &drained, "--rate", "1M"])
    });
    let free = || {
        let fs = rustix::fs::statvfs(pool.branch("b").path()).unwrap();
        fs.f_bfree * fs.f_frsize
    };
    let before = free();
    until("it is being copied", || free() + (1 << 20) < before);
    output_of(&["job", "cancel", &at, &job_of(&at)["id"].to_string()]);
    drains.join().unwrap();
    assert_eq!(pool.holders("film"), ["a"]);
    assert_eq!(sh(pool.branch("a").path(), "stat -c %x film").get(..19), Some("2001-02-03 04:05:06"));
}

fn job_of(at: &str) -> Value {
    serde_json::from_str(&run(&["job", "status", at, "--json"]).stdout).unwrap_or_default()
}

/// The only target is set to take nothing new while a file is copied there.
#[test]
fn a_file_stays_whose_target_takes_no_more_when_it_has_been_copied() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount();
    pool.write("large", &mib(1).repeat(6));
    let (at, a, b) = (at(&pool), branch(&pool, "a"), branch(&pool, "b"));
    let drain = std::thread::spawn({
        let (at, a) = (at.clone(), a.clone());
        move || run(&["branch", "drain", &at, &a, "--rate", "2M"])
    });
    let taken = || {
        let space = rustix::fs::statvfs(pool.branch("b").path()).unwrap();
        (space.f_blocks - space.f_bfree) * space.f_frsize
    };
    let before = taken();
    until("some of it is copied", || taken() > before + (1 << 20));
    output_of(&["branch", "mode", &at, &b, "NC"]);
    assert_eq!(drain.join().unwrap().code, 1);
    assert_eq!(pool.holders("large"), ["a"]);
    assert!(pool.read("large") == mib(1).repeat(6));
    assert_clean(&pool);
}

/// A branch that is mounted with them is not trusted: what they keep from acting would act on another one, past the pool.
#[test]
fn set_id_programs_and_devices_of_a_branch_with_nosuid_and_nodev_stay_there() {
    needs!(mounting(), root(), loops(), program("setcap"));
    let mut pool =
        lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").unmounted();
    sh(pool.branch("a").path(), "mount -o remount,nosuid,nodev .");
    pool.remount();
    sh(
        pool.branch("a").path(),
        "cp /bin/true suid; chmod 4755 suid; cp /bin/true caps; setcap cap_net_raw+ep caps; mknod null c 1 3; mkfifo fifo
         for n in 1 2 3 4 5 6 7 8 9; do echo > plain$n; echo > small$n; chmod 2755 small$n; done",
    );
    let (at, a) = (at(&pool), branch(&pool, "a"));
    let drained = run(&["--json", "branch", "drain", &at, &a]);
    assert_eq!(drained.code, 1, "{}", drained.stdout);
    assert!(drained.stdout.contains("nosuid, nodev"), "{}", drained.stdout);
    let there = |branch: &str| sh(pool.branch(branch).path(), "ls");
    let stayed = ["caps", "null", "small1", "small2", "small9", "suid"];
    let (on_a, on_b) = (there("a"), there("b"));
    assert!(stayed.iter().all(|name| on_a.lines().any(|there| there == *name)), "{on_a}");
    // The fifo, and what is plain.
    assert!(!on_b.contains("small") && on_b.lines().count() == 10, "{on_b}");
    // Among branches that are alike they move.
    sh(pool.branch("b").path(), "mount -o remount,nosuid,nodev .");
    output_of(&["branch", "drain", &at, &a]);
    assert_eq!(there("a"), "");
    assert_eq!(
        sh(pool.branch("b").path(), "stat -c %a suid; getcap caps | wc -l; stat -c %F null"),
        "4755\n1\ncharacter special file"
    );
}

/// A branch that is added later would get its place, and the files.
#[test]
fn a_branch_that_a_drain_was_told_to_fill_does_not_leave_the_pool_meanwhile() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).xfs_branch("c", MiB(300));
    let pool = pool.option("create=ff").mount();
    (0..12).for_each(|n| pool.write(format!("{n}"), &mib(n)));
    let (at, a, b) = (at(&pool), branch(&pool, "a"), branch(&pool, "b"));
    let drains = std::thread::spawn({
        let (at, a, b) = (at.clone(), a.clone(), b.clone());
        move || run(&["branch", "drain", &at, &a, "--to", &b, "--rate", "4M"])
    });
    until("some have moved", || job_of(&at)["moved_files"].as_u64().is_some_and(|moved| moved >= 2));
    let id = job_of(&at)["id"].to_string();
    output_of(&["job", "pause", &at, &id]);
    let descriptors = format!("/proc/{}/fd", pool.daemon().pid);
    let is_there = |link: &Path| link.starts_with(&b) && link.file_name().is_some_and(|name| name != "b");
    until("no file is open there", || {
        let links = fs::read_dir(&descriptors).unwrap().filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        !links.into_iter().any(|link| is_there(&link))
    });
    let (code, busy) = refused(&["branch", "remove", &at, &b]);
    assert!(code == 1 && busy.contains("open"), "{busy}");
    output_of(&["job", "resume", &at, &id]);
    assert_eq!(drains.join().unwrap().code, 0);
    (0..12).for_each(|n| assert_eq!(pool.holders(n.to_string()), ["b"]));
    output_of(&["branch", "remove", &at, &b]);
    assert_clean(&pool);
}

/// Each of the two files fits there, both do not.
#[test]
fn two_drains_into_one_branch_leave_its_floor_alone() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).xfs_branch("c", MiB(300));
    let pool = pool.option("minfreespace=120M").mount();
    for (branch, name) in [("a", "one"), ("b", "two")] {
        fs::write(pool.branch(branch).path().join(name), mib(1).repeat(80)).unwrap();
    }
    let (at, c) = (at(&pool), branch(&pool, "c"));
    let drain = |name: &str| {
        let (at, from, c) = (at.clone(), branch(&pool, name), c.clone());
        std::thread::spawn(move || run(&["branch", "drain", &at, &from, "--to", &c, "--rate", "20M"]))
    };
    let free = || {
        let space = rustix::fs::statvfs(pool.branch("c").path()).unwrap();
        space.f_bavail * space.f_frsize
    };
    let drains = [drain("a"), drain("b")];
    let mut codes = drains.map(|drain| drain.join().unwrap().code);
    codes.sort_unstable();
    assert_eq!(codes, [0, 1]);
    assert!(free() >= 120 << 20, "{} MiB are free", free() >> 20);
    let holders = (pool.holders("one"), pool.holders("two"));
    assert!(holders == (vec!["c"], vec!["b"]) || holders == (vec!["a"], vec!["c"]), "{holders:?}");
}

/// There was room for it when the copy began.
#[test]
fn a_copy_is_given_up_whose_branch_has_been_filled_to_its_floor_meanwhile() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=ff,minfreespace=100M").mount();
    pool.write("film", &mib(5).repeat(20));
    let (at, a) = (at(&pool), branch(&pool, "a"));
    let drains = std::thread::spawn({
        let (at, a) = (at.clone(), a.clone());
        move || run(&["branch", "drain", &at, &a, "--rate", "5M"])
    });
    until("it is being copied", || job_of(&at)["state"] == "moving");
    pool.branch("b").fill_until_free(MiB(60));
    until("it stays", || {
        let job = job_of(&at);
        job["over"] == true || job["staying"].as_u64().is_some_and(|staying| staying > 0)
    });
    assert_eq!(pool.holders("film"), ["a"]);
    output_of(&["job", "cancel", &at, &job_of(&at)["id"].to_string()]);
    assert_eq!(drains.join().unwrap().code, 1);
    assert!(pool.read("film") == mib(5).repeat(20));
    assert_clean(&pool);
}
