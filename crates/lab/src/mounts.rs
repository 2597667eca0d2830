//! Mounts from mountinfo, and unmounting where the daemon may be dead.
//!
//! Nothing here calls stat on a mount: a hung FUSE file system would hang us. The device number, which names the
//! fusectl connection, is in mountinfo too.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::daemon;
use crate::shell::command;

/// Directory of the kernel's FUSE connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Where it is mounted.
    pub target: PathBuf,
    /// Its file system type, with the subtype (`fuse.fsstack`).
    pub fs_type: String,
    /// The major number of its device.
    pub major: u32,
    /// The minor number of its device.
    pub minor: u32,
    /// Source of the mount.
    pub source: OsString,
    /// Options of the mount and of the superblock, joined by a comma.
    pub options: String,
}

impl Mounted {
    /// True for a FUSE mount.
    #[must_use]
    pub fn is_fuse(&self) -> bool {
        ["fuse", "fuseblk"].contains(&self.fs_type.split('.').next().unwrap_or_default())
    }

    /// Name of its FUSE connection: the kernel's encoding of the device number.
    #[must_use]
    pub fn connection(&self) -> u32 {
        self.major << 20 | self.minor
    }

    /// Its device number, the same at all mount points of one file system.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        (self.major, self.minor)
    }
}

/// Every mount of this mount namespace, in the order they were made.
pub fn all() -> Result<Vec<Mounted>> {
    let text = fs::read("/proc/self/mountinfo").context("mountinfo")?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// The topmost mount at exactly `target`.
pub fn at(target: &Path) -> Result<Option<Mounted>> {
    Ok(all()?.into_iter().rev().find(|m| m.target == target))
}

/// The mounts at or below `dir`.
pub fn below(dir: &Path) -> Result<Vec<Mounted>> {
    Ok(all()?.into_iter().filter(|m| m.target.starts_with(dir)).collect())
}

/// Unmounts everything at `target`: normally, then by aborting the connection and killing the daemon.
///
/// An error says that force was needed, or that it is still mounted. Nothing is done if nothing is mounted.
pub fn detach(target: &Path) -> Result<()> {
    let mut forced = Vec::new();
    while let Some(mounted) = at(target)? {
        let Err(polite) = politely(target) else { continue };
        forced.push(format!("{polite:#}"));
        if mounted.is_fuse() {
            abort(mounted.connection())?;
            daemon::serving(target)?.into_iter().try_for_each(daemon::Process::kill)?;
        }
        if umount(target, &[], Duration::from_secs(5)).is_err() {
            umount(target, &["-l"], Duration::from_secs(5))?;
        }
    }
    if !forced.is_empty() {
        bail!("{} came down by force only: {}", target.display(), forced.join("; "));
    }
    Ok(())
}

/// Aborts a FUSE connection: every blocked caller returns with an error.
pub fn abort(connection: u32) -> Result<()> {
    let connections = Path::new(CONNECTIONS);
    if at(connections)?.is_none() {
        command("mount").args(["-t", "fusectl", "fusectl", CONNECTIONS]).run()?;
    }
    match fs::write(connections.join(connection.to_string()).join("abort"), "1") {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context("abort of the connection"),
        _ => Ok(()),
    }
}

/// A file that was just closed may still count, so a busy mount is retried for two seconds.
fn politely(target: &Path) -> Result<()> {
    let began = Instant::now();
    loop {
        match umount(target, &[], Duration::from_secs(30)) {
            Err(_) if began.elapsed() < Duration::from_secs(2) => sleep(Duration::from_millis(50)),
            settled => return settled,
        }
    }
}

fn umount(target: &Path, how: &[&str], limit: Duration) -> Result<()> {
    // By a child process, which can be given up if umount(2) blocks.
    command("umount").args(how).arg(target).limit(limit).run().map(drop)
}

/// `36 35 98:0 / /mnt rw,noatime shared:1 - ext3 /dev/root rw`; the number of fields before `-` varies.
fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|&b| b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let target = unescaped(fields.nth(1)?);
    let own = String::from_utf8_lossy(fields.next()?).into_owned();
    let mut rest = fields.skip_while(|&f| f != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = unescaped(rest.next()?).into_os_string();
    let shared = String::from_utf8_lossy(rest.next()?).into_owned();
    let (major, minor) = device.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    Some(Mounted { target, fs_type, major, minor, source, options: format!("{own},{shared}") })
}

/// Decodes the kernel's `\040` for space, tab, newline and backslash.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\');
        match octal.and_then(|o| u8::from_str_radix(std::str::from_utf8(o).ok()?, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

/// True if any argument of a process is `target`, byte for byte.
pub(crate) fn names(arguments: &[u8], target: &Path) -> bool {
    arguments.split(|&b| b == 0).any(|argument| argument == target.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line =
            br"36 35 0:42 / /mnt/a\040b rw,noatime shared:1 master:2 - fuse.fsstack /a:/b rw,user_id=0";
        assert_eq!(
            parse(line),
            Some(Mounted {
                target: "/mnt/a b".into(),
                fs_type: "fuse.fsstack".into(),
                major: 0,
                minor: 42,
                source: "/a:/b".into(),
                options: "rw,noatime,rw,user_id=0".into(),
            })
        );
    }

    #[test]
    fn proc_is_mounted() {
        assert_eq!(at(Path::new("/proc")).unwrap().map(|m| m.fs_type), Some("proc".into()));
    }
}
