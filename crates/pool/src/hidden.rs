//! Names that a pool keeps for itself in the roots of its branches.

use std::ffi::CStr;

/// The hidden folder, in the root of a branch: never shown in the pool. Indexed by the level of the branch: 0 is no
/// pool, 1 a pool of such branches, and so on.
pub const HIDDEN_FOLDERS: [&CStr; 4] =
    [c".fsstack.moving", c".fsstack.moving.1", c".fsstack.moving.2", c".fsstack.moving.3"];

/// The name in a hidden folder under which `fsstack check --fix` keeps what it has replaced. Mounts leave it alone.
pub const KEPT: &CStr = c"kept";
