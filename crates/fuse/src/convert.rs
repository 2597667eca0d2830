//! Conversions between the engine's types and the protocol's.

use std::time::Duration;

use fsstack_engine::answer::{self, Validity};
use fsstack_engine::ops::SetTime;
use fsstack_sys::{Stat, Time};
use fsstack_wire as wire;

use crate::adapter::Timeouts;

pub(crate) fn attr(of: &answer::Attr) -> wire::Attr {
    let stat = &of.stat;
    wire::Attr {
        ino: of.ino.0,
        size: stat.size,
        blocks: stat.blocks,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        mode: stat.mode,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: wire::encode_dev(stat.rdev_major, stat.rdev_minor),
        blksize: stat.blksize,
        flags: 0,
    }
}

/// Longest caching of attributes of a file that the kernel may write without the daemon.
const BRIEF_ATTR_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest caching of attributes after the request's own change. The kernel rounds up to a tick of its clock.
const INSTANT_ATTR_TIMEOUT: Duration = Duration::from_millis(1);

/// Returns how long the kernel may cache `of` if other attributes may be cached for `timeout`.
pub(crate) fn attr_valid(of: &answer::Attr, timeout: Duration) -> Duration {
    match of.validity {
        Validity::Full => timeout,
        Validity::Brief => timeout.min(BRIEF_ATTR_TIMEOUT),
        Validity::Instant => timeout.min(INSTANT_ATTR_TIMEOUT),
        Validity::None => Duration::ZERO,
    }
}

pub(crate) fn entry(of: &answer::Entry, timeouts: &Timeouts) -> wire::Entry {
    wire::Entry {
        nodeid: of.ino.0,
        generation: of.generation,
        entry_valid: timeouts.entry,
        attr_valid: attr_valid(&of.attr, timeouts.attr),
        attr: attr(&of.attr),
    }
}

/// Basic attributes of statx(2), and the birth time.
pub(crate) fn statx(of: &answer::Attr) -> wire::Statx {
    const BASIC: u32 = 0x7ff;
    const BTIME: u32 = 0x800;
    let Stat { btime, .. } = of.stat;
    let basic = attr(of);
    wire::Statx {
        mask: BASIC | if btime.is_some() { BTIME } else { 0 },
        blksize: basic.blksize,
        attributes: of.stat.attributes & of.stat.attributes_mask & SHOWN,
        attributes_mask: of.stat.attributes_mask & SHOWN,
        nlink: basic.nlink,
        uid: basic.uid,
        gid: basic.gid,
        mode: u16::try_from(basic.mode & 0xffff).unwrap_or(0),
        ino: basic.ino,
        size: basic.size,
        blocks: basic.blocks,
        atime: basic.atime,
        btime: btime.map(time).unwrap_or_default(),
        ctime: basic.ctime,
        mtime: basic.mtime,
        rdev_major: of.stat.rdev_major,
        rdev_minor: of.stat.rdev_minor,
        dev_major: 0,
        dev_minor: 0,
    }
}

/// Compressed, immutable, append-only, no-dump, encrypted: attributes of the file, not of its mount.
const SHOWN: u64 = 0x4 | 0x10 | 0x20 | 0x40 | 0x800;

fn time(of: Time) -> wire::Timestamp {
    wire::Timestamp { sec: of.sec, nsec: of.nsec }
}

pub(crate) fn set_time(of: wire::SetTime) -> SetTime {
    match of {
        wire::SetTime::Now => SetTime::Now,
        wire::SetTime::At(at) => SetTime::At(Time { sec: at.sec, nsec: at.nsec }),
    }
}
