//! Noticing that a branch's mount has left the mount table.
//!
//! A branch that was unmounted lazily answers on through its descriptors, while its path shows the bare directory below,
//! or another mount. The kernel tells of every change of the mount table: until then the thread here sleeps.

use std::io;
use std::sync::{Arc, Weak};

use fsstack_sync::thread::JoinHandle;
use fsstack_sys::Errno;
use fsstack_sys::mounts::{self, Changes};

use crate::union::Union;

/// Watches the mount table for a pool until it drops.
#[derive(Debug)]
pub struct MountWatch {
    changes: Arc<Changes>,
    thread: Option<JoinHandle<()>>,
}

impl MountWatch {
    /// Has the branches of `union` probed whose mount goes, and those that are down at every change; and what was
    /// interrupted on one settled when it is back. Calls `also` at every change.
    ///
    /// # Errors
    /// The mount table cannot be watched, or there is no thread.
    pub fn start(union: &Arc<Union>, also: impl Fn() + Send + 'static) -> io::Result<Self> {
        union.host();
        let changes = Arc::new(Changes::new()?);
        let (seen, union) = (changes.clone(), Arc::downgrade(union));
        let thread = fsstack_sync::thread::Builder::new().name("mount-table".into());
        let thread = thread.spawn(move || {
            while seen.wait() {
                if !look(&union) {
                    return;
                }
                also();
            }
        })?;
        Ok(Self { changes, thread: Some(thread) })
    }
}

impl Drop for MountWatch {
    fn drop(&mut self) {
        self.changes.end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("mount table watcher panicked; unmounts are noticed at the next call only");
        }
    }
}

/// False: the pool is gone.
fn look(union: &Weak<Union>) -> bool {
    let Some(union) = union.upgrade() else { return false };
    let Ok(all) = mounts::list() else { return true };
    for branch in &union.pool().branches {
        let listed = all.iter().any(|mount| mount.id == branch.mnt_id());
        if branch.was_listed() && !listed {
            branch.suspect(Errno::NOTCONN);
        }
    }
    true
}
