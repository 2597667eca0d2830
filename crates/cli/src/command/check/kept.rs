//! Objects that `--fix` has replaced: kept on their branch, in the hidden folder, until `--prune`.
//!
//! Each kept object has a directory of its own there, with `origin` (JSON: its path and attributes) and, unless only
//! attributes were replaced, `object`. Mounts leave these directories alone.

use super::OpenBranch;
use super::compare::hex;
use super::watch::shown;
use crate::command::Failed;
use crate::command::pool::Pool;
use crate::command::show::{self, Style};
use crate::command::time_limit::{HUNG_AFTER, unless_it_hangs};
use fsstack_control::api::{KeptObject, Pruned};
use fsstack_pool::KEPT;
use fsstack_sys::at::{self, Mounts, RenameFlags};
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
use std::time::{Duration, Instant};

const ORIGIN: &CStr = c"origin";
const OBJECT: &CStr = c"object";
/// Time limit for all kept objects of a branch.
const HANGS_AFTER: Duration = Duration::from_secs(60);
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

    fn is_as_written(&self, stat: &Stat) -> bool {
        (self.size, self.written) == (stat.size, (stat.mtime.sec, stat.mtime.nsec))
    }
}

/// A new directory of the kept objects.
pub(super) struct KeptDir {
    above: OwnedFd,
    name: CString,
    dir: OwnedFd,
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
        let kept = Self { above, name, dir };
        let text = serde_json::to_vec(origin).map_err(|_| SysError::new(Call::Write, Errno::INVAL))?;
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let mut into = File::from(at::open(kept.dir.as_fd(), ORIGIN, how, 0o600, Mounts::Stay)?);
        let written = into.write_all(&text).and_then(|()| into.sync_all());
        written.map_err(|e| SysError::new(Call::Write, Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        sync(kept.dir.as_fd())?;
        sync(kept.above.as_fd())?;
        Ok(kept)
    }

    /// Moves `name` of `from` here.
    pub(super) fn take(&self, from: BorrowedFd<'_>, name: &CStr) -> Result<Stat> {
        at::rename(from, name, self.dir.as_fd(), OBJECT, RenameFlags::NOREPLACE)?;
        sync(self.dir.as_fd())?;
        sync(from)?;
        at::stat(self.dir.as_fd(), OBJECT)
    }

    /// Moves the object back, if its name is still free.
    pub(super) fn put_back(self, to: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        at::rename(self.dir.as_fd(), OBJECT, to, name, RenameFlags::NOREPLACE)?;
        sync(to)?;
        self.forget()
    }

    /// Removes the directory; nothing was replaced.
    pub(super) fn forget(self) -> Result<()> {
        at::unlink(self.dir.as_fd(), ORIGIN)?;
        at::rmdir(self.above.as_fd(), &self.name)
    }
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

fn own(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
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
    let mut entries = Dirents::new(at::reopen(above.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?, 4096);
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
    pool: &Pool,
    branches: &[Arc<OpenBranch>],
    below: &str,
    style: Style,
) -> std::result::Result<(), Failed> {
    super::beside_daemon(pool)?;
    let mut all = Pruned { kept: Vec::new() };
    for branch in branches {
        let (of, below) = (branch.clone(), below.to_owned());
        match unless_it_hangs(HANGS_AFTER, move || prune_on(&of, &below)) {
            Some(Ok(pruned)) => all.kept.extend(pruned),
            Some(Err(error)) => {
                return Err(Failed::Refused(format!("check: branch {}: {error}", branch.shown)));
            }
            None => return Err(Failed::Refused(format!("check: branch {}: it hangs", branch.shown))),
        }
    }
    show::answer(style, &all, human)?;
    match all.kept.iter().filter(|kept| kept.stays.is_some()).count() {
        0 => Ok(()),
        stays => Err(Failed::Refused(format!("check: kept objects that stay: {stays}"))),
    }
}

fn human(all: &Pruned) -> String {
    let line = |KeptObject { path, at, text, stays }: &KeptObject| match stays {
        None => format!("{path}: {text}: removed\n"),
        Some(why) => format!("{path}: {text}: stays in {at}: {why}\n"),
    };
    if all.kept.is_empty() { "nothing is kept\n".to_owned() } else { all.kept.iter().map(line).collect() }
}

fn prune_on(branch: &OpenBranch, below: &str) -> Result<Vec<KeptObject>> {
    let Some((above, names)) = names(branch)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for name in names {
        let (folder, shown_name) =
            (branch.folder.to_string_lossy(), fsstack_pool::Printable(name.to_bytes()));
        let at = format!("{}/{folder}/{}/{shown_name}", branch.shown, KEPT.to_string_lossy());
        let (origin, stays) = match prune_one(above.as_fd(), &name, below) {
            Ok(None) => continue,
            Ok(Some((origin, stays))) => (origin, stays),
            Err(error) => (Origin::new(b"", "not known", BTreeMap::new()), Some(error.to_string())),
        };
        all.push(KeptObject { path: origin.path, at, text: origin.text, stays });
    }
    // Not empty: for the next time.
    let _ = at::open_dir(branch.root.as_fd(), branch.folder, Mounts::Stay)
        .and_then(|folder| at::rmdir(folder.as_fd(), KEPT))
        .and_then(|()| at::rmdir(branch.root.as_fd(), branch.folder));
    Ok(all)
}

/// Removes a kept object, or returns why it stays. None: it is not of an object below `below`.
fn prune_one(above: BorrowedFd<'_>, name: &CStr, below: &str) -> Result<Option<(Origin, Option<String>)>> {
    let dir = at::open_dir(above, name, Mounts::Stay)?;
    let unreadable = |_| SysError::new(Call::Read, Errno::INVAL);
    let from = File::from(at::open(dir.as_fd(), ORIGIN, OFlags::RDONLY | OFlags::NONBLOCK, 0, Mounts::Stay)?);
    let mut text = Vec::new();
    from.take(LONGEST).read_to_end(&mut text).map_err(|_| SysError::new(Call::Read, Errno::IO))?;
    let origin: Origin = serde_json::from_slice(&text).map_err(unreadable)?;
    let rest = origin.path.strip_prefix(below.trim_end_matches('/'));
    if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        return Ok(None);
    }
    match at::stat(dir.as_fd(), OBJECT) {
        Ok(stat) if !origin.is_as_written(&stat) => {
            let why = "a program has written to it since it was set aside: look at it, and move or remove it";
            return Ok(Some((origin, Some(why.to_owned()))));
        }
        Ok(_) => at::unlink(dir.as_fd(), OBJECT)?,
        Err(error) if error.errno == Errno::NOENT => {}
        Err(error) => return Err(error),
    }
    at::unlink(dir.as_fd(), ORIGIN)?;
    at::rmdir(above, name)?;
    Ok(Some((origin, None)))
}
