//! The mount table, and mounting.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

pub use rustix::mount::MountFlags;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::call::{Call, Result, SysError, call};

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// Id of the mount; reused after it is unmounted.
    pub id: u64,
    /// Id of the mount below it.
    pub parent: u64,
    /// Major and minor number of the file system's device.
    pub dev: (u32, u32),
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Type of the file system, with its subtype if any (`fuse.name`).
    pub fs_type: OsString,
    /// Mount source: a device or any text.
    pub source: OsString,
    /// Options of this mount, comma-separated.
    pub options: String,
    /// Options of the file system, comma-separated.
    pub super_options: String,
}

impl MountInfo {
    /// Device number of its file system, in [`crate::Stat::dev`]'s encoding.
    pub fn device(&self) -> u64 {
        rustix::fs::makedev(self.dev.0, self.dev.1)
    }

    /// True if it is a FUSE mount. The subtype after the dot is free text.
    pub fn is_fuse(&self) -> bool {
        let kind = self.fs_type.as_encoded_bytes().split(|byte| *byte == b'.').next();
        matches!(kind, Some(b"fuse" | b"fuseblk"))
    }
}

/// Returns the mounts that the calling process sees, in the table's order: a mount on top comes later.
pub fn list() -> io::Result<Vec<MountInfo>> {
    parse(&std::fs::read("/proc/self/mountinfo")?)
}

/// Reads a table in the format of `/proc/self/mountinfo`.
pub fn parse(table: &[u8]) -> io::Result<Vec<MountInfo>> {
    let lines = table.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let malformed = || {
                let line = String::from_utf8_lossy(line);
                io::Error::new(io::ErrorKind::InvalidData, format!("malformed mount table line: {line}"))
            };
            parse_line(line).ok_or_else(malformed)
        })
        .collect()
}

/// Reports changes of the mount table.
#[derive(Debug)]
pub struct Changes {
    table: File,
    end: OwnedFd,
}

impl Changes {
    /// Reports changes from now on.
    pub fn new() -> io::Result<Self> {
        let end = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { table: File::open("/proc/self/mountinfo")?, end })
    }

    /// Waits for a change. False if [`Self::end`] was called.
    pub fn wait(&self) -> bool {
        loop {
            let mut polled = [
                PollFd::new(&self.table, PollFlags::PRI | PollFlags::ERR),
                PollFd::new(&self.end, PollFlags::IN),
            ];
            match rustix::event::poll(&mut polled, None) {
                Err(Errno::INTR) => {}
                Err(_) => return false,
                Ok(_) if !polled[1].revents().is_empty() => return false,
                Ok(_) => return true,
            }
        }
    }

    /// Ends all waits, now and later.
    pub fn end(&self) {
        // Cannot fail: the counter is far from its maximum.
        let _written = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
    }
}

fn parse_line(line: &[u8]) -> Option<MountInfo> {
    // An empty source leaves an empty field, so every single space separates.
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let (major, minor) = text(fields.next()?).split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned()))?;
    let root = PathBuf::from(unescape(fields.next()?));
    let mount_point = PathBuf::from(unescape(fields.next()?));
    let options = text(fields.next()?);
    // Any number of optional fields (propagation), ended by a dash.
    fields.find(|field| *field == b"-")?;
    let fs_type = unescape(fields.next()?);
    let source = unescape(fields.next()?);
    let super_options = text(fields.next()?);
    let dev = (major.parse().ok()?, minor.parse().ok()?);
    Some(MountInfo { id, parent, dev, root, mount_point, fs_type, source, options, super_options })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn text(field: &[u8]) -> String {
    unescape(field).to_string_lossy().into_owned()
}

/// Decodes `\ooo`, which stands for spaces, tabs, newlines, backslashes and similar characters in such tables.
pub fn unescape(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        if let (b'\\', Some((digits, beyond))) = (first, after.split_at_checked(3))
            && let Some(byte) = octal(digits)
        {
            plain.push(byte);
            rest = beyond;
        } else {
            plain.push(*first);
            rest = after;
        }
    }
    OsString::from_vec(plain)
}

fn octal(digits: &[u8]) -> Option<u8> {
    if !digits.iter().all(|digit| matches!(digit, b'0'..=b'7')) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

/// Mounts a FUSE file system at `target`; `data` is its options, with `fd=`.
pub fn mount_fuse(source: &OsStr, target: &Path, fs_type: &str, flags: MountFlags, data: &str) -> Result<()> {
    let data = CString::new(data).map_err(|_| SysError::new(Call::Mount, Errno::INVAL))?;
    call(Call::Mount, || rustix::mount::mount(source, target, fs_type, flags, data.as_c_str()))
}

/// Changes the flags of the mount at `target` and of its file system.
pub fn remount(target: &Path, flags: MountFlags) -> Result<()> {
    call(Call::Mount, || rustix::mount::mount_remount(target, flags, c""))
}

/// Flags of umount2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UmountFlags {
    /// Detach the mount now, and unmount it when its last user is gone (MNT_DETACH).
    pub detach: bool,
    /// Abort pending requests (MNT_FORCE).
    pub force: bool,
    /// Refuse a symbolic link as the target.
    pub nofollow: bool,
}

impl UmountFlags {
    fn bits(self) -> UnmountFlags {
        let mut bits = UnmountFlags::empty();
        bits.set(UnmountFlags::DETACH, self.detach);
        bits.set(UnmountFlags::FORCE, self.force);
        bits.set(UnmountFlags::NOFOLLOW, self.nofollow);
        bits
    }
}

/// Unmounts the topmost mount at `target`.
pub fn umount(target: &Path, flags: UmountFlags) -> Result<()> {
    call(Call::Mount, || rustix::mount::unmount(target, flags.bits()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let table =
            b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n\
            37 36 0:52 / /u\\134x\\011y rw - fuse.fsstack  rw,user_id=0\n";
        let mounts = parse(table).unwrap();
        let first = MountInfo {
            id: 36,
            parent: 35,
            dev: (98, 0),
            root: "/mnt1".into(),
            mount_point: "/mnt 2".into(),
            fs_type: "ext3".into(),
            source: "/dev/root".into(),
            options: "rw,noatime".into(),
            super_options: "rw,errors=continue".into(),
        };
        assert_eq!(mounts[0], first);
        assert_eq!(mounts[1].mount_point, Path::new("/u\\x\ty"));
        assert_eq!(
            (mounts[1].fs_type.as_bytes(), mounts[1].source.as_bytes()),
            (&b"fuse.fsstack"[..], &b""[..])
        );
        assert_eq!(mounts.len(), 2);
    }

    #[test]
    fn only_octal_escapes_are_undone() {
        assert_eq!(unescape(b"a\\040b\\9zz\\04").as_bytes(), b"a b\\9zz\\04");
        assert_eq!(unescape(b"\\377\\777").as_bytes(), b"\xff\\777");
    }

    #[test]
    fn malformed_lines_are_named() {
        let error = parse(b"1 2 3\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("1 2 3"));
    }

    #[test]
    fn the_own_table_has_a_root() {
        assert!(list().unwrap().iter().any(|mount| mount.mount_point == Path::new("/")));
    }

    #[test]
    fn a_bare_directory_is_not_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        let flags = UmountFlags { nofollow: true, ..UmountFlags::default() };
        assert_eq!(umount(dir.path(), flags).unwrap_err().call, Call::Mount);
    }
}
