//! Slow calls, calls by caller, and the last lines of the log.

use serde::{Deserialize, Serialize};

/// Request for slow calls; may also set from when a call is slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SlowRequest {
    /// New threshold.
    #[serde(default)]
    pub threshold: Option<SlowThreshold>,
    /// Only calls with numbers above this one.
    #[serde(default)]
    pub after: u64,
}

/// From when a call is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SlowThreshold {
    /// Calls are not logged.
    Off,
    /// From this duration in microseconds on.
    Micros(u64),
}

/// Output of `fsstack log`: calls that took long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SlowCalls {
    /// From when a call is slow.
    pub threshold: SlowThreshold,
    /// The calls, the oldest first.
    pub calls: Vec<SlowCallShown>,
    /// Slow calls that were overwritten by later ones.
    pub lost: u64,
    /// Number of the last slow call; lower than before: another daemon serves the pool, and counts from 1.
    #[serde(default)]
    pub last: Option<u64>,
}

/// A call that took long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SlowCallShown {
    /// Its number since the daemon began to serve, from 1.
    pub number: u64,
    /// When it ended (UTC).
    pub ended: String,
    /// Duration of its service by the daemon, in microseconds.
    pub micros: u64,
    /// The operation, by the kernel's name.
    pub operation: String,
    /// The path from the pool's root; null if it is not known. Of one of more than 4096 bytes the last part, after
    /// `...`.
    pub path: Option<String>,
    /// The branch in which it was longest; null if it was in none.
    pub branch: Option<String>,
    /// The error it ended with; null if it succeeded.
    pub error: Option<String>,
    /// The calling process; 0: the kernel by itself, or a process that the daemon cannot see.
    pub pid: u32,
    /// The caller's user.
    pub uid: u32,
    /// The calling program; empty if it had ended.
    pub program: String,
}

/// Request for totals of calls; they are kept while somebody asks again within ten seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProfileRequest {
    /// Tell directories apart too.
    #[serde(default)]
    pub directories: bool,
}

/// Totals of calls since somebody began to ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CallsByCaller {
    /// Microseconds since then.
    pub micros: u64,
    /// One a thread, user and directory.
    pub callers: Vec<CallerCalls>,
}

/// Calls of one thread, by one user, in one directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CallerCalls {
    /// The thread's process; 0: the kernel by itself; 4294967295: callers beyond the 4096 that have a row, and calls of
    /// rows that were dropped.
    pub pid: u32,
    /// The user.
    pub uid: u32,
    /// The program.
    pub program: String,
    /// The directory from the pool's root; null if it is not known or not wanted. Of a path of more than 4096 bytes
    /// the last part, after `...`.
    pub directory: Option<String>,
    /// The directory's inode number, by which calls are added up; null if it is not known or not wanted.
    #[serde(default)]
    pub directory_number: Option<u64>,
    /// Calls.
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// Duration of all of them, in microseconds.
    pub micros: u64,
    /// Bytes read by the daemon; passthrough is not counted.
    pub read_bytes: u64,
    /// Bytes written by the daemon.
    pub written_bytes: u64,
    /// The row's number; 0: callers that have none. A full table drops rows without a call since the last request; if
    /// such a caller is back, its row has another number.
    #[serde(default)]
    pub row: u64,
}

/// Output of `fsstack profile`: calls of an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProfileShown {
    /// Subject of a row: `pid`, `uid` or `dir`.
    pub by: String,
    /// Length of the interval in seconds.
    pub seconds: f64,
    /// Rows, the one with the longest calls first.
    pub rows: Vec<ProfileRow>,
}

/// Calls of a program, user or directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProfileRow {
    /// The process, user or directory.
    pub of: String,
    /// The program, where each process has a row.
    pub program: Option<String>,
    /// Calls in the interval.
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// Mean duration of a call in microseconds.
    pub mean_us: f64,
    /// Time spent in calls, per second of the interval: 1.0 is one call all the time.
    pub busy: f64,
    /// Bytes read by the daemon.
    pub read_bytes: u64,
    /// Bytes written by the daemon.
    pub written_bytes: u64,
}

/// The last lines of the daemon's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecentLines {
    /// The oldest first.
    pub lines: Vec<RecentLine>,
}

/// A line of the log, in parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecentLine {
    /// When it was written (UTC).
    pub time: String,
    /// Its level.
    pub level: String,
    /// The module and line of the source that wrote it.
    pub source: String,
    /// The message.
    pub message: String,
    /// Its fields.
    pub fields: Vec<LogField>,
}

/// A field of a log line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LogField {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}
