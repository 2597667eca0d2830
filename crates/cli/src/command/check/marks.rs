//! Marks with numbers, on directories' copies and on moved files: against their objects, and against the pool's index.

use fsstack_control::Client;
use fsstack_control::api::{HandleEnd, HandleOf, HandlesRequest};
use fsstack_identity::mark;
use fsstack_identity::number::Identity;
use fsstack_sys::at::{self, Mounts};
use fsstack_sys::xattr::On;
use fsstack_sys::{OFlags, Result};
use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Marks per request to the daemon: branches may be slow.
const AT_ONCE: usize = 20;

/// A marked object that the daemon is to find by its number.
struct Marked {
    id: Identity,
    which: &'static CStr,
    object: OwnedFd,
    path: Vec<u8>,
    branch: usize,
}

impl Marked {
    /// True if it is still what it was, and not removed.
    fn is_there(&self) -> bool {
        let stat = at::stat_now(self.object.as_fd());
        stat.is_ok_and(|stat| {
            let marked = mark::read(On::Fd(self.object.as_fd()), self.which, stat.ino);
            stat.nlink > 0 && marked.is_ok_and(|id| id == Some(self.id))
        })
    }
}

/// An object that the daemon does not find by its number: its path, and its branch.
pub(super) type NotFound = (Vec<u8>, usize);

/// Relation of a mark to the object that bears it.
pub(super) enum MarkOf {
    None,
    /// It was put on another object.
    Another(&'static CStr),
    Own,
}

/// Marks that were met.
pub(super) struct Marks {
    /// None where the daemon cannot be asked.
    client: Option<Client>,
    /// Why the daemon was not asked about a mark, until that is reported.
    unasked: Option<String>,
    /// Numbers of directories' copies are in the index of an exported pool only.
    exported: bool,
    waiting: Vec<Marked>,
    /// A mark was met that the index is to have.
    met: bool,
}

impl Marks {
    pub(super) fn new(client: Client) -> Self {
        let status = client.status().map_err(|error| error.to_string());
        let index = status.and_then(|status| match status.index.starts_with("complete") {
            true => Ok(()),
            false => Err(format!("it is {}", status.index)),
        });
        let exported = client.keys().is_ok_and(|keys| keys.value("nfs-export") == Some("true"));
        let (client, unasked) = match index {
            Ok(()) => (Some(client), None),
            Err(reason) => (None, Some(reason)),
        };
        Self { client, unasked, exported, waiting: Vec::new(), met: false }
    }

    /// Why marks that were met are not compared with the index, once.
    pub(super) fn unasked(&mut self) -> Option<String> {
        let reason = self.unasked.take_if(|_| self.met)?;
        Some(format!("the index: {reason}"))
    }

    /// Reads the mark of `name` in `dir`, a directory or a file.
    pub(super) fn meet(
        &mut self,
        (branch, dir): (usize, BorrowedFd<'_>),
        name: &CStr,
        is_dir: bool,
        path: &[u8],
    ) -> Result<MarkOf> {
        let which = if is_dir { mark::DIR } else { mark::FILE };
        if !mark::is_there(On::Name(dir, name), which)? {
            return Ok(MarkOf::None);
        }
        let object = at::open(dir, name, OFlags::PATH, 0, Mounts::Cross)?;
        let own = at::stat_fd(object.as_fd())?.ino;
        match mark::read(On::Fd(object.as_fd()), which, own)? {
            Some(id) => {
                if self.exported || !is_dir {
                    self.met = true;
                    if self.client.is_some() {
                        self.waiting.push(Marked { id, which, object, path: path.to_vec(), branch });
                    }
                }
                Ok(MarkOf::Own)
            }
            // Removed since.
            None if !mark::is_there(On::Fd(object.as_fd()), which)? => Ok(MarkOf::None),
            None => Ok(MarkOf::Another(which)),
        }
    }

    /// Asks the daemon about the marks that were met, if they are enough for a request or `all` are wanted.
    pub(super) fn not_found(&mut self, all: bool) -> Vec<NotFound> {
        let Some(client) = self.client.as_ref().filter(|_| all || self.waiting.len() >= AT_ONCE) else {
            return Vec::new();
        };
        let mut lost = Vec::new();
        for some in self.waiting.chunks(AT_ONCE) {
            let of = |one: &Marked| HandleOf { number: one.id.ino.0, generation: one.id.generation };
            let request = HandlesRequest { handles: some.iter().map(of).collect(), indexed: 0 };
            let result = match client.handles(&request) {
                Ok(result) => result,
                Err(error) => {
                    (self.client, self.unasked) = (None, Some(error.to_string()));
                    break;
                }
            };
            let stale = some.iter().zip(result.ends).filter(|(_, end)| *end == HandleEnd::Stale);
            lost.extend(
                stale.filter(|(one, _)| one.is_there()).map(|(one, _)| (one.path.clone(), one.branch)),
            );
        }
        self.waiting.clear();
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_that_the_daemon_is_not_asked_about_are_told_of_once() {
        let unasked = Some("it is being completed, 3 objects".to_owned());
        let mut marks = Marks { client: None, unasked, exported: true, waiting: Vec::new(), met: false };
        assert_eq!(marks.unasked(), None, "there are none");
        marks.met = true;
        assert_eq!(marks.unasked().as_deref(), Some("the index: it is being completed, 3 objects"));
        assert_eq!(marks.unasked(), None);
    }
}
