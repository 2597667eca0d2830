//! A copying thread: takes a batch of files, reserves space, writes and syncs them, and gives them their names.
//!
//! Three races are handled. Another process creates one of the names: naming fails and the copy is removed. The
//! original changes while it is read: its attributes before and after differ, and the copy is removed. The branch fills
//! up despite the reservation, through out-of-band writes: the next branch is tried. A file gets its name only after
//! the sync of its batch, so a named file is complete after a power cut too.
//!
//! When the daemon is replaced (`fsstack upgrade`, or a death with `restart=keep`) the connection ends, and what was written and has
//! no name is gone with it. The thread connects again and begins its batch again, but for the files that have their names.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fsstack_control::copying::{CopyAnswer, CopyRequest, PlaceOrError, WantedDir, WantedFile};
use fsstack_control::{Client, ClientError, CopyClient};
use fsstack_engine::carry::is_same;
use fsstack_sync::Mutex;
use fsstack_sync::mpsc::Receiver;
use fsstack_sys::at::Mounts;
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError};

use super::content::Carry;
use super::incoming::{
    CHANGED, DIFFERS, Incoming, Item, Stage, Trouble, compare, in_stage, number_of, open_there, sync_alone,
};
use super::links::{Here, Links, NextStep};
use super::metadata::Freeze;
use super::report::{CopyReport, Count};
use super::staging::Staging;
use super::{Destination, metadata};
use crate::command::Failed;

/// How often a batch is begun again.
const RECONNECTS: u32 = 10;
/// Pause before another try to connect to the daemon.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// Up to this many files are synced one by one: syncing the whole file system may wait for other writers.
const FEW: usize = 4;

/// Files for one copying thread.
pub(super) type Batch = Vec<Item>;

/// Why a batch ends early.
enum BatchEnd {
    /// The connection has ended.
    Connection(Failed),
    /// No batch can be copied.
    Fatal(Failed),
}

impl From<Failed> for BatchEnd {
    fn from(why: Failed) -> Self {
        Self::Fatal(why)
    }
}

/// A copying thread.
pub(super) struct Worker {
    client: Client,
    daemon: CopyClient,
    into: Arc<Destination>,
    report: Arc<CopyReport>,
    verify: bool,
    places: Vec<Staging>,
    carry: Carry,
}

impl Worker {
    /// Connects to the daemon.
    ///
    /// # Errors
    /// It does not answer, or does not copy.
    pub(super) fn new(
        client: &Client,
        into: Arc<Destination>,
        report: Arc<CopyReport>,
        verify: bool,
    ) -> Result<Self, Failed> {
        let (daemon, client) = (client.copy()?, client.clone());
        Ok(Self { client, daemon, into, report, verify, places: Vec::new(), carry: Carry::default() })
    }

    /// Copies batches until the channel is closed.
    pub(super) fn work(&mut self, batches: &Mutex<Receiver<Batch>>, links: &Links) {
        loop {
            let next = batches.lock().recv();
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
        let mut files: Vec<Incoming> = batch
            .into_iter()
            .filter_map(|item| self.open(item, links).transpose())
            .filter_map(|opened| opened.map_err(|(item, why)| item.fail(why)).ok())
            .collect();
        let mut reconnects = 0;
        let mut ended = self.bring(&mut files, links);
        while let Err(end) = ended {
            match end {
                BatchEnd::Connection(_) if reconnects < RECONNECTS => {}
                BatchEnd::Connection(why) | BatchEnd::Fatal(why) => return Err(why),
            }
            reconnects += 1;
            self.places.clear();
            ended = match self.client.copy() {
                Ok(daemon) => {
                    self.daemon = daemon;
                    files.iter_mut().for_each(|file| self.begin_again(file, links));
                    self.bring(&mut files, links)
                }
                Err(error @ (ClientError::Dead(_) | ClientError::NoAnswer(..))) => {
                    fsstack_sync::thread::sleep(RECONNECT_PAUSE);
                    Err(BatchEnd::Connection(error.into()))
                }
                Err(error) => Err(Failed::from(error).into()),
            };
        }
        Ok(())
    }

    /// Brings the files of a batch into the pool; each is [`Stage::Over`] afterwards.
    fn bring(&mut self, files: &mut [Incoming], links: &Links) -> Result<(), BatchEnd> {
        loop {
            self.reserve(files, links)?;
            let mut failed = Vec::new();
            for file in in_stage(files, Stage::Placed) {
                match self.write(file) {
                    Ok(()) => file.stage = Stage::Written,
                    Err(why) => failed.push((file, why)),
                }
            }
            // If the daemon was replaced its place was gone, and it has not failed by itself.
            self.abandon(failed.iter().map(|(file, _)| file.id).collect())?;
            if failed.is_empty() {
                break;
            }
            for (file, why) in failed {
                file.to = None;
                if why.is_full() {
                    file.not_on.push(file.slot);
                    file.stage = Stage::Open;
                } else {
                    self.give_up(file, &why, links);
                }
            }
        }
        self.make_sure(files, links)?;
        self.name(files, links)
    }

    /// The file has no place any more. It may have got its name by a request that was not answered.
    fn begin_again(&self, file: &mut Incoming, links: &Links) {
        if file.stage == Stage::Over {
            return;
        }
        if file.stage != Stage::Open {
            self.report.found(file.stat.size);
        }
        file.may_be_named |= file.stage == Stage::Whole;
        (file.stage, file.to) = (Stage::Open, None);
        file.not_on.clear();
        self.ends_if_named(file, links);
    }

    /// Ends the copy of a file that got its name by a request that was not answered. False: it did not.
    fn ends_if_named(&self, file: &mut Incoming, links: &Links) -> bool {
        if !file.may_be_named {
            return false;
        }
        let Incoming { item, from, stat, .. } = &*file;
        let Ok(Some(there)) = item.dir.has_now(&item.name) else { return false };
        let Ok(ino) = self.same_there((item, stat, from), &there) else { return false };
        self.count_there((item, stat, from), ino, links);
        file.stage = Stage::Over;
        true
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
                self.count_there((&item, &stat, &from), ino, links);
                return Ok(None);
            }
            Err(why) => {
                self.settle(links, &stat, None);
                return Err((item, why));
            }
        }
        let (not_on, id, slot, to, flags, stage) = (Vec::new(), 0, 0, None, None, Stage::Open);
        let may_be_named = false;
        Ok(Some(Incoming { item, from, stat, not_on, id, slot, to, flags, stage, may_be_named }))
    }

    /// Counts a file that the pool has already, by the number `ino`, and makes its further links.
    fn count_there(&self, (item, stat, from): (&Item, &Stat, &OwnedFd), ino: u64, links: &Links) {
        self.report.passed(stat.size);
        self.report.count(Count::AlreadyThere);
        let below = item.dir.below_of(&item.name);
        let freeze = self.frozen_only_there(item, from, ino);
        self.settle(links, stat, Some(Here { below, ino, _freeze: freeze }));
    }

    /// Returns the pool's number of the file if the pool has it already.
    ///
    /// # Errors
    ///
    /// The pool has another object of that name.
    fn already(&self, item: &Item, stat: &Stat, from: &OwnedFd) -> Result<Option<u64>, Trouble> {
        let Some(there) = item.dir.already(&item.name)? else { return Ok(None) };
        self.same_there((item, stat, from), &there).map(Some)
    }

    /// The pool's number of the file, if `there`, which has its name, is a copy of it.
    ///
    /// # Errors
    ///
    /// It is another object.
    fn same_there(&self, (item, stat, from): (&Item, &Stat, &OwnedFd), there: &Stat) -> Result<u64, Trouble> {
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
        Ok(there.ino)
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

    /// Reserves places for the files that need one.
    fn reserve(&mut self, files: &mut [Incoming], links: &Links) -> Result<(), BatchEnd> {
        let mut open: Vec<&mut Incoming> = in_stage(files, Stage::Open).collect();
        if open.is_empty() {
            return Ok(());
        }
        let mut dirs: Vec<WantedDir> = Vec::new();
        for file in &open {
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
            return Err(strange().into());
        };
        for place in places {
            match Staging::open(&place) {
                Ok(staging) => self.places.push(staging),
                Err(why) => {
                    // If the daemon was replaced the directory has gone with the connection.
                    self.ask(&CopyRequest::Abandon { ids: Vec::new() })?;
                    return Err(why.into());
                }
            }
        }
        for (file, answer) in open.iter_mut().zip(answers) {
            match answer {
                PlaceOrError::Place { id, branch } => {
                    (file.id, file.slot, file.stage) = (id, branch, Stage::Placed);
                }
                PlaceOrError::Error(error) => self.give_up(file, &Trouble::Told(error.text), links),
            }
        }
        Ok(())
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

    /// Syncs and checks what is written.
    fn make_sure(&mut self, files: &mut [Incoming], links: &Links) -> Result<(), BatchEnd> {
        let on = |staging: &Staging| {
            files.iter().filter(|file| file.stage == Stage::Written && file.slot == staging.slot).count()
        };
        let synced: Vec<(u16, Option<SysError>)> = self
            .places
            .iter()
            .filter(|staging| staging.local && on(staging) > FEW)
            .map(|staging| (staging.slot, sys::file::syncfs(staging.dir.as_fd()).err()))
            .collect();
        let mut failed = Vec::new();
        for file in in_stage(files, Stage::Written) {
            let sure = match synced.iter().find(|(slot, _)| *slot == file.slot) {
                Some((_, Some(error))) => Err(Trouble::Sys(*error)),
                Some((_, None)) => Ok(()),
                None => sync_alone(file),
            };
            match sure.and_then(|()| if self.verify { compare(file) } else { Ok(()) }) {
                Ok(()) => file.stage = Stage::Whole,
                Err(why) => failed.push((file, why)),
            }
        }
        self.abandon(failed.iter().map(|(file, _)| file.id).collect())?;
        for (file, why) in failed {
            self.give_up(file, &why, links);
        }
        Ok(())
    }

    /// Gives the files their names that are on disk.
    fn name(&mut self, files: &mut [Incoming], links: &Links) -> Result<(), BatchEnd> {
        let mut whole: Vec<&mut Incoming> = in_stage(files, Stage::Whole).collect();
        if whole.is_empty() {
            return Ok(());
        }
        let ids = whole.iter().map(|file| file.id).collect();
        let CopyAnswer::Committed { errors } = self.ask(&CopyRequest::Commit { ids })? else {
            return Err(strange().into());
        };
        let mut sums = vec![(0, 0); self.places.len()];
        for (file, error) in whole.iter_mut().zip(errors) {
            match error {
                None => {
                    let at = self.places.iter().position(|staging| staging.slot == file.slot);
                    if let Some(sum) = at.and_then(|at| sums.get_mut(at)) {
                        *sum = (sum.0 + 1, sum.1 + file.stat.size);
                    }
                    self.named(file, links);
                }
                Some(error) if error.errno == Errno::EXIST.raw_os_error() => {
                    if !self.ends_if_named(file, links) {
                        self.give_up(file, &Trouble::Said(DIFFERS), links);
                    }
                }
                Some(error) => self.give_up(file, &Trouble::Told(error.text), links),
            }
        }
        for (staging, (files, bytes)) in self.places.iter().zip(sums).filter(|(_, (files, _))| *files > 0) {
            self.report.named(&staging.shown, files, bytes);
        }
        Ok(())
    }

    fn named(&self, file: &mut Incoming, links: &Links) {
        self.report.count(Count::Files);
        file.stage = Stage::Over;
        let Some(to) = file.to.take() else { return };
        let Incoming { item, stat, flags, .. } = &*file;
        // The name may mean another object by now, which must get no further link.
        let ino = (stat.nlink > 1).then(|| number_of(item, &to));
        let path = item.dir.path_of(&item.name);
        let freeze = flags.map(|flags| Freeze { file: to, flags, path, report: self.report.clone() });
        match ino {
            None => {}
            Some(Ok(ino)) => {
                let below = item.dir.below_of(&item.name);
                self.settle(links, stat, Some(Here { below, ino, _freeze: freeze }));
            }
            Some(Err(why)) => {
                item.fail(why);
                self.settle(links, stat, None);
            }
        }
    }

    fn give_up(&self, file: &mut Incoming, why: &Trouble, links: &Links) {
        (file.stage, file.to) = (Stage::Over, None);
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

    fn abandon(&mut self, ids: Vec<u64>) -> Result<(), BatchEnd> {
        if ids.is_empty() {
            return Ok(());
        }
        self.ask(&CopyRequest::Abandon { ids }).map(drop)
    }

    fn ask(&mut self, request: &CopyRequest) -> Result<CopyAnswer, BatchEnd> {
        match self.daemon.ask(request) {
            Ok(CopyAnswer::Refused { error }) => {
                Err(Failed::Refused(format!("the daemon refuses: {error}")).into())
            }
            Ok(answer) => Ok(answer),
            Err(error @ ClientError::Dead(_)) => Err(BatchEnd::Connection(error.into())),
            Err(error) => Err(Failed::from(error).into()),
        }
    }
}

const NOWHERE: &str = "the daemon gave no place for it";

pub(super) fn strange() -> Failed {
    Failed::Dead("the daemon answers something else than it was asked: another version?".to_owned())
}
