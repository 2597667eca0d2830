//! Walks the branches side by side, in the order of names, depth first.
//!
//! A directory that is on several branches is read on all of them at once. Names of one directory a level are held in
//! memory, nothing else: the order of names is also the cursor with which an interrupted walk goes on.

use super::compare::{self, DirTraits};
use super::output::CheckOutput;
use super::{OpenBranch, places};
use crate::command::Failed;
use fsstack_control::api::CheckKind;
use fsstack_pool::Printable;
use fsstack_sys::at::{self, Mounts};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::{Errno, Kind, OFlags, Stat};
use std::ffi::{CStr, CString};
use std::iter::Peekable;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::vec::IntoIter;

/// Bytes that are read of a directory at a time.
const BUFFER: usize = 64 << 10;

/// A name in one copy of a directory.
struct ListedName {
    name: CString,
    /// Index in [`Level::copies`].
    copy: usize,
    kind: Option<Kind>,
}

/// A copy of a directory.
struct DirCopy {
    /// Index of its branch.
    branch: usize,
    dir: OwnedFd,
}

/// A directory of the pool that is being walked.
struct Level {
    /// Length of its path.
    path: usize,
    copies: Vec<DirCopy>,
    names: Peekable<IntoIter<ListedName>>,
    /// Rest of the cursor: names before its first one are passed over.
    from: Vec<Vec<u8>>,
}

/// A walk of the branches.
pub(super) struct Walk<'a> {
    branches: &'a [OpenBranch],
    output: &'a mut CheckOutput,
    stop: &'a AtomicBool,
    /// Path in the pool of the name at hand.
    path: Vec<u8>,
    levels: Vec<Level>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(branches: &'a [OpenBranch], output: &'a mut CheckOutput, stop: &'a AtomicBool) -> Self {
        Self { branches, output, stop, path: Vec::new(), levels: Vec::new() }
    }

    /// Walks the directory `start`, from the path `from` on. Returns where it was interrupted.
    pub(super) fn run(&mut self, start: &[Vec<u8>], from: &[Vec<u8>]) -> Result<Option<String>, Failed> {
        let copies = self.reach(start)?;
        let from = from.strip_prefix(start).unwrap_or(&[]).to_vec();
        self.enter(copies, from)?;
        while let Some(level) = self.levels.last_mut() {
            self.path.truncate(level.path);
            let Some(first) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            let mut group = vec![first];
            while let Some(other) = level.names.next_if(|next| next.name == group[0].name) {
                group.push(other);
            }
            let mut deeper = Vec::new();
            if let [wanted, rest @ ..] = level.from.as_slice() {
                match group[0].name.to_bytes().cmp(wanted.as_slice()) {
                    std::cmp::Ordering::Less => continue,
                    std::cmp::Ordering::Equal => deeper = rest.to_vec(),
                    std::cmp::Ordering::Greater => {}
                }
                level.from.clear();
            }
            self.path.push(b'/');
            self.path.extend_from_slice(group[0].name.to_bytes());
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Some(self.cursor()));
            }
            let path = &self.path;
            self.output.passed(|| Printable(path).to_string());
            self.visit(&group, deeper)?;
        }
        Ok(None)
    }

    /// Opens the copies of the directory where the walk begins.
    fn reach(&mut self, start: &[Vec<u8>]) -> Result<Vec<DirCopy>, Failed> {
        let mut copies = Vec::new();
        for (index, OpenBranch { root, .. }) in self.branches.iter().enumerate() {
            let mut dir = at::open_dir(root.as_fd(), c".", Mounts::Stay);
            for name in start {
                let Ok(name) = CString::new(name.as_slice()) else { continue };
                dir = dir.and_then(|dir| at::open_dir(dir.as_fd(), &name, Mounts::Stay));
            }
            match dir {
                Ok(dir) => copies.push(DirCopy { branch: index, dir }),
                Err(error) if matches!(error.errno, Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => self.not_checked(index, &error)?,
            }
        }
        for name in start {
            self.path.push(b'/');
            self.path.extend_from_slice(name);
        }
        if copies.is_empty() && !start.is_empty() {
            return Err(Failed::Missing(format!("{}: no such directory on the branches", self.shown())));
        }
        Ok(copies)
    }

    /// Compares the copies of the directory at hand, and lists them.
    fn enter(&mut self, copies: Vec<DirCopy>, from: Vec<Vec<u8>>) -> Result<(), Failed> {
        self.compare_copies(&copies)?;
        let mut names = Vec::new();
        for (index, copy) in copies.iter().enumerate() {
            let listed = at::reopen_quietly(copy.dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)
                .and_then(|dir| list(dir, index, &mut names));
            if let Err(error) = listed {
                self.not_checked(copy.branch, &error)?;
            }
        }
        if self.path.is_empty() {
            names.retain(|listed| !places::is_hidden_folder(&listed.name));
        }
        names.sort_unstable_by(|a, b| (&a.name, a.copy).cmp(&(&b.name, b.copy)));
        let names = names.into_iter().peekable();
        self.levels.push(Level { path: self.path.len(), copies, names, from });
        Ok(())
    }

    fn compare_copies(&mut self, copies: &[DirCopy]) -> Result<(), Failed> {
        let [first, others @ ..] = copies else { return Ok(()) };
        if others.is_empty() {
            return Ok(());
        }
        for other in others {
            // A change through the pool reaches one copy after the other: only a second difference is reported.
            let differs = || {
                let (own, first) = (DirTraits::of(other.dir.as_fd())?, DirTraits::of(first.dir.as_fd())?);
                Ok(own.difference(&first))
            };
            let difference = match differs() {
                Ok(text) if !text.is_empty() => differs(),
                done => done,
            };
            match difference {
                Ok(text) if text.is_empty() => {}
                Ok(text) => {
                    let text = format!(
                        "its copy on {} differs from that on {}: {text}",
                        self.branch(other),
                        self.branch(first)
                    );
                    let remedy =
                        "set it anew through the pool (chown, chmod, setfacl, setfattr): all copies get it";
                    self.add(CheckKind::Differs, &text, remedy)?;
                }
                Err(error) => self.not_checked(other.branch, &error)?,
            }
        }
        Ok(())
    }

    /// Looks at one name of the pool on all branches that have it.
    fn visit(&mut self, group: &[ListedName], from: Vec<Vec<u8>>) -> Result<(), Failed> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        if let [ListedName { kind: Some(kind), .. }] = group
            && *kind != Kind::Dir
        {
            return Ok(());
        }
        let name = group[0].name.clone();
        let (mut present, mut failed) = (Vec::new(), Vec::new());
        for listed in group {
            let Some(copy) = level.copies.get(listed.copy) else { continue };
            match at::stat(copy.dir.as_fd(), &name) {
                Ok(stat) => present.push((listed.copy, stat)),
                Err(error) if error.errno == Errno::NOENT => {}
                Err(error) => failed.push((copy.branch, error)),
            }
        }
        for (branch, error) in failed {
            self.not_checked(branch, &error)?;
        }
        let Some(((first, stat), later)) = present.split_first() else { return Ok(()) };
        for (other, its) in later {
            if stat.is_dir() != its.is_dir() {
                let (first, other) = (self.of_level(*first), self.of_level(*other));
                let (shows, hides) =
                    if stat.is_dir() { ("directory", "file") } else { ("file", "directory") };
                let text = format!("a {shows} on {first} hides a {hides} on {other}");
                self.add(
                    CheckKind::OtherKind,
                    &text,
                    &format!("rename the {hides} on the branch to see both"),
                )?;
            } else if !stat.is_dir() {
                self.hidden(&name, (*first, stat), (*other, its))?;
            }
        }
        if stat.is_dir() { self.descend(&name, &present, from) } else { Ok(()) }
    }

    /// Tells of a file that another one hides.
    fn hidden(&mut self, name: &CStr, first: (usize, &Stat), other: (usize, &Stat)) -> Result<(), Failed> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let dir = |copy: usize| level.copies.get(copy).map(|copy| copy.dir.as_fd());
        let (Some(shows), Some(hides)) = (dir(first.0), dir(other.0)) else { return Ok(()) };
        let compared = compare::contents((shows, first.1), (hides, other.1), name);
        // A move under way has both copies for a moment.
        if gone(shows, name) || gone(hides, name) {
            return Ok(());
        }
        let (on, behind) = (self.of_level(first.0), self.of_level(other.0));
        let relation = match compared {
            Ok(relation) => relation.to_owned(),
            Err(error) => format!("not compared, {error}"),
        };
        let text = format!("the file on {on} hides one on {behind} ({relation})");
        self.add(CheckKind::Hidden, &text, "compare them, and rename or remove one on its branch")
    }

    fn descend(&mut self, name: &CStr, present: &[(usize, Stat)], from: Vec<Vec<u8>>) -> Result<(), Failed> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let (mut copies, mut failed) = (Vec::new(), Vec::new());
        for (copy, _) in present.iter().filter(|(_, stat)| stat.is_dir()) {
            let Some(DirCopy { branch, dir }) = level.copies.get(*copy) else { continue };
            match at::open_dir(dir.as_fd(), name, Mounts::Stay) {
                Ok(dir) => copies.push(DirCopy { branch: *branch, dir }),
                Err(error) if matches!(error.errno, Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => failed.push((*branch, error)),
            }
        }
        for (branch, error) in failed {
            self.not_checked(branch, &error)?;
        }
        if copies.is_empty() { Ok(()) } else { self.enter(copies, from) }
    }

    /// Where an interrupted walk goes on: the path at hand, or the nearest above it that can be typed as it is shown.
    fn cursor(&self) -> String {
        let mut path = String::new();
        for name in self.path.split(|byte| *byte == b'/').skip(1) {
            let shown = Printable(name).to_string();
            if shown.as_bytes() != name {
                break;
            }
            path.push('/');
            path.push_str(&shown);
        }
        if path.is_empty() { "/".to_owned() } else { path }
    }

    fn add(&mut self, kind: CheckKind, text: &str, remedy: &str) -> Result<(), Failed> {
        let path = self.shown();
        self.output.add(kind, &path, text, remedy)
    }

    fn not_checked(&mut self, branch: usize, error: &fsstack_sys::SysError) -> Result<(), Failed> {
        let branch = self.branches.get(branch).map_or("", |branch| branch.shown.as_str());
        let reason = match error.errno {
            Errno::XDEV => format!("branch {branch}: another file system is mounted there"),
            _ => format!("branch {branch}: {error}"),
        };
        let path = self.shown();
        self.output.not_checked(&path, &reason)
    }

    /// The path at hand in printable form.
    fn shown(&self) -> String {
        if self.path.is_empty() { "/".to_owned() } else { Printable(&self.path).to_string() }
    }

    fn branch(&self, copy: &DirCopy) -> &'a str {
        self.branches.get(copy.branch).map_or("", |branch| branch.shown.as_str())
    }

    /// The branch of a copy of the directory at hand.
    fn of_level(&self, copy: usize) -> &'a str {
        let copy = self.levels.last().and_then(|level| level.copies.get(copy));
        copy.map_or("", |copy| self.branch(copy))
    }
}

fn gone(dir: BorrowedFd<'_>, name: &CStr) -> bool {
    at::stat_by_name_now(dir, name).is_err_and(|error| error.errno == Errno::NOENT)
}

/// Adds the names in `dir`, which is copy number `copy`.
fn list(dir: OwnedFd, copy: usize, names: &mut Vec<ListedName>) -> fsstack_sys::Result<()> {
    let mut entries = Dirents::new(dir, BUFFER);
    while let Some(entry) = entries.next()? {
        if !matches!(entry.name.to_bytes(), b"." | b"..") {
            names.push(ListedName { name: entry.name.to_owned(), copy, kind: entry.kind });
        }
    }
    Ok(())
}
