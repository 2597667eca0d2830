//! Names in a branch's hidden folder that the daemon is at work with.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::sync::Arc;

use fsstack_pool::is_hidden_name;
use fsstack_sync::Mutex;

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

/// A name that is free.
pub(crate) fn fresh_name(suffix: &CStr) -> CString {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(fsstack_sync::time::Instant::now());
    let mut name = format!("{random:016x}").into_bytes();
    name.extend_from_slice(suffix.to_bytes());
    let name = CString::new(name).unwrap_or_default();
    debug_assert!(is_hidden_name(&name), "{name:?} would never be cleared");
    name
}
