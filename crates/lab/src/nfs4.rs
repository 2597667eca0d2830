//! A client of NFS version 4.0 that keeps raw handles, as root: calls that need no state on the server, and as much
//! state as it takes to make, write and read files.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

const CLOSE: u32 = 4;
const COMMIT: u32 = 5;
const GETATTR: u32 = 9;
const GETFH: u32 = 10;
const LOOKUP: u32 = 15;
const OPEN: u32 = 18;
const OPEN_CONFIRM: u32 = 20;
const PUTFH: u32 = 22;
const PUTROOTFH: u32 = 24;
const READ: u32 = 25;
const READDIR: u32 = 26;
const REMOVE: u32 = 28;
const SETCLIENTID: u32 = 35;
const SETCLIENTID_CONFIRM: u32 = 36;
const WRITE: u32 = 38;

/// The server is about to be ready: NFS4ERR_DELAY and NFS4ERR_GRACE.
const LATER: [u32; 2] = [10008, 10013];
/// Flag of the answer to `OPEN` where the owner is new to the server.
const CONFIRM: u32 = 2;
/// A server that is silent, or not ready, for longer is gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const LAST: u32 = 1 << 31;
/// No answer that was asked for is longer.
const LONGEST: usize = 16 << 20;

/// Error in place of the requested answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NfsError {
    /// An `NFS4ERR_*`.
    #[error("NFS4ERR {0}")]
    Status(u32),
    /// Nothing, or nothing that means something.
    #[error("{0}")]
    Broken(String),
}

impl NfsError {
    /// The object that the handle names is gone.
    pub const STALE: Self = Self::Status(70);
    /// There is nothing of that name.
    pub const NOENT: Self = Self::Status(2);
    /// There is something of that name.
    pub const EXIST: Self = Self::Status(17);
    /// Error of nfs-ganesha for a handle that cannot be followed now.
    pub const SERVER_FAULT: Self = Self::Status(10006);
}

impl From<std::io::Error> for NfsError {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// Result of a call.
pub type Told<T> = Result<T, NfsError>;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is there.
    Existing,
    /// It is made if it is not there.
    Made,
    /// Made with this number: a second call with the same one is the same call, sent again.
    MadeBy(u64),
}

/// A file that is open.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Its handle.
    pub handle: Vec<u8>,
    state: [u8; 16],
}

/// Words of XDR.
#[derive(Clone, Debug, Default)]
struct Words(Vec<u8>);

impl Words {
    fn of(words: &[u32]) -> Self {
        Self::default().words(words)
    }

    fn words(mut self, words: &[u32]) -> Self {
        words.iter().for_each(|word| self.0.extend_from_slice(&word.to_be_bytes()));
        self
    }

    fn long(mut self, long: u64) -> Self {
        self.0.extend_from_slice(&long.to_be_bytes());
        self
    }

    fn opaque(mut self, bytes: &[u8]) -> Self {
        // Names, handles, blocks: far below 4 GiB.
        self = self.words(&[u32::try_from(bytes.len()).unwrap_or(u32::MAX)]);
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// An answer that is being read.
struct Answer<'a>(&'a [u8]);

impl<'a> Answer<'a> {
    fn raw(&mut self, len: usize) -> Told<&'a [u8]> {
        let short = || NfsError::Broken("the answer is cut short".into());
        let (head, rest) = self.0.split_at_checked(len).ok_or_else(short)?;
        self.0 = rest;
        Ok(head)
    }

    fn fixed<const N: usize>(&mut self) -> Told<[u8; N]> {
        let bytes = self.raw(N)?;
        bytes.try_into().map_err(|_| NfsError::Broken("the answer is cut short".into()))
    }

    fn word(&mut self) -> Told<u32> {
        self.fixed().map(u32::from_be_bytes)
    }

    fn long(&mut self) -> Told<u64> {
        self.fixed().map(u64::from_be_bytes)
    }

    fn len(&mut self) -> Told<usize> {
        usize::try_from(self.word()?).map_err(|e| NfsError::Broken(e.to_string()))
    }

    fn opaque(&mut self) -> Told<&'a [u8]> {
        let len = self.len()?;
        let bytes = self.raw(len)?;
        self.raw(len.next_multiple_of(4) - len)?;
        Ok(bytes)
    }

    /// Passes a set of attributes.
    fn bitmap(&mut self) -> Told<()> {
        let words = self.len()?;
        self.raw(words * 4).map(drop)
    }

    /// Passes the number and the status of that many operations that were done.
    fn operations(&mut self, count: usize) -> Told<()> {
        self.raw(8 * count).map(drop)
    }
}

/// A client of a server, by one connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    /// A path below the server's root.
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
    /// A client of what the server shows as `export` below its root.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn new(server: SocketAddr, export: &str) -> Told<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { stream, export: export.to_owned(), calls: 0, owner: None })
    }

    /// The handle of `path` below the export.
    ///
    /// # Errors
    /// As the server says.
    pub fn handle(&mut self, path: &str) -> Told<Vec<u8>> {
        let names = self.export.split('/').chain(path.split('/')).filter(|name| !name.is_empty());
        let names: Vec<String> = names.map(str::to_owned).collect();
        let mut ops = vec![Words::of(&[PUTROOTFH])];
        ops.extend(names.iter().map(|name| Words::of(&[LOOKUP]).opaque(name.as_bytes())));
        ops.push(Words::of(&[GETFH]));
        self.ask(&ops, |answer| {
            answer.operations(names.len() + 2)?;
            answer.opaque().map(<[u8]>::to_vec)
        })
    }

    /// The file id of what the handle leads to.
    ///
    /// # Errors
    /// As the server says.
    pub fn fileid(&mut self, handle: &[u8]) -> Told<u64> {
        self.number(handle, 20)
    }

    /// The size of the file that the handle leads to.
    ///
    /// # Errors
    /// The server's error.
    pub fn size(&mut self, handle: &[u8]) -> Told<u64> {
        self.number(handle, 4)
    }

    /// An attribute that is a number of 64 bits, by its own number (RFC 7531).
    fn number(&mut self, handle: &[u8], attribute: u32) -> Told<u64> {
        self.ask(&[putfh(handle), Words::of(&[GETATTR, 1, 1 << attribute])], |answer| {
            answer.operations(2)?;
            answer.bitmap()?;
            answer.word()?; // length of the values
            answer.long()
        })
    }

    /// Looks `name` up in a directory, and asks for its file id: what stat(1) makes of a name.
    ///
    /// # Errors
    /// As the server says.
    pub fn stat(&mut self, dir: &[u8], name: &str) -> Told<u64> {
        let ops = [
            putfh(dir),
            Words::of(&[LOOKUP]).opaque(name.as_bytes()),
            Words::of(&[GETFH]),
            Words::of(&[GETATTR, 1, 1 << 20]),
        ];
        self.ask(&ops, |answer| {
            answer.operations(3)?;
            answer.opaque()?;
            answer.operations(1)?;
            answer.bitmap()?;
            answer.word()?;
            answer.long()
        })
    }

    /// Bytes of a file from `offset` on, `len` of them at most. Nobody need have opened it: the server opens it for the call.
    ///
    /// # Errors
    /// As the server says.
    pub fn read(&mut self, handle: &[u8], offset: u64, len: u32) -> Told<Vec<u8>> {
        // The state of all zeros stands for no open.
        self.read_by(handle, &[0; 16], offset, len)
    }

    /// The same of an open file, as programs read.
    ///
    /// # Errors
    /// As the server says.
    pub fn read_open(&mut self, file: &Opened, offset: u64, len: u32) -> Told<Vec<u8>> {
        self.read_by(&file.handle, &file.state, offset, len)
    }

    fn read_by(&mut self, handle: &[u8], state: &[u8; 16], offset: u64, len: u32) -> Told<Vec<u8>> {
        let read = Words::of(&[READ]).raw(state).long(offset).words(&[len]);
        self.ask(&[putfh(handle), read], |answer| {
            answer.operations(2)?;
            answer.word()?; // end of file
            answer.opaque().map(<[u8]>::to_vec)
        })
    }

    /// The names in a directory, sorted, from its first page.
    ///
    /// # Errors
    /// As the server says.
    pub fn list(&mut self, handle: &[u8]) -> Told<Vec<String>> {
        let list = Words::of(&[READDIR]).long(0).long(0).words(&[8192, 32768, 0]);
        self.ask(&[putfh(handle), list], |answer| {
            answer.operations(2)?;
            answer.long()?; // verifier
            let mut names = Vec::new();
            while answer.word()? == 1 {
                answer.long()?; // cookie
                names.push(String::from_utf8_lossy(answer.opaque()?).into_owned());
                answer.bitmap()?;
                answer.opaque()?;
            }
            names.sort();
            Ok(names)
        })
    }

    /// Opens `name` in a directory for reading and writing.
    ///
    /// # Errors
    /// As the server says.
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
        let (state, flags, handle) = self.ask(&ops, |answer| {
            answer.operations(2)?;
            let state = answer.fixed()?;
            answer.raw(20)?; // how the directory changed
            let flags = answer.word()?;
            answer.bitmap()?;
            if answer.word()? != 0 {
                return Err(NfsError::Broken("a delegation that nobody wants".into()));
            }
            answer.operations(1)?;
            Ok((state, flags, answer.opaque()?.to_vec()))
        })?;
        if flags & CONFIRM == 0 {
            return Ok(Opened { handle, state });
        }
        let sequence = self.next()?.sequence;
        let confirm = Words::of(&[OPEN_CONFIRM]).raw(&state).words(&[sequence]);
        let state = self.ask(&[putfh(&handle), confirm], |answer| {
            answer.operations(2)?;
            answer.fixed()
        })?;
        Ok(Opened { handle, state })
    }

    /// Closes it.
    ///
    /// # Errors
    /// As the server says.
    pub fn close(&mut self, file: &Opened) -> Told<()> {
        let sequence = self.next()?.sequence;
        let close = Words::of(&[CLOSE, sequence]).raw(&file.state);
        self.ask(&[putfh(&file.handle), close], |_| Ok(()))
    }

    /// Writes all of `bytes`, which the server may keep in memory until [`Self::commit`].
    ///
    /// # Errors
    /// As the server says; also if it took a part only.
    pub fn write(&mut self, file: &Opened, offset: u64, bytes: &[u8]) -> Told<()> {
        let write = Words::of(&[WRITE]).raw(&file.state).long(offset).words(&[0]).opaque(bytes);
        let written = self.ask(&[putfh(&file.handle), write], |answer| {
            answer.operations(2)?;
            answer.len()
        })?;
        if written == bytes.len() {
            return Ok(());
        }
        Err(NfsError::Broken(format!("{written} bytes were written of {}", bytes.len())))
    }

    /// Written data is on disk when this returns.
    ///
    /// # Errors
    /// As the server says.
    pub fn commit(&mut self, file: &Opened) -> Told<()> {
        self.ask(&[putfh(&file.handle), Words::of(&[COMMIT]).long(0).words(&[0])], |_| Ok(()))
    }

    /// Removes `name` from a directory.
    ///
    /// # Errors
    /// As the server says.
    pub fn remove(&mut self, dir: &[u8], name: &str) -> Told<()> {
        self.ask(&[putfh(dir), Words::of(&[REMOVE]).opaque(name.as_bytes())], |_| Ok(()))
    }

    /// The owner of the next open or close, made known to the server the first time.
    fn next(&mut self) -> Told<Owner> {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let owner = match self.owner {
            Some(owner) => Owner { sequence: owner.sequence + 1, ..owner },
            None => {
                let name = format!("fsstack-lab {} {}", std::process::id(), CLIENTS.fetch_add(1, Relaxed));
                let set =
                    Words::of(&[SETCLIENTID]).long(u64::from(std::process::id())).opaque(name.as_bytes());
                // Nobody listens for calls back.
                let set = set.words(&[0x4000_0000]).opaque(b"tcp").opaque(b"127.0.0.1.0.0").words(&[0]);
                let (client, verifier) = self.ask(&[set], |answer| {
                    answer.operations(1)?;
                    Ok((answer.long()?, answer.long()?))
                })?;
                let confirm = Words::of(&[SETCLIENTID_CONFIRM]).long(client).long(verifier);
                self.ask(&[confirm], |_| Ok(()))?;
                Owner { client, sequence: 1 }
            }
        };
        self.owner = Some(owner);
        Ok(owner)
    }

    fn ask<T>(&mut self, ops: &[Words], parse: impl Fn(&mut Answer<'_>) -> Told<T>) -> Told<T> {
        let began = Instant::now();
        loop {
            let result = self.call(ops)?;
            let mut answer = Answer(&result);
            match answer.word()? {
                0 => {
                    answer.opaque()?; // tag
                    answer.word()?; // operations
                    return parse(&mut answer);
                }
                status if LATER.contains(&status) && began.elapsed() < ANSWER_TIMEOUT => {
                    sleep(Duration::from_millis(50));
                }
                status => return Err(NfsError::Status(status)),
            }
        }
    }

    /// A compound of `ops`; what follows the header of the answer.
    fn call(&mut self, ops: &[Words]) -> Told<Vec<u8>> {
        self.calls += 1;
        let root = Words::of(&[0]).opaque(b"lab").words(&[0, 0, 0]);
        let count = u32::try_from(ops.len()).map_err(|e| NfsError::Broken(e.to_string()))?;
        // A call, version 2, of NFS version 4: a compound, as root.
        let call = Words::of(&[LAST, self.calls, 0, 2, 100_003, 4, 1, 1]).opaque(&root.0);
        let call = call.words(&[0, 0]).opaque(b"").words(&[0, count]);
        let mut call = ops.iter().fold(call, |call, op| call.raw(&op.0)).0;
        let len = u32::try_from(call.len() - 4).map_err(|e| NfsError::Broken(e.to_string()))?;
        call[..4].copy_from_slice(&(len | LAST).to_be_bytes());
        self.stream.write_all(&call)?;
        let whole = self.record()?;
        let mut answer = Answer(&whole);
        if (answer.word()?, answer.word()?, answer.word()?) != (self.calls, 1, 0) {
            return Err(NfsError::Broken("the call was not accepted".into()));
        }
        answer.word()?; // verifier
        answer.opaque()?;
        match answer.word()? {
            0 => Ok(answer.0.to_vec()),
            why => Err(NfsError::Broken(format!("the call was not run: {why}"))),
        }
    }

    /// One whole answer, in as many pieces as it has.
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

fn putfh(handle: &[u8]) -> Words {
    Words::of(&[PUTFH]).opaque(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_answer_is_an_error() {
        let whole = Words::of(&[7]).opaque(b"seven b").long(9).0;
        for len in 0..whole.len() {
            let mut answer = Answer(&whole[..len]);
            assert!(
                answer.word().and_then(|_| answer.opaque().map(drop)).and_then(|()| answer.long()).is_err()
            );
        }
        let mut answer = Answer(&whole);
        assert_eq!((answer.word(), answer.opaque(), answer.long()), (Ok(7), Ok(&b"seven b"[..]), Ok(9)));
    }
}
