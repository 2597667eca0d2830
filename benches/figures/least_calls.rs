//! A durable move of small files by the least calls, as a bound for a drain: one thread, which tries nothing and looks at nothing.
//!
//! Per batch: copies without names, with the mark of their number and their times; one sync of the file system; the names; a sync of
//! their directory; removal of the old names; a sync of theirs.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirEntryExt;
use std::path::Path;

use anyhow::Result;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};

/// Files in a batch, as in a batch of a drain.
const BATCH: usize = 256;

/// Moves the files in the directories of `from` to such directories in `to`.
pub(crate) fn move_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for dir in fs::read_dir(from)? {
        let dir = dir?;
        let new = to.join(dir.file_name());
        fs::create_dir(&new)?;
        move_dir(&dir.path(), &new)?;
    }
    File::open(to)?.sync_all()?;
    Ok(())
}

fn move_dir(from: &Path, to: &Path) -> Result<()> {
    let mut files: HashMap<u64, Vec<CString>> = HashMap::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        files.entry(entry.ino()).or_default().push(CString::new(entry.file_name().as_bytes())?);
    }
    let (old_dir, new_dir) = (File::open(from)?, File::open(to)?);
    let files: Vec<Vec<CString>> = files.into_values().collect();
    for batch in files.chunks(BATCH) {
        let copies: Vec<OwnedFd> =
            batch.iter().map(|names| copy(&old_dir, &names[0], &new_dir)).collect::<Result<_>>()?;
        rustix::fs::syncfs(&new_dir)?;
        for (copy, names) in copies.iter().zip(batch) {
            for name in names {
                rustix::fs::linkat(copy, c"", &new_dir, name, AtFlags::EMPTY_PATH)?;
            }
        }
        new_dir.sync_all()?;
        for name in batch.iter().flatten() {
            rustix::fs::unlinkat(&old_dir, name, AtFlags::empty())?;
        }
        old_dir.sync_all()?;
    }
    Ok(())
}

fn copy(old_dir: &File, name: &CString, new_dir: &File) -> Result<OwnedFd> {
    let old = rustix::fs::openat(old_dir, name, OFlags::RDONLY | OFlags::NOATIME, Mode::empty())?;
    let stat = rustix::fs::fstat(&old)?;
    let how = OFlags::RDWR | OFlags::TMPFILE;
    let new = rustix::fs::openat(new_dir, c".", how, Mode::from_raw_mode(stat.st_mode & 0o777))?;
    let mut content = [0; 4096];
    let read = rustix::io::pread(old.as_fd(), &mut content, 0)?;
    rustix::io::pwrite(&new, &content[..read], 0)?;
    rustix::fs::fsetxattr(&new, c"trusted.bound", &content[..20], XattrFlags::empty())?;
    let time = |sec, nsec: u64| Timespec { tv_sec: sec, tv_nsec: i64::try_from(nsec).unwrap_or_default() };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    rustix::fs::futimens(&new, &times)?;
    Ok(new)
}
