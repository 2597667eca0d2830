//! Checks whether handles lead to their objects.
//!
//! Handles are made from names in the upper directories, as a server makes them, and opened. The kernel resolves those
//! from memory if it knows the object. So the daemon resolves the same handles too, from their numbers alone, and some
//! of objects that only its index finds.

use crate::command::pool::Pool;
use crate::command::time_limit::unless_it_hangs;
use fsstack_control::api::{AwayBranch, HandleEnd, HandleOf, HandlesRequest, Level};
use fsstack_pool::Printable;
use fsstack_sys::handle::{FileHandle, name_to_handle, open_handle};
use fsstack_sys::{Errno, OFlags, SysError, at};
use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of names whose handles are tried.
const TRIED: usize = 200;
/// Maximum of those from one directory.
const OF_ONE: usize = 40;
/// Number of objects of the index that are tried.
const INDEXED: u16 = 200;
/// Handles per request to the daemon: branches may be slow.
const AT_ONCE: usize = 20;

/// Time limit for making handles of a sample: each one on an unresponsive branch takes a timeout.
const SAMPLE_HANDLES_TIMEOUT: Duration = Duration::from_secs(60);

/// Tries handles and reports the result.
pub(super) fn tried(pool: &Pool, mount_point: &Path, add: &mut impl FnMut(Level, &str, String)) {
    match pool.client().handles(&HandlesRequest { handles: Vec::new(), indexed: INDEXED }) {
        Ok(result) => {
            result.away.iter().for_each(|branch| away(pool, branch, add));
            let (ends, fault) = ends(pool, &result.indexed);
            of_index(&ends, add);
            fault.into_iter().for_each(|fault| add(Level::Fail, "found by the index", fault));
        }
        Err(error) => add(Level::Fail, "away", error.to_string()),
    }
    let asked = mount_point.to_owned();
    let sampled = unless_it_hangs(SAMPLE_HANDLES_TIMEOUT, move || {
        let mut sample = Sample::of(&asked)?;
        let filled = sample.fill();
        Ok((sample, filled))
    });
    match sampled {
        Some(Ok((sample, filled))) => {
            let names = sample.held.len();
            match filled {
                Ok(()) => add(
                    Level::Ok,
                    "handle",
                    format!("the kernel opens handles of the root and of {names} names"),
                ),
                Err(fault) => add(Level::Fail, "handle", fault),
            }
            of_names(pool, &sample, add);
        }
        Some(Err(fault)) => add(Level::Fail, "handle", fault),
        None => add(Level::Fail, "handle", format!("{}: does not answer", pool.shown())),
    }
}

/// Asks the daemon where handles lead. Returns the results, and the error that ended the requests early.
fn ends(pool: &Pool, handles: &[HandleOf]) -> (Vec<HandleEnd>, Option<String>) {
    let mut ends = Vec::new();
    for some in handles.chunks(AT_ONCE) {
        match pool.client().handles(&HandlesRequest { handles: some.to_vec(), indexed: 0 }) {
            Ok(result) => ends.extend(result.ends),
            Err(error) => return (ends, Some(error.to_string())),
        }
    }
    (ends, None)
}

/// Checks handles of names by the handles alone.
fn of_names(pool: &Pool, sample: &Sample, add: &mut impl FnMut(Level, &str, String)) {
    let handles: Vec<HandleOf> = sample.held.iter().map(|held| held.handle).collect();
    let (ends, fault) = ends(pool, &handles);
    let (mut found, mut not_tried) = (0, 0);
    for (held, end) in sample.held.iter().zip(ends) {
        match end {
            HandleEnd::Found => found += 1,
            HandleEnd::NotTried => not_tried += 1,
            // Removed meanwhile, or renamed.
            _ if !sample.is_still(held) => {}
            HandleEnd::Stale => {
                add(Level::Fail, "found anew", sample.said(&held.name, &"the daemon takes it to be gone"));
            }
            HandleEnd::Unknown => add(
                Level::Warn,
                "found anew",
                sample.said(&held.name, &"the daemon cannot find it by its handle at present"),
            ),
        }
    }
    if let Some(fault) = fault {
        return add(Level::Fail, "found anew", fault);
    }
    let passed_by = match not_tried {
        0 => String::new(),
        count => format!("; {count} were not tried: each takes a look through a whole branch"),
    };
    let level = if found == 0 && not_tried > 0 { Level::Warn } else { Level::Ok };
    let names = handles.len();
    add(
        level,
        "found anew",
        format!(
            "the daemon finds {found} of {names} by their handles alone, as for a kernel that has forgotten them{passed_by}"
        ),
    );
}

/// Checks objects that only the index finds. Objects removed out of band leave an entry behind.
fn of_index(ends: &[HandleEnd], add: &mut impl FnMut(Level, &str, String)) {
    let count = |wanted: HandleEnd| ends.iter().filter(|end| **end == wanted).count();
    let (all, found, unknown) = (ends.len(), count(HandleEnd::Found), count(HandleEnd::Unknown));
    if all == 0 {
        return;
    }
    let level = if unknown == 0 { Level::Ok } else { Level::Warn };
    let gone = count(HandleEnd::Stale);
    let not_tried = count(HandleEnd::NotTried);
    add(
        level,
        "found by the index",
        format!(
            "{found} of {all} objects that were moved, or lie on several branches; {gone} are gone, {unknown} out of reach, {not_tried} not tried"
        ),
    );
}

/// Reports a branch missing from the pool, for which handles wait.
fn away(pool: &Pool, branch: &AwayBranch, add: &mut impl FnMut(Level, &str, String)) {
    let (id, shown) = (branch.id, pool.shown());
    let place = if branch.path.is_empty() { String::new() } else { format!(" ({})", branch.path) };
    add(
        Level::Warn,
        "away",
        format!(
            "branch {id}{place} is not in the pool: handles of what is there wait for it; if it will not come back: fsstack branch forget {shown} {id}"
        ),
    );
}

/// A name and its handle.
struct HeldHandle {
    name: CString,
    object: (u64, u64),
    handle: HandleOf,
}

/// Names of the pool and their handles, which the kernel opened.
struct Sample {
    mount_point: PathBuf,
    root: fs::File,
    held: Vec<HeldHandle>,
}

impl Sample {
    /// Starts with the root alone.
    fn of(mount_point: &Path) -> Result<Self, String> {
        let root = fs::File::open(mount_point)
            .map_err(|error| format!("{}: {error}", Printable::path(mount_point)))?;
        Ok(Self { mount_point: mount_point.to_owned(), root, held: Vec::new() })
    }

    /// Adds the upper directories, the root's names first.
    fn fill(&mut self) -> Result<(), String> {
        let root = at::stat_fd(self.root.as_fd()).map_err(|error| self.said(c"", &error))?;
        self.opens(c"", root.ino)?;
        let mut waiting = VecDeque::from([PathBuf::new()]);
        while let Some(dir) = waiting.pop_front() {
            let listed = match fs::read_dir(self.mount_point.join(&dir)) {
                // Removed meanwhile; the root always exists.
                Err(_) if !dir.as_os_str().is_empty() => continue,
                listed => listed.map_err(|error| self.said(c"", &error))?,
            };
            for entry in listed.take(OF_ONE) {
                if self.held.len() == TRIED {
                    return Ok(());
                }
                let entry = entry.map_err(|error| self.said(c"", &error))?;
                let below = dir.join(entry.file_name());
                if self.add(&below, root.dev)? && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push_back(below);
                }
            }
        }
        Ok(())
    }

    /// Adds a name. False if it is not in the pool, or was removed meanwhile.
    fn add(&mut self, path: &Path, dev: u64) -> Result<bool, String> {
        let Ok(name) = CString::new(path.as_os_str().to_owned().into_vec()) else { return Ok(false) };
        let object = match self.object(&name) {
            Ok(object) if object.0 == dev => object,
            Ok(_) => return Ok(false), // another file system is mounted there
            Err(error) if error.errno == Errno::NOENT => return Ok(false),
            Err(error) => return Err(self.said(&name, &error)),
        };
        match self.opens(&name, object.1) {
            Ok(handle) => {
                self.held.push(HeldHandle { name, object, handle });
                Ok(true)
            }
            // Another process gave the name to another object meanwhile.
            Err(_) if self.object(&name) != Ok(object) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Opens the handle of `name`, which must lead to the object `ino`.
    fn opens(&self, name: &CStr, ino: u64) -> Result<HandleOf, String> {
        let root = self.root.as_fd();
        let asked = || -> Result<(FileHandle, u64), SysError> {
            let handle = name_to_handle(root, name)?;
            let opened = open_handle(root, &handle, OFlags::PATH)?;
            let leads_to = at::stat_fd(opened.as_fd())?.ino;
            Ok((handle, leads_to))
        };
        let (handle, leads_to) = asked().map_err(|error| self.said(name, &error))?;
        if leads_to != ino {
            return Err(self.said(name, &"its handle leads to another object"));
        }
        read(&handle).ok_or_else(|| self.said(name, &"its handle is not one of FUSE"))
    }

    fn object(&self, name: &CStr) -> Result<(u64, u64), SysError> {
        at::stat(self.root.as_fd(), name).map(|stat| (stat.dev, stat.ino))
    }

    fn is_still(&self, held: &HeldHandle) -> bool {
        self.object(&held.name).is_ok_and(|object| object == held.object)
    }

    fn said(&self, name: &CStr, what: &dyn std::fmt::Display) -> String {
        let path = self.mount_point.join(OsStr::from_bytes(name.to_bytes()));
        format!("{}: {what}", Printable::path(&path))
    }
}

/// Decodes a FUSE handle: the upper and the lower half of the number, and the generation.
fn read(handle: &FileHandle) -> Option<HandleOf> {
    let mut words = handle.bytes.chunks_exact(4).map(|word| word.try_into().map(u32::from_ne_bytes));
    let mut word = || words.next()?.ok();
    let (upper, lower, generation) = (word()?, word()?, word()?);
    Some(HandleOf { number: u64::from(upper) << 32 | u64::from(lower), generation })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_the_kernel_writes_it() {
        let bytes = [1_u32, 2, 3].into_iter().flat_map(u32::to_ne_bytes).collect();
        let read = |bytes| read(&FileHandle { kind: 0x81, bytes });
        assert_eq!(read(bytes), Some(HandleOf { number: 1 << 32 | 2, generation: 3 }));
        assert_eq!(read(vec![0; 11]), None);
    }
}
