//! Files that may have changed where none of their names was reported: a name by which a change was reported went before it was
//! looked at, or the file was open and none of its other names is known.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::time::Duration;

use fsstack_catalogue::{CatalogueError, Row};

use super::super::look::look_at_name;
use super::{Keeper, Unlisted};
use crate::member::Member;

/// Files that are looked at in one step.
const AT_ONCE: usize = 16 << 10;
/// Files that wait for that at most; with more, the branch is walked.
const MOST: usize = 1 << 20;

/// Pause between walks that look for files.
const SEEK_PAUSE: Duration = Duration::from_secs(600);
/// Files that are remembered.
const REMEMBERED: usize = 64 << 10;

/// `files`, emptied if there are too many.
fn bounded(files: &mut HashSet<u64>) -> &mut HashSet<u64> {
    if files.len() >= REMEMBERED {
        files.clear();
    }
    files
}

impl Keeper {
    /// Looks at one name of files that may have changed where none of their names was reported; the others get the same row.
    pub(super) fn look_at_files(&mut self, branch: &Member) -> std::result::Result<(), CatalogueError> {
        if self.again || self.full || self.upkeep.catalogue.unsure(self.id) > MOST {
            self.upkeep.catalogue.forget_unsure(self.id);
            self.again = true;
            return Ok(());
        }
        let mut files = self.upkeep.catalogue.take_unsure(self.id, AT_ONCE).into_iter();
        let mut rows = Vec::new();
        for file in files.by_ref() {
            if self.is_to_end() {
                self.upkeep.catalogue.note_files(self.id, [file]);
                break;
            }
            let Some((dir, name)) = self.upkeep.catalogue.name_of(self.id, file)? else {
                bounded(&mut self.gone).insert(file);
                continue;
            };
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
                Err(Unlisted::Branch(error)) => {
                    self.put_off(Some(error));
                    break;
                }
                Err(Unlisted::Database(error)) => return Err(error),
                Err(Unlisted::Stopped) => break,
            }
        }
        self.upkeep.catalogue.note_files(self.id, files);
        if rows.is_empty() {
            return Ok(());
        }
        let at = (self.id, self.walk);
        self.upkeep.catalogue.change(|batch| {
            rows.iter().try_for_each(|(dir, name, row)| batch.set(at, *dir, name, row.as_ref()).map(drop))
        })?;
        self.upkeep.note_change();
        Ok(())
    }

    /// No name is known of these `files`: a walk has listed their other name when they had one link, or it is outside of the branch. A
    /// walk is to find them, once.
    pub(super) fn seek(&mut self, files: HashSet<u64>) {
        for file in files {
            self.walks_again |= bounded(&mut self.sought).insert(file);
        }
    }

    /// Time until files are looked for; None: none is to be. All names are known meanwhile.
    pub(super) fn seeks_in(&self) -> Option<Duration> {
        let since = self.walked.map(|walked| walked.elapsed());
        let is_due = self.walks_again && !self.walking;
        is_due.then(|| since.map_or(Duration::ZERO, |since| SEEK_PAUSE.saturating_sub(since)))
    }

    /// Those of `files` that no name in the catalogue leads to.
    pub(super) fn unknown(
        &self,
        files: impl IntoIterator<Item = u64>,
    ) -> std::result::Result<HashSet<u64>, CatalogueError> {
        let mut unknown = HashSet::new();
        for file in files {
            if self.upkeep.catalogue.name_of(self.id, file)?.is_none() {
                unknown.insert(file);
            }
        }
        Ok(unknown)
    }

    fn look_at_file(
        &self,
        branch: &Member,
        dir: u64,
        name: &[u8],
    ) -> std::result::Result<Option<Row>, Unlisted> {
        let (fd, _) = self.open_dir(branch, dir)?.ok_or(Unlisted::Elsewhere)?;
        let name = CString::new(name).map_err(|_| Unlisted::Elsewhere)?;
        look_at_name(branch, fd.as_fd(), &name).map(|(_, row)| row).map_err(Unlisted::Branch)
    }
}
