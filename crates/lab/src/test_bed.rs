//! Test bed of plain branches: directories of the machine, or with FSSTACK_GROUND=gluster volumes of every kind.
//!
//! So a test that does not name its file systems runs unchanged on others.

use anyhow::Result;

use crate::branch::Kind;
use crate::gluster;

/// Environment variable that selects the test bed.
pub const VARIABLE: &str = "FSSTACK_GROUND";

/// True if plain branches are to be on GlusterFS.
#[must_use]
pub fn is_gluster() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|name| name == "gluster")
}

/// Kind of the n-th branch of a pool if `kind` was requested.
pub(crate) fn kind(n: usize, kind: Kind) -> Result<Kind> {
    if kind == Kind::Plain && is_gluster() { volume(n) } else { Ok(kind) }
}

/// Branches added to a pool with `n` plain branches, so that it has one on each kind of volume. They are empty, and
/// searched for every name.
pub(crate) fn others(n: usize) -> Result<Vec<(String, Kind)>> {
    let added = |at: usize| Ok((format!("other-{}", at + 1), volume(at)?));
    (n..gluster::KINDS.len()).map(added).collect()
}

fn volume(n: usize) -> Result<Kind> {
    let kinds = gluster::KINDS;
    Ok(Kind::Gluster(kinds.get(n % kinds.len()).copied().unwrap_or("dt4").parse()?))
}
