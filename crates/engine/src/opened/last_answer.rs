//! Entries of a listing's last answer, of which a program may not take all.
//!
//! The kernel asks for a page of entries at least. A program with a smaller buffer (readdir(3) of musl: 2 KiB) takes the first
//! ones, and the kernel asks again from there on. A file that moved meanwhile was not shown if its name was not taken.

use std::ffi::CStr;

use fsstack_sys::process::page_size;

use super::cookie::DOT_DOT;

/// Bytes of an entry at least: `struct fuse_dirent` and a name.
const SMALLEST_ENTRY: usize = 32;

/// Names of the last answer with their cookies, if it may have been longer than the program's buffer.
#[derive(Debug, Default)]
pub(crate) struct LastAnswer {
    /// The cookie behind which it began.
    since: u64,
    /// The cookie of its last entry.
    last: u64,
    entries: Vec<(u64, Box<CStr>)>,
    is_long: bool,
}

impl LastAnswer {
    /// An answer begins behind `cookie`.
    pub(crate) fn begin(&mut self, cookie: u64) {
        *self = Self { since: cookie, last: cookie, ..Self::default() };
    }

    /// An entry was put into the answer.
    pub(crate) fn put(&mut self, cookie: u64, name: Box<CStr>) {
        self.last = cookie;
        if self.entries.len() == page_size() / SMALLEST_ENTRY {
            (self.entries, self.is_long) = (Vec::new(), true);
        }
        if !self.is_long {
            self.entries.push((cookie, name));
        }
    }

    /// Entries of the answer that were not taken by a program that goes on behind `cookie`. None: it goes on elsewhere.
    pub(crate) fn untaken(&self, cookie: u64) -> Option<&[(u64, Box<CStr>)]> {
        if cookie == self.last {
            return Some(&[]);
        }
        if self.is_long {
            return None;
        }
        let taken = match self.entries.iter().position(|(of, _)| *of == cookie) {
            Some(last) => last + 1,
            None if cookie == self.since || self.since <= DOT_DOT && cookie <= DOT_DOT => 0,
            None => return None,
        };
        self.entries.get(taken..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn untaken(answer: &LastAnswer, cookie: u64) -> Option<Vec<&CStr>> {
        answer.untaken(cookie).map(|entries| entries.iter().map(|(_, name)| &**name).collect())
    }

    #[test]
    fn names_behind_the_cookie_were_not_taken() {
        let mut answer = LastAnswer::default();
        answer.begin(100);
        for (cookie, name) in [(110, c"a"), (120, c"b"), (130, c"c")] {
            answer.put(cookie, name.into());
        }
        assert_eq!(untaken(&answer, 130), Some(vec![]), "all were");
        assert_eq!(untaken(&answer, 110), Some(vec![c"b", c"c"]));
        assert_eq!(untaken(&answer, 100), Some(vec![c"a", c"b", c"c"]), "none was");
        assert_eq!(untaken(&answer, 90), None, "the program went elsewhere");
        answer.begin(0);
        answer.put(110, c"a".into());
        assert_eq!(untaken(&answer, DOT_DOT), Some(vec![c"a"]));
    }

    #[test]
    fn an_answer_longer_than_a_page_is_taken_as_a_whole() {
        let mut answer = LastAnswer::default();
        let most = (page_size() / SMALLEST_ENTRY) as u64;
        (0..=most).for_each(|n| answer.put(100 + n, c"a".into()));
        assert_eq!(untaken(&answer, 100 + most), Some(vec![]));
        assert_eq!(untaken(&answer, 110), None);
    }
}
