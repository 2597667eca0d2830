//! The model: a simple tree with Linux's result for every step.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use crate::act::Step;

/// Result of a step: the sorted names if it lists any.
pub(crate) type Told = Result<Vec<PathBuf>, Errno>;

/// A whole tree as seen by programs.
pub(crate) type Seen = BTreeMap<PathBuf, Node>;

/// Extended attributes: names and values.
pub(crate) type Xattrs = BTreeMap<CString, Vec<u8>>;

/// Object under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Directory { mode: u32, xattrs: Xattrs },
    File { mode: u32, xattrs: Xattrs, links: u64, bytes: Vec<u8> },
    Symlink { target: PathBuf, links: u64 },
}

/// Object of a name, by number, so that hard links share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Is {
    kind: Kind,
    number: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    Symlink,
}

/// Attributes of an object.
#[derive(Clone, Debug, Default)]
struct Object {
    mode: u32,
    xattrs: Xattrs,
    bytes: Vec<u8>,
}

/// Names with their objects; objects by number.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    names: BTreeMap<PathBuf, Is>,
    objects: Vec<Object>,
}

/// Target of every symlink of the model, which does not exist.
pub(crate) const NOWHERE: &str = "no/where";

/// Length of the data in `Step::Write` and `Step::Append`.
pub(crate) const SPAN: usize = 300;

/// Length of a value that `Step::SetXattr` sets.
pub(crate) const VALUE: usize = 20;

/// Modes of new objects.
pub(crate) const FILE_MODE: u32 = 0o644;
pub(crate) const DIR_MODE: u32 = 0o755;

impl Tree {
    /// Every name.
    pub(crate) fn entries(&self) -> Vec<PathBuf> {
        self.names.keys().cloned().collect()
    }

    /// The root and every directory.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        std::iter::once(PathBuf::new()).chain(self.of_kind(Kind::Directory)).collect()
    }

    /// Every name of a regular file.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.of_kind(Kind::File).collect()
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = PathBuf> {
        self.names.iter().filter(move |(_, is)| is.kind == kind).map(|(path, _)| path.clone())
    }

    /// The tree as a walk finds it.
    pub(crate) fn seen(&self) -> Seen {
        self.names.iter().map(|(path, is)| (path.clone(), self.shown(*is))).collect()
    }

    fn shown(&self, is: Is) -> Node {
        let Object { mode, xattrs, bytes } = self.objects[is.number].clone();
        let links = self.names.values().map(|other| u64::from(other.number == is.number)).sum();
        match is.kind {
            Kind::Directory => Node::Directory { mode, xattrs },
            Kind::File => Node::File { mode, xattrs, links, bytes },
            Kind::Symlink => Node::Symlink { target: NOWHERE.into(), links },
        }
    }

    /// Runs a step.
    pub(crate) fn take(&mut self, step: &Step) -> Told {
        if let Step::List(path, _) = step {
            return self.children(path);
        }
        self.change(step).map(|()| Vec::new())
    }

    fn change(&mut self, step: &Step) -> Result<(), Errno> {
        match step {
            Step::Create(path) => self.put_new(path, Kind::File, FILE_MODE)?,
            Step::Mkdir(path) => self.put_new(path, Kind::Directory, DIR_MODE)?,
            Step::Symlink(path) => self.put_new(path, Kind::Symlink, 0)?,
            Step::Link(from, to) => {
                let is = self.get(from)?;
                self.vacant(to)?;
                if is.kind == Kind::Directory {
                    return Err(Errno::PERM);
                }
                self.names.insert(to.clone(), is);
            }
            Step::Write(path, offset, byte) => {
                let start = usize::try_from(*offset).unwrap();
                write(self.content(path)?, start, *byte);
            }
            Step::Append(path, byte) => {
                let bytes = self.content(path)?;
                write(bytes, bytes.len(), *byte);
            }
            Step::Truncate(path, size) => self.content(path)?.resize(usize::try_from(*size).unwrap(), 0),
            Step::Copy(from, to) => {
                let bytes = self.content(from)?.clone();
                let same = self.get(from)? == self.get(to)?;
                if same && !bytes.is_empty() {
                    return Err(Errno::INVAL);
                }
                let target = self.content(to)?;
                target.resize(target.len().max(bytes.len()), 0);
                target[..bytes.len()].copy_from_slice(&bytes);
            }
            Step::Rename(from, to, flags) => return self.rename(from, to, *flags),
            Step::Unlink(path) => match self.get(path)?.kind {
                Kind::Directory => return Err(Errno::ISDIR),
                Kind::File | Kind::Symlink => drop(self.names.remove(path)),
            },
            Step::Rmdir(path) => match self.get(path)?.kind {
                Kind::Directory if self.is_empty(path) => drop(self.names.remove(path)),
                Kind::Directory => return Err(Errno::NOTEMPTY),
                Kind::File | Kind::Symlink => return Err(Errno::NOTDIR),
            },
            Step::Chmod(path, mode) => self.followed(path)?.mode = *mode,
            Step::SetXattr(path, name, byte) => {
                self.followed(path)?.xattrs.insert((*name).to_owned(), vec![*byte; VALUE]);
            }
            Step::RemoveXattr(path, name) => {
                self.followed(path)?.xattrs.remove(*name as &CStr).ok_or(Errno::NODATA)?;
            }
            Step::List(..) | Step::Crash | Step::Remount => {}
        }
        Ok(())
    }

    /// With the kernel's checks in their order.
    fn rename(&mut self, from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
        let moved = self.get(from)?;
        let there = self.names.get(to).copied();
        if flags == RenameFlags::NOREPLACE && there.is_some() {
            return Err(Errno::EXIST);
        }
        if flags == RenameFlags::EXCHANGE {
            there.ok_or(Errno::NOENT)?;
        }
        if to != from && to.starts_with(from) {
            return Err(Errno::INVAL);
        }
        if to != from && from.starts_with(to) {
            return Err(if flags == RenameFlags::EXCHANGE { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        // Two names of one object: nothing happens.
        if there.is_some_and(|there| there.number == moved.number) {
            return Ok(());
        }
        if flags == RenameFlags::EXCHANGE {
            let (a, b) = (self.cut(from), self.cut(to));
            self.paste(a, to);
            self.paste(b, from);
            return Ok(());
        }
        match (moved.kind, there.map(|there| there.kind)) {
            (Kind::Directory, Some(Kind::Directory)) if !self.is_empty(to) => return Err(Errno::NOTEMPTY),
            (Kind::Directory, Some(Kind::File | Kind::Symlink)) => return Err(Errno::NOTDIR),
            (Kind::File | Kind::Symlink, Some(Kind::Directory)) => return Err(Errno::ISDIR),
            _ => {}
        }
        let moved = self.cut(from);
        self.names.remove(to);
        self.paste(moved, to);
        Ok(())
    }

    /// Removes and returns the objects at and below `path`, with their paths from there.
    fn cut(&mut self, path: &Path) -> Vec<(PathBuf, Is)> {
        let taken = self.names.extract_if(.., |other, _| other.starts_with(path));
        taken.map(|(other, is)| (other.strip_prefix(path).unwrap().to_owned(), is)).collect()
    }

    fn paste(&mut self, what: Vec<(PathBuf, Is)>, path: &Path) {
        for (rest, is) in what {
            // `join` with an empty rest would add a slash.
            let path = if rest.as_os_str().is_empty() { path.to_owned() } else { path.join(rest) };
            self.names.insert(path, is);
        }
    }

    fn get(&self, path: &Path) -> Result<Is, Errno> {
        self.names.get(path).copied().ok_or(Errno::NOENT)
    }

    /// Target of a path: symlinks of the model are dangling.
    fn followed(&mut self, path: &Path) -> Result<&mut Object, Errno> {
        let is = self.get(path)?;
        if is.kind == Kind::Symlink { Err(Errno::NOENT) } else { Ok(&mut self.objects[is.number]) }
    }

    fn content(&mut self, path: &Path) -> Result<&mut Vec<u8>, Errno> {
        let is = self.get(path)?;
        match is.kind {
            Kind::File => Ok(&mut self.objects[is.number].bytes),
            Kind::Directory => Err(Errno::ISDIR),
            Kind::Symlink => Err(Errno::NOENT),
        }
    }

    fn vacant(&self, path: &Path) -> Result<(), Errno> {
        if self.names.contains_key(path) { Err(Errno::EXIST) } else { Ok(()) }
    }

    fn put_new(&mut self, path: &Path, kind: Kind, mode: u32) -> Result<(), Errno> {
        self.vacant(path)?;
        let number = self.objects.len();
        self.objects.push(Object { mode, ..Object::default() });
        self.names.insert(path.to_owned(), Is { kind, number });
        Ok(())
    }

    fn is_empty(&self, dir: &Path) -> bool {
        !self.names.keys().any(|path| path != dir && path.starts_with(dir))
    }

    fn children(&self, dir: &Path) -> Told {
        let own = self.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(own.map(|path| path.file_name().unwrap().into()).collect())
    }
}

fn write(bytes: &mut Vec<u8>, start: usize, byte: u8) {
    bytes.resize(bytes.len().max(start + SPAN), 0);
    bytes[start..start + SPAN].fill(byte);
}
