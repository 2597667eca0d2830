//! Names of inodes: a directory, and a name there.

use std::ffi::CStr;
use std::sync::Arc;

use fsstack_sync::ranked::{DIR_NAMES, Ranked};
use smallvec::SmallVec;

use super::clock::Moment;
use super::{Inode, Location};

/// Held while a directory gets a name, so that none comes to lie in itself: changes out of band may show `a/b` at one moment and
/// `b/a` at the next, and whatever climbs to the root would not end.
static NAMING: Ranked<(), DIR_NAMES> = Ranked::new(());

/// Names of one hard-linked file that are remembered.
const NAMES: usize = 8;

/// A name of an inode.
#[derive(Clone, Debug)]
pub struct InodeName {
    /// The directory that has it.
    pub parent: Arc<Inode>,
    /// The name there.
    pub name: Arc<CStr>,
}

impl InodeName {
    /// `name` in `parent`.
    pub fn new(parent: &Arc<Inode>, name: &CStr) -> Self {
        Self { parent: parent.clone(), name: name.into() }
    }

    /// The path below the pool's root, without a leading slash.
    pub(crate) fn path(&self) -> Option<Vec<u8>> {
        let mut path = self.parent.path()?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(self.name.to_bytes());
        Some(path)
    }

    pub(crate) fn is(&self, parent: &Inode, name: &CStr) -> bool {
        self.parent.id.ino == parent.id.ino && *self.name == *name
    }
}

impl Inode {
    /// Its names as far as they are known, the latest seen first.
    pub fn names(&self) -> SmallVec<[InodeName; 1]> {
        self.state.lock().names.clone()
    }

    /// The name by which it was seen last.
    pub fn name(&self) -> Option<InodeName> {
        self.state.lock().names.first().cloned()
    }

    /// Whether `name` in `parent` is one of its known names.
    pub fn has_name(&self, parent: &Inode, name: &CStr) -> bool {
        self.state.lock().names.iter().any(|known| known.is(parent, name))
    }

    /// It was seen under `name` in `parent`, by a question that was put at `asked`. Only an object with several links keeps its
    /// other names. A name that it may have lost since is not recorded: a copy of a directory would be made there. Of a file with several
    /// links it comes last, as names are verified when they are used. A directory gets no name in one that is known to lie in it: one
    /// of the two has been moved since.
    pub fn note_name(&self, parent: &Arc<Inode>, name: &CStr, links: u32, asked: Moment) {
        self.note_links(links);
        if self.state.lock().names.first().is_some_and(|first| first.is(parent, name)) {
            return;
        }
        let _alone = self.is_dir().then(|| NAMING.lock());
        if self.is_dir() && parent.lies_in(self) {
            return;
        }
        let mut state = self.state.lock();
        let is_late = match &state.location {
            Location::Dir(dir) => asked < dir.settled,
            Location::File(_) | Location::Nowhere => asked.is_before_rename(self.id.ino.0),
        };
        if is_late && (self.is_dir() || links <= 1 && !state.names.is_empty()) {
            return;
        }
        let old =
            state.names.iter().position(|known| known.is(parent, name)).map(|at| state.names.remove(at));
        let seen = old.unwrap_or_else(|| InodeName::new(parent, name));
        if links <= 1 || self.is_dir() {
            state.names.clear();
        }
        state.names.truncate(NAMES - 1);
        let at = if is_late { state.names.len() } else { 0 };
        state.names.insert(at, seen);
    }

    /// `name` in `parent` is no name of it any more.
    pub fn lost_name(&self, parent: &Inode, name: &CStr) {
        let mut state = self.state.lock();
        let now = Moment::renames(self.id.ino.0);
        state.names.retain(|known| !known.is(parent, name));
        if let Location::Dir(dir) = &mut state.location {
            (dir.settled, dir.checked) = (now, None);
        }
    }

    /// It was renamed.
    pub fn renamed(&self, from: (&Inode, &CStr), to: (&Arc<Inode>, &CStr)) {
        let _alone = self.is_dir().then(|| NAMING.lock());
        let is_known_below = self.is_dir() && to.0.lies_in(self);
        let mut state = self.state.lock();
        let now = Moment::renames(self.id.ino.0);
        state.names.retain(|known| !known.is(from.0, from.1) && !known.is(to.0, to.1));
        if !is_known_below {
            state.names.insert(0, InodeName::new(to.0, to.1));
        }
        if let Location::Dir(dir) = &mut state.location {
            (dir.settled, dir.checked) = (now, None);
        }
    }

    /// Whether it is `dir`, or lies below it, by the names that are known.
    pub(crate) fn lies_in(self: &Arc<Self>, dir: &Self) -> bool {
        let mut at = self.clone();
        loop {
            if at.id == dir.id {
                return true;
            }
            match at.name() {
                Some(name) => at = name.parent,
                None => return false,
            }
        }
    }

    /// The path below the pool's root, without a leading slash.
    pub(crate) fn path(self: &Arc<Self>) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = self.clone();
        while !at.is_root() {
            let name = at.name()?;
            names.push(name.name.to_bytes().to_vec());
            at = name.parent;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }
}
