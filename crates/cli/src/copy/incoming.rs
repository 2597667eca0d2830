//! A file that is being copied, and looks at it on both sides.

use std::ffi::CString;
use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_engine::carry::is_same;
use fsstack_sys::at::Mounts;
use fsstack_sys::{self as sys, Call, Errno, OFlags, Stat, SysError};

use super::pair::Pair;

/// Reason for not replacing an existing object.
pub(super) const DIFFERS: &str = "the pool has another one of that name: remove one of them";

/// Reason for not copying what another program writes.
pub(super) const CHANGED: &str = "it changed while it was read: copy it again";

/// A file to copy.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) dir: Arc<Pair>,
    pub(super) name: CString,
}

impl Item {
    /// Records that it is not copied.
    pub(super) fn fail(&self, why: impl Display) {
        self.dir.fail(&self.name, why);
    }
}

/// A file being copied.
pub(super) struct Incoming {
    pub(super) item: Item,
    pub(super) from: OwnedFd,
    pub(super) stat: Stat,
    /// Slots of branches that had no room.
    pub(super) not_on: Vec<u16>,
    /// Its place: reservation and branch.
    pub(super) id: u64,
    pub(super) slot: u16,
    pub(super) to: Option<OwnedFd>,
    /// Flags to set after it has its name.
    pub(super) flags: Option<u32>,
    pub(super) stage: Stage,
    /// The daemon was replaced after it was asked to name the file.
    pub(super) may_be_named: bool,
}

/// How far the copy of a file has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It needs a place.
    Open,
    /// It has a place.
    Placed,
    /// It is written there, and not known to be on disk.
    Written,
    /// It is on disk.
    Whole,
    /// It has its name, or is not copied.
    Over,
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
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Sys(error) if matches!(error.errno, Errno::NOSPC | Errno::DQUOT))
    }
}

/// The files that have come so far.
pub(super) fn in_stage(files: &mut [Incoming], stage: Stage) -> impl Iterator<Item = &mut Incoming> {
    files.iter_mut().filter(move |file| file.stage == stage)
}

/// Returns the pool's number of the file just named, if the name still means it.
pub(super) fn number_of(item: &Item, to: &OwnedFd) -> Result<u64, Trouble> {
    let (named, own) = (sys::at::stat(item.dir.target.as_fd(), &item.name)?, sys::at::stat_fd(to.as_fd())?);
    let looks = |stat: &Stat| (stat.mode, stat.uid, stat.gid, stat.size, stat.mtime);
    match looks(&named) == looks(&own) {
        true => Ok(named.ino),
        false => Err(Trouble::Said("another program has replaced it meanwhile: copy it again")),
    }
}

/// Opens the file that the pool has under the name, if it is still the one numbered `ino`: in a directory of another user it may be
/// anything by now, a fifo too.
pub(super) fn open_there(item: &Item, ino: u64) -> Result<Option<OwnedFd>, SysError> {
    let how = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = sys::at::open(item.dir.target.as_fd(), &item.name, how, 0, Mounts::Stay)?;
    let stat = sys::at::stat_fd(file.as_fd())?;
    Ok(Some(file).filter(|_| stat.is_file() && stat.ino == ino))
}

/// Syncs one file. A remote branch may report a failed write only at close.
pub(super) fn sync_alone(file: &Incoming) -> Result<(), Trouble> {
    let Some(to) = &file.to else { return Err(SysError::new(Call::Fsync, Errno::BADF).into()) };
    sys::file::fsync(to.as_fd())?;
    sys::file::flush(to.as_fd())?;
    Ok(())
}

/// Compares with the content on disk, not in the page cache.
pub(super) fn compare(file: &Incoming) -> Result<(), Trouble> {
    let Some(to) = &file.to else { return Err(SysError::new(Call::Read, Errno::BADF).into()) };
    sys::file::drop_cached(to.as_fd())?;
    match is_same(file.from.as_fd(), to.as_fd())? {
        true => Ok(()),
        false => Err(Trouble::Said("what was written reads back as something else: the branch is at fault")),
    }
}
