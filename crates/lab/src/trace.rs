//! Kernel trace of a mount's clients and daemon, in a separate tracing instance: it disturbs no other tracing and is
//! removed on drop.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cleanup::{self, Entry};
use crate::shell::command;

/// Mount point of tracefs.
const TRACING: &str = "/sys/kernel/tracing";

/// An instance of the kernel's tracing, removed when it drops.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    // Dropped in this order.
    _instance: Entry,
    _mount: Option<(Entry, Entry)>,
}

impl Trace {
    /// Makes an instance that records nothing yet; mounts tracefs if it is not mounted.
    pub fn new(name: &str) -> Result<Self> {
        let (top, mount) = if Path::new(TRACING).join("instances").exists() {
            (PathBuf::from(TRACING), None)
        } else {
            let at = cleanup::fresh("tracefs")?;
            let dir = Entry::dir(&at)?;
            let entries = (Entry::mount(&at)?, dir);
            command("mount").args(["-t", "tracefs", "tracefs"]).arg(&at).run()?;
            (at, Some(entries))
        };
        let path = top.join("instances").join(format!("fsstack-{name}-{}", std::process::id()));
        let instance = Entry::kernel_dir(&path)?;
        Ok(Self { path, _instance: instance, _mount: mount })
    }

    /// Writes one of its files.
    pub fn set(&self, file: &str, value: &str) -> Result<()> {
        fs::write(self.path.join(file), value).with_context(|| format!("{file} of a trace"))
    }

    /// Recorded events, oldest first.
    pub fn text(&self) -> Result<String> {
        let recorded = fs::read(self.path.join("trace")).context("reading a trace")?;
        // A program's name may be any bytes.
        Ok(String::from_utf8_lossy(&recorded).into_owned())
    }

    /// Discards recorded events.
    pub fn clear(&self) -> Result<()> {
        self.set("trace", "")
    }

    /// Parses recorded events; fails if the buffers overflowed.
    pub fn events(&self) -> Result<Vec<Event>> {
        let text = self.text()?;
        let counts = text.lines().find_map(|line| line.split_once("entries-in-buffer/entries-written: "));
        let (kept, written) = counts
            .and_then(|(_, rest)| rest.split_whitespace().next()?.split_once('/'))
            .context("no counts in a trace")?;
        if kept != written {
            bail!("a trace has lost events: {kept} of {written} are left");
        }
        Ok(text.lines().filter_map(Event::read).collect())
    }
}

/// A recorded event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The thread that did it.
    pub thread: i32,
    /// Time in microseconds.
    pub at: u64,
    /// Event.
    pub what: What,
}

/// Kind of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A request was sent to a FUSE daemon.
    Sent {
        /// The mount's connection.
        connection: u32,
        /// The request's number there.
        unique: u64,
        /// Operation, such as `LOOKUP`.
        name: String,
    },
    /// A request was answered.
    Ended {
        /// The mount's connection.
        connection: u32,
        /// The request's number there.
        unique: u64,
    },
    /// The system call of that number was entered.
    Enter(i64),
    /// The system call returned.
    Exit(i64),
    /// The CPU switched threads.
    Switch {
        /// The one that ran.
        from: i32,
        /// The one that runs now.
        to: i32,
    },
}

impl Event {
    /// Parses a trace line of a known event.
    pub fn read(line: &str) -> Option<Self> {
        // A thread's name has at most 15 bytes, padded to 16.
        let (_, rest) = line.split_at_checked(17)?;
        let (thread, rest) = rest.split_once(" [")?;
        let (before, rest) = rest.split_once(": ")?;
        let (seconds, micros) = before.rsplit(' ').next()?.split_once('.')?;
        let at = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
        let (event, answer) = rest.split_once(": ")?;
        Some(Self { thread: thread.trim().parse().ok()?, at, what: What::read(event, answer)? })
    }
}

impl What {
    fn read(event: &str, answer: &str) -> Option<Self> {
        let after = |key: &str| answer.split_once(key).and_then(|(_, rest)| rest.split(' ').next());
        let request = || Some((after("connection ")?.parse().ok()?, after("req ")?.parse().ok()?));
        Some(match event {
            "fuse_request_send" => {
                let (connection, unique) = request()?;
                let name = after("(FUSE_")?.trim_end_matches(')').to_owned();
                Self::Sent { connection, unique, name }
            }
            "fuse_request_end" => {
                let (connection, unique) = request()?;
                Self::Ended { connection, unique }
            }
            "sys_enter" => Self::Enter(after("NR ")?.parse().ok()?),
            "sys_exit" => Self::Exit(after("NR ")?.parse().ok()?),
            "sched_switch" => Self::Switch {
                from: after("prev_pid=")?.parse().ok()?,
                to: after("next_pid=")?.parse().ok()?,
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_trace_are_taken_apart() {
        let sent = "           <...>-123456  [001] ...1.  4321.000002: fuse_request_send: connection 52 req 18 opcode 1 (FUSE_LOOKUP) len 42 ";
        let what = What::Sent { connection: 52, unique: 18, name: "LOOKUP".into() };
        assert_eq!(Event::read(sent), Some(Event { thread: 123_456, at: 4_321_000_002, what }));
        let read =
            |event: &str| Event::read(&format!("    a-b [1] c: d-7       [000] d..2.     0.500000: {event}"));
        let what = |event: &str| read(event).map(|event| event.what);
        assert_eq!(
            what("fuse_request_end: connection 52 req 18 len 144 error 0"),
            Some(What::Ended { connection: 52, unique: 18 })
        );
        assert_eq!(what("sys_enter: NR 437 (ffffff9c, 7f00, 7f10, 18, 0, 0)"), Some(What::Enter(437)));
        assert_eq!(what("sys_exit: NR 437 = -2"), Some(What::Exit(437)));
        let switch = "sched_switch: prev_comm=a b prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=fuse-0 next_pid=9 next_prio=120";
        assert_eq!(what(switch), Some(What::Switch { from: 7, to: 9 }));
        assert_eq!(read(switch).map(|event| event.thread), Some(7));
        for other in ["", "# tracer: nop", "sched_waking: comm=a pid=1", "sys_exit: NR x = 1"] {
            assert_eq!(read(other), None, "{other}");
            assert_eq!(Event::read(other), None, "{other}");
        }
    }
}
