//! Files that may have changed where none of their names was reported: a name by which a change was reported went before it was
//! looked at, or the file was open and none of its other names is known.

use std::ffi::CString;
use std::os::fd::AsFd;

use fsstack_catalogue::{CatalogueError, Row};

use super::super::look::look_at_name;
use super::{Keeper, Unlisted};
use crate::member::Member;

impl Keeper {
    /// Looks at one name of each file that may have changed where none of its names was reported; the others get the same row.
    pub(super) fn look_at_files(&mut self, branch: &Member) -> std::result::Result<(), CatalogueError> {
        loop {
            let files = self.upkeep.catalogue.take_unsure(self.id);
            if files.is_empty() || self.again || self.full {
                return Ok(());
            }
            let mut rows = Vec::new();
            for file in &files {
                if self.is_to_end() {
                    // All of it is walked by the next mount.
                    self.again = true;
                    return Ok(());
                }
                let Some((dir, name)) = self.upkeep.catalogue.name_of(self.id, *file)? else { continue };
                match self.look_at_file(branch, dir, &name) {
                    Ok(row) => rows.push((dir, name, row)),
                    Err(Unlisted::Elsewhere) => {
                        self.upkeep.catalogue.change(|batch| batch.unlist(self.id, dir))?;
                        self.waiting.push(dir);
                    }
                    Err(Unlisted::Branch(error)) if branch.check_open().is_ok() => {
                        tracing::debug!(%error, branch = %branch.path.display(), "catalogue: a file cannot be looked at");
                        self.unreadable = true;
                    }
                    Err(Unlisted::Branch(error)) => self.put_off(Some(error)),
                    Err(Unlisted::Database(error)) => return Err(error),
                    Err(Unlisted::Stopped) => {}
                }
            }
            let at = (self.id, self.walk);
            self.upkeep.catalogue.change(|batch| {
                rows.iter().try_for_each(|(dir, name, row)| batch.set(at, *dir, name, row.as_ref()).map(drop))
            })?;
            self.upkeep.note_change();
        }
    }

    fn look_at_file(
        &self,
        branch: &Member,
        dir: u64,
        name: &[u8],
    ) -> std::result::Result<Option<Row>, Unlisted> {
        let fd = self.open_dir(branch, dir)?.ok_or(Unlisted::Elsewhere)?;
        let name = CString::new(name).map_err(|_| Unlisted::Elsewhere)?;
        look_at_name(branch, fd.as_fd(), &name).map(|(_, row)| row).map_err(Unlisted::Branch)
    }
}
