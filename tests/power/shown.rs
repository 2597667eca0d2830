//! The tree that a pool shows, and the content of its branches.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fsstack_pool::Ino;
use fsstack_sys::{Errno, Kind, OFlags};
use rustix::fs::IFlags;

use crate::act::{ACL, NOTE, acl_for};
use crate::disk::PAGE;
use crate::engine::Engine;
use crate::model::{Node, Object, Thing, Tree};
use crate::plan::{BALLAST, OBJECT};

/// A name that the pool shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) ino: Ino,
    pub(crate) generation: u64,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    /// Number of names that it is said to have.
    pub(crate) links: u32,
    /// Its ACL, as the kernel gives it; empty if it has none.
    pub(crate) acl: Vec<u8>,
    /// Its attribute [`NOTE`].
    pub(crate) note: Option<String>,
    /// Content of a file, target of a symlink; `None` for a directory.
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
    let stat = &entry.attr.stat;
    let ino = entry.ino;
    let text = match stat.kind() {
        Kind::Dir => None,
        Kind::File => Some(read(engine, ino)?),
        Kind::Symlink => Some(engine.readlink(path)?.display().to_string()),
        _ => Some(String::new()),
    };
    Ok(Shown {
        ino,
        generation: entry.generation,
        kind: stat.kind(),
        mode: stat.mode & 0o7777,
        owner: (stat.uid, stat.gid),
        links: stat.nlink,
        acl: attribute(engine, ino, ACL).unwrap_or_default(),
        note: attribute(engine, ino, NOTE).map(|value| String::from_utf8_lossy(&value).into_owned()),
        text,
        object: object(engine, ino),
    })
}

fn attribute(engine: &Engine, ino: Ino, name: &CStr) -> Option<Vec<u8>> {
    let mut value = vec![0; 128];
    let len = engine.union.getxattr(ino, name, fsstack_engine::Caller::DAEMON, &mut value).ok()?;
    value.truncate(len);
    Some(value)
}

/// The content of a file, by its number.
pub(crate) fn read(engine: &Engine, ino: Ino) -> Result<String, Errno> {
    let opened =
        engine.union.open(ino, OFlags::RDONLY, fsstack_engine::Caller::DAEMON).map_err(|e| e.errno())?;
    let mut bytes = Vec::new();
    let mut part = [0; 32 << 10];
    let read = loop {
        match engine.union.read(opened.handle, bytes.len() as u64, &mut part) {
            Ok(0) => break Ok(()),
            Ok(read) => bytes.extend_from_slice(&part[..read]),
            Err(error) => break Err(error.errno()),
        }
    };
    engine.union.release(opened.handle);
    read.map(|()| String::from_utf8_lossy(&bytes).into_owned())
}

/// The initial object that an inode claims to be.
pub(crate) fn object(engine: &Engine, ino: Ino) -> Option<Object> {
    number(&attribute(engine, ino, OBJECT)?)
}

fn number(value: &[u8]) -> Option<Object> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// True if a name shows `node`, the object `object`.
pub(crate) fn is(shown: &Shown, object: Object, node: &Node) -> bool {
    let claimed = (object < crate::model::MADE).then_some(object);
    let content = match (&node.thing, shown.kind, &shown.text) {
        (Thing::Dir, Kind::Dir, None) | (Thing::Fifo, Kind::Fifo, _) => true,
        (Thing::File { text, synced }, Kind::File, Some(shown)) => has_content(shown, text, *synced),
        (Thing::Link(target), Kind::Symlink, Some(shown)) => target == shown,
        _ => false,
    };
    let acl = node.granted.map(|user| acl_for(node.mode, user)).unwrap_or_default();
    let dress = shown.mode == node.mode
        && shown.owner == (node.owner, node.owner)
        && (&shown.acl, &shown.note) == (&acl, &node.note);
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
            && shown.chunks(PAGE).zip(text.chunks(PAGE)).all(|(shown, text)| {
                shown == &text[..shown.len()]
                    || *shown == [0; PAGE][..shown.len()]
                    || shown.iter().zip(text).all(|(one, other)| one == other || *one == 0)
            })
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
    if shown.owner != (0, 0) || !shown.acl.is_empty() || shown.note.is_some() {
        object = format!("{object} of {:?} (ACL {:?}, note {:?})", shown.owner, shown.acl, shown.note);
    }
    match &shown.text {
        Some(text) if shown.kind != Kind::File => {
            format!("a {:?}{object} {:o} {text:?}", shown.kind, shown.mode)
        }
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
    changed: SystemTime,
    pub(crate) attributes: Attributes,
}

/// ACLs, note and flags of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    values: Vec<Option<Vec<u8>>>,
    flags: u32,
}

impl Attributes {
    fn of(dir: &Path) -> Self {
        let value = |name: &CStr| {
            let mut value = vec![0; 128];
            let len = rustix::fs::lgetxattr(dir, name, &mut value[..]).ok()?;
            value.truncate(len);
            Some(value)
        };
        let flags = rustix::fs::ioctl_getflags(fs::File::open(dir).unwrap()).unwrap();
        // How the file system stores a directory is its own matter.
        let flags = flags.intersection(IFlags::NODUMP | IFlags::NOATIME | IFlags::APPEND | IFlags::IMMUTABLE);
        Self { values: [ACL, c"system.posix_acl_default", NOTE].map(value).to_vec(), flags: flags.bits() }
    }
}

/// Directories with a copy whose owner or mode is not that of the first, and the time of the copies' last change.
pub(crate) fn unlike(roots: &[PathBuf]) -> BTreeMap<PathBuf, SystemTime> {
    let mut first: BTreeMap<PathBuf, OnBranch> = BTreeMap::new();
    let mut unlike = BTreeMap::new();
    for (path, copy) in roots.iter().flat_map(|root| on_branch(root).0).filter(|(_, copy)| copy.is_dir) {
        match first.get(&path) {
            Some(known) if (known.mode, known.owner) != (copy.mode, copy.owner) => {
                let last = unlike.entry(path).or_insert(known.changed);
                *last = copy.changed.max(*last);
            }
            Some(_) => {}
            None => drop(first.insert(path, copy)),
        }
    }
    unlike
}

/// Log lines of this thread in `work`.
///
/// The subscriber is the program's: with one a thread, the first event of a kind on a thread that has none turns that kind off
/// for all, as `tracing` keeps the interest in a kind of events once (its `callsite::Rebuilder::JustOne`).
pub(crate) fn logged(work: impl FnOnce()) -> String {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Line).finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
    LOG.set(Some(Vec::new()));
    work();
    String::from_utf8_lossy(&LOG.take().unwrap_or_default()).into_owned()
}

thread_local! {
    /// Log lines of this thread, while [`logged`] works.
    static LOG: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Writer of a log line.
struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.iter_mut().for_each(|log| log.extend_from_slice(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_event_that_comes_first_on_another_thread_is_logged() {
    let event = || tracing::warn!("told");
    let log = logged(|| {
        std::thread::scope(|scope| drop(scope.spawn(event)));
        event();
    });
    assert_eq!(log.matches("told").count(), 1, "{log}");
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
            let mut value = [0; 16];
            let len = rustix::fs::lgetxattr(&path, OBJECT, &mut value[..]);
            let object = len.ok().and_then(|len| number(&value[..len]));
            let (mode, owner, is_dir) = (meta.mode() & 0o7777, (meta.uid(), meta.gid()), meta.is_dir());
            let attributes = if is_dir { Attributes::of(&path) } else { Attributes::default() };
            let changed = UNIX_EPOCH
                + Duration::new(meta.ctime().cast_unsigned(), meta.ctime_nsec().try_into().unwrap());
            all.insert(name, OnBranch { mode, owner, is_dir, object, changed, attributes });
            if meta.is_dir() {
                waiting.push(path);
            }
        }
    }
    (all, root.join(FOLDER).exists())
}
