//! Branches that die, hang, vanish or turn read-only.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use fsstack_lab::shell::command;
use rustix::process::Signal;

use super::subject::Placement;
use super::test_bed::{Reported, TestBed, bad, errno, good, within};

/// Longer than any of the three unions waits by itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);

/// Makes `here` on `a`, and `there` on the branch behind a FUSE daemon.
fn two_files(test_bed: &mut TestBed) -> Result<()> {
    fs::write(test_bed.on("a", "here")?, "on a")?;
    fs::write(test_bed.on("b", "there")?, "on b")?;
    test_bed.mount_over_served(Placement::First)?;
    fs::read(test_bed.at("here"))?;
    fs::read(test_bed.at("there"))?;
    Ok(())
}

/// Waits until the kernel's cached names have expired.
fn forget() {
    std::thread::sleep(Duration::from_millis(1500));
}

pub(crate) fn a_name_on_a_dead_branch(test_bed: &mut TestBed) -> Result<Reported> {
    two_files(test_bed)?;
    test_bed.server()?.kill()?;
    forget();
    match fs::metadata(test_bed.at("there")) {
        Ok(_) => bad("the answer is as if nothing had happened"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bad("ENOENT: \"it does not exist\""),
        Err(error) => good(errno(&error)),
    }
}

pub(crate) fn an_exclusive_create(test_bed: &mut TestBed) -> Result<Reported> {
    two_files(test_bed)?;
    test_bed.server()?.kill()?;
    forget();
    match OpenOptions::new().write(true).create_new(true).open(test_bed.at("there")) {
        Ok(_) => bad("a second file of that name is made"),
        Err(error) => good(errno(&error)),
    }
}

pub(crate) fn a_listing(test_bed: &mut TestBed) -> Result<Reported> {
    two_files(test_bed)?;
    test_bed.server()?.kill()?;
    forget();
    let names =
        fs::read_dir(test_bed.at("")).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    match names {
        Ok(names) if names.len() < 2 => bad(format!("success, with {} of 2 names", names.len())),
        Ok(_) => good("complete"),
        Err(error) => good(errno(&error)),
    }
}

pub(crate) fn the_other_branch(test_bed: &mut TestBed) -> Result<Reported> {
    two_files(test_bed)?;
    test_bed.server()?.kill()?;
    forget();
    let read = fs::read(test_bed.at("here"));
    let size = rustix::fs::statvfs(test_bed.at("")).map_err(std::io::Error::from);
    match (read, size) {
        (Ok(_), Ok(_)) => good("read; free space is reported"),
        (Err(error), _) => bad(format!("reading it: {}", errno(&error))),
        (_, Err(error)) => bad(format!("statfs: {}", errno(&error))),
    }
}

pub(crate) fn a_branch_that_comes_back(test_bed: &mut TestBed) -> Result<Reported> {
    two_files(test_bed)?;
    test_bed.restart_server()?;
    let began = Instant::now();
    loop {
        match fs::read(test_bed.at("there")) {
            Ok(text) if text == b"on b" => return good("readable again by itself"),
            Err(error) if began.elapsed() > Duration::from_secs(8) => {
                return bad(format!("still {}", errno(&error)));
            }
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

pub(crate) fn a_frozen_branch(test_bed: &mut TestBed) -> Result<Reported> {
    two_files(test_bed)?;
    let server = test_bed.server()?;
    forget();
    server.signal(Signal::STOP)?;
    // As many as a program with a pool of threads may have.
    let mut stuck = Vec::new();
    for _ in 0..32 {
        let there = test_bed.at("there");
        stuck.push(std::thread::spawn(move || {
            let began = Instant::now();
            (fs::metadata(there).err().map(|error| errno(&error)), began.elapsed())
        }));
    }
    std::thread::sleep(Duration::from_millis(500));
    let here = test_bed.at("here");
    let began = Instant::now();
    let others = within(ANSWER_TIMEOUT, move || fs::read(&here).and_then(|_| fs::write(&here, "more")));
    let took = began.elapsed();
    let began = Instant::now();
    while stuck.iter().any(|thread| !thread.is_finished()) && began.elapsed() < ANSWER_TIMEOUT {
        std::thread::sleep(Duration::from_millis(50));
    }
    let answered = stuck.iter().filter(|thread| thread.is_finished()).count();
    server.signal(Signal::CONT)?;
    for thread in stuck {
        let _result = thread.join();
    }
    let own = format!("{answered} of 32 of its own callers are answered in {} s", ANSWER_TIMEOUT.as_secs());
    match others {
        None => bad(format!(
            "files on the other branch hang too, for more than {} s; {own}",
            ANSWER_TIMEOUT.as_secs()
        )),
        Some(Err(error)) => bad(format!("a file on the other branch: {}; {own}", errno(&error))),
        Some(Ok(())) if took > Duration::from_secs(2) => {
            bad(format!("files on the other branch answer after {} s; {own}", took.as_secs()))
        }
        Some(Ok(())) if answered < 32 => bad(format!("the other branch answers at once; {own}")),
        Some(Ok(())) => good(format!("the other branch answers at once; {own}")),
    }
}

pub(crate) fn a_bare_directory(test_bed: &mut TestBed) -> Result<Reported> {
    for branch in ["b", "c"] {
        fs::create_dir(test_bed.on(branch, "d")?)?;
    }
    test_bed.branch_mut("b")?.unmount();
    // The bare mount point, a directory of the system disk.
    fs::create_dir(test_bed.on("b", "d")?)?;
    test_bed.branch_mut("b")?.remount();
    test_bed.mount(Placement::Default)?;
    fs::write(test_bed.at("d/first"), "x")?;
    test_bed.branch_mut("b")?.unmount_lazily();
    for n in 0..8 {
        // The result does not matter, only where the file is.
        let _result = fs::write(test_bed.at(&format!("d/new{n}")), "x");
    }
    let bare = test_bed.on("b", "")?;
    let found = files_below(&bare)?;
    test_bed.unmount();
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

pub(crate) fn a_read_only_branch(test_bed: &mut TestBed) -> Result<Reported> {
    fs::create_dir(test_bed.on("a", "d")?)?;
    test_bed.mount(Placement::Default)?;
    test_bed.branch("a")?.remount_ro();
    let made = fs::write(test_bed.at("d/new"), "x");
    test_bed.branch("a")?.remount_rw();
    match made {
        Ok(()) => good(format!("made on {}", test_bed.holders("d/new").join(", "))),
        Err(error) => bad(format!("{}, with two writable branches", errno(&error))),
    }
}

pub(crate) fn a_shut_down_disk(test_bed: &mut TestBed) -> Result<Reported> {
    fs::write(test_bed.on("b", "there")?, "on b")?;
    test_bed.mount(Placement::First)?;
    fs::read(test_bed.at("there"))?;
    command("xfs_io").args(["-x", "-c", "shutdown"]).arg(test_bed.branch("b")?.path()).run()?;
    forget();
    match fs::metadata(test_bed.at("there")) {
        Ok(_) => bad("the answer is as if nothing had happened"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bad("ENOENT: \"it does not exist\""),
        Err(error) => good(errno(&error)),
    }
}
