//! nfs-ganesha with a client that keeps its handles.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use fsstack_lab::ganesha::Ganesha;
use fsstack_lab::nfs4::{Client, How, NfsError};
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, MiB, Pool, daemon, needs, test_bed};
use fsstack_tests::events::Sort;

use crate::test_bed::{TestBed, builder, forget, home, identity};

macro_rules! needs_ganesha {
    () => {
        needs!(mounting(), loops(), drop_caches());
        if let Err(skip) = Ganesha::able() {
            return skip.announce();
        }
    };
}
pub(crate) use needs_ganesha;

/// A client's handles are unchanged by every event. Prints the table of docs/figures/nfs.md.
#[test]
fn handles_outlive_every_event() {
    needs_ganesha!();
    let mut test_bed = TestBed::new();
    test_bed.over_restart("the server's restart", |_| ());
    test_bed.over_restart("a remount of the pool", Pool::remount);
    test_bed.over_restart("kill -9 of the daemon", |pool| {
        pool.kill_daemon();
        // Makes the pool's device number change.
        let _other = lab::pool().tmp_branch("a").mount();
        pool.remount();
    });
    test_bed.over_restart("a reboot", Pool::reboot);
    test_bed.over_restart("another order of branches", |pool| pool.remount_of(&["e", "x"]));
    test_bed.over_restart("a branch less", |pool| pool.remount_of(&["x"]));
    test_bed.over_restart("a branch more", |pool| pool.remount_of(&["x", "e"]));
    test_bed.over_restart("renames in the pool", |pool| {
        fs::rename(pool.at("d/sub"), pool.at("sub2")).unwrap();
        fs::rename(pool.at("d/file"), pool.at("sub2/file2")).unwrap();
        fs::rename(pool.at("d"), pool.at("e")).unwrap();
    });
    test_bed.over_restart("renames out of band", |pool| {
        pool.unmount();
        let x = pool.branch("x").path();
        fs::rename(x.join("sub2"), x.join("d")).unwrap();
        fs::rename(x.join("d/file2"), x.join("file3")).unwrap();
        fs::rename(x.join("e"), x.join("d/deeper")).unwrap();
        pool.remount();
    });
    directory_loses_a_copy(&mut test_bed);
    move_to_another_branch(&mut test_bed);
    drained_and_removed(&mut test_bed);
    println!("{}", test_bed.events);
}

/// A directory with two copies loses the copy that its number came from.
fn directory_loses_a_copy(test_bed: &mut TestBed) {
    let pool = &test_bed.pool;
    pool.mkdir("two");
    fs::write(pool.branch("e").path().join("g"), "g").unwrap();
    fs::rename(pool.at("g"), pool.at("two/g")).unwrap();
    assert_eq!(pool.holders("two"), ["x", "e"]);
    let held = test_bed.hold("two", Sort::Dir);
    test_bed.held.push(held);
    fs::remove_dir(test_bed.pool.branch("x").path().join("two")).unwrap();
    forget();
    test_bed.check("a directory lost its first copy");
    test_bed.over_restart("a directory lost its first copy", Pool::remount);
}

/// A file moves to a branch with space.
fn move_to_another_branch(test_bed: &mut TestBed) {
    let pool = &test_bed.pool;
    pool.branch("x").fill_until_free(MiB(12));
    let mut text = b"d/file".to_vec();
    text.resize(24 << 20, b'.');
    fs::write(pool.at("file3"), text).unwrap();
    assert_eq!(pool.holders("file3"), ["e"]);
    test_bed.check("a move to another branch");
    test_bed.over_restart("a move to another branch", Pool::remount);
    test_bed.over_restart("a move to another branch, and kill -9", |pool| {
        pool.kill_daemon();
        pool.remount();
    });
}

/// The branch of nearly all objects is emptied and leaves the pool, for good.
fn drained_and_removed(test_bed: &mut TestBed) {
    test_bed.pool.branch("x").drop_ballast();
    let change = |word: &str, pool: &Pool| {
        let fsstack = daemon::helper().unwrap().with_file_name("fsstack");
        command(fsstack).args(["branch", word]).arg(pool.path()).arg(pool.branch("x").path()).run().unwrap();
    };
    change("drain", &test_bed.pool);
    test_bed.check("a branch is drained");
    change("remove", &test_bed.pool);
    test_bed.check("a branch is drained and removed");
    test_bed.over_restart("a branch is drained and removed", |pool| pool.remount_of(&["e"]));
    test_bed.over_restart("a branch is drained and removed, and kill -9", |pool| {
        pool.kill_daemon();
        pool.remount_of(&["e"]);
    });
}

/// With `nfs-identity` as printed, and no other exports. Root is squashed there.
#[test]
fn the_block_that_is_printed_serves_the_pool() {
    needs_ganesha!();
    let mut pool = builder().mount();
    pool.mkdir("d");
    pool.write("d/file", b"text");
    fs::set_permissions(pool.path(), Permissions::from_mode(0o777)).unwrap();
    let block = printed(&pool, &[]);
    let mut server = Ganesha::serve_block(&block, &home(&pool));
    let export = pool.path().to_str().unwrap().to_owned();
    let mut client = Client::new(server.address(), &export).unwrap();
    let [root, dir, file] = ["", "d", "d/file"].map(|path| client.handle(path).unwrap());
    let fileid = client.fileid(&file).unwrap();
    let made = client.open(&root, "made", How::Made).unwrap();
    client.write(&made, 0, b"by a client").unwrap();
    client.commit(&made).unwrap();
    assert_eq!(pool.read("made"), b"by a client");
    // Changes by others show at once.
    assert_eq!(client.list(&dir).unwrap(), ["file"]);
    pool.write("d/more", b"more");
    assert_eq!(client.list(&dir).unwrap(), ["file", "more"]);
    server.restart(|| pool.remount());
    assert_eq!(printed(&pool, &[]), block);
    let mut client = Client::new(server.address(), &export).unwrap();
    assert_eq!(client.fileid(&file), Ok(fileid));
    assert_eq!(client.read(&file, 0, 100).unwrap(), b"text");
    assert_eq!(client.list(&dir).unwrap(), ["file", "more"]);
    assert_eq!(client.read(&made.handle, 0, 100).unwrap(), b"by a client");
}

/// With a minute's caching of names and attributes, in the server and in the pool.
#[test]
fn clients_of_the_only_writer_see_each_others_changes_at_once() {
    needs_ganesha!();
    let mut pool = builder();
    for option in ["entry-timeout=60", "attr-timeout=60", "negative-timeout=60"] {
        pool = pool.option(option);
    }
    let pool = pool.mount();
    pool.mkdir("d");
    fs::set_permissions(pool.at("d"), Permissions::from_mode(0o777)).unwrap();
    let block = printed(&pool, &["--only-writer"]);
    assert!(block.contains("Attr_Expiration_Time = 60;"), "{block}");
    let server = Ganesha::serve_block(&block, &home(&pool));
    let export = pool.path().to_str().unwrap().to_owned();
    let [mut one, mut two] = [(); 2].map(|()| Client::new(server.address(), &export).unwrap());
    let dir = one.handle("d").unwrap();
    for n in 0..20 {
        let name = format!("file{n}");
        assert_eq!(two.stat(&dir, &name), Err(NfsError::NOENT));
        assert_eq!(two.list(&dir).unwrap(), [""; 0]);
        let made = one.open(&dir, &name, How::Made).unwrap();
        assert_eq!(two.size(&made.handle), Ok(0));
        assert_eq!(two.list(&dir).unwrap(), [name.as_str()]);
        one.write(&made, 0, b"twelve bytes").unwrap();
        assert_eq!(two.size(&made.handle), Ok(12));
        assert_eq!(two.read(&made.handle, 0, 100).unwrap(), b"twelve bytes");
        one.write(&made, 7, b"signs").unwrap();
        assert_eq!(two.read(&made.handle, 0, 100).unwrap(), b"twelve signs");
        one.close(&made).unwrap();
        one.remove(&dir, &name).unwrap();
        assert_eq!(two.stat(&dir, &name), Err(NfsError::NOENT));
    }
}

/// The complete configuration that `fsstack nfs show` prints for nfs-ganesha.
fn printed(pool: &Pool, options: &[&str]) -> String {
    let fsstack = daemon::helper().unwrap().with_file_name("fsstack");
    let shown = command(fsstack).args(["nfs", "show"]).arg(pool.path()).args(options).run().unwrap().stdout;
    let (_, block) = shown.split_once("# For nfs-ganesha.\n").unwrap();
    block.to_owned()
}

/// On a tmpfs; or on a GlusterFS volume beside a disk, if that is the test bed.
#[test]
fn handles_are_found_on_branches_that_must_be_searched() {
    needs!(mounting(), drop_caches());
    if let Err(skip) = Ganesha::able() {
        return skip.announce();
    }
    let pool = match test_bed::is_gluster() {
        true => lab::pool().tmp_branch("g").xfs_branch("x", MiB(310)),
        false => lab::pool().tmpfs_branch("s", MiB(100)).tmpfs_branch("t", MiB(100)),
    };
    let pool = pool.option("create=ff").option("nfs-export").option(&identity()).mount();
    let mut test_bed = TestBed::over(pool);
    test_bed.over_restart("the server's restart", |_| ());
    test_bed.over_restart("kill -9 of the daemon", |pool| {
        pool.kill_daemon();
        pool.remount();
    });
    test_bed.over_restart("renames and a remount", |pool| {
        fs::rename(pool.at("d"), pool.at("moved")).unwrap();
        pool.remount();
    });
    println!("branches that must be searched:\n{}", test_bed.events);
}

#[test]
fn handles_of_what_was_removed_are_stale() {
    needs_ganesha!();
    let mut test_bed = TestBed::new();
    test_bed.held.retain(|held| !held.path.is_empty());
    fs::remove_dir_all(test_bed.pool.at("d")).unwrap();
    let pool = &test_bed.pool;
    test_bed.server.restart(|| {
        for n in 0..200 {
            pool.write(format!("new{n}"), b"new");
        }
        forget();
    });
    let mut client = test_bed.client();
    for held in &test_bed.held {
        assert_eq!(client.fileid(&held.handle), Err(NfsError::STALE), "{}", held.path);
    }
}

/// An unreachable object is an error, not gone.
#[test]
fn handles_of_what_is_out_of_reach_are_errors_and_good_again() {
    needs_ganesha!();
    let mut test_bed = TestBed::new();
    let held = std::mem::take(&mut test_bed.held);
    test_bed.server.restart(|| test_bed.pool.remount_of(&["e"]));
    let mut client = test_bed.client();
    for held in held.iter().filter(|held| !held.path.is_empty()) {
        assert_eq!(client.fileid(&held.handle), Err(NfsError::SERVER_FAULT), "{}", held.path);
    }
    test_bed.held = held;
    test_bed.over_restart("a branch was away", |pool| pool.remount_of(&["x", "e"]));
}

/// `O_EXCL` by a verifier: a retransmission gets the file, a second creator an error.
#[test]
fn a_file_is_made_by_one_alone_also_when_the_call_is_sent_again() {
    needs_ganesha!();
    let test_bed = TestBed::new();
    let (mut one, mut other) = (test_bed.client(), test_bed.client());
    let root = one.handle("").unwrap();
    let made = one.open(&root, "alone", How::MadeBy(7)).unwrap();
    let again = one.open(&root, "alone", How::MadeBy(7)).unwrap();
    assert_eq!(again.handle, made.handle);
    one.write(&again, 0, b"by one").unwrap();
    one.commit(&again).unwrap();
    assert_eq!(other.open(&root, "alone", How::MadeBy(8)).unwrap_err(), NfsError::EXIST);
    assert_eq!(test_bed.pool.read("alone"), b"by one");
}

/// Committed data is on the branch, even if the daemon is killed.
#[test]
fn committed_bytes_are_there_after_a_crash() {
    needs_ganesha!();
    let mut test_bed = TestBed::new();
    let mut client = test_bed.client();
    let root = client.handle("").unwrap();
    let file = client.open(&root, "kept", How::Made).unwrap();
    client.write(&file, 0, b"kept").unwrap();
    client.commit(&file).unwrap();
    test_bed.over_restart("kill -9 behind a COMMIT", |pool| {
        pool.kill_daemon();
        pool.remount();
    });
    assert_eq!(test_bed.client().read(&file.handle, 0, 100).unwrap(), b"kept");
}
