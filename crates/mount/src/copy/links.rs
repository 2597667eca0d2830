//! Hard links: a file's first name is copied, its further names become links in the pool.
//!
//! Whoever meets a further name while the first is on its way leaves it with the first, whose thread makes the links.

use std::collections::HashMap;
use std::sync::Arc;

use fsstack_sys::Stat;
use parking_lot::Mutex;

use super::batch::Item;

/// Files with several names, by device and inode number.
#[derive(Debug, Default)]
pub(super) struct Links(Mutex<HashMap<(u64, u64), First>>);

/// What has become of a file's first name, and how many names are still to be met.
#[derive(Debug)]
struct First {
    left: u32,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// These wait for it.
    Coming(Vec<Item>),
    /// It is in the pool, there below the directory that is copied into.
    There(Arc<[u8]>),
}

/// What to do with a name.
#[derive(Debug)]
pub(super) enum Turn {
    /// It is the first: copy it, then call [`Links::settle`].
    Copy(Item),
    /// It becomes a link to what is there.
    Link(Item, Arc<[u8]>),
    /// Somebody else does it.
    Wait,
}

impl Links {
    /// A name of the file `stat`, which has several.
    pub(super) fn meet(&self, stat: &Stat, item: Item) -> Turn {
        let mut known = self.0.lock();
        let key = (stat.dev, stat.ino);
        let Some(first) = known.get_mut(&key) else {
            known.insert(key, First { left: stat.nlink.saturating_sub(1), stage: Stage::Coming(Vec::new()) });
            return Turn::Copy(item);
        };
        first.left = first.left.saturating_sub(1);
        match &mut first.stage {
            Stage::Coming(waiting) => {
                waiting.push(item);
                Turn::Wait
            }
            Stage::There(at) => {
                let at = at.clone();
                if first.left == 0 {
                    known.remove(&key);
                }
                Turn::Link(item, at)
            }
        }
    }

    /// The first name of the file `stat` is in the pool at `at`, or failed to come: those that have waited for it.
    pub(super) fn settle(&self, stat: &Stat, at: Option<Arc<[u8]>>) -> Vec<Item> {
        let mut known = self.0.lock();
        let key = (stat.dev, stat.ino);
        let Some(first) = known.get_mut(&key) else { return Vec::new() };
        let Stage::Coming(waiting) = &mut first.stage else { return Vec::new() };
        let waiting = std::mem::take(waiting);
        match at {
            // (The next name that is met is copied in its place.)
            None => drop(known.remove(&key)),
            Some(_) if first.left == 0 => drop(known.remove(&key)),
            Some(at) => first.stage = Stage::There(at),
        }
        waiting
    }
}
