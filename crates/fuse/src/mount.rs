//! Mounting and unmounting.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use fsstack_pool::settings::Xattrs;
use fsstack_sys::mounts;
use fuser::{Config, InitFlags, MountOption, Session, SessionACL};
use rustix::mount::MountFlags;

use crate::negotiate::Negotiation;
use crate::unmount::{UnmountHelper, UnmountMethod, Unmounter, device_at};

/// Parameters of the mount.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The mount point, a directory.
    pub target: PathBuf,
    /// The source shown in the mount table.
    pub fsname: OsString,
    /// Subtype: the mount table shows `fuse.` and this.
    pub subtype: String,
    /// Block device to mount as (`fuseblk.` and the subtype), if any; it is then shown as the source.
    pub device: Option<OsString>,
    /// Flags of mount(2).
    pub flags: MountFlags,
    /// Other users have access.
    pub allow_other: bool,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// Mount by mount(2); otherwise through fusermount3.
    pub privileged: bool,
    /// Largest write request in bytes.
    pub max_write: u32,
    /// Most background requests (cached reads, write-back, asynchronous direct I/O) that the kernel sends at once.
    pub max_background: u16,
    /// Request passthrough.
    pub passthrough: bool,
    /// Request the write-back page cache.
    pub writeback: bool,
    /// Request FUSE over io_uring.
    pub ring: bool,
    /// Forward file locks to the daemon.
    pub forward_locks: bool,
    /// Request lookups by number, which NFS servers need.
    pub export: bool,
    /// Whether files have extended attributes, and so ACLs.
    pub xattrs: Xattrs,
    /// Allow idmapped mounts of the pool; needs `default_permissions`.
    pub idmap: bool,
}

/// Features that the kernel granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Passthrough is available.
    pub passthrough: bool,
    /// SETXATTR requests have the extended form.
    pub setxattr_ext: bool,
    /// Requests come over io_uring once every queue has an entry; none comes before.
    pub ring: bool,
    /// The daemon clears set-id bits; the kernel says when.
    pub kills_privileges: bool,
    /// Most data in a request or reply, in bytes.
    pub payload: u32,
    /// The flags of the answer to INIT, `FUSE_*` of the kernel's fuse.h.
    pub flags: u64,
}

impl Granted {
    /// True if the pool may have idmapped mounts. The kernel then sends the caller's ids only with requests that make
    /// something.
    pub fn allows_idmap(&self) -> bool {
        self.flags & InitFlags::FUSE_ALLOW_IDMAP.bits() != 0
    }
}

/// Reason why nothing was mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// FUSE is not available.
    #[error("/dev/fuse: {0} (is the fuse module loaded, and may this user open it?)")]
    Device(io::Error),
    /// The process for unmounting cannot be started.
    #[error("/bin/sh, which is to run fusermount3 at the end: {0}")]
    UnmountHelper(io::Error),
    /// mount(2) or fusermount3 refused.
    #[error("{target}: {error}")]
    Mount {
        /// The mount point.
        target: String,
        /// The system's error.
        error: io::Error,
    },
    /// Negotiation failed.
    #[error("{target}: the kernel did not accept the file system: {error}")]
    Handshake {
        /// The mount point.
        target: String,
        /// The error.
        error: io::Error,
    },
}

/// A mounted pool with requests waiting to be read.
#[derive(Debug)]
pub struct Mounted {
    session: Option<Session<Negotiation>>,
    device: Arc<OwnedFd>,
    /// The mount point.
    pub target: PathBuf,
    /// Features that the kernel granted.
    pub granted: Granted,
    unmounter: Unmounter,
}

/// A mount that goes from one program to another.
#[derive(Debug)]
pub struct Adopted {
    /// The device that requests are read from.
    pub device: OwnedFd,
    /// Where.
    pub target: PathBuf,
    /// Features that the kernel granted.
    pub granted: Granted,
    /// Number of the device that programs see there.
    pub dev: Option<u64>,
}

/// Mounts `plan` and negotiates with the kernel.
///
/// # Errors
///
/// Nothing is mounted then.
pub fn mount(plan: &Plan) -> Result<Mounted, MountError> {
    let (negotiation, granted) = Negotiation::new(plan);
    let (session, method) = if plan.privileged {
        (by_syscall(plan, negotiation)?, UnmountMethod::Syscall)
    } else {
        // Started before the connection has a descriptor, which must not outlive the daemon.
        let helper = UnmountHelper::start(&plan.target).map_err(MountError::UnmountHelper)?;
        (by_helper(plan, negotiation)?, UnmountMethod::UnmountHelper(Arc::new(helper)))
    };
    let device = Arc::new(session.as_fd().try_clone_to_owned().map_err(MountError::Device)?);
    let granted = *granted.lock();
    Ok(Mounted {
        session: Some(session),
        device: device.clone(),
        target: plan.target.clone(),
        granted,
        unmounter: Unmounter { target: plan.target.clone(), method, dev: device_at(&plan.target), device },
    })
}

fn by_syscall(plan: &Plan, negotiation: Negotiation) -> Result<Session<Negotiation>, MountError> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(MountError::Device)?;
    let target = plan.target.display().to_string();
    let mut data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    if plan.default_permissions {
        data.push_str(",default_permissions");
    }
    if plan.allow_other {
        data.push_str(",allow_other");
    }
    let (kind, source) = match &plan.device {
        None => ("fuse", &plan.fsname),
        Some(device) => ("fuseblk", device),
    };
    if plan.device.is_some() {
        data.push_str(",blksize=4096");
    }
    let fs_type = if plan.subtype.is_empty() { kind.into() } else { format!("{kind}.{}", plan.subtype) };
    mounts::mount_fuse(source, &plan.target, &fs_type, plan.flags, &data)
        .map_err(|error| MountError::Mount { target: target.clone(), error: error.errno.into() })?;
    let session = Session::from_fd(negotiation, device.into(), SessionACL::All, Config::default());
    session.map_err(|error| {
        // The device is closed: the mount no longer answers and is removed.
        if let Err(stuck) =
            mounts::umount(&plan.target, mounts::UmountFlags { detach: true, ..Default::default() })
        {
            tracing::error!(%stuck, "failed mount cannot be removed; use umount -l");
        }
        MountError::Handshake { target, error }
    })
}

fn by_helper(plan: &Plan, negotiation: Negotiation) -> Result<Session<Negotiation>, MountError> {
    // fusermount3 opens it as this user, and its message is unclear if that is not permitted.
    OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(MountError::Device)?;
    let mut options = vec![
        MountOption::FSName(escaped(&plan.fsname.to_string_lossy())),
        MountOption::Subtype(plan.subtype.clone()),
    ];
    if plan.default_permissions {
        options.push(MountOption::DefaultPermissions);
    }
    let flags = [
        (MountFlags::RDONLY, MountOption::RO),
        (MountFlags::NOEXEC, MountOption::NoExec),
        (MountFlags::NOATIME, MountOption::NoAtime),
        (MountFlags::SYNCHRONOUS, MountOption::Sync),
        (MountFlags::DIRSYNC, MountOption::DirSync),
    ];
    options
        .extend(flags.into_iter().filter(|(flag, _)| plan.flags.contains(*flag)).map(|(_, option)| option));
    let mut config = Config::default();
    config.mount_options = options;
    config.acl = if plan.allow_other { SessionACL::All } else { SessionACL::Owner };
    let target = plan.target.display().to_string();
    Session::new(negotiation, &plan.target, &config).map_err(|error| MountError::Mount { target, error })
}

/// A value as fusermount3 reads it: a backslash is before each comma, and before each backslash.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace(',', r"\,")
}

impl Mounted {
    /// Returns the device from which requests are read.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Returns the means to unmount this pool from another thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// The mount that another program has made and served.
    pub fn adopt(adopted: Adopted) -> Self {
        let Adopted { device, target, granted, dev } = adopted;
        let device = Arc::new(device);
        let (method, at) = (UnmountMethod::Syscall, target.clone());
        let unmounter = Unmounter { target: at, method, dev, device: device.clone() };
        Self { session: None, device, target, granted, unmounter }
    }

    /// Number of the device that programs see there, if it could be asked.
    pub fn dev(&self) -> Option<u64> {
        self.unmounter.dev
    }

    /// Ends the session after the transport: the mount is gone.
    pub fn ended(mut self) {
        if let Some(session) = self.session.take()
            && matches!(self.unmounter.method, UnmountMethod::UnmountHelper(_))
        {
            // fuser's session, if it mounted by itself, would unmount on drop whatever is at the path by now, because
            // its check for "still mounted" is inverted. The process ends soon anyway.
            std::mem::forget(session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_with_escaped_commas_reaches_the_helper_as_it_is() {
        assert_eq!(escaped("/a:/b"), "/a:/b");
        // In SOURCE a comma is `\054` or `\,`: without a backslash before its own, the helper ends the option at the comma.
        assert_eq!(escaped(r"/a\,b"), r"/a\\\,b");
        assert_eq!(escaped(r"/a\054b"), r"/a\\054b");
    }
}
