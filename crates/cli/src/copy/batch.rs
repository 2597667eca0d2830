//! A copying thread: takes a batch of files, reserves space, writes and syncs them, and gives them their names.
//!
//! Three races are handled. Another process creates one of the names: naming fails and the copy is removed. The
//! original changes while it is read: its attributes before and after differ, and the copy is removed. The branch fills
//! up despite the reservation, through out-of-band writes: the next branch is tried. A file gets its name only after
//! the sync of its batch, so a named file is complete after a power cut too.

use std::ffi::CString;
use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use fsstack_control::CopyClient;
use fsstack_control::copying::{CopyAnswer, CopyRequest, PlaceOrError, WantedDir, WantedFile};
use fsstack_engine::carry::is_same;
use fsstack_sys::at::Mounts;
use fsstack_sys::{self as sys, Call, Errno, OFlags, Stat, SysError};

use super::content::Carry;
use super::links::{Here, Links, NextStep};
use super::metadata::Freeze;
use super::pair::Pair;
use super::report::{CopyReport, Count};
use super::staging::Staging;
use super::{Destination, metadata};
use crate::command::Failed;

/// Up to this many files are synced one by one: syncing the whole file system may wait for other writers.
const FEW: usize = 4;

/// Reason for not replacing an existing object.
pub(super) const DIFFERS: &str = "the pool has another one of that name: remove one of them";

/// Files for one copying thread.
pub(super) type Batch = Vec<Item>;

/// A file to copy.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) dir: Arc<Pair>,
    pub(super) name: CString,
}

impl Item {
    /// Records that it is not copied.
    fn fail(&self, why: impl Display) {
        self.dir.fail(&self.name, why);
    }
}

/// A file being copied.
struct Incoming {
    item: Item,
    from: OwnedFd,
    stat: Stat,
    not_on: Vec<u16>,
    id: u64,
    slot: u16,
    to: Option<OwnedFd>,
    /// Flags to set after it has its name.
    flags: Option<u32>,
}

/// Reason why a file is not copied.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("{}", .0.errno)]
    Sys(SysError),
    #[error("{0}")]
    Said(&'static str),
    #[error("{0}")]
    Told(String),
}

impl From<SysError> for Trouble {
    fn from(error: SysError) -> Self {
        Self::Sys(error)
    }
}

impl Trouble {
    /// True if another branch may have room.
    fn is_full(&self) -> bool {
        matches!(self, Self::Sys(error) if matches!(error.errno, Errno::NOSPC | Errno::DQUOT))
    }
}

/// A copying thread.
pub(super) struct Worker {
    daemon: CopyClient,
    into: Arc<Destination>,
    report: Arc<CopyReport>,
    verify: bool,
    places: Vec<Staging>,
    carry: Carry,
}

impl Worker {
    pub(super) fn new(
        daemon: CopyClient,
        into: Arc<Destination>,
        report: Arc<CopyReport>,
        verify: bool,
    ) -> Self {
        Self { daemon, into, report, verify, places: Vec::new(), carry: Carry::default() }
    }

    /// Copies batches until the channel is closed.
    pub(super) fn work(&mut self, batches: &Mutex<Receiver<Batch>>, links: &Links) {
        loop {
            let next = batches.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(batch) = next else { break };
            // A failed worker keeps taking batches, so that the walk never waits for ever.
            if !self.report.is_stopped()
                && let Err(fatal) = self.copy(batch, links)
            {
                self.report.stop(fatal);
            }
        }
    }

    /// # Errors
    /// Returns an error only if the daemon is gone.
    fn copy(&mut self, batch: Batch, links: &Links) -> Result<(), Failed> {
        let mut left: Vec<Incoming> = batch
            .into_iter()
            .filter_map(|item| self.open(item, links).transpose())
            .filter_map(|opened| opened.map_err(|(item, why)| item.fail(why)).ok())
            .collect();
        let mut written = Vec::with_capacity(left.len());
        while !left.is_empty() {
            let (mut again, mut gone) = (Vec::new(), Vec::new());
            for mut file in self.reserve(left, links)? {
                match self.write(&mut file) {
                    Ok(()) => written.push(file),
                    Err(why) => {
                        gone.push(file.id);
                        file.to = None;
                        if why.is_full() {
                            file.not_on.push(file.slot);
                            again.push(file);
                        } else {
                            self.give_up(file, &why, links);
                        }
                    }
                }
            }
            self.abandon(gone)?;
            left = again;
        }
        let whole = self.make_sure(written, links)?;
        self.name(whole, links)
    }

    /// Opens a file and its original. `None` if there is nothing to copy.
    fn open(&self, item: Item, links: &Links) -> Result<Option<Incoming>, (Item, Trouble)> {
        let how = OFlags::RDONLY | OFlags::NONBLOCK;
        let opened = sys::at::open(item.dir.source.as_fd(), &item.name, how, 0, Mounts::Cross)
            .and_then(|from| Ok((sys::at::stat_fd(from.as_fd())?, from)));
        let (stat, from) = match opened {
            Ok(opened) => opened,
            Err(error) => return Err((item, error.into())),
        };
        if !stat.is_file() {
            return Err((item, Trouble::Said(CHANGED)));
        }
        let item = match stat.nlink {
            0 | 1 => item,
            _ => match links.meet(&stat, item) {
                NextStep::Copy(item) => item,
                NextStep::Link(item, first) => {
                    self.link(&item, &first);
                    return Ok(None);
                }
                NextStep::Wait => return Ok(None),
            },
        };
        match self.already(&item, &stat, &from) {
            Ok(None) => {}
            Ok(Some(ino)) => {
                self.report.passed(stat.size);
                self.report.count(Count::AlreadyThere);
                let below = item.dir.below_of(&item.name);
                let freeze = self.frozen_only_there(&item, &from, ino);
                self.settle(links, &stat, Some(Here { below, ino, _freeze: freeze }));
                return Ok(None);
            }
            Err(why) => {
                self.settle(links, &stat, None);
                return Err((item, why));
            }
        }
        let (not_on, id, slot, to, flags) = (Vec::new(), 0, 0, None, None);
        Ok(Some(Incoming { item, from, stat, not_on, id, slot, to, flags }))
    }

    /// Returns the pool's number of the file if the pool has it already.
    ///
    /// # Errors
    ///
    /// The pool has another object of that name.
    fn already(&self, item: &Item, stat: &Stat, from: &OwnedFd) -> Result<Option<u64>, Trouble> {
        let Some(there) = item.dir.already(&item.name)? else { return Ok(None) };
        let coarse = stat.mtime.nsec == 0 || there.mtime.nsec == 0;
        let as_old = there.mtime.sec == stat.mtime.sec && (coarse || there.mtime.nsec == stat.mtime.nsec);
        if !there.is_file() || there.size != stat.size || !as_old {
            return Err(Trouble::Said(DIFFERS));
        }
        if self.verify {
            let Some(other) = open_there(item, there.ino)? else { return Err(Trouble::Said(DIFFERS)) };
            if !is_same(from.as_fd(), other.as_fd())? {
                return Err(Trouble::Said("the pool has one of that size and time, with other content"));
            }
        }
        Ok(Some(there.ino))
    }

    /// Flags of the original that an existing copy lacks: a killed copy had not yet set them.
    fn frozen_only_there(&self, item: &Item, from: &OwnedFd, there: u64) -> Option<Freeze> {
        let flags = sys::ioctl::getflags(from.as_fd()).unwrap_or(0) & sys::ioctl::FREEZING;
        if flags == 0 {
            return None;
        }
        let file = open_there(item, there).ok()??;
        let there = sys::ioctl::getflags(file.as_fd()).unwrap_or(0);
        let path = item.dir.path_of(&item.name);
        (flags & !there != 0).then(|| Freeze { file, flags, path, report: self.report.clone() })
    }

    /// Reserves space; returns the files that have it.
    fn reserve(&mut self, files: Vec<Incoming>, links: &Links) -> Result<Vec<Incoming>, Failed> {
        let mut dirs: Vec<WantedDir> = Vec::new();
        for file in &files {
            let ino = file.item.dir.ino;
            if dirs.last().is_none_or(|dir| dir.ino != ino) {
                dirs.push(WantedDir { ino, files: Vec::new() });
            }
            let wanted = WantedFile {
                name: file.item.name.to_bytes().to_vec(),
                size: file.stat.blocks.saturating_mul(512).min(file.stat.size),
                not_on: file.not_on.clone(),
            };
            if let Some(dir) = dirs.last_mut() {
                dir.files.push(wanted);
            }
        }
        let CopyAnswer::Reserved { places, files: answers } = self.ask(&CopyRequest::Reserve { dirs })?
        else {
            return Err(strange());
        };
        for staging in places {
            self.places.push(Staging::open(&staging)?);
        }
        let mut placed = Vec::with_capacity(files.len());
        for (mut file, answer) in files.into_iter().zip(answers) {
            match answer {
                PlaceOrError::Place { id, branch } => {
                    (file.id, file.slot) = (id, branch);
                    placed.push(file);
                }
                PlaceOrError::Error(error) => self.give_up(file, &Trouble::Told(error.text), links),
            }
        }
        Ok(placed)
    }

    fn write(&mut self, file: &mut Incoming) -> Result<(), Trouble> {
        let staging =
            self.places.iter().find(|staging| staging.slot == file.slot).ok_or(Trouble::Said(NOWHERE))?;
        let name = CString::new(file.id.to_string()).unwrap_or_default();
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let to = sys::at::open(staging.dir.as_fd(), &name, how, 0o600, Mounts::Stay)?;
        let from = file.from.as_fd();
        let inode_flags = metadata::begin(to.as_fd(), from)?;
        self.carry.copy(from, to.as_fd(), &file.stat, staging, &self.report)?;
        file.flags = metadata::file(to.as_fd(), from, &file.stat, &inode_flags)?;
        let now = sys::at::stat_fd(from)?;
        if (now.size, now.mtime, now.ctime) != (file.stat.size, file.stat.mtime, file.stat.ctime) {
            return Err(Trouble::Said(CHANGED));
        }
        file.to = Some(to);
        Ok(())
    }

    /// Syncs and checks; returns the files that are complete on disk.
    fn make_sure(&mut self, files: Vec<Incoming>, links: &Links) -> Result<Vec<Incoming>, Failed> {
        let mut whole = Vec::with_capacity(files.len());
        let mut gone = Vec::new();
        let synced: Vec<(u16, Option<SysError>)> = self
            .places
            .iter()
            .filter(|staging| {
                files.iter().filter(|file| file.slot == staging.slot).count() > FEW && staging.local
            })
            .map(|staging| (staging.slot, sys::file::syncfs(staging.dir.as_fd()).err()))
            .collect();
        for file in files {
            let sure = match synced.iter().find(|(slot, _)| *slot == file.slot) {
                Some((_, Some(error))) => Err(Trouble::Sys(*error)),
                Some((_, None)) => Ok(()),
                None => sync_alone(&file),
            };
            match sure.and_then(|()| if self.verify { compare(&file) } else { Ok(()) }) {
                Ok(()) => whole.push(file),
                Err(why) => {
                    gone.push(file.id);
                    self.give_up(file, &why, links);
                }
            }
        }
        self.abandon(gone)?;
        Ok(whole)
    }

    fn name(&mut self, files: Vec<Incoming>, links: &Links) -> Result<(), Failed> {
        if files.is_empty() {
            return Ok(());
        }
        let ids = files.iter().map(|file| file.id).collect();
        let CopyAnswer::Committed { errors } = self.ask(&CopyRequest::Commit { ids })? else {
            return Err(strange());
        };
        let mut sums = vec![(0, 0); self.places.len()];
        for (file, error) in files.into_iter().zip(errors) {
            match error {
                None => {
                    let at = self.places.iter().position(|staging| staging.slot == file.slot);
                    if let Some(sum) = at.and_then(|at| sums.get_mut(at)) {
                        *sum = (sum.0 + 1, sum.1 + file.stat.size);
                    }
                    self.named(file, links);
                }
                Some(error) if error.errno == Errno::EXIST.raw_os_error() => {
                    self.give_up(file, &Trouble::Said(DIFFERS), links);
                }
                Some(error) => self.give_up(file, &Trouble::Told(error.text), links),
            }
        }
        for (staging, (files, bytes)) in self.places.iter().zip(sums).filter(|(_, (files, _))| *files > 0) {
            self.report.named(&staging.shown, files, bytes);
        }
        Ok(())
    }

    fn named(&self, file: Incoming, links: &Links) {
        self.report.count(Count::Files);
        let Incoming { item, stat, to: Some(to), flags, .. } = file else { return };
        // The name may mean another object by now, which must get no further link.
        let ino = (stat.nlink > 1).then(|| number_of(&item, &to));
        let path = item.dir.path_of(&item.name);
        let freeze = flags.map(|flags| Freeze { file: to, flags, path, report: self.report.clone() });
        match ino {
            None => {}
            Some(Ok(ino)) => {
                let below = item.dir.below_of(&item.name);
                self.settle(links, &stat, Some(Here { below, ino, _freeze: freeze }));
            }
            Some(Err(why)) => {
                item.fail(why);
                self.settle(links, &stat, None);
            }
        }
    }

    fn give_up(&self, file: Incoming, why: &Trouble, links: &Links) {
        file.item.fail(why);
        self.settle(links, &file.stat, None);
    }

    /// Handles the further names of a file after its first name succeeded or failed.
    fn settle(&self, links: &Links, stat: &Stat, came: Option<Here>) {
        if stat.nlink < 2 {
            return;
        }
        let first = came.map(Arc::new);
        for waiting in links.settle(stat, first.clone()) {
            match &first {
                Some(first) => self.link(&waiting, first),
                None => waiting.fail("another name of this file could not be copied"),
            }
        }
    }

    fn link(&self, item: &Item, first: &Here) {
        match first.link(self.into.fd.as_fd(), item) {
            Ok(what) => self.report.count(what),
            Err(why) => item.fail(why),
        }
    }

    fn abandon(&mut self, ids: Vec<u64>) -> Result<(), Failed> {
        if ids.is_empty() {
            return Ok(());
        }
        self.ask(&CopyRequest::Abandon { ids }).map(drop)
    }

    fn ask(&mut self, request: &CopyRequest) -> Result<CopyAnswer, Failed> {
        match self.daemon.ask(request)? {
            CopyAnswer::Refused { error } => Err(Failed::Refused(format!("the daemon refuses: {error}"))),
            answer => Ok(answer),
        }
    }
}

/// Returns the pool's number of the file just named, if the name still means it.
fn number_of(item: &Item, to: &OwnedFd) -> Result<u64, Trouble> {
    let (named, own) = (sys::at::stat(item.dir.target.as_fd(), &item.name)?, sys::at::stat_fd(to.as_fd())?);
    let looks = |stat: &Stat| (stat.mode, stat.uid, stat.gid, stat.size, stat.mtime);
    match looks(&named) == looks(&own) {
        true => Ok(named.ino),
        false => Err(Trouble::Said("another program has replaced it meanwhile: copy it again")),
    }
}

const CHANGED: &str = "it changed while it was read: copy it again";
const NOWHERE: &str = "the daemon gave no place for it";

pub(super) fn strange() -> Failed {
    Failed::Dead("the daemon answers something else than it was asked: another version?".to_owned())
}

/// Opens the file that the pool has under the name, if it is still the one numbered `ino`: in a directory of another user it may be
/// anything by now, a fifo too.
fn open_there(item: &Item, ino: u64) -> Result<Option<OwnedFd>, SysError> {
    let how = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = sys::at::open(item.dir.target.as_fd(), &item.name, how, 0, Mounts::Stay)?;
    let stat = sys::at::stat_fd(file.as_fd())?;
    Ok(Some(file).filter(|_| stat.is_file() && stat.ino == ino))
}

/// Syncs one file. A remote branch may report a failed write only at close.
fn sync_alone(file: &Incoming) -> Result<(), Trouble> {
    let Some(to) = &file.to else { return Err(SysError::new(Call::Fsync, Errno::BADF).into()) };
    sys::file::fsync(to.as_fd())?;
    sys::file::flush(to.as_fd())?;
    Ok(())
}

/// Compares with the content on disk, not in the page cache.
fn compare(file: &Incoming) -> Result<(), Trouble> {
    let Some(to) = &file.to else { return Err(SysError::new(Call::Read, Errno::BADF).into()) };
    sys::file::drop_cached(to.as_fd())?;
    match is_same(file.from.as_fd(), to.as_fd())? {
        true => Ok(()),
        false => Err(Trouble::Said("what was written reads back as something else: the branch is at fault")),
    }
}
