//! The catalogue has exactly what the branches have, after mixed work and after kills.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use fsstack_lab::pool::Pool;
use fsstack_lab::{self as lab, needs};

use crate::catalogue::{pool_of_three, state, until_complete, until_equal};
use crate::command::{at, branch, json};

/// Changes names below `top` at random, until `stop`.
fn work(top: &Path, seed: u64, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    let dirs = ["d0", "d1", "d0/e0", "d0/e1", "d1/e0", "d2", "d2/e0/f0", "d1/e1"];
    let mut count = 0_u32;
    while !stop.load(Relaxed) && count < 4000 {
        count += 1;
        let mut dir = || top.join(dirs[random.usize(..dirs.len())]);
        let (from, to) = (dir(), dir());
        let (a, b) = (from.join(format!("n{}", random.u8(..6))), to.join(format!("n{}", random.u8(..6))));
        // Many of these fail, as others are at work, or the daemon was killed.
        let _done = match random.u8(..16) {
            0 | 1 => fs::write(&a, vec![b'x'; random.usize(..5000)]),
            2 => fs::create_dir_all(&from),
            3 => fs::rename(&a, &b),
            4 => fs::rename(&from, &b),
            5 => fs::rename(&from, &to),
            6 => fs::remove_file(&a),
            7 => fs::remove_dir(&from),
            8 => fs::remove_dir_all(&b),
            9 => fs::create_dir_all(&b),
            10 => symlink("somewhere", &a),
            11 => fs::set_permissions(&a, fs::Permissions::from_mode(random.u32(..0o1000))),
            12 => std::os::unix::fs::lchown(&from, Some(random.u32(..9)), None),
            13 => {
                fs::OpenOptions::new().write(true).open(&a).and_then(|file| file.set_len(random.u64(..9000)))
            }
            14 => fs::OpenOptions::new().append(true).open(&a).and_then(|file| {
                file.write_at(b"more", random.u64(..100))?;
                file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_nanos(random.u64(..1 << 60)))
            }),
            _ => fs::hard_link(&a, &b),
        };
    }
}

pub(crate) fn work_by_several(pool: &Pool, seed: u64, and_then: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (top, stop) = (pool.path(), &stop);
            scope.spawn(move || work(top, seed * 10 + thread, stop));
        }
        std::thread::sleep(Duration::from_millis(700));
        and_then();
        stop.store(true, Relaxed);
    });
}

#[test]
fn it_has_what_the_branches_have_while_programs_work() {
    needs!(mounting());
    let mut pool = pool_of_three(&["out-of-band=never"]);
    pool.remount();
    until_complete(&pool);
    for seed in 0..6 {
        work_by_several(&pool, seed, || {});
        until_equal(&pool, &["a", "b", "c"]);
    }
    until_complete(&pool);
    // A file that was changed by no known name has the next mount walk once more.
    pool.remount();
    until_complete(&pool);
    // After a clean unmount the next mount takes the catalogue as it is, without a walk.
    pool.remount();
    let page = json("catalogue", &["find", &at(&pool), "--name", "no such name"]);
    for name in ["a", "b", "c"] {
        let known = state(&page, &branch(&pool, name));
        assert_eq!((&known["complete"], &known["walking"]), (&true.into(), &false.into()), "{known}");
    }
    until_equal(&pool, &["a", "b", "c"]);
}

#[test]
fn it_has_what_the_branches_have_after_the_daemon_was_killed() {
    needs!(mounting());
    let mut pool = pool_of_three(&["out-of-band=never"]);
    pool.remount();
    for seed in 100..105 {
        work_by_several(&pool, seed, || pool.kill_daemon());
        pool.remount();
        until_complete(&pool);
        until_equal(&pool, &["a", "b", "c"]);
    }
}

#[test]
#[ignore = "ten minutes: cargo xtask test --tier long"]
fn it_has_what_the_branches_have_after_ten_minutes_of_work_and_kills() {
    needs!(mounting());
    let mut pool = pool_of_three(&["out-of-band=never"]);
    let (began, mut seed) = (Instant::now(), 1000);
    while began.elapsed() < Duration::from_secs(600) {
        pool.remount();
        work_by_several(&pool, seed, || {});
        until_equal(&pool, &["a", "b", "c"]);
        work_by_several(&pool, seed + 1, || pool.kill_daemon());
        seed += 2;
    }
    pool.remount();
    until_complete(&pool);
    until_equal(&pool, &["a", "b", "c"]);
}

/// The pool knows the names that programs have used since the mount, and the catalogue all others.
#[test]
fn what_is_written_by_one_name_of_a_file_is_known_of_all() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").option("catalogue=on").option("out-of-band=never").unmounted();
    pool.remount();
    fs::create_dir_all(pool.at("two/three")).unwrap();
    for file in ["written", "removed", "open", "renamed"] {
        pool.write(file, b"x");
        fs::hard_link(pool.at(file), pool.at("two/three").join(file)).unwrap();
    }
    until_equal(&pool, &["a"]);
    pool.remount();
    until_complete(&pool);
    pool.write("written", b"by one name");
    // Both changes of each are seen at once.
    pool.write("removed", b"before its name went");
    fs::remove_file(pool.at("removed")).unwrap();
    pool.write("renamed", b"and");
    fs::rename(pool.at("renamed"), pool.at("other")).unwrap();
    let open = fs::OpenOptions::new().write(true).open(pool.at("open")).unwrap();
    fs::remove_file(pool.at("open")).unwrap();
    until_equal(&pool, &["a"]);
    open.write_at(b"while no name was known", 0).unwrap();
    drop(open);
    until_equal(&pool, &["a"]);
    fs::rename(pool.at("two"), pool.at("moved")).unwrap();
    fs::set_permissions(pool.at("written"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(pool.at("written")).unwrap();
    until_equal(&pool, &["a"]);
}
