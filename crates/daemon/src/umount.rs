//! `umount.fsstack`, also umount(8)'s helper of the types `fuse.fsstack` and `fuseblk.fsstack`: unmounts a pool, and returns when its
//! daemon has ended.
//!
//! A FUSE file system is gone from the mount table before its daemon has closed the branches. So a mount of the pool, or an
//! fsck of a branch, right after umount(8) would still find the daemon there.
//! umount(8) calls it where it reads the mount table (`-a`, `-f`, a user's). Else statfs(2) tells it the type `fuse` alone (util-linux 2.38).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fsstack_control::registry::{self, RegistryEntry};
use fsstack_fuse::unmount::by_umount;
use fsstack_pool::Printable;
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::keeper::Watched;
use fsstack_sys::{fusectl, mounts};

use crate::problem::Failure;
use crate::tell;

/// How long umount waits for the daemon. It ends later only where a branch hangs.
const DAEMON_END_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between two looks whether the pool is mounted elsewhere too.
const MOUNTS_LOOK_PAUSE: Duration = Duration::from_millis(200);

/// True if the program was called by a name under which umount(8) calls it.
pub(crate) fn is_called(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name.as_bytes().starts_with(b"umount."))
}

/// Unmounts as umount(8) asks for: `TARGET [-flnrv] [-N NAMESPACE] [-t TYPE]`. Returns the exit code.
pub(crate) fn run(arguments: &[OsString]) -> u8 {
    let watched = UmountArguments::read(arguments)
        .and_then(|asked| asked.waits.then(|| Daemon::of(asked.target)).flatten());
    let code = match by_umount(arguments) {
        Ok(code) => code,
        Err(error) => {
            tell(&format!("umount: {error}; install util-linux"));
            return Failure::System.exit_code();
        }
    };
    if code == Some(0)
        && let Some(daemon) = watched
    {
        daemon.wait();
    }
    code.unwrap_or(Failure::System.exit_code())
}

/// Part of the arguments that decides about waiting.
#[derive(Debug, PartialEq, Eq)]
struct UmountArguments<'a> {
    target: &'a OsStr,
    /// False for `-l`, which leaves the pool to those that use it, and for another mount namespace.
    waits: bool,
}

impl<'a> UmountArguments<'a> {
    fn read(arguments: &'a [OsString]) -> Option<Self> {
        let (mut target, mut waits) = (None, true);
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_bytes() {
                [b'-', b'-', long @ ..] => waits &= !matches!(long, b"lazy" | b"namespace"),
                [b'-', flags @ ..] if !flags.is_empty() => {
                    waits &= !flags.iter().any(|flag| matches!(flag, b'l' | b'N'));
                    // The value of -t or -N is the next word.
                    if matches!(flags.last(), Some(b't' | b'N')) {
                        let _value = rest.next();
                    }
                }
                _ => target = target.or(Some(argument.as_os_str())),
            }
        }
        target.map(|target| Self { target, waits })
    }
}

/// The daemon of a mounted pool.
#[derive(Debug)]
struct Daemon {
    pid: u32,
    watched: Watched,
    mount_point: PathBuf,
    /// Device of the file system. The next one may get the same.
    dev: u64,
    /// Number of the connection, which no other one gets; `None` where the kernel's list is not mounted.
    connection: Option<u64>,
}

impl Daemon {
    /// The daemon of the pool at `target`; `None` if it is not known, or in another PID namespace.
    fn of(target: &OsStr) -> Option<Self> {
        // The path of a dead mount cannot be resolved; umount(8) gives it in the words of the mount table.
        let mount_point = Path::new(target).canonicalize().unwrap_or_else(|_| target.into());
        let mount = mounts::list().ok()?.into_iter().rfind(|mount| mount.mount_point == mount_point)?;
        if !mount.is_fuse() {
            return None;
        }
        let all = registry::read(&registry::own()?);
        // A pool that was mounted over another one started later.
        let here = |entry: &RegistryEntry| entry.mount_point() == mount_point;
        let entry = all.into_iter().filter(here).max_by_key(|entry| entry.started)?;
        let watched = Watched::new(i32::try_from(entry.pid).ok()?).ok()?;
        // UmountArguments after the process is held: its number may have been another one's.
        let connection = connection(mount.device());
        entry.is_visible().then_some(Self {
            pid: entry.pid,
            watched,
            mount_point,
            dev: mount.device(),
            connection,
        })
    }

    /// Waits for its end, unless it serves the pool elsewhere.
    fn wait(&self) {
        let began = Instant::now();
        // Once, where all that can be asked is the device, which the next mount may get.
        if self.connection.is_none() && self.is_listed() {
            return;
        }
        while began.elapsed() < DAEMON_END_TIMEOUT {
            // An error is as good as its end: nothing can be waited for.
            if self.watched.wait_for(MOUNTS_LOOK_PAUSE).unwrap_or(true) || self.serves() {
                return;
            }
        }
        tell(&format!(
            "{}: unmounted, but its daemon (process {}) has not ended within {} s: a branch may hang; wait for its end before fsck or mount",
            Printable::path(&self.mount_point),
            self.pid,
            DAEMON_END_TIMEOUT.as_secs()
        ));
    }

    /// True while the pool is mounted at another place: a bind mount, or in another mount namespace.
    fn serves(&self) -> bool {
        self.connection.is_some() && connection(self.dev) == self.connection
    }

    /// True if this process sees another mount of it.
    fn is_listed(&self) -> bool {
        mounts::list().is_ok_and(|all| all.iter().any(|mount| mount.device() == self.dev))
    }
}

/// The number of a connection's directory.
fn connection(dev: u64) -> Option<u64> {
    std::fs::metadata(fusectl::directory_of(fusectl::connection_of(dev))).ok().map(|found| found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<(String, bool)> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        UmountArguments::read(&words).map(|asked| (asked.target.to_string_lossy().into_owned(), asked.waits))
    }

    #[test]
    fn the_arguments_of_umount_are_understood() {
        let waits = |target: &str, waits| Some((target.to_owned(), waits));
        assert_eq!(read("/pool"), waits("/pool", true));
        assert_eq!(read("/pool -f -r -v -t fuse.fsstack"), waits("/pool", true));
        assert_eq!(read("-t fuse.fsstack /pool"), waits("/pool", true));
        assert_eq!(read("/pool -fl"), waits("/pool", false));
        assert_eq!(read("-N /proc/7/ns/mnt /pool"), waits("/pool", false));
        assert_eq!(read("-v"), None);
    }

    #[test]
    fn the_name_decides() {
        assert!(is_called(OsStr::new("/sbin/umount.fuse.fsstack")));
        assert!(!is_called(OsStr::new("/sbin/mount.fuse.fsstack")));
        assert!(!is_called(OsStr::new("mount-fsstack")));
    }
}
