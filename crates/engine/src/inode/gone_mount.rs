//! A mount of a branch that is gone: its descriptors are closed, and its late answers say nothing any more.

use fsstack_pool::BranchIx;

use super::clock::Moment;
use super::{Inode, Location};

impl Inode {
    /// Closes what is open on `branch` besides an open file: its mount is gone. Answers from before say nothing any more, as
    /// another mount may give its numbers to other objects.
    pub(crate) fn close_on(&self, branch: BranchIx) {
        let mut state = self.state.lock();
        match &mut state.location {
            Location::Dir(dir) => {
                (dir.settled, dir.checked) = (Moment::of_change(), None);
                for copy in dir.copies.iter_mut().filter(|copy| copy.branch == branch) {
                    copy.fd = None;
                }
                if dir.is_first(branch) {
                    state.unlinked_fd = None;
                }
            }
            Location::File(file) if file.branch == branch => {
                _ = Moment::renames(self.id.ino.0);
                state.unlinked_fd = None;
            }
            Location::File(_) | Location::Nowhere => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fsstack_identity::number::Identity;
    use fsstack_pool::Ino;
    use fsstack_sys::Kind;

    use super::*;
    use crate::inode::Copies;

    const X: BranchIx = BranchIx(0);

    #[test]
    fn an_answer_of_a_mount_that_is_gone_gives_no_number_and_no_name() {
        let id = Identity { ino: Ino(7), generation: 0 };
        let dir = Arc::new(Inode::dir(id, &Copies::known([(X, 10)])));
        let root = Arc::new(Inode::root(std::iter::empty()));
        dir.note_name(&root, c"d", 1, Moment::now());
        let asked = Copies::asked_now();
        dir.close_on(X);
        let mut late = asked.clone();
        late.found.push((X, 11));
        dir.update_copies(&late);
        dir.note_name(&root, c"e", 1, asked.asked());
        assert_eq!((dir.copy_ino(X), dir.has_name(&root, c"d")), (Some(10), true));
        let file = Inode::file(Identity { ino: Ino(8), generation: 0 }, Kind::File, X);
        file.note_name(&root, c"f", 1, Moment::now());
        file.close_on(X);
        file.note_name(&root, c"g", 1, asked.asked());
        assert!(file.has_name(&root, c"f"));
    }
}
