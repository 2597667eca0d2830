//! A bulk copy's conversation with the daemon: one connection a copying thread, a JSON document a line, requests that
//! carry many files each. What was reserved and not committed goes when the connection does, however it ends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use crate::client::ClientError;
use crate::operator::{Refusal, RefusalKind};

/// Protocol that the connection is upgraded to.
pub(crate) const PROTOCOL: &str = "fsstack-copy";
/// A line at most.
const LONGEST: u64 = 16 << 20;

/// Requests to the daemon during a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum CopyRequest {
    /// Places for files.
    Reserve {
        /// Directories and what is to come there.
        dirs: Vec<WantedDir>,
    },
    /// Files are whole: they get their names.
    Commit {
        /// Ids of the reservations.
        ids: Vec<u64>,
    },
    /// Files will not come.
    Abandon {
        /// Ids of the reservations.
        ids: Vec<u64>,
    },
    /// Sync everything that the pool holds, including the writes of other processes.
    Sync,
}

/// Files for a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedDir {
    /// Inode number in the pool. The client holds the object open.
    pub ino: u64,
    /// The files.
    pub files: Vec<WantedFile>,
}

/// A file that is to come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedFile {
    /// Its name, as bytes: names need not be text.
    pub name: Vec<u8>,
    /// Bytes it will take.
    pub size: u64,
    /// Branches, by their slots, that could not take it after all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_on: Vec<u16>,
}

/// Answers of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum CopyAnswer {
    /// To `reserve`.
    Reserved {
        /// Staging directories that were not sent before.
        places: Vec<StagingDir>,
        /// One for each file, in order.
        files: Vec<PlaceOrError>,
    },
    /// To `commit`: one for each file, in order; null where it got its name.
    Committed {
        /// Why not.
        errors: Vec<Option<CopyError>>,
    },
    /// To `abandon`.
    Abandoned,
    /// To `sync`.
    Synced {
        /// Why some of it may not be on disk.
        error: Option<CopyError>,
    },
    /// The request as such was wrong.
    Refused {
        /// Why.
        error: String,
    },
}

/// Where a file goes, or why nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlaceOrError {
    /// It is made in the staging directory of the branch, under the decimal digits of the id.
    Place {
        /// By which it is committed.
        id: u64,
        /// The branch's slot.
        branch: u16,
    },
    /// It is not.
    Error(CopyError),
}

/// Where files of a branch are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagingDir {
    /// The branch's slot.
    pub branch: u16,
    /// The branch's path, as bytes.
    pub path: Vec<u8>,
    /// The directory's path below it.
    pub folder: Vec<u8>,
    /// The directory's inode number: it is what was meant.
    pub ino: u64,
    /// Whether the branch is a disk of this machine.
    pub local: bool,
}

/// Why a file is not copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct CopyError {
    /// Number of the error (errno).
    pub errno: i32,
    /// For people.
    pub text: String,
}

/// The daemon's side of one connection; the copy ends when this drops.
pub trait Copying: Send {
    /// Answers one request.
    fn answer(&mut self, request: CopyRequest) -> CopyAnswer;
}

/// Answers the client at the other end until it closes the connection.
pub(crate) fn serve(read: impl Read, mut write: impl Write, copying: &mut dyn Copying) -> io::Result<()> {
    let mut read = BufReader::with_capacity(1 << 16, read);
    let mut line = Vec::new();
    while take_line(&mut read, &mut line)? {
        let answer = match serde_json::from_slice(&line) {
            Ok(request) => copying.answer(request),
            Err(error) => CopyAnswer::Refused { error: error.to_string() },
        };
        write.write_all(&line_of(&answer)?)?;
    }
    Ok(())
}

fn line_of(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// False: there is none any more.
fn take_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    from.take(LONGEST).read_until(b'\n', line)?;
    match line.last() {
        None => Ok(false),
        Some(b'\n') => Ok(true),
        // Cut short: the writer is gone, or its line does not end.
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The command's side of one connection.
#[derive(Debug)]
pub struct CopyClient {
    stream: BufReader<UnixStream>,
    shown: String,
}

impl CopyClient {
    /// Over a connection to the daemon, of which nothing was asked yet.
    pub(crate) fn begin(stream: UnixStream, address: &str, shown: String) -> Result<Self, ClientError> {
        let mut client = Self { stream: BufReader::with_capacity(1 << 16, stream), shown };
        client.upgrade(address).map_err(|error| client.lost(&error))??;
        Ok(client)
    }

    fn upgrade(&mut self, address: &str) -> io::Result<Result<(), ClientError>> {
        let head = format!(
            "POST {address} HTTP/1.1\r\nHost: fsstack\r\nConnection: upgrade\r\nUpgrade: {PROTOCOL}\r\nContent-Length: 0\r\n\r\n"
        );
        self.stream.get_mut().write_all(head.as_bytes())?;
        let (mut line, mut status, mut length) = (Vec::new(), None, 0);
        loop {
            if !take_line(&mut self.stream, &mut line)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_ascii_lowercase();
            status.get_or_insert_with(|| text.split(' ').nth(1).unwrap_or_default().to_owned());
            if let Some(results) = text.strip_prefix("content-length:") {
                length = results.trim().parse().unwrap_or(0);
            }
            if text.is_empty() {
                break;
            }
        }
        if status.as_deref() == Some("101") {
            return Ok(Ok(()));
        }
        let mut body = Vec::new();
        Read::by_ref(&mut self.stream).take(length).read_to_end(&mut body)?;
        Ok(Err(match serde_json::from_slice::<Refusal>(&body) {
            Ok(refusal) if refusal.kind != RefusalKind::Missing => ClientError::Refused(refusal),
            _ => ClientError::NoAnswer(self.shown.clone(), "it does not copy: another version?".to_owned()),
        }))
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn ask(&mut self, request: &CopyRequest) -> Result<CopyAnswer, ClientError> {
        self.exchange(request).map_err(|error| self.lost(&error))
    }

    fn exchange(&mut self, request: &CopyRequest) -> io::Result<CopyAnswer> {
        self.stream.get_mut().write_all(&line_of(request)?)?;
        let mut line = Vec::new();
        if !take_line(&mut self.stream, &mut line)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&line)?)
    }

    fn lost(&self, error: &io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                ClientError::Dead(self.shown.clone())
            }
            _ => ClientError::NoAnswer(self.shown.clone(), error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Copying for Echo {
        fn answer(&mut self, request: CopyRequest) -> CopyAnswer {
            match request {
                CopyRequest::Commit { ids } => CopyAnswer::Committed { errors: vec![None; ids.len()] },
                CopyRequest::Abandon { .. } | CopyRequest::Reserve { .. } | CopyRequest::Sync => {
                    CopyAnswer::Abandoned
                }
            }
        }
    }

    #[test]
    fn each_line_is_answered_and_nonsense_is_refused() {
        let mut results = Vec::new();
        serve(&b"{\"ask\":\"commit\",\"ids\":[1,2]}\nnonsense\n"[..], &mut results, &mut Echo).unwrap();
        let results = String::from_utf8(results).unwrap();
        let lines: Vec<CopyAnswer> =
            results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0], CopyAnswer::Committed { errors: vec![None, None] });
        assert!(matches!(&lines[1], CopyAnswer::Refused { .. }), "{results}");
    }

    #[test]
    fn a_line_that_is_cut_short_ends_it() {
        let ended = serve(&b"{\"ask\":\"commit\",\"ids\":[1"[..], io::sink(), &mut Echo);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
