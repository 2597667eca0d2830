//! A program, and its comparison of the pool with a local disk.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use crate::acts::{Act, SLOTS, USERS};
use crate::events::{Away, Events, now};
use crate::shown::tree;
use crate::take::{Opened, acting_as};

/// Longest time for which a branch is away.
const AWAY: Duration = Duration::from_secs(60);

/// Least calls of a program, however late it begins.
const LEAST: usize = 200;

/// Acts that a failure shows.
const SHOWN: usize = 100;

/// A program that does the same below a local directory and below one of the pool.
pub(crate) struct Worker {
    /// The local directory, and that of the pool.
    tops: [PathBuf; 2],
    open: [Opened; 2],
    /// The users who opened the files.
    openers: [u32; SLOTS],
    dice: Rng,
    events: Events,
    done: Vec<String>,
    /// How many of them succeeded, and how many did not as a branch was away.
    good: u32,
    out_of_reach: u32,
}

impl Worker {
    pub(crate) fn new(tops: [PathBuf; 2], dice: Rng, events: Events) -> Self {
        for top in &tops {
            fs::create_dir_all(top).unwrap();
            fs::set_permissions(top, Permissions::from_mode(0o777)).unwrap();
        }
        let (open, openers) = Default::default();
        Self { tops, open, openers, dice, events, done: Vec::new(), good: 0, out_of_reach: 0 }
    }

    /// Works until `ended`, but makes [`LEAST`] calls, and mostly asks while a branch is `away`. Returns the first difference, if there is one.
    pub(crate) fn works(mut self, ended: &AtomicBool, away: &Away) -> Option<String> {
        while !ended.load(SeqCst) || self.done.len() < LEAST {
            let act = Act::any(&mut self.dice);
            // A change that fails waits for the branch, so there are few meanwhile.
            if away.is_set() && !act.only_asks() && self.dice.u64(..300) > 0 {
                continue;
            }
            if self.is_left_out(&act) {
                continue;
            }
            let user = self.user_of(&act);
            let answer = self.take(1, user, &act);
            let wrong = match answer {
                Err(error) if self.events.lose() && is_out_of_reach(&error) => {
                    self.out_of_reach += 1;
                    self.done_or_not(user, &act, away)
                }
                // The new name may need room in its directory.
                Err(error) if self.events.full_branch && act.is_rename() && is_full(&error) => None,
                // The kernel may still know a set-id bit that a write has cleared (docs/limits.md).
                Err(error)
                    if user != 0 && act.is_link() && error.kind() == io::ErrorKind::PermissionDenied =>
                {
                    None
                }
                answer => {
                    let expected = self.take(0, user, &act);
                    self.good += u32::from(answer.is_ok());
                    let [expected, found] = [expected, answer].map(|answer| shown(&answer));
                    (expected != found).then(|| format!("expected {expected}, found {found}"))
                }
            };
            self.done.push(format!("{user}: {act:?}"));
            if let Some(wrong) = wrong {
                let last = &self.done[self.done.len().saturating_sub(SHOWN)..];
                let top = self.tops[1].display();
                let step = self.done.len();
                let now = now();
                return Some(format!(
                    "{now}: step {step} in {top}, {user}: {act:?}: {wrong}; the last: {last:#?}"
                ));
            }
        }
        let Self { done, good, out_of_reach, .. } = self;
        assert!(good > 0, "no call succeeded");
        eprintln!("{} calls: {good} succeeded, {out_of_reach} failed as a branch was away", done.len());
        None
    }

    /// Does `act` as `user` on the local disk (0) or in the pool (1).
    fn take(&mut self, which: usize, user: u32, act: &Act) -> io::Result<String> {
        acting_as(user, || act.take(&self.tops[which], &mut self.open[which]))
    }

    /// The user who does `act`: any one, but that who opened the file it works with, as the kernel does not tell the daemon
    /// of others who write by passthrough (docs/limits.md).
    fn user_of(&mut self, act: &Act) -> u32 {
        let user = USERS[self.dice.usize(..USERS.len())];
        if let Some(slot) = act.opens() {
            self.openers[slot] = user;
        }
        act.file_in_use().map_or(user, |slot| self.openers[slot])
    }

    /// Whether `act` may have another answer than on a local disk.
    fn is_left_out(&self, act: &Act) -> bool {
        if self.events.lose() {
            // It may take effect later, or by half.
            return act.is_of_what_is_open() || matches!(act, Act::Write(..) | Act::OpenNew(..));
        }
        // Where the daemon dies an exchange may be EIO, and removed directories are ESTALE (docs/operate.md).
        let exchanges = matches!(act, Act::RenameWith(.., flags) if *flags == RenameFlags::EXCHANGE);
        let is_removed = |slot: usize| {
            self.open[0].dirs[slot].as_ref().is_some_and(|dir| dir.metadata().unwrap().nlink() == 0)
        };
        if self.events.deaths > 0 && (exchanges || act.dirs_in_use().any(is_removed)) {
            return true;
        }
        let has_no_name = |slot: usize| {
            self.open[0].files[slot].as_ref().is_some_and(|file| file.metadata().unwrap().nlink() == 0)
        };
        // Files without a name, with two, or that get an attribute do not leave a full branch.
        self.events.full_branch
            && (act.is_refused_on_a_full_branch() || act.grows_open().is_some_and(has_no_name))
    }

    /// `act` failed as a branch is away: when it is back, it was done or was not.
    fn done_or_not(&mut self, user: u32, act: &Act, away: &Away) -> Option<String> {
        if let Act::OpenDir(slot, _) = act {
            self.open.iter_mut().for_each(|open| open.dirs[*slot] = None);
        }
        if act.only_asks() {
            return None;
        }
        if let Some(slot) = act.opens() {
            self.open.iter_mut().for_each(|open| open.files[slot] = None);
        }
        // A call that was given up may still take effect when the branch is back.
        away.wait_for_late_calls();
        let found = match within_reach(&self.tops[1]) {
            Ok(found) => found,
            Err(error) => return Some(format!("the branch does not come back: {error}")),
        };
        let before = tree(&self.tops[0]).unwrap();
        if found == before {
            return None;
        }
        let expected = self.take(0, user, act);
        let after = tree(&self.tops[0]).unwrap();
        (found != after).then(|| {
            let differ =
                found.iter().filter(|(path, node)| after.get(*path) != Some(*node)).collect::<Vec<_>>();
            let lacks = after.keys().filter(|path| !found.contains_key(*path)).collect::<Vec<_>>();
            format!("half done ({}): differ {differ:?}, missing {lacks:?}", shown(&expected))
        })
    }
}

fn is_out_of_reach(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOSPC.raw_os_error())
}

/// An answer, or the name of the error.
fn shown(answer: &io::Result<String>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        // Either says that a directory is in the way (POSIX, rename).
        Err(error) if error.raw_os_error() == Some(Errno::NOTEMPTY.raw_os_error()) => {
            io::Error::from(Errno::EXIST).to_string()
        }
        Err(error) => error.to_string(),
    }
}

/// Like [`tree`], when all branches are there again.
pub(crate) fn within_reach(top: &Path) -> io::Result<BTreeMap<PathBuf, String>> {
    let began = Instant::now();
    loop {
        match tree(top) {
            Err(error) if is_out_of_reach(&error) && began.elapsed() < AWAY => {
                std::thread::sleep(Duration::from_millis(50));
            }
            found => return found,
        }
    }
}
