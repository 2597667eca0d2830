//! Whether the daemon's memory and descriptors stay constant during an hour of mixed work, with each transport.
//!
//! Two pools are mounted and used alike: by callers that race for a few names (like fs_racer), callers that change
//! random parts of files (like fsstress), and dbench if installed. None runs at full speed: leaks depend on the number
//! of operations, and the machine stays usable.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fsstack_lab::daemon;
use fsstack_lab::shell::{command, which};
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};
use rustix::io::Errno;

use crate::report::{Sense, Table, median};
use crate::test_bed::{Contender, Server, Standing, TestBed};

/// Duration of the work, and interval of the samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnduranceAmount {
    pub(crate) lasts: Duration,
    pub(crate) every: Duration,
}

const RACERS: u64 = 4;
const STRESSERS: u64 = 2;
/// Pause between two operations of a caller.
const PAUSE: Duration = Duration::from_millis(4);
/// Settling time of the memory: a sixth, ten minutes of an hour.
const SETTLING: u32 = 6;
const DBENCH_LOAD: &str = "/usr/share/dbench/client.txt";

/// A sample of a daemon's resources.
struct Sample {
    after: Duration,
    resident_mib: f64,
    descriptors: f64,
    threads: f64,
    /// Entries of the daemon's tables, by the name of the metric.
    entries: BTreeMap<String, f64>,
}

/// Metrics whose value is the number of entries of a table.
const ENTRIES: [&str; 6] = [
    "fsstack_inodes ",
    "fsstack_file_handles ",
    "fsstack_directory_handles ",
    "fsstack_directory_descriptors ",
    "fsstack_listing_entries ",
    "fsstack_table_entries{",
];

type Value = fn(&Sample) -> f64;
const VALUES: [(&str, Value); 3] = [
    ("resident MiB", |sample| sample.resident_mib),
    ("descriptors", |sample| sample.descriptors),
    ("threads", |sample| sample.threads),
];

/// The plot of the samples goes to `plot`.
pub(crate) fn run(
    test_bed: &TestBed,
    amount: EnduranceAmount,
    plot: &Path,
    tables: &mut Vec<Table>,
) -> Result<()> {
    let pools = [("dev", "transport=dev"), ("ring", "transport=ring")].map(|(name, transport)| {
        Contender::new(name, Server::Fsstack, &[&["create=rand,minfreespace=64M", transport]])
    });
    let stands = pools.iter().map(|pool| Ok((pool, test_bed.stand(pool, 2)?))).collect::<Result<Vec<_>>>()?;
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let failed = Mutex::new(Vec::new());
    let samples = thread::scope(|scope| -> Result<_> {
        for (pool, at) in &stands {
            let root = at.path().join("work");
            prepare(&root)?;
            for number in 0..RACERS + STRESSERS {
                let work: Step = if number < RACERS { race } else { stress };
                let caller = Caller { root: root.clone(), random: Random::of(pool.name, number) };
                let (over, done, failed) = (&over, &done, &failed);
                scope.spawn(move || {
                    if let Err(error) = caller.work(work, over, done) {
                        failed.lock().map(|mut failed| failed.push(format!("{}: {error:#}", pool.name))).ok();
                    }
                });
            }
            if dbench_missing().is_none() {
                scope.spawn(|| dbench(at.path(), amount.lasts));
            }
        }
        let samples = watch(&stands, amount, plot);
        over.store(true, Relaxed);
        samples
    })?;
    let failed = failed.into_inner().unwrap_or_default();
    ensure!(failed.is_empty(), "an operation failed: {}", failed.join("; "));
    tables.extend(told(&stands, &samples, amount, done.into_inner()));
    stands.into_iter().try_for_each(|(_, at)| at.fall())
}

/// Takes samples, and draws them each time: a run that is ended early leaves its plot, too.
fn watch(
    stands: &[(&Contender, Standing)],
    amount: EnduranceAmount,
    plot: &Path,
) -> Result<Vec<Vec<Sample>>> {
    let names: Vec<&str> = stands.iter().map(|(pool, _)| pool.name).collect();
    let program = daemon::helper()?.with_file_name("fsstack");
    let began = Instant::now();
    let mut samples: Vec<Vec<Sample>> = stands.iter().map(|_| Vec::new()).collect();
    while began.elapsed() < amount.lasts {
        for ((_, at), samples) in stands.iter().zip(&mut samples) {
            let daemon = at.daemon()?;
            samples.push(Sample {
                after: began.elapsed(),
                resident_mib: (daemon.resident()? >> 10) as f64 / 1024.0,
                descriptors: daemon.open_files()? as f64,
                threads: daemon.threads()? as f64,
                entries: entries(&program, at.path())?,
            });
        }
        fs::write(plot, drawing(&names, &samples)).with_context(|| plot.display().to_string())?;
        thread::sleep(amount.every);
    }
    Ok(samples)
}

/// Entries of each table of the pool's daemon.
fn entries(program: &Path, pool: &Path) -> Result<BTreeMap<String, f64>> {
    let metrics = command(program).arg("metrics").arg(pool).run()?;
    let rows = metrics.stdout.lines().filter(|line| ENTRIES.iter().any(|name| line.starts_with(name)));
    rows.map(|row| {
        let (name, value) = row.rsplit_once(' ').with_context(|| row.to_owned())?;
        Ok((name.to_owned(), value.parse()?))
    })
    .collect()
}

/// Highest number of entries of each table, in the parts of the run.
fn fullest(stands: &[(&Contender, Standing)], samples: &[Vec<Sample>], settled: Duration) -> Table {
    let mut table = Table::new("highest number of entries of the daemon's tables", Sense::LessIsBetter);
    for ((pool, _), samples) in stands.iter().zip(samples) {
        let (early, late): (Vec<&Sample>, Vec<&Sample>) = samples.iter().partition(|s| s.after < settled);
        let (first, last) = late.split_at(late.len() / 2);
        for (part, when) in
            [(&early[..], "before it settled"), (first, "first half after"), (last, "second half")]
        {
            let mut fullest: BTreeMap<&str, f64> = BTreeMap::new();
            for (name, entries) in part.iter().flat_map(|sample| &sample.entries) {
                let most = fullest.entry(name).or_default();
                *most = most.max(*entries);
            }
            for (name, entries) in fullest {
                table.put(name, &format!("{}, {when}", pool.name), entries);
            }
        }
    }
    table
}

/// Makes a table per value, with the conditions below the last.
fn told(
    stands: &[(&Contender, Standing)],
    samples: &[Vec<Sample>],
    amount: EnduranceAmount,
    done: u64,
) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for (value, of) in VALUES {
        let mut table = Table::new(&format!("{value} of the daemon under mixed work"), Sense::LessIsBetter);
        for ((pool, _), samples) in stands.iter().zip(samples) {
            let settled = amount.lasts / SETTLING;
            let (early, late): (Vec<&Sample>, Vec<&Sample>) = samples.iter().partition(|s| s.after < settled);
            table.put("highest before it settled", pool.name, highest(&early, of));
            let third = late.len().div_ceil(3).max(1);
            for (part, row) in
                late.chunks(third).zip(["median, first third after", "second third", "last third"])
            {
                let values: Vec<f64> = part.iter().map(|sample| of(sample)).collect();
                table.put(row, pool.name, median(&values).unwrap_or_default());
            }
            table.put("highest after", pool.name, highest(&late, of));
        }
        tables.push(table);
    }
    tables.push(fullest(stands, samples, amount.lasts / SETTLING));
    if let Some(table) = tables.last_mut() {
        let lasted = amount.lasts.as_secs();
        table
            .notes
            .push(format!("{lasted} s; it counts as settled after {} s", lasted / u64::from(SETTLING)));
        table.notes.push(format!(
            "{} operations in both pools; in each {RACERS} racing callers and {STRESSERS} that change files, {} ms between two operations",
            done,
            PAUSE.as_millis()
        ));
        table.notes.push(
            dbench_missing()
                .unwrap_or_else(|| "beside them dbench, two clients in each pool, 1 MB/s".to_owned()),
        );
    }
    tables
}

fn highest(samples: &[&Sample], of: Value) -> f64 {
    samples.iter().map(|sample| of(sample)).fold(0.0, f64::max)
}

/// An operation on `path` that was tried.
struct Attempt {
    operation: &'static str,
    path: PathBuf,
    result: io::Result<()>,
}

/// An operation at `root`, chosen by a random number.
type Step = fn(&Path, &mut Random) -> Attempt;

struct Caller {
    root: PathBuf,
    random: Random,
}

impl Caller {
    fn work(mut self, step: Step, over: &AtomicBool, done: &AtomicU64) -> Result<()> {
        while !over.load(Relaxed) {
            let Attempt { operation, path, result } = step(&self.root, &mut self.random);
            match result {
                Ok(()) => {}
                Err(error) if is_expected(&error) => {}
                Err(error) => {
                    over.store(true, Relaxed);
                    return Err(error).with_context(|| format!("{operation} {}", path.display()));
                }
            }
            done.fetch_add(1, Relaxed);
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// True for errors that callers racing for names get on any file system.
fn is_expected(error: &io::Error) -> bool {
    use ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | AlreadyExists | DirectoryNotEmpty | IsADirectory | NotADirectory)
        || [Errno::LOOP, Errno::PERM, Errno::INVAL, Errno::XDEV, Errno::STALE]
            .iter()
            .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Linear congruential generator: the same work in every run.
struct Random(u64);

impl Random {
    fn of(pool: &str, number: u64) -> Self {
        Self(pool.bytes().fold(number + 1, |seed, byte| seed.wrapping_mul(31) + u64::from(byte)))
    }

    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let [_, _, _, _, high @ ..] = self.0.to_le_bytes();
        u32::from_le_bytes(high) % end
    }
}

const RACED_DIRS: u32 = 4;
const RACED_NAMES: u32 = 12;
const STRESSED_FILES: u32 = 16;
const STRESSED_BYTES: u32 = 1 << 20;

fn prepare(root: &Path) -> Result<()> {
    (0..RACED_DIRS).try_for_each(|n| fs::create_dir_all(root.join(format!("d{n}"))))?;
    Ok(fs::create_dir_all(root.join("files"))?)
}

/// One operation on one of a few names shared by all callers.
fn race(root: &Path, random: &mut Random) -> Attempt {
    let mut any = || root.join(format!("d{}/n{}", random.below(RACED_DIRS), random.below(RACED_NAMES)));
    let (one, other) = (any(), any());
    let (operation, result) = match random.below(13) {
        0 | 1 => ("write", fs::write(&one, vec![1; random.below(20_000) as usize])),
        2 => ("mkdir", fs::create_dir(&one)),
        3 => ("rename", fs::rename(&one, &other)),
        4 => ("link", fs::hard_link(&one, &other)),
        5 => ("symlink", symlink(&other, &one)),
        6 => ("unlink", fs::remove_file(&one)),
        7 => ("remove", fs::remove_dir(&one).or_else(|_| fs::remove_dir_all(&one))),
        8 => ("chmod", fs::set_permissions(&one, fs::Permissions::from_mode(0o600 | random.below(0o100)))),
        9 => {
            let set = setxattr(&one, "user.endurance", b"value", XattrFlags::empty());
            ("setxattr", set.map_err(io::Error::from))
        }
        10 => {
            let dir = root.join(format!("d{}", random.below(RACED_DIRS)));
            let listed =
                fs::read_dir(dir).and_then(|mut dir| dir.try_for_each(|entry| entry?.metadata().map(drop)));
            ("list directories beside", listed)
        }
        11 => ("read", fs::read(&one).map(drop)),
        _ => ("write inside", fs::write(one.join("inside"), "x")),
    };
    Attempt { operation, path: one, result }
}

/// One change of a random part of one of a few files.
fn stress(root: &Path, random: &mut Random) -> Attempt {
    let path = root.join(format!("files/f{}", random.below(STRESSED_FILES)));
    let append = random.below(8) == 0;
    let mut options = OpenOptions::new();
    let file: File = match options.read(true).write(!append).append(append).create(true).open(&path) {
        Ok(file) => file,
        Err(error) => return Attempt { operation: "open", path, result: Err(error) },
    };
    let (from, length) = (random.below(STRESSED_BYTES), random.below(STRESSED_BYTES / 8) + 1);
    let (operation, result) = match random.below(8) {
        0 => ("truncate", file.set_len(from.into())),
        1 => {
            let done = fallocate(&file, FallocateFlags::KEEP_SIZE, from.into(), length.into());
            ("fallocate", done.map_err(io::Error::from))
        }
        2 => ("fdatasync", file.sync_data()),
        3 => ("unlink", fs::remove_file(&path)),
        4 | 5 => ("read", file.read_at(&mut vec![0; length as usize], from.into()).map(drop)),
        _ => {
            let changed = file.metadata().and_then(|now| {
                if now.len() > u64::from(2 * STRESSED_BYTES) {
                    file.set_len(0)
                } else {
                    file.write_at(&vec![7; length as usize], from.into()).map(drop)
                }
            });
            ("write", changed)
        }
    };
    Attempt { operation, path, result }
}

fn dbench_missing() -> Option<String> {
    let there = which("dbench").is_some() && Path::new(DBENCH_LOAD).exists();
    (!there).then(|| "without dbench, which is not installed".to_owned())
}

/// Runs for the given time; its rates mean nothing at a limited load.
fn dbench(pool: &Path, lasts: Duration) -> Result<()> {
    let dir = pool.join("dbench");
    fs::create_dir_all(&dir)?;
    let seconds = lasts.as_secs().max(1).to_string();
    let run = command("dbench").args(["-c", DBENCH_LOAD, "-R", "1", "-t", &seconds, "-D"]).arg(&dir).arg("2");
    run.limit(lasts + Duration::from_secs(120)).run().map(drop)
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 60.0;
const COLOURS: [&str; 2] = ["#2f6fdb", "#d9822b"];

/// A panel per value, a line per pool, time from left to right; each axis starts at 0.
fn drawing(names: &[&str], samples: &[Vec<Sample>]) -> String {
    let height = HEIGHT * VALUES.len() as f64 + 30.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#888\">\n"
    );
    let longest = samples.iter().flatten().map(|sample| sample.after.as_secs_f64()).fold(1.0, f64::max);
    for (panel, (title, of)) in VALUES.iter().enumerate() {
        let (top, bottom) = (HEIGHT * panel as f64 + 24.0, HEIGHT * (panel + 1) as f64);
        let most = samples.iter().flatten().map(of).fold(1.0, f64::max);
        let _ = write!(
            svg,
            "<text x=\"{LEFT}\" y=\"{}\">{title}</text>\n<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{most:.0}</text>\n\
             <text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">0</text>\n\
             <path d=\"M{LEFT} {bottom}H{WIDTH}\" stroke=\"#888\" stroke-width=\"0.5\"/>\n",
            top - 6.0,
            LEFT - 6.0,
            top + 8.0,
            LEFT - 6.0,
        );
        for (own, colour) in samples.iter().zip(COLOURS) {
            let points = own.iter().map(|sample| {
                let x = LEFT + sample.after.as_secs_f64() / longest * (WIDTH - LEFT - 4.0);
                format!("{x:.1},{:.1}", bottom - of(sample) / most * (bottom - top))
            });
            let points: Vec<String> = points.collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>",
                points.join(" ")
            );
        }
    }
    for (at, (name, colour)) in names.iter().zip(COLOURS).enumerate() {
        let x = LEFT + 80.0 * at as f64;
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\" fill=\"{colour}\">{name}</text>", height - 10.0);
    }
    let _ = writeln!(
        svg,
        "<text x=\"{WIDTH}\" y=\"{}\" text-anchor=\"end\">{:.0} minutes</text>\n</svg>",
        height - 10.0,
        longest / 60.0
    );
    svg
}
