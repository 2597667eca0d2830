//! A pool and its branch, each exported by its own nfs-ganesha, with clients that make one call at a time.

use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fsstack_bench::turns;
use fsstack_lab::ganesha::{Ganesha, ROOT};
use fsstack_lab::nfs4::{Client, How, Opened};

use crate::report::{Sense, Table};
use crate::test_bed::{Contender, Server, Standing, TestBed};

const BRANCH: &str = "branch";
const POOL: &str = "pool";
/// Both as `fsstack nfs show --only-writer` configures them: server and pool cache attributes for a minute.
const BRANCH_ALONE: &str = "branch-alone";
const POOL_ALONE: &str = "pool-alone";
const KEPT_SECONDS: u16 = 60;
const KEPT: &[&str] = &["entry-timeout=60", "attr-timeout=60", "negative-timeout=60"];
/// Branches here are small: with the default headroom files would be written by the daemon.
const EXPORTED: &[&str] = &["nfs-export", "minfreespace=64M", "passthrough-headroom=64M"];
const MIB: usize = 1 << 20;
/// Numbers of concurrent clients, each with its own connection.
const CLIENTS: [usize; 2] = [1, 2];

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NfsAmount {
    pub(crate) rounds: usize,
    /// Size of each client's file in MiB.
    pub(crate) mib: usize,
    /// Number of names that each client makes.
    pub(crate) names: usize,
}

/// Operation of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NfsAct {
    Write,
    Read,
    Create,
    Stat,
    StatAgain,
}

const ACTS: [(NfsAct, &str); 5] = [
    (NfsAct::Write, "1 MiB writes and a COMMIT, MiB a second"),
    (NfsAct::Read, "1 MiB reads, MiB a second"),
    (NfsAct::Create, "OPEN that makes a file, and CLOSE"),
    (NfsAct::Stat, "LOOKUP and GETATTR of a file, the first after it was made"),
    (NfsAct::StatAgain, "the same again"),
];

pub(crate) fn run(test_bed: &TestBed, amount: NfsAmount, tables: &mut Vec<Table>) -> Result<()> {
    let mut table = Table::new("Exported by nfs-ganesha, NFS 4.0, a second", Sense::MoreIsBetter);
    if let Err(skip) = Ganesha::able() {
        table.notes.push(skip.to_string());
        tables.push(table);
        return Ok(());
    }
    table.compare(POOL, &[BRANCH], "pool to branch");
    table.compare(POOL_ALONE, &[BRANCH_ALONE], "pool to branch, only writer");
    let pairs = [
        (0, [(BRANCH, Server::Branch, &[][..]), (POOL, Server::Fsstack, &[EXPORTED][..])]),
        (
            KEPT_SECONDS,
            [(BRANCH_ALONE, Server::Branch, &[][..]), (POOL_ALONE, Server::Fsstack, &[EXPORTED, KEPT][..])],
        ),
    ];
    for (seconds, pair) in pairs {
        let pair = pair.map(|(name, server, options)| Contender::new(name, server, options));
        measure(test_bed, amount, seconds, &pair, &mut table)?;
        table.notes.extend(pair.iter().map(Contender::described));
    }
    tables.push(table);
    Ok(())
}

/// Measures pool and branch in turn, by servers that cache attributes for `seconds`.
fn measure(
    test_bed: &TestBed,
    amount: NfsAmount,
    seconds: u16,
    pair: &[Contender; 2],
    table: &mut Table,
) -> Result<()> {
    let standing = pair.iter().map(|of| Ok((of, test_bed.stand(of, 1)?))).collect::<Result<Vec<_>>>()?;
    let servers = standing.iter().map(|(of, at)| serve(of, at, seconds)).collect::<Result<Vec<_>>>()?;
    for round in 0..amount.rounds {
        for clients in CLIENTS {
            for (act, label) in ACTS {
                for n in turns::in_round(round, standing.len()) {
                    rustix::fs::sync();
                    let rate = at_once(&servers[n], act, clients, amount)?;
                    let row = format!("{label}, {clients} client{}", if clients == 1 { "" } else { "s" });
                    table.put(&row, standing[n].0.name, rate);
                }
            }
            servers.iter().try_for_each(|server| tidy_up(server, clients, amount))?;
        }
    }
    servers.iter().try_for_each(remove_data)?;
    drop(servers);
    standing.into_iter().try_for_each(|(_, at)| at.fall())
}

fn serve(of: &Contender, at: &Standing, seconds: u16) -> Result<Ganesha> {
    let part = at.parts().first().context("no branch")?;
    let beside = part.ancestors().nth(3).context("a branch has a home")?;
    Ganesha::try_serve_keeping(seconds, at.path(), &beside.join(format!("ganesha-{}", of.name)))
}

/// Operations a second of all `clients` together.
fn at_once(server: &Ganesha, act: NfsAct, clients: usize, amount: NfsAmount) -> Result<f64> {
    let mut ready = (0..clients).map(|n| Worker::new(server, n)).collect::<Result<Vec<_>>>()?;
    let began = Instant::now();
    let done: usize = thread::scope(|scope| {
        let working: Vec<_> =
            ready.iter_mut().map(|worker| scope.spawn(|| worker.act(act, amount))).collect();
        let ended = working.into_iter().map(|one| one.join().ok().context("a client panicked")?);
        ended.sum::<Result<usize>>()
    })?;
    let took = began.elapsed().as_secs_f64();
    ready.iter_mut().try_for_each(|worker| Ok::<_, anyhow::Error>(worker.client.close(&worker.file)?))?;
    Ok(f64::from(u32::try_from(done)?) / took)
}

struct Worker {
    client: Client,
    number: usize,
    root: Vec<u8>,
    file: Opened,
}

impl Worker {
    fn new(server: &Ganesha, number: usize) -> Result<Self> {
        let mut client = Client::new(server.address(), ROOT)?;
        let root = client.handle("")?;
        let file = client.open(&root, &data(number), How::Made)?;
        Ok(Self { client, number, root, file })
    }

    fn name(&self, n: usize) -> String {
        format!("name-{}-{n}", self.number)
    }

    /// Runs an operation; returns how often.
    fn act(&mut self, act: NfsAct, amount: NfsAmount) -> Result<usize> {
        match act {
            NfsAct::Write => {
                let block = vec![0x5a; MIB];
                for n in 0..amount.mib as u64 {
                    self.client.write(&self.file, n << 20, &block)?;
                }
                self.client.commit(&self.file)?;
                Ok(amount.mib)
            }
            NfsAct::Read => {
                for n in 0..amount.mib as u64 {
                    let read = self.client.read_open(&self.file, n << 20, u32::try_from(MIB)?)?;
                    ensure!(read.len() == MIB, "{} bytes were read instead of 1 MiB", read.len());
                }
                Ok(amount.mib)
            }
            NfsAct::Create => {
                for n in 0..amount.names {
                    let made = self.client.open(&self.root, &self.name(n), How::Made)?;
                    self.client.close(&made)?;
                }
                Ok(amount.names)
            }
            NfsAct::Stat | NfsAct::StatAgain => {
                for n in 0..amount.names {
                    self.client.stat(&self.root, &self.name(n))?;
                }
                Ok(amount.names)
            }
        }
    }
}

/// Removes the names, so that the next round can make them.
fn tidy_up(server: &Ganesha, clients: usize, amount: NfsAmount) -> Result<()> {
    for number in 0..clients {
        let mut worker = Worker::new(server, number)?;
        for n in 0..amount.names {
            let name = worker.name(n);
            worker.client.remove(&worker.root, &name)?;
        }
        worker.client.close(&worker.file)?;
    }
    Ok(())
}

/// Removes the files of all clients, to free their space.
fn remove_data(server: &Ganesha) -> Result<()> {
    for number in 0..CLIENTS.into_iter().max().unwrap_or(0) {
        let mut worker = Worker::new(server, number)?;
        worker.client.close(&worker.file)?;
        worker.client.remove(&worker.root, &data(number))?;
    }
    Ok(())
}

fn data(number: usize) -> String {
    format!("data-{number}")
}
