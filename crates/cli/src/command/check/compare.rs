//! Compares copies of a directory, and objects of one name.

use super::watch::WalkWatch;
use fsstack_sys::at::Mounts;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{Errno, OFlags, Result, Stat, at, file, ioctl};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Bytes that are compared at a time.
const CHUNK: usize = 256 << 10;

/// Flags that copies of a directory have in common, by the names of chattr(1).
const FLAGS: [(u32, &str); 4] = [
    (ioctl::FS_IMMUTABLE_FL, "immutable"),
    (ioctl::FS_APPEND_FL, "append-only"),
    (ioctl::FS_SYNC_FL, "sync"),
    (ioctl::FS_DIRSYNC_FL, "dirsync"),
];

/// Attributes that copies of a directory have in common. For files: what makes a copy worth keeping beside its content.
#[derive(PartialEq, Eq)]
pub(super) struct DirTraits {
    uid: u32,
    gid: u32,
    mode: u32,
    /// Flags of a directory; None where the file system has none.
    flags: Option<DirFlags>,
    /// None where the file system has none.
    attributes: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl DirTraits {
    pub(super) fn of(dir: BorrowedFd<'_>) -> Result<Self> {
        let stat = at::stat_fd(dir)?;
        let attributes = match attributes_of(dir) {
            Ok(attributes) => Some(attributes),
            Err(error) if error.errno == Errno::OPNOTSUPP => None,
            Err(error) => return Err(error),
        };
        let flags = if stat.is_dir() { DirFlags::of(dir)? } else { None };
        Ok(Self { uid: stat.uid, gid: stat.gid, mode: stat.mode & 0o7777, flags, attributes })
    }

    /// Says how `self` differs from the first copy; empty if it does not.
    pub(super) fn difference(&self, first: &Self) -> String {
        let mut parts = Vec::new();
        if (self.uid, self.gid) != (first.uid, first.gid) {
            parts.push(format!("owner {}:{} for {}:{}", self.uid, self.gid, first.uid, first.gid));
        }
        if self.mode != first.mode {
            parts.push(format!("mode {:04o} for {:04o}", self.mode, first.mode));
        }
        if let Some((own, first)) = self.flags.zip(first.flags)
            && own.as_far_as(first) != own.set
        {
            parts.push(format!("flags {} for {}", flag_names(own.set), flag_names(own.as_far_as(first))));
        }
        // It has none, and the other may not be changed.
        let frozen = first.flags.map_or(0, |flags| flags.set & ioctl::FREEZING);
        if self.flags.is_none() && frozen != 0 {
            parts.push(format!("flags none for {}", flag_names(frozen)));
        }
        if let (Some(own), Some(first)) = (&self.attributes, &first.attributes) {
            let names: std::collections::BTreeSet<_> = own.keys().chain(first.keys()).collect();
            for name in names.into_iter().filter(|name| own.get(*name) != first.get(*name)) {
                let shown = fsstack_pool::Printable(name);
                parts.push(match (own.contains_key(name), first.contains_key(name)) {
                    (true, false) => format!("{shown} only here"),
                    (false, _) => format!("{shown} missing"),
                    _ => format!("another {shown}"),
                });
            }
        }
        parts.join(", ")
    }
}

impl DirTraits {
    /// Gives the directory `dir`, which has these, the traits `wanted`. Nobody gains rights by a step that is not the last.
    pub(super) fn become_like(&self, wanted: &Self, dir: BorrowedFd<'_>) -> Result<()> {
        let Some(own) = self.flags else {
            let is_frozen = wanted.flags.is_some_and(|flags| flags.set & ioctl::FREEZING != 0);
            let refused = fsstack_sys::SysError::new(fsstack_sys::Call::Ioctl, Errno::OPNOTSUPP);
            return if is_frozen { Err(refused) } else { self.become_like_but_for_flags(wanted, dir) };
        };
        // Nothing else of a directory with these can be changed.
        let thawed = own.set & !ioctl::FREEZING;
        if thawed != own.set {
            set_flags(dir, thawed)?;
        }
        let wanted_flags = wanted.flags.map_or(own.set, |wanted| own.as_far_as(wanted));
        let done = self.become_like_but_for_flags(wanted, dir).and_then(|()| match wanted_flags == thawed {
            true => Ok(()),
            false => set_flags(dir, wanted_flags),
        });
        match done {
            // The flags that protected it are set again. Its mode is without rights that it was to gain together with flags.
            Err(error) => {
                let narrow = at::chmod_fd(dir, self.mode & wanted.mode);
                set_flags(dir, own.set).and(narrow).and(Err(error))
            }
            done => done,
        }
    }

    fn become_like_but_for_flags(&self, wanted: &Self, dir: BorrowedFd<'_>) -> Result<()> {
        if (self.uid, self.gid, self.mode) != (wanted.uid, wanted.gid, wanted.mode) {
            at::chmod_fd(dir, self.mode & wanted.mode)?;
            at::chown_fd(dir, Some(wanted.uid), Some(wanted.gid))?;
        }
        if let (Some(own), Some(wanted)) = (&self.attributes, &wanted.attributes) {
            for name in own.keys().filter(|name| !wanted.contains_key(*name)) {
                match xattr::remove(On::Fd(dir), &c_name(name)) {
                    Err(error) if error.errno != Errno::NODATA => return Err(error),
                    _ => {}
                }
            }
            for (name, value) in wanted.iter().filter(|(name, value)| own.get(*name) != Some(*value)) {
                xattr::set(On::Fd(dir), &c_name(name), value, 0)?;
            }
        }
        at::chmod_fd(dir, wanted.mode)
    }

    /// The owner, group, mode, flags and attributes in printable form; values in hexadecimal.
    pub(super) fn described(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::from([
            ("owner".to_owned(), format!("{}:{}", self.uid, self.gid)),
            ("mode".to_owned(), format!("{:04o}", self.mode)),
        ]);
        if let Some(flags) = self.flags.filter(|flags| flags.set != 0) {
            all.insert("flags".to_owned(), flag_names(flags.set));
        }
        for (name, value) in self.attributes.iter().flatten() {
            all.insert(fsstack_pool::Printable(name).to_string(), hex(value));
        }
        all
    }
}

/// Names of flags, or `none`.
fn flag_names(flags: u32) -> String {
    let names: Vec<_> = FLAGS.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join("+") }
}

/// The flags of a directory, and the type of its file system.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DirFlags {
    /// Those of [`FLAGS`].
    set: u32,
    fs_type: u64,
}

impl DirFlags {
    /// None: its file system has no flags.
    fn of(dir: BorrowedFd<'_>) -> Result<Option<Self>> {
        let dir = readable(dir)?;
        match ioctl::getflags(dir.as_fd()) {
            Ok(flags) => {
                Ok(Some(Self { set: flags & all_flags(), fs_type: file::statfs(dir.as_fd())?.f_type }))
            }
            Err(error) if has_none(error.errno) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// These as they are to be beside `first`. A file system of another type may refuse sync or dirsync, and the pool then leaves it out.
    fn as_far_as(self, first: Self) -> u32 {
        let compared = if self.fs_type == first.fs_type { all_flags() } else { ioctl::FREEZING };
        self.set & !compared | first.set & compared
    }
}

/// Answers of file systems without flags.
fn has_none(errno: Errno) -> bool {
    matches!(errno, Errno::NOTTY | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS)
}

fn all_flags() -> u32 {
    FLAGS.iter().fold(0, |all, (flag, _)| all | flag)
}

/// Gives the directory `dir` those of [`FLAGS`] that are in `wanted`; its other flags stay.
fn set_flags(dir: BorrowedFd<'_>, wanted: u32) -> Result<()> {
    let dir = readable(dir)?;
    let own = ioctl::getflags(dir.as_fd())?;
    ioctl::setflags(dir.as_fd(), own & !all_flags() | wanted)
}

fn readable(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    at::reopen_quietly(dir, OFlags::RDONLY | OFlags::DIRECTORY)
}

fn c_name(name: &[u8]) -> CString {
    // Names come from the kernel's list, which NUL separates.
    CString::new(name).unwrap_or_default()
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of their hexadecimal form.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    text.as_bytes().chunks(2).map(|pair| Some(digit(pair.first()?)? << 4 | digit(pair.get(1)?)?)).collect()
}

/// Users' attributes, capabilities and access lists: not those of file systems, of fsstack, or of the machine's policy.
fn attributes_of(dir: BorrowedFd<'_>) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let list = xattr::list_vec(On::Fd(dir))?;
    let mut attributes = BTreeMap::new();
    for name in list.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let is_users =
            name.to_bytes().starts_with(b"user.") && !name.to_bytes().starts_with(b"user.fsstack.");
        if !is_users && !name.to_bytes().starts_with(b"system.posix_acl_") && name != c"security.capability" {
            continue;
        }
        match xattr::get_vec(On::Fd(dir), name) {
            Ok(value) => drop(attributes.insert(name.to_bytes().to_vec(), value)),
            // Removed since it was listed.
            Err(error) if error.errno == Errno::NODATA => {}
            Err(error) => return Err(error),
        }
    }
    Ok(attributes)
}

/// One of two objects that are compared.
#[derive(Clone, Copy)]
pub(super) struct Compared<'a> {
    /// Index of its branch.
    pub(super) branch: usize,
    pub(super) dir: BorrowedFd<'a>,
    pub(super) stat: &'a Stat,
}

/// Relations of objects that one copy can stand for.
pub(super) const SAME_CONTENT: &str = "the same content";
pub(super) const SAME_TARGET: &str = "the same target";

/// Compares what two objects of one name hold, and says it in words.
pub(super) fn contents(
    shows: Compared<'_>,
    hides: Compared<'_>,
    name: &CStr,
    watch: &WalkWatch,
) -> Result<&'static str> {
    let (first, other) = (shows.stat, hides.stat);
    Ok(if (first.dev, first.ino) == (other.dev, other.ino) {
        "the same file by another link"
    } else if first.kind() != other.kind() {
        "of another type"
    } else if first.is_symlink() {
        let same = at::readlink(shows.dir, name)? == at::readlink(hides.dir, name)?;
        if same { SAME_TARGET } else { "another target" }
    } else if !first.is_file() {
        "a special file"
    } else if first.size != other.size {
        "another size"
    } else if same_bytes(
        (shows.branch, reader(shows.dir, name)?),
        (hides.branch, reader(hides.dir, name)?),
        watch,
    )? {
        SAME_CONTENT
    } else {
        "another content"
    })
}

/// Opens a regular file; anything else that took its name meanwhile is not opened.
fn reader(dir: BorrowedFd<'_>, name: &CStr) -> Result<File> {
    let place = at::open(dir, name, OFlags::PATH, 0, Mounts::Stay)?;
    if !at::stat_fd(place.as_fd())?.is_file() {
        return Err(fsstack_sys::SysError::new(fsstack_sys::Call::Open, Errno::STALE));
    }
    at::reopen_quietly(place.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK).map(File::from)
}

/// Whether two files, each on the branch before it, have the same bytes.
fn same_bytes((on, first): (usize, File), (behind, other): (usize, File), watch: &WalkWatch) -> Result<bool> {
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    loop {
        watch.calls(on);
        let read = fill(&first, &mut left)?;
        watch.calls(behind);
        let against = fill(&other, &mut right)?;
        if left[..read] != right[..against] {
            return Ok(false);
        }
        if read == 0 {
            return Ok(true);
        }
    }
}

/// Reads until `buffer` is full or the file ends.
fn fill(mut from: &File, buffer: &mut [u8]) -> Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match from.read(&mut buffer[have..]) {
            Ok(0) => break,
            Ok(read) => have += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                return Err(fsstack_sys::SysError::new(fsstack_sys::Call::Read, errno));
            }
        }
    }
    Ok(have)
}

/// The traits of `name` in `dir`, whatever it is.
pub(super) fn traits_of(dir: BorrowedFd<'_>, name: &CStr) -> Result<DirTraits> {
    let place = at::open(dir, name, OFlags::PATH | OFlags::NOFOLLOW, 0, Mounts::Stay)?;
    DirTraits::of(place.as_fd())
}
