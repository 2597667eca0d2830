//! Hard links: a file's first name is copied, its further names become links in the pool.
//!
//! A thread that finds a further name while the first is being copied queues it there; the thread that copies makes the
//! links.
//!
//! The first name is looked up again for each further one, perhaps much later and in directories that others may
//! change. So the object found must still have the file's number before it gets another name.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fsstack_sync::Mutex;
use fsstack_sys::at::Mounts;
use fsstack_sys::{self as sys, OFlags, Stat, SysError};

use super::incoming::{DIFFERS, Item, Trouble};
use super::metadata::Freeze;
use super::report::Count;

/// A file with several names that is in the pool.
#[derive(Debug)]
pub(super) struct Here {
    /// Path of its first name below the target directory.
    pub(super) below: Vec<u8>,
    /// Its number in the pool.
    pub(super) ino: u64,
    /// An immutable or append-only file takes no further name, so those flags are set when no name is awaited.
    pub(super) _freeze: Option<Freeze>,
}

impl Here {
    /// Links it under the name of `item`; `into` is the target directory.
    ///
    /// # Errors
    ///
    /// Another object has the first name, or this one.
    pub(super) fn link(&self, into: BorrowedFd<'_>, item: &Item) -> Result<Count, Trouble> {
        if let Some(there) = item.dir.already(&item.name)? {
            return match there.ino == self.ino {
                true => Ok(Count::AlreadyThere),
                false => Err(Trouble::Said(DIFFERS)),
            };
        }
        let file = self.open(into)?;
        if sys::at::stat_fd(file.as_fd())?.ino != self.ino {
            return Err(Trouble::Said(
                "another program has replaced another name of this file: copy it again",
            ));
        }
        sys::at::link_fd(file.as_fd(), item.dir.target.as_fd(), &item.name)?;
        Ok(Count::HardLinks)
    }

    /// Opens component by component, as the path may exceed PATH_MAX.
    fn open(&self, into: BorrowedFd<'_>) -> Result<OwnedFd, SysError> {
        let mut at: Option<OwnedFd> = None;
        for name in self.below.split(|byte| *byte == b'/') {
            let name = CString::new(name).map_err(|_| SysError::new(sys::Call::Open, sys::Errno::INVAL))?;
            let above = at.as_ref().map_or(into, AsFd::as_fd);
            at = Some(sys::at::open(above, &name, OFlags::PATH, 0, Mounts::Stay)?);
        }
        at.ok_or(SysError::new(sys::Call::Open, sys::Errno::NOENT))
    }
}

/// Files with several names, by device and inode number.
#[derive(Debug, Default)]
pub(super) struct Links(Mutex<HashMap<(u64, u64), FirstLink>>);

/// State of a file's first name, and the number of names not yet found.
#[derive(Debug)]
struct FirstLink {
    left: u32,
    stage: LinkStage,
}

#[derive(Debug)]
enum LinkStage {
    /// Being copied; these names wait for it.
    Coming(Vec<Item>),
    /// It is in the pool.
    There(Arc<Here>),
}

/// Next step for a name.
#[derive(Debug)]
pub(super) enum NextStep {
    /// The first name: copy it, then call [`Links::settle`].
    Copy(Item),
    /// A further name: link it to the existing file.
    Link(Item, Arc<Here>),
    /// The thread that copies the first name does it.
    Wait,
}

impl Links {
    /// Registers a name of the file `stat`, which has several.
    pub(super) fn meet(&self, stat: &Stat, item: Item) -> NextStep {
        let mut known = self.0.lock();
        let key = (stat.dev, stat.ino);
        let Some(first) = known.get_mut(&key) else {
            known.insert(
                key,
                FirstLink { left: stat.nlink.saturating_sub(1), stage: LinkStage::Coming(Vec::new()) },
            );
            return NextStep::Copy(item);
        };
        first.left = first.left.saturating_sub(1);
        match &mut first.stage {
            LinkStage::Coming(waiting) => {
                waiting.push(item);
                NextStep::Wait
            }
            LinkStage::There(at) => {
                let at = at.clone();
                if first.left == 0 {
                    known.remove(&key);
                }
                NextStep::Link(item, at)
            }
        }
    }

    /// Ends the copy of the first name of `stat`, at `at` in the pool or failed. Returns the names that have waited.
    pub(super) fn settle(&self, stat: &Stat, at: Option<Arc<Here>>) -> Vec<Item> {
        let mut known = self.0.lock();
        let key = (stat.dev, stat.ino);
        let Some(first) = known.get_mut(&key) else { return Vec::new() };
        let LinkStage::Coming(waiting) = &mut first.stage else { return Vec::new() };
        let waiting = std::mem::take(waiting);
        match at {
            // After a failure the next name found is copied instead.
            None => drop(known.remove(&key)),
            Some(_) if first.left == 0 => drop(known.remove(&key)),
            Some(at) => first.stage = LinkStage::There(at),
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::pair::{Pair, names_in};
    use crate::copy::report::CopyReport;
    use crate::copy::{Destination, Plan};
    use std::os::unix::fs::MetadataExt;
    use std::path::{Path, PathBuf};

    /// A further name in the directory `into`.
    fn further(into: &Path, name: &str) -> (Destination, Item) {
        let open = || sys::at::reopen(sys::at::open_root(into).unwrap().as_fd(), OFlags::RDONLY).unwrap();
        let fd = open();
        let stat = sys::at::stat_fd(fd.as_fd()).unwrap();
        let names = Arc::new(names_in(&fd).unwrap());
        let to = Destination { fd, stat, names, branches: Vec::new() };
        let plan = Plan {
            sources: Vec::new(),
            into: into.to_owned(),
            mount_point: PathBuf::new(),
            branches: Vec::new(),
            jobs: 1,
            verify: false,
            show: false,
        };
        let dir = Pair::top(open(), b"source", &to, &Arc::new(CopyReport::new(&plan))).unwrap();
        (to, Item { dir: Arc::new(dir), name: CString::new(name).unwrap() })
    }

    #[test]
    fn an_object_that_took_the_first_name_meanwhile_gets_no_other() {
        let home = tempfile::tempdir().unwrap();
        let first = home.path().join("first");
        std::fs::write(&first, "ours").unwrap();
        let here = |ino| Here { below: b"first".to_vec(), ino, _freeze: None };
        let ino = std::fs::metadata(&first).unwrap().ino();
        let (to, item) = further(home.path(), "second");
        assert!(here(ino + 1).link(to.fd.as_fd(), &item).is_err());
        assert!(!home.path().join("second").exists());
        assert_eq!(here(ino).link(to.fd.as_fd(), &item).unwrap(), Count::HardLinks);
        assert_eq!(std::fs::metadata(home.path().join("second")).unwrap().ino(), ino);
    }

    #[test]
    fn the_first_name_may_be_deeper_than_a_path_is_long() {
        let home = tempfile::tempdir().unwrap();
        let (to, item) = further(home.path(), "second");
        let name = CString::new("d".repeat(200)).unwrap();
        let (mut at, mut below) = (to.fd.try_clone().unwrap(), Vec::new());
        for _ in 0..30 {
            sys::at::mkdir(at.as_fd(), &name, 0o700).unwrap();
            at = sys::at::open_dir(at.as_fd(), &name, Mounts::Stay).unwrap();
            below.extend_from_slice(name.to_bytes());
            below.push(b'/');
        }
        below.extend_from_slice(b"first");
        let how = OFlags::CREATE | OFlags::RDWR;
        let file = sys::at::open(at.as_fd(), c"first", how, 0o600, Mounts::Stay).unwrap();
        let ino = sys::at::stat_fd(file.as_fd()).unwrap().ino;
        let here = Here { below, ino, _freeze: None };
        assert_eq!(here.link(to.fd.as_fd(), &item).unwrap(), Count::HardLinks);
    }
}
