//! Reads by NFS version 4.0 over several TCP connections, where the kernel has no client.
//!
//! Like a mount with `nconnect`, it distributes requests over the connections round-robin, without waiting. On loopback
//! one connection gets all bandwidth, so a rate limit per connection is possible: the client reads it no faster.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use fsstack_lab::nfs4::{Client, LAST, read_call, read_reply};

use super::{Io, IoEngine, Submitted};

/// Time limit for a silent server.
const SILENCE: Duration = Duration::from_secs(60);

/// Bytes read from a connection at a time, the unit of rate limiting.
const PIECE: usize = 64 << 10;

/// Route to a file.
#[derive(Clone, Debug)]
pub(crate) struct Route<'a> {
    pub(crate) server: SocketAddr,
    /// Path below the server's root.
    pub(crate) path: &'a Path,
    pub(crate) connections: u32,
    /// Maximum bytes a second per connection.
    pub(crate) pace: Option<u64>,
}

/// A file on a server.
#[derive(Debug)]
pub(super) struct Nfs {
    connections: Vec<Connection>,
    /// Number of calls so far.
    calls: usize,
    handle: Vec<u8>,
    block: u32,
    done: Receiver<io::Result<usize>>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    reader: Option<JoinHandle<()>>,
}

impl Nfs {
    pub(super) fn new(route: &Route<'_>, block: usize) -> io::Result<Self> {
        let handle = handle_of(route)?;
        let (tell, done) = channel();
        let block_words = u32::try_from(block).map_err(io::Error::other)?;
        let mut nfs = Self { connections: Vec::new(), calls: 0, handle, block: block_words, done };
        for _ in 0..route.connections {
            let stream = connect(route.server)?;
            // A thread that waits for replies detects a silent server; an idle connection has none.
            stream.set_read_timeout(None)?;
            let answers = Answers { stream: stream.try_clone()?, pace: route.pace.map(Pace::of), block };
            let tell = tell.clone();
            let reader =
                Builder::new().name("nfs-answers".to_owned()).spawn(move || answers.pass_on(&tell))?;
            nfs.connections.push(Connection { stream, reader: Some(reader) });
        }
        Ok(nfs)
    }

    fn next(&mut self) -> io::Result<usize> {
        self.done.recv_timeout(SILENCE).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

impl IoEngine for Nfs {
    fn submit(&mut self, io: Io) -> io::Result<Submitted> {
        let number = number(self.calls, io.slot)?;
        let call = read_call(number, &self.handle, io.offset, self.block).map_err(io::Error::other)?;
        let turn = self.calls % self.connections.len();
        self.calls += 1;
        self.connections[turn].stream.write_all(&call)?;
        Ok(Submitted::Queued)
    }

    fn reap(&mut self, at_least: usize, done: &mut Vec<usize>) -> io::Result<()> {
        for _ in 0..at_least {
            done.push(self.next()?);
        }
        while let Ok(one) = self.done.try_recv() {
            done.push(one?);
        }
        Ok(())
    }
}

impl Drop for Nfs {
    fn drop(&mut self) {
        for connection in &mut self.connections {
            // Its reader sees the end, if it still runs.
            let _gone = connection.stream.shutdown(Shutdown::Both);
            if let Some(reader) = connection.reader.take() {
                let _ended = reader.join();
            }
        }
    }
}

/// Makes a request id that no earlier call had, because servers cache replies by it. Its low bits are the slot.
fn number(calls: usize, slot: usize) -> io::Result<u32> {
    if SLOTS <= slot {
        return Err(io::Error::other("a queue of at most 4096"));
    }
    u32::try_from((calls % (1 << 20)) * SLOTS + slot).map_err(io::Error::other)
}

/// Maximum operations in flight.
const SLOTS: usize = 4096;

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    Ok(stream)
}

/// Looks up a file's handle; retries while the server is not ready.
fn handle_of(route: &Route<'_>) -> io::Result<Vec<u8>> {
    let path = route.path.to_str().ok_or_else(|| io::Error::other("the path is no text"))?;
    let mut client = Client::new(route.server, "").map_err(io::Error::other)?;
    client.handle(path).map_err(io::Error::other)
}

/// Replies on one connection.
struct Answers {
    stream: TcpStream,
    pace: Option<Pace>,
    block: usize,
}

impl Answers {
    /// Passes each reply to its waiting caller until the connection ends.
    fn pass_on(mut self, tell: &Sender<io::Result<usize>>) {
        let mut answer = Vec::with_capacity(self.block + 1024);
        loop {
            let failure = match take(&mut self.stream, &mut self.pace, &mut answer) {
                Ok(()) => self.slot(&answer),
                // Shut down at the end, when no call waits, or by the server, when all calls get the error.
                Err(e) => {
                    let _nobody_waits = tell.send(Err(e));
                    return;
                }
            };
            if tell.send(failure).is_err() {
                return;
            }
        }
    }

    fn slot(&self, answer: &[u8]) -> io::Result<usize> {
        let (number, len) = read_reply(answer).map_err(io::Error::other)?;
        if len != self.block {
            return Err(io::Error::other(format!("the server read {len} bytes instead of {}", self.block)));
        }
        usize::try_from(number).map(|number| number % SLOTS).map_err(io::Error::other)
    }
}

/// Reads one complete record from its fragments.
fn take(stream: &mut TcpStream, pace: &mut Option<Pace>, answer: &mut Vec<u8>) -> io::Result<()> {
    answer.clear();
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        let mut left = usize::try_from(mark & !LAST).map_err(io::Error::other)?;
        if LONGEST < answer.len() + left {
            return Err(io::Error::other("the server's answer has no end"));
        }
        while 0 < left {
            let (from, piece) = (answer.len(), left.min(PIECE));
            answer.resize(from + piece, 0);
            stream.read_exact(&mut answer[from..])?;
            if let Some(pace) = pace {
                pace.keep(piece);
            }
            left -= piece;
        }
        if mark & LAST != 0 {
            return Ok(());
        }
    }
}

/// Longest reply in bytes.
const LONGEST: usize = 320 << 20;

/// A rate limit without saving up unused capacity.
#[derive(Debug)]
struct Pace {
    bytes_a_second: u64,
    next: Instant,
}

impl Pace {
    fn of(bytes_a_second: u64) -> Self {
        Self { bytes_a_second: bytes_a_second.max(1), next: Instant::now() }
    }

    /// Waits for the time that these bytes take.
    fn keep(&mut self, bytes: usize) {
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_a_second as f64);
        self.next = self.next.max(Instant::now().checked_sub(LATE).unwrap_or(self.next)) + takes;
        sleep(self.next.saturating_duration_since(Instant::now()));
    }
}

/// Maximum delay that a late thread may make up for.
const LATE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn fragments_make_one_answer_and_an_endless_one_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        for (mark, bytes) in [(3, "abc"), (2 | LAST, "de")] {
            server.write_all(&u32::to_be_bytes(mark)).unwrap();
            server.write_all(bytes.as_bytes()).unwrap();
        }
        let mut answer = Vec::new();
        take(&mut client, &mut None, &mut answer).unwrap();
        assert_eq!(answer, b"abcde");
        server.write_all(&u32::MAX.to_be_bytes()).unwrap();
        assert!(take(&mut client, &mut None, &mut answer).unwrap_err().to_string().contains("no end"));
        drop(server);
        assert!(take(&mut client, &mut None, &mut answer).is_err());
    }

    #[test]
    fn numbers_of_calls_lead_to_their_slots_and_differ() {
        for (calls, slot) in [(0, 0), (0, 4095), (1, 0), ((1 << 20) - 1, 7), (1 << 20, 7)] {
            assert_eq!(number(calls, slot).unwrap() as usize % SLOTS, slot);
        }
        assert_ne!(number(5, 3).unwrap(), number(6, 3).unwrap());
        assert!(number(0, SLOTS).is_err());
    }

    #[test]
    fn a_pace_is_not_exceeded() {
        let began = Instant::now();
        let mut pace = Pace::of(1 << 20);
        (0..8).for_each(|_| pace.keep(16 << 10));
        // An eighth of a second's bytes, less the amount that may be made up.
        assert!(Duration::from_millis(100) <= began.elapsed());
    }
}
