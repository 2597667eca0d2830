//! A directory of one branch, read from its beginning to its end, for conclusions from missing entries.
//!
//! A branch that lacks a part lists what it has and ends as if that were all (`health/subvolumes.rs`). So the end is an end only if
//! the branch is whole then. (What programs list is read in the engine, from any position, with the same question.)

use std::ffi::{CStr, CString};
use std::os::fd::{BorrowedFd, OwnedFd};

use fsstack_sys::dirents::Dirents;
use fsstack_sys::{self as sys, Kind, OFlags};

use crate::branch::Branch;
use crate::error::Result;

/// Rest of a directory to read.
#[derive(Debug)]
pub struct Entries<'a> {
    branch: &'a Branch,
    left: Dirents,
}

/// One of its entries.
#[derive(Debug)]
pub struct FoundEntry {
    /// None: the file system does not list kinds.
    pub kind: Option<Kind>,
    /// The branch's inode number.
    pub ino: u64,
    /// Never `.` or `..`.
    pub name: CString,
}

impl<'a> Entries<'a> {
    /// Those of `fd`, open for reading on `branch`; about `buffer` bytes are asked for at a time.
    pub fn new(branch: &'a Branch, fd: OwnedFd, buffer: usize) -> Self {
        Self { branch, left: Dirents::new(fd, buffer) }
    }

    /// Those of a directory of `branch` that is open as a place.
    ///
    /// # Errors
    /// What the branch answered.
    pub fn of(branch: &'a Branch, dir: BorrowedFd<'_>) -> Result<Self> {
        let fd = branch.ask(|| sys::at::reopen_quietly(dir, OFlags::RDONLY | OFlags::DIRECTORY))?;
        Ok(Self::new(branch, fd, 32 << 10))
    }

    /// The next one, but for `.` and `..`. None: there are no more.
    ///
    /// # Errors
    /// What the branch answered, or that at the end a part of it was out of reach.
    pub fn next_entry(&mut self) -> Result<Option<FoundEntry>> {
        loop {
            let next = || {
                let entry = self.left.next()?;
                Ok(entry.map(|entry| FoundEntry {
                    kind: entry.kind,
                    ino: entry.ino,
                    name: entry.name.into(),
                }))
            };
            match self.branch.ask(next)? {
                Some(entry) if is_dot(&entry.name) => {}
                None => return self.branch.ask(|| self.branch.check_subvolumes()).map(|()| None),
                entry => return Ok(entry),
            }
        }
    }
}

/// Whether `name` is `.` or `..`.
pub fn is_dot(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}
