//! A row for each open handle.

use std::sync::Arc;

use fsstack_pool::{Handle, Ino};
use fsstack_sync::unmodelled::atomic::{AtomicU64, Ordering::SeqCst};

use super::{Header, Kept, slots};
use crate::files::route::{Route, Writer};
use crate::files::write_back_errors::OwedErrors;
use crate::files::{OpenedObject, Sync};
use crate::inode::Inode;
use crate::opened::{DirRow, FileHandle, RowNumber};

/// Handles that can be kept at once. Memory is taken for those that were open.
const ROWS: usize = 1 << 20;
/// Words of a row: handle, number, generation and flags, device and inode number on the branch, place and route, writer, and the
/// generation of what is on the branch.
const ROW: usize = 8;
/// The end of all words.
pub(super) const END: usize = slots::END + ROWS * ROW;

/// Bits beside the generation.
const IS_DIR: u64 = 1 << 32;
const SYNC_DATA: u64 = 1 << 33;
const SYNC_ALL: u64 = 1 << 34;
const MAPPABLE: u64 = 1 << 35;
const NOATIME: u64 = 1 << 36;
const APPENDS: u64 = 1 << 37;
/// A write-back error is pending.
const OWED: u64 = 1 << 38;
/// A name moved to another branch while the directory was open.
const MOVED: u64 = 1 << 39;
const HAS_WRITER: u64 = 1 << 32;

/// Rows that can be taken.
#[derive(Debug, Default)]
pub(super) struct FreeRows {
    left: Vec<u32>,
    used: u32,
}

/// A handle as its row tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandleRow {
    pub(crate) number: RowNumber,
    pub(crate) handle: Handle,
    pub(crate) ino: Ino,
    pub(crate) generation: u32,
    pub(crate) is_dir: bool,
    /// The file on its branch when it was opened, or since it was moved.
    pub(crate) object: OpenedObject,
    /// The branch's slot then.
    pub(crate) branch: u16,
    pub(crate) route: Route,
    pub(crate) writer: Option<Writer>,
    pub(crate) sync: Option<Sync>,
    pub(crate) mappable: bool,
    pub(crate) noatime: bool,
    pub(crate) appends: bool,
    /// A write-back error was not reported to it yet.
    pub(crate) owed: bool,
    /// A name in the directory moved to another branch since it was opened: the daemon followed it for the listing.
    pub(crate) moved: bool,
}

/// The row of a handle on a directory.
#[derive(Debug)]
struct KeptDirRow {
    kept: Arc<Kept>,
    number: RowNumber,
}

impl DirRow for KeptDirRow {
    fn note_move(&self) {
        self.kept.row(self.number)[2].fetch_or(MOVED, SeqCst);
    }

    fn free(&self) {
        self.kept.drop_row(self.number);
    }
}

impl HandleRow {
    fn words(&self) -> [u64; 7] {
        let flags = [
            (self.is_dir, IS_DIR),
            (self.sync == Some(Sync::Data), SYNC_DATA),
            (self.sync == Some(Sync::All), SYNC_ALL),
            (self.mappable, MAPPABLE),
            (self.noatime, NOATIME),
            (self.appends, APPENDS),
            (self.owed, OWED),
            (self.moved, MOVED),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag);
        let (kind, backing): (u64, u32) = match self.route {
            Route::Direct => (0, 0),
            Route::Cached => (1, 0),
            Route::Passthrough(id) => (2, id),
            Route::DirectBeside(id) => (3, id),
        };
        [
            self.ino.0,
            u64::from(self.generation) | flags,
            self.object.at.0,
            self.object.at.1,
            u64::from(self.branch) | kind << 16 | u64::from(backing) << 32,
            self.writer.map_or(0, |writer| writer.0 | HAS_WRITER),
            self.object.generation.into(),
        ]
    }

    fn of(number: RowNumber, handle: u64, words: [u64; 7]) -> Self {
        let [ino, flags, dev, inode, place, writer, own_generation] = words;
        let low = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or_default();
        let backing = low(place >> 32);
        let route = match place >> 16 & 0xff {
            1 => Route::Cached,
            2 => Route::Passthrough(backing),
            3 => Route::DirectBeside(backing),
            _ => Route::Direct,
        };
        let sync = match flags & (SYNC_DATA | SYNC_ALL) {
            0 => None,
            SYNC_DATA => Some(Sync::Data),
            _ => Some(Sync::All),
        };
        Self {
            number,
            handle: Handle(handle),
            ino: Ino(ino),
            generation: low(flags),
            is_dir: flags & IS_DIR != 0,
            object: OpenedObject { at: (dev, inode), generation: low(own_generation) },
            branch: u16::try_from(place & 0xffff).unwrap_or_default(),
            route,
            writer: (writer & HAS_WRITER != 0).then_some(Writer(writer & !HAS_WRITER)),
            sync,
            mappable: flags & MAPPABLE != 0,
            noatime: flags & NOATIME != 0,
            appends: flags & APPENDS != 0,
            owed: flags & OWED != 0,
            moved: flags & MOVED != 0,
        }
    }
}

impl Kept {
    fn row(&self, row: RowNumber) -> &[AtomicU64] {
        let at = slots::END + usize::try_from(row.0).unwrap_or_default() * ROW;
        &self.words.words()[at..at + ROW]
    }

    /// Notes an open file; None if there is no row left, and the handle ends with the daemon.
    pub(crate) fn note_file(&self, handle: Handle, open: &FileHandle) -> Option<RowNumber> {
        // It is unknown while it moves: then it has a name.
        let there = open.file.object_there();
        let (at, object) = there.unwrap_or_else(|| (open.file.branch().ix, OpenedObject::default()));
        self.note(HandleRow {
            number: RowNumber(0),
            handle,
            ino: open.inode.id.ino,
            generation: open.inode.id.generation,
            is_dir: false,
            object,
            branch: at.0,
            route: open.route,
            writer: open.writer,
            sync: open.sync,
            mappable: open.mappable,
            noatime: open.noatime,
            appends: open.appends,
            owed: false,
            moved: false,
        })
    }

    /// Like [`Self::note_file`], of a directory.
    pub(crate) fn note_dir(self: &Arc<Self>, handle: Handle, dir: &Arc<Inode>) -> Option<Box<dyn DirRow>> {
        let number = self.note(HandleRow {
            number: RowNumber(0),
            handle,
            ino: dir.id.ino,
            generation: dir.id.generation,
            is_dir: true,
            object: OpenedObject::default(),
            branch: 0,
            route: Route::Direct,
            writer: None,
            sync: None,
            mappable: false,
            noatime: false,
            appends: false,
            owed: false,
            moved: false,
        })?;
        Some(self.row_of_dir(number))
    }

    /// The row `number`, which is of a directory.
    pub(crate) fn row_of_dir(self: &Arc<Self>, number: RowNumber) -> Box<dyn DirRow> {
        Box::new(KeptDirRow { kept: self.clone(), number })
    }

    fn note(&self, told: HandleRow) -> Option<RowNumber> {
        let row = self.take_row()?;
        let words = self.row(row);
        for (word, value) in words[1..].iter().zip(told.words()) {
            word.store(value, SeqCst);
        }
        // Last: it makes the row one.
        words[0].store(told.handle.0, SeqCst);
        Some(row)
    }

    /// The file of the row is `object` on that branch by now, as it was moved.
    pub(crate) fn note_object(&self, row: RowNumber, object: OpenedObject, branch: u16) {
        const BRANCH: u64 = 0xffff;
        let words = self.row(row);
        words[3].store(object.at.0, SeqCst);
        words[4].store(object.at.1, SeqCst);
        words[5].store(words[5].load(SeqCst) & !BRANCH | u64::from(branch), SeqCst);
        words[7].store(object.generation.into(), SeqCst);
    }

    /// Notes for each handle of the file `ino` whether an error is pending, where `is_owed` says so. An error is rare: all rows are
    /// looked through.
    fn note_owed(&self, ino: Ino, is_owed: impl Fn(Handle) -> Option<bool>) {
        for row in 0..self.rows_used() {
            let words = self.row(RowNumber(row));
            let handle = words[0].load(SeqCst);
            if handle == 0 || words[1].load(SeqCst) != ino.0 {
                continue;
            }
            match is_owed(Handle(handle)) {
                Some(true) => _ = words[2].fetch_or(OWED, SeqCst),
                Some(false) => _ = words[2].fetch_and(!OWED, SeqCst),
                None => {}
            }
        }
    }

    fn take_row(&self) -> Option<RowNumber> {
        let mut free = self.free_rows.lock();
        if let Some(row) = free.left.pop() {
            return Some(RowNumber(row));
        }
        let row = free.used;
        if usize::try_from(row).ok()? >= ROWS {
            return None;
        }
        free.used += 1;
        self.header(Header::RowsUsed).store(free.used.into(), SeqCst);
        Some(RowNumber(row))
    }

    /// The handle is closed.
    pub(crate) fn drop_row(&self, row: RowNumber) {
        self.row(row)[0].store(0, SeqCst);
        self.free_rows.lock().left.push(row.0);
    }

    /// Finds the rows that are free in what was left.
    pub(super) fn sort_rows(&self) {
        let mut free = self.free_rows.lock();
        let most = u32::try_from(ROWS).unwrap_or(u32::MAX);
        free.used = u32::try_from(self.header(Header::RowsUsed).load(SeqCst)).unwrap_or(most).min(most);
        free.left = (0..free.used).filter(|row| self.row(RowNumber(*row))[0].load(SeqCst) == 0).collect();
    }

    /// All handles that were left.
    pub(crate) fn handles(&self) -> Vec<HandleRow> {
        let used = self.free_rows.lock().used;
        let told = |row: u32| {
            let words = self.row(RowNumber(row));
            let handle = words[0].load(SeqCst);
            let mut rest = [0; 7];
            for (value, word) in rest.iter_mut().zip(&words[1..]) {
                *value = word.load(SeqCst);
            }
            (handle != 0).then(|| HandleRow::of(RowNumber(row), handle, rest))
        };
        (0..used).filter_map(told).collect()
    }

    /// Rows that were ever used: at least as many as handles that were left.
    pub fn rows_used(&self) -> u32 {
        self.free_rows.lock().used
    }

    /// Device and inode number of each file that was left open: a keeper closes all other descriptors.
    pub fn objects(&self) -> std::collections::HashSet<(u64, u64)> {
        self.handles().into_iter().filter(|row| !row.is_dir).map(|row| row.object.at).collect()
    }
}

/// Pending errors of a file, in the rows of its handles.
#[derive(Debug)]
pub(crate) struct OwedInRows {
    kept: Arc<Kept>,
    ino: Ino,
}

impl OwedInRows {
    pub(crate) fn of(kept: &Arc<Kept>, ino: Ino) -> Box<dyn OwedErrors> {
        Box::new(Self { kept: kept.clone(), ino })
    }
}

impl OwedErrors for OwedInRows {
    fn owe(&self, told: Option<Handle>) {
        self.kept.note_owed(self.ino, |handle| Some(Some(handle) != told));
    }

    fn tell(&self, handle: Handle) {
        self.kept.note_owed(self.ino, |other| (other == handle).then_some(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn row(handle: u64, route: Route, writer: Option<Writer>, sync: Option<Sync>, set: bool) -> HandleRow {
        HandleRow {
            number: RowNumber(0),
            handle: Handle(handle),
            ino: Ino(u64::MAX - handle),
            generation: u32::MAX,
            is_dir: set,
            object: OpenedObject { at: (1 << 63, 1 << 62), generation: 5 },
            branch: 63,
            route,
            writer,
            sync,
            mappable: set,
            noatime: !set,
            appends: set,
            owed: set,
            moved: !set,
        }
    }

    #[test]
    fn rows_are_what_was_noted_and_those_of_closed_handles_are_used_again() {
        let first = Kept::new().unwrap();
        let rows = [
            row(1, Route::Passthrough(7), Some(Writer(0)), None, false),
            row(2, Route::DirectBeside(u32::MAX), Some(Writer(u32::MAX.into())), Some(Sync::All), true),
            row(3, Route::Direct, Some(Writer(Writer::NOT_ROOT)), Some(Sync::Data), true),
            row(4, Route::Cached, None, None, false),
        ];
        let numbers: Vec<_> = rows.iter().map(|row| first.note(*row).unwrap()).collect();
        first.drop_row(numbers[1]);
        let moved = OpenedObject { at: (4, 5), generation: 6 };
        first.note_object(numbers[2], moved, 7);
        let left = || Kept::left(first.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let second = left();
        let told: Vec<HandleRow> =
            second.handles().into_iter().map(|row| HandleRow { number: RowNumber(0), ..row }).collect();
        let moved = HandleRow { object: moved, branch: 7, ..rows[2] };
        assert_eq!(told, [rows[0], moved, rows[3]]);
        assert_eq!(second.note(rows[1]), Some(numbers[1]));
        assert_eq!(second.note(row(5, Route::Cached, None, None, false)), Some(RowNumber(4)));
        assert_eq!(left().handles().len(), 5);
        assert!(first.first_handle() < second.first_handle());
        assert!(second.objects().contains(&(1 << 63, 1 << 62)));
    }

    #[test]
    fn pending_errors_are_those_of_the_files_handles() {
        let kept = Arc::new(Kept::new().unwrap());
        let row = |handle: u64, ino: u64| HandleRow {
            ino: Ino(ino),
            ..row(handle, Route::Direct, None, None, false)
        };
        for (handle, ino) in [(1, 7), (2, 7), (3, 8), (4, 7)] {
            kept.note(row(handle, ino)).unwrap();
        }
        let owed = || {
            let owed = kept.handles().into_iter().filter(|row| row.owed);
            owed.map(|row| row.handle.0).collect::<Vec<u64>>()
        };
        let file = OwedInRows::of(&kept, Ino(7));
        file.owe(Some(Handle(2)));
        assert_eq!(owed(), [1, 4]);
        file.tell(Handle(1));
        assert_eq!(owed(), [4]);
        file.owe(None);
        assert_eq!(owed(), [1, 2, 4]);
    }

    #[test]
    fn other_memory_is_refused() {
        let words = fsstack_sys::shared_words::SharedWords::new("other", END).unwrap();
        assert!(Kept::left(words.as_fd().try_clone_to_owned().unwrap()).is_err());
    }
}
