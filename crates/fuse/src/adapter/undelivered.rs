//! Rolls back lookups and handles granted by a reply that the kernel never received.

use fsstack_pool::{Handle, Ino};
use fsstack_wire::{Operation, Request, granted};

use super::Adapter;

impl Adapter {
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
