//! Mounting and unmounting.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use fsstack_sys::mounts;
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::mount::MountFlags;

use crate::negotiate::Negotiation;
use crate::unmount::{UnmountHelper, UnmountMethod, Unmounter, device_at};

/// Parameters of the mount.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where: a directory.
    pub target: PathBuf,
    /// The source shown in the mount table.
    pub fsname: OsString,
    /// The type shown in the mount table is `fuse.` and this.
    pub subtype: String,
    /// The block device to mount as (`fuseblk.` and the subtype), if there is one; it is the source then.
    pub device: Option<OsString>,
    /// mount(2)'s flags.
    pub flags: MountFlags,
    /// Other users may enter.
    pub allow_other: bool,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// Mounted by mount(2); otherwise through fusermount3.
    pub privileged: bool,
    /// Largest write request, bytes.
    pub max_write: u32,
    /// Ask for passthrough.
    pub passthrough: bool,
    /// Ask for the write-back page cache.
    pub writeback: bool,
    /// Ask for requests over io_uring.
    pub ring: bool,
    /// File locks come to the daemon.
    pub forward_locks: bool,
    /// Ask for lookups by number, as NFS servers need them.
    pub export: bool,
}

/// Features that the kernel granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Files can be handed to the kernel.
    pub passthrough: bool,
    /// SETXATTR requests have the extended form.
    pub setxattr_ext: bool,
    /// Requests come over io_uring once every queue has an entry; until then none comes.
    pub ring: bool,
    /// The daemon clears set-uid and the like; the kernel tells it when.
    pub kills_privileges: bool,
    /// Most data that a request brings or asks for, bytes.
    pub payload: u32,
}

/// Why nothing was mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no FUSE here.
    #[error("/dev/fuse: {0} (is the fuse module loaded, and may this user open it?)")]
    Device(io::Error),
    /// The process that would unmount it cannot be started.
    #[error("/bin/sh, which is to run fusermount3 at the end: {0}")]
    UnmountHelper(io::Error),
    /// mount(2) or fusermount3 refused.
    #[error("{target}: {error}")]
    Mount {
        /// The mount point.
        target: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The kernel and the pool did not agree.
    #[error("{target}: the kernel did not accept the file system: {error}")]
    Handshake {
        /// The mount point.
        target: String,
        /// The error.
        error: io::Error,
    },
}

/// A mounted pool, whose requests wait to be read.
#[derive(Debug)]
pub struct Mounted {
    session: Option<Session<Negotiation>>,
    device: OwnedFd,
    /// Where.
    pub target: PathBuf,
    /// Features that the kernel granted.
    pub granted: Granted,
    unmounter: Unmounter,
}

/// Mounts `plan` and agrees with the kernel on how to talk.
///
/// # Errors
/// Nothing is mounted then.
pub fn mount(plan: &Plan) -> Result<Mounted, MountError> {
    let (negotiation, granted) = Negotiation::new(plan);
    let (session, method) = if plan.privileged {
        (by_syscall(plan, negotiation)?, UnmountMethod::Syscall)
    } else {
        // Before there is a descriptor of the connection, which must close with the daemon.
        let helper = UnmountHelper::start(&plan.target).map_err(MountError::UnmountHelper)?;
        (by_helper(plan, negotiation)?, UnmountMethod::UnmountHelper(Arc::new(helper)))
    };
    let device = session.as_fd().try_clone_to_owned().map_err(MountError::Device)?;
    let granted = *granted.lock();
    Ok(Mounted {
        session: Some(session),
        device,
        target: plan.target.clone(),
        granted,
        unmounter: Unmounter { target: plan.target.clone(), method, dev: device_at(&plan.target) },
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
        // The device is closed: the mount answers nothing, and goes.
        if let Err(stuck) =
            mounts::umount(&plan.target, mounts::UmountFlags { detach: true, ..Default::default() })
        {
            tracing::error!(%stuck, "failed mount cannot be removed; use umount -l");
        }
        MountError::Handshake { target, error }
    })
}

fn by_helper(plan: &Plan, negotiation: Negotiation) -> Result<Session<Negotiation>, MountError> {
    // fusermount3 opens it as this user, and is not clear about it when it may not.
    OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(MountError::Device)?;
    let mut options = vec![
        MountOption::FSName(plan.fsname.to_string_lossy().replace(',', "\\,")),
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

impl Mounted {
    /// The device that requests are read from.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Returns the means to unmount this pool from another thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// The loops have ended: the mount is gone.
    pub fn ended(mut self) {
        if let Some(session) = self.session.take()
            && matches!(self.unmounter.method, UnmountMethod::UnmountHelper(_))
        {
            // A session of fuser's that mounted by itself would, when dropped, unmount whatever lies at the
            // path by now (its test for "still mounted" is inverted). The process ends soon anyway.
            std::mem::forget(session);
        }
    }
}
