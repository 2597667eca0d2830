//! Asking several branches that others serve for one name at the same time.
//!
//! Each such question is a round trip over a network. The thread that serves the request asks the first branch itself;
//! a few further threads, which sleep otherwise, ask the branches after it meanwhile. Answers are taken in the pool's
//! order, so that nothing is different but the time. When no such thread is free the branches are asked one by one:
//! a hanging branch that keeps them all makes nobody wait who does not ask it.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::error::Result;
use fsstack_pool::BranchIx;
use fsstack_sync::mpsc::{Receiver, RecvTimeoutError, channel};
use fsstack_sync::{Condvar, Mutex};
use fsstack_sys::{self as sys, Errno, Stat, SysError};
use smallvec::SmallVec;

use super::Tree;
use crate::inode::Inode;
use crate::member::Member;
use crate::pool::Pool;

/// Threads for each branch that others serve, and at most.
const EACH: usize = 4;
const MOST: usize = 32;

type LookupJob = Box<dyn FnOnce() + Send>;
/// Where the answers of branches come that were asked ahead, each with the mount of the branch that was asked.
type AskedAhead = SmallVec<[(BranchIx, u32, Receiver<Result<Stat>>); 4]>;

/// The threads.
#[derive(Default)]
pub(crate) struct ParallelLookup(Arc<LookupThreads>);

#[derive(Default)]
struct LookupThreads {
    state: Mutex<LookupQueue>,
    bell: Condvar,
}

#[derive(Default)]
struct LookupQueue {
    jobs: VecDeque<LookupJob>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl std::fmt::Debug for ParallelLookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParallelLookups").field("threads", &self.0.state.lock().threads).finish()
    }
}

impl ParallelLookup {
    /// Makes sure that there are enough for `pool`. Not for a worker thread: threads inherit where they may run.
    pub(crate) fn start_threads(&self, pool: &Pool) {
        let remote = pool.branches.iter().filter(|branch| !branch.kind.is_local()).count();
        // The only one is asked by the thread that serves the request.
        let wanted = if remote < 2 { 0 } else { (remote * EACH).min(MOST) };
        while self.0.state.lock().threads < wanted {
            let shared = self.0.clone();
            let started = fsstack_sync::thread::Builder::new().name("lookup".into()).stack_size(128 << 10);
            if let Err(error) = fsstack_branch::thread::start(started, move || shared.work()) {
                return tracing::warn!(%error, "parallel lookup: cannot start a thread; branches are asked one after the other");
            }
            self.0.state.lock().threads += 1;
        }
    }

    /// Has `job` done by a free thread; false if there is none.
    fn send(&self, job: LookupJob) -> bool {
        let mut state = self.0.state.lock();
        let free = state.jobs.len() < state.idle;
        if free {
            state.jobs.push_back(job);
            self.0.bell.notify_one();
        }
        free
    }
}

impl Drop for ParallelLookup {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.bell.notify_all();
    }
}

impl LookupThreads {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                self.bell.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

/// Answers of the branches that hold a directory about a name in it, in the pool's order.
pub(crate) struct BranchAnswers<'a> {
    tree: &'a Tree,
    pool: &'a Pool,
    dir: &'a Arc<Inode>,
    name: &'a CStr,
    left: std::iter::Peekable<smallvec::IntoIter<[BranchIx; 4]>>,
    sent: Option<AskedAhead>,
}

impl Tree {
    /// Asks the branches `at` for `name` in `dir`: those that others serve at the same time, from when the first of them
    /// is needed.
    pub(crate) fn ask_each<'a>(
        &'a self,
        pool: &'a Pool,
        dir: &'a Arc<Inode>,
        name: &'a CStr,
        at: SmallVec<[BranchIx; 4]>,
    ) -> BranchAnswers<'a> {
        BranchAnswers { tree: self, pool, dir, name, left: at.into_iter().peekable(), sent: None }
    }
}

impl BranchAnswers<'_> {
    /// Sends for what all branches after this one say, that others serve.
    fn send(&self) -> AskedAhead {
        let mut sent = AskedAhead::new();
        let after = self.left.clone();
        for at in after.filter(|at| !self.pool.branch(*at).kind.is_local()) {
            // Opening the directory first, where it is not open, is left to the thread that takes the answer.
            let Some(dir) = self.dir.cached_dirfd(at) else { continue };
            let branch: Arc<Member> = self.pool.branch(at).clone();
            let asked = dir.mount_generation;
            if asked != branch.mount_generation() {
                continue;
            }
            let (tell, answer) = channel();
            let name = self.name.to_owned();
            let job = Box::new(move || {
                let stat = branch.ask(|| branch.stat(dir.as_fd(), &name));
                // The receiver may be gone: an earlier branch had the name.
                let _heard = tell.send(stat);
            });
            if !self.tree.parallel_lookup.send(job) {
                break;
            }
            sent.push((at, asked, answer));
        }
        sent
    }
}

impl Iterator for BranchAnswers<'_> {
    type Item = (BranchIx, Result<Stat>);

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.left.next()?;
        if self.sent.is_none() && self.left.peek().is_some() && !self.pool.branch(at).kind.is_local() {
            self.sent = Some(self.send());
        }
        let branch = self.pool.branch(at);
        let sent = self.sent.as_ref().and_then(|sent| sent.iter().find(|(to, ..)| *to == at));
        let heard = sent.map(|(_, asked, answer)| (*asked, branch.heard_of(answer)));
        let stat =
            match heard.filter(|(asked, _)| *asked == branch.mount_generation()).map(|(_, answer)| answer) {
                Some(Ok(stat)) => stat.and_then(|stat| self.tree.check_mount(branch, &stat).map(|()| stat)),
                Some(Err(RecvTimeoutError::Timeout)) => {
                    let late = SysError { call: sys::Call::Stat, errno: Errno::TIMEDOUT };
                    Err(branch.said(late))
                }
                Some(Err(RecvTimeoutError::Disconnected)) | None => {
                    self.tree.stat_in(self.pool, self.dir, at, self.name)
                }
            };
        Some((at, stat))
    }
}
