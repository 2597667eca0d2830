//! Identity of the calling thread when it makes files: file-system user, groups and umask, each per thread.
//!
//! The kernel keeps credentials per thread; the C library's wrappers change those of all threads, so the calls here are
//! raw. A thread keeps its capabilities under every identity. The identity decides the owner of new files and whose
//! quota they use, not what is allowed.
#![allow(unsafe_code, reason = "setfsuid and setfsgid have no safe wrapper, and unshare is unsafe in rustix")]

use std::cell::Cell;
use std::sync::OnceLock;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::Gid;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, UnshareFlags, capabilities, capabilities_secure_bits,
    set_capabilities, set_capabilities_secure_bits, set_thread_groups, unshare_unsafe,
};

use crate::call::{Call, Result, SysError, call};

/// Never a valid user or group. The kernel takes it as "no change" and returns the current id.
const NOBODY: u32 = u32::MAX;

/// An identity to act with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File-system user.
    pub uid: u32,
    /// File-system group.
    pub gid: u32,
    /// The one supplementary group, if any.
    pub group: Option<u32>,
    /// File mode creation mask.
    pub umask: u32,
}

thread_local! {
    /// Identity of this thread. `None` until set here, because a thread inherits its parent's.
    static CURRENT: Cell<Option<Caller>> = const { Cell::new(None) };
    static PREPARED: Cell<Option<Prepared>> = const { Cell::new(None) };
    /// True inside [`acting_as`].
    static ACTS: Cell<bool> = const { Cell::new(false) };
    /// True while the thread still has the identity of its last [`acting_as`], or one that it inherited.
    static LINGERS: Cell<bool> = const { Cell::new(false) };
}

/// Result of `keep_capabilities` on a thread.
#[derive(Clone, Copy)]
struct Prepared {
    /// This thread has a umask of its own.
    own_umask: bool,
}

/// Returns the process's own identity, read at first use.
fn daemon() -> Caller {
    static DAEMON: OnceLock<Caller> = OnceLock::new();
    *DAEMON.get_or_init(|| Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        group: None,
        umask: 0,
    })
}

/// True if the process runs as root, and so can take other identities.
pub fn is_root() -> bool {
    daemon().uid == 0
}

/// Prepares the calling thread for [`acting_as`]. It keeps its capabilities under every identity, except
/// CAP_SYS_RESOURCE, which ignores quotas and reserved blocks. It gets a umask of its own, 0.
///
/// A process without root has no capabilities to keep and gets only the umask.
pub fn keep_capabilities() -> Result<()> {
    if PREPARED.get().is_some() {
        return Ok(());
    }
    // Read before anything changes: it must be the process's identity, not an assumed one.
    let root = is_root();
    if root {
        call(Call::Identity, keep_on_setfsuid)?;
        call(Call::Identity, obey_quotas)?;
    }
    // SAFETY: only FS is unshared. No descriptor is affected; the thread's root, working directory and umask
    // become its own, on which no memory or descriptor safety depends.
    let own = call(Call::Identity, || unsafe { unshare_unsafe(UnshareFlags::FS) });
    match own {
        // A sandbox may refuse this to processes without root; they set the shared umask before each use.
        Err(_) if !root => {}
        settled => settled?,
    }
    rustix::process::umask(Mode::empty());
    PREPARED.set(Some(Prepared { own_umask: own.is_ok() }));
    // The thread that started this one may have been acting as a caller, whose identity this one inherited.
    CURRENT.set(None);
    LINGERS.set(true);
    Ok(())
}

fn keep_on_setfsuid() -> rustix::io::Result<()> {
    let bits = capabilities_secure_bits()?;
    if bits.contains(CapabilitiesSecureBits::NO_SETUID_FIXUP) {
        return Ok(());
    }
    set_capabilities_secure_bits(bits | CapabilitiesSecureBits::NO_SETUID_FIXUP)
}

fn obey_quotas() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    sets.permitted.remove(CapabilitySet::SYS_RESOURCE);
    set_capabilities(None, sets)
}

/// Runs `work` with the calling thread acting as `caller`, with all of its `groups` for servers that check them.
///
/// Changing the identity costs microseconds in the kernel. So the thread keeps it after `work`, and the same caller
/// costs nothing next time. It changes back before it makes something outside this function ([`before_making`]), acts
/// as another caller, or becomes the daemon again.
pub fn acting_as<T>(caller: Caller, groups: Option<&[u32]>, work: impl FnOnce() -> T) -> Result<T> {
    /// Ends the scope, also when `work` panics.
    struct Scope;
    impl Drop for Scope {
        fn drop(&mut self) {
            ACTS.set(false);
        }
    }
    debug_assert!(!ACTS.get(), "a thread acts as one caller at a time");
    LINGERS.set(true);
    match groups {
        Some(groups) => become_with_groups(caller, groups)?,
        None => become_(caller)?,
    }
    ACTS.set(true);
    let _scope = Scope;
    Ok(work())
}

/// Runs `work` with the calling thread acting as the user `uid`, whatever its groups are: for calls that make nothing. The
/// thread keeps the identity, as after [`acting_as`].
pub fn acting_as_user<T>(uid: u32, work: impl FnOnce() -> T) -> Result<T> {
    acting_as(Caller { uid, ..CURRENT.get().unwrap_or_else(daemon) }, None, work)
}

/// Called before the calling thread makes a file or directory: resets its identity to the daemon's unless it is inside
/// [`acting_as`].
pub(crate) fn before_making() -> Result<()> {
    if LINGERS.get() && !ACTS.get() { become_daemon() } else { Ok(()) }
}

/// Makes the calling thread act as `caller`, changing only the parts that differ.
///
/// After an error the thread's identity is unknown: nothing may be made until a later call succeeds. In a process
/// without root only the umask changes, and there is no error.
fn become_(caller: Caller) -> Result<()> {
    let current = CURRENT.get();
    if current == Some(caller) {
        return Ok(());
    }
    if PREPARED.get().is_none() {
        keep_capabilities()?;
    }
    CURRENT.set(None);
    if is_root() {
        assume(current, caller)?;
    }
    if current.is_none_or(|now| now.umask != caller.umask) {
        rustix::process::umask(Mode::from_raw_mode(caller.umask & 0o777));
    }
    // A umask shared with other threads is not remembered.
    if PREPARED.get().is_some_and(|prepared| prepared.own_umask) {
        CURRENT.set(Some(caller));
    }
    Ok(())
}

/// Makes the calling thread act as `caller` with all of its supplementary `groups`, for servers that check them.
///
/// The groups stay only until the next call of [`become_`] or [`become_daemon`].
fn become_with_groups(caller: Caller, groups: &[u32]) -> Result<()> {
    become_(caller)?;
    if !is_root() {
        return Ok(());
    }
    // Unknown from here on, so that the next identity is set completely.
    CURRENT.set(None);
    let groups: Vec<Gid> =
        groups.iter().filter(|group| **group != NOBODY).map(|id| Gid::from_raw(*id)).collect();
    call(Call::Identity, || set_thread_groups(&groups))
}

/// Makes the calling thread act as the process itself: its own user and group, no other groups, umask 0.
pub fn become_daemon() -> Result<()> {
    become_(daemon())?;
    LINGERS.set(false);
    Ok(())
}

fn assume(current: Option<Caller>, caller: Caller) -> Result<()> {
    if [Some(caller.uid), Some(caller.gid), caller.group].contains(&Some(NOBODY)) {
        return Err(SysError::new(Call::Identity, Errno::PERM));
    }
    if current.is_none_or(|now| now.group != caller.group) {
        let group = caller.group.map(Gid::from_raw);
        call(Call::Identity, || set_thread_groups(group.as_slice()))?;
    }
    if current.is_none_or(|now| now.gid != caller.gid) {
        call(Call::Identity, || settle(setfsgid, caller.gid))?;
    }
    if current.is_none_or(|now| now.uid != caller.uid) {
        call(Call::Identity, || settle(setfsuid, caller.uid))?;
    }
    Ok(())
}

/// Sets an id and reads it back: these calls return the previous id, never an error.
fn settle(set: fn(u32) -> libc::c_long, id: u32) -> rustix::io::Result<()> {
    set(id);
    if set(NOBODY) == libc::c_long::from(id) { Ok(()) } else { Err(Errno::PERM) }
}

fn setfsuid(uid: u32) -> libc::c_long {
    // SAFETY: takes one integer and touches no memory; changes the calling thread only.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) }
}

fn setfsgid(gid: u32) -> libc::c_long {
    // SAFETY: takes one integer and touches no memory; changes the calling thread only.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::path::Path;

    use super::*;

    const STRANGER: Caller = Caller { uid: 12345, gid: 23456, group: Some(34567), umask: 0o027 };

    fn on_a_thread(work: impl FnOnce() + Send + 'static) {
        std::thread::spawn(work).join().unwrap();
    }

    fn make(path: &Path) -> std::fs::Metadata {
        let open = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o666).open(path).unwrap();
        open.metadata().unwrap()
    }

    #[test]
    fn what_is_made_after_a_callers_file_is_the_daemons() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        on_a_thread(|| {
            let dir = tempfile::tempdir().unwrap();
            let root = crate::at::open_root(dir.path()).unwrap();
            let owner = |name: &str| {
                let meta = dir.path().join(name).symlink_metadata().unwrap();
                (meta.uid(), meta.gid(), meta.mode() & 0o777)
            };
            let make = |name| crate::at::mkdir(root.as_fd(), name, 0o777);
            acting_as(STRANGER, None, || make(c"theirs")).unwrap().unwrap();
            assert_eq!(owner("theirs"), (STRANGER.uid, STRANGER.gid, 0o750));
            make(c"own").unwrap();
            assert_eq!(owner("own"), (0, 0, 0o777));
            let theirs = || crate::at::symlink(c"x", root.as_fd(), c"link");
            acting_as(STRANGER, Some(&[1, 2]), theirs).unwrap().unwrap();
            crate::at::mknod(root.as_fd(), c"file", 0o666, 0).unwrap();
            assert_eq!(owner("link").0, STRANGER.uid);
            assert_eq!(owner("file"), (0, 0, 0o666));
        });
    }

    /// A transport starts threads while a worker still has its last caller's identity.
    #[test]
    fn a_thread_started_under_a_callers_identity_makes_files_as_the_daemon() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        on_a_thread(|| {
            let dir = tempfile::tempdir().unwrap();
            let root = crate::at::open_root(dir.path()).unwrap();
            acting_as(STRANGER, None, || ()).unwrap();
            let inner = root.try_clone().unwrap();
            on_a_thread(move || {
                keep_capabilities().unwrap();
                crate::at::mkdir(inner.as_fd(), c"own", 0o777).unwrap();
            });
            let made = dir.path().join("own").symlink_metadata().unwrap();
            assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (0, 0, 0o777));
        });
    }

    #[test]
    fn files_belong_to_the_caller_and_capabilities_stay() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        on_a_thread(|| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .unwrap();
            keep_capabilities().unwrap();
            become_(STRANGER).unwrap();
            let made = make(&dir.path().join("theirs"));
            assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (12345, 23456, 0o640));
            become_daemon().unwrap();
            let made = make(&dir.path().join("ours"));
            assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (0, daemon().gid, 0o666));
        });
    }

    #[test]
    fn becoming_prepares_the_thread_and_drops_sys_resource() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        on_a_thread(|| {
            become_(STRANGER).unwrap();
            let sets = capabilities(None).unwrap();
            assert!(sets.effective.contains(CapabilitySet::DAC_OVERRIDE));
            assert!(!sets.effective.contains(CapabilitySet::SYS_RESOURCE));
            assert!(!sets.permitted.contains(CapabilitySet::SYS_RESOURCE));
            assert_eq!(rustix::process::getgroups().unwrap(), [Gid::from_raw(34567)]);
        });
    }

    #[test]
    fn other_threads_keep_their_identity() {
        on_a_thread(|| {
            let (ready, wait) = std::sync::mpsc::channel();
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let stranger = std::thread::spawn(move || {
                become_(STRANGER).unwrap();
                ready.send(()).unwrap();
                gone.recv().unwrap();
            });
            wait.recv().unwrap();
            let dir = tempfile::tempdir().unwrap();
            let made = make(&dir.path().join("file"));
            assert_eq!(made.uid(), rustix::process::geteuid().as_raw());
            go.send(()).unwrap();
            stranger.join().unwrap();
        });
    }

    #[test]
    fn a_thread_that_acts_as_a_user_makes_no_call_if_it_is_that_user() {
        on_a_thread(|| {
            let status = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let is_user = |uid: u32| {
                status().lines().any(|line| line.starts_with("Uid:") && line.ends_with(&format!("\t{uid}")))
            };
            become_(STRANGER).unwrap();
            let ((), counts) = crate::count::scope(|| acting_as_user(STRANGER.uid, || ()).unwrap());
            assert_eq!(counts.total(), 0);
            if is_root() {
                assert!(acting_as_user(4321, || is_user(4321)).unwrap());
                assert!(acting_as_user(0, || is_user(0)).unwrap());
            }
        });
    }

    #[test]
    fn the_same_identity_twice_makes_no_call() {
        on_a_thread(|| {
            become_(STRANGER).unwrap();
            let ((), counts) = crate::count::scope(|| become_(STRANGER).unwrap());
            assert_eq!(counts.total(), 0);
        });
    }

    #[test]
    fn all_groups_are_assumed_for_one_identity_only() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        on_a_thread(|| {
            let groups = || rustix::process::getgroups().unwrap();
            become_with_groups(STRANGER, &[34567, 45678, NOBODY, 56789]).unwrap();
            assert_eq!(groups(), [34567, 45678, 56789].map(Gid::from_raw));
            let dir = tempfile::tempdir().unwrap();
            let home = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(dir.path(), home).unwrap();
            assert_eq!(make(&dir.path().join("theirs")).uid(), STRANGER.uid);
            become_(STRANGER).unwrap();
            assert_eq!(groups(), [Gid::from_raw(34567)]);
            become_with_groups(STRANGER, &[45678]).unwrap();
            become_daemon().unwrap();
            assert_eq!(groups(), []);
        });
    }

    #[test]
    fn nobody_cannot_be_assumed() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        on_a_thread(|| {
            let refused = become_(Caller { uid: NOBODY, ..STRANGER }).unwrap_err();
            assert_eq!(refused, SysError::new(Call::Identity, Errno::PERM));
            become_daemon().unwrap();
        });
    }
}
