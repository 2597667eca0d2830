//! A directory of a branch is listed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fsstack_branch::entries::Entries;
use fsstack_branch::error::OpError;
use fsstack_catalogue::{CatalogueError, Listed, Row, Turns};
use fsstack_identity::index::open_path;
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, Stat};

use super::{CHUNK, Keeper, Unlisted};
use crate::catalogue::look::{is_hidden, number_of, row_of};
use crate::member::Member;
use crate::union::Union;

impl Keeper {
    pub(super) fn list(
        &mut self,
        union: &Union,
        branch: &Member,
        dir: u64,
    ) -> std::result::Result<(), Unlisted> {
        if self.is_full()? {
            return Ok(());
        }
        let (mut names, itself) = match self.open_dir(branch, dir)? {
            Some((fd, stat)) => {
                // A change of a name has changed the directory's time. In a walk its own name has just been looked at.
                let changed = self.relisted.contains(&dir);
                let itself = changed.then(|| row_of(branch, On::Path(fd.as_fd()), &stat));
                (self.list_names(union, branch, dir, fd.as_fd())?, itself)
            }
            None => (Vec::new(), None),
        };
        names.sort_unstable();
        let at = (self.id, self.walk);
        self.upkeep.catalogue.change(|batch| {
            batch.listed(at, dir, &names)?;
            itself.map_or(Ok(()), |row| batch.set_dir(self.id, dir, &row))
        })?;
        self.upkeep.note_change();
        Ok(())
    }

    /// Opens and looks at the directory with this number. None: the pool does not show its content either, as another file system is mounted
    /// there or it cannot be entered.
    pub(super) fn open_dir(
        &self,
        branch: &Member,
        dir: u64,
    ) -> std::result::Result<Option<(OwnedFd, Stat)>, Unlisted> {
        let path = self.upkeep.catalogue.path(self.id, dir)?.ok_or(Unlisted::Elsewhere)?;
        let fd = match branch.ask(|| open_path(branch, &path)) {
            Ok(fd) => fd,
            Err(error) if error.is_missing() || error.errno() == Errno::NOTDIR => {
                return Err(Unlisted::Elsewhere);
            }
            Err(error) if matches!(error.errno(), Errno::XDEV | Errno::ACCESS) => return Ok(None),
            Err(error) => return Err(Unlisted::Branch(error)),
        };
        let stat = branch.ask(|| sys::at::stat_fd(fd.as_fd())).map_err(Unlisted::Branch)?;
        if number_of(branch, &stat) == dir { Ok(Some((fd, stat))) } else { Err(Unlisted::Elsewhere) }
    }

    fn list_names(
        &mut self,
        union: &Union,
        branch: &Member,
        dir: u64,
        fd: BorrowedFd<'_>,
    ) -> std::result::Result<Vec<Box<[u8]>>, Unlisted> {
        let pool = union.pool();
        let mut names = Vec::new();
        let mut rows: Vec<(Box<[u8]>, Row)> = Vec::new();
        // One that was removed since it was opened cannot be read.
        let unlisted =
            |error: OpError| if error.is_missing() { Unlisted::Elsewhere } else { Unlisted::Branch(error) };
        let mut entries = Entries::of(branch, fd).map_err(unlisted)?;
        let mut turns = Turns::default();
        loop {
            turns.next();
            let entry = entries.next_entry().map_err(unlisted)?;
            let is_end = entry.is_none();
            if let Some(entry) = entry.filter(|entry| dir != self.root || !is_hidden(&pool, &entry.name)) {
                match branch.ask(|| sys::at::stat(fd, &entry.name)) {
                    Ok(stat) => {
                        let name: Box<[u8]> = entry.name.to_bytes().into();
                        names.push(name.clone());
                        let row = row_of(branch, On::Name(fd, &entry.name), &stat);
                        let is_sought = row.number.is_some_and(|number| self.sought.contains(&number));
                        rows.push((name, if is_sought { row.of_several() } else { row }));
                    }
                    Err(error) if error.is_missing() => {}
                    Err(error) if branch.check_open().is_err() => return Err(Unlisted::Branch(error)),
                    Err(_) => {
                        self.unreadable = true;
                        names.push(entry.name.to_bytes().into());
                    }
                }
            }
            if self.is_to_end() && !is_end {
                return Err(Unlisted::Stopped);
            }
            if rows.len() >= CHUNK || is_end {
                self.write_rows(dir, &rows)?;
                rows.clear();
                if !is_end && self.is_full()? {
                    return Err(Unlisted::Stopped);
                }
            }
            if is_end {
                return Ok(names);
            }
        }
    }

    fn write_rows(&mut self, dir: u64, rows: &[(Box<[u8]>, Row)]) -> std::result::Result<(), CatalogueError> {
        let at = (self.id, self.walk);
        let due = self.upkeep.catalogue.change(|batch| {
            let mut due = Vec::new();
            for (name, row) in rows {
                if let Listed::Not(number) = batch.set(at, dir, name, Some(row))? {
                    due.push(number);
                }
            }
            Ok(due)
        })?;
        self.waiting.extend(due);
        Ok(())
    }
}
