//! Runs programs for the tasks, with their output, in the repository's root.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use fsstack_lab::shell::{self, Run};

/// Longer than any single command may take; CI as a whole gets an hour.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Runs a program with its output shown.
pub(crate) fn shown(program: &str) -> Run {
    shell::command(program).dir(root()).limit(LIMIT).shown()
}

/// Runs a program with its output captured.
pub(crate) fn quiet(program: &str) -> Run {
    shell::command(program).dir(root()).limit(LIMIT)
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Run {
    shown(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
}

/// The target directory, found by this program's own path in `debug`.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let me = std::env::current_exe()?;
    Ok(me.ancestors().nth(2).context("no target directory above xtask")?.to_owned())
}

/// Builds the mount helper; `profile` is `debug` or `release`. Returns its path under its installed name.
pub(crate) fn build_helper(profile: &str) -> Result<PathBuf> {
    let how: &[&str] = if profile == "release" { &["--release"] } else { &[] };
    cargo()
        .args(["build", "--quiet", "-p", "fsstack-daemon", "-p", "fsstack-cli", "--bins"])
        .args(how)
        .run()?;
    let dir = target_dir()?.join(profile);
    // Cargo allows no dot in a binary's name; mount(8) requires one.
    let (built, named) = (dir.join("mount-fsstack"), dir.join("mount.fsstack"));
    if let Err(e) = fs::remove_file(&named)
        && e.kind() != ErrorKind::NotFound
    {
        return Err(e).context(named.display().to_string());
    }
    fs::hard_link(&built, &named).with_context(|| format!("{} was not built", built.display()))?;
    Ok(named.canonicalize()?)
}
