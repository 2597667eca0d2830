//! Totals of calls by caller, in a table with a bound.
//!
//! The kernel names threads, and a look at the process of one costs more than most calls. So each thread has a row, and
//! its process is looked for once, when the row is added; readers add up the rows of a process.
//!
//! When the table is full, rows without a call since the last look make room, and their totals go to the row of the
//! others. A reader that takes differences knows by the numbers which rows have gone there, and subtracts them.

use std::collections::HashMap;

use fsstack_pool::Ino;
use fsstack_sync::time::{Duration, Instant};

use super::callers::CallerProgram;

/// Callers that have a row; calls of others are added up in one more.
const CALLERS: usize = 4096;
/// The row of callers that have none.
const OTHERS: CallerKey = CallerKey { thread: u32::MAX, uid: u32::MAX, dir: None };

/// A caller whose calls are added up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallerKey {
    /// The thread; 0: the kernel by itself, or a thread that the daemon cannot see.
    pub thread: u32,
    /// The user.
    pub uid: u32,
    /// The directory it works in, if that is wanted and known. A number, since a path has no bound.
    pub dir: Option<Ino>,
}

/// Calls of a caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallTotals {
    /// Calls.
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// Duration of all of them.
    pub took: Duration,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

/// Row of a caller.
#[derive(Clone, Debug, Default)]
pub struct CallerRow {
    /// Its number, from 1; 0: the row of callers that have none. A row that was dropped and added again has a new one.
    pub number: u64,
    /// The thread's process when the row was added; of a thread that had ended its own id. `u32::MAX`: callers that
    /// have no row.
    pub pid: u32,
    /// The program's name at that time; empty if it had ended.
    pub program: Vec<u8>,
    /// Its calls.
    pub totals: CallTotals,
    /// Looks at the table before its last call.
    looks: u64,
}

/// Totals since somebody began to look.
#[derive(Clone, Debug)]
pub struct CallProfile {
    /// When that was.
    pub since: Instant,
    /// Rows by caller.
    pub rows: HashMap<CallerKey, CallerRow>,
    /// Number of the row that was added last.
    last: u64,
    /// Looks at the table.
    looks: u64,
    /// Rows have made room since the last look.
    made_room: bool,
}

impl CallTotals {
    /// Adds calls of the same caller.
    fn add(&mut self, more: &Self) {
        self.calls += more.calls;
        self.errors += more.errors;
        self.took += more.took;
        self.read += more.read;
        self.written += more.written;
    }
}

impl CallProfile {
    pub(super) fn new(since: Instant) -> Self {
        Self { since, rows: HashMap::new(), last: 0, looks: 0, made_room: false }
    }

    /// Returns the table as it is, for somebody who looks.
    pub(super) fn look(&mut self) -> Self {
        self.looks += 1;
        self.made_room = false;
        self.clone()
    }

    /// Adds a call to a caller's row, or to that of the others if the caller can have none. False: the caller is new.
    pub(super) fn add(&mut self, key: &CallerKey, call: &CallTotals) -> bool {
        if let Some(row) = self.rows.get_mut(key) {
            row.totals.add(call);
            row.looks = self.looks;
            return true;
        }
        if self.has_room() {
            return false;
        }
        self.add_to_others(call);
        true
    }

    /// Adds the row of a new caller.
    pub(super) fn add_new(&mut self, key: CallerKey, program: CallerProgram, call: &CallTotals) {
        // Another thread may have added it, or the last row, meanwhile.
        if self.add(&key, call) {
            return;
        }
        self.last += 1;
        let row = CallerRow {
            number: self.last,
            pid: program.pid,
            program: program.name,
            totals: *call,
            looks: self.looks,
        };
        self.rows.insert(key, row);
    }

    /// Whether a row can be added. A full table drops idle rows, once for each look.
    fn has_room(&mut self) -> bool {
        if CALLERS <= self.rows.len() && !self.made_room {
            self.made_room = true;
            self.drop_idle();
        }
        self.rows.len() < CALLERS
    }

    /// Drops rows without a call since the last look.
    fn drop_idle(&mut self) {
        let looks = self.looks;
        let mut dropped = CallTotals::default();
        self.rows.retain(|key, row| {
            let stays = row.looks == looks || *key == OTHERS;
            if !stays {
                dropped.add(&row.totals);
            }
            stays
        });
        if dropped.calls > 0 {
            self.add_to_others(&dropped);
        }
    }

    fn add_to_others(&mut self, calls: &CallTotals) {
        let none = || CallerRow { pid: u32::MAX, ..CallerRow::default() };
        self.rows.entry(OTHERS).or_insert_with(none).totals.add(calls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(thread: u32) -> CallerKey {
        CallerKey { thread, uid: 0, dir: None }
    }

    fn call(profile: &mut CallProfile, thread: u32) {
        let call = CallTotals { calls: 1, ..CallTotals::default() };
        if !profile.add(&key(thread), &call) {
            profile.add_new(key(thread), CallerProgram { pid: thread, name: Vec::new() }, &call);
        }
    }

    /// A table that is full.
    fn full() -> CallProfile {
        let mut profile = CallProfile::new(Instant::now());
        drop(profile.look());
        (0..).take(CALLERS).for_each(|thread| call(&mut profile, thread));
        assert_eq!(profile.rows.len(), CALLERS);
        profile
    }

    fn calls_in(profile: &CallProfile) -> u64 {
        profile.rows.values().map(|row| row.totals.calls).sum()
    }

    #[test]
    fn callers_beyond_the_bound_are_added_up_while_all_rows_are_in_use() {
        let mut profile = full();
        call(&mut profile, 5000);
        call(&mut profile, 5001);
        assert_eq!((profile.rows.len(), profile.rows[&OTHERS].totals.calls), (CALLERS + 1, 2));
        assert_eq!((profile.rows[&OTHERS].pid, profile.rows[&OTHERS].number), (u32::MAX, 0));
        drop(profile.look());
        (0..).take(CALLERS).for_each(|thread| call(&mut profile, thread));
        call(&mut profile, 5000);
        assert_eq!((profile.rows.len(), profile.rows[&OTHERS].totals.calls), (CALLERS + 1, 3));
    }

    #[test]
    fn rows_that_were_idle_since_the_last_look_make_room_for_new_callers() {
        let mut profile = full();
        call(&mut profile, 5000);
        let before = profile.look();
        call(&mut profile, 0);
        call(&mut profile, 5000);
        assert_eq!(profile.rows.len(), 3);
        assert_eq!(profile.rows[&key(0)].totals.calls, 2);
        assert_eq!((profile.rows[&key(5000)].totals.calls, profile.rows[&key(5000)].pid), (1, 5000));
        assert_eq!(profile.rows[&OTHERS].totals.calls, CALLERS as u64);
        // One that comes back begins at zero, with another number.
        call(&mut profile, 1);
        assert_eq!(profile.rows[&key(1)].totals.calls, 1);
        assert_ne!(profile.rows[&key(1)].number, before.rows[&key(1)].number);
        assert_eq!(profile.rows[&key(0)].number, before.rows[&key(0)].number);
        assert_eq!(calls_in(&profile), calls_in(&before) + 3);
    }
}
