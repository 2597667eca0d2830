//! Inodes as rows of the state that one program hands to the next (`handover`).

use std::num::NonZeroU32;
use std::sync::Arc;

use dashmap::mapref::entry::Entry;
use fsstack_branch::dir_fd::DirFd;
use fsstack_identity::number::Identity;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::atomic::Ordering::{Relaxed, SeqCst};
use fsstack_sys::Kind;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::copies::Copy;
use super::table::{Slot, Table};
use super::{Copies, Inode, InodeName, Location};
use crate::files::OpenFile;
use crate::files::handed::{FdRow, NameRow, Unusable, generation};

/// An inode. Others refer to it by its place in the list of all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct InodeRow {
    pub(crate) ino: u64,
    pub(crate) generation: u32,
    kind: u8,
    /// How often the kernel looked it up; None: it is in no table, or aside.
    pub(crate) lookups: Option<u64>,
    /// The names, each with the place of its directory in the list.
    pub(crate) names: Vec<(usize, NameRow)>,
    place: PlaceRow,
    /// Descriptor of the object itself, if a name of it was removed.
    pub(crate) unlinked: Option<FdRow>,
    lost: bool,
    was_past: bool,
    mappable: u32,
    losses: u32,
}

/// Where an inode is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum PlaceRow {
    Nowhere,
    File { branch: u16, guarded: bool },
    Dir { copies: Vec<CopyRow>, unsure: u64 },
}

/// A copy of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CopyRow {
    branch: u16,
    ino: u64,
    /// A name in it was changed since the last sync, on the current mount or on an earlier one.
    changed: Option<bool>,
}

const KINDS: [Kind; 7] =
    [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block];

impl Inode {
    /// Its row, but for lookups, names and descriptors; `current` tells the mount generation of a branch.
    pub(crate) fn row(&self, current: &dyn Fn(BranchIx) -> u32) -> InodeRow {
        let state = self.state.lock();
        let place = match &state.location {
            Location::Nowhere => PlaceRow::Nowhere,
            Location::File(file) => PlaceRow::File { branch: file.branch.0, guarded: file.guarded },
            Location::Dir(dir) => {
                let changed = |copy: &Copy| copy.changed.map(|at| at.get() - 1 == current(copy.branch));
                let row =
                    |copy: &Copy| CopyRow { branch: copy.branch.0, ino: copy.ino, changed: changed(copy) };
                PlaceRow::Dir { copies: dir.copies.iter().map(row).collect(), unsure: dir.unsure }
            }
        };
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or_default();
        InodeRow {
            ino: self.id.ino.0,
            generation: self.id.generation,
            kind: u8::try_from(kind).unwrap_or_default(),
            lookups: None,
            names: Vec::new(),
            place,
            unlinked: None,
            lost: self.is_lost(),
            was_past: self.was_past(),
            mappable: self.mappable.load(SeqCst),
            losses: self.losses(),
        }
    }

    /// The inode that `row` describes, without names and descriptors.
    ///
    /// # Errors
    /// The row is none.
    pub(crate) fn of_row(row: &InodeRow) -> Result<Self, Unusable> {
        let wrong = || format!("inode {}: its row is damaged", row.ino);
        let id = Identity { ino: Ino(row.ino), generation: row.generation };
        let kind = *KINDS.get(usize::from(row.kind)).ok_or_else(wrong)?;
        let inode = match &row.place {
            PlaceRow::File { branch, guarded } if kind != Kind::Dir => {
                let inode = Self::file(id, kind, BranchIx(*branch));
                if let Location::File(file) = &mut inode.state.lock().location {
                    file.guarded = *guarded;
                }
                inode
            }
            PlaceRow::Dir { copies, .. } if kind == Kind::Dir => {
                let found = copies.iter().map(|copy| (BranchIx(copy.branch), copy.ino));
                Self::dir(id, &Copies::known(found))
            }
            PlaceRow::Nowhere => Self::new(id, kind, Location::Nowhere),
            PlaceRow::File { .. } | PlaceRow::Dir { .. } => return Err(wrong()),
        };
        inode.take_row(row);
        Ok(inode)
    }

    /// Takes over what `row`, of the same object, says besides its place.
    pub(crate) fn take_row(&self, row: &InodeRow) {
        self.lost.store(row.lost, Relaxed);
        self.was_past.store(row.was_past, SeqCst);
        self.mappable.store(row.mappable, SeqCst);
        self.losses.store(row.losses, Relaxed);
        // It lost a name, and may have others.
        self.note_links(if row.unlinked.is_some() { 2 } else { 1 });
        if let PlaceRow::Dir { copies, unsure } = &row.place {
            self.with_dir(|dir| {
                // All branches are asked at the next use.
                (dir.unsure, dir.checked) = (*unsure, None);
                for copy in &mut dir.copies {
                    let known = copies.iter().find(|known| known.branch == copy.branch.0);
                    copy.changed = known
                        .and_then(|known| known.changed)
                        .map(|is_current| NonZeroU32::MIN.saturating_add(generation(is_current)));
                }
            });
        }
    }

    /// Keeps `fd`, the object itself, of which a name was removed: a directory is reached by it, since no name leads there.
    pub(crate) fn set_unlinked(&self, fd: Arc<DirFd>) {
        let branch = self.branch();
        self.with_dir(|dir| {
            let copy = dir.copies.iter_mut().find(|copy| Some(copy.branch) == branch);
            copy.map(|copy| copy.fd = Some(fd.clone()))
        });
        self.state.lock().unlinked_fd = Some(fd);
    }

    /// Its names, the latest seen first.
    pub(crate) fn set_names(&self, names: SmallVec<[InodeName; 1]>) {
        self.state.lock().names = names;
    }

    /// The open file is `file`, of `handles` handles.
    pub(crate) fn set_open(&self, file: &Arc<OpenFile>, handles: usize) {
        if let Location::File(location) = &mut self.state.lock().location {
            location.open = Some((file.clone(), handles));
        }
    }

    /// The open file, and how many handles it is counted for.
    pub(crate) fn open_count(&self) -> Option<(Arc<OpenFile>, usize)> {
        match &self.state.lock().location {
            Location::File(file) => file.open.clone(),
            Location::Dir(_) | Location::Nowhere => None,
        }
    }

    /// The branch whose object [`Self::unlinked_fd`] is.
    pub(crate) fn unlinked(&self) -> Option<(BranchIx, Arc<DirFd>)> {
        let fd = self.unlinked_fd()?;
        Some((self.branch()?, fd))
    }
}

impl Table {
    /// All inodes with the number of lookups, and the directories that are only above others.
    pub(crate) fn all_with_lookups(&self) -> Vec<(Arc<Inode>, Option<u64>)> {
        let counted = |inode: Arc<Inode>| {
            let slot = self.slots.get(&inode.id.ino.0).filter(|slot| Arc::ptr_eq(&slot.inode, &inode));
            let lookups = slot.map(|slot| slot.lookups);
            (inode, lookups)
        };
        self.all().into_iter().map(counted).collect()
    }

    /// Takes `inode` in, of which the kernel has `lookups`.
    ///
    /// # Errors
    /// There is one of that number already.
    pub(crate) fn take_in(&self, inode: &Arc<Inode>, lookups: u64) -> Result<(), Unusable> {
        match self.slots.entry(inode.id.ino.0) {
            Entry::Occupied(_) => Err(format!("inode {}: it is listed twice", inode.id.ino)),
            Entry::Vacant(free) => {
                free.insert(Slot { inode: inode.clone(), lookups, holds: 0 });
                Ok(())
            }
        }
    }

    /// Takes `inode` in, which the kernel does not know: a directory above others is found by its number. After all that it knows.
    pub(crate) fn take_in_aside(&self, inode: &Arc<Inode>) {
        if inode.is_dir() && !inode.is_lost() && !self.slots.contains_key(&inode.id.ino.0) {
            self.put_aside(inode);
        }
    }
}
