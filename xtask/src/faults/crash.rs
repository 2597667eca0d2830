//! Kills of the union's own daemon.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fsstack_lab::MiB;

use super::subject::Placement;
use super::test_bed::{Reported, TestBed, bad, good, mib, write_mibs, writer, wrong_mibs};

/// Size in MiB of the file before it outgrows its branch.
const LAID: u64 = 150;
/// Number of kills, each at another part of the copy.
const KILLS: u64 = 6;

/// Kills the daemon while a file on `b` moves to `a`.
pub(crate) fn kill_in_a_move(test_bed: &mut TestBed) -> Result<Reported> {
    let (mut hit, mut left) = (0, 0);
    for round in 0..KILLS {
        let film = writer(test_bed.on("b", "film")?)?;
        write_mibs(&film, 0, LAID).map_err(|(_, error)| error).context("laying out the file")?;
        film.sync_all()?;
        drop(film);
        test_bed.branch("c")?.fill_until_free(MiB(0));
        test_bed.branch("b")?.fill_until_free(MiB(10));
        test_bed.mount(Placement::First)?;
        let before = test_bed.branch("a")?.free();
        let path = test_bed.at("film");
        let writing = std::thread::spawn(move || append(path));
        let part = (1 + round * (LAID - 10) / KILLS) << 20;
        let began = Instant::now();
        while test_bed.branch("a")?.free() + part > before && began.elapsed() < Duration::from_secs(20) {
            std::hint::spin_loop();
        }
        let moving = !writing.is_finished();
        test_bed.crash(Placement::First)?;
        let synced = writing.join().ok().context("the writer panicked")?;
        hit += u64::from(moving);
        let count = LAID + synced;
        let wrong = wrong_mibs(test_bed.at("film"), count)?;
        if wrong > 0 {
            return bad(format!(
                "{wrong} of {count} MiB that were on disk are wrong or missing after the next mount"
            ));
        }
        left += u64::from(test_bed.holders("film").len() > 1);
        test_bed.unmount();
        for branch in ["a", "b", "c"] {
            match fs::remove_file(test_bed.on(branch, "film")?) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            if branch != "a" {
                test_bed.branch(branch)?.drop_ballast();
            }
        }
        wait_for_room(test_bed, before)?;
    }
    let text = format!("{hit} kills in {KILLS} moves: all bytes right");
    if left == 0 { good(text) } else { bad(format!("{text}, {left} times a second copy is left")) }
}

/// Returns the number of MiB acknowledged by fsync.
fn append(path: PathBuf) -> u64 {
    let Ok(file) = writer(path) else { return 0 };
    let mut synced = 0;
    for n in LAID..LAID + 40 {
        if file.write_all_at(&mib(n), n << 20).and_then(|()| file.sync_data()).is_err() {
            break;
        }
        synced += 1;
    }
    synced
}

/// XFS frees the blocks of a removed file some time later.
fn wait_for_room(test_bed: &TestBed, before: u64) -> Result<()> {
    let began = Instant::now();
    while test_bed.branch("a")?.free() + (8 << 20) < before && began.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
