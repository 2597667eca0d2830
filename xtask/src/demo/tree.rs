//! Files for the demo: the sources of the crates on this machine, copied and verified.

use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::exec;

/// Enough to involve all branches, and copied in a few seconds.
const MOST_BYTES: u64 = 96 << 20;
const MOST_FILES: usize = 5000;

/// Copied files with their checksums.
#[derive(Debug)]
pub(crate) struct Copied {
    files: Vec<(PathBuf, u64)>,
    bytes: u64,
    took: Duration,
    from: PathBuf,
}

/// Cargo's directory of crate sources; this repository if there is none.
pub(crate) fn registry() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let sources = home.context("neither CARGO_HOME nor HOME is set")?.join("registry/src");
    Ok(if sources.is_dir() { sources } else { exec::root().join("crates") })
}

/// Copies files from `from` to `to` until the demo has enough.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<Copied> {
    let began = Instant::now();
    let mut copied = Copied { files: Vec::new(), bytes: 0, took: Duration::ZERO, from: from.to_owned() };
    let mut waiting = vec![from.to_owned()];
    'all: while let Some(dir) = waiting.pop() {
        let inside = dir.strip_prefix(from)?;
        fs::create_dir_all(to.join(inside))?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                waiting.push(entry.path());
            } else if kind.is_file() {
                let bytes = fs::read(entry.path())?;
                let name = inside.join(entry.file_name());
                fs::write(to.join(&name), &bytes).with_context(|| to.join(&name).display().to_string())?;
                copied.bytes += u64::try_from(bytes.len())?;
                copied.files.push((name, checksum(&bytes)));
            }
            if MOST_BYTES < copied.bytes || MOST_FILES <= copied.files.len() {
                break 'all;
            }
        }
    }
    copied.took = began.elapsed();
    Ok(copied)
}

impl Copied {
    /// Reads everything back from `at`; the error names the first file that differs.
    pub(crate) fn verify(&self, at: &Path) -> Result<usize> {
        for (name, sum) in &self.files {
            let read = fs::read(at.join(name)).with_context(|| name.display().to_string())?;
            ensure!(checksum(&read) == *sum, "{} is not what was written", name.display());
        }
        Ok(self.files.len())
    }
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, mib, seconds) = (self.files.len(), self.bytes >> 20, self.took.as_secs_f64());
        write!(f, "{files} files, {mib} MiB from {} in {seconds:.1} s", self.from.display())
    }
}

/// Number and bytes of files below `dir`.
pub(crate) fn weigh(dir: &Path) -> Result<(usize, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let mut waiting = vec![dir.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => waiting.push(entry.path()),
                _ => {
                    files += 1;
                    bytes += entry.metadata()?.len();
                }
            }
        }
    }
    Ok((files, bytes))
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
