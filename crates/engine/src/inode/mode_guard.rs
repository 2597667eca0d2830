//! Claim on a file's mode: one thread at a time reads the mode and sets another one.
//!
//! A write by a stranger clears set-id bits: the daemon reads the mode and sets what is left of it. The kernel lets no chmod
//! in between, as both hold the inode's lock there; but an asynchronous direct write within the file shares that lock. A mode
//! that was set after the reading would be taken back.

use fsstack_branch::health::holder::ThreadInCalls;
use fsstack_sync::ranked::{HeldRank, MODE};

use super::{Inode, Location};

/// No other thread changes the file's mode until this drops.
///
/// Order: before an open file's place; the holder makes calls on the branch.
#[must_use = "others may change the mode when this drops"]
#[derive(Debug)]
pub(crate) struct ModeGuard<'a> {
    file: &'a Inode,
    _rank: HeldRank<MODE>,
}

impl Drop for ModeGuard<'_> {
    fn drop(&mut self) {
        self.file.with_mode_holder(|holder| *holder = None);
    }
}

impl Inode {
    /// Claims the mode of a file. None while another thread has it.
    pub(crate) fn claim_mode(&self) -> Option<ModeGuard<'_>> {
        let rank = HeldRank::in_order();
        let free = self.with_mode_holder(|holder| {
            let free = holder.is_none();
            if free {
                *holder = Some(ThreadInCalls::here());
            }
            free
        });
        // A directory's mode is changed on all copies, under a claim of its own.
        free.unwrap_or(true).then(|| ModeGuard { file: self, _rank: rank })
    }

    /// Whether [`Self::claim_mode`] waits for a thread that may never come back.
    pub(crate) fn is_mode_kept_by_stuck(&self) -> bool {
        self.with_mode_holder(|holder| holder.as_ref().is_some_and(ThreadInCalls::is_stuck)).unwrap_or(false)
    }

    fn with_mode_holder<T>(&self, f: impl FnOnce(&mut Option<ThreadInCalls>) -> T) -> Option<T> {
        match &mut self.state.lock().location {
            Location::File(file) => Some(f(&mut file.mode_holder)),
            Location::Dir(_) | Location::Nowhere => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use fsstack_identity::number::Identity;
    use fsstack_pool::{BranchIx, Ino};
    use fsstack_sys::Kind;

    use super::*;

    #[test]
    fn one_thread_at_a_time_changes_a_mode() {
        let file = Inode::file(Identity { ino: Ino(7), generation: 0 }, Kind::File, BranchIx(0));
        let elsewhere = || {
            fsstack_sync::thread::scope(|scope| scope.spawn(|| file.claim_mode().is_some()).join().unwrap())
        };
        let claim = file.claim_mode().expect("nobody else changes it");
        assert!(!elsewhere() && !file.is_mode_kept_by_stuck());
        drop(claim);
        assert!(elsewhere());
    }
}
