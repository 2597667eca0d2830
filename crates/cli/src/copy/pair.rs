//! A directory that is copied: the original and the one in the pool.
//!
//! A directory made by the copy belongs to the copying user, is closed to others, and carries a mark until its last
//! entry exists. Then it gets the original's attributes, and the mark is removed. An interrupted or partial copy is
//! finished by the next one, which finds the mark. An existing directory without a mark keeps its attributes. One that
//! is empty and closed may come from a copy killed before it could set the mark, and is treated as marked.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};
use fsstack_sys::at::Mounts;
use fsstack_sys::dirents::Dirents;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError, identity};

use super::Destination;
use super::incoming::{DIFFERS, Trouble};
use super::metadata;
use super::report::{CopyReport, Count};

/// Flags for opening directories.
const LISTED: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Reason for not copying a directory.
pub(super) const ITSELF: &str = "it is the directory that is copied into";
/// Reason for refusing a path through a branch: the copy would find its own files there without end.
pub(super) const BRANCH: &str = "it is a branch of this pool: what is there is in the pool already";

/// The two directories.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) source: OwnedFd,
    pub(super) target: OwnedFd,
    /// The target's number in the pool.
    pub(super) ino: u64,
    /// The source's path as it was typed; empty below the first directory.
    typed: Vec<u8>,
    /// The parent, whose attributes are set after this one's, and the name in it. Whole paths would take the square of the levels.
    above: Option<(Arc<Self>, CString)>,
    /// Names that were in the target before.
    there: Arc<HashSet<CString>>,
    /// Final attributes of the target.
    final_stat: Option<Stat>,
    /// Something was not copied: the mark stays for the next copy.
    lacks: AtomicBool,
    report: Arc<CopyReport>,
}

impl Pair {
    /// Pairs `source` with the target directory of the copy, which keeps its attributes.
    pub(super) fn top(
        source: OwnedFd,
        path: &[u8],
        into: &Destination,
        report: &Arc<CopyReport>,
    ) -> Result<Self, SysError> {
        let target = sys::at::reopen(into.fd.as_fd(), LISTED)?;
        Ok(Self {
            source,
            there: into.names.clone(),
            target,
            ino: into.stat.ino,
            typed: path.to_vec(),
            above: None,
            final_stat: None,
            lacks: AtomicBool::new(false),
            report: report.clone(),
        })
    }

    /// Enters the directory `name` of `above`, made in the pool if missing.
    ///
    /// # Errors
    ///
    /// It cannot be opened or made, or the copy would copy itself.
    pub(super) fn enter(above: &Arc<Self>, name: &CStr, into: &Destination) -> Result<Self, Trouble> {
        let source = sys::at::open(above.source.as_fd(), name, LISTED, 0, Mounts::Cross)?;
        let stat = sys::at::stat_fd(source.as_fd())?;
        let is = |other: &Stat| (stat.dev, stat.ino) == (other.dev, other.ino);
        if is(&into.stat) {
            return Err(Trouble::Said(ITSELF));
        }
        if into.has_branch(&stat) {
            return Err(Trouble::Said(BRANCH));
        }
        let made = sys::at::mkdir(above.target.as_fd(), name, 0o700);
        match made {
            Err(error) if error.errno != Errno::EXIST => return Err(error.into()),
            _ => {}
        }
        let target = match sys::at::open(above.target.as_fd(), name, LISTED, 0, Mounts::Stay) {
            Err(error) if matches!(error.errno, Errno::NOTDIR | Errno::LOOP) => {
                return Err(Trouble::Said(DIFFERS));
            }
            opened => opened?,
        };
        let own = sys::at::stat_fd(target.as_fd())?;
        if is(&own) {
            return Err(Trouble::Said(ITSELF));
        }
        let there = names_in(&target)?;
        let fresh = own.mode & 0o7777 & !0o2000 == 0o700 && own.uid == me() && there.is_empty();
        // Users with write access to the parent may have replaced it.
        if made.is_ok() && !fresh {
            return Err(Trouble::Said(
                "another program changes the pool's directory meanwhile: copy it again",
            ));
        }
        if fresh {
            mark(&target)?;
        }
        let ours = fresh || is_marked(&target);
        Ok(Self {
            source,
            target,
            ino: own.ino,
            typed: Vec::new(),
            above: Some((above.clone(), name.to_owned())),
            there: Arc::new(there),
            final_stat: ours.then_some(stat),
            lacks: AtomicBool::new(false),
            report: above.report.clone(),
        })
    }

    /// The source's path of an entry.
    pub(super) fn path_of(&self, name: &CStr) -> Vec<u8> {
        join(self.path(), name)
    }

    /// The target's path of an entry, below the target directory of the copy.
    pub(super) fn below_of(&self, name: &CStr) -> Vec<u8> {
        join(self.way().1.into_iter().fold(Vec::new(), join), name)
    }

    fn path(&self) -> Vec<u8> {
        let (top, names) = self.way();
        names.into_iter().fold(top.typed.clone(), join)
    }

    /// The directory that the walk began in, and the names from there to this one.
    fn way(&self) -> (&Self, Vec<&CStr>) {
        let (mut top, mut names) = (self, Vec::new());
        while let Some((above, name)) = &top.above {
            names.push(name.as_c_str());
            top = above;
        }
        names.reverse();
        (top, names)
    }

    /// Records that the entry `name` is not copied.
    pub(super) fn fail(&self, name: &CStr, why: impl Display) {
        self.lacks.store(true, Relaxed);
        self.report.fail(&self.path_of(name), why);
    }

    /// Records that something in it is not copied.
    pub(super) fn fail_itself(&self, why: impl Display) {
        self.lacks.store(true, Relaxed);
        self.report.fail(&self.path(), why);
    }

    /// Returns the object that had `name` when the directory was entered, if it still exists.
    pub(super) fn already(&self, name: &CStr) -> Result<Option<Stat>, SysError> {
        if self.there.contains(name) { self.has_now(name) } else { Ok(None) }
    }

    /// Returns the object that has `name` now.
    pub(super) fn has_now(&self, name: &CStr) -> Result<Option<Stat>, SysError> {
        match sys::at::stat(self.target.as_fd(), name) {
            Err(error) if error.errno == Errno::NOENT => Ok(None),
            stat => stat.map(Some),
        }
    }

    /// Gives the target its final attributes, once.
    fn finish(&mut self) {
        let Some(stat) = self.final_stat.take().filter(|_| !self.report.is_stopped()) else { return };
        // The mark is removed last, so that a killed copy leaves it. Flags that forbid changes come last too.
        let (target, lacks) = (self.target.as_fd(), self.lacks.load(Relaxed));
        let set = metadata::directory(target, self.source.as_fd(), &stat).and_then(|frozen| match frozen {
            _ if lacks => Ok(()),
            None => unmark(&self.target),
            Some(flags) => unmark(&self.target).and_then(|()| metadata::freeze(target, flags)),
        });
        match set {
            Ok(()) => self.report.count(Count::Directories),
            Err(error) => self.report.fail(&self.path(), format_args!("its attributes: {}", error.errno)),
        }
    }
}

impl Drop for Pair {
    /// Finishes the directories above, too, whose last entry this was: in a loop, as a thread's stack ends at some thousand levels.
    fn drop(&mut self) {
        self.finish();
        let mut above = self.above.take();
        while let Some(mut dir) = above.and_then(|(dir, _)| Arc::into_inner(dir)) {
            dir.finish();
            above = dir.above.take();
        }
    }
}

fn join(mut path: Vec<u8>, name: &CStr) -> Vec<u8> {
    if !path.is_empty() && path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name.to_bytes());
    path
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Reads the names in a directory that is open for reading.
pub(super) fn names_in(dir: &OwnedFd) -> Result<HashSet<CString>, SysError> {
    let again = sys::at::reopen(dir.as_fd(), LISTED)?;
    let mut entries = Dirents::new(again, 1 << 15);
    let mut names = HashSet::new();
    while let Some(entry) = entries.next()? {
        if !matches!(entry.name.to_bytes(), b"." | b"..") {
            names.insert(entry.name.to_owned());
        }
    }
    Ok(names)
}

/// Name of the mark's attribute: only root can set root's.
fn mark_name() -> &'static CStr {
    if identity::is_root() { c"trusted.copy.unfinished" } else { c"user.copy.unfinished" }
}

fn mark(dir: &OwnedFd) -> Result<(), SysError> {
    match xattr::set(On::Fd(dir.as_fd()), mark_name(), b"1", 0) {
        // Without xattrs there is no mark: a restarted copy leaves the directory as it is.
        Err(error) if matches!(error.errno, Errno::OPNOTSUPP | Errno::PERM) => Ok(()),
        done => done,
    }
}

fn is_marked(dir: &OwnedFd) -> bool {
    xattr::get(On::Fd(dir.as_fd()), mark_name(), &mut []).is_ok_and(|len| len > 0)
}

fn unmark(dir: &OwnedFd) -> Result<(), SysError> {
    match xattr::remove(On::Fd(dir.as_fd()), mark_name()) {
        Err(error) if matches!(error.errno, Errno::OPNOTSUPP | Errno::PERM | Errno::NODATA) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::Plan;
    use std::path::PathBuf;

    #[test]
    fn thousands_of_levels_are_finished_with_little_stack() {
        sys::thread::raise_nofile_limit();
        let home = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let path = home.path().join(name);
            std::fs::create_dir(&path).unwrap();
            sys::at::reopen(sys::at::open_root(&path).unwrap().as_fd(), LISTED).unwrap()
        };
        let (source, fd) = (open("source"), open("into"));
        let stat = sys::at::stat_fd(fd.as_fd()).unwrap();
        let into = Destination { fd, stat, names: Arc::default(), branches: Vec::new() };
        let plan = Plan {
            sources: Vec::new(),
            into: PathBuf::new(),
            mount_point: PathBuf::new(),
            branches: Vec::new(),
            jobs: 1,
            verify: false,
            show: false,
        };
        let report = Arc::new(CopyReport::new(&plan));
        let mut pair = Arc::new(Pair::top(source, b"source", &into, &report).unwrap());
        for _ in 0..2000 {
            sys::at::mkdir(pair.source.as_fd(), c"d", 0o755).unwrap();
            pair = Arc::new(Pair::enter(&pair, c"d", &into).unwrap());
        }
        assert_eq!(
            pair.path_of(c"file"),
            [b"source".to_vec(), b"/d".repeat(2000), b"/file".to_vec()].concat()
        );
        assert_eq!(pair.below_of(c"file").len(), "d/".len() * 2000 + "file".len());
        let small = fsstack_sync::thread::Builder::new().stack_size(128 << 10);
        small.spawn(move || drop(pair)).unwrap().join().unwrap();
        let top = std::fs::metadata(home.path().join("into/d")).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&top.permissions()) & 0o777, 0o755);
    }
}
