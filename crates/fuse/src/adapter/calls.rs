//! Calls that somebody watches: a log of the slow ones, and totals by caller.
//!
//! While nobody watches, a request costs one look at a flag. Totals are kept as long as somebody asks for them again and
//! again; the log, bounded, as long as its threshold is set.

use std::collections::VecDeque;

use fsstack_branch::longest;
use fsstack_engine::Union;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::Mutex;
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sync::atomic::{AtomicBool, AtomicU64};
use fsstack_sync::time::{Duration, Instant, SystemTime};
use fsstack_sys::Errno;
use fsstack_wire::{Creation, Opcode, Operation, Request};

use super::caller_rows::{CallProfile, CallTotals, CallerKey};
use super::callers::{CallerProgram, uid_of};

/// Slow calls that are kept; older ones are overwritten.
const SLOW_CALLS: usize = 1000;
/// Longest part of a path that is kept or shown, in bytes.
pub const LONGEST_PATH: usize = 4096;
/// No threshold.
const OFF: u64 = u64::MAX;

/// A call that took long.
#[derive(Clone, Debug)]
pub struct SlowCall {
    /// Its number since the daemon began to serve, from 1.
    pub number: u64,
    /// When it ended.
    pub ended: SystemTime,
    /// Duration of its service by the daemon.
    pub took: Duration,
    /// The operation's name.
    pub operation: String,
    /// Path from the pool's root, if it is known; at most [`LONGEST_PATH`] bytes: of a longer one the last part, after
    /// `...`.
    pub path: Option<Vec<u8>>,
    /// The branch in which it was longest.
    pub branch: Option<BranchIx>,
    /// The error it ended with.
    pub error: Option<Errno>,
    /// The calling process; 0: the kernel by itself, or a process that the daemon cannot see.
    pub pid: u32,
    /// The caller's user.
    pub uid: u32,
    /// The calling program's name; empty if it has ended.
    pub program: Vec<u8>,
}

/// Slow calls after one, as they are logged.
#[derive(Clone, Debug)]
pub struct LoggedCalls {
    /// The calls, the oldest first.
    pub calls: Vec<SlowCall>,
    /// Those that were overwritten.
    pub lost: u64,
    /// Number of the last call.
    pub last: u64,
}

/// Watched calls of a pool.
#[derive(Debug)]
pub struct CallWatch {
    /// False: nothing is measured.
    on: AtomicBool,
    settling: Mutex<()>,
    slow_us: AtomicU64,
    log: Mutex<SlowLog>,
    /// Order: before `log`.
    profile: Mutex<Option<Profiled>>,
    /// Whether somebody wants totals, and whether by directory.
    profiles: AtomicBool,
    by_dir: AtomicBool,
}

#[derive(Debug, Default)]
struct SlowLog {
    calls: VecDeque<SlowCall>,
    last: u64,
    /// The last number when the log was last ended.
    ended: u64,
}

#[derive(Debug)]
struct Profiled {
    totals: CallProfile,
    /// When totals end unless somebody asks again.
    until: Instant,
}

impl SlowLog {
    fn after(&self, number: u64) -> LoggedCalls {
        let calls: Vec<_> = self.calls.iter().filter(|call| number < call.number).cloned().collect();
        let all = self.last.saturating_sub(number.max(self.ended));
        let lost = all.saturating_sub(calls.len() as u64);
        LoggedCalls { calls, lost, last: self.last }
    }
}

impl Default for CallWatch {
    fn default() -> Self {
        Self {
            on: AtomicBool::new(false),
            settling: Mutex::default(),
            slow_us: AtomicU64::new(OFF),
            log: Mutex::default(),
            profile: Mutex::default(),
            profiles: AtomicBool::new(false),
            by_dir: AtomicBool::new(false),
        }
    }
}

impl CallWatch {
    /// Sets the duration from which a call is slow.
    pub fn set_slow(&self, threshold: Duration) {
        let micros = u64::try_from(threshold.as_micros()).unwrap_or(OFF - 1);
        self.slow_us.store(micros, Relaxed);
        self.settle();
    }

    /// Ends the log and frees its memory. Returns the calls in it as [`slow_calls`](Self::slow_calls) does.
    pub fn end_slow(&self, after: u64) -> LoggedCalls {
        self.slow_us.store(OFF, Relaxed);
        self.settle();
        let mut log = self.log.lock();
        let logged = log.after(after);
        log.calls = VecDeque::new();
        log.ended = log.last;
        logged
    }

    /// Returns that duration; `None`: slow calls are not logged.
    pub fn slow(&self) -> Option<Duration> {
        Some(self.slow_us.load(Relaxed)).filter(|micros| *micros != OFF).map(Duration::from_micros)
    }

    /// Slow calls with numbers above `after`.
    pub fn slow_calls(&self, after: u64) -> LoggedCalls {
        self.log.lock().after(after)
    }

    /// Totals since somebody began to look; begins them if nobody does. They go on for `lease`.
    pub fn profile(&self, lease: Duration, by_dir: bool) -> CallProfile {
        let now = Instant::now();
        let mut profile = self.profile.lock();
        let begun = profile.take().filter(|profiled| now < profiled.until);
        let profiled = profile.insert(Profiled {
            until: begun.as_ref().map_or(now + lease, |begun| begun.until.max(now + lease)),
            totals: begun.map_or_else(|| CallProfile::new(now), |begun| begun.totals),
        });
        self.by_dir.fetch_or(by_dir, Relaxed);
        self.profiles.store(true, Relaxed);
        let totals = profiled.totals.look();
        drop(profile);
        self.settle();
        totals
    }

    /// Sets the flag that requests look at. In turn: the last one to change something must be the last one to set it.
    fn settle(&self) {
        let _turn = self.settling.lock();
        let on = self.slow().is_some() || self.profiles.load(Relaxed);
        longest::watch(self.slow().is_some());
        self.on.store(on, Relaxed);
    }

    /// Begins to measure a request; `None` while nobody watches.
    pub(super) fn begin(&self) -> Option<Instant> {
        if !self.on.load(Relaxed) {
            return None;
        }
        longest::begin();
        Some(Instant::now())
    }

    /// Notes a request that was begun, and its end. `sent` is the length of the reply.
    pub(super) fn end(
        &self,
        began: Instant,
        union: &Union,
        request: &Request<'_>,
        (error, sent): (Option<Errno>, usize),
    ) {
        let took = began.elapsed();
        if self.profiles.load(Relaxed) {
            self.add(union, request, took, (error, sent));
        }
        if self.slow().is_some_and(|slow| slow <= took) {
            self.log_slow(union, request, took, error);
        }
    }

    fn log_slow(&self, union: &Union, request: &Request<'_>, took: Duration, error: Option<Errno>) {
        let ino = Ino(request.header.nodeid);
        let CallerProgram { pid, name: program } = CallerProgram::of(request.header.pid);
        let mut call = SlowCall {
            number: 0,
            ended: SystemTime::now(),
            took,
            operation: operation(request.header.opcode),
            path: path_of(union, ino, &request.op),
            branch: longest::branch().or_else(|| union.known_branch(ino)),
            error,
            pid,
            uid: uid_of(&request.header),
            program,
        };
        let mut log = self.log.lock();
        if self.slow().is_none() {
            // The log was ended meanwhile.
            return;
        }
        log.last += 1;
        call.number = log.last;
        if log.calls.len() == SLOW_CALLS {
            log.calls.pop_front();
        }
        log.calls.push_back(call);
    }

    fn add(
        &self,
        union: &Union,
        request: &Request<'_>,
        took: Duration,
        (error, sent): (Option<Errno>, usize),
    ) {
        let header = &request.header;
        let by_dir = self.by_dir.load(Relaxed);
        let dir = if by_dir { union.known_dir(Ino(header.nodeid)) } else { None };
        let key = CallerKey { thread: header.pid, uid: uid_of(header), dir };
        let mut call =
            CallTotals { calls: 1, errors: u64::from(error.is_some()), took, ..CallTotals::default() };
        match request.op {
            Operation::Read { .. } if error.is_none() => call.read = sent as u64,
            Operation::Write { data, .. } if error.is_none() => call.written = data.len() as u64,
            _ => {}
        }
        if self.add_to_row(&key, &call) {
            return;
        }
        // A new caller. Its program is looked for without the lock that each request takes.
        let program = CallerProgram::of(header.pid);
        if let Some(profiled) = self.profile.lock().as_mut() {
            profiled.totals.add_new(key, program, &call);
        }
    }

    /// Adds a call to a caller's row, or to that of the others. False: the caller is new.
    fn add_to_row(&self, key: &CallerKey, call: &CallTotals) -> bool {
        let mut profile = self.profile.lock();
        let Some(profiled) = profile.as_mut().filter(|profiled| Instant::now() < profiled.until) else {
            // Nobody has asked for a while.
            *profile = None;
            self.profiles.store(false, Relaxed);
            self.by_dir.store(false, Relaxed);
            drop(profile);
            self.settle();
            return true;
        };
        profiled.totals.add(key, call)
    }
}

/// The path of the request's object or name, with at most [`LONGEST_PATH`] bytes.
fn path_of(union: &Union, ino: Ino, op: &Operation<'_>) -> Option<Vec<u8>> {
    let Some(name) = name_in(op) else { return union.known_path(ino, LONGEST_PATH) };
    let name = &name[..name.len().min(LONGEST_PATH / 2)];
    let dir = union.known_path(ino, LONGEST_PATH - name.len() - 1)?;
    // Allocated with exactly this size, since the log keeps it.
    Some(if dir.is_empty() { name.to_vec() } else { [&dir, name].join(&b'/') })
}

/// The operation's name in lower case, as the kernel has it.
fn operation(raw: u32) -> String {
    Opcode::from_raw(raw).map_or_else(|| raw.to_string(), |opcode| format!("{opcode:?}").to_lowercase())
}

/// The name in the directory that the request is about.
fn name_in<'a>(op: &Operation<'a>) -> Option<&'a [u8]> {
    match op {
        Operation::Lookup { name }
        | Operation::Symlink { name, .. }
        | Operation::Mknod { name, .. }
        | Operation::Mkdir { name, .. }
        | Operation::Unlink { name }
        | Operation::Rmdir { name }
        | Operation::Rename { name, .. }
        | Operation::Link { name, .. }
        | Operation::Create(Creation { name, .. }) => Some(name.to_bytes()),
        _ => None,
    }
}
