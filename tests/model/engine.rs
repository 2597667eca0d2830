//! The engine on temporary directories, with requests by path. It looks names up and applies the kernel's own rules, so
//! that it answers like a mounted pool.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fsstack_engine::answer::{Entry, Listed};
use fsstack_engine::files::route::NoBackings;
use fsstack_engine::ops::{Change, New, Sink, WriteTerms};
use fsstack_engine::settings::{Relocation, Settings, Verify};
use fsstack_engine::{Caller, Pool, Union};
use fsstack_pool::{BranchSpec, EntryNameBuf, Handle, Ino};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{Errno, Kind, OFlags, identity};

/// Result of a request.
pub(crate) type Answer<T> = Result<T, Errno>;

/// A pool, and the state that the kernel would keep.
pub(crate) struct Engine {
    pub(crate) union: Arc<Union>,
    specs: Vec<BranchSpec>,
    settings: Settings,
    /// Lookups that the kernel holds.
    lookups: RefCell<BTreeMap<u64, u64>>,
}

/// Placement `create`, no floors; out-of-band changes are noticed at once.
pub(crate) fn settings(create: &str) -> Settings {
    Settings {
        create: create.parse().unwrap(),
        relocate: true,
        relocation: Relocation { verify: Verify::Content, ..Relocation::to_the_roomiest() },
        privileged: identity::is_root(),
        dir_fds: 64,
        branch_timeout: Duration::ZERO,
        ..Settings::plain()
    }
}

impl Engine {
    /// A pool of these directories.
    pub(crate) fn over<'a>(branches: impl Iterator<Item = &'a Path>, settings: Settings) -> Self {
        identity::keep_capabilities().unwrap();
        Self::of(branches.map(|path| BranchSpec::new(path.to_owned())).collect(), settings)
    }

    /// A pool of these branches.
    pub(crate) fn of(specs: Vec<BranchSpec>, settings: Settings) -> Self {
        identity::keep_capabilities().unwrap();
        let union = mount(&specs, &settings);
        Self { union, specs, settings, lookups: RefCell::default() }
    }

    /// Replaces the daemon, as after a crash.
    pub(crate) fn crash(&mut self) {
        self.lookups.take();
        self.union.destroy();
        self.union = mount(&self.specs, &self.settings);
    }

    /// Forgets all lookups.
    pub(crate) fn forget_all(&self) {
        for (ino, count) in self.lookups.take() {
            self.union.forget(Ino(ino), count);
        }
    }

    /// Forgets all lookups, checks that the tables are empty, then acts like [`Self::crash`].
    pub(crate) fn remount(&mut self) {
        self.forget_all();
        identity::become_daemon().unwrap();
        assert_eq!(
            self.union.held(),
            fsstack_engine::TableCounts::default(),
            "something is left in the tables"
        );
        self.crash();
    }

    fn hold(&self, entry: Entry) -> Entry {
        *self.lookups.borrow_mut().entry(entry.ino.0).or_default() += 1;
        entry
    }

    fn lookup(&self, parent: Ino, name: &EntryNameBuf) -> Answer<Entry> {
        self.union.lookup(parent, name.as_name()).map(|entry| self.hold(entry)).map_err(|e| e.errno())
    }

    /// Object at `path`; not for the root.
    pub(crate) fn find(&self, path: &Path) -> Answer<Entry> {
        let (parent, name) = self.split(path)?;
        self.lookup(parent, &name)
    }

    /// Number of the object at `path`; empty for the root.
    pub(crate) fn ino(&self, path: &Path) -> Answer<Ino> {
        if path.as_os_str().is_empty() { Ok(Ino::ROOT) } else { self.find(path).map(|entry| entry.ino) }
    }

    fn split(&self, path: &Path) -> Answer<(Ino, EntryNameBuf)> {
        let name = EntryNameBuf::from_bytes(path.file_name().unwrap().as_bytes()).unwrap();
        Ok((self.ino(path.parent().unwrap())?, name))
    }

    /// Parent and name for a new object.
    fn vacant(&self, path: &Path) -> Answer<(Ino, EntryNameBuf)> {
        let (parent, name) = self.split(path)?;
        match self.lookup(parent, &name) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => Ok((parent, name)),
            Err(error) => Err(error),
        }
    }

    /// Target of a path that may end in a symlink: these tests' links are dangling.
    fn followed(&self, path: &Path) -> Answer<Entry> {
        let entry = self.find(path)?;
        if entry.attr.stat.kind() == Kind::Symlink { Err(Errno::NOENT) } else { Ok(entry) }
    }

    /// open(2) with `O_CREAT | O_EXCL`.
    pub(crate) fn create(&self, path: &Path, mode: u32) -> Answer<()> {
        let (parent, name) = self.vacant(path)?;
        let flags = OFlags::WRONLY | OFlags::EXCL;
        let made = self.union.create(parent, name.as_name(), mode, flags, Caller::DAEMON);
        let made = made.map_err(|e| e.errno())?;
        self.hold(made.entry);
        self.union.release(made.opened.handle);
        Ok(())
    }

    /// mkdir(2), symlink(2).
    pub(crate) fn make(&self, path: &Path, new: New<'_>) -> Answer<()> {
        let (parent, name) = self.vacant(path)?;
        let made = self.union.make(parent, name.as_name(), new, Caller::DAEMON);
        self.hold(made.map_err(|e| e.errno())?);
        Ok(())
    }

    /// link(2).
    pub(crate) fn link(&self, from: &Path, to: &Path) -> Answer<()> {
        let from = self.find(from)?;
        let (parent, name) = self.vacant(to)?;
        let linked = self.union.link(from.ino, parent, name.as_name());
        self.hold(linked.map_err(|e| e.errno())?);
        Ok(())
    }

    /// Opens a file. The handle must be released.
    pub(crate) fn open(&self, path: &Path, flags: OFlags) -> Answer<Handle> {
        let entry = self.followed(path)?;
        if entry.attr.stat.is_dir() {
            return Err(Errno::ISDIR);
        }
        let opened = self.union.open(entry.ino, flags, Caller::DAEMON);
        opened.map(|opened| opened.handle).map_err(|e| e.errno())
    }

    /// Opens, writes at `offset` (`None` appends), closes.
    pub(crate) fn write(&self, path: &Path, offset: Option<u64>, bytes: &[u8]) -> Answer<()> {
        let handle = self.open(path, OFlags::WRONLY)?;
        let written = offset
            .map_or_else(|| self.find(path).map(|entry| entry.attr.stat.size), Ok)
            .and_then(|at| self.union.write(handle, at, bytes, WriteTerms::default()).map_err(|e| e.errno()));
        self.union.release(handle);
        // After a short write, another one returns the reason.
        if written? == bytes.len() { Ok(()) } else { Err(Errno::NOSPC) }
    }

    /// The whole content.
    pub(crate) fn read(&self, path: &Path) -> Answer<Vec<u8>> {
        let handle = self.open(path, OFlags::RDONLY)?;
        let mut bytes = vec![0; 1 << 18];
        let read = self.union.read(handle, 0, &mut bytes).map_err(|e| e.errno());
        self.union.release(handle);
        bytes.truncate(read?);
        Ok(bytes)
    }

    /// Copies all of a file over the beginning of another.
    pub(crate) fn copy_range(&self, from: &Path, to: &Path) -> Answer<()> {
        let source = self.open(from, OFlags::RDONLY)?;
        let copied = self.open(to, OFlags::WRONLY).and_then(|target| {
            let copied = self.copy_all(source, target);
            self.union.release(target);
            copied
        });
        self.union.release(source);
        copied
    }

    fn copy_all(&self, from: Handle, to: Handle) -> Answer<()> {
        let mut at = 0;
        loop {
            let copied = self.union.copy_range((from, at), (to, at), 1 << 20, Caller::DAEMON);
            match copied.map_err(|e| e.errno())? {
                0 => return Ok(()),
                copied => at += copied,
            }
        }
    }

    /// chmod(2), truncate(2) and others.
    pub(crate) fn setattr(&self, path: &Path, change: Change) -> Answer<()> {
        let entry = self.followed(path)?;
        if change.size.is_some() && entry.attr.stat.is_dir() {
            return Err(Errno::ISDIR);
        }
        self.union.setattr(entry.ino, None, change, Caller::DAEMON).map(drop).map_err(|e| e.errno())
    }

    /// unlink(2).
    pub(crate) fn unlink(&self, path: &Path) -> Answer<()> {
        if self.find(path)?.attr.stat.is_dir() {
            return Err(Errno::ISDIR);
        }
        let (parent, name) = self.split(path)?;
        self.union.unlink(parent, name.as_name()).map_err(|e| e.errno())
    }

    /// rmdir(2).
    pub(crate) fn rmdir(&self, path: &Path) -> Answer<()> {
        if !self.find(path)?.attr.stat.is_dir() {
            return Err(Errno::NOTDIR);
        }
        let (parent, name) = self.split(path)?;
        self.union.rmdir(parent, name.as_name()).map_err(|e| e.errno())
    }

    /// renameat2(2), repeated with fresh lookups after ESTALE, as the kernel does.
    pub(crate) fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> Answer<()> {
        match self.rename_once(from, to, flags) {
            Err(Errno::STALE) => self.rename_once(from, to, flags),
            done => done,
        }
    }

    /// With the kernel's checks in their order.
    fn rename_once(&self, from: &Path, to: &Path, flags: RenameFlags) -> Answer<()> {
        let (from_dir, from_name) = self.split(from)?;
        let source = self.lookup(from_dir, &from_name)?;
        let (to_dir, to_name) = self.split(to)?;
        let target = match self.lookup(to_dir, &to_name) {
            Ok(entry) => Some(entry),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        let swaps = flags == RenameFlags::EXCHANGE;
        match target {
            Some(_) if flags == RenameFlags::NOREPLACE => return Err(Errno::EXIST),
            None if swaps => return Err(Errno::NOENT),
            _ => {}
        }
        if to != from && to.starts_with(from) {
            return Err(Errno::INVAL);
        }
        if to != from && from.starts_with(to) {
            return Err(if swaps { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if let Some(target) = target {
            if target.ino == source.ino {
                return Ok(());
            }
            match (source.attr.stat.is_dir(), target.attr.stat.is_dir()) {
                (true, false) if !swaps => return Err(Errno::NOTDIR),
                (false, true) if !swaps => return Err(Errno::ISDIR),
                _ => {}
            }
        }
        let ends = ((from_dir, from_name.as_name()), (to_dir, to_name.as_name()));
        self.union.rename(ends.0, ends.1, flags).map_err(|e| e.errno())
    }

    /// setxattr(2).
    pub(crate) fn setxattr(&self, path: &Path, name: &CStr, value: &[u8]) -> Answer<()> {
        let ino = self.followed(path)?.ino;
        self.union.setxattr(ino, name, value, 0, false, Caller::DAEMON).map_err(|e| e.errno())
    }

    /// removexattr(2).
    pub(crate) fn removexattr(&self, path: &Path, name: &CStr) -> Answer<()> {
        let ino = self.followed(path)?.ino;
        self.union.removexattr(ino, name, Caller::DAEMON).map_err(|e| e.errno())
    }

    /// All attributes whose names begin with "user.".
    pub(crate) fn xattrs(&self, path: &Path) -> Answer<BTreeMap<CString, Vec<u8>>> {
        let ino = self.ino(path)?;
        let mut names = vec![0; 4096];
        let len = self.union.listxattr(ino, Caller::DAEMON, &mut names).map_err(|e| e.errno())?;
        let user = names[..len].split_inclusive(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
        user.map(|name| {
            let name = CStr::from_bytes_with_nul(name).unwrap();
            let mut value = vec![0; 4096];
            let len = self.union.getxattr(ino, name, Caller::DAEMON, &mut value).map_err(|e| e.errno())?;
            value.truncate(len);
            Ok((name.to_owned(), value))
        })
        .collect()
    }

    /// readlink(2).
    pub(crate) fn readlink(&self, path: &Path) -> Answer<PathBuf> {
        let target = self.union.readlink(self.find(path)?.ino).map_err(|e| e.errno())?;
        Ok(OsStr::from_bytes(&target).into())
    }

    /// Lists a directory, which is closed and reopened after every `room` names.
    pub(crate) fn list(&self, path: &Path, room: usize) -> Answer<Vec<PathBuf>> {
        let ino = self.ino(path)?;
        let mut names = Vec::new();
        let mut at = 0;
        loop {
            let handle = self.union.opendir(ino, OFlags::empty()).map_err(|e| e.errno())?;
            let mut part = Part { room, names: Vec::new(), entries: Vec::new() };
            let read = self.union.readdir(handle, at, Some(std::time::Duration::ZERO), &mut part);
            self.union.releasedir(handle);
            read.map_err(|e| e.errno())?;
            for entry in part.entries {
                self.hold(entry);
            }
            let Some((_, cookie)) = part.names.last() else { return Ok(names) };
            at = *cookie;
            let dots = |name: &CString| matches!(name.to_bytes(), b"." | b"..");
            let own = part.names.iter().filter(|(name, _)| !dots(name));
            names.extend(own.map(|(name, _)| PathBuf::from(OsStr::from_bytes(name.to_bytes()))));
        }
    }
}

impl Drop for Engine {
    /// Closes handles, as the end of a process would.
    fn drop(&mut self) {
        self.union.destroy();
    }
}

fn mount(specs: &[BranchSpec], settings: &Settings) -> Arc<Union> {
    Arc::new(Union::new(Pool::open(specs, settings.clone()).unwrap(), Arc::new(NoBackings)))
}

/// One reply of a listing.
struct Part {
    room: usize,
    names: Vec<(CString, u64)>,
    entries: Vec<Entry>,
}

impl Sink for Part {
    fn fits(&self, _: usize) -> bool {
        self.names.len() < self.room
    }

    fn put(&mut self, listed: &Listed<'_>, entry: Option<&Entry>) {
        self.names.push((listed.name.to_owned(), listed.cookie));
        self.entries.extend(entry);
    }
}
