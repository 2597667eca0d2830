//! Changing the write path under load: 16 files are written and read with known bytes while the write path is changed,
//! branches are added and removed, and policies change. No call may fail, and no byte may be wrong.
//!
//! 12 seconds, or FSSTACK_SWITCH_SECONDS (a minute for the figure in docs/figures/operations.md).

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, cleanup, needs};

use super::*;

const FILES: usize = 16;
const BLOCK: usize = 16 * 1024;
const BLOCKS: u64 = 64;

/// Content of `block` of `file` in round `round`, all different.
fn pattern(file: usize, block: u64, round: u64) -> Vec<u8> {
    let mut state = (file as u64) << 40 ^ block << 20 ^ round ^ 0x9e37_79b9_7f4a_7c15;
    let mut bytes = Vec::with_capacity(BLOCK);
    while bytes.len() < BLOCK {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// Writes the file's blocks and reads them back, reopening it each round, until `stop`. Returns the number of rounds.
fn work(path: &Path, number: usize, stop: &AtomicBool) -> u64 {
    let mut round = 0;
    while !stop.load(Relaxed) {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.unwrap_or_else(|error| panic!("open {}: {error}", path.display()));
        for block in 0..BLOCKS {
            file.write_all_at(&pattern(number, block, round), block * BLOCK as u64)
                .unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
        }
        verify(&file, path, number, round);
        // The same by another descriptor, which may use another path.
        verify(&File::open(path).unwrap(), path, number, round);
        round += 1;
    }
    round
}

fn verify(file: &File, path: &Path, number: usize, round: u64) {
    let mut bytes = vec![0; BLOCK];
    for block in 0..BLOCKS {
        file.read_exact_at(&mut bytes, block * BLOCK as u64)
            .unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
        assert!(
            bytes == pattern(number, block, round),
            "{}: block {block} of round {round} is wrong",
            path.display()
        );
    }
}

/// Makes, renames, lists and removes: names must not become stale either.
fn fuss(pool: &Path, stop: &AtomicBool, done: &AtomicU64) {
    let mut turn = 0_u64;
    while !stop.load(Relaxed) {
        let (from, to) = (pool.join(format!("fuss/{turn}")), pool.join(format!("fuss/{turn}.moved")));
        fs::write(&from, turn.to_le_bytes()).unwrap();
        fs::rename(&from, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), turn.to_le_bytes());
        assert!(fs::read_dir(pool.join("fuss")).unwrap().all(|entry| entry.is_ok()));
        fs::remove_file(&to).unwrap();
        turn += 1;
        done.fetch_add(1, Relaxed);
    }
}

#[test]
fn no_call_fails_and_no_byte_is_wrong() {
    needs!(mounting());
    let seconds = std::env::var("FSSTACK_SWITCH_SECONDS").map_or(12, |text| text.parse().unwrap());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    pool.mkdir("fuss");
    let home = cleanup::fresh("extra").unwrap();
    let _home = cleanup::Entry::dir(&home).unwrap();
    let extra = home.to_str().unwrap().to_owned();
    let mut there = false;
    let at = at(&pool);
    let stop = Arc::new(AtomicBool::new(false));
    let fussed = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..FILES)
        .map(|number| {
            let (path, stop) = (pool.at(format!("file-{number}")), stop.clone());
            thread::spawn(move || work(&path, number, &stop))
        })
        .collect();
    let fussing = {
        let (path, stop, done) = (pool.path().to_owned(), stop.clone(), fussed.clone());
        thread::spawn(move || fuss(&path, &stop, &done))
    };
    let began = Instant::now();
    let mut turns = 0_u32;
    while began.elapsed() < Duration::from_secs(seconds) {
        let next = Instant::now() + Duration::from_secs(1);
        output_of(&["write-path", &at, ["stacked", "auto"][turns as usize % 2]]);
        output_of(&["set", &at, ["create=ff", "create=mfs", "create=rand"][turns as usize % 3]]);
        match turns % 4 {
            0 if !there => {
                output_of(&["branch", "add", &at, &extra]);
                there = true;
            }
            0 => drop(output_of(&["branch", "mode", &at, &extra, "RW"])),
            1 => drop(output_of(&["branch", "mode", &at, &extra, "NC"])),
            2 => drop(output_of(&["write-path", &at, "stacked", "--subtree", "/fuss"])),
            // Nothing new was placed there for two turns.
            _ => {
                output_of(&["write-path", &at, "inherit", "--subtree", "/fuss"]);
                there = holds_files(&home) || !remove(&at, &extra);
            }
        }
        turns += 1;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    stop.store(true, Relaxed);
    let rounds: Vec<u64> =
        workers.into_iter().map(|worker| worker.join().expect("a worker's call failed")).collect();
    fussing.join().expect("a call on names failed");
    assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    assert!(fussed.load(Relaxed) > 0 && turns >= 4);
    println!("{turns} switches, {rounds:?} rounds, {} turns of names", fussed.load(Relaxed));
}

/// True if the branch has files: without it they would be missing from the pool.
fn holds_files(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().flatten().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => holds_files(&entry.path()),
        _ => true,
    })
}

/// True if it was removed: a branch with an open file stays.
fn remove(at: &str, extra: &str) -> bool {
    let removed = run(&["branch", "remove", at, extra]);
    assert!(removed.code == 0 || removed.stderr.contains("open"), "{}", removed.stderr);
    removed.code == 0
}
