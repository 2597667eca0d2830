//! Parsers of option values; an error says what would be right.

use crate::log::{LEVELS, LogTarget};
use crate::options::Typed;
use fsstack_pool::{Chain, Floor, Size, suggestion};
use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;
use tracing::Level;

/// Shortest `branch-timeout`: a local call over FUSE takes some microseconds, one over a network milliseconds.
pub(crate) const SHORTEST_BRANCH_TIMEOUT: Duration = Duration::from_millis(100);
/// Text of `Chain::default_create`; a test compares the two.
pub(crate) const DEFAULT_CREATE: &str = "mspmfs>any";
/// Default floor, as in mhddfs and mergerfs.
pub(crate) const DEFAULT_FLOOR: &str = "4G";
/// Reserve for passthrough writers, whose writes cannot go to another branch.
pub(crate) const DEFAULT_HEADROOM: &str = "1G";
/// Largest request that the kernel accepts with its default limits.
pub(crate) const DEFAULT_MAX_WRITE: &str = "1M";

/// Worker threads unless max-threads is given.
pub(crate) const DEFAULT_THREADS: usize = 64;

const PAGE: u64 = 4096;
const LARGEST_WRITE: u64 = 64 << 20;

pub(crate) fn chain(text: &str) -> Result<Chain, String> {
    text.parse().map_err(said)
}

pub(crate) fn mlimit(text: &str) -> Result<Floor, String> {
    Floor::from_mlimit(text).map_err(said)
}

/// Parses a number of bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    size(text).map(|Size(bytes)| bytes)
}

/// Parses bytes a second; 0 means no limit.
pub(crate) fn speed(text: &str) -> Result<Option<NonZeroU64>, String> {
    bytes(text).map(NonZeroU64::new)
}

/// Parses a whole number.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "not a whole number".to_owned())
}

pub(crate) fn size(text: &str) -> Result<Size, String> {
    text.parse().map_err(said)
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(crate) fn threads(text: &str) -> Result<NonZeroUsize, String> {
    match text.parse::<NonZeroUsize>() {
        Ok(count) if count.get() <= 4096 => Ok(count),
        _ => Err("not a number of threads, from 1 to 4096".to_owned()),
    }
}

pub(crate) fn inflight(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(count) if (1..=64).contains(&count) => Ok(count),
        _ => Err("not a number of calls, from 1 to 64".to_owned()),
    }
}

/// Largest number of calls inside one branch that leaves a thread for the others, if there is a second thread.
pub(crate) fn most_inflight(max_threads: Option<NonZeroUsize>) -> usize {
    max_threads.map_or(DEFAULT_THREADS, NonZeroUsize::get).saturating_sub(1).max(1)
}

/// Number of background requests that the kernel sends at once, for all branches together.
///
/// Those of one program (direct I/O beside the page cache, write-back, reading ahead) may all wait for a branch that hangs. So
/// there are more than a program usually has. Eight times `max-threads` requests may wait beside the threads at work; half of
/// them are left to other requests.
pub(crate) fn background_requests(max_threads: Option<NonZeroUsize>) -> u16 {
    let threads = max_threads.map_or(DEFAULT_THREADS, NonZeroUsize::get);
    u16::try_from(4 * threads).unwrap_or(u16::MAX).clamp(64, 1024)
}

/// Reason for refusing `calls` inside one branch.
pub(crate) fn too_many_inflight(calls: usize, max_threads: Option<NonZeroUsize>) -> Option<String> {
    let threads = max_threads.map_or(DEFAULT_THREADS, NonZeroUsize::get);
    (calls > most_inflight(max_threads)).then(|| {
        format!("a branch that hangs would leave none of {threads} threads; fewer than max-threads={threads}")
    })
}

pub(crate) fn max_write(text: &str) -> Result<u32, String> {
    let Size(bytes) = size(text)?;
    match u32::try_from(bytes) {
        Ok(fits) if (PAGE..=LARGEST_WRITE).contains(&bytes) && bytes.is_multiple_of(PAGE) => Ok(fits),
        _ => Err("not a multiple of 4K from 4K to 64M".to_owned()),
    }
}

/// Without a unit mergerfs counts pages.
pub(crate) fn message_size(text: &str) -> String {
    text.parse::<u64>().map_or_else(|_| text.to_owned(), |pages| pages.saturating_mul(PAGE).to_string())
}

/// Returns the pages of a message of `bytes`, in which mergerfs shows its size.
pub(crate) fn message_pages(bytes: u32) -> u64 {
    u64::from(bytes) / PAGE
}

/// Parses the subtype; some bytes have a meaning in the mount table.
pub(crate) fn subtype(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("not a word of letters, digits, \"_\", \".\" and \"-\"".to_owned())
    }
}

pub(crate) fn log_target(typed: &Typed<'_>) -> Result<LogTarget, String> {
    match typed.raw().to_str() {
        Some("syslog") => Ok(LogTarget::Syslog),
        Some("stderr") => Ok(LogTarget::Stderr),
        _ => match typed.absolute_path() {
            Ok(path) => Ok(LogTarget::File(path)),
            Err(_) => Err("not syslog, stderr or the absolute path of a file".to_owned()),
        },
    }
}

pub(crate) fn log_level(text: &str) -> Result<Level, String> {
    const OF_MHDDFS: [(&str, Level); 3] = [("0", Level::DEBUG), ("1", Level::INFO), ("2", Level::WARN)];
    match LEVELS.iter().chain(&OF_MHDDFS).find(|(name, _)| *name == text) {
        Some((_, level)) => Ok(*level),
        None => Err(format!(
            "not one of {}{}",
            LEVELS.map(|(name, _)| name).join(", "),
            suggestion(text, LEVELS.iter().map(|(name, _)| *name))
        )),
    }
}

/// Parses a port on 127.0.0.1, or an address with a port.
pub(crate) fn metrics(text: &str) -> Result<SocketAddr, String> {
    let own = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let told = text.strip_prefix(':').unwrap_or(text);
    told.parse().map(own).or_else(|_| text.parse()).map_err(|_| {
        "neither a port nor an address and a port, as 9190, 127.0.0.1:9190 or [::1]:9190".to_owned()
    })
}

/// Converts a count.
pub(crate) fn count(of: usize) -> u64 {
    u64::try_from(of).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metrics_port_alone_is_one_of_this_machine_only() {
        for (text, expected) in [
            ("9190", "127.0.0.1:9190"),
            (":9190", "127.0.0.1:9190"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("192.0.2.1:9190", "192.0.2.1:9190"),
            ("[::1]:9190", "[::1]:9190"),
        ] {
            assert_eq!(metrics(text).map(|at| at.to_string()).as_deref(), Ok(expected), "{text}");
        }
        for text in ["", ":", "65536", "-1", "127.0.0.1", "localhost:9190", "[::1]"] {
            assert!(metrics(text).unwrap_err().contains("as 9190, 127.0.0.1:9190"), "{text}");
        }
    }
}
