//! A mounted pool beside its branch on XFS: names, and reads and writes of 1 MiB, by each way that requests and bytes can go.
//!
//! Where it cannot mount it says why and measures nothing.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use criterion::{Bencher, Criterion, Throughput, criterion_group, criterion_main};
use fsstack_lab::{self as lab, MiB, Pool, daemon, needs};

const MIB: usize = 1 << 20;

/// The file that is read and written: laid out before, and in the page cache.
const BLOCKS: u64 = 64;

/// Name of each pool, and its options.
const POOLS: [(&str, &[&str]); 3] = [
    ("pool, dev", &["transport=dev"]),
    ("pool, ring", &["transport=ring"]),
    ("pool, ring, stacked", &["transport=ring", "write-path=stacked"]),
];

/// Repeated call in a directory.
type Call = fn(&mut Bencher<'_>, &Path);

/// A directory to work in, and what it is called.
struct BenchDir {
    name: &'static str,
    dir: PathBuf,
}

/// Pools, each over an XFS of its own.
fn pools() -> Vec<(&'static str, Pool)> {
    let mut pools = Vec::new();
    for (name, options) in POOLS {
        let pool = lab::pool().xfs_branch("a", MiB(512)).preallocated();
        let pool = options.iter().fold(pool, |pool, option| pool.option(option));
        match pool.try_mount() {
            Ok(mounted) => pools.push((name, mounted)),
            Err(refused) => println!("SKIP {name}: {refused}"),
        }
    }
    pools
}

/// The first pool's branch itself, then the pools.
fn places(pools: &[(&'static str, Pool)]) -> Vec<BenchDir> {
    let branch = pools.first().map(|(_, pool)| ("branch", pool.branch("a").path()));
    let all = branch.into_iter().chain(pools.iter().map(|(name, pool)| (*name, pool.path())));
    all.map(|(name, dir)| BenchDir {
        name,
        dir: dir.join(if name == "branch" { "direct" } else { "pooled" }),
    })
    .collect()
}

fn laid_out(dir: &Path) -> std::io::Result<File> {
    fs::create_dir_all(dir)?;
    let file =
        File::options().read(true).write(true).create(true).truncate(false).open(dir.join("blocks"))?;
    let block = vec![7_u8; MIB];
    (0..BLOCKS).try_for_each(|n| file.write_all_at(&block, n * MIB as u64))?;
    file.sync_all()?;
    Ok(file)
}

/// Panics on an error: a failing call is not measured.
fn done<T>(result: std::io::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// One call after the other on a name that is not there before or after.
fn name(bencher: &mut Bencher<'_>, dir: &Path) {
    let path = dir.join("name");
    bencher.iter(|| done(File::create_new(&path).and_then(|_closed| fs::remove_file(&path))));
}

fn stat(bencher: &mut Bencher<'_>, dir: &Path) {
    let path = dir.join("blocks");
    bencher.iter(|| done(fs::symlink_metadata(&path)).len());
}

fn open(bencher: &mut Bencher<'_>, dir: &Path) {
    let path = dir.join("blocks");
    bencher.iter(|| drop(done(File::open(&path))));
}

fn stacked(criterion: &mut Criterion) {
    let able = needs::mounting().and_then(|()| needs::loops());
    let helper =
        able.map_err(|skip| skip.to_string()).and_then(|()| daemon::helper().map_err(|e| e.to_string()));
    match helper {
        Err(why) => return println!("SKIP stacked against direct: {why}"),
        Ok(helper) => println!("stacked against direct: the daemon is {}", helper.display()),
    }
    let pools = pools();
    let places = places(&pools);
    let files: Vec<File> = places
        .iter()
        .map(|place| laid_out(&place.dir).unwrap_or_else(|error| panic!("{}: {error}", place.name)))
        .collect();
    let calls: [(&str, Call); 3] = [("create and unlink", name), ("stat", stat), ("open and close", open)];
    for (what, call) in calls {
        let mut group = criterion.benchmark_group(what);
        for place in &places {
            group.bench_function(place.name, |bencher| call(bencher, &place.dir));
        }
        group.finish();
    }
    let block = RefCell::new(vec![7_u8; MIB]);
    for write in [true, false] {
        let mut group = criterion.benchmark_group(if write { "write 1 MiB" } else { "read 1 MiB" });
        group.throughput(Throughput::Bytes(MIB as u64));
        for (place, file) in places.iter().zip(&files) {
            let mut at = 0;
            group.bench_function(place.name, |bencher| {
                bencher.iter(|| {
                    at = (at + 1) % BLOCKS;
                    let (mut block, offset) = (block.borrow_mut(), at * MIB as u64);
                    done(if write {
                        file.write_all_at(&block, offset)
                    } else {
                        file.read_exact_at(&mut block, offset)
                    });
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, stacked);
criterion_main!(benches);
