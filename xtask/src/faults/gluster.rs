//! A GlusterFS volume as a branch, whose bricks or server die.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use fsstack_lab::MiB;
use fsstack_lab::gluster::{Gluster, Plan, Purge, Steps, Volume};

use super::test_bed::{Reported, TestBed, bad, errno, good};

/// Lab of the faults, separate from users' labs.
const NAME: &str = "faults";
/// Files on the volume, enough to be on each brick.
const FILES: usize = 40;

/// Longer than a client's reconnect interval.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A volume of two bricks, each with some of the files.
fn volume() -> Result<Volume> {
    Ok("dt2".parse()?)
}

/// Takes down what the cases have started.
pub(crate) fn down() -> Result<()> {
    Gluster::named(NAME)?.down(Purge::Nothing, Steps::Quiet)
}

/// The complete volume with files in a directory of this case, and the union over it.
fn volume_with_files(test_bed: &mut TestBed) -> Result<Gluster> {
    let lab = Gluster::named(NAME)?;
    let volumes = vec![volume()?];
    lab.up(&Plan { volumes, bricks: 2, brick_size: MiB(1024), wan: None, engine: None }, Steps::Quiet)?;
    lab.heal(Duration::from_secs(60))?;
    let branch: PathBuf = lab.mount_point(volume()?).join(test_bed.label());
    let fill = || {
        fs::create_dir_all(&branch)?;
        (0..FILES).try_for_each(|n| fs::write(branch.join(format!("file{n}")), "x"))
    };
    // The client takes seconds to reach a server that the case before has stopped.
    let began = Instant::now();
    while let Err(error) = fill() {
        if began.elapsed() > ANSWER_TIMEOUT {
            return Err(error.into());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    test_bed.mount_over(&branch)?;
    for n in 0..FILES {
        fs::metadata(test_bed.at(&format!("file{n}")))?;
    }
    Ok(lab)
}

/// Waits until the client has noticed, and cached names have expired.
fn notice() {
    std::thread::sleep(Duration::from_secs(8));
}

fn stat_all(test_bed: &TestBed) -> (usize, usize, Option<String>) {
    let (mut there, mut missing, mut other) = (0, 0, None);
    for n in 0..FILES {
        match fs::metadata(test_bed.at(&format!("file{n}"))) {
            Ok(_) => there += 1,
            Err(error) if error.kind() == ErrorKind::NotFound => missing += 1,
            Err(error) => other = Some(errno(&error)),
        }
    }
    (there, missing, other)
}

pub(crate) fn a_dead_brick(test_bed: &mut TestBed) -> Result<Reported> {
    let lab = volume_with_files(test_bed)?;
    lab.kill_brick(volume()?, 1)?;
    notice();
    let seen = stat_all(test_bed);
    lab.heal(Duration::from_secs(60))?;
    match seen {
        (there, 0, answer) => {
            good(format!("{there} of {FILES} are answered, the others {}", answer.unwrap_or_default()))
        }
        (_, missing, _) => bad(format!("ENOENT for {missing} of {FILES}: \"it does not exist\"")),
    }
}

pub(crate) fn a_listing_without_a_brick(test_bed: &mut TestBed) -> Result<Reported> {
    let lab = volume_with_files(test_bed)?;
    lab.kill_brick(volume()?, 1)?;
    notice();
    let names =
        fs::read_dir(test_bed.at("")).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    lab.heal(Duration::from_secs(60))?;
    match names {
        Ok(names) if names.len() < FILES => bad(format!("success, with {} of {FILES} names", names.len())),
        Ok(_) => good("complete"),
        Err(error) => good(errno(&error)),
    }
}

pub(crate) fn a_stopped_server(test_bed: &mut TestBed) -> Result<Reported> {
    let lab = volume_with_files(test_bed)?;
    lab.stop()?;
    notice();
    let seen = stat_all(test_bed);
    lab.heal(Duration::from_secs(60))?;
    match seen {
        (0, 0, answer) => good(answer.unwrap_or_default()),
        (there, 0, _) => bad(format!("{there} of {FILES} are answered as if nothing had happened")),
        (_, missing, _) => bad(format!("ENOENT for {missing} of {FILES}: \"it does not exist\"")),
    }
}
