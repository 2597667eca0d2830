//! Bulk copy: files go directly to the branch that the pool's policy chooses, without FUSE.
//!
//! One thread walks the sources, makes directories, symbolic links and special files through the mount, and queues
//! batches of files (`walk.rs`). Each copying thread has its own dialogue with the daemon (`batch.rs`). It reserves
//! space for each file of a batch, writes it in the branch's hidden folder, syncs the batch by one sync of the branch's
//! file system, and gives each file its name atomically, never replacing an object.
//!
//! At the end the daemon syncs every branch: after a successful copy everything is on disk, including objects found
//! there, which a killed copy or another program may have just made.
//!
//! So at any moment the pool has complete files or none; the daemon removes incomplete ones when the connection ends, and begins
//! them anew where it was replaced.
//! Started again, a copy skips existing files.
//!
//! Root may copy between trees of other users, who may change both meanwhile. So no path is walked: every step is one
//! name in an open directory, and no symbolic link is followed on either side. A directory made by the copy is closed
//! to others until it is complete (`pair.rs`).

mod batch;
mod content;
mod incoming;
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
use std::sync::Arc;

use fsstack_control::api::Copied;
use fsstack_control::copying::{CopyAnswer, CopyRequest};
use fsstack_control::{Client, ClientError, CopyClient};
use fsstack_pool::Printable;
use fsstack_sync::Mutex;
use fsstack_sync::mpsc;
use fsstack_sys::{self as sys, OFlags, Stat};

use crate::command::Failed;
use crate::command::mounted::check_writable;
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
    /// Read back written files before they get their names.
    pub(crate) verify: bool,
    /// Show progress on the terminal.
    pub(crate) show: bool,
}

/// The target directory in the pool.
#[derive(Debug)]
pub(crate) struct Destination {
    fd: OwnedFd,
    stat: Stat,
    /// Names that were in it before.
    names: Arc<HashSet<CString>>,
    branches: Vec<DirectoryId>,
}

impl Destination {
    /// True if `stat` is the root of a branch.
    fn has_branch(&self, stat: &Stat) -> bool {
        self.branches.contains(&DirectoryId { device: stat.dev, inode: stat.ino })
    }
}

/// Runs the copy; objects that were not copied are listed in the result.
///
/// # Errors
///
/// The copy could not start, or the daemon is gone.
pub(crate) fn copy(plan: &Plan, client: &Client) -> Result<Copied, Failed> {
    sys::thread::raise_nofile_limit();
    // Modes are set explicitly.
    sys::process::umask(0);
    let into = Arc::new(open_into(plan)?);
    let report = Arc::new(CopyReport::new(plan));
    let links = Links::default();
    let (send, receive) = mpsc::sync_channel(plan.jobs);
    let receive = Arc::new(Mutex::new(receive));
    // All connections first, so that a daemon without bulk copy is reported at once.
    let workers = (0..plan.jobs)
        .map(|_| Worker::new(client, into.clone(), report.clone(), plan.verify))
        .collect::<Result<Vec<_>, Failed>>()?;
    let mut last = client.copy()?;
    fsstack_sync::thread::scope(|scope| {
        for mut worker in workers {
            let (receive, links) = (receive.clone(), &links);
            scope.spawn(move || worker.work(&receive, links));
        }
        // Workers hold the only other receivers.
        drop(receive);
        Walker::new(plan, into.clone(), report.clone(), send).walk();
    });
    // Files with names outside the sources get their final flags now.
    drop(links);
    if !report.is_stopped() {
        sync_all(client, &mut last, &report)?;
    }
    report.end()
}

/// Makes the daemon sync everything in the pool; failures are reported.
fn sync_all(client: &Client, daemon: &mut CopyClient, report: &CopyReport) -> Result<(), Failed> {
    let mut answer = daemon.ask(&CopyRequest::Sync);
    if matches!(answer, Err(ClientError::Dead(_))) {
        // The daemon was replaced meanwhile.
        *daemon = client.copy()?;
        answer = daemon.ask(&CopyRequest::Sync);
    }
    match answer? {
        CopyAnswer::Synced { error: None } => {}
        CopyAnswer::Synced { error: Some(error) } => {
            report.not_synced(error);
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
    check_writable(&plan.mount_point, into.stat.mnt_id)?;
    let root = sys::at::open_root(&plan.mount_point).and_then(|root| sys::at::stat_fd(root.as_fd()));
    if root.map_err(failed)?.dev != into.stat.dev {
        return Err(Failed::Missing(format!(
            "{shown}: another file system is mounted there, inside the pool"
        )));
    }
    Ok(into)
}

/// Opens the directory at a path from the user; links in it are followed.
fn open_path(path: &Path) -> Result<OwnedFd, sys::SysError> {
    let wrong = |error: std::io::Error| {
        let errno = sys::Errno::from_io_error(&error).unwrap_or(sys::Errno::IO);
        sys::SysError::new(sys::Call::Open, errno)
    };
    let full = std::fs::canonicalize(path).map_err(wrong)?;
    let dir = sys::at::open_root(&full)?;
    sys::at::reopen(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)
}
