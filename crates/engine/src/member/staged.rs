//! Names in a branch's hidden folder that the daemon is at work with.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::sync::Arc;

use parking_lot::Mutex;

use super::Member;

/// A name in a branch's hidden folder that the daemon works with: no leftover while this exists.
#[derive(Debug)]
pub(crate) struct AtWork {
    name: CString,
    all: StagedNames,
}

/// Those of a branch.
pub(crate) type StagedNames = Arc<Mutex<HashSet<CString>>>;

impl std::ops::Deref for AtWork {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        &self.name
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.all.lock().remove(&self.name);
    }
}

impl Member {
    /// A name for an object that stays in the hidden folder for longer than the tree lock is held.
    pub(crate) fn stage(&self, suffix: &CStr) -> AtWork {
        let name = fresh_name(suffix);
        self.staged.lock().insert(name.clone());
        AtWork { name, all: self.staged.clone() }
    }
}

/// Suffixes of the names that [`fresh_name`] makes.
const SUFFIXES: [&[u8]; 5] = [b".part", b".dir", b".copy", b".move", b".names"];

/// Whether the pool gives such names. Others in a directory that has the name of the hidden folder are not the pool's: a
/// user with write access to a branch's root can give that name to any directory there.
pub(crate) fn is_fresh_name(name: &CStr) -> bool {
    let Some((random, suffix)) = name.to_bytes().split_at_checked(16) else { return false };
    random.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) && SUFFIXES.contains(&suffix)
}

/// A name that is free.
pub(crate) fn fresh_name(suffix: &CStr) -> CString {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(std::time::Instant::now());
    let mut name = format!("{random:016x}").into_bytes();
    name.extend_from_slice(suffix.to_bytes());
    CString::new(name).unwrap_or_default()
}
