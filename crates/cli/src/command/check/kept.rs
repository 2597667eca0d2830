//! Objects that `--fix` has replaced: kept on their branch, in the hidden folder, until `--prune`.
//!
//! Each kept object has a directory of its own there, with `origin` (JSON: its path and attributes) and, unless only
//! attributes were replaced, `object`. Mounts leave these directories alone.

use fsstack_sync::time::{Duration, Instant};

use super::OpenBranch;
use super::beside::BesideDaemon;
use super::compare::{hex, unhex};
use super::fix::Fixed;
use super::watch::shown;
use crate::command::Failed;
use crate::command::show::{self, Style};
use crate::command::time_limit::{HUNG_AFTER, unless_it_hangs};
use fsstack_control::api::{KeptObject, Pruned, exact};
use fsstack_pool::KEPT;
use fsstack_sys::at::{self, Mounts, RenameFlags, SetTime, Times};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::{Call, Errno, OFlags, Result, Stat, SysError, file, identity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

const ORIGIN: &CStr = c"origin";
const OBJECT: &CStr = c"object";
/// Time limit for all kept objects of a branch.
const KEPT_OBJECTS_TIMEOUT: Duration = Duration::from_secs(60);
/// An `origin` is not longer than this.
const LONGEST: u64 = 1 << 20;

/// Where a kept object comes from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Origin {
    /// Its path from the pool's root, in printable form.
    path: String,
    /// The same in hexadecimal: exact, whatever its bytes.
    path_bytes: String,
    /// Description of what was replaced.
    text: String,
    /// Its owner, mode and attributes.
    had: BTreeMap<String, String>,
    /// Size, and seconds and nanoseconds of the last write, of an object: it is removed only if it still has these.
    size: u64,
    written: (i64, u32),
    /// The pool shows something else of its name, as far as the one who set it aside knew: it is not a duplicate.
    #[serde(default)]
    differs: bool,
}

impl Origin {
    pub(super) fn new(path: &[u8], text: &str, had: BTreeMap<String, String>) -> Self {
        let (path, path_bytes) = (shown(path), hex(path));
        Self { path, path_bytes, text: text.to_owned(), had, ..Self::default() }
    }

    /// The origin of an object with these attributes.
    pub(super) fn of(self, stat: &Stat) -> Self {
        Self { size: stat.size, written: (stat.mtime.sec, stat.mtime.nsec), ..self }
    }

    fn unknown() -> Self {
        Self::new(b"", "not known", BTreeMap::new())
    }

    /// Reads that of a directory.
    fn read(dir: BorrowedFd<'_>) -> Result<Self> {
        let from = File::from(at::open(dir, ORIGIN, OFlags::RDONLY | OFlags::NONBLOCK, 0, Mounts::Stay)?);
        let mut text = Vec::new();
        from.take(LONGEST).read_to_end(&mut text).map_err(|_| SysError::new(Call::Read, Errno::IO))?;
        serde_json::from_slice(&text).map_err(|_| SysError::new(Call::Read, Errno::INVAL))
    }

    /// Its path from the pool's root.
    fn path_bytes(&self) -> Result<Vec<u8>> {
        unhex(&self.path_bytes).ok_or_else(|| SysError::new(Call::Read, Errno::INVAL))
    }

    fn is_as_written(&self, stat: &Stat) -> bool {
        (self.size, self.written) == (stat.size, (stat.mtime.sec, stat.mtime.nsec))
    }
}

/// A new directory of the kept objects.
pub(super) struct KeptDir {
    above: OwnedFd,
    name: CString,
    dir: OwnedFd,
    /// Its path in printable form.
    shown: String,
}

impl KeptDir {
    /// Makes one on `branch`, with `origin` in it, on disk.
    pub(super) fn new(branch: &OpenBranch, origin: &Origin) -> Result<Self> {
        // A mount may remove the folder while it is empty.
        let mut attempts = 8;
        let (above, name) = loop {
            match place(branch) {
                Err(error) if error.errno == Errno::NOENT && attempts > 0 => attempts -= 1,
                made => break made?,
            }
        };
        let dir = at::open_dir(above.as_fd(), &name, Mounts::Stay)?;
        let kept = Self { above, shown: shown_at(branch, &name), name, dir };
        let text = serde_json::to_vec(origin).map_err(|_| SysError::new(Call::Write, Errno::INVAL))?;
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let mut into = File::from(at::open(kept.dir.as_fd(), ORIGIN, how, 0o600, Mounts::Stay)?);
        let written = into.write_all(&text).and_then(|()| into.sync_all());
        written.map_err(|e| SysError::new(Call::Write, Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        sync(kept.dir.as_fd())?;
        sync(kept.above.as_fd())?;
        Ok(kept)
    }

    /// Its path in printable form.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Moves `name` of `from` here. The directory `from` keeps its times, which the pool may show.
    pub(super) fn take(&self, from: BorrowedFd<'_>, name: &CStr) -> Result<Stat> {
        keeping_times(from, || at::rename(from, name, self.dir.as_fd(), OBJECT, RenameFlags::NOREPLACE))?;
        sync(self.dir.as_fd())?;
        sync(from)?;
        at::stat(self.dir.as_fd(), OBJECT)
    }

    /// Moves the object back, if its name is still free.
    pub(super) fn put_back(&self, to: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        keeping_times(to, || at::rename(self.dir.as_fd(), OBJECT, to, name, RenameFlags::NOREPLACE))?;
        sync(to)
    }

    /// Removes the directory, if nothing was replaced.
    pub(super) fn forget(self) -> Result<()> {
        if at::stat(self.dir.as_fd(), OBJECT).is_ok() {
            return Ok(());
        }
        at::unlink(self.dir.as_fd(), ORIGIN)?;
        at::rmdir(self.above.as_fd(), &self.name)
    }
}

/// Changes a name in `dir`, and sets the directory's time of the last change back. A change of a program between these
/// calls shows no time of its own.
fn keeping_times(dir: BorrowedFd<'_>, change: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = at::stat_fd(dir)?;
    change()?;
    // Times that cannot be set are no reason to fail.
    let _ = at::utimens_fd(dir, Times { atime: SetTime::Omit, mtime: SetTime::At(before.mtime) });
    Ok(())
}

/// Path of a directory of kept objects, in printable form.
fn shown_at(branch: &OpenBranch, name: &CStr) -> String {
    let (folder, kept) = (branch.folder.to_string_lossy(), KEPT.to_string_lossy());
    format!("{}/{folder}/{kept}/{}", branch.shown, fsstack_pool::Printable(name.to_bytes()))
}

/// Makes a directory for a kept object.
fn place(branch: &OpenBranch) -> Result<(OwnedFd, CString)> {
    let folder = made(branch.root.as_fd(), branch.folder)?;
    let above = made(folder.as_fd(), KEPT)?;
    let random = RandomState::new().hash_one(Instant::now());
    let name = CString::new(format!("{random:016x}")).unwrap_or_default();
    at::mkdir(above.as_fd(), &name, 0o700)?;
    Ok((above, name))
}

/// Opens the directory `name`, made if it is missing; it must be this user's own, and nobody else may write to it.
fn made(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    match at::mkdir(dir, name, 0o700) {
        Err(error) if error.errno != Errno::EXIST => return Err(error),
        _ => {}
    }
    own(dir, name)
}

/// Opens a directory, which must be this user's own; nobody else may write to it.
pub(super) fn own(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    let opened = at::open_dir(dir, name, Mounts::Stay)?;
    let stat = at::stat_fd(opened.as_fd())?;
    let strange = identity::is_root() && stat.uid != 0;
    if strange || stat.mode & 0o022 != 0 {
        return Err(SysError::new(Call::Open, Errno::PERM));
    }
    Ok(opened)
}

fn sync(dir: BorrowedFd<'_>) -> Result<()> {
    file::fsync(at::reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY)?.as_fd())
}

/// The names of kept objects of a branch, and their directory; nothing if it has none.
fn names(branch: &OpenBranch) -> Result<Option<(OwnedFd, Vec<CString>)>> {
    let opened = own(branch.root.as_fd(), branch.folder).and_then(|folder| own(folder.as_fd(), KEPT));
    let above = match opened {
        Err(error) if error.errno == Errno::NOENT => return Ok(None),
        opened => opened?,
    };
    let mut names = Vec::new();
    let listed = at::reopen_quietly(above.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut entries = Dirents::new(listed, 4096);
    while let Some(entry) = entries.next()? {
        if !matches!(entry.name.to_bytes(), b"." | b"..") {
            names.push(entry.name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(Some((above, names)))
}

/// Number of kept objects on the branches. One that hangs, or whose hidden folder is another user's, counts none.
pub(super) fn count(branches: &[Arc<OpenBranch>]) -> u64 {
    let of = |branch: &Arc<OpenBranch>| {
        let branch = branch.clone();
        let counted = unless_it_hangs(HUNG_AFTER, move || names(&branch));
        counted.and_then(std::result::Result::ok).flatten().map_or(0, |(_, names)| names.len() as u64)
    };
    branches.iter().map(of).sum()
}

/// Removes what is kept of objects below the directory `below` of the pool.
pub(super) fn prune(
    daemon: &Arc<BesideDaemon>,
    branches: &[Arc<OpenBranch>],
    below: &[u8],
    style: Style,
) -> std::result::Result<(), Failed> {
    let mut all = Pruned { kept: Vec::new() };
    for branch in branches {
        let pruning = Pruning {
            branch: branch.clone(),
            all: branches.to_vec(),
            below: below.strip_suffix(b"/").unwrap_or(below).to_vec(),
            daemon: daemon.clone(),
        };
        match unless_it_hangs(KEPT_OBJECTS_TIMEOUT, move || pruning.run()) {
            Some(Ok(pruned)) => all.kept.extend(pruned),
            Some(Err(error)) => {
                return Err(Failed::Refused(format!("check: branch {}: {error}", branch.shown)));
            }
            None => {
                let text = format!("check: branch {}: it hangs, or one with a copy does", branch.shown);
                return Err(Failed::Refused(text));
            }
        }
    }
    show::answer(style, &all, human)?;
    match all.kept.iter().filter(|kept| kept.stays.is_some()).count() {
        0 => Ok(()),
        stays => Err(Failed::Refused(format!("check: kept objects that stay: {stays}"))),
    }
}

fn human(all: &Pruned) -> String {
    let line = |KeptObject { path, at, text, stays, .. }: &KeptObject| match stays {
        None => format!("{path}: {text}: removed\n"),
        Some(why) => format!("{path}: {text}: stays in {at}: {why}\n"),
    };
    if all.kept.is_empty() { "nothing is kept\n".to_owned() } else { all.kept.iter().map(line).collect() }
}

/// Removal of what is kept on a branch.
struct Pruning {
    branch: Arc<OpenBranch>,
    /// All branches of the pool.
    all: Vec<Arc<OpenBranch>>,
    /// Path of a directory; what was above it stays.
    below: Vec<u8>,
    daemon: Arc<BesideDaemon>,
}

impl Pruning {
    fn run(&self) -> Result<Vec<KeptObject>> {
        let Some((above, names)) = names(&self.branch)? else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for name in names {
            let at = shown_at(&self.branch, &name);
            let (origin, stays) = match self.one(above.as_fd(), &name) {
                Ok(None) => continue,
                Ok(Some((origin, stays))) => (origin, stays),
                Err(error) => (Origin::unknown(), Some(error.to_string())),
            };
            let path_base64 = origin.path_bytes().ok().and_then(|path| exact(&path));
            all.push(KeptObject { path: origin.path, path_base64, at, text: origin.text, stays });
        }
        // Not empty: for the next time.
        let root = self.branch.root.as_fd();
        let _ = at::open_dir(root, self.branch.folder, Mounts::Stay)
            .and_then(|folder| at::rmdir(folder.as_fd(), KEPT))
            .and_then(|()| at::rmdir(root, self.branch.folder));
        Ok(all)
    }

    /// Removes a kept object, or returns why it stays. None: there is none, or it is not of an object below the directory.
    fn one(&self, above: BorrowedFd<'_>, name: &CStr) -> Result<Option<(Origin, Option<String>)>> {
        let dir = at::open_dir(above, name, Mounts::Stay)?;
        let origin = match Origin::read(dir.as_fd()) {
            // Left by an interrupted fix or prune.
            Err(error) if error.errno == Errno::NOENT => {
                return match at::rmdir(above, name) {
                    Err(error) if matches!(error.errno, Errno::NOTEMPTY | Errno::EXIST) => {
                        let why = "its `origin` is missing: look at it, and move or remove it";
                        Ok(Some((Origin::unknown(), Some(why.to_owned()))))
                    }
                    removed => removed.map(|()| None),
                };
            }
            origin => origin?,
        };
        let path = origin.path_bytes()?;
        let rest = path.strip_prefix(self.below.as_slice());
        if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")) {
            return Ok(None);
        }
        match at::stat(dir.as_fd(), OBJECT) {
            Ok(stat) => {
                if let Err(why) = self.may_go(&origin, &path, dir.as_fd(), &stat) {
                    return Ok(Some((origin, Some(why))));
                }
                at::unlink(dir.as_fd(), OBJECT)?;
            }
            Err(error) if error.errno == Errno::NOENT => {}
            Err(error) => return Err(error),
        }
        at::unlink(dir.as_fd(), ORIGIN)?;
        at::rmdir(above, name)?;
        Ok(Some((origin, None)))
    }

    /// Whether nobody misses the kept object: it was not written to, nobody has it open, and the pool has another copy.
    fn may_go(&self, origin: &Origin, path: &[u8], dir: BorrowedFd<'_>, object: &Stat) -> Fixed {
        let is_as_written = || {
            let written = at::stat_by_name_now(dir, OBJECT).map(|stat| !origin.is_as_written(&stat));
            if written.map_err(|error| error.to_string())? {
                let why =
                    "a program has written to it since it was set aside: look at it, and move or remove it";
                return Err(why.to_owned());
            }
            Ok(())
        };
        if origin.differs {
            return Err("it differs from what the pool showed: look at it, and move or remove it".to_owned());
        }
        is_as_written()?;
        self.is_closed(dir, object)?;
        // Before it was closed.
        is_as_written()?;
        self.daemon.has_the_branches_of_the_start()?;
        if self.all.iter().any(|branch| !branch.leaving && has_copy(branch, path, object)) {
            return Ok(());
        }
        Err("the pool has no copy of it any more: look at it, and move or remove it".to_owned())
    }

    /// Whether no process of this machine, or, where the file system cannot tell, not the daemon, has the object open.
    fn is_closed(&self, dir: BorrowedFd<'_>, object: &Stat) -> Fixed {
        if !object.is_file() {
            return Ok(());
        }
        let opened = at::open(dir, OBJECT, OFlags::RDONLY | OFlags::NONBLOCK, 0, Mounts::Stay);
        match opened.and_then(|file| file::is_open_elsewhere(file.as_fd())) {
            Ok(true) => Err("open: prune it again when it is closed".to_owned()),
            Ok(false) => Ok(()),
            Err(_) => self.daemon.has_not_open(object),
        }
    }
}

/// Whether the branch has, at that path, an object of the type and size of `object`.
fn has_copy(branch: &OpenBranch, path: &[u8], object: &Stat) -> bool {
    let names: Vec<CString> =
        path.split(|byte| *byte == b'/').skip(1).map(|name| CString::new(name).unwrap_or_default()).collect();
    let Some((last, above)) = names.split_last() else { return false };
    let root = at::open_dir(branch.root.as_fd(), c".", branch.mounts);
    let dir = above.iter().fold(root, |dir, name| at::open_dir(dir?.as_fd(), name, branch.mounts));
    dir.and_then(|dir| at::stat_by_name_now(dir.as_fd(), last))
        .is_ok_and(|stat| (stat.kind(), stat.size) == (object.kind(), object.size))
}
