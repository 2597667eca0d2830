//! Requests that list directories.

use fsstack_engine::answer::{Entry, Listed};
use fsstack_engine::ops::Sink;
use fsstack_pool::Handle;
use fsstack_wire::{self as wire, Answer};

use super::narrowed::Modes;
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
        let (union, timeouts, modes) = (&self.union, &self.timeouts(), self.modes());
        answer
            .dirents(size, |writer| {
                let mut rows = Rows { writer, timeouts, modes, plus, closed: false };
                // Attributes close to their expiry are sent again.
                let fresh = timeouts.attr.min(timeouts.entry) / 2;
                union.readdir(Handle(fh), cookie, plus.then_some(fresh), &mut rows)
            })
            .map_err(errno)
    }
}

/// Writer of a listing's rows into the reply.
struct Rows<'a, 'w, 'b> {
    writer: &'w mut wire::DirentWriter<'b>,
    timeouts: &'a Timeouts,
    modes: Modes<'a>,
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
            let entry = entry.map(|entry| convert::entry(&self.modes.entry(*entry), self.timeouts));
            self.writer.plus(entry.as_ref(), listed.ino.0, listed.cookie, listed.dtype, name)
        } else {
            self.writer.plain(listed.ino.0, listed.cookie, listed.dtype, name)
        };
        self.closed = !written;
    }
}
