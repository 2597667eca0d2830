//! Records: files in the hidden folder of a branch that say what is under way, for the mount that finds them.
//!
//! A record begins with a head in clear: a magic number, the format of its body, and the body's length. Last comes a checksum
//! of all that, which does not depend on the format. So each version can tell a record that was cut short, which was never
//! acted on and is cleared, from a whole one of a format that it does not know, which stays.
//!
//! A record is on disk before it is acted on. It changes by a rename over it, so that there is never a second one. A process
//! at work with a record holds a lock on it (`F_OFD_SETLK`): another host's mount leaves it alone.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_identity::number::{hash_name, mix};
use fsstack_pool::Ino;
use fsstack_sys::file::sync_dir;
use fsstack_sys::locks::{self, Lock, LockType, TO_THE_END};
use fsstack_sys::{self as sys, Call, Errno, OFlags, SysError};

use crate::member::staged::fresh_name;
use crate::recovery::hidden_folder::{folder_name, in_folder, is_only_ours, leave};
use crate::recovery::record_kind::{KINDS, RecordKind};

/// A record is no longer than this; a path that makes it longer is not recorded.
const LONGEST: u64 = 1 << 20;
const MAGIC: &[u8; 4] = b"fsst";
/// Magic number, format, length of the body.
const HEAD: usize = 4 + 2 + 4;
const SUM: usize = 8;
/// How the name ends of a record that is about to replace another.
const ASIDE: &CStr = c".part";

/// A record that is on a branch, and in use by this process.
#[must_use = "it is acted on by the next mount unless it is done with"]
pub(crate) struct Written {
    name: CString,
    /// Holds the lock.
    file: OwnedFd,
}

/// A record that is on disk under another name, to take the place of one in use: that needs no space then. The next mount
/// removes it.
#[must_use = "it stays until the next mount unless it is used or discarded"]
pub(crate) struct Successor {
    aside: CString,
    /// Holds the lock.
    file: OwnedFd,
}

/// A file of the hidden folder that has the name of a record.
#[derive(Debug)]
pub(crate) enum FoundRecord {
    /// A whole one, locked until this drops.
    Whole(&'static RecordKind, Vec<u8>, #[expect(dead_code, reason = "holds the lock")] OwnedFd),
    /// It was truncated, so it was never acted on.
    Torn,
    /// Another version wrote it.
    Unknown,
    /// Others may have written it: it came here with its directory, renamed by the owner of the branch's root, say.
    NotOurs,
    /// A living process is at work with it.
    InUse,
}

/// Content of a record's bytes.
#[derive(Debug, PartialEq, Eq)]
enum Parsed<'a> {
    Body(&'a [u8]),
    Torn,
    Unknown,
}

impl RecordKind {
    /// The kinds of record that `name` may be.
    fn of(name: &CStr) -> impl Iterator<Item = &'static Self> {
        KINDS.into_iter().filter(|sort| name.to_bytes().ends_with(sort.suffix.to_bytes()))
    }

    /// Content of the record `name`. None: it is no record.
    fn parse_as<'a>(name: &CStr, record: &'a [u8]) -> Option<(&'static Self, Parsed<'a>)> {
        let parsed = Self::of(name).map(|sort| (sort, sort.parse(record)));
        // Whether it is torn is the same for all.
        parsed.reduce(|first, other| if first.1 == Parsed::Unknown { other } else { first })
    }

    fn encode(&self, body: &[u8]) -> Result<Vec<u8>, SysError> {
        let too_long = SysError { call: Call::Write, errno: Errno::FBIG };
        let len = u32::try_from(body.len()).map_err(|_| too_long)?;
        let mut record = MAGIC.to_vec();
        record.extend_from_slice(&self.format.to_le_bytes());
        record.extend_from_slice(&len.to_le_bytes());
        record.extend_from_slice(body);
        record.extend_from_slice(&checksum(&record).to_le_bytes());
        if record.len() as u64 > LONGEST { Err(too_long) } else { Ok(record) }
    }

    fn parse<'a>(&self, record: &'a [u8]) -> Parsed<'a> {
        let begun = record.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if MAGIC.starts_with(&record[..begun]) {
            return Parsed::Torn; // not even the head was written
        }
        let Some(rest) = record.strip_prefix(MAGIC) else { return Parsed::Unknown };
        let Some((format, rest)) = rest.split_first_chunk::<2>() else { return Parsed::Torn };
        let Some((len, rest)) = rest.split_first_chunk::<4>() else { return Parsed::Torn };
        let Some((body, sum)) = rest.split_last_chunk::<SUM>() else { return Parsed::Torn };
        let is_whole = body.len() as u64 == u64::from(u32::from_le_bytes(*len))
            && u64::from_le_bytes(*sum) == checksum(&record[..HEAD + body.len()]);
        match is_whole {
            false => Parsed::Torn,
            true if u16::from_le_bytes(*format) != self.format => Parsed::Unknown,
            true => Parsed::Body(body),
        }
    }
}

fn checksum(record: &[u8]) -> u64 {
    mix(hash_name(Ino(u64::from(u32::from_le_bytes(*MAGIC))), record))
}

/// Puts a record into the branch's hidden folder, on disk.
pub(crate) fn write(on: &Branch, sort: &RecordKind, body: &[u8]) -> Result<Written, SysError> {
    write_as(on, sort, fresh_name(sort.suffix), body)
}

/// Like [`write`], under a name that no other record has.
pub(crate) fn write_as(
    on: &Branch,
    sort: &RecordKind,
    name: CString,
    body: &[u8],
) -> Result<Written, SysError> {
    let record = sort.encode(body)?;
    let (folder, file) = in_folder(on, |folder| create(on, folder, &name))?;
    let stored = store(&file, &record).and_then(|()| {
        sync_dir(folder.as_fd())?;
        sync_dir(on.root().as_fd())
    });
    let written = Written { name, file };
    // One that is not surely on disk must not be acted on by a later mount.
    match stored {
        Ok(()) => Ok(written),
        Err(error) => {
            let _left = written.remove(on, None); // for the next mount, if it must be
            Err(error)
        }
    }
}

/// Puts another record in the place of the one called `name`, in one step: after a power cut one of them is there.
pub(crate) fn replace(
    on: &Branch,
    folder: BorrowedFd<'_>,
    name: &CStr,
    sort: &RecordKind,
    body: &[u8],
) -> Result<(), SysError> {
    prepare(on, folder, sort, body)?.replace(folder, name)?.1
}

/// Puts a record aside that is to replace another one.
fn prepare(
    on: &Branch,
    folder: BorrowedFd<'_>,
    sort: &RecordKind,
    body: &[u8],
) -> Result<Successor, SysError> {
    let record = sort.encode(body)?;
    let aside = fresh_name(ASIDE);
    let successor = Successor { file: create(on, folder, &aside)?, aside };
    match store(&successor.file, &record) {
        Ok(()) => Ok(successor),
        Err(error) => {
            successor.discard(folder);
            Err(error)
        }
    }
}

impl Successor {
    /// Takes the place of the record `name`. Returns the file, which is locked, and whether the record is on disk.
    fn replace(
        self,
        folder: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<(OwnedFd, Result<(), SysError>), SysError> {
        let replaced = sys::at::rename(folder, &self.aside, folder, name, sys::at::RenameFlags::empty());
        if let Err(error) = replaced {
            self.discard(folder);
            return Err(error);
        }
        Ok((self.file, sync_dir(folder)))
    }

    fn discard(self, folder: BorrowedFd<'_>) {
        let _left = sys::at::unlink(folder, &self.aside); // for the next mount, if it must be
    }
}

fn create(on: &Branch, folder: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, SysError> {
    let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
    let file = sys::at::open(folder, name, how, 0o600, on.mounts)?;
    hold_named(&file, folder, name).map(|()| file)
}

/// Takes the lock of [`try_hold`] on `file`, which was just made or opened as `name` in `dir`.
///
/// # Errors
/// ENOENT if the mount of another host has the lock, or has cleared or replaced the file: one that was made is to be made again.
pub(crate) fn hold_named(file: &OwnedFd, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), SysError> {
    let gone = SysError { call: Call::Open, errno: Errno::NOENT };
    if !try_hold(file) {
        return Err(gone);
    }
    let is_it = sys::at::stat(dir, name)?.ino == sys::at::stat_fd(file.as_fd())?.ino;
    if is_it { Ok(()) } else { Err(gone) }
}

fn store(file: &OwnedFd, record: &[u8]) -> Result<(), SysError> {
    crate::write_all::write_all(file.as_fd(), record, 0)?;
    sys::file::fsync(file.as_fd())
}

/// Takes the lock that says that `file` is in use, until its descriptor is closed. False: another process has it. (A file system
/// without locks is used by this host alone.)
pub(crate) fn try_hold(file: &OwnedFd) -> bool {
    !lock(file, LockType::Write).is_err_and(|error| matches!(error.errno, Errno::AGAIN | Errno::ACCESS))
}

/// Releases the lock of [`try_hold`]: programs use the file from now on.
pub(crate) fn let_go(file: &impl AsFd) {
    if let Err(error) = lock(file, LockType::Unlock) {
        tracing::debug!(%error, "nothing to unlock");
    }
}

fn lock(file: &impl AsFd, kind: LockType) -> Result<(), SysError> {
    locks::try_lock(file.as_fd(), Lock { start: 0, end: TO_THE_END, kind, pid: 0 })
}

impl Written {
    /// Another record takes its place, and is in use as this one was.
    ///
    /// # Errors
    /// This one stays.
    pub(crate) fn replace(&mut self, on: &Branch, sort: &RecordKind, body: &[u8]) -> Result<(), SysError> {
        let successor = self.prepare(on, sort, body)?;
        self.replace_by(on, successor)
    }

    /// Makes sure that another record can take its place.
    pub(crate) fn prepare(&self, on: &Branch, sort: &RecordKind, body: &[u8]) -> Result<Successor, SysError> {
        prepare(on, open_folder(on)?.as_fd(), sort, body)
    }

    /// Like [`Self::replace`], by one that was prepared, which is in use from now on.
    pub(crate) fn replace_by(&mut self, on: &Branch, successor: Successor) -> Result<(), SysError> {
        let synced;
        (self.file, synced) = successor.replace(open_folder(on)?.as_fd(), &self.name)?;
        synced
    }

    /// Removes what was prepared to take its place, and is not needed.
    pub(crate) fn discard(&self, on: &Branch, successor: Successor) {
        match on.ask(|| open_folder(on)) {
            Ok(folder) => successor.discard(folder.as_fd()),
            Err(error) => tracing::debug!(%error, "a part of a record is left for the next mount"),
        }
    }

    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Its change is over, done or undone.
    pub(crate) fn done(self, on: &Branch) {
        self.done_without(on, None);
    }

    /// Like [`Self::done`], and what was prepared to replace it is not needed.
    pub(crate) fn done_without(self, on: &Branch, successor: Option<Successor>) {
        let mount_generation = on.mount_generation();
        // In a permit: the caller holds locks that others wait for, and is given up if the branch hangs.
        if let Err(error) = on.ask(|| self.remove(on, successor)) {
            tracing::warn!(%error, branch = %on.path.display(), "record of a change cannot be removed; it is settled when the branch is back, or by the next mount");
        }
        on.dispose(mount_generation, self.file);
    }

    fn remove(&self, on: &Branch, successor: Option<Successor>) -> Result<(), SysError> {
        let removed = open_folder(on).and_then(|folder| {
            if let Some(successor) = successor {
                successor.discard(folder.as_fd());
            }
            sys::at::unlink(folder.as_fd(), &self.name)
        });
        leave(on);
        removed
    }
}

fn open_folder(on: &Branch) -> Result<OwnedFd, SysError> {
    sys::at::open_dir(on.root().as_fd(), folder_name(on), on.mounts)
}

/// Opens the record `name` in the hidden `folder` and takes its lock. None: it is no record.
pub(crate) fn take(
    branch: &Branch,
    folder: BorrowedFd<'_>,
    name: &CStr,
) -> Result<Option<FoundRecord>, SysError> {
    if RecordKind::of(name).next().is_none() {
        return Ok(None);
    }
    let Some((file, record, is_ours)) = read(branch, folder, name, OFlags::RDWR)? else { return Ok(None) };
    if !is_ours {
        return Ok(Some(FoundRecord::NotOurs));
    }
    // One that was replaced meanwhile says no longer what is under way.
    match hold_named(&file, folder, name) {
        Err(error) if error.errno == Errno::NOENT => return Ok(Some(FoundRecord::InUse)),
        held => held?,
    }
    Ok(RecordKind::parse_as(name, &record).map(|(sort, parsed)| match parsed {
        Parsed::Body(body) => FoundRecord::Whole(sort, body.to_vec(), file),
        Parsed::Torn => FoundRecord::Torn,
        Parsed::Unknown => FoundRecord::Unknown,
    }))
}

/// The body of the record `name`, if it is a whole one, even while a process is at work with it.
pub(crate) fn peek(
    branch: &Branch,
    folder: BorrowedFd<'_>,
    name: &CStr,
) -> Result<Option<(&'static RecordKind, Vec<u8>)>, SysError> {
    if RecordKind::of(name).next().is_none() {
        return Ok(None);
    }
    let Some((_, record, true)) = read(branch, folder, name, OFlags::RDONLY)? else { return Ok(None) };
    match RecordKind::parse_as(name, &record) {
        Some((sort, Parsed::Body(body))) => Ok(Some((sort, body.to_vec()))),
        Some((_, Parsed::Torn | Parsed::Unknown)) | None => Ok(None),
    }
}

/// Whether `name` is a whole record, of whatever version, that no process is at work with. One that is being written is not whole,
/// and not locked here: its writer would be refused.
pub(crate) fn is_waiting(branch: &Branch, folder: BorrowedFd<'_>, name: &CStr) -> Result<bool, SysError> {
    if RecordKind::of(name).next().is_none() {
        return Ok(false);
    }
    let Some((file, record, true)) = read(branch, folder, name, OFlags::RDWR)? else { return Ok(false) };
    match RecordKind::parse_as(name, &record) {
        Some((_, Parsed::Body(_) | Parsed::Unknown)) => {}
        Some((_, Parsed::Torn)) | None => return Ok(false),
    }
    match hold_named(&file, folder, name) {
        Err(error) if error.errno == Errno::NOENT => Ok(false),
        held => held.map(|()| true),
    }
}

/// Returns the file `name`, its content, and whether it is surely the daemon's own. None: it is no file.
fn read(
    branch: &Branch,
    folder: BorrowedFd<'_>,
    name: &CStr,
    how: OFlags,
) -> Result<Option<(OwnedFd, Vec<u8>, bool)>, SysError> {
    // Opening another user's fifo of that name must not block.
    let file = sys::at::open(folder, name, how | OFlags::NONBLOCK, 0, branch.mounts)?;
    let stat = sys::at::stat_fd(file.as_fd())?;
    if !stat.is_file() {
        return Ok(None);
    }
    let mut record = vec![0; usize::try_from(stat.size.min(LONGEST)).unwrap_or(0)];
    let len = sys::file::read_at(file.as_fd(), &mut record, 0)?;
    record.truncate(len);
    Ok(Some((file, record, is_only_ours(&stat))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: RecordKind = RecordKind { suffix: c".this", format: 3 };

    #[test]
    fn a_record_that_is_cut_or_torn_anywhere_is_torn() {
        let whole = THIS.encode(b"what is under way").unwrap();
        assert_eq!(THIS.parse(&whole), Parsed::Body(b"what is under way"));
        for at in 0..whole.len() {
            assert_eq!(THIS.parse(&whole[..at]), Parsed::Torn, "cut at {at}");
            let mut torn = whole.clone();
            torn[at..].fill(0);
            assert_eq!(THIS.parse(&torn), Parsed::Torn, "zeros from {at}");
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert!(!matches!(THIS.parse(&flipped), Parsed::Body(_)), "another byte at {at}");
        }
    }

    #[test]
    fn kinds_of_one_suffix_are_told_apart_by_their_format() {
        let later = RecordKind { suffix: c".move", format: u16::MAX };
        let of_moves = KINDS.into_iter().filter(|kind| kind.suffix == later.suffix).map(|kind| (kind, true));
        for (sort, known) in of_moves.chain([(&later, false)]) {
            let record = sort.encode(b"names").unwrap();
            let (found, parsed) = RecordKind::parse_as(c"1.move", &record).unwrap();
            let expected = if known { Parsed::Body(b"names") } else { Parsed::Unknown };
            assert_eq!(parsed, expected);
            assert!(!known || found == sort);
        }
        assert_eq!(RecordKind::parse_as(c"1.part", b"fsst"), None);
    }

    #[test]
    fn a_whole_record_of_another_format_is_unknown_and_a_torn_one_is_torn() {
        let other = RecordKind { suffix: c".this", format: 4 }.encode(b"of tomorrow").unwrap();
        assert_eq!(THIS.parse(&other), Parsed::Unknown);
        assert_eq!(THIS.parse(&other[..other.len() - 1]), Parsed::Torn);
        assert_eq!(THIS.parse(b"fsn2 as it was before the head"), Parsed::Unknown);
    }
}
