//! Events that must not block others or cost much: files that move, callers that wait for a hung branch, and files that
//! are closed there.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fsstack_lab::branch::{Kind, Layout};
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::daemon::{self, Process};
use fsstack_lab::shell::{command, which};
use fsstack_lab::{Branch, MiB, Skip};
use rustix::fs::statvfs;
use rustix::process::Signal;

use crate::relocate::{Latencies, OTHER, Until, latencies, lay_out, put};
use crate::report::{Sense, Table};

/// Number of files that move at once.
const MOVING: u64 = 4;
/// Number of threads that wait for the hung branch.
const CALLERS: usize = 200;
/// Number of files open on it when it hangs.
const OPEN: usize = 300;
/// Duration of each measurement.
const LOOK: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(60);
const TRANSPORTS: [&str; 2] = ["dev", "ring"];

/// Measures beside moving files of `mib` MiB each.
pub(crate) fn run(rounds: usize, mib: u64, tables: &mut Vec<Table>) -> Result<()> {
    let home = cleanup::fresh("figures-standstill")?;
    let _home = Entry::dir(&home)?;
    tables.push(beside_moves(&home, rounds, mib)?);
    Ok(())
}

/// Measures callers that wait for a hung branch, and files closed there.
pub(crate) fn run_waiting(rounds: usize, tables: &mut Vec<Table>) -> Result<()> {
    if which("mergerfs").is_none() {
        Skip::because("needs mergerfs, which serves the branch that hangs").announce();
        return Ok(());
    }
    let home = cleanup::fresh("figures-waiting")?;
    let _home = Entry::dir(&home)?;
    tables.push(beside_a_frozen_branch(&home, rounds)?);
    Ok(())
}

/// A mounted pool and its daemon.
struct Pool {
    daemon: Process,
    mount: Entry,
    path: PathBuf,
    _dir: Entry,
}

impl Pool {
    fn mount(home: &Path, branches: &[&Path], options: &str) -> Result<Self> {
        let path = home.join("pool");
        let dir = Entry::dir(&path)?;
        let mount = Entry::mount(&path)?;
        let source: Vec<String> = branches.iter().map(|branch| branch.display().to_string()).collect();
        command(daemon::helper()?).arg(source.join(":")).arg(&path).args(["-o", options]).run()?;
        Ok(Self { daemon: daemon::server_of(&path)?, mount, path, _dir: dir })
    }

    fn unmount(self) -> Result<()> {
        self.mount.undo()?;
        self.daemon.wait(LIMIT)
    }
}

/// Columns of the table of moves: name, transport, further options.
const MOVE_COLUMNS: [(&str, &str, &str); 4] = [
    ("dev", "dev", ""),
    ("ring", "ring", ""),
    ("dev, 4 threads", "dev", ",max-threads=4"),
    ("ring, 4 threads", "ring", ",max-threads=4"),
];
/// Most that a stat's 99th percentile may be while files move, as a multiple of the idle pool's.
const BAR: f64 = 2.0;
/// A call that takes longer has woken a CPU that had halted, or waited.
const WAKES_A_CPU: f64 = 20.0;

/// Latency of calls on two other files, idle and while four files move at a limited speed.
fn beside_moves(home: &Path, rounds: usize, mib: u64) -> Result<Table> {
    let make = |name: &str| Branch::make(name, Kind::Xfs(MiB(MOVING * mib + 700)), Layout::Sparse, home);
    let (a, b) = (make("a")?, make("b")?);
    let title = format!("Latency of other files while {MOVING} of {mib} MiB move, microseconds");
    let mut table = Table::new(&title, Sense::LessIsBetter);
    for branch in [&a, &b] {
        lay_out(&branch.path().join(format!("other-{}", branch.name())), OTHER)?;
    }
    let names: Vec<String> = (0..MOVING).map(|n| format!("film-{n}")).collect();
    for name in &names {
        lay_out(&a.path().join(name), mib)?;
    }
    a.fill_until_free(MiB(8));
    for _ in 0..rounds {
        for (column, transport, threads) in MOVE_COLUMNS {
            let options = format!(
                "create=ff,minfreespace=4M,write-path=stacked,attr-timeout=0,relocate-speed=20M,transport={transport}{threads}"
            );
            let pool = Pool::mount(home, &[a.path(), b.path()], &options)?;
            one_round(&mut table, column, &pool, &b, (&names, mib))?;
            pool.unmount()?;
            names.iter().try_for_each(|name| lay_out(&a.path().join(name), mib))?;
        }
    }
    table.notes.push(format!("one thread, two other files, `relocate-speed=20M`; {} s each", LOOK.as_secs()));
    for (column, ..) in MOVE_COLUMNS {
        let of = |column: &str| table.median_of("stat, p99", column);
        if let (Some(idle), Some(beside)) = (of(&idle_column(column)), of(column)) {
            let (times, met) = (beside / idle, if beside <= BAR * idle { "met" } else { "missed" });
            table
                .notes
                .push(format!("{column}: a stat's p99 is {times:.2} times the idle one; bar {BAR}: {met}"));
        }
    }
    Ok(table)
}

fn idle_column(column: &str) -> String {
    format!("{column}, idle")
}

/// Measures two files on `pool`, at rest and while `films` of `mib` MiB each move to `b`. The moves are called off.
fn one_round(
    table: &mut Table,
    column: &str,
    pool: &Pool,
    b: &Branch,
    (films, mib): (&[String], u64),
) -> Result<()> {
    let open = |name: &str| OpenOptions::new().read(true).write(true).open(pool.path.join(name));
    let others = [open("other-a")?, open("other-b")?];
    put_all(table, &idle_column(column), latencies(&others, &Until::Passed(LOOK))?);
    let open_films = films.iter().map(|name| open(name)).collect::<std::io::Result<Vec<File>>>()?;
    let free = free_mib(b.path())?;
    thread::scope(|scope| -> Result<()> {
        for film in &open_films {
            // Cancelled below, so it gets ENOSPC.
            scope.spawn(|| film.write_all_at(&vec![7; 16 << 20], mib << 20).err());
        }
        wait_for("a file that moves", || Ok(free_mib(b.path())? + 8 < free))?;
        put_all(table, column, latencies(&others, &Until::Passed(LOOK))?);
        let moved = films.iter().filter(|name| b.path().join(name).exists()).count();
        ensure!(moved == 0, "{moved} files had moved before the look was over");
        films.iter().try_for_each(|name| Ok(fs::remove_file(pool.path.join(name))?))
    })
}

fn put_all(table: &mut Table, column: &str, latencies: Latencies) {
    for (name, samples) in latencies {
        if name == "stat" && !samples.is_empty() {
            let woken = samples.iter().filter(|sample| **sample > WAKES_A_CPU).count();
            let percent = woken as f64 / samples.len() as f64 * 100.0;
            table.put(&format!("stats over {WAKES_A_CPU} us, percent"), column, percent);
        }
        put(table, name, column, samples);
    }
}

/// The daemon's cost of waiting callers and closed files while a branch hangs.
fn beside_a_frozen_branch(home: &Path, rounds: usize) -> Result<Table> {
    let make = |name: &str| Branch::make(name, Kind::Served, Layout::Sparse, home);
    let (frozen, other) = (make("frozen")?, make("other")?);
    for n in 0..OPEN {
        fs::write(frozen.path().join(format!("f{n}")), "x")?;
    }
    let mut table = Table::new("The daemon while a branch hangs", Sense::LessIsBetter);
    for transport in TRANSPORTS {
        for _ in 0..rounds {
            let options = format!(
                "write-path=stacked,attr-timeout=0,entry-timeout=0,branch-timeout=60,transport={transport}"
            );
            let pool = Pool::mount(home, &[frozen.path(), other.path()], &options)?;
            let open: Vec<File> = (0..OPEN)
                .map(|n| File::open(pool.path.join(format!("f{n}"))))
                .collect::<std::io::Result<_>>()?;
            let server = frozen.daemon();
            server.signal(Signal::STOP)?;
            let looked = look(&pool, open, server);
            server.signal(Signal::CONT)?;
            let (cpu, threads) = looked?;
            table.put(&format!("CPU of {CALLERS} callers that wait, percent"), transport, cpu);
            table.put(&format!("threads more after {OPEN} files are closed"), transport, threads);
            pool.unmount()?;
        }
    }
    table
        .notes
        .push(format!("`branch-timeout=60`, `branch-inflight` as by default; CPU over {} s", LOOK.as_secs()));
    Ok(table)
}

/// Returns the CPU percentage for callers that wait for `server`, and the number of threads for closing the files.
fn look(pool: &Pool, open: Vec<File>, server: Process) -> Result<(f64, f64)> {
    let before = pool.daemon.threads()?;
    drop(open);
    thread::sleep(LOOK / 5);
    let closing = pool.daemon.threads()?.saturating_sub(before);
    let asking = AtomicUsize::new(0);
    let cpu = thread::scope(|scope| {
        for n in 0..CALLERS {
            let (asking, path) = (&asking, pool.path.join(format!("f{n}")));
            scope.spawn(move || {
                asking.fetch_add(1, Relaxed);
                // Answered when the server continues.
                fs::metadata(path).map(drop)
            });
        }
        let measured = cpu_of(pool.daemon, &asking);
        server.signal(Signal::CONT)?;
        measured
    })?;
    Ok((cpu, closing as f64))
}

fn cpu_of(daemon: Process, asking: &AtomicUsize) -> Result<f64> {
    wait_for("all callers", || Ok(asking.load(Relaxed) == CALLERS))?;
    thread::sleep(LOOK / 5);
    let (began, used) = (Instant::now(), daemon.cpu()?);
    thread::sleep(LOOK);
    Ok((daemon.cpu()? - used).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
}

fn free_mib(branch: &Path) -> Result<u64> {
    let space = statvfs(branch)?;
    Ok((space.f_bavail * space.f_frsize) >> 20)
}

fn wait_for(what: &str, is: impl Fn() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is()? {
        ensure!(began.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
