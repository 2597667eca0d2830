//! The tree that a pool shows, and the content of its branches.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fsstack_pool::Ino;
use fsstack_sys::{Errno, OFlags};

use crate::act::{ACL, user_of};
use crate::engine::Engine;
use crate::model::{Node, Object, Thing, Tree};
use crate::plan::{BALLAST, OBJECT};

/// A name that the pool shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) ino: Ino,
    pub(crate) generation: u64,
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    /// Number of names that it is said to have.
    pub(crate) links: u32,
    /// The user in its ACL.
    pub(crate) granted: Option<u32>,
    /// `None` for a directory.
    pub(crate) text: Option<String>,
    /// The initial object that it claims to be.
    pub(crate) object: Option<Object>,
}

/// The hidden folder on a branch.
pub(crate) const FOLDER: &str = ".fsstack.moving";

/// Everything that the pool shows.
pub(crate) fn shown(engine: &Engine) -> Result<BTreeMap<PathBuf, Shown>, String> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(dir) = waiting.pop() {
        let names =
            engine.list(&dir, usize::MAX).map_err(|e| format!("listing of {}: {e}", dir.display()))?;
        for path in names.into_iter().map(|name| dir.join(name)).filter(|path| path != Path::new(BALLAST)) {
            let name = look(engine, &path).map_err(|e| format!("{}: {e}", path.display()))?;
            if name.text.is_none() {
                waiting.push(path.clone());
            }
            if all.insert(path.clone(), name).is_some() {
                return Err(format!("{} is listed twice", path.display()));
            }
        }
    }
    Ok(all)
}

fn look(engine: &Engine, path: &Path) -> Result<Shown, Errno> {
    let entry = engine.find(path)?;
    let text = if entry.attr.stat.is_dir() { None } else { Some(read(engine, entry.ino)?) };
    let (ino, generation, mode) = (entry.ino, entry.generation, entry.attr.stat.mode & 0o7777);
    let mut list = [0; 64];
    let len = engine.union.getxattr(ino, ACL, fsstack_engine::Caller::DAEMON, &mut list).unwrap_or(0);
    let (owner, granted) = (entry.attr.stat.uid, user_of(&list[..len]));
    let links = entry.attr.stat.nlink;
    Ok(Shown { ino, generation, mode, owner, links, granted, text, object: object(engine, entry.ino) })
}

/// The content of a file, by its number.
pub(crate) fn read(engine: &Engine, ino: Ino) -> Result<String, Errno> {
    let opened =
        engine.union.open(ino, OFlags::RDONLY, fsstack_engine::Caller::DAEMON).map_err(|e| e.errno())?;
    let mut bytes = vec![0; 1 << 20];
    let read = engine.union.read(opened.handle, 0, &mut bytes).map_err(|e| e.errno());
    engine.union.release(opened.handle);
    bytes.truncate(read?);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The initial object that an inode claims to be.
pub(crate) fn object(engine: &Engine, ino: Ino) -> Option<Object> {
    number(|into| engine.union.getxattr(ino, OBJECT, fsstack_engine::Caller::DAEMON, into).ok())
}

fn number(get: impl Fn(&mut [u8]) -> Option<usize>) -> Option<Object> {
    let mut value = [0; 16];
    let len = get(&mut value)?;
    std::str::from_utf8(&value[..len]).ok()?.parse().ok()
}

/// True if a name shows `node`, the object `object`.
pub(crate) fn is(shown: &Shown, object: Object, node: &Node) -> bool {
    let claimed = (object < crate::model::MADE).then_some(object);
    let content = match (&node.thing, &shown.text) {
        (Thing::Dir, None) => true,
        (Thing::File { text, synced }, Some(shown)) => has_content(shown, text, *synced),
        (Thing::Dir, Some(_)) | (Thing::File { .. }, None) => false,
    };
    let dress = (shown.mode, shown.owner, shown.granted) == (node.mode, node.owner, node.granted);
    content && dress && shown.object == claimed
}

/// Checks content: synced bytes must exist; any part of the rest may, and missing parts may be zeros.
pub(crate) fn has_content(shown: &str, text: &str, synced: usize) -> bool {
    let (shown, text) = (shown.as_bytes(), text.as_bytes());
    // The common case first, because comparing bytes is slow.
    shown == text
        || shown.len() >= synced
            && shown.len() <= text.len()
            && shown[..synced] == text[..synced]
            && shown.iter().zip(text).all(|(one, other)| one == other || *one == 0)
}

/// Differences between this tree and `tree`.
pub(crate) fn differences(tree: &Tree, shown: &BTreeMap<PathBuf, Shown>) -> Vec<String> {
    let missing = tree.names.keys().filter(|path| !shown.contains_key(*path));
    let mut all: Vec<String> = missing.map(|path| format!("{} is missing", path.display())).collect();
    for (path, name) in shown {
        match tree.names.get(path) {
            None => all.push(format!("{} is there", path.display())),
            Some(object) if !is(name, *object, &tree.nodes[object]) => {
                all.push(format!("{} is {}", path.display(), described(name)));
            }
            Some(_) => {}
        }
    }
    all
}

/// A one-word description.
pub(crate) fn described(shown: &Shown) -> String {
    let mut object = shown.object.map(|object| format!(" #{object}")).unwrap_or_default();
    if shown.owner != 0 || shown.granted.is_some() {
        object = format!("{object} of {} (ACL for {:?})", shown.owner, shown.granted);
    }
    match &shown.text {
        None => format!("a directory{object} {:o}", shown.mode),
        Some(text) if text.len() > 40 => format!("a file{object} {:o} of {} bytes", shown.mode, text.len()),
        Some(text) => format!("a file{object} {:o} {text:?}", shown.mode),
    }
}

/// A tree in one line.
pub(crate) fn line(shown: &BTreeMap<PathBuf, Shown>) -> String {
    let names = shown.iter().map(|(path, name)| format!("{} is {}", path.display(), described(name)));
    names.collect::<Vec<_>>().join("; ")
}

/// A name on a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnBranch {
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) is_dir: bool,
    pub(crate) object: Option<Object>,
}

/// The names on a branch, and whether its hidden folder is there.
pub(crate) fn on_branch(root: &Path) -> (BTreeMap<PathBuf, OnBranch>, bool) {
    let mut all = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let meta = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(root).unwrap().to_owned();
            if name == Path::new(FOLDER) || name == Path::new(BALLAST) {
                continue;
            }
            let object = number(|into| rustix::fs::lgetxattr(&path, OBJECT as &CStr, into).ok());
            let (mode, owner) = (meta.mode() & 0o7777, (meta.uid(), meta.gid()));
            all.insert(name, OnBranch { mode, owner, is_dir: meta.is_dir(), object });
            if meta.is_dir() {
                waiting.push(path);
            }
        }
    }
    (all, root.join(FOLDER).exists())
}
