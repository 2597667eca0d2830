//! Where the microseconds of a create go: each step from the kernel's trace events, with no counters in the daemon.
//!
//! One client makes and closes files. A request is divided at the moments when it is sent, its thread runs, its thread
//! has it, each system call begins and ends, the thread answers, the kernel has the answer, and the client runs again.
//! Trace events have whole microseconds; means of a thousand and more have tenths. Tracing costs time itself, so runs
//! without it are shown above.
//! is done without it, in turn, and stands above.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fsstack_bench::turns;
use fsstack_lab::trace::{Event, What};
use fsstack_lab::{Skip, Trace, mounts};
use rustix::fs::{Mode, OFlags};
use rustix::thread::gettid;

use crate::metadata::{MetadataAmount, open_dir};
use crate::report::{Sense, Table};
use crate::test_bed::{CACHES_ON, Contender, Server, Standing, TestBed};

/// One in this many creates is left out, the slowest: the machine was busy elsewhere.
const LEFT_OUT: usize = 20;
const EVENTS: &[&str] = &[
    "events/fuse/fuse_request_send",
    "events/fuse/fuse_request_end",
    "events/raw_syscalls/sys_enter",
    "events/raw_syscalls/sys_exit",
    "events/sched/sched_switch",
];
/// Buffer for the events of each CPU, in KiB.
const BUFFER: &str = "65536";
/// Request that no program waits for.
const BACKGROUND: &str = "RELEASE";
/// Least mean that is shown, in microseconds.
const LEAST: f64 = 0.05;
/// Such a request may be answered this many creates later.
const RECENT: usize = 32;
/// Order of the rows.
const REQUESTS: &[&str] = &["LOOKUP", "CREATE", "GETATTR", BACKGROUND];

pub(crate) fn run(test_bed: &TestBed, amount: MetadataAmount, tables: &mut Vec<Table>) -> Result<()> {
    let trace = match Trace::new("breakdown").and_then(|trace| prepare(&trace).map(|()| trace)) {
        Ok(trace) => trace,
        Err(error) => {
            Skip::because(format!("needs the trace events of fuse, raw_syscalls and sched: {error:#}"))
                .announce();
            return Ok(());
        }
    };
    let room = &["minfreespace=64M", "passthrough-headroom=64M"][..];
    let of = |name, transport| Contender::new(name, Server::Fsstack, &[room, CACHES_ON, transport]);
    let contenders = [of("dev", &["transport=dev"][..]), of("ring", &["transport=ring"][..])];
    let standing = test_bed.stand_all(&contenders)?;
    let mut measured = Vec::new();
    for round in 0..amount.rounds {
        for (of, at) in turns::of(&standing, round) {
            let told = measure(&trace, at, &format!("c-{round}"), amount.names);
            measured.push((of.name, told.with_context(|| of.name)?));
        }
    }
    let mut whole = shown("Where the microseconds of a create go, one client", &measured, |told| &told.whole);
    whole.notes.extend(contenders.iter().map(Contender::described));
    whole.notes.push("each round's means without the slowest twentieth; tracing takes time itself".into());
    let steps = shown("The same, step by step", &measured, |told| &told.steps);
    let counts = shown("What a create is made of, one client", &measured, |told| &told.counts);
    tables.extend([whole, steps, counts]);
    standing.into_iter().try_for_each(|(_, at)| at.fall())
}

/// Rows in order, including those that some rounds lack.
type Rows = BTreeMap<(usize, usize, String), f64>;

fn shown(title: &str, measured: &[(&'static str, Reported)], rows: impl Fn(&Reported) -> &Rows) -> Table {
    let mut table = Table::new(title, Sense::LessIsBetter);
    let told = measured.iter().flat_map(|(_, told)| rows(told));
    let all: BTreeSet<_> = told.filter(|(_, mean)| LEAST < **mean).map(|(row, _)| row).collect();
    for row in all {
        for (name, told) in measured {
            table.put(&row.2, name, rows(told).get(row).copied().unwrap_or_default());
        }
    }
    table
}

fn prepare(trace: &Trace) -> Result<()> {
    trace.set("tracing_on", "0")?;
    trace.set("trace_clock", "mono")?;
    trace.set("options/event-fork", "1")?;
    trace.set("buffer_size_kb", BUFFER)?;
    EVENTS.iter().try_for_each(|event| trace.set(&format!("{event}/enable"), "1"))
}

/// The mean create of one round.
#[derive(Default)]
struct Reported {
    whole: Rows,
    steps: Rows,
    counts: Rows,
}

fn measure(trace: &Trace, at: &Standing, dir: &str, names: usize) -> Result<Reported> {
    let daemon = at.daemon()?.pid;
    let tasks = fs::read_dir(format!("/proc/{daemon}/task"))?;
    let mut threads: Vec<String> =
        tasks.map(|task| Ok(task?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    let client = gettid().as_raw_nonzero().get();
    threads.push(client.to_string());
    let plain = create(at, &format!("{dir}-plain"), names)?;
    trace.clear()?;
    trace.set("set_event_pid", &threads.join(" "))?;
    trace.set("tracing_on", "1")?;
    let traced = create(at, &format!("{dir}-traced"), names);
    trace.set("tracing_on", "0")?;
    traced?;
    let connection = mounts::at(at.path())?.context("nothing is mounted there")?.connection();
    let mut seen = Seen::new(client, connection);
    trace.events()?.iter().for_each(|event| seen.event(event));
    ensure!(names / 2 < seen.done.len(), "{} of {names} creates were traced", seen.done.len());
    let mut told = Sums::of(seen.done).told();
    told.whole.insert((0, 0, "create and close, not traced".into()), plain);
    Ok(told)
}

/// Makes files in a new directory, which is removed directly on the branch. Returns the mean microseconds of the
/// creates that count.
fn create(at: &Standing, own: &str, names: usize) -> Result<f64> {
    let dirs: Vec<_> = at.parts().iter().map(|part| part.join(own)).collect();
    dirs.iter().try_for_each(fs::create_dir)?;
    let dir = open_dir(&at.path().join(own))?;
    let mut took = Vec::with_capacity(names);
    for name in 0..names {
        let began = Instant::now();
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(&dir, format!("f{name}"), how, Mode::from_raw_mode(0o644))?;
        took.push(began.elapsed());
    }
    drop(dir);
    dirs.iter().try_for_each(fs::remove_dir_all)?;
    took.sort_unstable();
    took.truncate(names - names / LEFT_OUT);
    Ok(took.iter().sum::<Duration>().as_secs_f64() * 1e6 / f64::from(u32::try_from(took.len())?))
}

/// A request in flight.
#[derive(Clone, Debug)]
struct Asked {
    name: String,
    sent: u64,
    /// Times when its thread ran, had the request, and began to answer.
    at: Option<[u64; 3]>,
    /// System calls of the thread for it, with their microseconds.
    calls: Vec<(i64, u64)>,
    ended: u64,
    /// Time when the client ran again.
    heard: Option<u64>,
}

/// One create, from its call to the next create's.
#[derive(Clone, Debug, Default)]
struct Create {
    began: u64,
    returned: u64,
    closed: u64,
    asked: Vec<(u64, Asked)>,
    switches: u32,
}

impl Create {
    /// True if it is a single create, and all of its requests were answered.
    fn is_ordinary(&self) -> bool {
        let known = |asked: &Asked| asked.at.is_some() && REQUESTS.contains(&asked.name.as_str());
        let creates = self.asked.iter().filter(|(_, asked)| asked.name == "CREATE").count();
        creates == 1 && self.asked.iter().all(|(_, asked)| known(asked))
    }
}

/// State of a thread of the daemon.
#[derive(Clone, Debug, Default)]
struct Thread {
    ran: u64,
    has: u64,
    call: Option<(i64, u64)>,
    calls: Vec<(i64, u64)>,
}

/// Events combined in their order.
struct Seen {
    client: i32,
    connection: u32,
    call: Option<i64>,
    now: Option<Create>,
    done: Vec<Create>,
    threads: BTreeMap<i32, Thread>,
}

/// True for the system calls by which a transport receives requests.
fn takes(call: i64) -> bool {
    [libc::SYS_read, libc::SYS_readv, libc::SYS_io_uring_enter].contains(&call)
}

impl Seen {
    fn new(client: i32, connection: u32) -> Self {
        Self { client, connection, call: None, now: None, done: Vec::new(), threads: BTreeMap::new() }
    }

    fn event(&mut self, event: &Event) {
        let Event { thread, at, what } = event;
        if *thread == self.client || matches!(what, What::Switch { to, .. } if *to == self.client) {
            self.heard(*at);
        }
        match what {
            What::Sent { connection, unique, name } if *connection == self.connection => {
                let (name, sent) = (name.clone(), *at);
                let asked = Asked { name, sent, at: None, calls: Vec::new(), ended: 0, heard: None };
                if let Some(now) = &mut self.now {
                    now.asked.push((*unique, asked));
                }
            }
            What::Ended { connection, unique } if *connection == self.connection => {
                self.ended(*thread, *at, *unique);
            }
            What::Enter(call) if *thread == self.client => self.calls(*call, *at),
            What::Exit(call) if *thread == self.client => self.returns(*call, *at),
            What::Enter(call) => self.threads.entry(*thread).or_default().call = Some((*call, *at)),
            What::Exit(call) => {
                let own = self.threads.entry(*thread).or_default();
                let began = own.call.take().filter(|(begun, _)| begun == call);
                if takes(*call) {
                    (own.has, own.calls) = (*at, Vec::new());
                } else if let Some((_, began)) = began {
                    own.calls.push((*call, at - began));
                }
            }
            What::Switch { to, .. } => {
                self.threads.entry(*to).or_default().ran = *at;
                if let Some(now) = &mut self.now {
                    now.switches += 1;
                }
            }
            What::Sent { .. } | What::Ended { .. } => {}
        }
    }

    /// The client runs again: its request was answered.
    fn heard(&mut self, at: u64) {
        for (_, asked) in self.now.iter_mut().flat_map(|now| &mut now.asked) {
            if asked.heard.is_none() && 0 < asked.ended {
                asked.heard = Some(at);
            }
        }
    }

    fn calls(&mut self, call: i64, at: u64) {
        self.call = Some(call);
        if call == libc::SYS_openat {
            self.done.extend(self.now.take().map(|last| Create { closed: at, ..last }));
            self.now = Some(Create { began: at, ..Create::default() });
        }
    }

    fn returns(&mut self, call: i64, at: u64) {
        if let Some(now) = self.now.as_mut().filter(|_| call == libc::SYS_openat) {
            now.returned = at;
        }
    }

    /// `thread` answered a request, possibly an earlier create's that no program waits for.
    fn ended(&mut self, thread: i32, at: u64, unique: u64) {
        let own = self.threads.entry(thread).or_default();
        let recent = self.now.iter_mut().chain(self.done.iter_mut().rev().take(RECENT));
        let found = recent.flat_map(|create| &mut create.asked).find(|(number, _)| *number == unique);
        if let Some((_, asked)) = found {
            let answers = own.call.map_or(at, |(_, began)| began);
            asked.at = Some([own.ran.clamp(asked.sent, own.has.max(asked.sent)), own.has, answers]);
            asked.calls = std::mem::take(&mut own.calls);
            asked.ended = at;
        }
    }
}

/// Total microseconds of all creates that count, by step.
#[derive(Default)]
struct Sums {
    creates: u32,
    told: Reported,
}

/// Kind of a step, by which steps are summed.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Whole,
    Waking,
    Carrying,
    Own,
    Branch,
    Client,
    Background,
}

impl Kind {
    fn row(self) -> &'static str {
        match self {
            Self::Whole => "create and close, traced; of that:",
            Self::Waking => "waking, and switches between client and daemon",
            Self::Carrying => "requests into the daemon, answers out of it",
            Self::Own => "the daemon's own code",
            Self::Branch => "the daemon's system calls",
            Self::Client => "the client, in the kernel and its own code",
            Self::Background => "beside that, RELEASE once its thread runs",
        }
    }
}

impl Sums {
    fn of(mut creates: Vec<Create>) -> Self {
        creates.retain(Create::is_ordinary);
        creates.sort_by_key(|create| create.closed - create.began);
        creates.truncate(creates.len() - creates.len() / LEFT_OUT);
        let mut sums = Self::default();
        creates.iter().for_each(|create| sums.add(create));
        sums
    }

    fn add(&mut self, create: &Create) {
        self.creates += 1;
        let mut waited = 0;
        for (_, asked) in &create.asked {
            waited += self.request(asked);
            self.count(0, &asked.name, 1.0);
            self.count(2, "system calls of the daemon, without those of its transport", calls(asked));
        }
        self.count(1, "switches between threads", f64::from(create.switches));
        let within = (create.returned - create.began).saturating_sub(waited);
        let after = create.closed - create.returned;
        self.step(
            Kind::Client,
            (REQUESTS.len(), 0),
            "the client in the kernel, between its requests",
            within,
        );
        self.step(Kind::Client, (REQUESTS.len(), 1), "close, and the client's own code", after);
        self.kind(Kind::Whole, create.closed - create.began);
    }

    /// Adds one request. Returns the time that the client waited.
    fn request(&mut self, asked: &Asked) -> u64 {
        let Some([ran, has, answers]) = asked.at else { return 0 };
        let place = REQUESTS.iter().position(|name| *name == asked.name).unwrap_or(REQUESTS.len());
        let background = asked.name == BACKGROUND;
        let has = has.max(ran);
        let in_calls: u64 = asked.calls.iter().map(|(_, took)| took).sum();
        let own = answers.saturating_sub(has).saturating_sub(in_calls);
        let mut step = |kind: Kind, at: usize, what: &str, took: u64| {
            let kind = if background { Kind::Background } else { kind };
            self.step(kind, (place, at), &format!("{}: {what}", asked.name), took);
        };
        if !background {
            step(Kind::Waking, 0, "until its thread runs", ran - asked.sent);
        }
        step(Kind::Carrying, 1, "until its thread has it", has - ran);
        step(Kind::Own, 2, "the daemon's own code", own);
        for (call, took) in &asked.calls {
            step(Kind::Branch, 3, called(*call), *took);
        }
        step(Kind::Carrying, 4, "until the kernel has the answer", asked.ended.saturating_sub(answers));
        if background {
            return 0;
        }
        let heard = asked.heard.unwrap_or(asked.ended);
        step(Kind::Waking, 5, "until the client runs", heard - asked.ended);
        heard - asked.sent
    }

    fn step(&mut self, kind: Kind, (request, step): (usize, usize), row: &str, micros: u64) {
        *self.told.steps.entry((request, step, row.to_owned())).or_default() += float(micros);
        self.kind(kind, micros);
    }

    fn kind(&mut self, kind: Kind, micros: u64) {
        *self.told.whole.entry((1, kind as usize, kind.row().to_owned())).or_default() += float(micros);
    }

    fn count(&mut self, place: usize, row: &str, count: f64) {
        *self.told.counts.entry((place, 0, row.to_owned())).or_default() += count;
    }

    fn told(self) -> Reported {
        let creates = f64::from(self.creates.max(1));
        let mut told = self.told;
        for rows in [&mut told.whole, &mut told.steps, &mut told.counts] {
            rows.values_mut().for_each(|sum| *sum /= creates);
        }
        told
    }
}

fn float(micros: u64) -> f64 {
    f64::from(u32::try_from(micros).unwrap_or(u32::MAX))
}

fn calls(asked: &Asked) -> f64 {
    f64::from(u32::try_from(asked.calls.len()).unwrap_or(u32::MAX))
}

/// Name of a system call.
fn called(call: i64) -> &'static str {
    let known = [
        (libc::SYS_openat2, "openat2"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_statx, "statx"),
        (libc::SYS_close, "close"),
        (libc::SYS_ioctl, "ioctl"),
        (libc::SYS_pread64, "pread64"),
        (libc::SYS_futex, "futex"),
        (libc::SYS_unlinkat, "unlinkat"),
        (libc::SYS_mprotect, "mprotect"),
    ];
    known.into_iter().find(|(number, _)| *number == call).map_or("other system calls", |(_, name)| name)
}
