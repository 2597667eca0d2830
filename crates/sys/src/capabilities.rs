//! The capabilities that the daemon keeps. It drops all others while it has one thread.
//!
//! With CAP_SYS_ADMIN and CAP_DAC_OVERRIDE it is still as powerful as root. Dropped are those it never uses: loading
//! modules, network configuration, raw devices, the clock, limits of other processes.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use crate::call::{Call, Result, call};

/// Capabilities that are kept, each with its reason.
pub const KEPT: &[(CapabilitySet, &str)] = &[
    (CapabilitySet::CHOWN, "a copy that is made on another branch gets its file's owner"),
    (
        CapabilitySet::DAC_OVERRIDE,
        "the kernel checks permissions in the pool; on the branch the daemon must get through",
    ),
    (
        CapabilitySet::DAC_READ_SEARCH,
        "open_by_handle_at(2), by which exported files and renamed directories are found",
    ),
    (CapabilitySet::FOWNER, "chmod, times, attributes and O_NOATIME on files of others"),
    (CapabilitySet::LEASE, "a write lease on another user's file: see `is_open_elsewhere`"),
    (CapabilitySet::FSETID, "set-group-ID bits of files that are chmodded or copied"),
    (CapabilitySet::SETGID, "what is made belongs to its maker's group from the first moment"),
    (CapabilitySet::SETUID, "what is made belongs to its maker from the first moment"),
    (CapabilitySet::MKNOD, "devices that root makes in the pool"),
    (CapabilitySet::SETFCAP, "file capabilities that root sets in the pool"),
    (CapabilitySet::LINUX_IMMUTABLE, "chattr +i and +a in the pool"),
    (
        CapabilitySet::MAC_ADMIN,
        "labels that the kernel's security module does not know, as root may set them",
    ),
    (CapabilitySet::MAC_OVERRIDE, "files whose Smack label is another than the daemon's"),
    (CapabilitySet::SYS_ADMIN, "passthrough, trusted.* attributes, fanotify, unmounting"),
    (CapabilitySet::SYS_NICE, "worker threads under door-scheduling=nice, and back to ordinary ones"),
    (CapabilitySet::SYS_PTRACE, "holders of the pool, by /proc/PID/fd, for the log at an unmount"),
    (CapabilitySet::NET_BIND_SERVICE, "metrics= at a port below 1024"),
];

/// Drops every capability that is not in [`KEPT`], for the calling thread, threads that it starts, and programs that
/// they execute. Does nothing in a process without root, which has none.
///
/// # Errors
///
/// The thread still has some of them.
pub fn keep_needed() -> Result<()> {
    let kept = KEPT.iter().fold(CapabilitySet::empty(), |all, (one, _)| all | *one);
    call(Call::Identity, || {
        let now = capabilities(None)?;
        if now.permitted.is_empty() {
            return Ok(());
        }
        clear_ambient_capability_set()?;
        if now.effective.contains(CapabilitySet::SETPCAP) {
            // Capability numbers that the kernel does not know fail with EINVAL.
            for one in (CapabilitySet::all() - kept).iter() {
                match remove_capability_from_bounding_set(one) {
                    Ok(()) | Err(Errno::INVAL) => {}
                    Err(refused) => return Err(refused),
                }
            }
        }
        let effective = now.effective & kept;
        let permitted = now.permitted & kept;
        set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_capabilities_are_gone_and_threads_start_without_them() {
        if !crate::identity::is_root() {
            println!("skipped: not root");
            return;
        }
        let work = || {
            let before = capabilities(None).unwrap();
            crate::identity::keep_capabilities().unwrap();
            keep_needed().unwrap();
            keep_needed().unwrap();
            // Each thread of the daemon does this before it acts as a caller.
            std::thread::spawn(|| crate::identity::become_daemon().unwrap()).join().unwrap();
            let after = capabilities(None).unwrap();
            assert!(!after.permitted.intersects(CapabilitySet::SYS_MODULE | CapabilitySet::SETPCAP));
            let kept = KEPT.iter().fold(CapabilitySet::empty(), |all, (one, _)| all | *one);
            assert_eq!(after.effective, before.effective & kept);
            assert!(after.inheritable.is_empty());
        };
        std::thread::spawn(work).join().unwrap();
    }
}
