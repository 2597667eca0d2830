//! Mixed work by several threads while branches, or the pool itself, are killed, frozen and restored at random.
//!
//! Acknowledged changes must exist when everything works again; changes answered by an error may or may not. A failed
//! write may even take effect later, when a frozen branch continues: it stays possible for ever. A few seconds here, or
//! FSSTACK_STRESS seconds (`cargo xtask faults --stress 10m`).

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use fsstack_lab::cleanup::Entry;
use fsstack_lab::daemon::{self, Process};
use fsstack_lab::shell::{command, which};
use fsstack_lab::{self as lab, MiB, Pool, needs};
use rustix::process::Signal;

const WORKERS: u64 = 4;
const FILES: u64 = 6;
const BLOCKS: u64 = 24;
const BLOCK: usize = 64 << 10;
const PAGE: usize = 4096;
/// Longest wait for an answer after recovery.
const RECOVERY: Duration = Duration::from_secs(60);

fn seconds() -> u64 {
    std::env::var("FSSTACK_STRESS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// A small, replayable random generator.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Possible states of a file.
#[derive(Clone, Debug)]
struct Known {
    /// Whether it may exist, and whether it may be missing.
    there: bool,
    missing: bool,
    /// Its first or second name; both after an unanswered rename.
    names: BTreeSet<usize>,
    /// For each block, the writes that it may show; 0 for none.
    blocks: Vec<BTreeSet<u64>>,
}

impl Known {
    fn nothing() -> Self {
        let blocks = vec![BTreeSet::from([0]); usize::try_from(BLOCKS).unwrap()];
        Self { there: false, missing: true, names: BTreeSet::from([0]), blocks }
    }
}

struct Worker<'a> {
    dir: PathBuf,
    number: u64,
    dice: Dice,
    writes: u64,
    files: Vec<Known>,
    errors: &'a AtomicU64,
    done: &'a AtomicU64,
}

/// Content of a page of this write.
fn word(worker: u64, file: u64, block: u64, write: u64) -> u64 {
    worker << 56 | file << 48 | block << 40 | write
}

impl Worker<'_> {
    fn path(&self, file: u64, name: usize) -> PathBuf {
        self.dir.join(format!("f{file}.{name}"))
    }

    /// Counts the result of a call. `None` if it failed.
    fn counted<T>(&self, result: io::Result<T>) -> Option<T> {
        let counter = if result.is_ok() { self.done } else { self.errors };
        counter.fetch_add(1, Relaxed);
        result.ok()
    }

    fn step(&mut self) {
        let file = self.dice.below(FILES);
        let known = &self.files[usize::try_from(file).unwrap()];
        if known.names.len() > 1 {
            return self.settle_name(file);
        }
        match self.dice.below(16) {
            0 => self.rename(file),
            1 => self.unlink(file),
            2..5 => drop(self.look(file)),
            _ => self.write(file),
        }
    }

    fn known(&mut self, file: u64) -> &mut Known {
        &mut self.files[usize::try_from(file).unwrap()]
    }

    fn write(&mut self, file: u64) {
        let (block, sync) = (self.dice.below(BLOCKS), self.dice.below(4) == 0);
        self.writes += 1;
        let write = self.writes;
        let path = self.path(file, *self.files[usize::try_from(file).unwrap()].names.first().unwrap());
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let Some(opened) = self.counted(opened) else {
            self.known(file).there = true; // it may have been made
            return;
        };
        let known = self.known(file);
        (known.there, known.missing) = (true, false);
        let data = word(self.number, file, block, write).to_le_bytes().repeat(BLOCK / 8);
        let wrote = opened.write_all_at(&data, block * BLOCK as u64);
        let wrote = wrote.and_then(|()| if sync { opened.sync_data() } else { Ok(()) });
        let settled = self.counted(wrote).is_some();
        let shown = &mut self.known(file).blocks[usize::try_from(block).unwrap()];
        if settled {
            // Failed writes may still take effect.
            let late: BTreeSet<u64> = shown.iter().copied().filter(|write| write & LATE != 0).collect();
            *shown = late;
            shown.insert(write);
        } else {
            shown.insert(write | LATE);
        }
    }

    fn rename(&mut self, file: u64) {
        let from = *self.known(file).names.first().unwrap();
        let renamed = fs::rename(self.path(file, from), self.path(file, 1 - from));
        let known = self.known(file).clone();
        match &renamed {
            Ok(()) => {
                assert!(known.there, "{file} of {} was removed, and is renamed", self.number);
                let known = self.known(file);
                known.names = BTreeSet::from([1 - from]);
                known.missing = false;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                assert!(known.missing, "{file} of {} is lost: {known:?}", self.number);
            }
            Err(_) => self.known(file).names = BTreeSet::from([0, 1]),
        }
        self.counted(renamed);
    }

    /// After an unanswered rename it has one of the two names, or never existed.
    fn settle_name(&mut self, file: u64) {
        let there = [0, 1].map(|name| fs::symlink_metadata(self.path(file, name)));
        let is = |name: usize| match &there[name] {
            Ok(_) => Some(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(false),
            Err(_) => None,
        };
        let number = self.number;
        let known = self.known(file);
        match (is(0), is(1)) {
            (Some(true), Some(true)) => panic!("{file} of {number} has both names"),
            (Some(false), Some(false)) => {
                assert!(known.missing, "{file} of {number} has lost its name");
                known.names = BTreeSet::from([0]);
            }
            (Some(true), Some(false)) => known.names = BTreeSet::from([0]),
            (Some(false), Some(true)) => known.names = BTreeSet::from([1]),
            (None, _) | (_, None) => thread::sleep(Duration::from_millis(20)),
        }
    }

    fn unlink(&mut self, file: u64) {
        let name = *self.known(file).names.first().unwrap();
        let removed = fs::remove_file(self.path(file, name));
        match &removed {
            Ok(()) => *self.known(file) = Known { names: BTreeSet::from([name]), ..Known::nothing() },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let known = self.known(file).clone();
                assert!(known.missing, "{file} of {} is lost: {known:?}", self.number);
                *self.known(file) = Known { names: BTreeSet::from([name]), ..Known::nothing() };
            }
            Err(_) => {
                let known = self.known(file);
                known.missing = true;
                for block in &mut known.blocks {
                    block.insert(0);
                }
            }
        }
        self.counted(removed);
    }

    /// Compares a file with its possible states. `None` if it cannot be read now.
    fn look(&mut self, file: u64) -> Option<()> {
        let known = self.known(file).clone();
        let path = self.path(file, *known.names.first().unwrap());
        let file_read = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                assert!(known.missing, "{file} of {} is lost: {known:?}", self.number);
                return Some(());
            }
            opened => self.counted(opened)?,
        };
        assert!(known.there, "{file} of {} was removed, and is back", self.number);
        let mut block = vec![0; BLOCK];
        for (number, shown) in known.blocks.iter().enumerate() {
            block.fill(0);
            let number = u64::try_from(number).unwrap();
            let read = file_read.read_at(&mut block, number * BLOCK as u64);
            let read = self.counted(read)?;
            block[read..].fill(0);
            for page in block.chunks(PAGE) {
                let first = u64::from_le_bytes(page[..8].try_into().unwrap());
                let whole = page.chunks(8).all(|other| other == &page[..8]);
                let fits = shown.iter().any(|write| match write & !LATE {
                    0 => first == 0,
                    write => first == word(self.number, file, number, write),
                });
                assert!(
                    whole && fits,
                    "block {number} of {file} of {}: {first:x}, not of {shown:x?}",
                    self.number
                );
            }
        }
        Some(())
    }
}

/// Bit of a failed write, which may take effect later.
const LATE: u64 = 1 << 39;

/// Runs the workers in `dir` while `faults` happen, until that returns; then everything must exist. Only the holder of
/// `gate` may unmount: no worker may see the bare directory.
fn work(dir: &Path, seed: u64, gate: &RwLock<()>, faults: impl FnOnce()) {
    let (errors, done, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for number in 1..=WORKERS {
            let mut worker = Worker {
                dir: dir.to_owned(),
                number,
                dice: Dice(seed.wrapping_mul(31).wrapping_add(number) | 1),
                writes: 0,
                files: vec![Known::nothing(); usize::try_from(FILES).unwrap()],
                errors: &errors,
                done: &done,
            };
            worker.dir = dir.join(format!("w{number}"));
            let over = &over;
            workers.push(scope.spawn(move || {
                while !over.load(Relaxed) {
                    let _mounted = gate.read();
                    worker.step();
                }
                // Everything works again: nothing may be unknown now.
                let began = Instant::now();
                for file in 0..FILES {
                    while worker.files[usize::try_from(file).unwrap()].names.len() > 1
                        || worker.look(file).is_none()
                    {
                        assert!(began.elapsed() < RECOVERY, "{file} of {number} cannot be read");
                        if worker.files[usize::try_from(file).unwrap()].names.len() > 1 {
                            worker.settle_name(file);
                        }
                        thread::sleep(Duration::from_millis(50));
                    }
                }
            }));
        }
        faults();
        over.store(true, Relaxed);
        for worker in workers {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    println!("seed {seed}: {} calls done, {} failed", done.load(Relaxed), errors.load(Relaxed));
    assert!(done.load(Relaxed) > 100, "nothing was done");
}

fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("FSSTACK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0) >> 16);
    println!("FSSTACK_SEED={seed}");
    seed
}

/// A branch served by another daemon, which can be killed.
pub(crate) struct Served {
    pub(crate) target: PathBuf,
    pub(crate) daemon: Process,
    _mount: Entry,
    pub(crate) below: Pool,
}

impl Served {
    pub(crate) fn start() -> Self {
        let below = lab::pool().xfs_branch("deep", MiB(300)).unmounted();
        let target = below.path().to_owned();
        let _mount = Entry::mount(&target).unwrap();
        let daemon = serve(&below);
        Self { target, daemon, _mount, below }
    }

    /// Mounts it again at its path, with another daemon.
    pub(crate) fn restart(&mut self) {
        self.daemon.kill().unwrap();
        // The pool above holds directories of it open.
        command("umount").arg("-l").arg(&self.target).run().unwrap();
        self.daemon = serve(&self.below);
    }
}

fn serve(below: &Pool) -> Process {
    let options = ["-o", "write-path=stacked,minfreespace=4M"];
    let branch = below.branch("deep").path();
    command(daemon::helper().unwrap()).arg(branch).arg(below.path()).args(options).run().unwrap();
    daemon::server_of(below.path()).unwrap()
}

#[test]
fn branches_are_killed_frozen_and_brought_back() {
    needs!(mounting(), loops());
    let seed = seed();
    let mut dice = Dice(seed | 1);
    let mut served = Served::start();
    let pool = lab::pool().xfs_branch("a", MiB(310)).xfs_branch("b", MiB(310)).unmounted();
    for number in 1..=WORKERS {
        for branch in [pool.branch("a").path(), pool.branch("b").path(), served.below.branch("deep").path()] {
            fs::create_dir(branch.join(format!("w{number}"))).unwrap();
        }
    }
    // Made there, and never full: neither placement nor a move puts it on the branch that is killed.
    fs::create_dir(pool.branch("b").path().join("fsx")).unwrap();
    File::create(pool.branch("b").path().join("fsx/file")).unwrap();
    pool.branch("a").fill_until_free(MiB(24));
    let mount = Entry::mount(pool.path()).unwrap();
    let paths = [pool.branch("a").path(), &served.target, pool.branch("b").path()]
        .map(|path| path.display().to_string());
    // Names and attributes are not cached; files are everywhere, and move when `a` is full. No freeze is as long as the
    // timeout, because failed operations must not take effect later, except writes.
    let options =
        "create=rand,minfreespace=1M,write-path=stacked,branch-timeout=10,attr-timeout=0,entry-timeout=0";
    let mut run =
        command(daemon::helper().unwrap()).arg(paths.join(":")).arg(pool.path()).args(["-o", options]);
    run = run.limit(Duration::from_secs(60));
    run.run().unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let fsx = scope.spawn(|| fsx(&pool.at("fsx/file"), seed, &over));
        let until = Instant::now() + Duration::from_secs(seconds());
        work(pool.path(), seed, &RwLock::new(()), || {
            while Instant::now() < until {
                thread::sleep(Duration::from_millis(200 + dice.below(800)));
                match dice.below(3) {
                    0 => {
                        served.daemon.signal(Signal::STOP).unwrap();
                        thread::sleep(Duration::from_millis(100 + dice.below(3000)));
                        served.daemon.signal(Signal::CONT).unwrap();
                    }
                    1 => {
                        served.daemon.kill().unwrap();
                        thread::sleep(Duration::from_millis(dice.below(1500)));
                        served.restart();
                    }
                    _ => served.restart(),
                }
            }
        });
        over.store(true, Relaxed);
        fsx.join().unwrap();
    });
    mount.undo().unwrap();
    command("umount").arg("-l").arg(&served.target).run().unwrap();
    for branch in pool.branches() {
        assert!(!branch.path().join(".fsstack.moving").exists(), "on {}", branch.name());
    }
}

/// fsx on a file of a healthy branch, which no fault may affect.
fn fsx(file: &Path, seed: u64, over: &AtomicBool) {
    let me = std::env::current_exe().unwrap();
    let near = me.ancestors().map(|dir| dir.join("suites/bin/fsx")).find(|program| program.is_file());
    let Some(program) = near.or_else(|| which("fsx")) else {
        return lab::Skip::because("needs fsx, which `cargo xtask test` installs").announce();
    };
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("fsx.toml");
    fs::write(&config, "flen = 3000000\n[opsize]\nmax = 1200000\n").unwrap();
    for round in 0.. {
        let seed = (seed + round) & 0xffff_ffff;
        let fsx = command(&program).arg("-f").arg(&config).arg("-P").arg(scratch.path());
        let fsx = fsx.args(["-N", "1000", "-S", &seed.to_string()]).arg(file).limit(Duration::from_secs(120));
        if let Err(error) = fsx.run() {
            panic!("fsx, seed {seed}: {error:#}");
        }
        if over.load(Relaxed) {
            return;
        }
    }
}

#[test]
fn the_pool_is_killed_again_and_again() {
    needs!(mounting(), loops());
    let seed = seed();
    let mut dice = Dice(seed | 1);
    let mut pool = lab::pool()
        .xfs_branch("a", MiB(310))
        .xfs_branch("b", MiB(310))
        .xfs_branch("c", MiB(310))
        .option("create=rand")
        .option("minfreespace=1M")
        .option("write-path=stacked")
        .limit(Duration::from_secs(seconds() + 150))
        .unmounted();
    for number in 1..=WORKERS {
        for branch in pool.branches() {
            fs::create_dir(branch.path().join(format!("w{number}"))).unwrap();
        }
    }
    pool.branch("a").fill_until_free(MiB(16));
    pool.remount();
    let until = Instant::now() + Duration::from_secs(seconds());
    let dir = pool.path().to_owned();
    let gate = RwLock::new(());
    work(&dir, seed, &gate, || {
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(100 + dice.below(500)));
            pool.kill_daemon();
            let _alone = gate.write();
            pool.remount();
        }
    });
    for branch in pool.branches() {
        assert!(!branch.path().join(".fsstack.moving").exists(), "on {}", branch.name());
    }
}
