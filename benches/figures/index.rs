//! The index with many moved files: its memory, the time to open a forgotten handle, and answers to clients while a
//! lost index is rebuilt.
//!
//! The files are made on the second branch with the marks of files moved from the first. Daemon, index and handles are
//! real; only the moves are omitted, which would take longest.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fsstack_identity::mark;
use fsstack_identity::number::Identity;
use fsstack_lab::{self as lab, MiB, Pool};
use fsstack_pool::Ino;
use fsstack_sys::handle::{FileHandle, name_to_handle, open_handle};
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{Errno, OFlags};

use crate::report::{Sense, Table};

/// Files per directory.
const IN_DIR: usize = 1000;
/// One in this many files is held by a client, and contains its own name.
const HELD: usize = 100;
/// Longer than making any index takes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Attribute that names the index with all marks of a branch; a foreign value means that none has them.
const COVERED_BY: &std::ffi::CStr = c"trusted.fsstack.index";

const PLAIN: &str = "none moved";
const MOVED: &str = "all moved";
const LOST: &str = "all moved, index lost";

pub(crate) fn run(files: usize, tables: &mut Vec<Table>) -> Result<()> {
    let mut pool =
        lab::pool().xfs_branch("x", MiB(310)).xfs_branch("y", MiB(4096)).preallocated().option("nfs-export");
    pool = pool.option("create=ff").limit(ANSWER_TIMEOUT);
    let mut pool = pool.mount();
    make(&pool, files)?;
    let mut table = Table::new(&format!("A pool of {files} files, by its index"), Sense::LessIsBetter);
    remount(&mut pool, PLAIN, files, &mut table)?;
    measure(&pool, PLAIN, &hold(&pool, files)?, &mut table)?;
    mark_all(&mut pool, files)?;
    lose_index(&pool)?;
    let built = remount(&mut pool, LOST, files, &mut table)?;
    wait_for_index(&pool)?;
    table.put("s until the index was complete", LOST, built.elapsed().as_secs_f64());
    let held = hold(&pool, files)?;
    remount(&mut pool, MOVED, files, &mut table)?;
    wait_for_index(&pool)?;
    measure(&pool, MOVED, &held, &mut table)?;
    pool.unmount();
    lose_index(&pool)?;
    let began = remount(&mut pool, LOST, files, &mut table)?;
    let meanwhile = ask_meanwhile(&pool, &held)?;
    table.put("s until the index was complete", LOST, began.elapsed().as_secs_f64());
    measure(&pool, LOST, &held, &mut table)?;
    table.compare(MOVED, &[PLAIN], "all moved to none");
    table.notes.push(meanwhile);
    table.notes.push("a handle is forgotten: the daemon was started after it was made, and the kernel dropped what nobody uses".into());
    tables.push(table);
    pool.unmount();
    Ok(())
}

/// Objects held by a client.
struct HeldHandles {
    path: PathBuf,
    handle: FileHandle,
    ino: u64,
}

fn path_of(n: usize) -> PathBuf {
    PathBuf::from(format!("d{:04}/f{n:07}", n / IN_DIR))
}

/// Makes files on the second branch that the daemon has not seen.
fn make(pool: &Pool, files: usize) -> Result<()> {
    let y = pool.branch("y").path();
    for n in 0..files {
        let path = path_of(n);
        if n % IN_DIR == 0 {
            fs::create_dir(y.join(path.parent().context("a directory")?))?;
        }
        if n % HELD == 0 {
            fs::write(y.join(&path), path.as_os_str().as_encoded_bytes())?;
        } else {
            File::create(y.join(&path))?;
        }
    }
    Ok(())
}

/// Marks every file as moved from the first branch, each from a different inode.
fn mark_all(pool: &mut Pool, files: usize) -> Result<()> {
    pool.write("on the first", b"");
    let branch = fs::metadata(pool.at("on the first"))?.ino() >> 48 << 48;
    ensure!(pool.holders("on the first") == ["x"], "the first branch does not take files");
    pool.unmount();
    let y = pool.branch("y").path();
    let root = File::open(y)?;
    xattr::set(On::Fd(root.as_fd()), COVERED_BY, &[0; 16], 0)?;
    for n in 0..files {
        let path = path_of(n);
        let dir = File::open(y.join(path.parent().context("a directory")?))?;
        let name = CString::new(path.file_name().context("a name")?.as_encoded_bytes())?;
        let own = fs::symlink_metadata(y.join(&path))?.ino();
        let id = Identity { ino: Ino(branch | 1 << 40 | u64::try_from(n)?), generation: 1 };
        mark::put(On::Name(dir.as_fd(), &name), mark::FILE, id, own)?;
    }
    Ok(())
}

fn lose_index(pool: &Pool) -> Result<()> {
    for state in fs::read_dir(pool.state_dir())? {
        let index = state?.path().join("index.redb");
        if index.exists() {
            fs::remove_file(index)?;
        }
    }
    Ok(())
}

/// Mounts the pool and makes a request for a file. Returns when the mount began.
fn remount(pool: &mut Pool, column: &str, files: usize, table: &mut Table) -> Result<Instant> {
    pool.unmount();
    rustix::fs::sync();
    let began = Instant::now();
    pool.remount();
    fs::metadata(pool.at(path_of(files / 2)))?;
    table.put("ms from mount to the first answer", column, began.elapsed().as_secs_f64() * 1e3);
    Ok(began)
}

fn is_complete(pool: &Pool) -> Result<bool> {
    let mut result = [0; 256];
    let len = rustix::fs::getxattr(pool.path(), c"user.fsstack.index", &mut result)?;
    Ok(result[..len].starts_with(b"complete"))
}

fn wait_for_index(pool: &Pool) -> Result<()> {
    let began = Instant::now();
    while !is_complete(pool)? {
        ensure!(began.elapsed() < ANSWER_TIMEOUT, "the index is never complete");
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn hold(pool: &Pool, files: usize) -> Result<Vec<HeldHandles>> {
    let root = File::open(pool.path())?;
    (0..files)
        .step_by(HELD)
        .map(|n| {
            let path = path_of(n);
            let handle = name_to_handle(root.as_fd(), &CString::new(path.as_os_str().as_encoded_bytes())?)?;
            let ino = fs::symlink_metadata(pool.at(&path))?.ino();
            Ok(HeldHandles { path, handle, ino })
        })
        .collect()
}

/// Measures opening of forgotten handles, and the daemon's memory after it.
fn measure(pool: &Pool, column: &str, held: &[HeldHandles], table: &mut Table) -> Result<()> {
    forget()?;
    let root = File::open(pool.path())?;
    let mut took = Vec::with_capacity(held.len());
    for (n, held) in held.iter().enumerate() {
        let began = Instant::now();
        let opened = open_handle(root.as_fd(), &held.handle, OFlags::RDONLY)?;
        took.push(began.elapsed().as_secs_f64() * 1e6);
        // Sampling each one would keep the daemon's caches warm.
        if n % 16 == 0 {
            ensure!(leads_to(File::from(opened), held)?, "{} is another file", held.path.display());
        }
    }
    took.sort_by(f64::total_cmp);
    for (label, part) in [("p50", 50), ("p99", 99)] {
        if let Some(sample) = took.get(took.len() * part / 100) {
            table.put(&format!("us to open a forgotten handle, {label}"), column, *sample);
        }
    }
    forget()?;
    sleep(Duration::from_secs(2));
    let resident = pool.daemon().resident()? >> 10;
    table.put("MiB of the daemon, resident", column, f64::from(u32::try_from(resident)?) / 1024.0);
    Ok(())
}

fn leads_to(file: File, held: &HeldHandles) -> Result<bool> {
    let ino = file.metadata()?.ino();
    let content = std::io::read_to_string(file)?;
    Ok(ino == held.ino && Path::new(&content) == held.path)
}

/// Asks for clients' objects, by handle and by name, until the index is complete.
fn ask_meanwhile(pool: &Pool, held: &[HeldHandles]) -> Result<String> {
    let root = File::open(pool.path())?;
    let (mut right, mut later, mut wrong) = (0_u64, 0_u64, 0_u64);
    let mut seed = 1_u64;
    while !is_complete(pool)? {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let held = &held[usize::try_from(seed >> 33)? % held.len()];
        match open_handle(root.as_fd(), &held.handle, OFlags::RDONLY).map_err(|e| e.errno) {
            Ok(fd) => {
                let led = leads_to(File::from(fd), held)?;
                right += u64::from(led);
                wrong += u64::from(!led);
            }
            // "Not now" from open_by_handle_at(2) (docs/dev/decisions/0026).
            Err(Errno::NOMEM) => later += 1,
            Err(_) => wrong += 1,
        }
        match fs::symlink_metadata(pool.at(&held.path)) {
            Ok(meta) if meta.ino() == held.ino => right += 1,
            Ok(_) | Err(_) => wrong += 1,
        }
    }
    ensure!(
        wrong == 0,
        "{wrong} wrong answers while the index was made anew ({right} right, {later} put off)"
    );
    Ok(format!(
        "while the index was made anew: {right} right answers, {later} times ENOMEM for a handle not found yet, 0 wrong ones"
    ))
}

fn forget() -> Result<()> {
    rustix::fs::sync();
    Ok(fs::write("/proc/sys/vm/drop_caches", "2")?)
}
