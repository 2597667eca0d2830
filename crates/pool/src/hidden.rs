//! Names that a pool keeps for itself in the roots of its branches.

use std::ffi::CStr;

/// The hidden folder, in the root of a branch: never shown in the pool. Indexed by the level of the branch: 0 is no
/// pool, 1 a pool of such branches, and so on.
pub const HIDDEN_FOLDERS: [&CStr; 4] =
    [c".fsstack.moving", c".fsstack.moving.1", c".fsstack.moving.2", c".fsstack.moving.3"];

/// The name in a hidden folder under which `fsstack check --fix` keeps what it has replaced. Mounts leave it alone.
pub const KEPT: &CStr = c"kept";

/// Suffixes of the names in a hidden folder: unfinished copies, directories and bulk copies; records of moves and renames.
const SUFFIXES: [&[u8]; 5] = [b".part", b".dir", b".copy", b".move", b".names"];

/// Returns whether the pool gives such names in its hidden folder: 16 lower-case hexadecimal digits and a suffix. Others in a
/// directory that has the folder's name are not the pool's: a user with write access to a branch's root can give that name to any
/// directory there.
pub fn is_hidden_name(name: &CStr) -> bool {
    let Some((random, suffix)) = name.to_bytes().split_at_checked(16) else { return false };
    random.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) && SUFFIXES.contains(&suffix)
}
