//! Scheduling group of the daemon: its own session, its own cpu cgroup, or one shared with the programs that use it;
//! each idle and beside a busy loop on each CPU.
//!
//! The kernel divides a CPU among groups first and among a group's threads second, so SCHED_IDLE has an effect only
//! within a group (docs/dev/performance.md).

use anyhow::Result;
use fsstack_lab::{CpuGroup, needs};

use crate::metadata::{self, MetadataAmount};
use crate::report::{Sense, Table};
use crate::test_bed::{CACHES_ON, Contender, Server, TestBed};

/// Daemons in groups of their own.
const APART: &[(&str, &[&str])] = &[
    ("dev-session", &["transport=dev"]),
    ("ring-session", &["transport=ring"]),
    ("dev-cgroup", &["transport=dev", "door-scheduling=idle"]),
    ("ring-cgroup", &["transport=ring", "door-scheduling=idle"]),
];

/// Daemons that share a group with their clients.
const TOGETHER: &[(&str, &[&str])] = &[
    ("dev-auto", &["transport=dev"]),
    ("ring-auto", &["transport=ring"]),
    ("dev-nice", &["transport=dev", "door-scheduling=nice"]),
    ("ring-nice", &["transport=ring", "door-scheduling=nice"]),
];

pub(crate) fn run(test_bed: &TestBed, amount: MetadataAmount, tables: &mut Vec<Table>) -> Result<()> {
    if let Err(skip) = needs::cpu_groups() {
        let mut table = Table::new("Operations a second, by the daemon's group", Sense::MoreIsBetter);
        table.notes.push(format!("not measured: {skip}"));
        tables.push(table);
        return Ok(());
    }
    let own = CpuGroup::new("figures-daemon")?;
    let named = |name: &&str| name.ends_with("-cgroup");
    measure(test_bed, amount, APART, "the daemon in a session, in a cpu cgroup", tables, |name, pid| {
        if named(&name) { own.enter(pid) } else { Ok(()) }
    })?;
    let shared = CpuGroup::new("figures-all")?;
    let _back = shared.join()?;
    measure(test_bed, amount, TOGETHER, "the daemon in its clients' cgroup", tables, |_, pid| {
        shared.enter(pid)
    })
}

fn measure(
    test_bed: &TestBed,
    amount: MetadataAmount,
    daemons: &[(&'static str, &[&'static str])],
    what: &str,
    tables: &mut Vec<Table>,
    settle: impl Fn(&str, i32) -> Result<()>,
) -> Result<()> {
    let room = &["minfreespace=64M", "passthrough-headroom=64M"][..];
    let contenders: Vec<_> = daemons
        .iter()
        .map(|(name, options)| Contender::new(name, Server::Fsstack, &[room, CACHES_ON, options]))
        .collect();
    let standing = test_bed.stand_all(&contenders)?;
    for (of, at) in &standing {
        settle(of.name, at.daemon()?.pid)?;
    }
    let stands: Vec<_> = standing.iter().map(|(of, at)| (*of, at)).collect();
    for clients in [metadata::ONE, metadata::HARD_PRESSED] {
        let amount = if clients.has_hogs() { amount.a_fifth() } else { amount };
        let mut table = Table::new(&format!("{}; {what}", clients.title()), Sense::MoreIsBetter);
        metadata::rounds(&stands, clients, amount, &mut table, None)?;
        tables.push(table);
    }
    standing.into_iter().try_for_each(|(_, at)| at.fall())
}
