//! Reports each call that may have changed a file system to an observer, right after it was made. For tests that record
//! the state on disk at that moment.
//!
//! While an observer is active, such calls of all threads are serialised, so that each change is seen with its own
//! call. One that another thread had begun before is not reported: a sync of it does not cover what was changed meanwhile.
//! The observer's own calls must not go through this crate.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::call::Call;

/// Observer of calls.
pub trait Observer: Send + Sync {
    /// A call that may have changed something succeeded.
    fn made(&self, call: Call);

    /// The file of `fd`, or its whole file system, was synced to disk.
    fn synced(&self, fd: BorrowedFd<'_>, reach: Reach);
}

/// Extent of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// One file or directory.
    File,
    /// A whole file system.
    FileSystem,
}

static OBSERVER: RwLock<Option<Arc<dyn Observer>>> = RwLock::new(None);
static TURN: Mutex<()> = Mutex::new(());
/// Held while an observer is active.
static ACTIVE: Mutex<()> = Mutex::new(());

/// Runs `work` while `observer` sees the calls of all threads. One observer at a time: others wait until it is over.
pub fn observed<T>(observer: Arc<dyn Observer>, work: impl FnOnce() -> T) -> T {
    /// Ends the observation, also when `work` panics.
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            *OBSERVER.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
    let _active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
    *OBSERVER.write().unwrap_or_else(PoisonError::into_inner) = Some(observer);
    let _over = Over;
    work()
}

fn observer() -> Option<Arc<dyn Observer>> {
    OBSERVER.read().unwrap_or_else(PoisonError::into_inner).clone()
}

thread_local! {
    /// This thread's call was begun under [`TURN`].
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

/// The turn of one call.
pub(crate) struct Turn(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Drop for Turn {
    fn drop(&mut self) {
        HAS_TURN.set(false);
    }
}

/// Lock that serialises calls which may change something, if an observer is active.
pub(crate) fn turn(call: Call) -> Option<Turn> {
    (may_change(call) && observer().is_some()).then(|| {
        let turn = Turn(TURN.lock().unwrap_or_else(PoisonError::into_inner));
        HAS_TURN.set(true);
        turn
    })
}

/// Reports a call that succeeded.
pub(crate) fn made(call: Call) {
    if HAS_TURN.get()
        && let Some(observer) = observer()
    {
        observer.made(call);
    }
}

/// Reports a sync that succeeded.
pub(crate) fn synced(fd: BorrowedFd<'_>, reach: Reach) {
    if HAS_TURN.get()
        && let Some(observer) = observer()
    {
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
    fn each_observer_sees_all_calls_of_its_own_work() {
        let observes = || {
            for _ in 0..200 {
                let seen = Arc::new(Seen::default());
                let file = tempfile::tempfile().unwrap();
                observed(seen.clone(), || {
                    file::write_at(file.as_fd(), b"x", 0).unwrap();
                    file::fsync(file.as_fd()).unwrap();
                });
                assert_eq!(*seen.0.lock().unwrap(), ["Write", "File", "Fsync"]);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(observes);
            }
        });
    }

    #[test]
    fn a_call_that_was_begun_before_is_not_reported() {
        let seen = Arc::new(Seen::default());
        let file = tempfile::tempfile().unwrap();
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let synced_file = &file;
        std::thread::scope(|scope| {
            let syncs = scope.spawn(move || {
                crate::call::once(Call::Fsync, || {
                    begin.send(()).unwrap();
                    ends.recv().unwrap();
                    synced(synced_file.as_fd(), Reach::File);
                    Ok(())
                })
            });
            begun.recv().unwrap();
            observed(seen.clone(), || {
                file::write_at(file.as_fd(), b"x", 0).unwrap();
                end.send(()).unwrap();
                syncs.join().unwrap().unwrap();
            });
        });
        assert_eq!(*seen.0.lock().unwrap(), ["Write"]);
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
