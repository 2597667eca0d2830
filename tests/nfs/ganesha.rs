//! nfs-ganesha, asked by a client that keeps its handles.

use std::fs;
use std::path::PathBuf;

use fsstack_lab::ganesha::Ganesha;
use fsstack_lab::{self as lab, MiB, Pool, ground, needs};

use crate::client::{Client, Refused, STALE};

const IDENTITY: &str = "nfs-identity=5d1f6a0e-3c1b-4a52-9a53-0d4f6e6a7b10";

fn builder() -> lab::Builder {
    let pool = lab::pool().xfs_branch("x", MiB(310)).ext4_branch("e", MiB(200)).option("create=ff");
    pool.option("write-path=stacked").option("nfs-export").option(IDENTITY)
}

/// A pool, its server, and what a client holds of it.
struct Ground {
    // The server goes first: it uses the pool.
    server: Ganesha,
    pool: Pool,
    held: Vec<Held>,
}

struct Held {
    path: &'static str,
    handle: Vec<u8>,
    fileid: u64,
}

impl Ground {
    fn new() -> Self {
        Self::over(builder().mount())
    }

    fn over(pool: Pool) -> Self {
        pool.mkdir("d/sub");
        for file in ["d/file", "d/hard", "d/sub/deep"] {
            pool.write(file, file.as_bytes());
        }
        fs::hard_link(pool.at("d/hard"), pool.at("d/sub/hard2")).unwrap();
        let server = Ganesha::serve(pool.path(), &home(&pool));
        let mut ground = Self { server, pool, held: Vec::new() };
        for path in ["d/file", "d/hard", "d/sub/deep", "d/sub", "d"] {
            let handle = ground.client().handle(path).unwrap();
            let fileid = ground.client().fileid(&handle).unwrap();
            ground.held.push(Held { path, handle, fileid });
        }
        ground.check();
        ground
    }

    fn client(&self) -> Client {
        Client::new(self.server.address())
    }

    /// Each handle leads to its object.
    #[track_caller]
    fn check(&self) {
        for held in &self.held {
            let fileid = self.client().fileid(&held.handle);
            assert_eq!(fileid, Ok(held.fileid), "{}: {}", held.path, self.server.log());
            let found = match held.path {
                "d" | "d/sub" => self.client().list(&held.handle).map(|_| ()),
                path => {
                    self.client().read(&held.handle).map(|text| assert!(text.starts_with(path), "{text}"))
                }
            };
            assert_eq!(found, Ok(()), "{}: {}", held.path, self.server.log());
        }
    }
}

fn home(pool: &Pool) -> PathBuf {
    pool.path().with_file_name("ganesha")
}

/// The kernel forgets all that nobody uses.
fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

macro_rules! needs_ganesha {
    () => {
        needs!(mounting(), loops(), drop_caches());
        if let Err(skip) = Ganesha::able() {
            return skip.announce();
        }
    };
}

#[test]
fn handles_outlive_restarts_of_the_server() {
    needs_ganesha!();
    let mut ground = Ground::new();
    forget();
    ground.check();
    ground.server.restart(forget);
    ground.check();
    let pool = &ground.pool;
    ground.server.restart(|| {
        fs::rename(pool.at("d/sub"), pool.at("sub2")).unwrap();
        fs::rename(pool.at("d/file"), pool.at("sub2/file2")).unwrap();
        fs::rename(pool.at("d"), pool.at("e")).unwrap();
        forget();
    });
    ground.check();
}

#[test]
fn handles_outlive_remounts_and_crashes_of_the_pool() {
    needs_ganesha!();
    let mut ground = Ground::new();
    let pool = &mut ground.pool;
    ground.server.restart(|| pool.remount());
    ground.check();
    let pool = &mut ground.pool;
    ground.server.restart(|| {
        pool.kill_daemon();
        // Another device number for the pool.
        let _other = lab::pool().tmp_branch("a").mount();
        pool.remount();
    });
    ground.check();
    let pool = &mut ground.pool;
    ground.server.restart(|| {
        pool.unmount();
        let x = pool.branch("x").path();
        fs::rename(x.join("d/sub"), x.join("behind")).unwrap();
        fs::rename(x.join("d/file"), x.join("behind/f")).unwrap();
        pool.remount();
    });
    ground.check();
}

#[test]
fn handles_outlive_a_move_to_another_branch() {
    needs_ganesha!();
    let mut ground = Ground::new();
    ground.pool.branch("x").fill_until_free(MiB(12));
    let mut text = b"d/file".to_vec();
    text.resize(24 << 20, b'.');
    fs::write(ground.pool.at("d/file"), text).unwrap();
    assert_eq!(ground.pool.holders("d/file"), ["e"]);
    ground.check();
    let pool = &mut ground.pool;
    ground.server.restart(|| pool.remount());
    ground.check();
}

/// On a tmpfs, or on volumes of GlusterFS where that is what the tests' branches are on.
#[test]
fn handles_are_found_on_branches_that_must_be_searched() {
    needs!(mounting(), drop_caches());
    if let Err(skip) = Ganesha::able() {
        return skip.announce();
    }
    let pool = match ground::is_gluster() {
        true => lab::pool().tmp_branch("g").tmp_branch("h"),
        false => lab::pool().tmpfs_branch("s", MiB(100)).tmpfs_branch("t", MiB(100)),
    };
    let pool = pool.option("create=ff").option("nfs-export").option(IDENTITY).mount();
    let mut ground = Ground::over(pool);
    ground.server.restart(forget);
    ground.check();
    let pool = &mut ground.pool;
    ground.server.restart(|| {
        pool.kill_daemon();
        pool.remount();
    });
    ground.check();
    let pool = &mut ground.pool;
    ground.server.restart(|| {
        fs::rename(pool.at("d"), pool.at("moved")).unwrap();
        pool.remount();
    });
    ground.check();
}

#[test]
fn handles_of_what_was_removed_are_stale() {
    needs_ganesha!();
    let mut ground = Ground::new();
    fs::remove_dir_all(ground.pool.at("d")).unwrap();
    let pool = &ground.pool;
    ground.server.restart(|| {
        for n in 0..200 {
            pool.write(format!("new{n}"), b"new");
        }
        forget();
    });
    for held in &ground.held {
        assert_eq!(ground.client().fileid(&held.handle), Err(Refused(STALE)), "{}", held.path);
    }
}
