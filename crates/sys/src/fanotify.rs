//! Events for changes that any process makes on a file system: fanotify with handles and names.
#![allow(unsafe_code, reason = "fanotify has no safe wrapper")]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::call::{Call, Result, call, once};
use crate::handle::FileHandle;

/// A queue of events. The kernel keeps at most 16 384 and reports when it dropped some.
#[derive(Debug)]
pub struct Group(OwnedFd);

/// Kinds of change: bits of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventMask(u64);

impl EventMask {
    /// Attributes, owner, mode, links or ACLs were changed.
    pub const ATTRIBUTES: Self = Self(libc::FAN_ATTRIB);
    /// A file that was open for writing was closed.
    pub const WRITTEN: Self = Self(libc::FAN_CLOSE_WRITE);
    /// A name was made, removed, or now means another object.
    pub const NAMES: Self =
        Self(libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO);
    /// A name was made.
    pub const CAME: Self = Self(libc::FAN_CREATE | libc::FAN_MOVED_TO);
    /// The object is, or was, a directory.
    pub const OF_DIRECTORY: Self = Self(libc::FAN_ONDIR);
    /// Events were dropped.
    pub const OVERFLOW: Self = Self(libc::FAN_Q_OVERFLOW);

    /// True if the mask has any bit of `other`.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'b> {
    /// Kinds of change; the kernel merges events that come close together.
    pub mask: EventMask,
    /// The process that made the change.
    pub pid: u32,
    /// The file system's id, as statfs(2) returns it.
    pub fsid: u64,
    /// The directory of the change.
    pub dir: Option<FileHandle>,
    /// The name in that directory. `None` if the directory itself changed.
    pub name: Option<&'b CStr>,
    /// The changed file, for events that are not about names.
    pub object: Option<FileHandle>,
}

impl Group {
    /// Makes a group without marks. Needs `CAP_SYS_ADMIN`.
    ///
    /// # Errors
    ///
    /// The kernel is older than 5.9, or permission is missing.
    pub fn new() -> Result<Self> {
        const FLAGS: libc::c_uint = libc::FAN_CLASS_NOTIF
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_REPORT_FID
            | libc::FAN_REPORT_DFID_NAME;
        call(Call::Watch, || {
            // SAFETY: takes integers.
            match unsafe { libc::fanotify_init(FLAGS, 0) } {
                -1 => Err(last_error()),
                // SAFETY: the descriptor was just made and has no other owner.
                fd => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
            }
        })
    }

    /// Marks the whole file system of `root`, which must not be `O_PATH`.
    ///
    /// # Errors
    ///
    /// The file system has no file handles or no id of its own.
    pub fn watch(&self, root: BorrowedFd<'_>) -> Result<()> {
        let deeds =
            EventMask::ATTRIBUTES.0 | EventMask::WRITTEN.0 | EventMask::NAMES.0 | EventMask::OF_DIRECTORY.0;
        call(Call::Watch, || {
            let how = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
            // SAFETY: takes integers, and no path.
            let marked = unsafe {
                libc::fanotify_mark(self.0.as_raw_fd(), how, deeds, root.as_raw_fd(), std::ptr::null())
            };
            if marked < 0 { Err(last_error()) } else { Ok(()) }
        })
    }

    /// Sleeps until there are events.
    ///
    /// # Errors
    ///
    /// The error of poll(2).
    pub fn wait(&self) -> Result<()> {
        let ready = || poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None).map(drop);
        call(Call::Watch, ready)
    }

    /// Reads pending events into `buffer` (at least 4 KiB). Returns the number of bytes; 0 if no event is pending.
    ///
    /// # Errors
    ///
    /// The error of read(2).
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        match once(Call::Watch, || rustix::io::read(&self.0, &mut *buffer)) {
            Err(error) if matches!(error.errno, Errno::AGAIN | Errno::INTR) => Ok(0),
            read => read,
        }
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Iterates over the events in `bytes`, as [`Self::read`] returned them.
pub fn events(mut bytes: &[u8]) -> impl Iterator<Item = Event<'_>> {
    std::iter::from_fn(move || {
        let len = usize::try_from(word(bytes, 0)?).ok()?;
        let (this, rest) = bytes.split_at_checked(len)?;
        bytes = rest;
        event(this)
    })
}

/// Size of `struct fanotify_event_metadata`.
const METADATA: usize = 24;
/// Size of `struct fanotify_event_info_fid` up to the handle, which is also that of the handle's header.
const INFO: usize = 12;
const HANDLE: usize = 8;

fn event(bytes: &[u8]) -> Option<Event<'_>> {
    let mask = EventMask(u64::from_ne_bytes(*bytes.get(8..16)?.first_chunk()?));
    let mut event = Event { mask, pid: word(bytes, 20)?, fsid: 0, dir: None, name: None, object: None };
    let mut records = bytes.get(METADATA..)?;
    while let Some(&[kind, _, low, high]) = records.first_chunk() {
        let len = usize::from(u16::from_ne_bytes([low, high]));
        let (record, rest) = records.split_at_checked(len.max(1))?;
        records = rest;
        if ![FID, DFID, DFID_NAME].contains(&kind) {
            continue;
        }
        event.fsid = u64::from(word(record, 4)?) | u64::from(word(record, 8)?) << 32;
        let end = INFO + HANDLE + usize::try_from(word(record, INFO)?).ok()?;
        let handle = FileHandle {
            kind: word(record, INFO + 4)?.cast_signed(),
            bytes: record.get(INFO + HANDLE..end)?.to_vec(),
        };
        if kind == FID {
            event.object = Some(handle);
        } else {
            event.dir = Some(handle);
            let name = record.get(end..).and_then(|name| CStr::from_bytes_until_nul(name).ok());
            event.name = name.filter(|name| kind == DFID_NAME && *name != c".");
        }
    }
    Some(event)
}

const FID: u8 = libc::FAN_EVENT_INFO_TYPE_FID;
const DFID: u8 = libc::FAN_EVENT_INFO_TYPE_DFID;
const DFID_NAME: u8 = libc::FAN_EVENT_INFO_TYPE_DFID_NAME;

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..at + 4)?.first_chunk()?))
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;
    use crate::handle::name_to_handle;

    #[test]
    fn changes_in_a_directory_are_reported() {
        let group = match Group::new() {
            Err(error) if error.errno == Errno::PERM => return println!("skipped: needs CAP_SYS_ADMIN"),
            group => group.unwrap(),
        };
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let dir = File::open(home.path()).unwrap();
        group.watch(dir.as_fd()).unwrap();
        let handle = name_to_handle(dir.as_fd(), c"").unwrap();
        fs::write(home.path().join("film"), "x").unwrap();
        fs::rename(home.path().join("film"), home.path().join("movie")).unwrap();
        fs::create_dir(home.path().join("sub")).unwrap();
        fs::remove_dir(home.path().join("sub")).unwrap();
        let mut buffer = vec![0; 64 << 10];
        let len = group.read(&mut buffer).unwrap();
        let fsid = crate::file::statfs(dir.as_fd()).unwrap().fsid;
        let ours: Vec<Event<'_>> = events(&buffer[..len])
            .filter(|event| event.pid == std::process::id() && event.dir.as_ref() == Some(&handle))
            .collect();
        let has = |name: &CStr, mask: EventMask| {
            ours.iter().any(|event| event.name == Some(name) && event.mask.has(mask) && event.fsid == fsid)
        };
        assert!(has(c"film", EventMask::NAMES) && has(c"movie", EventMask::NAMES), "{ours:?}");
        assert!(has(c"sub", EventMask::OF_DIRECTORY), "{ours:?}");
        let written = ours.iter().find(|event| event.mask.has(EventMask::WRITTEN)).unwrap();
        assert_eq!(written.object, Some(name_to_handle(dir.as_fd(), c"movie").unwrap()));
        while group.read(&mut buffer).unwrap() > 0 {}
    }

    #[test]
    fn a_short_record_is_no_event() {
        let mut bytes = vec![0_u8; 40];
        bytes[0] = 40;
        bytes[24] = DFID_NAME;
        for len in [200, 3, 0] {
            bytes[26] = len;
            assert!(events(&bytes).count() <= 1);
        }
        bytes[0] = 41;
        assert_eq!(events(&bytes).count(), 0);
        assert_eq!(events(&bytes[..7]).count(), 0);
    }
}
