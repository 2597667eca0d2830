//! A walk over what is on a branch, through the pool, as the kernel does: what it meets is known by the pool's numbers while it
//! is at work.
//!
//! A file with several hard links is met once for each name. It is shown to the visitor when the last one is met; one of which
//! names are missing at the end stays.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::entries::Entries;
use fsstack_branch::error::{OpError, Result};
use fsstack_pool::{BranchIx, EntryName, Ino};
use fsstack_sys::{Errno, Kind};

use super::Job;
use super::Jobs;
use super::linked::{LinkedFiles, NoRoom};
use super::planning::list::ListedFile;
use super::planning::tier::LastUse;
use crate::inode::{Inode, InodeName};
use crate::moves::hidden::HiddenName;
use crate::moves::job_move;
use crate::moves::moving::Names;
use crate::moves::reasons::{FROZEN, LINKED, LINKED_TOO_OFTEN, MANY_LINKED, OTHERS_LINKED};
use crate::tree::lookup::{hold, release};
use crate::tree::resolve::is_private;

/// Files that are held open for their move at a time.
const BATCH: usize = 256;

pub(super) const CONTROL: &str = "the pool's control file has its name: mount with mergerfs-control=off";
pub(super) const HIDDEN: &str = "it is hidden by another branch's object of this name";
pub(super) const MOUNTED: &str = "another file system is mounted there";

/// An object that a walk has met: the pool knows it until this drops.
pub(super) struct Met<'a> {
    jobs: &'a Jobs,
    pub(super) inode: Arc<Inode>,
    counted: bool,
}

impl Drop for Met<'_> {
    fn drop(&mut self) {
        if self.counted {
            release(&self.jobs.tree, self.inode.id.ino);
        }
    }
}

/// A file that a walk has met by all its names.
pub(super) struct MetFile<'a> {
    pub(super) met: Met<'a>,
    /// The path of the name that was met last.
    pub(super) path: Vec<u8>,
    pub(super) bytes: u64,
    pub(super) used: LastUse,
    /// It is immutable or append-only: its names cannot be removed.
    pub(super) is_frozen: bool,
    /// All its names.
    pub(super) names: Names,
}

impl MetFile<'_> {
    /// The file as a plan lists it.
    pub(super) fn listed(&self) -> ListedFile {
        let name =
            |name: &InodeName| (name.parent.path().unwrap_or_default().into(), name.name.as_ref().to_owned());
        ListedFile {
            ino: self.met.inode.id.ino,
            bytes: self.bytes,
            names: self.names.iter().map(name).collect(),
        }
    }

    /// Reason to stay of a file that is immutable or append-only.
    pub(super) fn why_frozen(&self) -> Option<&'static str> {
        self.is_frozen.then_some(FROZEN)
    }
}

/// Files of which not all names were met yet.
type Groups<'a> = LinkedFiles<'a, MetFile<'a>>;

/// A directory that a walk has met, its path, and whether its content was visited.
type MetDir<'a> = (Met<'a>, Vec<u8>, bool);

/// Purpose of a walk.
pub(super) trait Visitor<'a> {
    /// Files, the last name of each of them in one directory.
    fn files(&mut self, files: Vec<MetFile<'a>>);
    /// An object that another branch's object of its name hides.
    fn hidden(&mut self, hidden: &HiddenName<'_>) {
        self.stays(hidden.path.to_vec(), HIDDEN);
    }
    /// A listed name that the branch does not have any more: it was replaced, renamed or moved since.
    fn went(&mut self) {}
    /// A name of a file of `bytes` with so many hard `links`, which this walk leaves out though it may move later.
    fn left_out(&mut self, path: Vec<u8>, _bytes: u64, _links: u32, why: &'static str) {
        self.stays(path, why);
    }
    /// An object that cannot be moved.
    fn stays(&mut self, path: Vec<u8>, why: &'static str);
    /// A directory whose names are not known, or a name that cannot be asked for.
    fn unknown(&mut self, path: Vec<u8>, why: &'static str) {
        self.stays(path, why);
    }
    /// All below the directory was visited.
    fn dir(&mut self, dir: &Arc<Inode>);
}

impl Jobs {
    /// The object at `path`, and the directories that lead there, from the root; all are known until the result drops.
    ///
    /// # Errors
    /// It is not there, or a branch that may have it does not answer.
    pub(super) fn meet_path(&self, path: &[u8]) -> Result<Vec<Met<'_>>> {
        let mut way = vec![Met { jobs: self, inode: self.tree.inodes.root().clone(), counted: false }];
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            let above = way.last().map_or_else(|| self.tree.inodes.root().clone(), |met| met.inode.clone());
            let name = CString::new(part).map_err(|_| Errno::INVAL)?;
            let name = EntryName::new(&name).map_err(|_| Errno::INVAL)?;
            let entry = self.tree.lookup_in(&above, name)?;
            way.push(self.met(entry.ino).ok_or(OpError::STALE)?);
        }
        Ok(way)
    }

    /// Visits all that is on the branch `from`, except the root itself.
    pub(super) fn walk_branch<'a>(&'a self, job: &Job, from: BranchIx, visitor: &mut dyn Visitor<'a>) {
        let root = Met { jobs: self, inode: self.tree.inodes.root().clone(), counted: false };
        self.walk_below(job, from, (root, Vec::new()), visitor);
    }

    /// Visits all that is on the branch `from` below the directory `top`, which has that path, except `top` itself.
    pub(super) fn walk_below<'a>(
        &'a self,
        job: &Job,
        from: BranchIx,
        (top, path): (Met<'a>, Vec<u8>),
        visitor: &mut dyn Visitor<'a>,
    ) {
        let mut groups = Groups::new(&self.linked);
        let itself = top.inode.id.ino;
        // Its content is still to be visited, or was.
        let mut stack = vec![(top, path, false)];
        while let Some((dir, path, visited)) = stack.pop() {
            if !job.goes_on() {
                return;
            }
            if visited {
                if dir.inode.id.ino != itself {
                    visitor.dir(&dir.inode);
                }
                continue;
            }
            let inode = dir.inode.clone();
            stack.push((dir, path.clone(), true));
            match self.names_on(&inode, from) {
                Ok(names) => {
                    for chunk in names.chunks(BATCH) {
                        let mut files = Vec::new();
                        for (name, kind) in chunk {
                            self.meet(
                                from,
                                &inode,
                                (name, *kind),
                                &path,
                                (&mut files, &mut stack, &mut groups),
                                visitor,
                            );
                        }
                        if job.is_called_off() {
                            return;
                        }
                        visitor.files(files);
                    }
                }
                Err(error) if error.is_missing() || error.errno() == Errno::STALE => {}
                Err(error) => visitor.unknown(path, cannot_list(error)),
            }
        }
        for name in groups.left().flat_map(|file| &file.names) {
            visitor.stays(name.path().unwrap_or_default(), LINKED);
        }
    }

    /// The names in the copy of `dir` on the branch `from`, and their kinds there.
    fn names_on(&self, dir: &Arc<Inode>, from: BranchIx) -> Result<Vec<(CString, Kind)>> {
        let pool = self.pool();
        if !dir.is_on(from) {
            return Ok(Vec::new());
        }
        let fd = self.tree.dirfd(&pool, dir, from)?;
        let branch = pool.branch(from);
        let mut entries = Entries::of(branch, fd.as_fd())?;
        let mut names = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            if is_private(&pool, dir, &entry.name) && !pool.settings.control_file.has(&entry.name) {
                continue;
            }
            let kind = match entry.kind {
                Some(kind) => kind,
                None => branch.ask(|| fsstack_sys::at::stat(fd.as_fd(), &entry.name))?.kind(),
            };
            names.push((entry.name, kind));
        }
        Ok(names)
    }

    fn meet<'a>(
        &'a self,
        from: BranchIx,
        dir: &Arc<Inode>,
        (name, kind): (&CString, Kind),
        above: &[u8],
        (files, dirs, groups): (&mut Vec<MetFile<'a>>, &mut Vec<MetDir<'a>>, &mut Groups<'a>),
        visitor: &mut dyn Visitor<'a>,
    ) {
        let mut path = above.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        let Ok(entry_name) = EntryName::new(name) else {
            return visitor.stays(path, "its name cannot be used in the pool");
        };
        if is_private(&self.pool(), dir, name) {
            return visitor.stays(path, CONTROL);
        }
        let entry = match self.tree.lookup_in(dir, entry_name) {
            Ok(entry) => entry,
            Err(error) if error.is_missing() => return, // removed since
            Err(error) => return visitor.unknown(path, cannot_list(error)),
        };
        let Some(met) = self.met(entry.ino) else { return };
        let inode = &met.inode;
        let is_elsewhere =
            inode.is_dir() != (kind == Kind::Dir) || !inode.is_dir() && inode.branch() != Some(from);
        if is_elsewhere {
            match self.is_still_there(from, dir, (name, kind)) {
                true => visitor.hidden(&HiddenName { dir, name, at: from, path: &path }),
                false => visitor.went(),
            }
        } else if inode.is_dir() {
            // `fsck` makes this one for itself.
            let is_of_fsck = dir.is_root() && name.to_bytes() == b"lost+found";
            if !is_of_fsck || self.names_on(inode, from).is_ok_and(|names| !names.is_empty()) {
                dirs.push((met, path, false));
            }
        } else {
            let stat = entry.attr.stat;
            let (ino, name) = (inode.id.ino, InodeName::new(dir, name));
            let bytes = stat.blocks.saturating_mul(512);
            let used = LastUse { read: stat.atime, written: stat.mtime };
            let is_frozen = stat.is_immutable() || stat.is_append_only();
            let links = stat.nlink as usize;
            let new = || MetFile { met, path: Vec::new(), bytes, used, is_frozen, names: Names::new() };
            if links <= 1 {
                // Its other name was removed since it was met.
                groups.take(ino);
                return files.push(MetFile { path, names: Names::from_iter([name]), ..new() });
            }
            let file = match groups.meet(ino, links, new) {
                Ok(file) => file,
                Err(NoRoom::Ever) => return visitor.stays(path, LINKED_TOO_OFTEN),
                Err(NoRoom::Now) => return visitor.left_out(path, bytes, stat.nlink, MANY_LINKED),
                Err(NoRoom::BesideOthers) => {
                    return visitor.left_out(path, bytes, stat.nlink, OTHERS_LINKED);
                }
            };
            file.path = path;
            file.names.push(name);
            if has_all_names(&mut file.names, links) {
                files.extend(groups.take(ino));
            }
        }
    }

    /// Whether the branch has an object of that kind by the listed name. Unless it tells otherwise it has.
    fn is_still_there(&self, from: BranchIx, dir: &Arc<Inode>, (name, kind): (&CString, Kind)) -> bool {
        match self.tree.stat_in(&self.pool(), dir, from, name) {
            Ok(stat) => (stat.kind() == Kind::Dir) == (kind == Kind::Dir),
            Err(error) => !error.is_missing(),
        }
    }

    /// The object `ino`, of which one more lookup was counted.
    pub(super) fn met(&self, ino: Ino) -> Option<Met<'_>> {
        Some(Met { jobs: self, inode: hold(&self.tree, ino)?, counted: true })
    }
}

/// Whether these are all the names of a file with so many links. A directory that was renamed to where the walk had not been is met
/// again, and so are its names: each counts once.
fn has_all_names(names: &mut Names, links: usize) -> bool {
    if names.len() >= links {
        let mut met = HashSet::new();
        names.retain(|name| met.insert((name.parent.id.ino, name.name.clone())));
    }
    names.len() >= links
}

fn cannot_list(error: OpError) -> &'static str {
    match error.errno() {
        Errno::XDEV => MOUNTED,
        Errno::ACCESS | Errno::PERM => "the branch does not let the daemon list it",
        _ => job_move::in_words(error),
    }
}
