//! Position in a listing of a directory that is on one branch or several.
//!
//! A cookie says where a listing goes on: the durable id of the branch and the place in that branch's own directory, never a
//! count. So it means the same after a rewind, in another handle, after removals, and for an NFS server that opens the
//! directory anew for each request. Entries stream through. Only a hash is kept for each name of the branches before the
//! last, to show a name once.
//!
//! With `degraded=strict` a copy that cannot be read is skipped: the others' entries are listed, and the end is an error. So a
//! search for one name (the kernel's, for a directory whose handle was opened) finds it, and no reader takes the listing for
//! whole. From that copy on cookies are good in this handle only: another handle that went on there would end without an
//! error if the branch is back by then.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::branch::{Branch, FsKind};
use fsstack_branch::entries::is_dot;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_identity::number::hash_name;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::{self as sys, Errno, Kind, OFlags, Time};

use crate::inode::Inode;
use crate::opened::behind::{self, Behind, is_tail};
use crate::opened::cookie::{DOT_DOT, FIRST_OWN, HASHED_SHIFT, PLACE_BITS, WIDE, branch_of, turn_of, wide};
use crate::opened::followed::is_younger;
use crate::opened::last_answer::LastAnswer;
use crate::opened::listing_memory::{Allowance, ListingMemory};
use crate::pool::Pool;
use crate::settings::Degraded;
use crate::tree::Tree;
use crate::tree::resolve::is_private;

const BUFFER: usize = 32 << 10;

/// An entry that was read.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) at: BranchIx,
    pub(crate) ino: u64,
    pub(crate) cookie: u64,
    pub(crate) kind: Option<Kind>,
    pub(crate) name: Box<CStr>,
    /// Its number, if it is known from the catalogue only.
    pub(crate) offline: Option<Ino>,
}

/// How far a listing has come.
#[derive(Debug)]
pub struct Listing {
    /// The cookie of the last entry handed out.
    pub(super) position: u64,
    stream: Option<Stream>,
    /// Read, but there was no room for it in the answer.
    pending: Option<Read>,
    /// Hashes of the names that earlier branches have; only while the listing has run from its start.
    names: Option<HashSet<u64>>,
    /// Places whose cookie is a hash.
    wide: HashMap<u64, u64>,
    /// A copy was passed over: the listing must not end as if it were whole.
    pub(super) short: bool,
    /// Cookies of the entries read since then: the n-th is handed out as [`FIRST_OWN`] + n.
    pub(super) own: Vec<u64>,
    /// Number of names handed out since the start; None: it began elsewhere.
    pub(crate) shown: Option<u32>,
    /// The entries that were handed out last.
    pub(crate) last: LastAnswer,
    /// It leaves the copies' access times alone.
    pub(super) noatime: bool,
    /// Names that are listed behind all copies.
    pub(crate) behind: Behind,
    /// Memory allowance of `names`, `wide`, `own` and `behind`.
    pub(super) memory: Allowance,
}

#[derive(Debug)]
struct Stream {
    at: BranchIx,
    entries: Dirents,
    /// Whether this is the directory's first copy, and its last.
    first: bool,
    last: bool,
}

impl Listing {
    /// One that leaves the copies' access times alone, if it is `noatime`.
    pub(crate) fn new(noatime: bool, memory: &Arc<ListingMemory>) -> Self {
        Self {
            position: 0,
            stream: None,
            pending: None,
            names: None,
            wide: HashMap::new(),
            short: false,
            own: Vec::new(),
            shown: None,
            last: LastAnswer::default(),
            noatime,
            behind: Behind::default(),
            memory: Allowance::of(memory.clone()),
        }
    }

    pub(super) fn entries(&self) -> usize {
        self.names.as_ref().map_or(0, HashSet::len) + self.wide.len() + self.own.len() + self.behind.len()
    }

    /// Drops the hashes of names: from here on the earlier copies are asked.
    fn drop_names(&mut self) {
        self.names = None;
        self.memory.shrink(self.entries());
    }

    /// Remembers a name that later copies may have, too.
    fn keep_name(&mut self, hash: u64) {
        let entries = self.entries();
        let Some(names) = &mut self.names else { return };
        if self.memory.covers(entries + 1) {
            names.insert(hash);
        } else {
            self.drop_names();
        }
    }

    /// Goes to `cookie`: for free if the listing is there.
    pub(crate) fn seek(&mut self, tree: &Tree, pool: &Pool, dir: &Arc<Inode>, cookie: u64) -> Result<()> {
        if cookie == self.position && (cookie > DOT_DOT || self.stream.is_none()) {
            return Ok(());
        }
        // No position until then: a repeated request after an error must not read as the end.
        self.position = u64::MAX;
        let was_last = self.stream.take().is_some_and(|stream| stream.last);
        let pending = self.pending.take();
        match (self.last.untaken(cookie), &mut self.names) {
            // The program goes on where its buffer was full: these are still to be shown.
            (Some(untaken), Some(names)) => {
                let hash = |name: &CStr| hash_name(dir.id.ino, name.to_bytes());
                let untaken =
                    untaken.iter().map(|(_, name)| name).chain(pending.as_ref().map(|read| &read.name));
                untaken.for_each(|name| _ = names.remove(&hash(name)));
            }
            _ => self.drop_names(),
        }
        self.go_to(tree, pool, dir, cookie).inspect_err(|_| self.stream = None)?;
        if was_last && self.stream.as_ref().is_some_and(|stream| !stream.last) {
            self.drop_names(); // those of the last copy were not kept
        }
        self.position = cookie;
        Ok(())
    }

    /// Goes to the place behind `cookie`.
    pub(super) fn go_to(&mut self, tree: &Tree, pool: &Pool, dir: &Arc<Inode>, cookie: u64) -> Result<()> {
        if cookie <= DOT_DOT {
            self.short = false;
            self.own = Vec::new();
            self.wide = HashMap::new();
            self.behind = Behind::default();
            self.memory.shrink(0);
            return Ok(());
        }
        if is_tail(cookie) || behind::is_of(cookie) {
            return Ok(()); // behind all copies
        }
        let cookie = if cookie >> PLACE_BITS == 0 {
            // A cookie of another handle: entries that it skipped may be missing before it.
            let own = usize::try_from(cookie - FIRST_OWN).ok().and_then(|nth| self.own.get(nth));
            *own.ok_or(OpError::UNSURE)?
        } else {
            cookie
        };
        if pool.settings.degraded != Degraded::Read && tree.is_unsure(pool, dir) {
            self.short = true;
        }
        let id = branch_of(cookie);
        let turn = turn_of(pool, cookie).ok_or(Errno::INVAL)?;
        let copies = dir.copies();
        let branch = pool.branches.iter().find(|branch| Some(branch.id) == id);
        let Some(branch) = branch.filter(|branch| copies.contains(&branch.ix)) else {
            // The copy is gone with all its entries: the listing goes on with the next one.
            let next = copies.iter().copied().find(|at| pool.turn(*at) > turn);
            return next.map_or(Ok(()), |next| self.enter(tree, pool, dir, next));
        };
        let entered = self.enter(tree, pool, dir, branch.ix);
        match entered.and_then(|()| self.resume(branch, cookie & ((1 << PLACE_BITS) - 1))) {
            Err(error) if self.passes_over(pool, branch.ix, error) => {
                let later: Vec<BranchIx> =
                    copies.into_iter().skip_while(|at| pool.turn(*at) <= turn).collect();
                self.stream = None;
                self.enter_first(tree, pool, dir, &later).map(drop)
            }
            resumed => resumed,
        }
    }

    /// The branch with the copy that it is in.
    pub(super) fn branch(&self) -> Option<BranchIx> {
        self.stream.as_ref().map(|stream| stream.at)
    }

    fn resume(&mut self, branch: &Branch, position: u64) -> Result<()> {
        let known = self.wide.get(&position).copied();
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if position & WIDE == 0 {
            return branch.ask(|| stream.entries.seek(position));
        }
        if branch.kind == FsKind::LocalHashed {
            return branch.ask(|| stream.entries.seek((position & (WIDE - 1)) << HASHED_SHIFT));
        }
        if let Some(known) = known {
            return branch.ask(|| stream.entries.seek(known));
        }
        // Another handle gave this cookie out: its place is found by reading.
        while let Some(off) =
            branch.ask(|| stream.entries.next().map(|entry| entry.map(|entry| entry.off)))?
        {
            if wide(off) == position {
                return Ok(());
            }
        }
        // The entry there was removed: from the beginning, since repeated names are better than missing ones.
        branch.ask(|| stream.entries.seek(0))
    }

    /// The next entry of the listing, which began at the start of the directory at `since`, or None at the end. It must be given to [`Self::took`] or [`Self::put_back`].
    ///
    /// # Errors
    /// At the end: EIO if it may not be the whole directory that was listed.
    pub(crate) fn next(
        &mut self,
        tree: &Tree,
        pool: &Pool,
        dir: &Arc<Inode>,
        since: Option<Time>,
    ) -> Result<Option<Read>> {
        if let Some(pending) = self.pending.take() {
            return Ok(Some(pending));
        }
        self.behind.is_due = false;
        if self.stream.is_none() {
            if self.position > DOT_DOT {
                return self.end(tree, pool, dir);
            }
            self.names = Some(HashSet::new());
            if pool.settings.degraded != Degraded::Read && tree.is_unsure(pool, dir) {
                self.short = true;
            }
            if !self.enter_first(tree, pool, dir, &dir.copies())? {
                return self.end(tree, pool, dir);
            }
        }
        loop {
            let at = self.stream.as_ref().map(|stream| stream.at);
            let read = match self.read_one(pool) {
                Err(error) if at.is_some_and(|at| self.passes_over(pool, at, error)) => None,
                read => read?,
            };
            let Some(read) = read else {
                if !self.next_branch(tree, pool, dir)? {
                    return self.end(tree, pool, dir);
                }
                continue;
            };
            match self.is_shown((tree, pool), dir, &read, since) {
                Ok(true) => return self.owned(read).map(Some),
                Ok(false) => {}
                Err(error) => {
                    self.short = true; // without this one
                    return Err(error);
                }
            }
        }
    }

    fn end(&mut self, tree: &Tree, pool: &Pool, dir: &Arc<Inode>) -> Result<Option<Read>> {
        self.drop_names();
        let strict = pool.settings.degraded != Degraded::Read;
        if self.short || strict && tree.check_whole(pool, dir).is_err() {
            dir.forget_listing();
            self.behind.is_due = true;
            return Err(OpError::UNSURE);
        }
        Ok(None)
    }

    /// Whether the listing may not be the whole directory.
    pub(crate) fn is_short(&self) -> bool {
        self.short
    }

    /// With a cookie for this handle alone, where another one must not go on.
    ///
    /// # Errors
    /// EIO, which this listing has at its end anyway, if the memory of listings is used up.
    fn owned(&mut self, mut read: Read) -> Result<Read> {
        if self.short {
            if !self.memory.covers(self.entries() + 1) {
                return Err(OpError::UNSURE);
            }
            self.own.push(read.cookie);
            read.cookie = FIRST_OWN + self.own.len() as u64 - 1;
        }
        Ok(read)
    }

    /// The cookie of the last entry handed out.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The entry went into the answer.
    pub(crate) fn took(&mut self, cookie: u64) {
        self.position = cookie;
    }

    /// Counts the entry if it was `shown`; returns that count.
    pub(crate) fn count(&mut self, shown: bool) -> u32 {
        self.shown = self.shown.map(|before| before + u32::from(shown));
        u32::from(shown)
    }

    /// The answer had no room for the entry.
    pub(crate) fn put_back(&mut self, read: Read) {
        self.pending = Some(read);
    }

    /// Begins with the copy on the branch `at`.
    pub(super) fn enter(&mut self, tree: &Tree, pool: &Pool, dir: &Arc<Inode>, at: BranchIx) -> Result<()> {
        let copies = dir.copies();
        let fd = tree.dirfd(pool, dir, at)?;
        let open = if self.noatime { sys::at::reopen_quietly } else { sys::at::reopen };
        let fd = pool.branch(at).ask(|| open(fd.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY))?;
        self.check_subvolumes(pool, at)?;
        let entries = Dirents::new(fd, BUFFER);
        let (first, last) = (copies.first() == Some(&at), copies.last() == Some(&at));
        self.stream = Some(Stream { at, entries, first, last });
        Ok(())
    }

    fn next_branch(&mut self, tree: &Tree, pool: &Pool, dir: &Arc<Inode>) -> Result<bool> {
        let Some((done, last)) = self.stream.as_ref().map(|stream| (stream.at, stream.last)) else {
            return Ok(false);
        };
        let later: Vec<BranchIx> =
            dir.copies().into_iter().filter(|at| pool.turn(*at) > pool.turn(done)).collect();
        if last && !later.is_empty() {
            self.drop_names(); // a branch was added meanwhile: the names of the last one were not kept
        }
        self.enter_first(tree, pool, dir, &later)
    }

    /// The branch `ix` has left the pool: the listing goes on with the next copy.
    pub(crate) fn leave(&mut self, tree: &Tree, pool: &Pool, dir: &Arc<Inode>, ix: BranchIx) {
        self.pending.take_if(|pending| pending.at == ix);
        if self.stream.as_ref().is_none_or(|stream| stream.at != ix) {
            return;
        }
        if !matches!(self.next_branch(tree, pool, dir), Ok(true)) {
            // The end; otherwise the next call finds out again how the next copy answers.
            self.stream = None;
            self.position = self.position.max(DOT_DOT + 1);
        }
    }

    /// Enters the first of `copies` that is still there; false: none is.
    fn enter_first(
        &mut self,
        tree: &Tree,
        pool: &Pool,
        dir: &Arc<Inode>,
        copies: &[BranchIx],
    ) -> Result<bool> {
        for at in copies {
            match self.enter(tree, pool, dir, *at) {
                Err(error) if error.is_missing() || self.passes_over(pool, *at, error) => {} // removed out of band
                entered => return entered.map(|()| true),
            }
        }
        Ok(false)
    }

    /// The next entry of the copy that it is in.
    pub(super) fn read_one(&mut self, pool: &Pool) -> Result<Option<Read>> {
        let entries = self.entries();
        let Some(stream) = &mut self.stream else { return Ok(None) };
        let branch = pool.branch(stream.at);
        loop {
            // A permit of the branch is for the call, not for each entry.
            let inside = if stream.entries.has_next() { None } else { branch.come_in(CallKind::Short)? };
            let entry = match stream.entries.next().map_err(|sys| branch.said(sys)) {
                // A copy that was removed while it is listed has no more entries.
                Err(error) if error.is_missing() => return Ok(None),
                entry => entry?,
            };
            let Some(entry) = entry else {
                drop(inside);
                self.check_subvolumes(pool, branch.ix)?;
                return Ok(None);
            };
            if is_dot(entry.name) {
                continue;
            }
            let position = match branch.kind {
                _ if entry.off < WIDE => entry.off,
                FsKind::LocalHashed => WIDE | entry.off >> HASHED_SHIFT,
                FsKind::Local | FsKind::Remote => {
                    if self.memory.covers(entries + 1) {
                        self.wide.insert(wide(entry.off), entry.off);
                    }
                    wide(entry.off)
                }
            };
            return Ok(Some(Read {
                at: stream.at,
                ino: entry.ino,
                cookie: u64::from(branch.id.get()) << PLACE_BITS | position,
                kind: entry.kind,
                name: entry.name.into(),
                offline: None,
            }));
        }
    }

    /// The listing of an incomplete branch is short. The branch is checked before it is listed and after.
    fn check_subvolumes(&mut self, pool: &Pool, at: BranchIx) -> Result<()> {
        let branch = pool.branch(at);
        match branch.ask(|| branch.check_subvolumes()) {
            // The rest of it is listed.
            Err(error) if error.is_fault() => _ = self.passes_over(pool, at, error),
            checked => checked?,
        }
        Ok(())
    }

    /// A name that an earlier copy of the directory has was shown there.
    fn is_shown(
        &mut self,
        (tree, pool): (&Tree, &Pool),
        dir: &Arc<Inode>,
        read: &Read,
        since: Option<Time>,
    ) -> Result<bool> {
        if is_private(pool, dir, &read.name) {
            return Ok(false);
        }
        let Some(stream) = &self.stream else { return Ok(true) };
        if stream.first && stream.last {
            return Ok(true);
        }
        let hash = hash_name(dir.id.ino, read.name.to_bytes());
        let maybe = !stream.first && self.names.as_ref().is_none_or(|names| names.contains(&hash));
        if !stream.last {
            self.keep_name(hash);
        }
        if !maybe {
            return Ok(true);
        }
        for earlier in dir.copies().into_iter().take_while(|at| pool.turn(*at) < pool.turn(read.at)) {
            match tree.stat_in(pool, dir, earlier, &read.name) {
                // It may have been made behind the listing.
                Ok(stat) if self.names.is_none() && is_younger(pool.branch(earlier), &stat, since) => {}
                Ok(stat) => {
                    if read.kind.is_some_and(|kind| (kind == Kind::Dir) != stat.is_dir()) {
                        tree.report_clash(pool, dir, read.at, &read.name);
                    }
                    return Ok(false);
                }
                Err(error) if error.is_missing() || self.passes_over(pool, earlier, error) => {}
                // A mount inside the branch has the name.
                Err(error) if error.errno() == Errno::ACCESS => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        // Listed and removed since this entry was read ahead, unless it is still here: then the hash is another's.
        match tree.stat_in(pool, dir, read.at, &read.name) {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
