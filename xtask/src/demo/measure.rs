//! The demo's table: the pool on each write path, and one branch directly.
//!
//! A first look, not a benchmark: one client, warm caches, the best of three rounds. `cargo xtask bench` measures
//! properly.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fsstack_lab::Pool;

const BLOCK: usize = 1 << 20;
const BLOCKS: u64 = 48;
const NAMES: u32 = 1500;
const ROUNDS: usize = 3;

/// Speeds of one file system, without the stats of its names.
struct Speeds {
    write: f64,
    read: f64,
    create: f64,
}

/// Measures and prints one line per file system.
pub(crate) fn table(pool: &mut Pool, placement: &str) -> Result<()> {
    println!("\n{:<12} {:>11} {:>11} {:>10} {:>10}", "", "write MB/s", "read MB/s", "create/s", "stat/s");
    for path in ["stacked", "passthrough"] {
        let options = [placement, &format!("write-path={path}")];
        if let Err(refused) = pool.try_remount_with(&options)? {
            println!("{path:<12} {refused}");
            continue;
        }
        let dir = pool.at("measure");
        let speeds = speeds(&dir)?;
        // Mounted anew, so that the daemon answers for every name instead of the kernel's cache.
        pool.try_remount_with(&options)??;
        row(path, &speeds, &dir)?;
    }
    // The branch with the most free space is the one that the pool has just used.
    let direct = pool.branches().iter().max_by_key(|branch| branch.free());
    if let Some(branch) = direct {
        let dir = branch.path().join("measure");
        row("direct", &speeds(&dir)?, &dir)?;
    }
    Ok(())
}

/// Stats the names once, prints the line, and removes the files.
fn row(label: &str, Speeds { write, read, create }: &Speeds, dir: &Path) -> Result<()> {
    let asked = timed(|| Ok((0..NAMES).try_for_each(|n| fs::symlink_metadata(name(dir, n)).map(drop))?))?;
    let stat = each(asked);
    println!("{label:<12} {write:>11.0} {read:>11.0} {create:>10.0} {stat:>10.0}");
    Ok(fs::remove_dir_all(dir)?)
}

fn speeds(dir: &Path) -> Result<Speeds> {
    fs::create_dir(dir)?;
    let path = dir.join("data");
    // Written once before: the first use of memory is slower than any file system here.
    File::create(&path)?;
    write(&path)?;
    let bytes = f64::from(u32::try_from(BLOCKS)?) * f64::from(u32::try_from(BLOCK)?) / 1e6;
    let rate = |took: Duration| bytes / took.as_secs_f64();
    let (written, read) = (best(|| write(&path))?, best(|| read(&path))?);
    let created = timed(|| Ok((0..NAMES).try_for_each(|n| File::create(name(dir, n)).map(drop))?))?;
    Ok(Speeds { write: rate(written), read: rate(read), create: each(created) })
}

fn name(dir: &Path, n: u32) -> PathBuf {
    dir.join(format!("name-{n}"))
}

fn each(took: Duration) -> f64 {
    f64::from(NAMES) / took.as_secs_f64()
}

fn write(path: &Path) -> Result<()> {
    let file = File::options().write(true).open(path)?;
    let block = vec![0xa5_u8; BLOCK];
    (0..BLOCKS).try_for_each(|n| file.write_all_at(&block, n << 20))?;
    Ok(())
}

fn read(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    let mut block = vec![0_u8; BLOCK];
    for n in 0..BLOCKS {
        file.read_exact_at(&mut block, n << 20)?;
        ensure!(block.first() == Some(&0xa5), "{} was read wrong", path.display());
    }
    Ok(())
}

fn best(mut work: impl FnMut() -> Result<()>) -> Result<Duration> {
    let rounds = (0..ROUNDS).map(|_| timed(&mut work)).collect::<Result<Vec<_>>>()?;
    Ok(rounds.into_iter().min().unwrap_or_default())
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}
