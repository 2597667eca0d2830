//! Unmounting a pool.
//!
//! An unused mount is unmounted, and the kernel writes back its caches. A mount in use is detached without loss of
//! acknowledged writes: it is synced, its transport closed, and it is synced once more. The connection is aborted only
//! when all pending requests have been answered.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use fsstack_sys::mounts::{self, UmountFlags};
use fsstack_sys::{file, fusectl};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::transport::Closer;

/// Result of removing a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// It is unmounted.
    Gone,
    /// It was in use: it is detached from the tree, and its connection has ended.
    Aborted,
    /// It was in use: it is detached from the tree, and its connection ends with the daemon.
    Detached,
}

/// Unmounts a pool.
#[derive(Clone, Debug)]
pub struct Unmounter {
    pub(crate) target: PathBuf,
    pub(crate) method: UnmountMethod,
    pub(crate) dev: Option<u64>,
}

/// Method of unmounting.
#[derive(Clone, Debug)]
pub(crate) enum UnmountMethod {
    Syscall,
    UnmountHelper(Arc<UnmountHelper>),
}

/// A process that waits to run fusermount3. The daemon gives up the right to start set-uid programs when it serves, so
/// this process is started before. It ends with the daemon.
#[derive(Debug)]
pub(crate) struct UnmountHelper(Mutex<Child>);

impl UnmountHelper {
    pub(crate) fn start(target: &Path) -> io::Result<Self> {
        let script = r#"read -r word && exec fusermount3 -u -q -z -- "$1""#;
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", script, "fsstack-unmount"]).arg(target);
        // Its own process group, so that a signal to the daemon's group, as by Ctrl-C, reaches only the daemon.
        shell.current_dir("/").process_group(0);
        let started = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self(Mutex::new(started)))
    }

    /// Runs fusermount3. A second call finds nothing to run.
    fn unmount(&self) -> io::Result<()> {
        let mut child = self.0.lock();
        let mut received =
            child.stdin.take().ok_or_else(|| io::Error::other("fusermount3 -u was run already"))?;
        received.write_all(b"unmount\n")?;
        drop(received);
        if child.wait()?.success() { Ok(()) } else { Err(io::Error::other("fusermount3 -u failed")) }
    }
}

/// Runs umount(8) with `arguments` and without helpers: it may have rights that its caller has not. Returns the exit code; `None`: a
/// signal ended it.
///
/// # Errors
/// It cannot be started.
pub fn by_umount(arguments: &[OsString]) -> io::Result<Option<u8>> {
    let ended = std::process::Command::new("umount").arg("-i").args(arguments).status()?;
    Ok(ended.code().and_then(|code| u8::try_from(code).ok()))
}

/// Returns the device number of the mount at `target`, without a request to any file system.
pub(crate) fn device_at(target: &Path) -> Option<u64> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let received = rustix::fs::statx(CWD, target, flags, StatxFlags::TYPE).ok()?;
    Some(rustix::fs::makedev(received.stx_dev_major, received.stx_dev_minor))
}

impl Unmounter {
    /// Unmounts. If programs still use the mount, detaches it when acknowledged writes have been stored, or after
    /// `timeout`. `closer` closes its transport; `None` if nothing was served yet.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn unmount(&self, closer: Option<&Closer>, timeout: Duration) -> io::Result<Unmount> {
        if self.dev.is_some() && device_at(&self.target) != self.dev {
            return Err(io::Error::other("another file system is mounted over it"));
        }
        if matches!(self.method, UnmountMethod::Syscall) {
            let gently = UmountFlags { nofollow: true, ..Default::default() };
            match mounts::umount(&self.target, gently) {
                Err(error) if error.errno == Errno::BUSY => {}
                done => return done.map(|()| Unmount::Gone).map_err(|error| error.errno.into()),
            }
            tracing::warn!("pool in use: it is synced and detached; programs that use it see errors");
        }
        if let Some(closer) = closer {
            self.settle(closer, Instant::now() + timeout);
        }
        self.take_away()
    }

    /// Has the kernel write back acknowledged writes, and waits for pending requests.
    fn settle(&self, closer: &Closer, deadline: Instant) {
        let sync = Sync::start(self.target.clone(), self.dev);
        if let Err(error) = sync.as_ref().map_err(io::Error::to_string).and_then(|sync| sync.done(deadline)) {
            tracing::error!("sync at the end of the pool failed: {error}; recent writes may be lost");
        }
        closer.close();
        // Second sync, for later writes. The first has reported its errors.
        if let Ok(sync) = sync {
            let _again = sync.done(deadline);
        }
        if !closer.is_drained(deadline) {
            tracing::warn!("pool ends before all requests are answered; their programs see errors");
        }
    }

    fn take_away(&self) -> io::Result<Unmount> {
        if let UnmountMethod::UnmountHelper(helper) = &self.method {
            helper.unmount()?;
        } else {
            let force = UmountFlags { nofollow: true, detach: true, force: true };
            match mounts::umount(&self.target, force) {
                // Only the initial user namespace may do this.
                Err(error) if error.errno == Errno::PERM => {
                    let lazily = UmountFlags { force: false, ..force };
                    mounts::umount(&self.target, lazily).map_err(|error| io::Error::from(error.errno))?;
                }
                done => return done.map(|()| Unmount::Aborted).map_err(|error| error.errno.into()),
            }
        }
        let Some(dev) = self.dev else { return Ok(Unmount::Detached) };
        match fusectl::abort(fusectl::connection_of(dev)) {
            Ok(()) => Ok(Unmount::Aborted),
            Err(error) => {
                tracing::debug!(%error, "the connection ends with the daemon");
                Ok(Unmount::Detached)
            }
        }
    }
}

/// A thread that syncs the mount: a daemon that waits for its own mount could wait for ever.
struct Sync {
    go: Sender<()>,
    received: Receiver<Result<(), String>>,
}

impl Sync {
    /// Syncs the mount at `target` if its device is `dev`.
    fn start(target: PathBuf, dev: Option<u64>) -> io::Result<Self> {
        let (go, asked) = mpsc::channel::<()>();
        let (tell, received) = mpsc::channel();
        let thread = std::thread::Builder::new().name("sync".into());
        thread.spawn(move || {
            let root = open_root(&target, dev).map_err(|error| error.to_string());
            while asked.recv().is_ok() {
                let synced = root
                    .as_ref()
                    .map_err(String::clone)
                    .and_then(|root| file::syncfs(root.as_fd()).map_err(|error| error.to_string()));
                if tell.send(synced).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { go, received })
    }

    fn done(&self, deadline: Instant) -> Result<(), String> {
        // The thread waits until `self.go` is dropped.
        let _asked = self.go.send(());
        let left = deadline.saturating_duration_since(Instant::now());
        self.received.recv_timeout(left).map_err(|_| "no answer in time".to_owned())?
    }
}

fn open_root(target: &Path, dev: Option<u64>) -> io::Result<OwnedFd> {
    if device_at(target) != dev {
        return Err(io::Error::other("another file system is mounted there"));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(target, flags, Mode::empty())?)
}
