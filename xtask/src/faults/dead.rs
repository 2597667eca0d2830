//! Branches that die, hang, vanish or turn read-only.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use fsstack_lab::shell::command;
use rustix::process::Signal;

use super::ground::{Ground, Told, bad, errno, good, within};
use super::subject::Placement;

/// Longer than any of the three waits by itself.
const PATIENCE: Duration = Duration::from_secs(40);

/// `here` is on `a`, `there` on the branch that another daemon serves.
fn two_files(ground: &mut Ground) -> Result<()> {
    fs::write(ground.on("a", "here")?, "on a")?;
    fs::write(ground.on("b", "there")?, "on b")?;
    ground.mount_over_served(Placement::First)?;
    fs::read(ground.at("here"))?;
    fs::read(ground.at("there"))?;
    Ok(())
}

/// The kernel may know names for a second or more.
fn forget() {
    std::thread::sleep(Duration::from_millis(1500));
}

pub(crate) fn a_name_on_a_dead_branch(ground: &mut Ground) -> Result<Told> {
    two_files(ground)?;
    ground.server()?.kill()?;
    forget();
    match fs::metadata(ground.at("there")) {
        Ok(_) => bad("it is told as if nothing had happened"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bad("ENOENT: \"it does not exist\""),
        Err(error) => good(errno(&error)),
    }
}

pub(crate) fn an_exclusive_create(ground: &mut Ground) -> Result<Told> {
    two_files(ground)?;
    ground.server()?.kill()?;
    forget();
    match OpenOptions::new().write(true).create_new(true).open(ground.at("there")) {
        Ok(_) => bad("a second file of that name is made"),
        Err(error) => good(errno(&error)),
    }
}

pub(crate) fn a_listing(ground: &mut Ground) -> Result<Told> {
    two_files(ground)?;
    ground.server()?.kill()?;
    forget();
    let names = fs::read_dir(ground.at("")).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    match names {
        Ok(names) if names.len() < 2 => bad(format!("success, with {} of 2 names", names.len())),
        Ok(_) => good("complete"),
        Err(error) => good(errno(&error)),
    }
}

pub(crate) fn the_other_branch(ground: &mut Ground) -> Result<Told> {
    two_files(ground)?;
    ground.server()?.kill()?;
    forget();
    let read = fs::read(ground.at("here"));
    let size = rustix::fs::statvfs(ground.at("")).map_err(std::io::Error::from);
    match (read, size) {
        (Ok(_), Ok(_)) => good("read; free space is told"),
        (Err(error), _) => bad(format!("reading it: {}", errno(&error))),
        (_, Err(error)) => bad(format!("statfs: {}", errno(&error))),
    }
}

pub(crate) fn a_branch_that_comes_back(ground: &mut Ground) -> Result<Told> {
    two_files(ground)?;
    ground.restart_server()?;
    let began = Instant::now();
    loop {
        match fs::read(ground.at("there")) {
            Ok(text) if text == b"on b" => return good("readable again by itself"),
            Err(error) if began.elapsed() > Duration::from_secs(8) => {
                return bad(format!("still {}", errno(&error)));
            }
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

pub(crate) fn a_frozen_branch(ground: &mut Ground) -> Result<Told> {
    two_files(ground)?;
    let server = ground.server()?;
    forget();
    server.signal(Signal::STOP)?;
    // As many as a program with a pool of threads may have.
    let mut stuck = Vec::new();
    for _ in 0..32 {
        let there = ground.at("there");
        stuck.push(std::thread::spawn(move || {
            let began = Instant::now();
            (fs::metadata(there).err().map(|error| errno(&error)), began.elapsed())
        }));
    }
    std::thread::sleep(Duration::from_millis(500));
    let here = ground.at("here");
    let began = Instant::now();
    let others = within(PATIENCE, move || fs::read(&here).and_then(|_| fs::write(&here, "more")));
    let took = began.elapsed();
    let began = Instant::now();
    while stuck.iter().any(|thread| !thread.is_finished()) && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(50));
    }
    let answered = stuck.iter().filter(|thread| thread.is_finished()).count();
    server.signal(Signal::CONT)?;
    for thread in stuck {
        let _told = thread.join();
    }
    let own = format!("{answered} of 32 of its own callers are answered in {} s", PATIENCE.as_secs());
    match others {
        None => {
            bad(format!("files on the other branch hang too, for more than {} s; {own}", PATIENCE.as_secs()))
        }
        Some(Err(error)) => bad(format!("a file on the other branch: {}; {own}", errno(&error))),
        Some(Ok(())) if took > Duration::from_secs(2) => {
            bad(format!("files on the other branch answer after {} s; {own}", took.as_secs()))
        }
        Some(Ok(())) if answered < 32 => bad(format!("the other branch answers at once; {own}")),
        Some(Ok(())) => good(format!("the other branch answers at once; {own}")),
    }
}

pub(crate) fn a_bare_directory(ground: &mut Ground) -> Result<Told> {
    for branch in ["b", "c"] {
        fs::create_dir(ground.on(branch, "d")?)?;
    }
    ground.branch_mut("b")?.unmount();
    // What the mount left behind: a directory of the system disk.
    fs::create_dir(ground.on("b", "d")?)?;
    ground.branch_mut("b")?.remount();
    ground.mount(Placement::Default)?;
    fs::write(ground.at("d/first"), "x")?;
    ground.branch_mut("b")?.unmount_lazily();
    for n in 0..8 {
        // Answered or refused: only its place counts.
        let _told = fs::write(ground.at(&format!("d/new{n}")), "x");
    }
    let bare = ground.on("b", "")?;
    let found = files_below(&bare)?;
    ground.unmount();
    fs::remove_dir_all(bare.join("d"))?;
    if found == 0 {
        good("nothing is written there")
    } else {
        bad(format!("{found} of 8 new files are on the system disk"))
    }
}

fn files_below(dir: &Path) -> Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        found += if entry.file_type()?.is_dir() { files_below(&entry.path())? } else { 1 };
    }
    Ok(found)
}

pub(crate) fn a_read_only_branch(ground: &mut Ground) -> Result<Told> {
    fs::create_dir(ground.on("a", "d")?)?;
    ground.mount(Placement::Default)?;
    ground.branch("a")?.remount_ro();
    let made = fs::write(ground.at("d/new"), "x");
    ground.branch("a")?.remount_rw();
    match made {
        Ok(()) => good(format!("made on {}", ground.holders("d/new").join(", "))),
        Err(error) => bad(format!("{}, with two writable branches", errno(&error))),
    }
}

pub(crate) fn a_shut_down_disk(ground: &mut Ground) -> Result<Told> {
    fs::write(ground.on("b", "there")?, "on b")?;
    ground.mount(Placement::First)?;
    fs::read(ground.at("there"))?;
    command("xfs_io").args(["-x", "-c", "shutdown"]).arg(ground.branch("b")?.path()).run()?;
    forget();
    match fs::metadata(ground.at("there")) {
        Ok(_) => bad("it is told as if nothing had happened"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bad("ENOENT: \"it does not exist\""),
        Err(error) => good(errno(&error)),
    }
}
