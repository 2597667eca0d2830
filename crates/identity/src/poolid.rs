//! The pool's own id, stored with each of its branches: the same in whatever order they are, and when some are
//! added or missing.

use std::ffi::CStr;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;

use fsstack_branch::branch::Branch;
use fsstack_sys::file::sync_dir;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{Errno, SysError};

/// The attribute of a branch's root.
const ATTRIBUTE: &CStr = c"trusted.fsstack.pool";

/// When the branch came to belong to that pool: nanoseconds since 1970, as 8 bytes. None beside the id: it did before that
/// was noted.
const JOINED: &CStr = c"trusted.fsstack.joined";

/// A UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolId(pub [u8; 16]);

impl PoolId {
    /// One that no other pool has.
    pub fn fresh() -> Self {
        use std::hash::{BuildHasher, RandomState};
        let now = fsstack_sync::time::SystemTime::now();
        let half = |salt: u8| RandomState::new().hash_one((now, std::process::id(), salt)).to_le_bytes();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&half(0));
        id[8..].copy_from_slice(&half(1));
        // Version 4, variant 1: random.
        id[6] = id[6] & 0x0f | 0x40;
        id[8] = id[8] & 0x3f | 0x80;
        Self(id)
    }

    /// The id that most of the branches have, of several the one that comes first; `given` or a fresh one if none has any. All
    /// that can store it have it afterwards. None: they may have one, and cannot tell it now.
    pub fn of<'a>(branches: impl Iterator<Item = &'a Branch> + Clone, given: Option<Self>) -> Option<Self> {
        let stored: Vec<_> = branches.clone().map(Self::stored).collect();
        let count = |id: Self| stored.iter().filter(|known| **known == Ok(Some(id))).count();
        let mut best: Option<(usize, Self)> = None;
        for id in stored.iter().flatten().flatten() {
            if best.is_none_or(|(most, _)| count(*id) > most) {
                best = Some((count(*id), *id));
            }
        }
        // A branch that hides such attributes does not prevent an id on the others.
        let hides = |error: &SysError| matches!(error.errno, Errno::PERM | Errno::ACCESS);
        let id = match (best, stored.iter().filter_map(|stored| stored.err()).find(|error| !hides(error))) {
            (Some((_, id)), _) => id,
            (None, Some(error)) => {
                tracing::warn!(%error, "pool id cannot be read; the pool has none until the next mount");
                return None;
            }
            (None, None) => given.unwrap_or_else(Self::fresh),
        };
        let now = now();
        branches.for_each(|branch| id.store_at(branch, now));
        Some(id)
    }

    /// # Errors
    /// There may be one.
    fn stored(branch: &Branch) -> Result<Option<Self>, SysError> {
        let mut value = [0; 16];
        let root = branch.root();
        match xattr::get(On::Fd(root.as_fd()), ATTRIBUTE, &mut value) {
            Ok(16) => Ok(Some(Self(value))),
            Ok(_) => Ok(None),
            Err(error) => match error.errno {
                Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::RANGE => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// The branch belongs to this pool.
    pub fn store(self, branch: &Branch) {
        self.store_at(branch, now());
    }

    /// The branch belongs to this pool for as long as before, whatever was copied onto its root.
    pub(crate) fn store_again(self, branch: &Branch) {
        let root = branch.root();
        let on = On::Fd(root.as_fd());
        let stored = xattr::set(on, JOINED, &branch.joined().to_le_bytes(), 0)
            .and_then(|()| xattr::set(on, ATTRIBUTE, &self.0, 0));
        match stored {
            Ok(()) => sync_root(root.as_fd()),
            Err(error) => {
                tracing::debug!(%error, branch = %branch.path.display(), "the branch does not keep the pool's id");
            }
        }
    }

    /// Like [`Self::store`]; branches that join together get the same time.
    fn store_at(self, branch: &Branch, now: u64) {
        let root = branch.root();
        let on = On::Fd(root.as_fd());
        match Self::stored(branch) {
            Ok(Some(stored)) if stored == self => {
                let mut value = [0; 8];
                let noted = matches!(xattr::get(on, JOINED, &mut value), Ok(8));
                return branch.set_joined(if noted { u64::from_le_bytes(value) } else { 0 });
            }
            Ok(_) => {}
            Err(error) => {
                return tracing::debug!(%error, branch = %branch.path.display(), "the branch does not tell the pool's id");
            }
        }
        let stored = xattr::set(on, JOINED, &now.to_le_bytes(), 0)
            .and_then(|()| xattr::set(on, ATTRIBUTE, &self.0, 0));
        match stored {
            Ok(()) => {
                sync_root(root.as_fd());
                branch.set_joined(now);
            }
            Err(error) => {
                tracing::debug!(%error, branch = %branch.path.display(), "the branch does not keep the pool's id");
            }
        }
    }
}

/// Syncs the pool's attributes on a branch's root, before numbers made from them are used. A file system that cannot do so
/// is used all the same.
pub fn sync_root(root: BorrowedFd<'_>) {
    if let Err(error) = sync_dir(root) {
        tracing::warn!(%error, "branch root: fsync failed; after a power cut the branch may count as another one");
    }
}

fn now() -> u64 {
    let since = fsstack_sync::time::SystemTime::now().duration_since(fsstack_sync::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for PoolId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const BAD: &str = "not a UUID: 32 hexadecimal digits, as in 12345678-9abc-4def-8123-456789abcdef";
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
        let mut id = [0; 16];
        if digits.len() != 32 {
            return Err(BAD);
        }
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| BAD)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| BAD)?;
        }
        Ok(Self(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = PoolId::fresh();
        assert_ne!(id, PoolId::fresh());
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().len(), 36);
        assert!("12".parse::<PoolId>().is_err());
        assert!("zz".repeat(16).parse::<PoolId>().is_err());
    }
}
