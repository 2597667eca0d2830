//! Names a second that a listing gives: again, on XFS branches, and cold, on a GlusterFS volume and a pool over it.
//!
//! The volume is the first one of the lab called `lab` (`cargo xtask lab up`). Each cold listing is the first one of a client
//! that was mounted for it, after the machine's caches were dropped. The pool has such a client as its only branch.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fsstack_bench::turns;
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::gluster::{Gluster, Volume};
use rustix::fs::{CWD, Mode, OFlags, RawDir};

use crate::metadata::{self, open_dir, per_second};
use crate::report::{Sense, Table};
use crate::test_bed::{CACHES_ON, Contender, Server, Standing, TestBed};

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListingsAmount {
    pub(crate) rounds: usize,
    /// Entries of a directory on XFS.
    pub(crate) warm: usize,
    /// Entries of the directory on GlusterFS.
    pub(crate) cold: usize,
}

/// Listings of a sample that are not cold.
const AGAIN: usize = 20;
const LAB: &str = "lab";
const VOLUME: &str = "volume";

pub(crate) fn run(test_bed: &TestBed, amount: ListingsAmount, tables: &mut Vec<Table>) -> Result<()> {
    tables.push(warm(test_bed, amount)?);
    tables.push(on_gluster(test_bed, amount)?);
    Ok(())
}

/// Listings of a directory that was listed before.
fn warm(test_bed: &TestBed, amount: ListingsAmount) -> Result<Table> {
    let mut table = Table::new("Names a second, listed again", Sense::MoreIsBetter);
    table.compare("dev", &["xfs"], "dev to the branch");
    table.compare("ring", &["xfs"], "ring to the branch");
    let lists = |of: &Contender| of.missing().is_none() && of.server != Server::Null;
    let here: Vec<_> = metadata::contenders().into_iter().filter(lists).collect();
    let standing = test_bed.stand_all(&here)?;
    for (of, at) in &standing {
        let used = if of.server == Server::Branch { 1 } else { at.parts().len() };
        for (n, part) in at.parts()[..used].iter().enumerate() {
            fill(&part.join("listed"), (n..amount.warm).step_by(used))?;
        }
    }
    for round in 0..amount.rounds {
        for (of, at) in turns::of(&standing, round) {
            let row = format!("{} names", amount.warm);
            let dir = at.path().join("listed");
            (0..2).try_for_each(|_| list(&dir, amount.warm).map(drop))?;
            table.put(&row, of.name, again(&dir, amount.warm)?);
        }
    }
    table.notes.extend(here.iter().map(Contender::described));
    standing.into_iter().try_for_each(|(_, at)| at.fall())?;
    Ok(table)
}

/// Makes the files `entry-N` that are missing in `dir`.
fn fill(dir: &Path, numbers: impl Iterator<Item = usize>) -> Result<()> {
    fs::create_dir_all(dir)?;
    numbers.into_iter().try_for_each(|n| Ok(fs::File::create(dir.join(format!("entry-{n}"))).map(drop)?))
}

/// Names a second of [`AGAIN`] listings.
fn again(dir: &Path, names: usize) -> Result<f64> {
    let began = Instant::now();
    (0..AGAIN).try_for_each(|_| list(dir, names))?;
    Ok(per_second(AGAIN * names, began.elapsed()))
}

/// Opens and lists `dir`, which has that many names.
fn list(dir: &Path, names: usize) -> Result<()> {
    let opened = rustix::fs::openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    // The size of the C library's buffer.
    let mut room = Vec::with_capacity(32 << 10);
    let mut rows = RawDir::new(opened.as_fd(), room.spare_capacity_mut());
    let mut count = 0;
    while let Some(row) = rows.next() {
        count += usize::from(!row?.file_name().to_bytes().starts_with(b"."));
    }
    ensure!(count == names, "{} has {count} names instead of {names}", dir.display());
    Ok(())
}

/// A pool over a volume, and the volume itself.
fn on_gluster(test_bed: &TestBed, amount: ListingsAmount) -> Result<Table> {
    let mut table = Table::new("Names a second, a GlusterFS volume and a pool over it", Sense::MoreIsBetter);
    let lab = Gluster::named(LAB)?;
    let Some(volume) = lab.volumes().ok().and_then(|volumes| volumes.into_iter().next()) else {
        table.notes.push("not measured: no volume; `cargo xtask lab up --volumes dt4` makes one".into());
        return Ok(table);
    };
    let contenders = [
        Contender::new(VOLUME, Server::Branch, &[]),
        Contender::new("dev", Server::Fsstack, &[CACHES_ON, &["transport=dev"]]),
        Contender::new("ring", Server::Fsstack, &[CACHES_ON, &["transport=ring"]]),
        Contender::new("ring-only-writer", Server::Fsstack, &[&["transport=ring", "out-of-band=never"]]),
    ];
    table.compare("dev", &[VOLUME], "dev to the volume");
    table.compare("ring", &[VOLUME], "ring to it");
    table.compare("ring-only-writer", &[VOLUME], "only writer to it");
    table.notes.push(volume.to_string());
    table.notes.extend(contenders.iter().map(Contender::described));
    let dir = format!("listed-{}", amount.cold);
    fill_volume(&lab.mount_point(volume).join(&dir), amount.cold)?;
    for round in 0..amount.rounds {
        for of in turns::of(&contenders, round) {
            let client = Client::new(&lab, volume, of.name)?;
            let at = test_bed.stand_over(of, vec![client.target.clone()])?;
            let (cold, again) = cold_and_again(&at, &dir, amount.cold)?;
            table.put(&format!("{} names, cold", amount.cold), of.name, cold);
            table.put(&format!("{} names, again", amount.cold), of.name, again);
            at.fall()?;
            client.fall()?;
        }
    }
    Ok(table)
}

/// Names a second of the first listing of a mount, and of a later one.
fn cold_and_again(at: &Standing, dir: &str, names: usize) -> Result<(f64, f64)> {
    let dir = at.path().join(dir);
    // The root's first use connects the client to its bricks.
    open_dir(at.path())?;
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("dropping caches")?;
    let rate = || {
        let began = Instant::now();
        list(&dir, names)?;
        anyhow::Ok(per_second(names, began.elapsed()))
    };
    let cold = rate()?;
    rate()?;
    Ok((cold, rate()?))
}

/// Makes what is missing of `names` files, by eight threads: a volume makes a few thousand names a minute for one. They stay
/// for the next run.
fn fill_volume(dir: &Path, names: usize) -> Result<()> {
    const THREADS: usize = 8;
    fs::create_dir_all(dir)?;
    if list(dir, names).is_ok() {
        return Ok(());
    }
    std::thread::scope(|scope| {
        let start = |n: usize| scope.spawn(move || fill(dir, (n..names).step_by(THREADS)));
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        threads.into_iter().try_for_each(|thread| thread.join().ok().context("a thread panicked")?)
    })
}

/// A mount of a volume by a client of its own.
struct Client {
    target: PathBuf,
    // Dropped in this order.
    mount: Entry,
    _dir: Entry,
}

impl Client {
    fn new(lab: &Gluster, volume: Volume, name: &str) -> Result<Self> {
        let target = cleanup::fresh(&format!("client-{name}"))?;
        let dir = Entry::dir(&target)?;
        let mount = Entry::mount(&target)?;
        lab.mount(volume, "", "", &target)?;
        Ok(Self { target, mount, _dir: dir })
    }

    fn fall(self) -> Result<()> {
        self.mount.undo()
    }
}
