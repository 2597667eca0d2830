//! A program, and its comparison of the pool with a local disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use crate::acts::{Act, SLOTS, attributes, digest, mark};
use crate::events::{Events, now};

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
    open: [[Option<File>; SLOTS]; 2],
    dice: Rng,
    events: Events,
    done: Vec<String>,
    /// How many of them succeeded, and how many did not as a branch was away.
    good: u32,
    out_of_reach: u32,
}

impl Worker {
    pub(crate) fn new(tops: [PathBuf; 2], dice: Rng, events: Events) -> Self {
        tops.iter().for_each(|top| fs::create_dir_all(top).unwrap());
        Self { tops, open: Default::default(), dice, events, done: Vec::new(), good: 0, out_of_reach: 0 }
    }

    /// Works until `ended`, but makes [`LEAST`] calls, and mostly asks while a branch is `away`. Returns the first difference, if there is one.
    pub(crate) fn works(mut self, ended: &AtomicBool, away: &AtomicBool) -> Option<String> {
        while !ended.load(SeqCst) || self.done.len() < LEAST {
            let act = Act::any(&mut self.dice);
            // A change that fails waits for the branch, so there are few meanwhile.
            if away.load(SeqCst) && !act.only_asks() && self.dice.u64(..300) > 0 {
                continue;
            }
            if self.is_left_out(&act) {
                continue;
            }
            let answer = act.take(&self.tops[1], &mut self.open[1]);
            let wrong = match answer {
                Err(error) if self.events.lose_branches && is_out_of_reach(&error) => {
                    self.out_of_reach += 1;
                    self.done_or_not(&act)
                }
                // The new name may need room in its directory.
                Err(error) if self.events.full_branch && act.is_rename() && is_full(&error) => None,
                answer => {
                    let expected = act.take(&self.tops[0], &mut self.open[0]);
                    self.good += u32::from(answer.is_ok());
                    let same = shown(&expected) == shown(&answer);
                    (!same).then(|| format!("expected {}, found {}", shown(&expected), shown(&answer)))
                }
            };
            self.done.push(format!("{act:?}"));
            if let Some(wrong) = wrong {
                let last = &self.done[self.done.len().saturating_sub(SHOWN)..];
                let top = self.tops[1].display();
                let step = self.done.len();
                return Some(format!(
                    "{}: step {step} in {top}, {act:?}: {wrong}; the last: {last:#?}",
                    now()
                ));
            }
        }
        let Self { done, good, out_of_reach, .. } = self;
        assert!(good > 0, "no call succeeded");
        eprintln!("{} calls: {good} succeeded, {out_of_reach} failed as a branch was away", done.len());
        None
    }

    /// Whether `act` may have another answer than on a local disk.
    fn is_left_out(&self, act: &Act) -> bool {
        if self.events.lose_branches {
            // It may take effect later, or by half.
            return act.is_of_an_open_file() || matches!(act, Act::Write(..));
        }
        // It may be EIO where the daemon dies (docs/operate.md).
        let exchanges = matches!(act, Act::RenameWith(.., flags) if *flags == RenameFlags::EXCHANGE);
        if self.events.deaths > 0 && exchanges {
            return true;
        }
        let has_no_name = |slot: usize| {
            self.open[0][slot].as_ref().is_some_and(|file| file.metadata().unwrap().nlink() == 0)
        };
        // Files without a name, with two, or that get an attribute do not leave a full branch.
        self.events.full_branch
            && (act.is_refused_on_a_full_branch() || act.grows_open().is_some_and(has_no_name))
    }

    /// `act` failed as a branch is away: when it is back, it was done or was not.
    fn done_or_not(&mut self, act: &Act) -> Option<String> {
        if act.only_asks() {
            return None;
        }
        if let Act::Open(slot, _) | Act::OpenUnnamed(slot) = act {
            self.open.iter_mut().for_each(|open| open[*slot] = None);
        }
        let found = match within_reach(&self.tops[1]) {
            Ok(found) => found,
            Err(error) => return Some(format!("the branch does not come back: {error}")),
        };
        let before = tree(&self.tops[0]).unwrap();
        if found == before {
            return None;
        }
        let expected = act.take(&self.tops[0], &mut self.open[0]);
        let after = tree(&self.tops[0]).unwrap();
        (found != after).then(|| {
            let differ =
                found.iter().filter(|(path, node)| after.get(*path) != Some(*node)).collect::<Vec<_>>();
            let lacks = after.keys().filter(|path| !found.contains_key(*path)).collect::<Vec<_>>();
            format!("half done ({}): differ {differ:?}, missing {lacks:?}", shown(&expected))
        })
    }
}

/// Like [`mark`]; nothing where there is none.
fn mark_or_none(path: &Path) -> io::Result<String> {
    match mark(path) {
        Err(error) if error.raw_os_error() == Some(Errno::NODATA.raw_os_error()) => Ok(String::new()),
        mark => mark,
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

/// The tree below `top`: attributes, contents, extended attributes.
pub(crate) fn tree(top: &Path) -> io::Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let stat = fs::symlink_metadata(&path)?;
            let mut node = attributes(&stat)?;
            if stat.is_dir() {
                node = format!("{node}, {}", mark_or_none(&path)?);
                dirs.push(path.clone());
            } else if stat.is_symlink() {
                node = format!("{node}, {}", fs::read_link(&path)?.display());
            } else {
                node = format!("{node}, {}, {}", digest(&fs::read(&path)?), mark_or_none(&path)?);
            }
            let name = path.strip_prefix(top).unwrap().to_owned();
            if let Some(twice) = found.insert(name, node) {
                return Err(io::Error::other(format!("{} is listed twice: {twice}", path.display())));
            }
        }
    }
    Ok(found)
}
