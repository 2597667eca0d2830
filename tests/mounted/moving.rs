//! How and where a file moves whose branch is full, and reasons that keep it there.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;

use fsstack_lab::cleanup::Entry;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, MiB, daemon, needs, until};

use crate::command as operator;
use crate::hung_branches::callers_waiting;
use crate::relocate::{assert_clean, assert_mibs, mib, nearly_full, refused_after, writer};
use crate::script::sh;

fn outgrow(file: &File) {
    (0..40).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
}

#[test]
fn the_policy_says_where_a_file_moves() {
    needs!(mounting(), loops());
    let mut pool = lab::pool()
        .xfs_branch("a", MiB(310))
        .tmpfs_branch("b", MiB(100))
        .tmpfs_branch("c", MiB(200))
        .tmpfs_branch("d", MiB(100))
        .option("create=ff")
        .mount();
    pool.branch("a").fill_until_free(MiB(24));
    for (policy, branch) in [("ff", "b"), ("on", "c"), ("moveonenospc=lfs", "b"), ("epmfs", "d")] {
        let option = if policy.contains('=') { policy.to_owned() } else { format!("relocate={policy}") };
        pool.remount_with(&["create=ff", "write-path=stacked", &option]);
        pool.mkdir(policy);
        if policy == "epmfs" {
            fs::create_dir_all(pool.branch("d").path().join(policy)).unwrap();
            pool.remount_with(&["create=ff", "write-path=stacked", &option]);
        }
        let name = format!("{policy}/film");
        outgrow(&writer(pool.at(&name)));
        assert_eq!(pool.holders(&name), [branch], "{option}");
        assert_mibs(&pool, &name, 40);
        fs::remove_file(pool.at(&name)).unwrap();
    }
    assert_clean(&pool);
}

#[test]
fn a_policy_that_takes_none_of_the_roomy_branches_is_reported() {
    needs!(mounting(), loops(), program("getfattr"));
    let pool = nearly_full(MiB(24), &["relocate=epmfs"]);
    pool.mkdir("only-on-a");
    let file = writer(pool.at("only-on-a/film"));
    refused_after(&file);
    assert_eq!(pool.holders("only-on-a/film"), ["a"]);
    let why = sh(pool.path(), "getfattr --only-values -n user.fsstack.why only-on-a/film");
    assert!(why.contains("the policy"), "{why}");
}

#[test]
fn content_is_compared_and_speed_is_kept_where_asked_for() {
    needs!(mounting(), loops());
    let pool = nearly_full(MiB(24), &["relocate-verify=checksum", "relocate-speed=40M"]);
    let file = writer(pool.at("film"));
    file.set_len(1 << 30).unwrap();
    outgrow(&file);
    assert_eq!(pool.holders("film"), ["b"]);
    assert_eq!(fs::metadata(pool.branch("b").path().join("film")).unwrap().len(), 1 << 30);
    file.set_len(40 << 20).unwrap();
    assert_mibs(&pool, "film", 40);
    assert_clean(&pool);
}

/// A pool over a pool cannot hold attributes under the pool's own names, so the branch cannot take all of a file's
/// attributes.
#[test]
fn a_branch_that_cannot_hold_an_attribute_takes_no_file_that_has_it() {
    needs!(mounting(), loops(), program("setfattr"));
    let roomy = lab::pool().xfs_branch("deep", MiB(500)).option("write-path=stacked").mount();
    let outer = lab::pool().xfs_branch("a", MiB(310)).xfs_branch("c", MiB(400)).unmounted();
    let _mount = Entry::mount(outer.path()).unwrap();
    let (a, c) = (outer.branch("a"), outer.branch("c"));
    let source = format!("{}:{}:{}", a.path().display(), roomy.path().display(), c.path().display());
    let options = ["-o", "create=ff,write-path=stacked,minfreespace=4M"];
    command(daemon::helper().unwrap()).arg(source).arg(outer.path()).args(options).run().unwrap();
    a.fill_until_free(MiB(24));
    let marked = |name: &str| {
        // Not through the pool: the space of a moved file may not be free yet.
        sh(a.path(), &format!("touch {name}; setfattr -n user.fsstack.kept -v yes {name}"));
        writer(outer.at(name))
    };
    outgrow(&marked("film"));
    assert_eq!((outer.holders("film"), roomy.holders("film")), (vec!["c"], vec![]));
    assert_eq!(sh(c.path(), "getfattr --only-values -n user.fsstack.kept film"), "yes");
    assert_mibs(&outer, "film", 40);
    c.fill_until_free(MiB(0));
    let other = marked("other");
    refused_after(&other);
    assert_eq!(outer.holders("other"), ["a"]);
    let why = sh(outer.path(), "getfattr --only-values -n user.fsstack.why other");
    assert!(why.contains("attributes"), "{why}");
    assert_clean(&outer);
}

#[test]
fn a_file_written_past_the_daemon_says_why_it_stays() {
    needs!(mounting(), loops(), program("getfattr"));
    if let Err(skip) = crate::script::passthrough() {
        return skip.announce();
    }
    let mut pool = nearly_full(MiB(24), &[]);
    pool.remount_with(&["create=ff", "relocate", "write-path=auto", "passthrough-headroom=0"]);
    let file = writer(pool.at("film"));
    refused_after(&file);
    assert_eq!(pool.holders("film"), ["a"]);
    let why = sh(pool.path(), "getfattr --only-values -n user.fsstack.why film");
    assert!(why.contains("past the daemon"), "{why}");
}

#[test]
fn a_branch_that_is_a_pool_itself_takes_files_too() {
    needs!(mounting(), loops());
    let inner = lab::pool().xfs_branch("deep", MiB(400)).option("write-path=stacked").mount();
    let outer = lab::pool().xfs_branch("a", MiB(310)).unmounted();
    let mount = Entry::mount(outer.path()).unwrap();
    let source = format!("{}:{}", outer.branch("a").path().display(), inner.path().display());
    let options = ["-o", "create=ff,write-path=stacked,minfreespace=4M"];
    command(daemon::helper().unwrap()).arg(source).arg(outer.path()).args(options).run().unwrap();
    outer.branch("a").fill_until_free(MiB(24));
    outer.mkdir("d");
    let film = outer.at("d/film");
    outgrow(&writer(&film));
    assert!(outer.holders("d/film").is_empty());
    assert_eq!(inner.holders("d/film"), ["deep"]);
    assert_mibs(&outer, "d/film", 40);
    // Each pool hides its own folder, and neither is left.
    for name in [".fsstack.moving", ".fsstack.moving.1"] {
        assert_eq!(fs::create_dir(outer.at(name)).unwrap_err().raw_os_error(), Some(1), "{name}");
        assert!(!inner.branch("deep").path().join(name).exists(), "{name}");
    }
    fs::create_dir(outer.at(".fsstack.moving.2")).unwrap();
    assert!(fs::metadata(outer.at("d")).unwrap().ino() > 1);
    mount.undo().unwrap();
}

/// Two subvolumes of one btrfs, one of which has a quota.
#[test]
fn a_move_within_one_file_system_shares_the_blocks() {
    needs!(mounting(), root(), loops(), program("mkfs.btrfs"));
    let disk = lab::pool().btrfs_branch("disk", MiB(400)).unmounted();
    let home = disk.branch("disk").path();
    let script = "btrfs -q subvolume create a; btrfs -q subvolume create b; btrfs quota enable .; \
                  btrfs quota rescan -w . >/dev/null; btrfs qgroup limit 24M a";
    sh(home, script);
    let at = tempfile::tempdir().unwrap();
    let _mount = Entry::mount(at.path()).unwrap();
    let branches = format!("{0}/a:{0}/b", home.display());
    let options = ["-o", "create=ff,write-path=stacked,relocate,minfreespace=4M"];
    command(daemon::helper().unwrap()).arg(branches).arg(at.path()).args(options).run().unwrap();
    let file = writer(at.path().join("film"));
    (0..16).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    file.sync_all().unwrap();
    let first = shared(&home.join("a/film"));
    (16..40).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
    file.sync_all().unwrap();
    assert!(!home.join("a/film").exists());
    // Blocks from before the move are shared.
    let now = shared(&home.join("b/film"));
    assert!(first.iter().any(|place| now.contains(place)), "{first:?}, then {now:?}");
    let read = fs::read(at.path().join("film")).unwrap();
    assert!(read.len() == 40 << 20 && (0..40).all(|n| read[n << 20..(n + 1) << 20] == mib(n as u64)));
    drop(file);
    command("umount").arg(at.path()).run().unwrap();
}

/// Disk offsets of the file's extents.
fn shared(file: &std::path::Path) -> Vec<String> {
    let output = sh("/", &format!("filefrag -v '{}'", file.display()));
    let extents = output.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    extents.filter_map(|line| Some(line.split(':').nth(2)?.split("..").next()?.trim().to_owned())).collect()
}

/// More files move than there are worker threads: they can be read, and other files are served.
///
/// How long the checks take depends on the machine. If all moves are over before their end, they are made again, slower.
fn only_the_writers_of_moving_files_wait(transport: &str, threads: usize) {
    let is_served = |speed: &&str| is_served_while_files_move(transport, threads, speed);
    assert!(["1M", "256K", "128K"].iter().any(is_served), "others waited for the moves");
}

/// False: all moves were over before the checks were.
fn is_served_while_files_move(transport: &str, threads: usize, speed: &str) -> bool {
    let (speed, threads_at_most) = (format!("relocate-speed={speed}"), format!("max-threads={threads}"));
    let pool = nearly_full(MiB(40), &[&speed, &threads_at_most, transport]);
    fs::write(pool.at("other"), "beside").unwrap();
    let files: Vec<File> = (0..threads + 4).map(|n| writer(pool.at(format!("film-{n}")))).collect();
    for file in &files {
        (0..3).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
        file.sync_all().unwrap();
    }
    pool.branch("a").fill_until_free(MiB(0));
    let free = pool.branch("b").free();
    let outgrow =
        |file: File| thread::spawn(move || (3..8).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap()));
    let readers: Vec<File> =
        (0..files.len()).map(|n| File::open(pool.at(format!("film-{n}"))).unwrap()).collect();
    let writers: Vec<_> = files.into_iter().map(outgrow).collect();
    until("a file begins to move", || pool.branch("b").free() + (1 << 20) < free);
    until("all of them wait", || {
        callers_waiting() >= writers.len() || writers.iter().all(thread::JoinHandle::is_finished)
    });
    for reader in &readers {
        let mut piece = vec![0; 1 << 20];
        reader.read_exact_at(&mut piece, 0).unwrap();
        assert!(piece == mib(0));
    }
    assert_eq!(fs::read(pool.at("other")).unwrap(), b"beside");
    assert!(pool.list("").contains(&"other".into()));
    operator::output_of(&["status", &operator::at(&pool)]);
    let was_under_way = writers.iter().any(|writer| !writer.is_finished());
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let mut moved = 0;
    for n in 0..readers.len() {
        let name = format!("film-{n}");
        // A late one uses the space that others freed.
        let holders = pool.holders(&name);
        assert_eq!(holders.len(), 1, "{holders:?}");
        moved += usize::from(holders == ["b"]);
        assert_mibs(&pool, &name, 8);
    }
    assert!(moved >= 2, "{moved} files moved");
    assert_clean(&pool);
    was_under_way
}

#[test]
fn only_writers_of_moving_files_wait_by_the_device() {
    needs!(mounting(), loops());
    only_the_writers_of_moving_files_wait("transport=dev", 4);
}

/// With the maximum number of threads from the start.
#[test]
fn only_writers_of_moving_files_wait_by_the_device_with_a_thread_a_cpu() {
    needs!(mounting(), loops());
    only_the_writers_of_moving_files_wait("transport=dev", fsstack_sys::thread::allowed_cpus().len().max(2));
}

#[test]
fn only_writers_of_moving_files_wait_by_the_ring() {
    needs!(mounting(), loops(), rings());
    only_the_writers_of_moving_files_wait("transport=ring", 4);
}
