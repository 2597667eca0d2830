//! A pool, its server, and a client's handles.

use std::fs;
use std::path::PathBuf;

use fsstack_lab::ganesha::{Ganesha, ROOT};
use fsstack_lab::nfs4::{Client, Told};
use fsstack_lab::{self as lab, MiB, Pool};
use fsstack_tests::events::{Events, Sort};

/// Unique for each test: two pools of a machine cannot share one.
pub(crate) fn identity() -> String {
    format!("nfs-identity=5d1f6a0e-3c1b-4a52-9a53-{:012x}", std::process::id())
}

pub(crate) fn builder() -> lab::Builder {
    let pool = lab::pool().xfs_branch("x", MiB(310)).ext4_branch("e", MiB(200)).option("create=ff");
    pool.option("write-path=stacked").option("nfs-export").option(&identity())
}

/// Held objects: paths and types.
const HELD: [(&str, Sort); 6] = [
    ("d/file", Sort::File),
    ("d/hard", Sort::HardLink),
    ("d/sub/deep", Sort::File),
    ("d/sub", Sort::Dir),
    ("d", Sort::Dir),
    ("", Sort::Dir),
];

pub(crate) struct TestBed {
    // Dropped first, because it uses the pool.
    pub(crate) server: Ganesha,
    pub(crate) pool: Pool,
    pub(crate) held: Vec<HeldHandle>,
    pub(crate) events: Events,
}

pub(crate) struct HeldHandle {
    pub(crate) path: &'static str,
    sort: Sort,
    pub(crate) handle: Vec<u8>,
    fileid: u64,
}

impl HeldHandle {
    /// Checks that it leads to its object.
    pub(crate) fn try_it(&self, client: &mut Client) -> Result<(), String> {
        let fileid = client.fileid(&self.handle).map_err(|e| format!("`{}`: {e}", self.path))?;
        if fileid != self.fileid {
            return Err(format!("`{}` is {fileid} and no more {}", self.path, self.fileid));
        }
        let answer_of: Told<bool> = match self.sort {
            Sort::Dir => client.list(&self.handle).map(|_| true),
            Sort::File | Sort::HardLink => {
                client.read(&self.handle, 0, 4096).map(|bytes| bytes.starts_with(self.path.as_bytes()))
            }
        };
        match answer_of {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("`{}` leads to another file's bytes", self.path)),
            Err(e) => Err(format!("`{}`: {e}", self.path)),
        }
    }
}

impl TestBed {
    pub(crate) fn new() -> Self {
        Self::over(builder().mount())
    }

    pub(crate) fn over(pool: Pool) -> Self {
        pool.mkdir("d/sub");
        for file in ["d/file", "d/hard", "d/sub/deep"] {
            pool.write(file, file.as_bytes());
        }
        fs::hard_link(pool.at("d/hard"), pool.at("d/sub/hard2")).unwrap();
        let server = Ganesha::serve(pool.path(), &home(&pool));
        let mut test_bed = Self { server, pool, held: Vec::new(), events: Events::of("ganesha v4") };
        test_bed.held = HELD.iter().map(|(path, sort)| test_bed.hold(path, *sort)).collect();
        test_bed.check("nothing");
        test_bed
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.server.address(), ROOT).unwrap()
    }

    pub(crate) fn hold(&self, path: &'static str, sort: Sort) -> HeldHandle {
        let mut client = self.client();
        let handle = client.handle(path).unwrap();
        let fileid = client.fileid(&handle).unwrap();
        HeldHandle { path, sort, handle, fileid }
    }

    /// Checks that each handle leads to its object after `event`: at once, and when the kernel has forgotten it.
    #[track_caller]
    pub(crate) fn check(&mut self, event: &str) {
        let mut client = self.client();
        for _ in 0..2 {
            for held in &self.held {
                self.events.tried(event, held.sort, held.try_it(&mut client));
            }
            forget();
        }
        self.events.assert_right();
    }

    /// Runs `event` while the server is down; then checks that each handle leads to its object.
    #[track_caller]
    pub(crate) fn over_restart(&mut self, event: &str, happen: impl FnOnce(&mut Pool)) {
        let pool = &mut self.pool;
        self.server.restart(|| happen(pool));
        self.check(event);
    }
}

pub(crate) fn home(pool: &Pool) -> PathBuf {
    pool.path().with_file_name("ganesha")
}

/// Makes the kernel forget everything unused.
pub(crate) fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}
