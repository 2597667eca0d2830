//! A file system that does nothing, behind the pool's transports: the cost of kernel, transport and machine before any
//! branch is called.
//!
//! Names that begin with `c` are directories, with `u` files; all others are missing until the kernel has made them, which
//! it remembers by itself. All files have the content of one file in memory, by passthrough: what a pool's operations ask of
//! kernel and transport, this one's do, too. This program serves it when it is run under the lab's name for a mount helper, as a daemon in
//! its own session.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fsstack_engine::files::route::Backings;
use fsstack_fuse::transport::device::DeviceBackings;
use fsstack_fuse::{OpenTransport, Outcome, Plan, Scheduling, Serve, Transport};
use fsstack_pool::settings::Xattrs;
use fsstack_sys::process::{self, Fork};
use fsstack_wire::{Abi, Answer, Attr, Entry, Opened, Operation, Request, Statfs, abi};
use rustix::io::Errno;
use rustix::mount::MountFlags;

/// Name of this program, and its first argument, when it serves.
pub(crate) const CALLED: &str = "mount.fsstack";
const SERVE: &str = "null";

const KEPT: Duration = Duration::from_secs(120);
const MAX_WRITE: u32 = 1 << 20;
/// Bytes of the file that all files show.
const CONTENT: u64 = 4096;
const DIR: u32 = 0o40_755;
const FILE: u32 = 0o100_644;
/// Bit of a number: a file.
const IS_FILE: u64 = 1 << 62;

/// Arguments that make this program mount `target` with `transport`. Each call that a program waits for takes that many
/// microseconds, to imitate a distant server.
pub(crate) fn arguments(transport: &str, target: &Path, away: &str) -> Vec<String> {
    vec![SERVE.into(), transport.into(), target.display().to_string(), away.into()]
}

/// Serves if the program was run for that. True if it has.
pub(crate) fn called(mut arguments: impl Iterator<Item = String>) -> Result<bool> {
    if arguments.next().as_deref() != Some(SERVE) {
        return Ok(false);
    }
    let transport = match arguments.next().as_deref() {
        Some("ring") => Transport::Ring,
        Some("dev") => Transport::Dev,
        other => bail!("no transport: {other:?}"),
    };
    let target = PathBuf::from(arguments.next().context("no mount point")?);
    let away: u64 = arguments.next().context("no time")?.parse()?;
    let (ready, tell) = process::readiness_pipe()?;
    if let Fork::Parent(_) = process::fork()? {
        drop(tell);
        let mut result = [0];
        ensure!(std::fs::File::from(ready).read(&mut result)? == 1, "the null file system is not mounted");
        return Ok(true);
    }
    process::setsid()?;
    process::redirect_stdio_to_null()?;
    let transport = transport.settled().map_err(anyhow::Error::msg)?;
    let mounted = fsstack_fuse::mount::mount(&plan(target, transport == Transport::Ring))?;
    let granted = mounted.granted;
    let device = mounted.device().try_clone_to_owned()?;
    let abi = Abi { setxattr_ext: granted.setxattr_ext };
    let content = tempfile::tempfile_in("/dev/shm")?;
    content.set_len(CONTENT)?;
    ensure!(granted.passthrough, "the kernel has no passthrough");
    let backing_id = DeviceBackings::new(mounted.device())?.open(content.as_fd())?;
    let opened = Opened { backing_id: i32::try_from(backing_id)?, ..OPENED };
    let null = Arc::new(Null { abi, away: Duration::from_micros(away), opened });
    let transport =
        OpenTransport::open(granted.ring, null, device, granted.payload, (None, Scheduling::Auto))?;
    transport.begin(Vec::new());
    std::fs::File::from(tell.as_fd().try_clone_to_owned()?).write_all(&[1])?;
    drop(tell);
    transport.wait(Duration::from_secs(10));
    mounted.ended();
    Ok(true)
}

fn plan(target: PathBuf, ring: bool) -> Plan {
    Plan {
        target,
        fsname: "null".into(),
        subtype: "null".into(),
        device: None,
        flags: MountFlags::NOSUID | MountFlags::NODEV,
        allow_other: true,
        default_permissions: true,
        privileged: true,
        max_write: MAX_WRITE,
        max_background: 64,
        passthrough: true,
        writeback: false,
        ring,
        forward_locks: false,
        export: false,
        xattrs: Xattrs::On,
        idmap: false,
    }
}

/// The file system.
#[derive(Debug)]
struct Null {
    abi: Abi,
    away: Duration,
    opened: Opened,
}

impl Serve for Null {
    fn abi(&self) -> Abi {
        self.abi
    }

    fn serve(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Outcome {
        let nodeid = request.header.nodeid;
        let waited_for = matches!(
            request.op,
            Operation::Lookup { .. } | Operation::Getattr { .. } | Operation::Open { .. } | Operation::Statfs
        );
        if waited_for && !self.away.is_zero() {
            std::thread::sleep(self.away);
        }
        let built = match request.op {
            Operation::Forget { .. } | Operation::BatchForget(_) | Operation::Interrupt { .. } => {
                return Outcome::Silent;
            }
            Operation::Lookup { name } => match named(nodeid, name.to_bytes()) {
                Some(ino) => answer.entry(&entry(ino)),
                None => answer.missing(KEPT),
            },
            Operation::Create(made) => {
                answer.created(&entry(number(nodeid, made.name.to_bytes(), IS_FILE)), self.opened)
            }
            Operation::Mkdir { name, .. } => answer.entry(&entry(number(nodeid, name.to_bytes(), 0))),
            Operation::Unlink { .. } | Operation::Rmdir { .. } | Operation::Rename { .. } => Ok(()),
            // As for most files of a pool: the kernel asks for a capability before a first write.
            Operation::Getxattr { .. } => return Outcome::Refused(Errno::NODATA.raw_os_error()),
            Operation::Getattr { .. } => answer.attr(&attr(nodeid), KEPT),
            Operation::Statfs => answer.statfs(&Statfs::default()),
            Operation::Open { .. } => answer.opened(self.opened),
            Operation::Release { .. } => Ok(()),
            _ => return Outcome::Refused(Errno::NOSYS.raw_os_error()),
        };
        match built {
            Ok(()) => Outcome::Answered,
            Err(_) => Outcome::Refused(Errno::IO.raw_os_error()),
        }
    }

    fn may_hang(&self) -> bool {
        false
    }

    fn take_back(&self, _: &Request<'_>, _: &[u8]) {}

    fn some_files(&self, _: usize) -> Vec<u64> {
        Vec::new()
    }
}

/// Answer to an open, without the id of the content. As in a pool, closing sends no FLUSH.
const OPENED: Opened =
    Opened { fh: 0, open_flags: abi::FOPEN_NOFLUSH | abi::FOPEN_PASSTHROUGH, backing_id: 0 };

fn entry(ino: u64) -> Entry {
    Entry { nodeid: ino, generation: 0, entry_valid: KEPT, attr_valid: KEPT, attr: attr(ino) }
}

/// The number of `name` in the directory `parent`; None if it is missing.
fn named(parent: u64, name: &[u8]) -> Option<u64> {
    let kind = match name.first()? {
        b'c' => 0,
        b'u' => IS_FILE,
        _ => return None,
    };
    Some(number(parent, name, kind))
}

/// The number of `name` in the directory `parent`, FNV-1a over both (Fowler, Noll, Vo), with its type.
fn number(parent: u64, name: &[u8], kind: u64) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = parent.to_ne_bytes().iter().chain(name).fold(0xcbf2_9ce4_8422_2325, step);
    (hash & (IS_FILE - 1)) | 2 | kind
}

fn attr(ino: u64) -> Attr {
    let mode = if ino & IS_FILE != 0 { FILE } else { DIR };
    Attr { ino, mode, nlink: 1, blksize: 4096, ..Attr::default() }
}
