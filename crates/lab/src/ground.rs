//! What plain branches lie on: directories of the machine, or, by FSSTACK_GROUND=gluster, volumes of every kind.
//!
//! So a story that says nothing of its ground can be told on another one as it is.

use anyhow::Result;

use crate::branch::Kind;
use crate::gluster;

/// The variable that names the ground.
pub const VARIABLE: &str = "FSSTACK_GROUND";

/// Whether plain branches are to lie on GlusterFS.
#[must_use]
pub fn is_gluster() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|ground| ground == "gluster")
}

/// What the n-th branch of a pool lies on, where `kind` was asked for.
pub(crate) fn kind(n: usize, kind: Kind) -> Result<Kind> {
    match gluster::KINDS.get(n % gluster::KINDS.len()) {
        Some(volume) if kind == Kind::Plain && is_gluster() => Ok(Kind::Gluster(volume.parse()?)),
        _ => Ok(kind),
    }
}
