//! Files that a job tried to move in vain, and how often.
//!
//! A job goes on for as long as one of its files is in use. Until then it is not to copy another one again and again that a
//! branch refuses when it has its content.

use std::collections::HashMap;

use fsstack_pool::Ino;

/// Failed tries of each file since a file was moved last.
#[derive(Debug)]
pub(super) struct FailedTries {
    most: u32,
    files: HashMap<Ino, (u32, &'static str)>,
}

impl FailedTries {
    /// No try has failed; after `most` a file is not tried again.
    pub(super) fn new(most: u32) -> Self {
        Self { most, files: HashMap::new() }
    }

    /// A try has failed.
    pub(super) fn add(&mut self, file: Ino, why: &'static str) {
        let (tries, last) = self.files.entry(file).or_insert((0, why));
        (*tries, *last) = (*tries + 1, why);
    }

    /// Why the last try failed, if the file is not to be tried again.
    pub(super) fn why_not_again(&self, file: Ino) -> Option<&'static str> {
        self.files.get(&file).filter(|(tries, _)| *tries >= self.most).map(|(_, why)| *why)
    }

    /// Something has changed: all files are tried again.
    pub(super) fn forget(&mut self) {
        self.files.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_failed_so_often_is_not_tried_again_until_something_changes() {
        let (mut tries, file) = (FailedTries::new(2), Ino(7));
        tries.add(file, "once");
        assert_eq!(tries.why_not_again(file), None);
        tries.add(file, "twice");
        assert_eq!((tries.why_not_again(file), tries.why_not_again(Ino(8))), (Some("twice"), None));
        tries.forget();
        assert_eq!(tries.why_not_again(file), None);
    }
}
