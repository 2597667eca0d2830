//! Resident memory of the daemon: at the start, with many inodes cached by the kernel, and after it forgot them.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use fsstack_lab::rival::Union;

use crate::report::{Sense, Table};
use crate::test_bed::{CACHES_ON, Contender, Server, Standing, TestBed};

const DIRS: usize = 20;

pub(crate) fn run(test_bed: &TestBed, inodes: usize, tables: &mut Vec<Table>) -> Result<()> {
    let contenders = [
        Contender::new("fsstack", Server::Fsstack, &[CACHES_ON]),
        Contender::new("mergerfs", Server::Rival(Union::Mergerfs), &[&["allow_other"]]),
        Contender::new("mhddfs", Server::Rival(Union::Mhddfs), &[&["allow_other"]]),
    ];
    let mut table = Table::new(&format!("Resident MiB of the daemon, {inodes} inodes"), Sense::LessIsBetter);
    for contender in contenders.iter().filter(|contender| contender.missing().is_none()) {
        let at = test_bed.stand(contender, 2)?;
        let made = populate(&at, inodes)?;
        table.put("at the start", contender.name, resident(&at)?);
        let seen: usize = made.iter().map(|dir| visit(&at, dir)).sum::<Result<usize>>()?;
        table.put(&format!("with {seen} files known"), contender.name, resident(&at)?);
        forget()?;
        table.put("after the kernel forgot them", contender.name, settled(&at)?);
        for part in at.parts() {
            made.iter().map(|dir| part.join(dir)).filter(|d| d.exists()).try_for_each(fs::remove_dir_all)?;
        }
        at.fall()?;
    }
    tables.push(table);
    Ok(())
}

/// Makes files on the branches that the daemon has not seen.
fn populate(at: &Standing, inodes: usize) -> Result<Vec<PathBuf>> {
    let dirs: Vec<PathBuf> = (0..DIRS).map(|n| PathBuf::from(format!("many-{n}"))).collect();
    for (n, dir) in dirs.iter().enumerate() {
        let dir = at.parts()[n % at.parts().len()].join(dir);
        fs::create_dir(&dir)?;
        (0..inodes / DIRS).try_for_each(|i| fs::File::create(dir.join(format!("file-{i:07}"))).map(drop))?;
    }
    Ok(dirs)
}

fn visit(at: &Standing, dir: &PathBuf) -> Result<usize> {
    let mut seen = 0;
    for entry in fs::read_dir(at.path().join(dir))? {
        entry?.metadata()?;
        seen += 1;
    }
    Ok(seen)
}

fn forget() -> Result<()> {
    rustix::fs::sync();
    Ok(fs::write("/proc/sys/vm/drop_caches", "2")?)
}

fn resident(at: &Standing) -> Result<f64> {
    Ok(f64::from(u32::try_from(at.daemon()?.resident()? >> 10)?) / 1024.0)
}

/// Waits until it has not changed for a second.
fn settled(at: &Standing) -> Result<f64> {
    let (mut last, mut since) = (resident(at)?, Instant::now());
    let began = Instant::now();
    while since.elapsed() < Duration::from_secs(1) && began.elapsed() < Duration::from_secs(20) {
        sleep(Duration::from_millis(100));
        let now = resident(at)?;
        if (now - last).abs() > 0.1 {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(last)
}
