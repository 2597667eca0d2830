//! The model: a tree small enough to be obviously right, with Linux's answers for every step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::act::{Step, Target};

/// What a step answers.
pub(crate) type Told = Result<(), Errno>;

/// A whole tree as it is seen from outside.
pub(crate) type Seen = BTreeMap<PathBuf, Node>;

/// What a name shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Directory,
    File { bytes: Vec<u8>, links: u64 },
    Symlink(PathBuf),
}

/// What a name is: files by number, so that hard links share one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Is {
    Directory,
    File(usize),
    Symlink,
}

/// Names and what they are; contents by number.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    names: BTreeMap<PathBuf, Is>,
    contents: Vec<Vec<u8>>,
}

/// Where every symlink of the model points: nowhere.
pub(crate) const NOWHERE: &str = "no/where";

/// What `Step::Write` writes: that many times the byte.
pub(crate) const SPAN: usize = 300;

impl Tree {
    /// Every name.
    pub(crate) fn entries(&self) -> Vec<PathBuf> {
        self.names.keys().cloned().collect()
    }

    /// The root and every directory.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let named = self.names.iter().filter(|(_, is)| **is == Is::Directory).map(|(path, _)| path.clone());
        std::iter::once(PathBuf::new()).chain(named).collect()
    }

    /// Every name of a regular file.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let files = self.names.iter().filter(|(_, is)| matches!(is, Is::File(_)));
        files.map(|(path, _)| path.clone()).collect()
    }

    /// The tree as a walk would find it.
    pub(crate) fn seen(&self) -> Seen {
        let shown = |is: &Is| match is {
            Is::Directory => Node::Directory,
            Is::Symlink => Node::Symlink(NOWHERE.into()),
            Is::File(n) => Node::File { bytes: self.contents[*n].clone(), links: self.links(*n) },
        };
        self.names.iter().map(|(path, is)| (path.clone(), shown(is))).collect()
    }

    /// Takes a step.
    pub(crate) fn take(&mut self, step: &Step) -> Told {
        match step {
            Step::Create(path) => {
                self.vacant(path)?;
                self.contents.push(Vec::new());
                self.put(path, Is::File(self.contents.len() - 1))
            }
            Step::Mkdir(path) => self.vacant(path).and_then(|()| self.put(path, Is::Directory)),
            Step::Symlink(path) => self.vacant(path).and_then(|()| self.put(path, Is::Symlink)),
            Step::Link(from, to) => {
                let is = self.get(from)?.clone();
                self.vacant(to)?;
                match is {
                    Is::Directory => Err(Errno::PERM),
                    // A symlink's own number of links is not modelled.
                    Is::Symlink => self.put(to, Is::Symlink),
                    Is::File(_) => self.put(to, is),
                }
            }
            Step::Write(path, offset, byte) => {
                let bytes = self.content(path)?;
                let start = usize::try_from(*offset).unwrap();
                bytes.resize(bytes.len().max(start + SPAN), 0);
                bytes[start..start + SPAN].fill(*byte);
                Ok(())
            }
            Step::Truncate(path, size) => {
                self.content(path)?.resize(usize::try_from(*size).unwrap(), 0);
                Ok(())
            }
            Step::Rename(from, to, target) => self.rename(from, to, *target),
            Step::Unlink(path) => match self.get(path)? {
                Is::Directory => Err(Errno::ISDIR),
                Is::File(_) | Is::Symlink => self.remove(path),
            },
            Step::Rmdir(path) => match self.get(path)? {
                Is::Directory if self.is_empty(path) => self.remove(path),
                Is::Directory => Err(Errno::NOTEMPTY),
                Is::File(_) | Is::Symlink => Err(Errno::NOTDIR),
            },
            Step::Crash => Ok(()),
        }
    }

    /// In the order in which the kernel asks.
    fn rename(&mut self, from: &Path, to: &Path, target: Target) -> Told {
        let moved = self.get(from)?.clone();
        let there = self.names.get(to).cloned();
        if target == Target::Nothing && there.is_some() {
            return Err(Errno::EXIST);
        }
        if to != from && to.starts_with(from) {
            return Err(Errno::INVAL);
        }
        if to != from && from.starts_with(to) {
            return Err(Errno::NOTEMPTY);
        }
        match (&moved, &there) {
            _ if from == to => return Ok(()),
            // Two names of one file: nothing happens.
            (Is::File(a), Some(Is::File(b))) if a == b => return Ok(()),
            (Is::Directory, Some(Is::Directory)) if !self.is_empty(to) => return Err(Errno::NOTEMPTY),
            (Is::Directory, Some(Is::File(_) | Is::Symlink)) => return Err(Errno::NOTDIR),
            (Is::File(_) | Is::Symlink, Some(Is::Directory)) => return Err(Errno::ISDIR),
            _ => {}
        }
        let taken: Vec<_> = self.names.extract_if(.., |path, _| path.starts_with(from)).collect();
        self.names.remove(to);
        for (path, is) in taken {
            // `join` of an empty rest would end in a slash.
            let rest = path.strip_prefix(from).unwrap();
            let path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            self.names.insert(path, is);
        }
        Ok(())
    }

    fn get(&self, path: &Path) -> Result<&Is, Errno> {
        self.names.get(path).ok_or(Errno::NOENT)
    }

    fn content(&mut self, path: &Path) -> Result<&mut Vec<u8>, Errno> {
        match *self.get(path)? {
            Is::File(n) => Ok(&mut self.contents[n]),
            Is::Directory => Err(Errno::ISDIR),
            Is::Symlink => Err(Errno::NOENT),
        }
    }

    fn vacant(&self, path: &Path) -> Told {
        if self.names.contains_key(path) { Err(Errno::EXIST) } else { Ok(()) }
    }

    fn put(&mut self, path: &Path, is: Is) -> Told {
        self.names.insert(path.to_owned(), is);
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> Told {
        self.names.remove(path);
        Ok(())
    }

    fn is_empty(&self, dir: &Path) -> bool {
        !self.names.keys().any(|path| path != dir && path.starts_with(dir))
    }

    fn links(&self, file: usize) -> u64 {
        self.names.values().map(|is| u64::from(*is == Is::File(file))).sum()
    }
}
