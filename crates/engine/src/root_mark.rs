//! The mark that says on which directory the marks of a branch's root were put: `rsync -X`, `cp -a`, a restored backup and
//! `mergerfs.balance` copy them to other directories, where they mean nothing.
//!
//! It names the root by inode number, birth time and, where that lasts, the file system's id, together with the branch's stored
//! id. A root whose mark names another directory is a new branch of no pool. Version 0.1 put no such mark: its ids count unless
//! a branch that has the mark has the same one, and the mark is added. Where a file system tells no birth time only the order of
//! the branches distinguishes the copies.
//!
//! The session of the index stays on a copied root. It differs from the one expected there, so the branch is scanned: files
//! that a restored backup has under their former inode numbers may be marked.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;

use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, SysError, Time};

/// Value of the attribute that holds a branch's id.
pub(crate) type StoredId = [u8; 16];

/// How the marks on a root begin.
const PREFIX: &[u8] = b"trusted.fsstack.";
/// The one of a copied root that stays.
const SESSION: &CStr = c"trusted.fsstack.index";
/// The id, then the directory: inode number, birth time, file system.
const LEN: usize = size_of::<StoredId>() + 8 + 8 + 4 + 8;
/// In place of nanoseconds: the birth time is not known.
const UNBORN: u32 = u32::MAX;
/// File systems whose id is made from their UUID, and which may give the birth of a root in seconds only: ext4 and btrfs.
const LASTING_IDS: [u64; 2] = [0xef53, 0x9123_683e];

/// Origin of the marks on a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// They were put on this directory.
    Here,
    /// Nothing tells.
    Unknown,
    /// They were put on another directory.
    Copied,
}

/// A directory, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Directory {
    ino: u64,
    born: Option<Time>,
    /// 0: not known.
    fsid: u64,
}

impl Directory {
    fn of(root: BorrowedFd<'_>) -> Result<Self, SysError> {
        let stat = sys::at::stat_fd(root)?;
        let fs = sys::file::statfs(root)?;
        let fsid = if LASTING_IDS.contains(&fs.f_type) { fs.fsid } else { 0 };
        Ok(Self { ino: stat.ino, born: stat.btime, fsid })
    }

    fn encode(self, id: &StoredId) -> [u8; LEN] {
        let (sec, nsec) = self.born.map_or((0, UNBORN), |born| (born.sec, born.nsec));
        let mut value = [0; LEN];
        value[..16].copy_from_slice(id);
        value[16..24].copy_from_slice(&self.ino.to_le_bytes());
        value[24..32].copy_from_slice(&sec.to_le_bytes());
        value[32..36].copy_from_slice(&nsec.to_le_bytes());
        value[36..].copy_from_slice(&self.fsid.to_le_bytes());
        value
    }

    fn decode(value: &[u8; LEN]) -> (StoredId, Self) {
        let word = |at: usize| value[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let nsec = value[32..36].try_into().map_or(UNBORN, u32::from_le_bytes);
        let born = (nsec != UNBORN).then_some(Time { sec: word(24).cast_signed(), nsec });
        let id = value[..16].try_into().unwrap_or_default();
        (id, Self { ino: word(16), born, fsid: word(36) })
    }

    /// Where the marks come from that were put on `self` and are on `here`.
    fn origin(self, here: Self) -> Origin {
        let (Some(_), Some(_)) = (self.born, here.born) else { return Origin::Unknown };
        let is_same_fs = self.fsid == 0 || here.fsid == 0 || self.fsid == here.fsid;
        match (self.ino, self.born) == (here.ino, here.born) && is_same_fs {
            true => Origin::Here,
            false => Origin::Copied,
        }
    }
}

/// Name of the attribute.
fn name(privileged: bool) -> &'static CStr {
    if privileged { c"trusted.fsstack.root" } else { c"user.fsstack.root" }
}

/// Returns where the marks on `root` come from, which has the stored `id`.
pub(crate) fn origin(root: BorrowedFd<'_>, privileged: bool, id: &StoredId) -> Origin {
    let mut value = [0; LEN];
    let read = xattr::get(On::Fd(root), name(privileged), &mut value);
    let (Ok(LEN), Ok(here)) = (read, Directory::of(root)) else { return Origin::Unknown };
    match Directory::decode(&value) {
        (named, marked) if named == *id => marked.origin(here),
        _ => Origin::Unknown, // a version without this mark has stored the id
    }
}

/// Marks `root`, which has the stored `id`. True: it was not marked so before.
pub(crate) fn put(root: BorrowedFd<'_>, privileged: bool, id: &StoredId) -> bool {
    let on = On::Fd(root);
    let marked = Directory::of(root).and_then(|here| {
        let (value, mut known) = (here.encode(id), [0; LEN]);
        if xattr::get(on, name(privileged), &mut known) == Ok(LEN) && known == value {
            return Ok(false);
        }
        xattr::set(on, name(privileged), &value, 0).map(|()| true)
    });
    marked.unwrap_or_else(|error| {
        tracing::debug!(%error, "the root of a branch stays unmarked");
        false
    })
}

/// Removes the marks of a copied root, all but [`SESSION`] and the root mark itself, which is replaced last: until then they
/// count as copied.
pub(crate) fn clear(root: BorrowedFd<'_>) {
    let on = On::Fd(root);
    let names = xattr::list_vec(on).unwrap_or_default();
    let names = names.split(|byte| *byte == 0).filter(|name| name.starts_with(PREFIX));
    for found in names.filter_map(|name| CString::new(name).ok()) {
        if [SESSION, name(true)].contains(&&*found) {
            continue;
        }
        if let Err(error) = xattr::remove(on, &found) {
            tracing::debug!(%error, ?found, "a copied mark stays on the root of a branch");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Directory = Directory { ino: 2, born: Some(Time { sec: 1_700_000_000, nsec: 0 }), fsid: 77 };

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        for born in [HERE.born, None] {
            let here = Directory { born, ..HERE };
            assert_eq!(Directory::decode(&here.encode(&[7; 16])), ([7; 16], here));
        }
    }

    #[test]
    fn a_mark_counts_on_its_own_directory_only() {
        assert_eq!(HERE.origin(HERE), Origin::Here);
        let born = Some(Time { sec: 1_700_000_000, nsec: 1 });
        for other in
            [Directory { ino: 3, ..HERE }, Directory { born, ..HERE }, Directory { fsid: 78, ..HERE }]
        {
            assert_eq!((HERE.origin(other), other.origin(HERE)), (Origin::Copied, Origin::Copied));
        }
        let elsewhere = Directory { fsid: 0, ..HERE };
        assert_eq!(HERE.origin(elsewhere), Origin::Here, "its file system has no id that lasts");
        let unborn = Directory { born: None, ..HERE };
        assert_eq!((HERE.origin(unborn), unborn.origin(unborn)), (Origin::Unknown, Origin::Unknown));
    }
}
