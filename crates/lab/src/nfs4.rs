//! A client of NFS version 4.0 that keeps raw handles, as root: stateless calls, and as much state as making, writing
//! and reading files needs.

mod lock;
mod xdr;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use xdr::{Reply, Words, putfh, read_of, record, write_of};

pub use lock::HeldLock;
pub use xdr::{LAST, read_call, read_reply, write_reply};

const CLOSE: u32 = 4;
const COMMIT: u32 = 5;
const GETATTR: u32 = 9;
const GETFH: u32 = 10;
const LOOKUP: u32 = 15;
const OPEN: u32 = 18;
const OPEN_CONFIRM: u32 = 20;
const PUTROOTFH: u32 = 24;
const READDIR: u32 = 26;
const REMOVE: u32 = 28;
const SETCLIENTID: u32 = 35;
const SETCLIENTID_CONFIRM: u32 = 36;

/// The server is not ready yet: NFS4ERR_DELAY and NFS4ERR_GRACE.
const LATER: [u32; 2] = [10008, 10013];
/// Flag in the reply to `OPEN` for an owner that is new to the server.
const CONFIRM: u32 = 2;
/// Time limit for a reply, and for a server that is not ready.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest reply in bytes.
const LONGEST: usize = 16 << 20;

/// Error of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NfsError {
    /// An `NFS4ERR_*`.
    #[error("NFS4ERR {0}")]
    Status(u32),
    /// No reply, or a malformed one.
    #[error("{0}")]
    Broken(String),
}

impl NfsError {
    /// The object that the handle names is gone.
    pub const STALE: Self = Self::Status(70);
    /// No object has that name.
    pub const NOENT: Self = Self::Status(2);
    /// An object has that name already.
    pub const EXIST: Self = Self::Status(17);
    /// Error of nfs-ganesha for a handle that cannot be followed now.
    pub const SERVER_FAULT: Self = Self::Status(10006);
}

impl From<std::io::Error> for NfsError {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(match error.kind() {
            // The kernel's word for the time limit of a socket.
            std::io::ErrorKind::WouldBlock => "the server did not answer in time".to_owned(),
            _ => error.to_string(),
        })
    }
}

/// Result of a call.
pub type Told<T> = Result<T, NfsError>;

/// Mode of opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The file must exist.
    Existing,
    /// The file is made if missing.
    Made,
    /// Made with this verifier: a second call with the same one counts as a retransmission.
    MadeBy(u64),
}

/// A file that is open.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Its handle.
    pub handle: Vec<u8>,
    state: [u8; 16],
}

/// Returns the record of a call that writes to an open file, for a client with many calls in flight.
///
/// # Errors
/// The block is too long.
pub fn write_call(number: u32, file: &Opened, offset: u64, bytes: &[u8]) -> Told<Vec<u8>> {
    record(number, &write_of(&file.handle, &file.state, offset, bytes))
}

/// A client of a server, by one connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    /// Path below the server's root.
    export: String,
    calls: u32,
    owner: Option<Owner>,
}

/// Owner of open files.
#[derive(Clone, Copy, Debug)]
struct Owner {
    client: u64,
    sequence: u32,
}

impl Client {
    /// Connects to the server's `export` below its root.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn new(server: SocketAddr, export: &str) -> Told<Self> {
        Self::over(TcpStream::connect(server)?, export)
    }

    /// Like [`Self::new`], by a connection to the server.
    ///
    /// # Errors
    ///
    /// The connection takes no options.
    pub fn over(stream: TcpStream, export: &str) -> Told<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { stream, export: export.to_owned(), calls: 0, owner: None })
    }

    /// Returns the handle of `path` below the export.
    ///
    /// # Errors
    /// The server's error.
    pub fn handle(&mut self, path: &str) -> Told<Vec<u8>> {
        let names = self.export.split('/').chain(path.split('/')).filter(|name| !name.is_empty());
        let names: Vec<String> = names.map(str::to_owned).collect();
        let mut ops = vec![Words::of(&[PUTROOTFH])];
        ops.extend(names.iter().map(|name| Words::of(&[LOOKUP]).opaque(name.as_bytes())));
        ops.push(Words::of(&[GETFH]));
        self.ask(&ops, |reply| {
            reply.operations(names.len() + 2)?;
            reply.opaque().map(<[u8]>::to_vec)
        })
    }

    /// Returns the file id of the handle's object.
    ///
    /// # Errors
    /// The server's error.
    pub fn fileid(&mut self, handle: &[u8]) -> Told<u64> {
        self.number(handle, 20)
    }

    /// Returns the size of the handle's file.
    ///
    /// # Errors
    /// The server's error.
    pub fn size(&mut self, handle: &[u8]) -> Told<u64> {
        self.number(handle, 4)
    }

    /// Returns a 64-bit attribute by its number (RFC 7531).
    fn number(&mut self, handle: &[u8], attribute: u32) -> Told<u64> {
        self.ask(&[putfh(handle), Words::of(&[GETATTR, 1, 1 << attribute])], |reply| {
            reply.operations(2)?;
            reply.bitmap()?;
            reply.word()?; // length of the values
            reply.long()
        })
    }

    /// Looks `name` up in a directory and returns its file id, like stat(1).
    ///
    /// # Errors
    /// The server's error.
    pub fn stat(&mut self, dir: &[u8], name: &str) -> Told<u64> {
        let ops = [
            putfh(dir),
            Words::of(&[LOOKUP]).opaque(name.as_bytes()),
            Words::of(&[GETFH]),
            Words::of(&[GETATTR, 1, 1 << 20]),
        ];
        self.ask(&ops, |reply| {
            reply.operations(3)?;
            reply.opaque()?;
            reply.operations(1)?;
            reply.bitmap()?;
            reply.word()?;
            reply.long()
        })
    }

    /// Reads up to `len` bytes from `offset`, without an open: the server opens the file for the call.
    ///
    /// # Errors
    /// The server's error.
    pub fn read(&mut self, handle: &[u8], offset: u64, len: u32) -> Told<Vec<u8>> {
        // The all-zero state id means no open.
        self.read_by(handle, &[0; 16], offset, len)
    }

    /// Like [`Self::read`] for an open file.
    ///
    /// # Errors
    /// The server's error.
    pub fn read_open(&mut self, file: &Opened, offset: u64, len: u32) -> Told<Vec<u8>> {
        self.read_by(&file.handle, &file.state, offset, len)
    }

    fn read_by(&mut self, handle: &[u8], state: &[u8; 16], offset: u64, len: u32) -> Told<Vec<u8>> {
        self.ask(&read_of(handle, state, offset, len), |reply| reply.read().map(<[u8]>::to_vec))
    }

    /// Returns the sorted names of a directory, from its first page.
    ///
    /// # Errors
    /// The server's error.
    pub fn list(&mut self, handle: &[u8]) -> Told<Vec<String>> {
        let list = Words::of(&[READDIR]).long(0).long(0).words(&[8192, 32768, 0]);
        self.ask(&[putfh(handle), list], |reply| {
            reply.operations(2)?;
            reply.long()?; // verifier
            let mut names = Vec::new();
            while reply.word()? == 1 {
                reply.long()?; // cookie
                names.push(String::from_utf8_lossy(reply.opaque()?).into_owned());
                reply.bitmap()?;
                reply.opaque()?;
            }
            names.sort();
            Ok(names)
        })
    }

    /// Opens `name` in a directory for reading and writing.
    ///
    /// # Errors
    /// The server's error.
    pub fn open(&mut self, dir: &[u8], name: &str, how: How) -> Told<Opened> {
        let Owner { client, sequence } = self.next()?;
        let both_ways_nobody_denied = [3, 0];
        let open = Words::of(&[OPEN, sequence]).words(&both_ways_nobody_denied).long(client).opaque(b"lab");
        let open = match how {
            How::Existing => open.words(&[0]),
            // No attributes.
            How::Made => open.words(&[1, 0, 0, 0]),
            How::MadeBy(verifier) => open.words(&[1, 2]).long(verifier),
        };
        let ops = [putfh(dir), open.words(&[0]).opaque(name.as_bytes()), Words::of(&[GETFH])];
        let (state, flags, handle) = self.ask(&ops, |reply| {
            reply.operations(2)?;
            let state = reply.fixed()?;
            reply.raw(20)?; // how the directory changed
            let flags = reply.word()?;
            reply.bitmap()?;
            if reply.word()? != 0 {
                return Err(NfsError::Broken("a delegation that nobody wants".into()));
            }
            reply.operations(1)?;
            Ok((state, flags, reply.opaque()?.to_vec()))
        })?;
        if flags & CONFIRM == 0 {
            return Ok(Opened { handle, state });
        }
        let sequence = self.next()?.sequence;
        let confirm = Words::of(&[OPEN_CONFIRM]).raw(&state).words(&[sequence]);
        let state = self.ask(&[putfh(&handle), confirm], |reply| {
            reply.operations(2)?;
            reply.fixed()
        })?;
        Ok(Opened { handle, state })
    }

    /// Closes the file.
    ///
    /// # Errors
    /// The server's error.
    pub fn close(&mut self, file: &Opened) -> Told<()> {
        let sequence = self.next()?.sequence;
        let close = Words::of(&[CLOSE, sequence]).raw(&file.state);
        self.ask(&[putfh(&file.handle), close], |_| Ok(()))
    }

    /// Writes all of `bytes`, which the server may keep in memory until [`Self::commit`].
    ///
    /// # Errors
    /// The server's error, also for a short write.
    pub fn write(&mut self, file: &Opened, offset: u64, bytes: &[u8]) -> Told<()> {
        let written = self.ask(&write_of(&file.handle, &file.state, offset, bytes), |reply| {
            reply.operations(2)?;
            reply.len()
        })?;
        if written == bytes.len() {
            return Ok(());
        }
        Err(NfsError::Broken(format!("{written} bytes were written of {}", bytes.len())))
    }

    /// Like [`Self::commit`], with another time limit for the reply: that of large files takes long.
    ///
    /// # Errors
    /// The server's error.
    pub fn commit_within(&mut self, limit: Duration, file: &Opened) -> Told<()> {
        self.stream.set_read_timeout(Some(limit))?;
        let done = self.commit(file);
        self.stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        done
    }

    /// Makes written data durable.
    ///
    /// # Errors
    /// The server's error.
    pub fn commit(&mut self, file: &Opened) -> Told<()> {
        self.ask(&[putfh(&file.handle), Words::of(&[COMMIT]).long(0).words(&[0])], |_| Ok(()))
    }

    /// Removes `name` from a directory.
    ///
    /// # Errors
    /// The server's error.
    pub fn remove(&mut self, dir: &[u8], name: &str) -> Told<()> {
        self.ask(&[putfh(dir), Words::of(&[REMOVE]).opaque(name.as_bytes())], |_| Ok(()))
    }

    /// Owner for the next open or close, registered with the server at first use.
    fn next(&mut self) -> Told<Owner> {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let owner = match self.owner {
            Some(owner) => Owner { sequence: owner.sequence + 1, ..owner },
            None => {
                let name = format!("fsstack-lab {} {}", std::process::id(), CLIENTS.fetch_add(1, Relaxed));
                let set =
                    Words::of(&[SETCLIENTID]).long(u64::from(std::process::id())).opaque(name.as_bytes());
                // No callback listener.
                let set = set.words(&[0x4000_0000]).opaque(b"tcp").opaque(b"127.0.0.1.0.0").words(&[0]);
                let (client, verifier) = self.ask(&[set], |reply| {
                    reply.operations(1)?;
                    Ok((reply.long()?, reply.long()?))
                })?;
                let confirm = Words::of(&[SETCLIENTID_CONFIRM]).long(client).long(verifier);
                self.ask(&[confirm], |_| Ok(()))?;
                Owner { client, sequence: 1 }
            }
        };
        self.owner = Some(owner);
        Ok(owner)
    }

    fn ask<T>(&mut self, ops: &[Words], parse: impl Fn(&mut Reply<'_>) -> Told<T>) -> Told<T> {
        let began = Instant::now();
        loop {
            match self.call(ops, &parse) {
                Err(NfsError::Status(status))
                    if LATER.contains(&status) && began.elapsed() < ANSWER_TIMEOUT =>
                {
                    sleep(Duration::from_millis(50));
                }
                done => return done,
            }
        }
    }

    /// Sends a compound of `ops`; parses what its operations replied.
    fn call<T>(&mut self, ops: &[Words], parse: impl Fn(&mut Reply<'_>) -> Told<T>) -> Told<T> {
        self.calls += 1;
        self.stream.write_all(&record(self.calls, ops)?)?;
        let whole = self.record()?;
        let (number, mut reply) = Reply::of(&whole)?;
        if number != self.calls {
            return Err(NfsError::Broken("the reply is that of another call".into()));
        }
        parse(&mut reply)
    }

    /// Reads one complete reply from its fragments.
    fn record(&mut self) -> Told<Vec<u8>> {
        let mut whole = Vec::new();
        loop {
            let mut mark = [0; 4];
            self.stream.read_exact(&mut mark)?;
            let mark = u32::from_be_bytes(mark);
            let piece = usize::try_from(mark & !LAST).map_err(|e| NfsError::Broken(e.to_string()))?;
            let from = whole.len();
            if LONGEST < from + piece {
                return Err(NfsError::Broken("the answer has no end".into()));
            }
            whole.resize(from + piece, 0);
            self.stream.read_exact(&mut whole[from..])?;
            if mark & LAST != 0 {
                return Ok(whole);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_silent_server_is_given_up_and_a_commit_has_a_limit_of_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(listener.local_addr().unwrap(), "").unwrap();
        let _silent = listener.accept().unwrap();
        assert_eq!(client.stream.write_timeout().unwrap(), Some(ANSWER_TIMEOUT));
        let file = Opened { handle: vec![1], state: [0; 16] };
        let error = client.commit_within(Duration::from_millis(1), &file).unwrap_err();
        assert_eq!(error, NfsError::Broken("the server did not answer in time".into()));
        assert_eq!(client.stream.read_timeout().unwrap(), Some(ANSWER_TIMEOUT));
    }
}
