//! Effect of one slow branch on others: metadata operations on two branches while programs wait for the third.
//!
//! The third is a file system that takes a fixed time per call. Programs look up names there without pauses, fewer and
//! more than may be inside it at once. One client works in directories that only the two others have, alone and beside
//! them, on the same pool in turn.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{AtFlags, statat};

use crate::metadata::{self, MetadataAmount, open_dir};
use crate::report::{Sense, Table};
use crate::test_bed::{CACHES_ON, Contender, Server, Standing, TestBed};

/// Microseconds per call there.
const DELAY: &[&str] = &["50000"];
/// Longest wait until all programs are in a call, or none is.
const LIMIT: Duration = Duration::from_secs(30);
/// A pool, its slow branch, and its columns.
struct Measured {
    name: &'static str,
    transport: &'static str,
    slow: &'static str,
    columns: [&'static str; 3],
}

/// Number of programs that use the slow branch, per column. 24 calls may be inside it at once.
const COUNTS: [usize; 3] = [0, 8, 40];
const POOLS: [Measured; 2] = [
    Measured {
        name: "dev",
        transport: "transport=dev",
        slow: "slow-dev",
        columns: ["dev", "dev, 8 wait", "dev, 40 wait"],
    },
    Measured {
        name: "ring",
        transport: "transport=ring",
        slow: "slow-ring",
        columns: ["ring", "ring, 8 wait", "ring, 40 wait"],
    },
];

pub(crate) fn run(test_bed: &TestBed, amount: MetadataAmount, tables: &mut Vec<Table>) -> Result<()> {
    let title = "Operations a second on two branches, one client, while programs wait for a slow third";
    let mut table = Table::new(title, Sense::MoreIsBetter);
    let mut slowest = Table::new(&format!("{title}: 99th percentile, us"), Sense::LessIsBetter);
    for Measured { columns: [alone, fewer, more], .. } in POOLS {
        for table in [&mut table, &mut slowest] {
            table.compare(fewer, &[alone], "8 to none");
            table.compare(more, &[alone], "40 to none");
        }
    }
    let mut far = Vec::new();
    let mut pools = Vec::new();
    for Measured { name, transport, slow, columns } in POOLS {
        let slow = test_bed.stand(&Contender::new(slow, Server::Null, &[DELAY]), 0)?;
        let room = &["minfreespace=64M", "passthrough-headroom=64M", transport][..];
        let pool = Contender::new(name, Server::Fsstack, &[room, CACHES_ON]);
        let mut parts = test_bed.parts(&pool, 2)?;
        parts.push(slow.path().to_owned());
        // Files made directly are made on the first two branches.
        let at = test_bed.stand_over(&pool, parts)?.used(2);
        table.notes.push(pool.described());
        far.push(slow);
        pools.push((columns, at));
    }
    let waiting = pools.iter().map(|(_, at)| Waiting::new(at.path())).collect::<Result<Vec<_>>>()?;
    let columns = pools.iter().flat_map(|(columns, at)| {
        columns.iter().map(move |name| (Contender::new(name, Server::Fsstack, &[]), at))
    });
    let columns: Vec<_> = columns.collect();
    let stands: Vec<(&Contender, &Standing)> = columns.iter().map(|(of, at)| (of, *at)).collect();
    thread::scope(|scope| {
        for own in &waiting {
            for number in 0..MOST {
                scope.spawn(move || own.serve(number));
            }
        }
        let settle = |column: &Contender| {
            POOLS.iter().zip(&waiting).try_for_each(|(pool, own)| {
                let at = pool.columns.iter().position(|name| *name == column.name);
                own.settle(at.map_or(0, |at| COUNTS[at]))
            })
        };
        let done = metadata::rounds_beside(
            &stands,
            metadata::APART_FROM_NULL,
            amount,
            &mut table,
            Some(&mut slowest),
            settle,
        );
        waiting.iter().for_each(Waiting::end);
        done
    })?;
    tables.extend([table, slowest]);
    drop(waiting);
    drop(stands);
    drop(columns);
    pools.into_iter().try_for_each(|(_, at)| at.fall())?;
    far.into_iter().try_for_each(Standing::fall)
}

/// The largest number of programs.
const MOST: usize = 40;

/// Programs that look up names on the slow branch of one pool.
struct Waiting {
    /// A directory that only this branch has.
    dir: OwnedFd,
    /// Programs with a number below this are active.
    wanted: AtomicUsize,
    state: Mutex<SlowState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SlowState {
    working: usize,
    over: bool,
    failed: Option<String>,
}

impl Waiting {
    fn new(pool: &Path) -> Result<Self> {
        let dir = open_dir(&pool.join("c-far"))?;
        Ok(Self { dir, wanted: AtomicUsize::new(0), state: Mutex::default(), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, SlowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A program: makes lookups while it is active, else sleeps.
    fn serve(&self, number: usize) {
        let mut asked = 0_u64;
        loop {
            let mut state = self.state();
            while !state.over && self.wanted.load(Relaxed) <= number {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.over {
                return;
            }
            state.working += 1;
            self.changed.notify_all();
            drop(state);
            let answer = self.ask(number, &mut asked);
            let mut state = self.state();
            state.working -= 1;
            if let Err(error) = answer {
                state.failed = Some(format!("{error:#}"));
                state.over = true;
            }
            self.changed.notify_all();
        }
    }

    /// Looks up a new name each time.
    fn ask(&self, number: usize, asked: &mut u64) -> Result<()> {
        while number < self.wanted.load(Relaxed) {
            let name = CString::new(format!("u-{number}-{asked}"))?;
            statat(&self.dir, &name, AtFlags::empty()).with_context(|| format!("{name:?}"))?;
            *asked += 1;
        }
        Ok(())
    }

    /// Sets the number of active programs, and waits until they are.
    fn settle(&self, count: usize) -> Result<()> {
        let mut state = self.state();
        self.wanted.store(count, Relaxed);
        self.changed.notify_all();
        while state.working != count {
            if let Some(why) = &state.failed {
                bail!("a name of the slow branch: {why}");
            }
            let (next, waited) =
                self.changed.wait_timeout(state, LIMIT).unwrap_or_else(PoisonError::into_inner);
            ensure!(!waited.timed_out(), "the programs that ask the slow branch do not settle");
            state = next;
        }
        Ok(())
    }

    fn end(&self) {
        let mut state = self.state();
        self.wanted.store(0, Relaxed);
        state.over = true;
        self.changed.notify_all();
    }
}
