//! The daemon's log: syslog (and so the journal), a file, or stderr, with a level that can change at run time.
//!
//! A message is one line whatever it quotes: control characters in names are escaped (`fsstack_pool::Printable`). A log
//! that cannot take a line loses it: requests never wait for the log. Files and stderr are written by a thread
//! (`writer.rs`).

mod recent;
mod writer;

pub(crate) use recent::recent;

use fsstack_pool::Printable;
use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicU8, Ordering};
use std::fmt::{self, Write as _};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use writer::Writer;

/// Longest wait for unwritten lines at the daemon's end.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(2);

/// Destination of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// The system's log, under the facility "daemon".
    Syslog,
    /// A file, appended to.
    File(PathBuf),
    /// The terminal of a daemon in the foreground.
    Stderr,
}

/// Prints the form that `log=` takes.
impl fmt::Display for LogTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syslog => out.write_str("syslog"),
            Self::Stderr => out.write_str("stderr"),
            Self::File(path) => Printable::path(path).fmt(out),
        }
    }
}

/// Level and destination of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Where lines go.
    pub target: LogTarget,
    /// Least severe level written at the start.
    pub level: Level,
}

/// Levels by their names in `log-level`, least detailed first.
pub(crate) const LEVELS: [(&str, Level); 5] = [
    ("error", Level::ERROR),
    ("warn", Level::WARN),
    ("info", Level::INFO),
    ("debug", Level::DEBUG),
    ("trace", Level::TRACE),
];

/// The log's level, changeable at run time; clones share it.
#[derive(Clone, Debug)]
pub struct LogLevel(Arc<AtomicU8>);

impl LogLevel {
    fn new(level: Level) -> Self {
        let handle = Self(Arc::new(AtomicU8::new(0)));
        handle.set(level);
        handle
    }

    /// Returns the least severe level that is written.
    pub fn get(&self) -> Level {
        LEVELS.get(usize::from(self.0.load(Ordering::Relaxed))).map_or(Level::INFO, |(_, level)| *level)
    }

    /// Sets the least severe level that is written.
    pub fn set(&self, level: Level) {
        let place =
            LEVELS.iter().zip(0_u8..).find(|((_, known), _)| *known == level).map_or(2, |(_, place)| place);
        self.0.store(place, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }

    /// Writes one level more, up to "trace" (SIGUSR1).
    pub fn raise(&self) {
        self.step(|place| (place + 1).min(LEVELS.len() - 1));
    }

    /// Writes one level less, down to "error" (SIGUSR2).
    pub fn lower(&self) {
        self.step(|place| place.saturating_sub(1));
    }

    fn step(&self, next: impl FnOnce(usize) -> usize) {
        let place = next(usize::from(self.0.load(Ordering::Relaxed)));
        if let Some((_, level)) = LEVELS.get(place) {
            self.set(*level);
        }
    }
}

/// The process's log; its clones are the same log.
#[derive(Clone, Debug)]
pub struct LogHandle {
    /// Least severe level that is written.
    pub level: LogLevel,
    writer: Option<Writer>,
}

impl LogHandle {
    /// Reopens the log's file by its name, after logrotate renamed it (SIGHUP).
    pub fn reopen(&self) {
        if let Some(writer) = &self.writer {
            writer.reopen();
        }
    }

    /// Waits until the lines so far are written, at most two seconds.
    pub fn flush(&self) {
        if let Some(writer) = &self.writer {
            writer.flush(LAST_LINES_TIMEOUT);
        }
    }
}

/// Sends all messages of the process to the target. A thread may be started, which inherits the caller's signal mask.
pub fn start(settings: &LogSettings) -> io::Result<LogHandle> {
    let level = LogLevel::new(settings.level);
    let sink = Sink::open(&settings.target)?;
    let writer = match &sink {
        Sink::Written { by, .. } => Some(by.clone()),
        Sink::Syslog(_) => None,
    };
    let log = Log { level: level.clone(), sink };
    tracing::subscriber::set_global_default(log).map_err(io::Error::other)?;
    tracing::callsite::rebuild_interest_cache();
    Ok(LogHandle { level, writer })
}

/// Like [`start`], for a pool that is mounted already: messages go to syslog if its file cannot be opened any more.
pub fn start_anyway(settings: &LogSettings) -> io::Result<LogHandle> {
    start(settings).or_else(|error| {
        let log = start(&LogSettings { target: LogTarget::Syslog, level: settings.level })?;
        tracing::error!(%error, "log: its file cannot be opened; messages go to syslog until the daemon is replaced");
        Ok(log)
    })
}

/// The subscriber: no spans, one line an event.
struct Log {
    level: LogLevel,
    sink: Sink,
}

impl Subscriber for Log {
    fn register_callsite(&self, site: &'static Metadata<'static>) -> Interest {
        if self.enabled(site) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, site: &Metadata<'_>) -> bool {
        site.is_event() && *site.level() <= self.level.get()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.level.get()))
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine::default();
        event.record(&mut line);
        recent::note(event.metadata(), &line);
        let text = Printable(line.text().as_bytes()).to_string();
        self.sink.write(*event.metadata().level(), &text);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event's message and its other fields.
#[derive(Default)]
struct LogLine {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl LogLine {
    /// The message, then the fields as `name=value`.
    fn text(&self) -> String {
        let fields = self.fields.iter().map(|(name, value)| format!(" {name}={value}"));
        std::iter::once(self.message.clone()).chain(fields).collect()
    }
}

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            // Writing to a String cannot fail.
            "message" => drop(write!(self.message, "{value:?}")),
            name => self.fields.push((name, format!("{value:?}"))),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

enum Sink {
    Syslog(Mutex<Option<UnixDatagram>>),
    Written { by: Writer, format: fn(Level, &str) -> String },
}

impl Sink {
    fn open(target: &LogTarget) -> io::Result<Self> {
        Ok(match target {
            LogTarget::Syslog => Self::Syslog(Mutex::new(connect())),
            LogTarget::File(path) => {
                let by = Writer::to_file(path, |text| file_line(Level::WARN, text))?;
                Self::Written { by, format: file_line }
            }
            LogTarget::Stderr => {
                let by = Writer::to_stderr(|text| stderr_line(Level::WARN, text))?;
                Self::Written { by, format: stderr_line }
            }
        })
    }

    fn write(&self, level: Level, text: &str) {
        match self {
            Self::Syslog(socket) => {
                let line = format!("<{}>fsstack[{}]: {text}", priority(level), std::process::id());
                // The socket never blocks, so no thread waits for the lock for long.
                send(&mut socket.lock(), line.as_bytes());
            }
            Self::Written { by, format } => by.write(format(level, text)),
        }
    }
}

fn file_line(level: Level, text: &str) -> String {
    format!("{} {level} {text}\n", utc_now())
}

fn stderr_line(level: Level, text: &str) -> String {
    format!("fsstack: {level} {text}\n")
}

/// The socket that every syslog daemon listens on; never waits for it.
fn connect() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    socket.connect("/dev/log").ok()?;
    Some(socket)
}

/// A restarted syslog daemon has a new socket: connect once more, then drop the line.
fn send(socket: &mut Option<UnixDatagram>, line: &[u8]) {
    let sent = |socket: &Option<UnixDatagram>| match socket {
        Some(open) => match open.send(line) {
            Err(refused) => refused.kind() == io::ErrorKind::WouldBlock,
            Ok(_) => true,
        },
        None => false,
    };
    if !sent(socket) {
        *socket = connect();
        sent(socket);
    }
}

/// RFC 3164: facility 3 (daemon) times 8 plus the severity. The time is left to the receiver, which has a clock too.
fn priority(level: Level) -> u8 {
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    3 * 8 + severity
}

fn utc_now() -> String {
    let now = fsstack_sync::time::SystemTime::now()
        .duration_since(fsstack_sync::time::UNIX_EPOCH)
        .unwrap_or_default();
    utc(now.as_secs())
}

/// A time as `2026-01-31T12:34:56Z`.
pub(crate) fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_the_calendar_has_them() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_798_761_599), "2026-12-31T23:59:59Z");
    }

    #[test]
    fn the_level_moves_between_its_ends() {
        let level = LogLevel::new(Level::DEBUG);
        level.raise();
        level.raise();
        assert_eq!(level.get(), Level::TRACE);
        (0..9).for_each(|_| level.lower());
        assert_eq!(level.get(), Level::ERROR);
    }

    #[test]
    fn a_line_holds_what_was_said_escaped_and_only_above_the_level() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let settings = LogSettings { target: LogTarget::File(path.clone()), level: Level::INFO };
        let log = start(&settings).unwrap();
        tracing::info!(branch = "a\nb", "full\x1b[2J");
        tracing::debug!("not yet");
        log.level.raise();
        tracing::debug!("now");
        log.flush();
        let written = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = written.lines().map(|line| line.split_once("Z ").unwrap().1).collect();
        assert_eq!(lines, [r"INFO full\033[2J branch=a\012b", "DEBUG now"]);
    }
}
