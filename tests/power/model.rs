//! Model of the tree that a pool must show: operations are applied to it, and a crash leaves a subset of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::act::Act;

/// A file or directory, independent of its name. The root is 0; initial ones count from 1, new ones from `MADE`.
pub(crate) type Object = usize;
pub(crate) const ROOT: Object = 0;
pub(crate) const MADE: Object = 1000;

/// Kind of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    Dir,
    /// Its content, and how many bytes of that are certainly on disk.
    File {
        text: String,
        synced: usize,
    },
    /// A symlink to this.
    Link(String),
    Fifo,
}

/// An object's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) thing: Thing,
    pub(crate) mode: u32,
    /// Owner and group, which have the same number here.
    pub(crate) owner: u32,
    /// The further user in its ACL.
    pub(crate) granted: Option<u32>,
    /// Value of its attribute [`NOTE`](crate::act::NOTE).
    pub(crate) note: Option<String>,
}

impl Node {
    pub(crate) fn new(thing: Thing, mode: u32) -> Self {
        Self { thing, mode, owner: 0, granted: None, note: None }
    }
}

/// Names and objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) names: BTreeMap<PathBuf, Object>,
    pub(crate) nodes: BTreeMap<Object, Node>,
}

/// Objects that an operation changes, or a sync reaches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched {
    pub(crate) names: BTreeSet<(Object, PathBuf)>,
    pub(crate) objects: BTreeSet<Object>,
    /// All names in these directories.
    pub(crate) all_of: BTreeSet<Object>,
    /// Everything.
    pub(crate) all: bool,
}

impl Touched {
    /// True if a sync of `self` makes a change of `other` durable.
    pub(crate) fn reaches(&self, other: &Self) -> bool {
        self.all
            || !self.names.is_disjoint(&other.names)
            || !self.objects.is_disjoint(&other.objects)
            || other.names.iter().any(|(dir, _)| self.all_of.contains(dir))
    }
}

impl Tree {
    pub(crate) fn at(&self, path: &Path) -> Option<Object> {
        if path.as_os_str().is_empty() { Some(ROOT) } else { self.names.get(path).copied() }
    }

    fn name(&self, path: &Path) -> Option<(Object, PathBuf)> {
        Some((self.at(path.parent()?)?, path.file_name()?.into()))
    }

    fn is_dir(&self, object: Object) -> bool {
        object == ROOT || self.nodes.get(&object).is_some_and(|node| node.thing == Thing::Dir)
    }

    pub(crate) fn add(&mut self, path: &Path, object: Object, node: Node) -> Option<Touched> {
        let name = self.name(path)?;
        if !self.is_dir(name.0) || self.names.contains_key(path) {
            return None;
        }
        self.names.insert(path.to_owned(), object);
        self.nodes.insert(object, node);
        Some(Touched { names: [name].into(), objects: [object].into(), ..Touched::default() })
    }

    fn take(&mut self, path: &Path) -> Option<Touched> {
        let name = self.name(path)?;
        let object = self.names.remove(path)?;
        Some(Touched { names: [name].into(), objects: [object].into(), ..Touched::default() })
    }

    fn has_entries(&self, path: &Path) -> bool {
        self.names.keys().any(|name| name != path && name.starts_with(path))
    }

    /// Renames everything at and below `from`.
    fn relocate(&mut self, from: &Path, to: &Path) {
        let moved: Vec<PathBuf> = self.names.keys().filter(|name| name.starts_with(from)).cloned().collect();
        for name in moved {
            let object = self.names.remove(&name);
            let rest = name.strip_prefix(from).unwrap_or(&name);
            let new = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            self.names.extend(object.map(|object| (new, object)));
        }
    }

    /// All names on the path of `path`, and their objects.
    fn way(&self, path: &Path) -> Option<Touched> {
        let mut way = Touched::default();
        for part in path.ancestors().filter(|part| !part.as_os_str().is_empty()) {
            way.names.insert(self.name(part)?);
            way.objects.insert(self.at(part)?);
        }
        Some(way)
    }

    /// Applies `act`, the `n`-th. `None` if it is not possible here.
    pub(crate) fn apply(&mut self, act: &Act, n: usize) -> Option<Touched> {
        match act {
            Act::Create(path, text) | Act::Unnamed(path, text) => {
                let thing = Thing::File { text: text.clone(), synced: 0 };
                self.add(path, MADE + n, Node::new(thing, 0o640))
            }
            Act::Mkdir(path, mode) => self.add(path, MADE + n, Node::new(Thing::Dir, *mode)),
            Act::Symlink(path, target) => {
                self.add(path, MADE + n, Node::new(Thing::Link(target.clone()), 0o777))
            }
            Act::Fifo(path) => self.add(path, MADE + n, Node::new(Thing::Fifo, 0o640)),
            Act::Note(path, value) => self.dress(path, |node| node.note = Some(value.clone())),
            Act::Append(path, more) => self.write(path, |text, _| text.push_str(more)),
            Act::Truncate(path, size) => self.write(path, |text, synced| {
                text.truncate(*size);
                *synced = (*synced).min(*size);
            }),
            Act::Chmod(path, mode) => self.dress(path, |node| node.mode = *mode),
            Act::Chown(path, uid) => self.dress(path, |node| node.owner = *uid),
            Act::Grant(path, user) => self.dress(path, |node| node.granted = Some(*user)),
            Act::Synced(path, more) => {
                self.write(path, |text, synced| {
                    text.push_str(more);
                    *synced = text.len();
                })?;
                self.way(path)
            }
            Act::Remove(path) => self.remove(path, false),
            Act::Rmdir(path) => self.remove(path, true),
            Act::Link(from, to) => {
                let object = self.at(from)?;
                let name = self.name(to)?;
                self.names.insert(to.clone(), object);
                Some(Touched { names: [name].into(), objects: [object].into(), ..Touched::default() })
            }
            Act::Rename(from, to) => self.rename(from, to),
            Act::Exchange(one, other) => self.exchange(one, other),
            Act::Look | Act::Join(_) | Act::Drain(_) => Some(Touched::default()),
            Act::Fsync(path) | Act::Fdatasync(path) | Act::Commit(path) => {
                let way = self.way(path)?;
                self.sync(self.at(path)?);
                Some(way)
            }
            Act::FsyncDir(path) => Some(Touched { all_of: [self.at(path)?].into(), ..self.way(path)? }),
            Act::Syncfs => {
                self.nodes
                    .keys()
                    .copied()
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|object| self.sync(object));
                Some(Touched { all: true, ..Touched::default() })
            }
        }
    }

    /// Removes a name. `None` if unlink, or rmdir, would refuse.
    fn remove(&mut self, path: &Path, dir: bool) -> Option<Touched> {
        if self.is_dir(self.at(path)?) != dir || self.has_entries(path) {
            return None;
        }
        self.take(path)
    }

    /// Changes the content of a file, and how much of it is on disk.
    fn write(&mut self, path: &Path, change: impl FnOnce(&mut String, &mut usize)) -> Option<Touched> {
        let object = self.at(path)?;
        let Thing::File { text, synced } = &mut self.nodes.get_mut(&object)?.thing else { return None };
        change(text, synced);
        Some(Touched { objects: [object].into(), ..Touched::default() })
    }

    fn dress(&mut self, path: &Path, change: impl FnOnce(&mut Node)) -> Option<Touched> {
        let object = self.at(path)?;
        change(self.nodes.get_mut(&object)?);
        Some(Touched { objects: [object].into(), ..Touched::default() })
    }

    fn sync(&mut self, object: Object) {
        if let Some(Node { thing: Thing::File { text, synced }, .. }) = self.nodes.get_mut(&object) {
            *synced = text.len();
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Option<Touched> {
        let object = self.at(from)?;
        let (old, new) = (self.name(from)?, self.name(to)?);
        let mut touched =
            Touched { names: [old, new].into(), objects: [object].into(), ..Touched::default() };
        if let Some(target) = self.at(to) {
            if self.is_dir(target) != self.is_dir(object) || self.has_entries(to) {
                return None;
            }
            self.names.remove(to);
            touched.objects.insert(target);
        }
        self.relocate(from, to);
        Some(touched)
    }

    fn exchange(&mut self, one: &Path, other: &Path) -> Option<Touched> {
        let objects = [self.at(one)?, self.at(other)?];
        let names = [self.name(one)?, self.name(other)?];
        let aside = Path::new("\u{1}aside");
        self.relocate(one, aside);
        self.relocate(other, one);
        self.relocate(aside, other);
        Some(Touched { names: names.into(), objects: objects.into(), ..Touched::default() })
    }
}

/// Progress of the operations at the power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Progress {
    /// Number of operations begun.
    pub(crate) started: usize,
    /// Number of operations answered.
    pub(crate) answered: usize,
}

/// All allowed trees. Any begun operation of `acts` may be done. Those must be done that were synced, that are durable
/// by their answer, or that were answered if (`whole`) no branch lost anything. None is done without those it depends
/// on.
pub(crate) fn allowed(
    given: &Tree,
    acts: &[Act],
    progress: Progress,
    whole: bool,
    durable: &[usize],
) -> Vec<Tree> {
    let Progress { started, answered } = progress;
    let must = musts(given, &acts[..answered], whole, durable);
    let mut trees: Vec<Tree> = Vec::new();
    for some in 0..1_u32 << started {
        let done = |n: usize| some >> n & 1 == 1;
        if must.iter().any(|n| !done(*n)) {
            continue;
        }
        let mut tree = given.clone();
        let fits = (0..started).filter(|n| done(*n)).all(|n| tree.apply(&acts[n], n).is_some());
        if fits && !trees.contains(&tree) {
            trees.push(tree);
        }
    }
    trees
}

/// Whether the first operation is done in the tree, of those allowed for `started`, that is the one. `None` if none is.
pub(crate) fn first_is_done(
    given: &Tree,
    acts: &[Act],
    started: usize,
    is_it: impl Fn(&Tree) -> bool,
) -> Option<bool> {
    let some = (0..1_u32 << started).find(|some| {
        let mut tree = given.clone();
        let mut acts = acts.iter().enumerate().filter(|(n, _)| some >> n & 1 == 1);
        acts.all(|(n, act)| tree.apply(act, n).is_some()) && is_it(&tree)
    });
    some.map(|some| some & 1 == 1)
}

/// True if the first operation must be done, because it was synced or is durable by its answer.
pub(crate) fn is_first_synced(given: &Tree, acts: &[Act], answered: usize, durable: &[usize]) -> bool {
    musts(given, &acts[..answered], false, durable).contains(&0)
}

/// True if several changes of the name `path`, or of a parent, were not all synced. On different branches their order
/// is not guaranteed: the removed object may be back together with its replacement.
pub(crate) fn is_loose(
    given: &Tree,
    acts: &[Act],
    progress: Progress,
    durable: &[usize],
    path: &Path,
) -> bool {
    let must = musts(given, &acts[..progress.answered], false, durable);
    let changes = |n: &usize| acts[*n].paths().iter().any(|changed| path.starts_with(changed));
    let all: Vec<usize> = (0..progress.started).filter(changes).collect();
    all.len() > 1 && all.iter().any(|n| !must.contains(n))
}

/// True if every change of attributes that was begun must be done: all copies of a directory have it then.
pub(crate) fn are_attributes_done(
    given: &Tree,
    acts: &[Act],
    (progress, whole): (Progress, Option<Progress>),
    durable: &[usize],
) -> bool {
    let must = musts(given, &acts[..progress.answered], false, durable);
    let answered = whole.map_or(0, |whole| whole.answered);
    (0..progress.started).filter(|n| acts[*n].sets_attributes()).all(|n| n < answered || must.contains(&n))
}

/// Operations, all of them answered, that must be done.
fn musts(given: &Tree, answered: &[Act], whole: bool, durable: &[usize]) -> BTreeSet<usize> {
    if whole {
        return (0..answered.len()).collect();
    }
    let mut tree = given.clone();
    let touched: Vec<Touched> =
        answered.iter().enumerate().map(|(n, act)| tree.apply(act, n).unwrap_or_default()).collect();
    let mut must: BTreeSet<usize> = durable.iter().copied().filter(|n| *n < answered.len()).collect();
    for n in (0..answered.len()).filter(|n| answered[*n].is_sync()) {
        must.insert(n);
        must.extend(
            (0..n).filter(|earlier| !answered[*earlier].is_sync() && touched[n].reaches(&touched[*earlier])),
        );
    }
    must
}
