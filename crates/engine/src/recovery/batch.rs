//! Records of many moves at once: one record on each of the two branches names all files of a batch.
//!
//! Each file has its own intent in it (`intent.rs`), and is settled by itself, as if the record were for it alone (`group.rs`). Of
//! files with several hard links the record says in the middle that the new copies are the files, as that of a single one does.

use fsstack_branch::branch::Branch;
use fsstack_branch::error::{OpError, Result as OpResult};

use crate::member::staged::fresh_name;
use crate::recovery::decisions;
use crate::recovery::intent::tell_undecided;
use crate::recovery::record::{self, Written};
use crate::recovery::record_kind::{BATCH, LINKED_BATCH, RecordKind};
use crate::recovery::told::{Decided, SEPARATOR, Stamp, Told, encode_batch, name_in_batch};
use crate::taken_back::TakenBack;

/// A file of a batch: how both copies are if unchanged, and its paths, with [`SEPARATOR`] between them.
pub(crate) struct BatchedMove {
    pub(crate) old: Stamp,
    pub(crate) new: Stamp,
    pub(crate) paths: Vec<u8>,
}

/// The record of a batch, on disk on both branches.
#[must_use = "it is acted on by the next mount unless it is done with"]
pub(crate) struct NotedBatch<'a> {
    from: &'a Branch,
    to: &'a Branch,
    kind: &'static RecordKind,
    intents: Vec<BatchedIntent>,
    on_from: Written,
    on_to: Written,
    /// The two records may differ in which copies are the files.
    is_unsure: bool,
}

/// Intent of one file.
struct BatchedIntent {
    body: Vec<u8>,
    has_links: bool,
}

impl BatchedIntent {
    fn decides(&mut self, decided: Decided) {
        self.body[0] = decided as u8;
    }
}

/// Files that a batch could not finish, by their place in it, with the copy that is the file.
pub(crate) type LeftOver = Vec<(usize, Decided)>;

/// Reason that the records do not say of files that the new copies are these files.
#[derive(Debug)]
pub(crate) enum Undecided {
    /// They surely say that the old copies are.
    Old(OpError),
    /// They may say so. No new name may go.
    Unknown(OpError),
}

impl<'a> NotedBatch<'a> {
    /// # Errors
    /// A branch has no room for it; nothing is left.
    pub(crate) fn write(from: &'a Branch, to: &'a Branch, files: &[BatchedMove]) -> OpResult<Self> {
        let intent = |file: &BatchedMove| {
            let (from, to, path) = (from.id.get(), to.id.get(), &file.paths);
            let told = Told { decided: Decided::Not, from, to, old: file.old, new: file.new, path };
            BatchedIntent { body: told.encode(), has_links: path.contains(&SEPARATOR) }
        };
        let intents: Vec<BatchedIntent> = files.iter().map(intent).collect();
        let kind = if intents.iter().any(|intent| intent.has_links) { &LINKED_BATCH } else { &BATCH };
        let record = encode(&intents);
        let name = fresh_name(kind.suffix);
        let write = |on: &Branch| on.ask_long(|| record::write_as(on, kind, name.clone(), &record));
        let on_from = write(from)?;
        match write(to) {
            Ok(on_to) => Ok(Self { from, to, kind, intents, on_from, on_to, is_unsure: false }),
            Err(error) => {
                on_from.done(from);
                Err(error)
            }
        }
    }

    /// From now on the new copies of the files `of`, which have several names, are these files. First the target says so, then the
    /// source, which a mount may have alone.
    ///
    /// # Errors
    /// The old ones are, or it is not known.
    pub(crate) fn decides_new(&mut self, of: &[usize]) -> Result<(), Undecided> {
        let Self { from, to, kind, .. } = *self;
        of.iter().for_each(|at| self.intents[*at].decides(Decided::New));
        let record = encode(&self.intents);
        of.iter().for_each(|at| self.intents[*at].decides(Decided::Old));
        // Both are on disk beforehand, so that a full branch is no reason for one to say something else than the other.
        let for_from = from.ask(|| self.on_from.prepare(from, kind, &record)).map_err(Undecided::Old)?;
        let for_to = match to.ask(|| self.on_to.prepare(to, kind, &record)) {
            Ok(for_to) => for_to,
            Err(error) => {
                self.on_from.discard(from, for_from);
                return Err(Undecided::Old(error));
            }
        };
        let decided = match to.ask(|| self.on_to.replace_by(to, for_to)) {
            Ok(()) => from.ask(|| self.on_from.replace_by(from, for_from)),
            Err(error) => {
                self.on_from.discard(from, for_from);
                Err(error)
            }
        };
        let Err(error) = decided else {
            of.iter().for_each(|at| self.intents[*at].decides(Decided::New));
            return Ok(());
        };
        match self.tell_source_first() {
            Ok(()) => Err(Undecided::Old(error)),
            Err(_) => Err(Undecided::Unknown(error)),
        }
    }

    /// Both branches say what is known here, first the source, so that it surely does not say otherwise.
    fn tell_source_first(&mut self) -> OpResult<()> {
        let Self { from, to, kind, .. } = *self;
        let record = encode(&self.intents);
        let old = from.ask(|| decisions::replace_in_use(from, &mut self.on_from, kind, &record));
        let both =
            old.and_then(|()| to.ask(|| decisions::replace_in_use(to, &mut self.on_to, kind, &record)));
        self.is_unsure |= both.is_err();
        both
    }

    /// The old copy of the file `at`, which has several names, is this file after all, as it has all of them.
    ///
    /// # Errors
    /// It is not known.
    pub(crate) fn decides_old(&mut self, at: usize) -> OpResult<()> {
        self.intents[at].decides(Decided::Old);
        self.tell_source_first()
    }

    /// All moves are over, one way or the other, except those in `left`: these wait until both branches can be asked.
    pub(crate) fn done(mut self, left: &LeftOver, taken_back: &TakenBack) {
        if left.is_empty() {
            self.on_to.done(self.to);
            return self.on_from.done(self.from);
        }
        // As after a single move, the branch that answers has the decision. For a file with several names both branches have it.
        let both = [(self.from, &mut self.on_from, Decided::Old), (self.to, &mut self.on_to, Decided::New)];
        for (on, written, says) in both {
            for (at, decided) in left {
                let intent = &mut self.intents[*at];
                let says_it = intent.has_links || *decided == says;
                intent.decides(if says_it { *decided } else { Decided::Not });
            }
            let entries = left.iter().map(|(at, _)| (number(*at), self.intents[*at].body.as_slice()));
            let record = encode_batch(entries);
            tell_undecided(on.ask(|| decisions::replace_in_use(on, written, self.kind, &record)));
            if self.is_unsure {
                break; // the target's record stays: it decides
            }
        }
        for (at, _) in left.iter().filter(|(_, decided)| *decided == Decided::Old) {
            taken_back.add(name_in_batch(self.on_to.name(), number(*at)));
        }
    }
}

fn encode(intents: &[BatchedIntent]) -> Vec<u8> {
    encode_batch((0..).zip(intents.iter().map(|intent| intent.body.as_slice())))
}

fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
