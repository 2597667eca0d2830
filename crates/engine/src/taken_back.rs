//! Moves that were given up without their new copy being removed.

use std::collections::HashSet;
use std::ffi::{CStr, CString};

use fsstack_sync::Mutex;

/// Intents of moves that were given up after the new copy may have got its name, and could not be removed then: the file is
/// used where it was.
#[derive(Debug, Default)]
pub(crate) struct TakenBack(Mutex<HashSet<CString>>);

impl TakenBack {
    pub(crate) fn has(&self, intent: &CStr) -> bool {
        self.0.lock().contains(intent)
    }

    /// This one was given up.
    pub(crate) fn add(&self, intent: CString) {
        self.0.lock().insert(intent);
    }

    /// It was settled.
    pub(crate) fn remove(&self, intent: &CStr) {
        self.0.lock().remove(intent);
    }
}
