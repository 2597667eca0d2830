//! Names that move to another branch while their directory is listed: files, and directories that lose a copy.
//!
//! A listing reads the copies of a directory one after the other. A name that moves meanwhile from a copy still to come into
//! one that was read would be missed, and the other way round shown twice. So a move informs the listings of the name's
//! directory first ([`Files::listings_follow`]). Whether one has shown the name already is found out by its place: it has,
//! if the name does not come any more in the copy that it leaves. From then on the name is followed: it is shown where
//! it is come across first, and at the end if it never is. Names shown at the end have cookies of their own, valid in that
//! handle; for another one nothing comes after them.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::branch::{Branch, FsKind};
use fsstack_branch::error::{OpError, Result};
use fsstack_pool::BranchIx;
use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use fsstack_sys as sys;
use fsstack_sys::{Stat, Time};

use super::DirHandle;
use super::behind::is_tail;
use super::cookie::{DOT_DOT, TAIL, WIDE, branch_of, turn_of};
use super::copy_places::CopyPlaces;
use super::handed::FollowedRow;
use super::listing::Read;
use super::listing_memory::{Allowance, ListingMemory};
use super::tables::Files;
use crate::files::handed::NameRow;
use crate::inode::{Inode, InodeName};
use crate::pool::Pool;
use crate::tree::Tree;

/// Names that each listing may follow. Further ones take part of the memory of all listings; without that it ends as one that is
/// short.
const ALWAYS_FOLLOWED: usize = 10_000;
/// Entries of [`ListingMemory`] that a followed name takes: some 150 bytes.
const ENTRIES_OF_A_NAME: usize = 12;

/// Where a listing is when a name is about to move.
enum Seen {
    /// It has not come by the name.
    Ahead,
    /// It has passed by the name in the copy on this branch.
    Passed(BranchIx),
    /// The name means another object by now, which does not move.
    Other,
}

/// Names that a listing follows.
#[derive(Debug)]
pub(crate) struct Followed {
    /// The cookie of the last entry handed out.
    at: AtomicU64,
    /// When the listing began at the start of the directory. None: it goes on for a former daemon.
    since: Mutex<Option<Time>>,
    /// It may have been read from, also by the kernel without the daemon. What moved before then lies where one from the start finds it.
    has_begun: AtomicBool,
    /// There are some.
    any: AtomicBool,
    names: Mutex<FollowedNames>,
    /// Names that it comes to in the copy that it stands in.
    places: CopyPlaces,
}

#[derive(Debug)]
struct FollowedNames {
    /// In the order in which they are shown at the end.
    order: Vec<FollowedName>,
    positions: HashMap<Arc<CStr>, usize>,
    /// There were too many, or they are not known.
    lost: bool,
    memory: Allowance,
}

#[derive(Debug)]
struct FollowedName {
    name: Arc<CStr>,
    /// The copy that it was shown in, and a cookie that the listing had come to by then.
    shown: Option<(BranchIx, u64)>,
    /// Whether it was is being determined.
    asked: bool,
}

impl FollowedNames {
    fn new(memory: &Arc<ListingMemory>) -> Self {
        Self {
            order: Vec::new(),
            positions: HashMap::new(),
            lost: false,
            memory: Allowance::of(memory.clone()),
        }
    }

    /// No name is followed.
    fn begin_anew(&mut self) {
        self.order = Vec::new();
        self.positions = HashMap::new();
        self.lost = false;
        self.memory.shrink(0);
    }

    fn get(&mut self, name: &CStr) -> Option<&mut FollowedName> {
        let at = *self.positions.get(name)?;
        self.order.get_mut(at)
    }

    /// False if it is followed already, or cannot be. `is_read`: the listing has come to an entry; another one, which may never be
    /// read, takes no memory.
    fn add(&mut self, name: &Arc<CStr>, is_read: bool) -> bool {
        if self.lost || self.positions.contains_key(name) {
            return false;
        }
        let further = (self.order.len() + 1).saturating_sub(ALWAYS_FOLLOWED);
        if 0 < further && !is_read || !self.memory.covers(further * ENTRIES_OF_A_NAME) {
            self.begin_anew();
            self.lost = true;
            return false;
        }
        self.positions.insert(name.clone(), self.order.len());
        self.order.push(FollowedName { name: name.clone(), shown: None, asked: true });
        true
    }

    /// `name` is not followed after all. Its entry stays where others follow, which are counted by their cookies.
    fn lapse(&mut self, name: &CStr) {
        if let Some(at) = self.positions.remove(name)
            && at + 1 == self.order.len()
        {
            self.order.pop();
        }
    }
}

impl Followed {
    /// Names of a listing that begins.
    pub(crate) fn new(memory: &Arc<ListingMemory>) -> Self {
        Self { has_begun: AtomicBool::new(false), ..Self::going_on(memory) }
    }

    /// Names of a listing that goes on for a former daemon, beside which none had moved.
    pub(crate) fn going_on(memory: &Arc<ListingMemory>) -> Self {
        Self::of(FollowedNames::new(memory))
    }

    fn of(names: FollowedNames) -> Self {
        Self {
            at: AtomicU64::new(0),
            since: Mutex::new(None),
            has_begun: AtomicBool::new(true),
            any: AtomicBool::new(names.lost || !names.order.is_empty()),
            names: Mutex::new(names),
            places: CopyPlaces::default(),
        }
    }

    /// When the listing began at the start of the directory, if that is known.
    pub(crate) fn since(&self) -> Option<Time> {
        *self.since.lock()
    }

    /// Its row, for another program.
    pub(super) fn row(&self) -> FollowedRow {
        let names = self.names.lock();
        let row = |one: &FollowedName| (NameRow::of(one.name.to_bytes()), one.shown.map(|(at, _)| at.0));
        FollowedRow {
            at: self.at.load(SeqCst),
            lost: names.lost,
            names: names.order.iter().map(row).collect(),
        }
    }

    /// Names of a listing that followed some for a former daemon, which are not known: it ends as one that is short.
    pub(crate) fn lost(memory: &Arc<ListingMemory>) -> Self {
        Self::of(FollowedNames { lost: true, ..FollowedNames::new(memory) })
    }

    /// Names that `row` describes; None: a name is none.
    pub(super) fn of_row(row: &FollowedRow, memory: &Arc<ListingMemory>) -> Option<Self> {
        let mut names = FollowedNames::new(memory);
        for (name, shown) in &row.names {
            let name: Arc<CStr> = name.name()?.into();
            names.add(&name, true);
            let Some(one) = names.get(&name) else { break };
            (one.shown, one.asked) = (shown.map(|at| (BranchIx(at), row.at)), false);
        }
        names.lost |= row.lost;
        Some(Self { at: AtomicU64::new(row.at), ..Self::of(names) })
    }

    /// The listing has come to `cookie`.
    pub(crate) fn goes_on(&self, cookie: u64) {
        self.at.store(cookie, SeqCst);
    }

    /// It may be read from now on: whether that is new.
    fn begins(&self) -> bool {
        !self.has_begun.swap(true, SeqCst)
    }

    /// A request asks for what comes behind `cookie`. Of the last answer, the names `untaken` did not come to the program; None: it
    /// goes on elsewhere, as after seekdir(3). True: it begins, and is to follow what is just being moved.
    ///
    /// Names that it may show anew from there on are not shown yet. Of those that moved, it is not known exactly which: they may
    /// be repeated.
    fn resumes(&self, pool: &Pool, cookie: u64, untaken: Option<&[(u64, Box<CStr>)]>) -> bool {
        self.goes_on(cookie);
        // Before the moves are looked at: a move that is not among them then finds that it has begun.
        let begins = self.begins() || cookie == 0;
        if cookie == 0 {
            *self.since.lock() = Some(Time::coarse_now());
        }
        if cookie == 0 || untaken.is_none() {
            self.places.forget();
        }
        if !self.any.load(SeqCst) {
            return begins;
        }
        let mut names = self.names.lock();
        if cookie == 0 {
            names.begin_anew();
            return begins;
        }
        let Some(untaken) = untaken else {
            for one in &mut names.order {
                one.asked = false;
                one.shown.take_if(|(_, by)| comes_behind(pool, *by, cookie));
            }
            return begins;
        };
        for (_, name) in untaken {
            if let Some(one) = names.get(name) {
                (one.shown, one.asked) = (None, false);
            }
        }
        begins
    }

    /// Whether `name`, read in the copy on `branch`, was shown in another one.
    pub(crate) fn was_shown(&self, name: &CStr, branch: BranchIx) -> bool {
        self.any.load(SeqCst)
            && self.names.lock().get(name).and_then(|one| one.shown).is_some_and(|(shown, _)| shown != branch)
    }

    /// The entry `read` was come across: whether it is `shown`, or gone from there.
    pub(crate) fn came(&self, read: &Read, shown: bool) {
        if self.any.load(SeqCst)
            && let Some(one) = self.names.lock().get(&read.name)
        {
            (one.shown, one.asked) = (shown.then_some((read.at, read.cookie)), false);
        }
    }

    /// Names after `cookie` at the end: the first name that was not shown, and its cookie.
    ///
    /// A name of which that is still being determined was shown: the listing has read all copies, and has come across the name in
    /// the one that it has not left yet, before it was followed. Afterwards [`Self::came`] would have said so.
    ///
    /// # Errors
    /// There were more than can be followed.
    pub(crate) fn next(&self, cookie: u64) -> Result<Option<(Arc<CStr>, u64)>> {
        if !self.any.load(SeqCst) {
            return Ok(None);
        }
        let names = self.names.lock();
        if names.lost {
            return Err(OpError::UNSURE);
        }
        let from = if is_tail(cookie) { cookie - TAIL + 1 } else { 0 };
        let skipped = usize::try_from(from).unwrap_or(usize::MAX).min(names.order.len());
        let mut rest = (from..).zip(&names.order[skipped..]);
        let is_followed =
            |at: u64, one: &FollowedName| names.positions.get(&one.name).is_some_and(|of| *of as u64 == at);
        let left = rest.find(|(at, one)| one.shown.is_none() && !one.asked && is_followed(*at, one));
        Ok(left.map(|(at, one)| (one.name.clone(), TAIL + at)))
    }

    /// `name` is about to leave a branch; `seen` finds out whether the listing has passed by it, by the position that it has come to.
    fn follow(&self, name: &Arc<CStr>, seen: impl FnOnce(&Self, u64) -> Seen) {
        if !self.has_begun.load(SeqCst) {
            return;
        }
        let new = self.names.lock().add(name, self.at.load(SeqCst) != 0);
        // Later readers see that; earlier ones have published their position before they looked.
        self.any.store(true, SeqCst);
        if !new {
            return;
        }
        let at = self.at.load(SeqCst);
        let seen = seen(self, at);
        let mut names = self.names.lock();
        if let Seen::Other = seen {
            return names.lapse(name);
        }
        if let Some(one) = names.get(name)
            && std::mem::take(&mut one.asked)
            && let Seen::Passed(on) = seen
        {
            one.shown = Some((on, at));
        }
    }
}

impl DirHandle {
    /// Follows `name`, as [`Followed::follow`]; the next daemon learns of it before the name moves.
    fn follow(&self, name: &Arc<CStr>, seen: impl FnOnce(&Followed, u64) -> Seen) {
        if let Some(row) = &self.row {
            row.note_move();
        }
        self.followed.follow(name, seen);
    }
}

/// A name is being moved: listings that begin meanwhile follow it, too.
#[must_use = "it is followed by those only that began before, when this drops"]
pub(crate) struct FollowedMove<'a> {
    files: &'a Files,
    name: InodeName,
}

impl Drop for FollowedMove<'_> {
    fn drop(&mut self) {
        let mut moving = self.files.moving.lock();
        if let Some(at) = moving.iter().position(|name| name.is(&self.name.parent, &self.name.name)) {
            moving.swap_remove(at);
        }
        drop(moving);
        // Its cookie is another one now.
        self.name.parent.file_moves();
    }
}

impl Files {
    /// The file with the number `ino` on the branch `from` is about to leave it, with its `name`: listings of that directory show it
    /// once.
    pub(crate) fn listings_follow(
        &self,
        tree: &Tree,
        pool: &Pool,
        name: &InodeName,
        (from, ino): (BranchIx, u64),
    ) -> FollowedMove<'_> {
        let dir = &name.parent;
        // A program may have renamed it since the names were read. Asked once, if there are listings at all.
        let (asked, is_other) = (OnceCell::new(), || match tree.stat_in(pool, dir, from, &name.name) {
            Ok(there) => there.ino != ino,
            Err(error) => error.is_missing(),
        });
        self.follow(name, |listing, at| match *asked.get_or_init(is_other) {
            true => Seen::Other,
            false if self.has_passed((tree, pool), dir, (from, &name.name), (listing, at)) => {
                Seen::Passed(from)
            }
            false => Seen::Ahead,
        })
    }

    /// The directory `dir`, which has that name, is about to lose one of its copies: listings of the one above show it once.
    ///
    /// A listing has passed by a copy only if it was there then. That is known by its birth, on the listing's own clock.
    pub(crate) fn listings_follow_dir(
        &self,
        tree: &Tree,
        pool: &Pool,
        name: &InodeName,
        dir: &Arc<Inode>,
    ) -> FollowedMove<'_> {
        let birth = |on: BranchIx| {
            let branch = pool.branch(on);
            let fd = tree.dirfd(pool, dir, on).ok().filter(|_| branch.kind.is_local())?;
            branch.ask(|| sys::at::stat_fd(fd.as_fd())).ok()?.btime.map(|born| (on, born))
        };
        let (asked, births) =
            (OnceCell::new(), || dir.copies().into_iter().filter_map(birth).collect::<Vec<_>>());
        self.follow(name, |listing, at| {
            let has_passed = |(on, born): &&(BranchIx, Time)| {
                listing.since().is_some_and(|since| *born < since)
                    && self.has_passed((tree, pool), &name.parent, (*on, &name.name), (listing, at))
            };
            let passed = asked.get_or_init(births).iter().find(has_passed);
            passed.map_or(Seen::Ahead, |(on, _)| Seen::Passed(*on))
        })
    }

    fn follow(&self, name: &InodeName, seen: impl Fn(&Followed, u64) -> Seen) -> FollowedMove<'_> {
        self.moving.lock().push(name.clone());
        let dir = &name.parent;
        dir.file_moves();
        let listing = self.dirs.iter().filter(|open| Arc::ptr_eq(&open.inode, dir));
        let open: Vec<Arc<DirHandle>> = listing.map(|open| open.clone()).collect();
        for listing in open {
            listing.follow(&name.name, &seen);
        }
        FollowedMove { files: self, name: name.clone() }
    }

    /// The listing `open` goes on as in [`Followed::resumes`]; one that begins follows what is just being moved in its directory.
    pub(crate) fn listing_resumes(
        &self,
        pool: &Pool,
        open: &DirHandle,
        cookie: u64,
        untaken: Option<&[(u64, Box<CStr>)]>,
    ) {
        if open.followed.resumes(pool, cookie, untaken) {
            self.follow_moving(open);
        }
    }

    /// Decides by `keeps` whether the kernel may answer for the new handle `open` from a listing that it keeps. If so, names that move
    /// from now on are followed: the kernel may drop that listing, and ask in its middle.
    pub(crate) fn listing_is_kept(&self, open: &DirHandle, keeps: impl FnOnce() -> bool) {
        // Before the decision: a move that it does not see finds that the listing has begun.
        open.followed.has_begun.store(true, SeqCst);
        let is_kept = keeps();
        open.is_kept.store(is_kept, SeqCst);
        if is_kept {
            self.follow_moving(open);
        } else {
            open.followed.has_begun.store(false, SeqCst);
            open.followed.names.lock().begin_anew();
        }
    }

    fn follow_moving(&self, open: &DirHandle) {
        for name in self.moving.lock().iter().filter(|name| Arc::ptr_eq(&name.parent, &open.inode)) {
            open.follow(&name.name, |_, _| Seen::Ahead);
        }
    }

    /// Whether `listing`, which has come to `cookie`, has passed by `name` in the copy on the branch `from`.
    fn has_passed(
        &self,
        (tree, pool): (&Tree, &Pool),
        dir: &Arc<Inode>,
        (from, name): (BranchIx, &CStr),
        (listing, cookie): (&Followed, u64),
    ) -> bool {
        if cookie <= DOT_DOT || is_tail(cookie) {
            return is_tail(cookie);
        }
        // One that is short ends as such. One that is just going elsewhere has shown nothing there.
        let Some(turn) = turn_of(pool, cookie) else { return false };
        match turn.cmp(&pool.turn(from)) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => {
                let memory = [&self.listing_memory, &self.places_memory];
                !listing.places.comes((tree, memory), pool, dir, cookie, name).unwrap_or(true)
            }
        }
    }
}

/// Whether a listing that goes on behind `cookie` may come to the entry with the cookie `of`; true if that is not known.
fn comes_behind(pool: &Pool, of: u64, cookie: u64) -> bool {
    // The end comes behind all copies.
    if is_tail(of) || is_tail(cookie) {
        return is_tail(of) && (!is_tail(cookie) || cookie < of);
    }
    let (Some(turn), Some(from)) = (turn_of(pool, of), turn_of(pool, cookie)) else { return true };
    let is_hash = |cookie: u64| {
        let on = pool.branches.iter().find(|branch| Some(branch.id) == branch_of(cookie));
        cookie & WIDE != 0 && on.is_none_or(|on| on.kind != FsKind::LocalHashed)
    };
    from < turn || from == turn && (cookie < of || is_hash(of) || is_hash(cookie))
}

/// Whether the directory on the branch `on` was surely made after `since`: its birth may be ahead of the clock by a tick.
pub(super) fn is_younger(on: &Branch, dir: &Stat, since: Option<Time>) -> bool {
    let born = dir.btime.filter(|_| dir.is_dir() && on.kind.is_local());
    born.zip(since).is_some_and(|(born, since)| born > Time { sec: since.sec + 1, ..since })
}
