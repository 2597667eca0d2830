//! Names of directories that are being changed on several branches.
//!
//! A rename or an exchange of a directory takes a call on each of its branches. Lookups go on meanwhile: the kernel asks again for
//! a name that it knows without the directory's lock, and the daemon asks for the copies of directories in use (`recheck.rs`). An
//! answer from the middle of such a change lacks copies, or, of an exchange, has one of the other directory: files in it would be
//! missing, made a second time, or those of another directory. So it does not count. The name is asked for again; with the tree
//! lock shared where the change is still under way.

use std::ffi::CStr;

use fsstack_identity::number::hash_name;
use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::inode::Inode;

/// The names that the holder of the tree lock is changing.
#[derive(Debug, Default)]
pub(crate) struct ChangingNames {
    /// Counts beginnings and ends: odd while a change is under way.
    count: AtomicU64,
    names: Mutex<[u64; 2]>,
}

/// Change that an answer may have met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetChange {
    /// Nothing that matters.
    No,
    /// A change that is over, or the beginning or end of one of other names.
    Over,
    /// A change of this name that is under way.
    UnderWay,
}

/// A change of names on several branches.
#[must_use = "answers count again when this drops"]
#[derive(Debug)]
pub(crate) struct NamesChange<'a>(&'a ChangingNames);

impl Drop for NamesChange<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_add(1, SeqCst);
    }
}

fn hash(dir: &Inode, name: &CStr) -> u64 {
    hash_name(dir.id.ino, name.to_bytes())
}

impl ChangingNames {
    /// The two names are about to be changed. The caller has the tree lock alone.
    pub(crate) fn begin(&self, names: [(&Inode, &CStr); 2]) -> NamesChange<'_> {
        *self.names.lock() = names.map(|(dir, name)| hash(dir, name));
        let before = self.count.fetch_add(1, SeqCst);
        debug_assert!(before.is_multiple_of(2), "two changes at once");
        NamesChange(self)
    }

    /// The moment, for [`Self::met`].
    pub(crate) fn now(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// Change that the answer to a question for `name` in `dir` may have met, which was put at `asked`.
    pub(crate) fn met(&self, asked: u64, (dir, name): (&Inode, &CStr)) -> MetChange {
        let now = self.now();
        if !now.is_multiple_of(2) && self.names.lock().contains(&hash(dir, name)) {
            return MetChange::UnderWay;
        }
        if now == asked { MetChange::No } else { MetChange::Over }
    }
}
