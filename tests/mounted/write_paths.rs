//! Every write path stores the same bytes.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};

use fsstack_lab::{self as lab, MiB, Pool, Requests, needs};

use crate::script::{passthrough, sh, ways};

/// The pool's explanation of a file's write path.
fn write_path_of(pool: &Pool, name: &str) -> String {
    sh(pool.path(), &format!("getfattr --only-values -n user.fsstack.write-path '{name}'"))
}

fn read_write(pool: &Pool, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(pool.at(name)).unwrap()
}

#[test]
fn every_way_stores_the_same_bytes() {
    needs!(mounting());
    let mut hashes = Vec::new();
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
        pool.remount_with(way);
        // Written in odd pieces, backwards, overlapping, truncated and extended.
        let file = read_write(&pool, "file");
        let mut seed = 12345_u64;
        for _ in 0..400 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (at, len) = (seed >> 43, usize::try_from(seed >> 20 & 0xffff).unwrap());
            let piece: Vec<u8> = (0..len).map(|n| seed.to_le_bytes()[n % 8]).collect();
            file.write_all_at(&piece, at).unwrap();
            if seed.is_multiple_of(23) {
                file.set_len(at / 2).unwrap();
            }
        }
        let through = sh(pool.path(), "sha256sum < file");
        drop(file);
        let holder = pool.branch(pool.holders("file")[0]).path();
        assert_eq!(sh(holder, "sha256sum < file"), through, "{way:?}");
        pool.remount();
        assert_eq!(sh(pool.path(), "sha256sum < file"), through, "{way:?}");
        hashes.push(through);
    }
    hashes.dedup();
    assert_eq!(hashes.len(), 1, "the ways differ");
}

#[test]
fn a_file_tells_its_way() {
    needs!(mounting(), program("getfattr"));
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let mut pool = lab::pool().tmp_branch("a").mount();
    pool.write("file", b"x");
    assert_eq!(write_path_of(&pool, "file"), "passthrough");
    pool.remount_with(&["write-path=stacked"]);
    assert_eq!(write_path_of(&pool, "file"), "stacked");
}

#[test]
fn a_stacked_writer_beside_passthrough_readers_is_one_file() {
    needs!(mounting());
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool = lab::pool().tmp_branch("a").mount();
    pool.write("file", &[1; 10_000]);
    fs::set_permissions(pool.at("file"), fs::Permissions::from_mode(0o4755)).unwrap();
    // A reader of a set-uid file may use passthrough, a writer may not.
    let reader = File::open(pool.at("file")).unwrap();
    let writer = read_write(&pool, "file");
    let mut piece = [0; 10_000];
    for n in 2..20 {
        writer.write_all_at(&[n; 10_000], 0).unwrap();
        reader.read_exact_at(&mut piece, 0).unwrap();
        assert_eq!(piece, [n; 10_000]);
    }
    writer.set_len(5).unwrap();
    assert_eq!(reader.read_at(&mut piece, 0).unwrap(), 5);
    writer.write_all_at(b"longer than it was", 5).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 23);
    assert_eq!(pool.read("file").len(), 23);
}

/// A pool with passthrough is already stacked once: the kernel does not stack a second level.
#[test]
fn where_a_branch_refuses_passthrough_auto_goes_on_and_says_so_once() {
    needs!(
        mounting(),
        program("getfattr"),
        not_on_gluster("no file without a name to try with at the mount")
    );
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let below = lab::pool().tmp_branch("a").mount();
    let branch = [below.path().to_str().unwrap()];
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut pool = lab::pool().over(&branch).option(&format!("log={}", log.path().display())).mount();
    for name in ["one", "two"] {
        let file = read_write(&pool, name);
        file.write_all_at(b"bytes", 0).unwrap();
        assert_eq!(write_path_of(&pool, name), "stacked");
        assert_eq!(below.read(name), b"bytes");
    }
    pool.unmount();
    let said = fs::read_to_string(log.path()).unwrap();
    let lines = said.lines().filter(|line| line.contains("passthrough refused on this branch"));
    assert_eq!(lines.count(), 1, "{said}");
    let refused = lab::pool().over(&branch).option("write-path=passthrough").try_mount().unwrap_err();
    let line = "the kernel refuses passthrough there";
    assert_eq!((refused.code, refused.said.lines().count()), (32, 1), "{refused}");
    assert!(refused.said.contains(line) && refused.said.contains("use write-path=auto"), "{refused}");
}

#[test]
fn near_a_full_branch_the_daemon_writes() {
    needs!(mounting(), loops(), program("getfattr"));
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool = lab::pool().xfs_branch("a", MiB(300)).option("passthrough-headroom=100M").mount();
    let roomy = read_write(&pool, "roomy");
    assert_eq!(write_path_of(&pool, "roomy"), "passthrough");
    pool.branch("a").fill_until_free(MiB(50));
    // Space is queried at most once a second.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    let tight = read_write(&pool, "tight");
    assert_eq!(write_path_of(&pool, "tight"), "stacked");
    // An open file keeps its path until its last close.
    assert_eq!(write_path_of(&pool, "roomy"), "passthrough");
    roomy.write_all_at(b"past", 0).unwrap();
    tight.write_all_at(b"through", 0).unwrap();
    assert_eq!((pool.read("roomy"), pool.read("tight")), (b"past".to_vec(), b"through".to_vec()));
}

#[test]
fn the_writer_gets_enospc_on_a_full_branch() {
    needs!(mounting());
    for way in ways() {
        let mut pool = lab::pool().tmpfs_branch("a", MiB(8)).unmounted();
        pool.remount_with(way);
        let said = crate::script::refused(
            pool.path(),
            "dd if=/dev/zero of=file bs=64K count=200 conv=fsync status=none",
        );
        assert!(said.contains("No space left"), "{way:?}: {said}");
        let (shown, stored) = (pool.read("file"), fs::read(pool.branch("a").path().join("file")).unwrap());
        // With write-back the kernel keeps showing data that it could not write back, after fsync has reported the
        // error.
        let same = shown == stored || way.contains(&"page-cache=writeback");
        assert!(same, "{way:?}: {} bytes shown, {} stored", shown.len(), stored.len());
        sh(pool.path(), "rm file; echo again > file; cat file | grep -qx again");
    }
}

#[test]
fn the_pool_says_where_a_file_is() {
    needs!(mounting(), program("getfattr"));
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").unmounted();
    for branch in ["a", "b"] {
        fs::create_dir(pool.branch(branch).path().join("d")).unwrap();
        fs::write(pool.branch(branch).path().join("d/f"), branch).unwrap();
    }
    pool.remount();
    let ask = |name: &str| sh(pool.path(), &format!("getfattr --only-values -n {name} d/f | tr '\\0' '\\n'"));
    let (a, b) = (pool.branch("a").path().display(), pool.branch("b").path().display());
    assert_eq!(ask("user.fsstack.branch"), a.to_string());
    assert_eq!(ask("user.fsstack.path"), format!("{a}/d/f"));
    assert_eq!(ask("user.fsstack.paths"), format!("{a}/d/f\n{b}/d/f"));
    assert_eq!(ask("user.mergerfs.basepath"), a.to_string());
    assert_eq!(ask("user.mergerfs.relpath"), "/d/f");
    assert_eq!(ask("user.mergerfs.fullpath"), format!("{a}/d/f"));
    assert_eq!(ask("user.mergerfs.allpaths"), format!("{a}/d/f\n{b}/d/f"));
    // They are virtual: no copy includes them, and they cannot be set.
    assert_eq!(sh(pool.path(), "getfattr -d -m - d/f"), "");
    assert!(
        crate::script::refused(pool.path(), "setfattr -n user.fsstack.branch -v x d/f")
            .contains("not permitted")
    );
}

#[test]
fn files_that_the_kernel_opens_on_a_remote_branch_are_open_by_name() {
    needs!(mounting(), program("mergerfs"), program("getfattr"));
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool = lab::pool().served_branch("a").mount();
    pool.write("file", &[1; 10_000]);
    pool.write("removed", &[2; 10_000]);
    pool.write("replaced", &[3; 10_000]);
    let [file, removed, replaced] =
        ["file", "removed", "replaced"].map(|name| File::open(pool.at(name)).unwrap());
    assert_eq!(write_path_of(&pool, "removed"), "passthrough");
    // Another handle writes it meanwhile.
    read_write(&pool, "file").write_all_at(&[4; 10_000], 10_000).unwrap();
    let mut bytes = [0; 20_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((bytes[0], bytes[10_000]), (1, 4));
    // Requests to the daemon work after the name is removed.
    fs::remove_file(pool.at("removed")).unwrap();
    fs::rename(pool.at("file"), pool.at("replaced")).unwrap();
    for (gone, byte) in [(removed, 2), (replaced, 3)] {
        gone.read_exact_at(&mut bytes[..10_000], 0).unwrap();
        assert_eq!(bytes[..10_000], [byte; 10_000]);
        assert_eq!(rustix::fs::seek(gone.as_fd(), rustix::fs::SeekFrom::Hole(5)).unwrap(), 10_000);
        assert_eq!(gone.metadata().unwrap().len(), 10_000);
        gone.sync_all().unwrap();
    }
    assert_eq!(pool.read("replaced").len(), 20_000);
}

#[test]
fn cost_of_a_new_file_for_the_server_of_its_branch() {
    needs!(mounting(), program("mergerfs"), counted_requests());
    const FILES: usize = 50;
    let mut pool = lab::pool().served_branch("a").mount();
    let requests = Requests::to(pool.branch("a").path());
    let mut cost = |options: &[&str], bytes: &[u8]| {
        pool.remount_with(options);
        pool.mkdir("dir");
        let _before = requests.counted();
        for n in 0..FILES {
            let file = File::create_new(pool.at(format!("dir/{n}"))).unwrap();
            file.write_all_at(bytes, 0).unwrap();
        }
        // The daemon closes files in parallel with the program.
        pool.unmount();
        let counted = requests.counted();
        fs::remove_dir_all(pool.branch("a").path().join("dir")).unwrap();
        move |what: &str| counted.get(what).copied().unwrap_or_default()
    };
    let empty = cost(&["write-path=stacked"], b"");
    assert_eq!((empty("CREATE"), empty("RELEASE")), (FILES, FILES));
    // One for the missing name, one inside the creating call; a few for the path to it.
    assert!(empty("LOOKUP") <= 2 * FILES + 20, "{}", empty("LOOKUP"));
    assert!(empty("OPEN") <= 5, "the kernel opens them once more: {}", empty("OPEN"));
    // Without writes, a close reports nothing.
    assert!(empty("FLUSH") <= FILES + 5, "{}", empty("FLUSH"));
    let written = cost(&["write-path=stacked"], b"bytes");
    assert_eq!((written("CREATE"), written("WRITE")), (FILES, FILES));
    assert!(
        2 * FILES <= written("FLUSH"),
        "what the branch says at close is asked for: {}",
        written("FLUSH")
    );
    if passthrough().is_ok() {
        let past_us = cost(&["write-path=auto"], b"");
        assert!(FILES <= past_us("OPEN") && 2 * FILES <= past_us("FLUSH"), "{} opens", past_us("OPEN"));
    }
}

#[test]
fn a_write_that_is_to_be_on_disk_is_by_the_daemon_too() {
    needs!(mounting(), program("python3"), counted_requests());
    // A branch whose kernel side sends syncs to its daemon.
    let branch = lab::pool().tmp_branch("a").option("write-path=stacked").option("page-cache=on").mount();
    let pool = lab::pool().over(&[branch.path().to_str().unwrap()]).option("write-path=stacked").mount();
    let requests = Requests::to(branch.path());
    let writes = |open: &str, write: &str| {
        let _before = requests.counted();
        sh(
            pool.path(),
            &format!(
                "python3 -c 'import os
fd = os.open(\"file\", os.O_WRONLY | os.O_CREAT | {open})
for n in range(20): os.pwritev(fd, [b\"bytes\"], 0, {write})'"
            ),
        );
        requests.counted().get("FSYNC").copied().unwrap_or_default()
    };
    assert_eq!(writes("0", "0"), 0);
    for (open, write) in
        [("os.O_DSYNC", "0"), ("os.O_SYNC", "0"), ("0", "os.RWF_DSYNC"), ("0", "os.RWF_SYNC")]
    {
        assert_eq!(writes(open, write), 20, "{open} {write}");
    }
}

#[test]
fn a_dead_branch_is_an_error_of_input_though_its_names_are_remembered() {
    needs!(mounting(), program("mergerfs"));
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool = lab::pool()
        .served_branch("a")
        .tmp_branch("b")
        .option("entry-timeout=60")
        .option("attr-timeout=60")
        .option("create=ff")
        .mount();
    pool.write("file", b"x");
    assert_eq!(pool.read("file"), b"x");
    pool.branch("a").daemon().kill().unwrap();
    let error = File::open(pool.at("file")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
}
