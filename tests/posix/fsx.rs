//! fsx: random reads, writes, maps, truncations and copies of one file, each read compared with the expected data.

use std::path::Path;
use std::thread;

use fsstack_lab::needs;
use fsstack_lab::shell::command;

use crate::suites;
use crate::test_beds::{self, LIMIT, TestBed, on_each_ground};

const SEEDS: [u32; 4] = [1, 2, 3, 4];
const OPERATIONS: u32 = 2000;

/// True if the file is also read and written through mappings.
#[derive(Clone, Copy, Debug)]
enum Access {
    Mapped,
    Unmapped,
}

impl Access {
    fn config(self) -> String {
        let mapped = match self {
            Self::Mapped => "mapread = 10\nmapwrite = 10\ninvalidate = 2\n",
            Self::Unmapped => "mapread = 0\nmapwrite = 0\n",
        };
        // Sizes around the largest request (1 MiB) and the page size.
        format!(
            "flen = 3000000\n[opsize]\nmax = 1200000\n[weights]\n{mapped}read = 10\nwrite = 10\ntruncate = 5\n\
             close_open = 2\nfsync = 1\nfdatasync = 1\nposix_fallocate = 3\npunch_hole = 5\nsendfile = 5\n\
             posix_fadvise = 2\ncopy_file_range = 5\n"
        )
    }
}

#[test]
fn plain_xfs() {
    needs!(mounting(), loops());
    let disks = test_beds::plain_xfs();
    exercise(disks.branch("first").path());
}

on_each_ground!(pool);

fn pool(test_bed: TestBed) {
    if let Err(skip) = TestBed::able() {
        return skip.announce();
    }
    let pool = test_bed.mount();
    exercise(pool.path());
    test_beds::assert_empty(&pool);
}

/// All seeds at once, each on its own file, first with mappings and then without.
#[track_caller]
fn exercise(dir: &Path) {
    let program = match suites::program("fsx") {
        Ok(program) => program,
        Err(skip) => return skip.announce(),
    };
    for access in [Access::Mapped, Access::Unmapped] {
        thread::scope(|scope| {
            for seed in SEEDS {
                let (program, dir) = (&program, dir);
                scope.spawn(move || run(program, dir, access, seed));
            }
        });
    }
}

fn run(program: &Path, dir: &Path, access: Access, seed: u32) {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("fsx.toml");
    std::fs::write(&config, access.config()).unwrap();
    let file = dir.join(format!("{access:?}-{seed}"));
    let fsx = command(program).arg("-f").arg(&config).arg("-P").arg(scratch.path());
    let fsx = fsx.args(["-N", &OPERATIONS.to_string(), "-S", &seed.to_string()]).arg(&file).limit(LIMIT);
    if let Err(error) = fsx.run() {
        panic!("fsx, {access:?}, seed {seed}: {error:#}");
    }
    std::fs::remove_file(&file).unwrap();
}
