//! Walks the sources: makes directories, symbolic links and special files, and queues files in batches.

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fsstack_sync::mpsc::SyncSender;
use fsstack_sys::at::Mounts;
use fsstack_sys::dirents::Dirents;
use fsstack_sys::{self as sys, Errno, Kind, OFlags, Stat, SysError};

use super::batch::Batch;
use super::incoming::{DIFFERS, Item, Trouble};
use super::pair::{ITSELF, Pair};
use super::report::{CopyReport, Count};
use super::{Destination, Plan, metadata, open_path};
use crate::command::Failed;
use fsstack_control::registry::DirectoryId;

/// Maximum files of a batch, which are named and synced together.
const FILES: usize = 512;
/// Maximum bytes of a batch with more than one file.
const BYTES: u64 = 64 << 20;
/// Maximum directories that a batch keeps open.
const DIRS: usize = 64;

/// Reason for not copying a source.
const ON_BRANCH: &str = "it is on a branch of this pool, so it is in the pool already: copy it from there";

pub(super) struct Walker<'a> {
    plan: &'a Plan,
    into: Arc<Destination>,
    report: Arc<CopyReport>,
    send: SyncSender<Batch>,
    batch: Batch,
    bytes: u64,
    dirs: usize,
    /// Directories still to enter.
    ahead: Vec<(Arc<Pair>, CString)>,
    /// Directory of the last source, often that of the next one too.
    last: Option<(PathBuf, Arc<Pair>)>,
}

impl<'a> Walker<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        into: Arc<Destination>,
        report: Arc<CopyReport>,
        send: SyncSender<Batch>,
    ) -> Self {
        let (batch, ahead) = (Vec::new(), Vec::new());
        Self { plan, into, report, send, batch, bytes: 0, dirs: 0, ahead, last: None }
    }

    /// Walks all sources. No batch is queued after it returns.
    pub(super) fn walk(mut self) {
        for source in &self.plan.sources {
            let path = source.as_os_str().as_bytes();
            if let Err(why) = self.source(source) {
                self.report.fail(path, why);
            }
            while let Some((above, name)) = self.ahead.pop() {
                if self.report.is_stopped() {
                    return;
                }
                self.enter(&above, &name);
            }
        }
        self.hand_out();
    }

    /// Walks a source from the command line: the object itself, or with `/.` at the end its content.
    fn source(&mut self, source: &Path) -> Result<(), Trouble> {
        let raw = source.as_os_str().as_bytes();
        let whole = raw.ends_with(b"/.") || raw == b".";
        let followed = (!whole && raw.ends_with(b"/")).then(|| std::fs::canonicalize(source).ok()).flatten();
        let path = followed.as_deref().unwrap_or(source);
        match path.file_name().filter(|_| !whole) {
            Some(name) => {
                let name = CString::new(name.as_bytes()).unwrap_or_default();
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let pair = self.parent(parent)?;
                // A missing source is reported as such, not its parent.
                let kind = sys::at::stat(pair.source.as_fd(), &name)?.kind();
                self.entry(&pair, &name, Some(kind));
                Ok(())
            }
            None => {
                let dir = open_path(path)?;
                let own = sys::at::stat_fd(dir.as_fd())?;
                if (own.dev, own.ino) == (self.into.stat.dev, self.into.stat.ino) {
                    return Err(Trouble::Said(ITSELF));
                }
                self.check_past_branches(path)?;
                let pair = Arc::new(Pair::top(dir, raw, &self.into, &self.report)?);
                self.list(&pair);
                Ok(())
            }
        }
    }

    /// Returns the directory of a source from the command line.
    fn parent(&mut self, typed: Option<&Path>) -> Result<Arc<Pair>, Trouble> {
        let shown = typed.unwrap_or(Path::new(""));
        if let Some((_, pair)) = self.last.as_ref().filter(|(path, _)| path == shown) {
            return Ok(pair.clone());
        }
        let path = typed.unwrap_or(Path::new("."));
        let dir = open_path(path)?;
        self.check_past_branches(path)?;
        let pair = Arc::new(Pair::top(dir, shown.as_os_str().as_bytes(), &self.into, &self.report)?);
        self.last = Some((shown.to_owned(), pair.clone()));
        self.opened();
        Ok(pair)
    }

    /// Refuses a directory that is on a branch of the pool.
    fn check_past_branches(&self, dir: &Path) -> Result<(), Trouble> {
        let wrong = |error: std::io::Error| Trouble::Told(error.to_string());
        for above in std::fs::canonicalize(dir).map_err(wrong)?.ancestors() {
            let id = DirectoryId::at(above).map_err(wrong)?;
            if self.into.branches.contains(&id) {
                return Err(Trouble::Said(ON_BRANCH));
            }
        }
        Ok(())
    }

    /// Counts another directory that stays open until the batch is copied.
    fn opened(&mut self) {
        self.dirs += 1;
        if self.dirs >= DIRS {
            self.hand_out();
        }
    }

    fn enter(&mut self, above: &Arc<Pair>, name: &CStr) {
        match Pair::enter(above, name, &self.into) {
            Ok(pair) => self.list(&Arc::new(pair)),
            Err(why) => above.fail(name, why),
        }
    }

    fn list(&mut self, pair: &Arc<Pair>) {
        let entries = match entries(pair) {
            Ok(entries) => entries,
            Err(error) => return pair.fail_itself(Trouble::from(error)),
        };
        // By inode number, roughly the order on disk.
        for (_, name, kind) in entries {
            if self.report.is_stopped() {
                return;
            }
            self.entry(pair, &name, kind);
        }
        self.opened();
    }

    fn entry(&mut self, pair: &Arc<Pair>, name: &CStr, kind: Option<Kind>) {
        if let Err(why) = self.settle_entry(pair, name, kind) {
            pair.fail(name, why);
        }
    }

    fn settle_entry(&mut self, pair: &Arc<Pair>, name: &CStr, kind: Option<Kind>) -> Result<(), Trouble> {
        if kind == Some(Kind::Dir) {
            self.ahead.push((pair.clone(), name.to_owned()));
            return Ok(());
        }
        let stat = sys::at::stat(pair.source.as_fd(), name)?;
        match stat.kind() {
            Kind::Dir => self.ahead.push((pair.clone(), name.to_owned())),
            Kind::File => self.file(pair, name, stat.size),
            Kind::Symlink => self.symlink(pair, name, &stat)?,
            _ => self.node(pair, name, &stat)?,
        }
        Ok(())
    }

    fn file(&mut self, pair: &Arc<Pair>, name: &CStr, size: u64) {
        self.report.found(size);
        self.bytes = self.bytes.saturating_add(size);
        self.batch.push(Item { dir: pair.clone(), name: name.to_owned() });
        if self.batch.len() >= FILES || self.bytes >= BYTES {
            self.hand_out();
        }
    }

    fn hand_out(&mut self) {
        (self.bytes, self.dirs) = (0, 0);
        let batch = std::mem::take(&mut self.batch);
        if !batch.is_empty() && self.send.send(batch).is_err() && !self.report.is_stopped() {
            self.report.stop(Failed::Refused("no thread is left that copies".to_owned()));
        }
    }

    fn symlink(&self, pair: &Pair, name: &CStr, stat: &Stat) -> Result<(), Trouble> {
        let target = sys::at::readlink(pair.source.as_fd(), name)?;
        if let Some(there) = pair.already(name)? {
            let same = there.is_symlink()
                && sys::at::readlink(pair.target.as_fd(), name).is_ok_and(|other| other == target);
            return self.already(pair, name, (stat, &there), same);
        }
        let link = CString::new(target).map_err(|_| Trouble::Said("its target has a NUL"))?;
        sys::at::symlink(&link, pair.target.as_fd(), name)?;
        dress_made(pair, name, stat)?;
        self.report.count(Count::Symlinks);
        Ok(())
    }

    fn node(&self, pair: &Pair, name: &CStr, stat: &Stat) -> Result<(), Trouble> {
        let device = rustix::fs::makedev(stat.rdev_major, stat.rdev_minor);
        if let Some(there) = pair.already(name)? {
            let same = there.kind() == stat.kind()
                && (there.rdev_major, there.rdev_minor) == (stat.rdev_major, stat.rdev_minor);
            return self.already(pair, name, (stat, &there), same);
        }
        let kind = stat.mode & !0o7777;
        sys::at::mknod(pair.target.as_fd(), name, kind | 0o600, device)?;
        dress_made(pair, name, stat)?;
        self.report.count(Count::Others);
        Ok(())
    }

    fn already(
        &self,
        pair: &Pair,
        name: &CStr,
        (stat, there): (&Stat, &Stat),
        same: bool,
    ) -> Result<(), Trouble> {
        if !same {
            return Err(Trouble::Said(DIFFERS));
        }
        // Again, and to no effect, where the target stores times less exactly.
        if is_as_made(there) && there.mtime != stat.mtime {
            dress_made(pair, name, stat)?;
        }
        self.report.count(Count::AlreadyThere);
        Ok(())
    }
}

/// True if a link or special file lacks the original's attributes, as after a killed copy. Its times, which are set
/// last, are then those of its creation.
fn is_as_made(there: &Stat) -> bool {
    let mode = there.mode & 0o7777;
    there.uid == rustix::process::geteuid().as_raw()
        && there.nlink == 1
        && (there.is_symlink() || mode == 0o600)
}

/// Sets the attributes of a new object, unless another one has replaced it.
fn dress_made(pair: &Pair, name: &CStr, stat: &Stat) -> Result<(), SysError> {
    let made = sys::at::open(pair.target.as_fd(), name, OFlags::PATH, 0, Mounts::Stay)?;
    let own = sys::at::stat_fd(made.as_fd())?;
    if own.kind() != stat.kind() || own.uid != rustix::process::geteuid().as_raw() || own.nlink != 1 {
        return Err(SysError::new(sys::Call::Open, Errno::EXIST));
    }
    let from = sys::at::open(pair.source.as_fd(), name, OFlags::PATH, 0, Mounts::Cross)?;
    let now = sys::at::stat_fd(from.as_fd())?;
    if (now.dev, now.ino) != (stat.dev, stat.ino) {
        return Err(SysError::new(sys::Call::Open, Errno::STALE));
    }
    metadata::other(made.as_fd(), from.as_fd(), stat)
}

/// Reads inode number, name and type of each entry, sorted by inode number.
fn entries(pair: &Pair) -> Result<Vec<(u64, CString, Option<Kind>)>, SysError> {
    let dir = sys::at::reopen(pair.source.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut listing = Dirents::new(dir, 1 << 16);
    let mut all = Vec::new();
    while let Some(entry) = listing.next()? {
        if !matches!(entry.name.to_bytes(), b"." | b"..") {
            all.push((entry.ino, entry.name.to_owned(), entry.kind));
        }
    }
    all.sort_unstable_by_key(|(ino, ..)| *ino);
    Ok(all)
}
