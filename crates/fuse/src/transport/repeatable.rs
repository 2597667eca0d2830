//! Which requests another thread may serve again when the one that served them does not come back.
//!
//! The branch that holds the thread is closed by then. So a request that only reads is answered without that branch, as any
//! later request is: attributes and names of a directory that has copies on other branches, objects on those, free space.
//! The stuck thread's own result is dropped. A request that changes something may have changed it, and one that uses an open
//! file or a listing may hold it: those get EIO.

use fsstack_wire::{Operation, Request};

/// Whether `request` may be served twice.
pub(super) fn is_repeatable(request: &Request<'_>) -> bool {
    matches!(
        request.op,
        Operation::Lookup { .. }
            | Operation::Getattr { .. }
            | Operation::Statx { .. }
            | Operation::Readlink
            | Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Opendir { .. }
            | Operation::Statfs
    )
}
