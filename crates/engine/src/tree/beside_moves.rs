//! Changes of a file's name beside moves of the file.
//!
//! A move takes the name from one branch and gives it to another. A change that has looked for the file before finds nothing on the
//! branch that the file has left: so it looks again, as long as something has moved meanwhile.

use fsstack_branch::error::Result;
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sys::Errno;

use super::Tree;

/// Rounds in which a name is looked for that moves from branch to branch while it is changed.
pub(crate) const ROUNDS: u32 = 16;

/// Runs `act`, which leaves the file as it is if it does not find it: again where the file may have moved meanwhile.
///
/// # Errors
/// The last answer of `act`.
pub(crate) fn beside_moves<T>(tree: &Tree, act: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 1..ROUNDS {
        let moves = tree.relocations.load(SeqCst);
        match act() {
            Err(error)
                if (error.is_missing() || error.errno() == Errno::STALE)
                    && tree.relocations.load(SeqCst) != moves => {}
            done => return done,
        }
    }
    act()
}
