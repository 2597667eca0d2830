//! Records of many moves at once: one record on each of the two branches names all files of a batch.
//!
//! Each file has its own intent in it (`intent.rs`), and is settled by itself, as if the record were for it alone (`group.rs`).

use fsstack_branch::branch::Branch;
use fsstack_branch::error::Result as OpResult;

use crate::member::staged::fresh_name;
use crate::recovery::intent::{BATCH, tell_undecided};
use crate::recovery::record::{self, Written};
use crate::recovery::told::{Decided, Stamp, Told, encode_batch, name_in_batch};
use crate::taken_back::TakenBack;

/// A file of a batch: how both copies are if unchanged, and its path.
pub(crate) struct BatchedMove {
    pub(crate) old: Stamp,
    pub(crate) new: Stamp,
    pub(crate) path: Vec<u8>,
}

/// The record of a batch, on disk on both branches.
#[must_use = "it is acted on by the next mount unless it is done with"]
pub(crate) struct NotedBatch<'a> {
    from: &'a Branch,
    to: &'a Branch,
    bodies: Vec<Vec<u8>>,
    on_from: Written,
    on_to: Written,
}

/// Files that a batch could not finish, by their place in it, with the copy that is the file.
pub(crate) type LeftOver = Vec<(usize, Decided)>;

impl<'a> NotedBatch<'a> {
    /// # Errors
    /// A branch has no room for it; nothing is left.
    pub(crate) fn write(from: &'a Branch, to: &'a Branch, files: &[BatchedMove]) -> OpResult<Self> {
        let body = |file: &BatchedMove| {
            let (from, to) = (from.id.get(), to.id.get());
            Told { decided: Decided::Not, from, to, old: file.old, new: file.new, path: &file.path }.encode()
        };
        let bodies: Vec<Vec<u8>> = files.iter().map(body).collect();
        let record = encode_batch((0..).zip(bodies.iter().map(Vec::as_slice)));
        let name = fresh_name(BATCH.suffix);
        let write = |on: &Branch| on.ask_long(|| record::write_as(on, &BATCH, name.clone(), &record));
        let on_from = write(from)?;
        match write(to) {
            Ok(on_to) => Ok(Self { from, to, bodies, on_from, on_to }),
            Err(error) => {
                on_from.done(from);
                Err(error)
            }
        }
    }

    /// All moves are over, one way or the other, except those in `left`: these wait until both branches can be asked.
    pub(crate) fn done(mut self, left: &LeftOver, taken_back: &TakenBack) {
        if left.is_empty() {
            self.on_to.done(self.to);
            return self.on_from.done(self.from);
        }
        // As for a single move, the branch that surely answers says which copy is the file.
        for (on, written, says) in
            [(self.from, &self.on_from, Decided::Old), (self.to, &self.on_to, Decided::New)]
        {
            for (at, decided) in left {
                self.bodies[*at][0] = if *decided == says { *decided } else { Decided::Not } as u8;
            }
            let entries = left.iter().map(|(at, _)| (number(*at), self.bodies[*at].as_slice()));
            tell_undecided(on.ask(|| written.replace(on, &BATCH, &encode_batch(entries))));
        }
        for (at, _) in left.iter().filter(|(_, decided)| *decided == Decided::Old) {
            taken_back.add(name_in_batch(self.on_to.name(), number(*at)));
        }
    }
}

fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
