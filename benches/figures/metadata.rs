//! Metadata operations a second, by one client and by two that start together.
//!
//! Within a round all contenders do one operation before any does the next, and the first contender changes from round
//! to round. Clients are not pinned. Names "not seen before" are made directly on the branches, and no earlier round
//! has used them.

use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use fsstack_bench::turns;
use fsstack_lab::rival::Union;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::hogs::Hogs;
use crate::report::{Sense, Table};
use crate::test_bed::{CACHES_ON, Contender, Server, Standing, TestBed};

/// Operations of a client in order: each uses the results of earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetadataAct {
    Create,
    Missing,
    Uncached,
    Open,
    Write,
    Read,
    Rename,
    Unlink,
    Mkdir,
    Rmdir,
    ListAll,
    ListNames,
}

impl MetadataAct {
    /// True if it lists a directory, which the file system that does nothing cannot.
    fn lists(self) -> bool {
        matches!(self, Self::ListAll | Self::ListNames)
    }
}

const ACTS: &[(MetadataAct, &str)] = &[
    (MetadataAct::Create, "create (O_CREAT, O_EXCL) + close"),
    (MetadataAct::Missing, "stat of a missing name"),
    (MetadataAct::Uncached, "stat, not seen before"),
    (MetadataAct::Open, "open + close"),
    (MetadataAct::Write, "open + 4 KiB write + close"),
    (MetadataAct::Read, "open + 4 KiB read + close"),
    (MetadataAct::Rename, "rename"),
    (MetadataAct::Unlink, "unlink"),
    (MetadataAct::Mkdir, "mkdir"),
    (MetadataAct::Rmdir, "rmdir"),
    (MetadataAct::ListAll, "entries with attributes, first listing"),
    (MetadataAct::ListNames, "entries, names only, again"),
];

/// Operations of the bars of one client: what programs do with files.
const SEVEN: &[MetadataAct] = &[
    MetadataAct::Create,
    MetadataAct::Missing,
    MetadataAct::Open,
    MetadataAct::Write,
    MetadataAct::Read,
    MetadataAct::Rename,
    MetadataAct::Unlink,
];

/// Amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataAmount {
    pub(crate) rounds: usize,
    pub(crate) names: usize,
    pub(crate) listed: usize,
}

impl MetadataAmount {
    /// A fifth, for cases where everything takes longer.
    pub(crate) fn a_fifth(self) -> Self {
        Self { names: self.names / 5, listed: self.listed / 5, ..self }
    }
}

pub(crate) fn contenders() -> Vec<Contender> {
    let room = &["minfreespace=64M", "passthrough-headroom=64M"][..];
    let mergerfs = &[
        "minfreespace=64M",
        "cache.attr=120",
        "cache.entry=120",
        "cache.negative_entry=120",
        "cache.statfs=1",
        "cache.files=off",
        "allow_other",
    ];
    let mhddfs = &["mlimit=64M", "allow_other", "default_permissions"];
    vec![
        Contender::new("dev", Server::Fsstack, &[room, CACHES_ON, &["transport=dev"]]),
        Contender::new("ring", Server::Fsstack, &[room, CACHES_ON, &["transport=ring"]]),
        Contender::new("dev-xattr-off", Server::Fsstack, &[room, CACHES_ON, &["transport=dev", "xattr=off"]]),
        Contender::new(
            "ring-xattr-off",
            Server::Fsstack,
            &[room, CACHES_ON, &["transport=ring", "xattr=off"]],
        ),
        Contender::new("mergerfs", Server::Rival(Union::Mergerfs), &[mergerfs]),
        Contender::new("mhddfs", Server::Rival(Union::Mhddfs), &[mhddfs]),
        Contender::new("null", Server::Null, &[]),
        Contender::new("xfs", Server::Branch, &[]),
    ]
}

/// Number of clients, and the load beside them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clients {
    title: &'static str,
    /// Prefix of their directories' names. With a `c`, the file system that does nothing has them too.
    tag: &'static str,
    clients: usize,
    /// True with a busy process on each CPU.
    hogs: bool,
}

impl Clients {
    pub(crate) fn title(self) -> &'static str {
        self.title
    }

    pub(crate) fn has_hogs(self) -> bool {
        self.hogs
    }
}

/// One client and no other load.
pub(crate) const ONE: Clients =
    Clients { title: "Operations a second, one client", tag: "c1", clients: 1, hogs: false };

const ALONE: &[Clients] =
    &[ONE, Clients { title: "Operations a second, two clients, sum", tag: "c2", clients: 2, hogs: false }];

/// One client on busy CPUs.
pub(crate) const HARD_PRESSED: Clients = Clients {
    title: "Operations a second, one client, a busy loop on each CPU",
    tag: "ch",
    clients: 1,
    hogs: true,
};

/// One client with directories that the file system that does nothing lacks.
pub(crate) const APART_FROM_NULL: Clients = Clients { tag: "own", ..ONE };

/// Makes the tables, one per number of clients.
pub(crate) fn run(test_bed: &TestBed, amount: MetadataAmount, tables: &mut Vec<Table>) -> Result<()> {
    measure(test_bed, amount, ALONE, tables)
}

/// The same on busy CPUs, with the 99th percentiles.
pub(crate) fn run_busy(test_bed: &TestBed, amount: MetadataAmount, tables: &mut Vec<Table>) -> Result<()> {
    measure(test_bed, amount.a_fifth(), &[HARD_PRESSED], tables)
}

fn measure(
    test_bed: &TestBed,
    amount: MetadataAmount,
    client_counts: &[Clients],
    tables: &mut Vec<Table>,
) -> Result<()> {
    let (here, skipped): (Vec<_>, Vec<_>) =
        contenders().into_iter().partition(|contender| contender.missing().is_none());
    let standing = test_bed.stand_all(&here)?;
    for clients in client_counts {
        let mut table = Table::new(clients.title, Sense::MoreIsBetter);
        let mut slowest = Table::new(&format!("{}: 99th percentile, us", clients.title), Sense::LessIsBetter);
        for table in [&mut table, &mut slowest] {
            table.compare("dev", &["mergerfs", "mhddfs"], "dev to the better rival");
            table.compare("ring", &["mergerfs", "mhddfs"], "ring to it");
        }
        table.compare("ring", &["null"], "ring to null");
        table.compare("dev", &["xfs"], "dev to the branch");
        table.compare("ring", &["xfs"], "ring to the branch");
        let seven = ACTS.iter().filter(|(act, _)| SEVEN.contains(act)).map(|(_, label)| *label).collect();
        table.means.push(("geometric mean of the seven", seven));
        table.compare("dev-xattr-off", &["dev"], "dev, xattr=off to on");
        table.compare("ring-xattr-off", &["ring"], "ring, xattr=off to on");
        table.notes.extend(here.iter().map(Contender::described));
        table.notes.extend(skipped.iter().filter_map(|of| Some(format!("{}: {}", of.name, of.missing()?))));
        let stands: Vec<_> = standing.iter().map(|(of, at)| (*of, at)).collect();
        rounds(&stands, *clients, amount, &mut table, Some(&mut slowest))?;
        tables.push(table);
        if clients.hogs {
            tables.push(slowest);
        }
    }
    standing.into_iter().try_for_each(|(_, at)| at.fall())
}

/// Runs every operation by every contender, round by round; `slowest` gets the 99th percentiles.
pub(crate) fn rounds(
    standing: &[(&Contender, &Standing)],
    clients: Clients,
    amount: MetadataAmount,
    table: &mut Table,
    slowest: Option<&mut Table>,
) -> Result<()> {
    rounds_beside(standing, clients, amount, table, slowest, |_| Ok(()))
}

/// Like [`rounds`]; `settle` prepares the load for each contender's operation.
pub(crate) fn rounds_beside(
    standing: &[(&Contender, &Standing)],
    clients: Clients,
    amount: MetadataAmount,
    table: &mut Table,
    mut slowest: Option<&mut Table>,
    mut settle: impl FnMut(&Contender) -> Result<()>,
) -> Result<()> {
    for round in 0..amount.rounds {
        let mut teams = Vec::new();
        for (n, (of, at)) in standing.iter().enumerate() {
            teams
                .push((*of, Team::new(at, clients.clients, &format!("{}{round}-{n}", clients.tag), amount)?));
        }
        let _hogs = clients.hogs.then(Hogs::start).transpose()?;
        for (act, label) in ACTS {
            for (of, team) in turns::of(&teams, round) {
                if of.server == Server::Null && act.lists() {
                    continue;
                }
                settle(of)?;
                let done = team.act(*act).with_context(|| format!("{}: {label}", of.name))?;
                table.put(label, of.name, done.rate);
                if let (Some(slowest), Some(p99)) = (&mut slowest, done.p99) {
                    slowest.put(label, of.name, p99);
                }
            }
        }
        teams.into_iter().try_for_each(|(_, team)| team.clear())?;
    }
    Ok(())
}

/// Clients of one contender in one round.
struct Team {
    clients: Vec<ClientNames>,
}

/// Result of an operation.
struct Done {
    /// Operations a second, all clients together.
    rate: f64,
    /// 99th percentile in microseconds; not for listings.
    p99: Option<f64>,
}

/// One client's directory and names.
struct ClientNames {
    dir: OwnedFd,
    listed: OwnedFd,
    names: Vec<CString>,
    renamed: Vec<CString>,
    missing: Vec<CString>,
    unseen: Vec<CString>,
    dirs: Vec<CString>,
    made: Vec<std::path::PathBuf>,
}

impl Team {
    fn new(at: &Standing, clients: usize, tag: &str, amount: MetadataAmount) -> Result<Self> {
        let new = |n| ClientNames::new(at, &format!("{tag}-{n}"), amount);
        let team = Self { clients: (0..clients).map(new).collect::<Result<_>>()? };
        // New files on the branches must not be flushed during another contender's measurement.
        rustix::fs::sync();
        Ok(team)
    }

    fn act(&self, act: MetadataAct) -> Result<Done> {
        let gate = Barrier::new(self.clients.len());
        let spans = std::thread::scope(|scope| {
            let run = |client| {
                let gate = &gate;
                scope.spawn(move || {
                    gate.wait();
                    let mut took = Vec::new();
                    let began = Instant::now();
                    let done = ClientNames::act(client, act, &mut took)?;
                    anyhow::Ok((began, Instant::now(), done, took))
                })
            };
            let threads: Vec<_> = self.clients.iter().map(run).collect();
            let joined = threads.into_iter().map(|t| t.join().map_err(|_| anyhow!("a client panicked"))?);
            joined.collect::<Result<Vec<_>>>()
        })?;
        let began = spans.iter().map(|span| span.0).min().context("no client")?;
        let ended = spans.iter().map(|span| span.1).max().context("no client")?;
        let done: usize = spans.iter().map(|span| span.2).sum();
        let mut took: Vec<Duration> = spans.into_iter().flat_map(|span| span.3).collect();
        took.sort_unstable();
        let p99 = took.get(took.len() * 99 / 100).map(|took| took.as_secs_f64() * 1e6);
        Ok(Done { rate: per_second(done, ended - began), p99 })
    }

    fn clear(self) -> Result<()> {
        let made = self.clients.into_iter().flat_map(|client| client.made);
        made.into_iter().try_for_each(|dir| Ok(fs::remove_dir_all(dir)?))
    }
}

/// Rate per second.
pub(crate) fn per_second(done: usize, took: Duration) -> f64 {
    f64::from(u32::try_from(done).unwrap_or(u32::MAX)) / took.as_secs_f64()
}

impl ClientNames {
    /// Makes the directories on all branches before the contender sees them.
    fn new(at: &Standing, own: &str, amount: MetadataAmount) -> Result<Self> {
        let mut made = Vec::new();
        for (n, part) in at.parts().iter().enumerate() {
            let (dir, list) = (part.join(own), part.join(format!("{own}-list")));
            fs::create_dir(&dir)?;
            fs::create_dir(&list)?;
            if n == 0 {
                (0..amount.names).try_for_each(|i| fs::File::create(dir.join(format!("u{i}"))).map(drop))?;
            }
            let shares = at.parts().len();
            // A single branch has all listed entries; a union has a share on each.
            let alone = at.path() == part;
            let here = (0..amount.listed).filter(|i| (alone && n == 0) || (!alone && i % shares == n));
            here.into_iter().try_for_each(|i| fs::File::create(list.join(format!("entry-{i}"))).map(drop))?;
            made.extend([dir, list]);
        }
        let names = |prefix: &str| {
            (0..amount.names).map(|i| CString::new(format!("{prefix}{i}"))).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            dir: open_dir(&at.path().join(own))?,
            listed: open_dir(&at.path().join(format!("{own}-list")))?,
            names: names("f")?,
            renamed: names("g")?,
            missing: names("m")?,
            unseen: names("u")?,
            dirs: names("d")?,
            made,
        })
    }

    /// Runs an operation. Returns how often; the times go to `took`.
    fn act(&self, act: MetadataAct, took: &mut Vec<Duration>) -> Result<usize> {
        let dir = &self.dir;
        let block = [0x5a_u8; 4096];
        let mut room = [0_u8; 4096];
        let mode = Mode::from_raw_mode(0o644);
        let open = |name: &CString, how: OFlags| rustix::fs::openat(dir, name, how | OFlags::CLOEXEC, mode);
        let mut last = Instant::now();
        for (i, name) in self.names.iter().enumerate() {
            match act {
                MetadataAct::Create => drop(open(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?),
                MetadataAct::Missing => match rustix::fs::statat(dir, &self.missing[i], AtFlags::empty()) {
                    Err(Errno::NOENT) => {}
                    other => return Err(anyhow!("a missing name: {other:?}")),
                },
                MetadataAct::Uncached => drop(rustix::fs::statat(dir, &self.unseen[i], AtFlags::empty())?),
                MetadataAct::Open => drop(open(name, OFlags::RDONLY)?),
                MetadataAct::Write => {
                    rustix::io::pwrite(open(name, OFlags::WRONLY)?, &block, 0)?;
                }
                MetadataAct::Read => {
                    rustix::io::pread(open(name, OFlags::RDONLY)?, &mut room[..], 0)?;
                }
                MetadataAct::Rename => rustix::fs::renameat(dir, name, dir, &self.renamed[i])?,
                MetadataAct::Unlink => rustix::fs::unlinkat(dir, &self.renamed[i], AtFlags::empty())?,
                MetadataAct::Mkdir => rustix::fs::mkdirat(dir, &self.dirs[i], Mode::from_raw_mode(0o755))?,
                MetadataAct::Rmdir => rustix::fs::unlinkat(dir, &self.dirs[i], AtFlags::REMOVEDIR)?,
                MetadataAct::ListAll => return self.list_all(),
                MetadataAct::ListNames => return Ok(self.list()?.len()),
            }
            let now = Instant::now();
            took.push(now - last);
            last = now;
        }
        Ok(self.names.len())
    }

    /// Lists all names, then stats each, as find(1) and ls(1) do.
    fn list_all(&self) -> Result<usize> {
        let names = self.list()?;
        for name in &names {
            rustix::fs::statat(&self.listed, name, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(names.len())
    }

    fn list(&self) -> Result<Vec<CString>> {
        let dir = rustix::fs::openat(&self.listed, c".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut names = Vec::new();
        // The size of the C library's buffer.
        let mut room = Vec::with_capacity(32 << 10);
        let mut rows = RawDir::new(&dir, room.spare_capacity_mut());
        while let Some(row) = rows.next() {
            let row = row?;
            if !row.file_name().to_bytes().starts_with(b".") {
                names.push(row.file_name().to_owned());
            }
        }
        Ok(names)
    }
}

pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, how, Mode::empty()).with_context(|| path.display().to_string())
}
