//! Requests that list directories.

use fsstack_engine::answer::{Entry, Listed};
use fsstack_engine::ops::Sink;
use fsstack_pool::{Handle, Ino};
use fsstack_wire::{self as wire, Answer, Operation, Request};

use super::shown_attrs::ShownAttrs;
use super::{Adapter, Served, Timeouts, errno};
use crate::convert;

impl Adapter {
    pub(super) fn readdir(
        &self,
        fh: u64,
        cookie: u64,
        size: u32,
        plus: bool,
        answer: &mut Answer<'_>,
    ) -> Served {
        let (union, timeouts, shown) = (&self.union, &self.timeouts(), self.shown_attrs());
        answer
            .dirents(size, |writer| {
                let mut rows = Rows { writer, timeouts, shown, plus, closed: false };
                union.readdir(Handle(fh), cookie, plus.then_some(timeouts.fresh()), &mut rows)
            })
            .map_err(errno)
    }

    /// Has listings read anew after `request`, whether it succeeded or not: the branch may have changed names all the same.
    ///
    /// The kernel drops what it keeps after a success only, and then it looks at that only where a listing begins, not where
    /// an NFS server goes on with another handle.
    pub(super) fn may_have_changed_names(&self, request: &Request<'_>) {
        let dir = Ino(request.header.nodeid);
        match request.op {
            Operation::Mkdir { .. }
            | Operation::Mknod { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. }
            | Operation::Create(_)
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. } => self.union.names_may_have_changed(dir),
            Operation::Rename { newdir, .. } => {
                self.union.names_may_have_changed(dir);
                self.union.names_may_have_changed(Ino(newdir));
            }
            _ => {}
        }
    }
}

/// Writer of a listing's rows into the reply.
struct Rows<'a, 'w, 'b> {
    writer: &'w mut wire::DirentWriter<'b>,
    timeouts: &'a Timeouts,
    shown: ShownAttrs<'a>,
    plus: bool,
    closed: bool,
}

impl Sink for Rows<'_, '_, '_> {
    fn fits(&self, name: usize) -> bool {
        // A plain row is smaller than one with attributes; all rows of a reply are checked by the same size.
        !self.closed && if self.plus { self.writer.plus_fits(name) } else { self.writer.plain_fits(name) }
    }

    fn put(&mut self, listed: &Listed<'_>, entry: Option<&Entry>) {
        let name = listed.name.to_bytes();
        let written = if self.plus {
            let entry = entry.map(|entry| convert::entry(&self.shown.entry(*entry), self.timeouts));
            self.writer.plus(entry.as_ref(), listed.ino.0, listed.cookie, listed.dtype, name)
        } else {
            self.writer.plain(listed.ino.0, listed.cookie, listed.dtype, name)
        };
        self.closed = !written;
    }
}
