//! Reports each call that may have changed a file system to an observer, right after it was made: for tests that keep what
//! is on disk at that moment.
//!
//! Such calls of all threads are made one after the other while somebody observes, so that no change is seen with another
//! one's call. The observer makes its own calls past this crate.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::call::Call;

/// Looks on while calls are made.
pub trait Observer: Send + Sync {
    /// A call that may have changed something was made, and succeeded.
    fn made(&self, call: Call);

    /// The file of `fd`, or all of its file system, is on disk.
    fn synced(&self, fd: BorrowedFd<'_>, reach: Reach);
}

/// How much a call synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// One file or directory.
    File,
    /// A whole file system.
    FileSystem,
}

static OBSERVER: RwLock<Option<Arc<dyn Observer>>> = RwLock::new(None);
static TURN: Mutex<()> = Mutex::new(());

/// Runs `work` while `observer` looks on at the calls of all threads. One observer at a time.
pub fn observed<T>(observer: Arc<dyn Observer>, work: impl FnOnce() -> T) -> T {
    /// Ends the observation, also when `work` panics.
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            *OBSERVER.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
    *OBSERVER.write().unwrap_or_else(PoisonError::into_inner) = Some(observer);
    let _over = Over;
    work()
}

fn observer() -> Option<Arc<dyn Observer>> {
    OBSERVER.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The calling thread's turn to make a call that may change something, if somebody observes.
pub(crate) fn turn(call: Call) -> Option<MutexGuard<'static, ()>> {
    (may_change(call) && observer().is_some()).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A call succeeded.
pub(crate) fn made(call: Call) {
    if may_change(call)
        && let Some(observer) = observer()
    {
        observer.made(call);
    }
}

/// A call that syncs succeeded.
pub(crate) fn synced(fd: BorrowedFd<'_>, reach: Reach) {
    if let Some(observer) = observer() {
        observer.synced(fd, reach);
    }
}

fn may_change(call: Call) -> bool {
    use Call::{
        Chmod, Chown, CopyRange, Fallocate, Fsync, Ioctl, Link, Mkdir, Mknod, Open, Removexattr, Rename,
        Rmdir, Setxattr, Symlink, Syncfs, Truncate, Unlink, Utimens, Write,
    };
    matches!(
        call,
        Chmod
            | Chown
            | CopyRange
            | Fallocate
            | Fsync
            | Ioctl
            | Link
            | Mkdir
            | Mknod
            | Open
            | Removexattr
            | Rename
            | Rmdir
            | Setxattr
            | Symlink
            | Syncfs
            | Truncate
            | Unlink
            | Utimens
            | Write
    )
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::file;

    #[derive(Default)]
    struct Seen(Mutex<Vec<String>>);

    impl Observer for Seen {
        fn made(&self, call: Call) {
            self.0.lock().unwrap().push(format!("{call:?}"));
        }

        fn synced(&self, _: BorrowedFd<'_>, reach: Reach) {
            self.0.lock().unwrap().push(format!("{reach:?}"));
        }
    }

    #[test]
    fn changes_and_syncs_are_reported_in_order() {
        let seen = Arc::new(Seen::default());
        let file = tempfile::tempfile().unwrap();
        observed(seen.clone(), || {
            file::write_at(file.as_fd(), b"x", 0).unwrap();
            file::read_at(file.as_fd(), &mut [0], 0).unwrap();
            file::fsync(file.as_fd()).unwrap();
            file::syncfs(file.as_fd()).unwrap();
        });
        file::write_at(file.as_fd(), b"y", 0).unwrap();
        let seen = seen.0.lock().unwrap();
        assert_eq!(*seen, ["Write", "File", "Fsync", "FileSystem", "Syncfs"]);
    }
}
