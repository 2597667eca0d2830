//! Bulk copy: trees are put into a pool past FUSE, each file straight onto the branch that the pool's policy chooses.
//!
//! One thread walks the sources, makes directories, symbolic links and the like through the mount, and hands out batches
//! of files (`walk.rs`). Each copying thread has a conversation of its own with the daemon (`batch.rs`): it reserves a
//! place for each file of a batch, fills it in the branch's hidden folder, makes the batch durable by one sync of the
//! branch's file system, and has the files named: in one step each, never over anything that has the name.
//!
//! At the end the daemon syncs every branch: a copy that succeeds is on disk, with what it found there already, which a
//! killed copy or another program may have put there a moment before.
//!
//! So at any moment the pool has whole files or none, and a killed copy leaves only whole files: the daemon clears the rest
//! when the connection ends. Started again, a copy skips files that are there already.
//!
//! Root copies other people's trees into other people's trees, while they may change both. So no path is walked: every
//! step is one name in a directory that is held open, below which it stays, and no symbolic link is followed on either
//! side. A directory that was made is closed to others until all of it is there (`pair.rs`).

mod batch;
mod content;
mod links;
mod metadata;
mod pair;
mod report;
mod staging;
mod walk;

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};

use fsstack_control::api::Copied;
use fsstack_control::copying::{CopyAnswer, CopyRequest};
use fsstack_control::{Client, CopyClient};
use fsstack_pool::Printable;
use fsstack_sys::{self as sys, OFlags, Stat};

use crate::command::Failed;
use batch::Worker;
use fsstack_control::registry::DirectoryId;
use links::Links;
use report::CopyReport;
use walk::Walker;

/// Sources, target and options of a copy.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Files and directories.
    pub(crate) sources: Vec<PathBuf>,
    /// A directory of the pool.
    pub(crate) into: PathBuf,
    /// The pool's mount point.
    pub(crate) mount_point: PathBuf,
    /// Its branches.
    pub(crate) branches: Vec<DirectoryId>,
    /// Copying threads.
    pub(crate) jobs: usize,
    /// Read back what was written before it gets its name.
    pub(crate) verify: bool,
    /// Show how far it is on the terminal.
    pub(crate) show: bool,
}

/// The pool's directory that is copied into.
#[derive(Debug)]
pub(crate) struct Destination {
    fd: OwnedFd,
    stat: Stat,
    /// Names that were in it before.
    names: Arc<HashSet<CString>>,
    branches: Vec<DirectoryId>,
}

impl Destination {
    /// Whether that is the root of a branch.
    fn has_branch(&self, stat: &Stat) -> bool {
        self.branches.contains(&DirectoryId { device: stat.dev, inode: stat.ino })
    }
}

/// Copies; what could not be copied is in the answer.
///
/// # Errors
/// The copy could not begin, or the daemon is gone.
pub(crate) fn copy(plan: &Plan, client: &Client) -> Result<Copied, Failed> {
    sys::thread::raise_nofile_limit();
    // Modes are set as they are meant.
    sys::process::umask(0);
    let into = Arc::new(open_into(plan)?);
    let report = Arc::new(CopyReport::new(plan));
    let links = Links::default();
    let (send, receive) = mpsc::sync_channel(plan.jobs);
    let receive = Arc::new(Mutex::new(receive));
    // All of them before any work: a daemon that does not copy is reported at once.
    let workers = (0..plan.jobs)
        .map(|_| Ok(Worker::new(client.copy()?, into.clone(), report.clone(), plan.verify)))
        .collect::<Result<Vec<_>, Failed>>()?;
    let mut last = client.copy()?;
    std::thread::scope(|scope| {
        for mut worker in workers {
            let (receive, links) = (receive.clone(), &links);
            scope.spawn(move || worker.work(&receive, links));
        }
        // Workers that are gone take nothing more.
        drop(receive);
        Walker::new(plan, into.clone(), report.clone(), send).walk();
    });
    // Files some of whose names were not met are frozen now.
    drop(links);
    if !report.is_stopped() {
        sync_all(&mut last, &report)?;
    }
    report.end()
}

/// Has everything in the pool put on disk; what cannot be is reported.
fn sync_all(daemon: &mut CopyClient, report: &CopyReport) -> Result<(), Failed> {
    match daemon.ask(&CopyRequest::Sync)? {
        CopyAnswer::Synced { error: None } => {}
        CopyAnswer::Synced { error: Some(error) } => {
            report.fail(
                b".",
                format_args!("not all of the pool could be synced, so the copy may not be on disk: {error}"),
            );
        }
        CopyAnswer::Refused { error } => return Err(Failed::Refused(format!("the daemon refuses: {error}"))),
        _ => return Err(batch::strange()),
    }
    Ok(())
}

fn open_into(plan: &Plan) -> Result<Destination, Failed> {
    let shown = Printable::path(&plan.into);
    let failed = |error: sys::SysError| Failed::system(shown, &error.errno.into());
    let open = || {
        let fd = open_path(&plan.into)?;
        let (stat, names) = (sys::at::stat_fd(fd.as_fd())?, Arc::new(pair::names_in(&fd)?));
        Ok(Destination { fd, stat, names, branches: plan.branches.clone() })
    };
    let into = open().map_err(failed)?;
    let root = sys::at::open_root(&plan.mount_point).and_then(|root| sys::at::stat_fd(root.as_fd()));
    if root.map_err(failed)?.dev != into.stat.dev {
        return Err(Failed::Missing(format!(
            "{shown}: another file system is mounted there, inside the pool"
        )));
    }
    Ok(into)
}

/// The directory at a path that the user typed, links in it followed.
fn open_path(path: &Path) -> Result<OwnedFd, sys::SysError> {
    let wrong = |error: std::io::Error| {
        let errno = sys::Errno::from_io_error(&error).unwrap_or(sys::Errno::IO);
        sys::SysError::new(sys::Call::Open, errno)
    };
    let full = std::fs::canonicalize(path).map_err(wrong)?;
    let dir = sys::at::open_root(&full)?;
    sys::at::reopen(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)
}
