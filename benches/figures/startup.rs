//! Time from the command to the first answer, and activity of an idle daemon.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use fsstack_lab::daemon::Process;
use fsstack_lab::rival::Union;

use crate::report::{Sense, Table};
use crate::test_bed::{Contender, Server, TestBed};

const BRANCHES: usize = 8;
const IDLE: Duration = Duration::from_secs(2);

pub(crate) fn run(test_bed: &TestBed, rounds: usize, tables: &mut Vec<Table>) -> Result<()> {
    let contenders = [
        Contender::new("fsstack", Server::Fsstack, &[]),
        Contender::new("mergerfs", Server::Rival(Union::Mergerfs), &[&["allow_other"]]),
        Contender::new("mhddfs", Server::Rival(Union::Mhddfs), &[&["allow_other"]]),
    ];
    let here: Vec<_> = contenders.iter().filter(|contender| contender.missing().is_none()).collect();
    let mut table = Table::new(&format!("Start and rest, {BRANCHES} branches"), Sense::LessIsBetter);
    for round in 0..rounds {
        for contender in &here {
            let (at, took) = test_bed.stand_timed(contender, BRANCHES)?;
            table.put("ms to the first answer", contender.name, took);
            if round == 0 {
                sleep(Duration::from_secs(1));
                let before = switches(at.daemon()?)?;
                sleep(IDLE);
                let woken = switches(at.daemon()?)? - before;
                table.put("wake-ups in 2 s of rest", contender.name, f64::from(u32::try_from(woken)?));
            }
            at.fall()?;
        }
    }
    tables.push(table);
    Ok(())
}

/// Number of context switches of the daemon's threads so far.
fn switches(daemon: Process) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{}/task", daemon.pid))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += line.unwrap_or("0").trim().parse::<u64>()?;
    }
    Ok(sum)
}
