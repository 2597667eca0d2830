//! Passes the commit to the binary, for its results: read from .git, without git.

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let commit = commit(&root.join(".git")).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=FSSTACK_COMMIT={commit}");
}

/// The commit that is checked out; `None` outside of a repository.
fn commit(git: &Path) -> Option<String> {
    // In a worktree `.git` is a file with the path of its directory.
    let dir = match fs::read_to_string(git) {
        Ok(text) => PathBuf::from(text.strip_prefix("gitdir: ")?.trim()),
        Err(_) => git.to_owned(),
    };
    let head = watched(&dir.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ").map(str::trim) else { return Some(head.trim().to_owned()) };
    let shared = fs::read_to_string(dir.join("commondir")).map_or(dir.clone(), |to| dir.join(to.trim()));
    watched(&shared.join(name)).map(|hash| hash.trim().to_owned()).or_else(|| {
        let packed = watched(&shared.join("packed-refs"))?;
        let line = packed.lines().find(|line| line.ends_with(&format!(" {name}")))?;
        line.split(' ').next().map(str::to_owned)
    })
}

fn watched(file: &Path) -> Option<String> {
    println!("cargo::rerun-if-changed={}", file.display());
    fs::read_to_string(file).ok()
}
