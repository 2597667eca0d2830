//! Simulated queues: requests as bytes, served by the adapter and the engine in a worker thread a queue, as a transport does.
//!
//! Each queue has a caller that waits for each answer, as a program does. So 64 queues and callers run the real code on a
//! machine with fewer CPUs. What they were answered is checked, and that nothing is left in the tables.

use std::ffi::{CStr, CString};
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use fsstack_bench::turns;
use fsstack_fuse::{Adapter, Outcome, Serve, Timeouts};
use fsstack_pool::Ino;
use fsstack_pool::settings::Xattrs;
use fsstack_sys::{OFlags, identity, thread};
use fsstack_wire::{Abi, Answer, Creation, Header, Operation, Request, encode, granted};

use crate::many::{ACTS, Act, EngineBed, SETTINGS, Setting, Span, cpu_time};
use crate::report::Table;

const ABI: Abi = Abi { setxattr_ext: true };
const KEPT: Duration = Duration::from_secs(120);
/// Room for an answer; the longest one has an entry and a handle.
const ROOM: usize = 4096;

/// Into a queue.
enum Message {
    Request(Vec<u8>),
    /// Asks for the CPU time of the worker thread.
    CpuTime,
}

/// Out of a queue.
enum Reply {
    Answer(Vec<u8>),
    Refused(i32),
    Silent,
    CpuTime(Duration),
}

/// Measures all settings once.
pub(crate) fn round(round: usize, names: usize, cpu: &mut Table, rate: &mut Table) -> Result<()> {
    turns::of(SETTINGS, round)
        .try_for_each(|&setting| measure(setting, names, cpu, rate).context(setting.name))
}

fn measure(setting: Setting, names: usize, cpu: &mut Table, rate: &mut Table) -> Result<()> {
    let (bed, dirs) = EngineBed::new(if setting.together { 1 } else { setting.callers })?;
    let timeouts = Timeouts { entry: KEPT, attr: KEPT, negative: KEPT, watched: (KEPT, KEPT) };
    let adapter = Adapter::new(bed.union.clone(), timeouts, ABI, Xattrs::On);
    let each = names / setting.callers;
    let gate = Barrier::new(setting.callers);
    let spans = std::thread::scope(|scope| {
        let start = |n: usize| {
            let (dir, pinned) = (dirs[n % dirs.len()], (setting.callers == 2).then_some(n));
            let queue = Queue::start(scope, &adapter, pinned);
            let gate = &gate;
            scope.spawn(move || QueueCaller::new(queue, dir, n, each, pinned)?.run(gate))
        };
        let callers: Vec<_> = (0..setting.callers).map(start).collect();
        let joined = callers.into_iter().map(|caller| caller.join().map_err(|_| anyhow!("panicked"))?);
        joined.collect::<Result<Vec<_>>>()
    })?;
    Span::put(setting, &spans, each, cpu, rate)?;
    let held = bed.union.held();
    ensure!((held.files, held.inodes) == (0, dirs.len()), "left in the tables: {held:?}");
    bed.union.destroy();
    Ok(())
}

/// The caller's side of a queue.
struct Queue<'scope> {
    requests: SyncSender<Message>,
    replies: Receiver<Reply>,
    worker: ScopedJoinHandle<'scope, Result<()>>,
    unique: u64,
}

impl<'scope> Queue<'scope> {
    fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        adapter: &'env Adapter,
        pinned: Option<usize>,
    ) -> Self {
        let (requests, taken) = sync_channel(1);
        let (replying, replies) = sync_channel(1);
        let worker = scope.spawn(move || {
            pinned.map_or(Ok(()), thread::pin_to_cpu)?;
            identity::keep_capabilities()?;
            serve(adapter, &taken, &replying)
        });
        Self { requests, replies, worker, unique: 0 }
    }

    fn exchange(&self, message: Message) -> Result<Reply> {
        self.requests.send(message).map_err(|_| anyhow!("the queue has no worker"))?;
        self.replies.recv().context("the queue's worker has ended")
    }

    fn request(&mut self, ino: u64, op: &Operation<'_>) -> Result<Vec<u8>> {
        // Even, as the kernel's.
        self.unique += 2;
        let header = Header {
            len: 0,
            opcode: 0,
            unique: self.unique,
            nodeid: ino,
            uid: 0,
            gid: 0,
            pid: std::process::id(),
            total_extlen: 0,
        };
        match self.exchange(Message::Request(encode::request(ABI, &header, op, &[]).contiguous()))? {
            Reply::Answer(answer) => Ok(answer),
            Reply::Silent => Ok(Vec::new()),
            Reply::Refused(errno) => bail!("{op:?}: error {errno}"),
            Reply::CpuTime(_) => bail!("an answer to another question"),
        }
    }

    fn cpu_time(&self) -> Result<Duration> {
        match self.exchange(Message::CpuTime)? {
            Reply::CpuTime(used) => Ok(used),
            _ => bail!("an answer to another question"),
        }
    }

    fn end(self) -> Result<()> {
        drop(self.requests);
        self.worker.join().map_err(|_| anyhow!("a worker panicked"))?
    }
}

/// Serves a queue until its caller has gone.
fn serve(adapter: &Adapter, taken: &Receiver<Message>, replying: &SyncSender<Reply>) -> Result<()> {
    let mut room = vec![0; ROOM];
    for message in taken {
        let reply = match message {
            Message::CpuTime => Reply::CpuTime(cpu_time()),
            Message::Request(bytes) => {
                let request = Request::parse_contiguous(ABI, &bytes)
                    .map_err(|refused| anyhow!("a request that cannot be parsed: {refused:?}"))?;
                let mut answer = Answer::new(&mut room);
                match adapter.serve(&request, &mut answer) {
                    Outcome::Answered => Reply::Answer(answer.as_bytes().to_vec()),
                    Outcome::Refused(errno) => Reply::Refused(errno),
                    Outcome::Silent => Reply::Silent,
                }
            }
        };
        replying.send(reply).map_err(|_| anyhow!("a caller has gone"))?;
    }
    Ok(())
}

/// A program, with the nodes and handles that the kernel would have for it.
struct QueueCaller<'scope> {
    queue: Queue<'scope>,
    dir: u64,
    names: Vec<CString>,
    made: Vec<(u64, u64)>,
}

impl<'scope> QueueCaller<'scope> {
    fn new(
        queue: Queue<'scope>,
        dir: Ino,
        number: usize,
        names: usize,
        pinned: Option<usize>,
    ) -> Result<Self> {
        pinned.map_or(Ok(()), thread::pin_to_cpu)?;
        let names = (0..names).map(|n| CString::new(format!("caller-{number}-{n}")));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { queue, dir: dir.0, made: Vec::with_capacity(names.len()), names })
    }

    fn run(mut self, gate: &Barrier) -> Result<Vec<Span>> {
        let (mut spans, mut failed) = (Vec::new(), None);
        for (act, label) in ACTS {
            gate.wait();
            let (began, before) = (Instant::now(), self.queue.cpu_time());
            if failed.is_none() {
                failed = self.act(*act).context(*label).err();
            }
            let used = self.queue.cpu_time().and_then(|after| Ok(after.saturating_sub(before?)));
            spans.push(Span { began, ended: Instant::now(), used: used.unwrap_or_default() });
            gate.wait();
        }
        let ended = self.queue.end();
        failed.map_or(ended, Err)?;
        Ok(spans)
    }

    fn act(&mut self, act: Act) -> Result<()> {
        let names = std::mem::take(&mut self.names);
        let done = names.iter().enumerate().try_for_each(|(n, name)| self.act_on(act, n, name));
        self.names = names;
        done
    }

    fn act_on(&mut self, act: Act, n: usize, name: &CStr) -> Result<()> {
        let (dir, made) = (self.dir, self.made.get(n).copied());
        let (ino, fh) = made.unwrap_or_default();
        let release = |fh| Operation::Release { fh, flags: 0, release_flags: 0, lock_owner: 0 };
        match act {
            Act::Missing | Act::Known => {
                let node = granted::node(&self.queue.request(dir, &Operation::Lookup { name })?);
                // 0: there is no such name.
                ensure!(node == Some(ino), "{name:?} is {node:?} instead of {ino}");
            }
            Act::Create => {
                let flags = (OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL).bits();
                let creation = Creation { name, flags, mode: 0o100_644, umask: 0, open_flags: 0 };
                let answer = self.queue.request(dir, &Operation::Create(creation))?;
                let granted = granted::node(&answer).zip(granted::handle_of_created(&answer));
                self.made.push(granted.context("an answer without a handle")?);
            }
            Act::DirAttributes => drop(self.queue.request(dir, &Operation::Getattr { fh: None })?),
            Act::Attributes => drop(self.queue.request(ino, &Operation::Getattr { fh: None })?),
            Act::Release => drop(self.queue.request(ino, &release(fh))?),
            Act::OpenClose => {
                let open = Operation::Open { flags: OFlags::RDONLY.bits(), open_flags: 0 };
                let handle = granted::handle(&self.queue.request(ino, &open)?);
                self.queue.request(ino, &release(handle.context("an answer without a handle")?))?;
            }
            Act::Unlink => {
                self.queue.request(dir, &Operation::Unlink { name })?;
                // Granted by the create and by the lookup.
                self.queue.request(ino, &Operation::Forget { nlookup: 2 })?;
            }
        }
        Ok(())
    }
}
