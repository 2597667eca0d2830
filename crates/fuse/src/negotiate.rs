//! Negotiation (INIT): features that the pool requests from the kernel, and those granted.

use std::io;
use std::sync::Arc;

use fsstack_pool::settings::Xattrs;
use fsstack_sync::Mutex;
use fuser::{Filesystem, InitFlags, KernelConfig, Request};

use crate::mount::{Granted, Plan};

/// File system for fuser, whose part ends with the reply to INIT: no request ever reaches it.
#[derive(Debug)]
pub(crate) struct Negotiation {
    wanted: InitFlags,
    max_write: u32,
    max_background: u16,
    granted: Arc<Mutex<Granted>>,
}

/// Always requested: each is needed for correct results or improves speed, and a kernel without it works too.
///
/// Not FUSE_ATOMIC_O_TRUNC: with it an open with O_TRUNC reaches the daemon before the kernel checks whether the file
/// is being executed. The open then fails with ETXTBSY, but a running program has lost its text. Without it the
/// truncation is a SETATTR after that check.
///
/// Not FUSE_READDIRPLUS_AUTO: find(1) and ls(1) read all names before the first attribute, so the kernel's guess is
/// wrong after the first buffer. The daemon itself decides which entries get attributes.
const ALWAYS: &[InitFlags] = &[
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_CREATE_SUPP_GROUP,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_HAS_IOCTL_DIR,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_SETXATTR_EXT,
];

/// Requested by an option.
const BY_OPTION: &[InitFlags] = &[
    InitFlags::FUSE_WRITEBACK_CACHE,
    InitFlags::FUSE_PASSTHROUGH,
    InitFlags::FUSE_OVER_IO_URING,
    InitFlags::FUSE_POSIX_LOCKS,
    InitFlags::FUSE_FLOCK_LOCKS,
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_ALLOW_IDMAP,
];

/// All flags of the answer to INIT that this program can serve.
pub fn known_flags() -> u64 {
    ALWAYS.iter().chain(BY_OPTION).fold(0, |all, flag| all | flag.bits())
}

impl Negotiation {
    pub(crate) fn new(plan: &Plan) -> (Self, Arc<Mutex<Granted>>) {
        let mut wanted = ALWAYS.iter().copied().fold(InitFlags::empty(), |all, flag| all | flag);
        if plan.writeback {
            // Write-back caching and passthrough exclude each other for the whole connection.
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        } else if plan.passthrough {
            wanted |= InitFlags::FUSE_PASSTHROUGH;
        }
        if plan.ring {
            wanted |= InitFlags::FUSE_OVER_IO_URING;
        }
        if plan.forward_locks {
            wanted |= InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
        }
        if plan.export {
            wanted |= InitFlags::FUSE_EXPORT_SUPPORT;
        }
        if plan.xattrs == Xattrs::On {
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        if plan.idmap {
            wanted |= InitFlags::FUSE_ALLOW_IDMAP;
        }
        let granted: Arc<Mutex<Granted>> = Arc::default();
        let negotiation = Self {
            wanted,
            max_write: plan.max_write,
            max_background: plan.max_background,
            granted: granted.clone(),
        };
        (negotiation, granted)
    }
}

impl Filesystem for Negotiation {
    fn init(&mut self, _: &Request, kernel: &mut KernelConfig) -> io::Result<()> {
        let wanted = self.wanted & kernel.capabilities();
        kernel.add_capabilities(wanted).map_err(|_| io::Error::other("the kernel took a capability back"))?;
        // A refused value returns the nearest accepted one.
        if let Err(nearest) = kernel.set_max_write(self.max_write) {
            self.max_write = nearest;
            let _taken = kernel.set_max_write(nearest);
        }
        // A value that is too large is refused with the kernel's own, which then applies.
        let readahead = kernel.set_max_readahead(u32::MAX).unwrap_or_else(|offered| offered);
        if wanted.contains(InitFlags::FUSE_PASSTHROUGH) && kernel.set_max_stack_depth(1).is_err() {
            return Err(io::Error::other("the kernel refuses a stack depth of 1"));
        }
        let _taken = kernel.set_max_background(self.max_background);
        *self.granted.lock() = Granted {
            passthrough: wanted.contains(InitFlags::FUSE_PASSTHROUGH),
            setxattr_ext: wanted.contains(InitFlags::FUSE_SETXATTR_EXT),
            ring: wanted.contains(InitFlags::FUSE_OVER_IO_URING),
            kills_privileges: wanted.contains(InitFlags::FUSE_HANDLE_KILLPRIV_V2),
            payload: payload(self.max_write, readahead),
            flags: wanted.bits(),
        };
        Ok(())
    }
}

/// Most data in one request or reply. Reads are limited not by the largest write but by the pages of a request: as many
/// as the larger of both limits needs (fuser requests that), or the kernel's default if it cannot be changed. An
/// extended attribute is smaller.
fn payload(max_write: u32, max_readahead: u32) -> u32 {
    /// FUSE_DEFAULT_MAX_PAGES_PER_REQ.
    const PAGES: u32 = 32;
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    max_write.max(max_readahead).max(PAGES * page).checked_next_multiple_of(page).unwrap_or(u32::MAX)
}
