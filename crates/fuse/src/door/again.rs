//! Which requests another thread may serve again when the one that served them does not come back.
//!
//! The branch that keeps the thread is closed by then. So a request that only asks is answered without it, as whoever
//! comes later is: attributes and names of a directory that has copies on other branches, what is on those, free space.
//! What the stuck thread finds out when it is back is given up. A request that changes something may have changed it,
//! and one that has an open file or a listing in hand may hold it: they are answered with EIO.

use fsstack_wire::{Operation, Request};

/// Whether `request` may be served twice.
pub(super) fn may_be_served_again(request: &Request<'_>) -> bool {
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
