//! Unmounting a pool.
//!
//! An unused mount is unmounted, and the kernel writes back its caches. A mount in use is detached without loss of
//! acknowledged writes: it is synced, its transport closed, and it is synced once more. The connection is aborted only
//! when all pending requests have been answered.
//!
//! The mount at the pool's path may not be the only one: the file system lives on where it is bound to another path, in another mount
//! namespace (a container that was started meanwhile), or as the working directory of a program after a lazy unmount. The daemon is to
//! end all the same, so the pool is ended like one in use then. Without a path that leads there, all file systems are synced.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;

use fsstack_sync::Mutex;
use fsstack_sync::mpsc::{self, Receiver, Sender};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::mounts::{self, MountInfo, UmountFlags};
use fsstack_sys::{file, fusectl};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
    /// /dev/fuse of its connection.
    pub(crate) device: Arc<OwnedFd>,
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

/// Mount at the pool's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtPath {
    /// The pool, and nowhere else in this mount namespace.
    Pool,
    /// The pool, which is mounted at another path too.
    PoolAndElsewhere,
    /// Another file system, over the pool.
    Covered,
    /// Not the pool.
    Other,
}

impl Unmounter {
    /// Unmounts. If programs still use the mount, detaches it when acknowledged writes have been stored, or after
    /// `timeout`. `closer` closes its transport; `None` if nothing was served yet. Once it is closed this does not fail.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn unmount(&self, closer: Option<&Closer>, timeout: Duration) -> io::Result<Unmount> {
        let deadline = Instant::now() + timeout;
        let at_path = self.at_path();
        match at_path {
            AtPath::Covered => return Err(io::Error::other("another file system is mounted over it")),
            AtPath::Other if !is_connected(&self.device) => return Ok(Unmount::Gone),
            AtPath::Pool if matches!(self.method, UnmountMethod::Syscall) => {
                let gently = UmountFlags { nofollow: true, ..Default::default() };
                match mounts::umount(&self.target, gently) {
                    Err(error) if error.errno == Errno::BUSY => {}
                    Err(error) => return Err(error.errno.into()),
                    Ok(()) if !is_connected(&self.device) => return Ok(Unmount::Gone),
                    Ok(()) => return Ok(self.end_elsewhere(closer, deadline)),
                }
            }
            AtPath::Pool | AtPath::PoolAndElsewhere => {}
            AtPath::Other => return Ok(self.end_elsewhere(closer, deadline)),
        }
        if at_path == AtPath::PoolAndElsewhere || matches!(self.method, UnmountMethod::Syscall) {
            tracing::warn!("pool in use: it is synced and detached; programs that use it see errors");
        }
        let Some(closer) = closer else { return self.take_away() };
        self.settle(SyncAt::Target(self.target.clone(), self.dev), closer, deadline);
        Ok(self.take_away().unwrap_or_else(|error| {
            tracing::error!(
                "pool cannot be unmounted: {error}; it ends all the same: umount -l {}",
                self.target.display()
            );
            self.abort()
        }))
    }

    /// Looks at the path, without a request to any file system.
    fn at_path(&self) -> AtPath {
        let Some(dev) = self.dev else { return AtPath::Pool };
        let mounts = mounts::list().unwrap_or_default();
        let is_here = |mount: &MountInfo| mount.mount_point == self.target;
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            mounts.iter().filter(|mount| mount.device() == dev).partition(|mount| is_here(mount));
        match device_at(&self.target) == self.dev {
            true if elsewhere.is_empty() => AtPath::Pool,
            true => AtPath::PoolAndElsewhere,
            false if here.is_empty() => AtPath::Other,
            false => AtPath::Covered,
        }
    }

    /// Ends the pool where it has no mount at its path any more, and its file system lives on.
    fn end_elsewhere(&self, closer: Option<&Closer>, deadline: Instant) -> Unmount {
        tracing::warn!(
            "pool lives on at another path, in another mount namespace, or detached: it is synced and ended; programs that use it see errors"
        );
        if let Some(closer) = closer {
            self.settle(SyncAt::All, closer, deadline);
        }
        self.abort()
    }

    /// Has the kernel write back acknowledged writes, and waits for pending requests.
    fn settle(&self, at: SyncAt, closer: &Closer, deadline: Instant) {
        let sync = Sync::start(at);
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

    /// Detaches the mount. Another one may be there by now, as the sync may have taken long: that one stays.
    fn take_away(&self) -> io::Result<Unmount> {
        if matches!(self.at_path(), AtPath::Covered | AtPath::Other) {
            return Ok(self.abort());
        }
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
        Ok(self.abort())
    }

    /// Ends the connection, wherever the file system is mounted.
    fn abort(&self) -> Unmount {
        let Some(dev) = self.dev else { return Unmount::Detached };
        match fusectl::abort(fusectl::connection_of(dev)) {
            Ok(()) => Unmount::Aborted,
            Err(error) => {
                tracing::debug!(%error, "the connection ends with the daemon");
                Unmount::Detached
            }
        }
    }
}

/// False once the file system of `device` has ended.
fn is_connected(device: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(device, PollFlags::empty())];
    // An error is reported without being asked for.
    poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err()
        || !asked[0].revents().contains(PollFlags::ERR)
}

/// Extent of a sync.
#[derive(Debug)]
enum SyncAt {
    /// The mount at the path if its device is the given one.
    Target(PathBuf, Option<u64>),
    /// All file systems of the machine. Errors are unknown.
    All,
}

/// A thread that syncs the mount: a daemon that waits for its own mount could wait for ever.
struct Sync {
    go: Sender<()>,
    received: Receiver<Result<(), String>>,
}

impl Sync {
    fn start(at: SyncAt) -> io::Result<Self> {
        let (go, asked) = mpsc::channel::<()>();
        let (tell, received) = mpsc::channel();
        let thread = fsstack_sync::thread::Builder::new().name("sync".into());
        thread.spawn(move || {
            let root = match at {
                SyncAt::Target(target, dev) => {
                    open_root(&target, dev).map(Some).map_err(|error| error.to_string())
                }
                SyncAt::All => Ok(None),
            };
            while asked.recv().is_ok() {
                let synced = match &root {
                    Ok(Some(root)) => file::syncfs(root.as_fd()).map_err(|error| error.to_string()),
                    Ok(None) => {
                        rustix::fs::sync();
                        Ok(())
                    }
                    Err(error) => Err(error.clone()),
                };
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
