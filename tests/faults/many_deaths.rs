//! Upgrades and deaths by the hundred, beneath fsx, programs that verify what they wrote, and an NFS client.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fsstack_lab::ganesha::{Ganesha, ROOT};
use fsstack_lab::nfs4::{Client, How};
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, MiB, Pool, Skip, needs, until};

use crate::kept::{command_path, open_handles, upgrade, work};

/// Upgrades, if not as many as this says; a fifth as many deaths.
const VARIABLE: &str = "FSSTACK_TEST_HANDOVERS";
const UPGRADES: u64 = 1000;
const UPGRADES_A_DEATH: u64 = 5;
/// Longest time of a mount, below nextest's limit of a long test.
pub(crate) const LIMIT: Duration = Duration::from_secs(7000);
/// Threads of programs, and processes of fsx.
const THREADS: usize = 3;
const FSX: u64 = 2;
const FSX_CONFIG: &str = "flen = 1000000\n[opsize]\nmax = 300000\n[weights]\nmapread = 10\nmapwrite = 10\ninvalidate = 2\n\
    read = 10\nwrite = 10\ntruncate = 5\nclose_open = 2\nfsync = 1\nposix_fallocate = 3\npunch_hole = 5\ncopy_file_range = 5\n";

/// Calls that are done, by each kind of program.
#[derive(Default)]
struct Done {
    over: AtomicBool,
    programs: AtomicU64,
    fsx: AtomicU64,
    nfs: AtomicU64,
}

impl Done {
    fn counts(&self) -> [u64; 3] {
        [&self.programs, &self.fsx, &self.nfs].map(|count| count.load(SeqCst))
    }
}

/// The program of the posix tier.
fn fsx() -> Result<PathBuf, Skip> {
    let me = std::env::current_exe().unwrap();
    let program = me.ancestors().nth(3).unwrap().join("suites/bin/fsx");
    if program.is_file() {
        return Ok(program);
    }
    Err(Skip::because("needs fsx, which `cargo xtask test --tier posix` installs".to_owned()))
}

/// Runs fsx on a file of its own, each time with another seed.
fn exercise(program: &Path, dir: &Path, number: u64, done: &Done) {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("fsx.toml");
    fs::write(&config, FSX_CONFIG).unwrap();
    let mut seed = number;
    while !done.over.load(SeqCst) {
        let file = dir.join(format!("fsx{number}"));
        let run = command(program).arg("-f").arg(&config).arg("-P").arg(scratch.path());
        let run = run.args(["-N", "500", "-S", &seed.to_string()]).arg(&file);
        run.limit(Duration::from_secs(600))
            .run()
            .unwrap_or_else(|error| panic!("fsx, seed {seed}: {error:#}"));
        fs::remove_file(&file).unwrap();
        seed += FSX;
        done.fsx.fetch_add(500, SeqCst);
    }
}

/// A client that holds a file open, and makes, reads and removes others.
fn nfs_work(server: SocketAddr, done: &Done) {
    let mut client = Client::new(server, ROOT).unwrap();
    let root = client.handle("").unwrap();
    let held = client.open(&root, "held", How::Made).unwrap();
    let mut round = 0_u64;
    while !done.over.load(SeqCst) {
        let (text, name) = (format!("{round:08}"), format!("nfs{}", round % 10));
        client.write(&held, round * 8, text.as_bytes()).unwrap();
        client.commit(&held).unwrap();
        assert_eq!(client.read_open(&held, round * 8, 8).unwrap(), text.as_bytes());
        let made = client.open(&root, &name, How::Made).unwrap();
        client.write(&made, 0, text.as_bytes()).unwrap();
        client.commit(&made).unwrap();
        assert_eq!(client.read(&made.handle, 0, 100).unwrap(), text.as_bytes());
        client.close(&made).unwrap();
        client.remove(&root, &name).unwrap();
        round += 1;
        done.nfs.fetch_add(1, SeqCst);
    }
    let all: String = (0..round).map(|round| format!("{round:08}")).collect();
    assert_eq!(client.size(&held.handle), Ok(all.len() as u64));
    client.close(&held).unwrap();
}

/// Waits until each kind of program has done something.
fn all_go_on(done: &Done) {
    let [programs, _, nfs] = done.counts();
    until("programs go on", || {
        let now = done.counts();
        now[0] > programs && now[2] > nfs
    });
}

/// Hands the pool over, and has its daemon die at another moment of the work each time.
fn hand_over(pool: &Pool, upgrades: u64, done: &Done) {
    for number in 1..=upgrades {
        let told = upgrade(pool);
        assert_eq!(told.code, 0, "upgrade {number}: {}", told.stderr);
        all_go_on(done);
        if number.is_multiple_of(UPGRADES_A_DEATH) {
            std::thread::sleep(Duration::from_micros(number * 437 % 5000));
            let dies = pool.daemon().child().unwrap();
            dies.kill().unwrap();
            until("another daemon", || pool.daemon().child().is_some_and(|next| next != dies));
            all_go_on(done);
            // It listens a moment later than it serves.
            let listens = || command(command_path()).arg("get").arg(pool.path()).output().unwrap().code == 0;
            until("the control socket is back", listens);
        }
    }
}

fn nobody_notices(upgrades: u64) {
    needs!(mounting(), loops());
    let program = match Ganesha::able().and_then(|()| fsx()) {
        Ok(program) => program,
        Err(skip) => return skip.announce(),
    };
    let pool = lab::pool().xfs_branch("x", MiB(310)).ext4_branch("e", MiB(200));
    let pool = pool
        .option("transport=dev,restart=keep,create=ff,nfs-export")
        .helper(env!("CARGO_BIN_EXE_mount-fsstack-faulty"))
        .env("FSSTACK_TEST_DEATHS", "any")
        .limit(LIMIT)
        .mount();
    let server = Ganesha::serve(pool.path(), &pool.path().with_file_name("ganesha"));
    let (done, began) = (Done::default(), Instant::now());
    std::thread::scope(|scope| {
        let done = &done;
        for thread in 0..THREADS {
            let dir = pool.at(format!("t{thread}"));
            scope.spawn(move || work(&dir, &done.over, &done.programs));
        }
        for number in 0..FSX {
            let (program, dir) = (&program, pool.path());
            scope.spawn(move || exercise(program, dir, number, done));
        }
        let address = server.address();
        scope.spawn(move || nfs_work(address, done));
        // A program that fails ends the test when the others have ended.
        let handed =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hand_over(&pool, upgrades, done)));
        done.over.store(true, SeqCst);
        handed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let [programs, fsx, nfs] = done.counts();
    println!(
        "{upgrades} upgrades and {} deaths in {} s beneath {programs} rounds of programs, {fsx} operations of fsx and {nfs} rounds of \
         an NFS client: no call failed",
        upgrades / UPGRADES_A_DEATH,
        began.elapsed().as_secs()
    );
    drop(server);
    until("no handle is left over", || open_handles(&pool) == (0, 0));
}

/// `FSSTACK_TEST_HANDOVERS=100` is a tenth.
#[test]
#[ignore = "minutes to an hour: cargo xtask test --tier long"]
fn nobody_notices_a_thousand_upgrades_and_two_hundred_deaths() {
    let upgrades = std::env::var(VARIABLE).ok().map(|told| told.parse().unwrap());
    nobody_notices(upgrades.unwrap_or(UPGRADES));
}
