//! Requests whose effect the kernel does not know: rolls back lookups and handles granted by a reply that it never received.

use fsstack_pool::{Handle, Ino};
use fsstack_wire::{Operation, Request, granted};

use super::Adapter;

impl Adapter {
    /// The kernel does not know whether `request` has changed names: it may not use a listing that it has kept.
    pub(super) fn names_are_unsure(&self, request: &Request<'_>) {
        let nodeid = request.header.nodeid;
        match request.op {
            Operation::Mkdir { .. }
            | Operation::Mknod { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. }
            | Operation::Create(_)
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. } => self.union().listing_is_unsure(Ino(nodeid)),
            Operation::Rename { newdir, .. } => {
                self.union().listing_is_unsure(Ino(nodeid));
                self.union().listing_is_unsure(Ino(newdir));
            }
            _ => {}
        }
    }

    /// Releases the grants of `answer`, the reply to `request` that will not be sent.
    pub(super) fn give_up(&self, request: &Request<'_>, answer: &[u8]) {
        let forget = |nodeid: Option<u64>| {
            if let Some(nodeid) = nodeid.filter(|nodeid| *nodeid != 0) {
                self.forget(Ino(nodeid), 1);
            }
        };
        match request.op {
            Operation::Lookup { .. }
            | Operation::Mkdir { .. }
            | Operation::Mknod { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. } => forget(granted::node(answer)),
            Operation::Create(_) | Operation::Tmpfile(_) => {
                if let Some(handle) = granted::handle_of_created(answer) {
                    self.union().release(Handle(handle));
                }
                forget(granted::node(answer));
            }
            Operation::Open { .. } => {
                if let Some(handle) = granted::handle(answer) {
                    self.union().release(Handle(handle));
                }
            }
            Operation::Opendir { .. } => {
                if let Some(handle) = granted::handle(answer) {
                    self.union().releasedir(Handle(handle));
                }
            }
            Operation::Readdirplus { .. } => {
                granted::nodes_listed(answer).for_each(|node| forget(Some(node)))
            }
            _ => {}
        }
    }
}
