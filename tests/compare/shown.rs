//! Descriptions of files, in words that are the same on every file system.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::lgetxattr;
use rustix::io::Errno;

/// The extended attribute that programs set.
pub(crate) const MARK: &str = "user.mark";

/// The attributes of access control lists.
pub(crate) const ACLS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// Times that programs set are before this many seconds of the epoch; others are the present.
pub(crate) const SET_TIMES: u64 = 1000;

/// The attributes of `stat`. A time counts if a program set it.
pub(crate) fn attributes(stat: &fs::Metadata) -> io::Result<String> {
    let (mode, owner, group) = (stat.mode(), stat.uid(), stat.gid());
    if stat.is_dir() {
        return Ok(format!("directory {mode:o} of {owner}:{group}"));
    }
    let set = stat.modified()?.duration_since(SystemTime::UNIX_EPOCH).map_or(u64::MAX, |time| time.as_secs());
    // A write to a named pipe changes its time on a local disk; of one in a FUSE file system the kernel changes none.
    let counts = set < SET_TIMES && !stat.file_type().is_fifo();
    let time = if counts { format!(", of {set}") } else { String::new() };
    Ok(format!("{mode:o} of {owner}:{group}, {} bytes, {} links{time}", stat.len(), stat.nlink()))
}

/// The attributes of what is at `path`, with its access control lists.
pub(crate) fn attributes_at(path: &Path) -> io::Result<String> {
    let mut shown = attributes(&fs::symlink_metadata(path)?)?;
    for acl in ACLS {
        let mut value = [0; 512];
        match lgetxattr(path, acl, &mut value[..]) {
            Ok(size) => {
                shown.push_str(", ");
                value[..size].iter().try_for_each(|byte| write!(shown, "{byte:x}")).unwrap();
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(shown)
}

/// The extended attribute of `path`.
pub(crate) fn mark(path: &Path) -> io::Result<String> {
    let mut value = [0; 64];
    let size = lgetxattr(path, MARK, &mut value[..])?;
    Ok(String::from_utf8_lossy(&value[..size]).into_owned())
}

/// Like [`mark`]; nothing where there is none.
fn mark_or_none(path: &Path) -> io::Result<String> {
    match mark(path) {
        Err(error) if error.raw_os_error() == Some(Errno::NODATA.raw_os_error()) => Ok(String::new()),
        mark => mark,
    }
}

/// The names in `dir`, each as often as it is listed.
pub(crate) fn list(dir: &Path) -> io::Result<String> {
    let names: io::Result<Vec<_>> = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect();
    let mut names = names?;
    names.sort();
    Ok(names.join(OsStr::new(" ")).to_string_lossy().into_owned())
}

/// The names in the open directory `dir`.
pub(crate) fn list_open(dir: &File) -> io::Result<String> {
    list(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())))
}

/// The runs of equal bytes.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let runs = bytes.chunk_by(|one, next| one == next);
    runs.map(|run| format!("{}{:?}", run.len(), char::from(run[0]))).collect::<Vec<_>>().join(" ")
}

/// The tree below `top`: attributes, contents, extended attributes.
pub(crate) fn tree(top: &Path) -> io::Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let stat = fs::symlink_metadata(&path)?;
            let mut node = attributes_at(&path)?;
            if stat.is_dir() {
                node = format!("{node}, {}", mark_or_none(&path)?);
                dirs.push(path.clone());
            } else if stat.is_symlink() {
                node = format!("{node}, {}", fs::read_link(&path)?.display());
            } else if stat.is_file() {
                node = format!("{node}, {}, {}", digest(&fs::read(&path)?), mark_or_none(&path)?);
            }
            let name = path.strip_prefix(top).unwrap().to_owned();
            if let Some(twice) = found.insert(name, node) {
                return Err(io::Error::other(format!("{} is listed twice: {twice}", path.display())));
            }
        }
    }
    Ok(found)
}

/// The times of the last changes of directories and contents below `top`, and that of itself, but for those that programs set.
pub(crate) fn changes(top: &Path) -> io::Result<BTreeMap<PathBuf, SystemTime>> {
    let mut found = BTreeMap::from([(PathBuf::new(), fs::metadata(top)?.modified()?)]);
    for name in tree(top)?.into_keys() {
        let changed = fs::symlink_metadata(top.join(&name))?.modified()?;
        if changed > SystemTime::UNIX_EPOCH + Duration::from_secs(SET_TIMES) {
            found.insert(name, changed);
        }
    }
    Ok(found)
}
