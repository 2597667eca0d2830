//! A pool over temporary directories, with requests as the kernel makes them.
//!
//! It counts the lookups and handles that it received, returns them on drop, and checks that the engine's tables are
//! empty then: every test also tests that.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fsstack_engine::answer::{Attr, Created, Entry, Listed};
use fsstack_engine::files::route::NoBackings;
use fsstack_engine::ops::{Change, New, Sink, WriteTerms};
use fsstack_engine::settings::Settings;
use fsstack_engine::{Caller, Pool, Result, TableCounts, Union};
use fsstack_identity::number::hash_name;
use fsstack_lab::needs::Skip;
use fsstack_pool::{BranchMode, BranchSpec, EntryNameBuf, Handle, Ino};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{Errno, OFlags, identity};
use tempfile::TempDir;

/// The pool, and the state that the kernel would keep.
pub(crate) struct TestBed {
    pub(crate) union: Union,
    specs: Vec<BranchSpec>,
    settings: Settings,
    /// Lookups that the kernel holds.
    lookups: RefCell<BTreeMap<u64, u64>>,
    files: RefCell<Vec<Handle>>,
    dirs: RefCell<Vec<Handle>>,
    /// The owner of new files and directories.
    caller: Cell<Caller>,
    /// Removed on drop.
    homes: Vec<TempDir>,
}

/// A file that was created or opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    pub(crate) ino: Ino,
    pub(crate) handle: Handle,
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) ino: u64,
    pub(crate) dtype: u32,
    pub(crate) cookie: u64,
}

/// Deterministic settings: files go to the first branch, and copies are cached for long.
pub(crate) fn settings() -> Settings {
    Settings { privileged: identity::is_root(), ..Settings::plain() }
}

/// A test bed that searches all branches for a directory's copies at each lookup.
pub(crate) fn wary() -> Settings {
    Settings { recheck: Duration::ZERO, ..settings() }
}

/// Two directories on different file systems of this machine.
pub(crate) fn distinct_homes() -> Result<Vec<TempDir>, Skip> {
    let (disk, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm"));
    let memory = memory.map_err(|e| Skip::because(format!("needs /dev/shm: {e}")))?;
    let dev = |dir: &TempDir| dir.path().metadata().unwrap().dev();
    if dev(&disk) == dev(&memory) {
        return Err(Skip::because("needs /tmp and /dev/shm on different file systems"));
    }
    Ok(vec![disk, memory])
}

impl TestBed {
    /// A pool of `branches` empty directories.
    pub(crate) fn new(branches: usize) -> Self {
        Self::with(&vec![BranchMode::ReadWrite; branches], settings())
    }

    /// A pool of branches with these modes.
    pub(crate) fn with(modes: &[BranchMode], settings: Settings) -> Self {
        let homes = modes.iter().map(|_| tempfile::tempdir().unwrap()).collect();
        Self::over(homes, modes, settings)
    }

    /// A pool over these directories.
    pub(crate) fn over(homes: Vec<TempDir>, modes: &[BranchMode], settings: Settings) -> Self {
        for home in &homes {
            fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        let paths: Vec<_> = homes.iter().map(|home| home.path().to_owned()).collect();
        let mut test_bed = Self::at(&paths, modes, settings);
        test_bed.homes = homes;
        test_bed
    }

    /// A pool over directories that the caller removes.
    pub(crate) fn at(paths: &[PathBuf], modes: &[BranchMode], settings: Settings) -> Self {
        let spec = |(path, mode): (&PathBuf, &BranchMode)| BranchSpec {
            mode: *mode,
            ..BranchSpec::new(path.clone())
        };
        let specs: Vec<_> = paths.iter().zip(modes).map(spec).collect();
        identity::keep_capabilities().unwrap();
        let pool = Pool::open(&specs, settings.clone()).unwrap();
        Self {
            union: Union::new(pool, Arc::new(NoBackings)),
            specs,
            settings,
            lookups: RefCell::default(),
            files: RefCell::default(),
            dirs: RefCell::default(),
            caller: Cell::new(Caller::DAEMON),
            homes: Vec::new(),
        }
    }

    /// Unmounts and mounts again; `change` may reorder the branches or give them other modes.
    pub(crate) fn remount(&mut self, change: impl FnOnce(&mut Vec<BranchSpec>)) {
        self.let_go();
        change(&mut self.specs);
        let pool = Pool::open(&self.specs, self.settings.clone()).unwrap();
        self.union = Union::new(pool, Arc::new(NoBackings));
    }

    /// Evicts `name`, which is in the root, from the location cache.
    pub(crate) fn push_out(&self, name: &str) {
        // The cache is direct-mapped: a name in the same slot evicts it.
        let slot = |name: &str| hash_name(Ino::ROOT, name.as_bytes()) % (1 << 17);
        let rival = (0_u64..).map(|n| format!("rival{n}")).find(|rival| slot(rival) == slot(name)).unwrap();
        self.put(0, &rival, "");
        self.find(&rival).unwrap();
    }

    /// The kernel forgets everything: the tables must be empty.
    pub(crate) fn let_go(&self) {
        self.files.take().into_iter().for_each(|handle| self.union.release(handle));
        self.dirs.take().into_iter().for_each(|handle| self.union.releasedir(handle));
        for (ino, count) in self.lookups.take() {
            self.union.forget(Ino(ino), count);
        }
        identity::become_daemon().unwrap();
        assert_eq!(self.union.held(), TableCounts::default(), "something is left in the tables");
    }

    /// Sets the caller of later creations.
    pub(crate) fn act_as(&self, caller: Caller) {
        self.caller.set(caller);
    }

    // ---- the branches, for out-of-band changes --------------------------------------------------------

    /// A branch's directory.
    pub(crate) fn branch(&self, at: usize) -> &Path {
        &self.specs[at].path
    }

    /// `path` on a branch.
    pub(crate) fn on(&self, at: usize, path: &str) -> PathBuf {
        self.branch(at).join(path)
    }

    /// Writes a file on a branch, with its parent directories.
    pub(crate) fn put(&self, at: usize, path: &str, text: &str) {
        identity::become_daemon().unwrap();
        fs::create_dir_all(self.on(at, path).parent().unwrap()).unwrap();
        fs::write(self.on(at, path), text).unwrap();
    }

    /// Makes a directory on a branch.
    pub(crate) fn put_dir(&self, at: usize, path: &str) {
        identity::become_daemon().unwrap();
        fs::create_dir_all(self.on(at, path)).unwrap();
    }

    /// The branches that have `path`.
    pub(crate) fn holders(&self, path: &str) -> Vec<usize> {
        (0..self.specs.len()).filter(|at| self.on(*at, path).symlink_metadata().is_ok()).collect()
    }

    /// Everything on all branches: type, mode and content.
    pub(crate) fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let mut all = BTreeMap::new();
        let mut waiting: Vec<PathBuf> = self.specs.iter().map(|spec| spec.path.clone()).collect();
        while let Some(dir) = waiting.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                let meta = path.symlink_metadata().unwrap();
                let (kind, mode) = (meta.file_type(), meta.mode());
                let text = if kind.is_dir() {
                    waiting.push(path.clone());
                    format!("{mode:o}")
                } else if kind.is_symlink() {
                    format!("-> {}", fs::read_link(&path).unwrap().display())
                } else if kind.is_fifo() || kind.is_socket() || kind.is_char_device() {
                    format!("{mode:o}")
                } else {
                    format!(
                        "{mode:o} {} {:?}",
                        meta.nlink(),
                        String::from_utf8_lossy(&fs::read(&path).unwrap())
                    )
                };
                all.insert(path, text);
            }
        }
        all
    }

    // ---- requests of the kernel -----------------------------------------------------------------------

    /// Adds a lookup that the kernel holds.
    pub(crate) fn hold(&self, entry: &Entry) {
        *self.lookups.borrow_mut().entry(entry.ino.0).or_default() += 1;
    }

    fn split<'a>(&self, path: &'a str) -> (Ino, &'a str) {
        match path.rsplit_once('/') {
            Some((dir, name)) => (self.ino(dir), name),
            None => (Ino::ROOT, path),
        }
    }

    /// LOOKUP.
    pub(crate) fn lookup(&self, parent: Ino, name: &str) -> Result<Entry, Errno> {
        let entry = self.union.lookup(parent, buf(name).as_name()).map_err(|e| e.errno())?;
        self.hold(&entry);
        Ok(entry)
    }

    /// LOOKUP of ".": the object itself.
    pub(crate) fn itself(&self, ino: Ino) -> Result<Entry, Errno> {
        let entry = self.union.lookup_self(ino).map_err(|e| e.errno())?;
        self.hold(&entry);
        Ok(entry)
    }

    /// LOOKUP of "..": the parent.
    pub(crate) fn above(&self, ino: Ino) -> Result<Entry, Errno> {
        let entry = self.union.lookup_parent(ino).map_err(|e| e.errno())?;
        self.hold(&entry);
        Ok(entry)
    }

    /// LOOKUP of each name in `path`.
    pub(crate) fn find(&self, path: &str) -> Result<Entry, Errno> {
        let (parent, name) = match path.rsplit_once('/') {
            Some((dir, name)) => (self.find(dir)?.ino, name),
            None => (Ino::ROOT, path),
        };
        self.lookup(parent, name)
    }

    /// Number of the object at `path`; empty for the root.
    #[track_caller]
    pub(crate) fn ino(&self, path: &str) -> Ino {
        if path.is_empty() { Ino::ROOT } else { self.find(path).unwrap().ino }
    }

    /// GETATTR of the object at `path`.
    pub(crate) fn stat(&self, path: &str) -> Attr {
        self.union.getattr(self.ino(path), None).unwrap()
    }

    /// GETATTR by number.
    pub(crate) fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        self.union.getattr(ino, None).map_err(|e| e.errno())
    }

    /// SETATTR.
    pub(crate) fn setattr(&self, ino: Ino, change: Change) -> Result<Attr, Errno> {
        self.union.setattr(ino, None, change, self.caller.get()).map_err(|e| e.errno())
    }

    /// MKDIR.
    pub(crate) fn mkdir(&self, path: &str) -> Result<Ino, Errno> {
        self.make(path, New::Dir(0o755))
    }

    /// MKDIR, MKNOD, SYMLINK.
    pub(crate) fn make(&self, path: &str, new: New<'_>) -> Result<Ino, Errno> {
        let (parent, name) = self.split(path);
        let made = self.union.make(parent, buf(name).as_name(), new, self.caller.get());
        let entry = made.map_err(|e| e.errno())?;
        self.hold(&entry);
        Ok(entry.ino)
    }

    /// CREATE with `O_EXCL`.
    pub(crate) fn create(&self, path: &str) -> Result<File, Errno> {
        self.create_with(path, 0o644, OFlags::RDWR | OFlags::EXCL)
    }

    /// CREATE.
    pub(crate) fn create_with(&self, path: &str, mode: u32, flags: OFlags) -> Result<File, Errno> {
        let (parent, name) = self.split(path);
        let made = self.union.create(parent, buf(name).as_name(), mode, flags, self.caller.get());
        made.map(|made| self.created(&made)).map_err(|e| e.errno())
    }

    /// TMPFILE.
    pub(crate) fn tmpfile(&self, dir: &str, flags: OFlags) -> Result<File, Errno> {
        let made = self.union.tmpfile(self.ino(dir), 0o600, flags, self.caller.get());
        made.map(|made| self.created(&made)).map_err(|e| e.errno())
    }

    fn created(&self, made: &Created) -> File {
        self.hold(&made.entry);
        self.files.borrow_mut().push(made.opened.handle);
        File { ino: made.entry.ino, handle: made.opened.handle }
    }

    /// OPEN.
    pub(crate) fn open(&self, ino: Ino, flags: OFlags) -> Result<File, Errno> {
        let opened = self.union.open(ino, flags, self.caller.get()).map_err(|e| e.errno())?;
        self.files.borrow_mut().push(opened.handle);
        Ok(File { ino, handle: opened.handle })
    }

    /// RELEASE.
    pub(crate) fn close(&self, file: File) {
        self.files.borrow_mut().retain(|handle| *handle != file.handle);
        self.union.release(file.handle);
    }

    /// FORGET.
    pub(crate) fn forget(&self, ino: Ino) {
        let held = self.lookups.borrow_mut().remove(&ino.0).unwrap_or(0);
        self.union.forget(ino, held);
    }

    /// Creates a file with this content and closes it.
    #[track_caller]
    pub(crate) fn write(&self, path: &str, text: &str) -> Ino {
        let file = self.create(path).unwrap();
        let written = self.union.write(file.handle, 0, text.as_bytes(), WriteTerms::default());
        assert_eq!(written.unwrap(), text.len());
        self.close(file);
        file.ino
    }

    /// The content of a file as the pool shows it.
    pub(crate) fn read(&self, path: &str) -> Result<String, Errno> {
        let ino = self.find(path)?.ino;
        self.read_ino(ino)
    }

    /// A file's content, by number.
    pub(crate) fn read_ino(&self, ino: Ino) -> Result<String, Errno> {
        let file = self.open(ino, OFlags::RDONLY)?;
        let text = self.read_handle(file);
        self.close(file);
        Ok(text)
    }

    /// A file's first bytes, by handle.
    pub(crate) fn read_handle(&self, file: File) -> String {
        let mut bytes = vec![0; 1 << 16];
        let read = self.union.read(file.handle, 0, &mut bytes).unwrap();
        bytes.truncate(read);
        String::from_utf8(bytes).unwrap()
    }

    /// UNLINK.
    pub(crate) fn unlink(&self, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.split(path);
        self.union.unlink(parent, buf(name).as_name()).map_err(|e| e.errno())
    }

    /// RMDIR.
    pub(crate) fn rmdir(&self, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.split(path);
        self.union.rmdir(parent, buf(name).as_name()).map_err(|e| e.errno())
    }

    /// LINK.
    pub(crate) fn link(&self, old: &str, new: &str) -> Result<Entry, Errno> {
        let ino = self.find(old)?.ino;
        self.link_ino(ino, new)
    }

    /// LINK of an inode.
    pub(crate) fn link_ino(&self, ino: Ino, new: &str) -> Result<Entry, Errno> {
        let (parent, name) = self.split(new);
        let entry = self.union.link(ino, parent, buf(name).as_name()).map_err(|e| e.errno())?;
        self.hold(&entry);
        Ok(entry)
    }

    /// RENAME.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// RENAME2, with both names looked up before, as the kernel does.
    pub(crate) fn rename_with(&self, from: &str, to: &str, flags: RenameFlags) -> Result<(), Errno> {
        let ((from_dir, from), (to_dir, to)) = (self.split(from), self.split(to));
        self.lookup(from_dir, from)?;
        if !matches!(self.lookup(to_dir, to), Ok(_) | Err(Errno::NOENT)) {
            return Err(Errno::IO);
        }
        let (from, to) = (buf(from), buf(to));
        let renamed = self.union.rename((from_dir, from.as_name()), (to_dir, to.as_name()), flags);
        renamed.map_err(|e| e.errno())
    }

    /// OPENDIR.
    pub(crate) fn opendir(&self, ino: Ino) -> Handle {
        let handle = self.union.opendir(ino, OFlags::empty()).unwrap();
        self.dirs.borrow_mut().push(handle);
        handle
    }

    /// READDIR or READDIRPLUS: up to `room` entries after `cookie`.
    pub(crate) fn readdir(
        &self,
        dir: Handle,
        cookie: u64,
        plus: bool,
        room: usize,
    ) -> Result<Vec<Row>, Errno> {
        let mut rows = Rows { room, rows: Vec::new(), entries: Vec::new() };
        self.union
            .readdir(dir, cookie, plus.then_some(std::time::Duration::ZERO), &mut rows)
            .map_err(|e| e.errno())?;
        rows.entries.iter().for_each(|entry| self.hold(entry));
        Ok(rows.rows)
    }

    /// The whole listing after `cookie`, `room` entries a request, without "." and "..".
    pub(crate) fn rest(&self, dir: Handle, mut cookie: u64, room: usize) -> Vec<Row> {
        let mut all = Vec::new();
        loop {
            let rows = self.readdir(dir, cookie, false, room).unwrap();
            let Some(last) = rows.last() else { break };
            cookie = last.cookie;
            all.extend(rows);
        }
        all.retain(|row| row.name != "." && row.name != "..");
        all
    }

    /// The whole listing of a directory by a new handle.
    pub(crate) fn list(&self, path: &str) -> Vec<Row> {
        let dir = self.opendir(self.ino(path));
        self.rest(dir, 0, usize::MAX)
    }

    /// The names in a directory, sorted.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<_> = self.list(path).into_iter().map(|row| row.name).collect();
        names.sort();
        names
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.let_go();
        }
    }
}

/// `name`, owned.
pub(crate) fn buf(name: &str) -> EntryNameBuf {
    EntryNameBuf::from_bytes(name.as_bytes()).unwrap()
}

struct Rows {
    room: usize,
    rows: Vec<Row>,
    entries: Vec<Entry>,
}

impl Sink for Rows {
    fn fits(&self, _: usize) -> bool {
        self.rows.len() < self.room
    }

    fn put(&mut self, listed: &Listed<'_>, entry: Option<&Entry>) {
        let name = listed.name.to_str().unwrap().to_owned();
        self.rows.push(Row { name, ino: listed.ino.0, dtype: listed.dtype, cookie: listed.cookie });
        self.entries.extend(entry);
    }
}
