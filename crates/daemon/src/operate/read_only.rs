//! A pool that is mounted read-only: what moves files by itself waits until programs may change it.

use super::Served;
use crate::remount::held_flags;
use std::sync::Arc;

use fsstack_engine::jobs::JobsLeft;
use fsstack_sync::atomic::Ordering;

impl Served {
    /// True if the pool's mount is read-only. The mount table tells: `mount -o remount` changes the flag in the kernel.
    pub(crate) fn is_read_only(&self) -> bool {
        let (mount_point, flags) = {
            let settings = self.settings.lock();
            (settings.mount_point.clone(), settings.flags)
        };
        let table = fsstack_sys::mounts::list().unwrap_or_default();
        let own = table.iter().rfind(|mount| mount.mount_point == mount_point && mount.is_fuse());
        own.map_or(flags, held_flags).read_only
    }

    /// Begins what moves files by itself, or notes that it waits.
    pub(crate) fn begin_moves(&self, jobs: JobsLeft) {
        if self.is_read_only() {
            self.moves_wait.store(true, Ordering::Relaxed);
            tracing::info!("read-only: interrupted jobs and tiers wait until it is remounted rw");
            return;
        }
        self.union.resume_jobs(jobs);
        self.union.watch_tiers();
    }

    /// The mount table has changed: begins what waited after a remount past the helper (`mount -i`, mount(2)). By a thread that nobody
    /// waits for, as branches are asked for their marks.
    pub(crate) fn mounts_changed(self: &Arc<Self>) {
        if !self.moves_wait.load(Ordering::Relaxed) || self.is_read_only() {
            return;
        }
        let served = self.clone();
        let thread = fsstack_sync::thread::Builder::new().name("waiting-jobs".into());
        let started = thread.spawn(move || {
            // Not in the middle of an upgrade.
            let _turn = served.handover.operators.read();
            served.begin_waiting_moves();
        });
        if let Err(error) = started {
            tracing::debug!(%error, "jobs wait for the next change of the mount table");
        }
    }

    /// Begins what waited, if the pool may be changed now.
    pub(crate) fn begin_waiting_moves(&self) {
        if !self.is_read_only() && self.moves_wait.swap(false, Ordering::Relaxed) {
            self.begin_moves(JobsLeft::All);
            // With the drains that only their branches knew of.
            self.note_state();
        }
    }

    /// Follows changes of the tiers.
    pub(super) fn tiers_changed(&self) {
        self.begin_waiting_moves();
        if !self.moves_wait.load(Ordering::Relaxed) {
            self.union.watch_tiers();
        }
    }
}
