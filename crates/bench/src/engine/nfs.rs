//! Reads and writes by NFS version 4.0 over several TCP connections, where the kernel has no client.
//!
//! Like a mount with `nconnect`, it distributes requests over the connections round-robin, without waiting. On loopback
//! one connection gets all bandwidth, so a rate limit per connection is possible: the client reads it no faster.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use fsstack_lab::network::within;
use fsstack_lab::nfs4::{
    Client, How, LAST, NfsError, Opened, read_call, read_reply, write_call, write_reply,
};

use super::{Io, IoEngine, Submitted};
use crate::buffers::Aligned;

/// Time limit for a server that neither answers nor takes a request.
const SILENCE: Duration = Duration::from_secs(60);

/// Lowest rate at which a COMMIT may force data to the disks, in bytes a second.
const LOWEST_COMMIT_RATE: u64 = 1 << 20;

/// Bytes read from a connection at a time, the unit of rate limiting.
const PIECE: usize = 64 << 10;

/// Route to a file.
#[derive(Clone, Debug)]
pub(crate) struct Route<'a> {
    pub(crate) server: SocketAddr,
    /// Network namespace from which it is reached, if that is not ours.
    pub(crate) network: Option<&'a Path>,
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
    work: FileWork,
    block: u32,
    done: Receiver<io::Result<usize>>,
}

/// Work on the file.
#[derive(Debug)]
enum FileWork {
    /// Its handle: reads need no open.
    Read(Vec<u8>),
    /// The file open by a client that closes it, and the source.
    Write(Client, Opened, Aligned),
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    reader: Option<JoinHandle<()>>,
}

impl Nfs {
    /// With a source it writes a fresh file, else it reads.
    pub(super) fn new(route: &Route<'_>, block: usize, source: Option<Aligned>) -> io::Result<Self> {
        let is_write = source.is_some();
        let work = match source {
            None => FileWork::Read(handle_of(route)?),
            Some(source) => {
                let (client, file) = fresh(route)?;
                FileWork::Write(client, file, source)
            }
        };
        let (tell, done) = channel();
        let block_words = u32::try_from(block).map_err(io::Error::other)?;
        let mut nfs = Self { connections: Vec::new(), calls: 0, work, block: block_words, done };
        for _ in 0..route.connections {
            let stream = connect(route)?;
            // A thread that waits for replies detects a silent server; an idle connection has none.
            stream.set_read_timeout(None)?;
            let answers =
                Answers { stream: stream.try_clone()?, pace: route.pace.map(Pace::of), block, is_write };
            let tell = tell.clone();
            let reader =
                Builder::new().name("nfs-answers".to_owned()).spawn(move || answers.pass_on(&tell))?;
            nfs.connections.push(Connection { stream, reader: Some(reader) });
        }
        Ok(nfs)
    }

    /// Name of its calls.
    fn call(&self) -> &'static str {
        call_name(matches!(self.work, FileWork::Write(..)))
    }

    fn next(&mut self) -> io::Result<usize> {
        let answer = self.done.recv_timeout(SILENCE);
        answer.unwrap_or_else(|_| Err(silent(self.call(), "the server does not answer")))
    }
}

impl IoEngine for Nfs {
    fn submit(&mut self, io: Io) -> io::Result<Submitted> {
        let number = number(self.calls, io.slot)?;
        let call = match &self.work {
            FileWork::Read(handle) => read_call(number, handle, io.offset, self.block),
            FileWork::Write(_, file, source) => {
                let len = usize::try_from(self.block).map_err(io::Error::other)?;
                write_call(number, file, io.offset, &source.bytes()[io.from..io.from + len])
            }
        };
        let call = call.map_err(io::Error::other)?;
        let turn = self.calls % self.connections.len();
        self.calls += 1;
        let name = self.call();
        send(&mut self.connections[turn].stream, name, &call)?;
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

    fn finish(&mut self) -> io::Result<()> {
        let written = self.calls as u64 * u64::from(self.block);
        match &mut self.work {
            FileWork::Read(_) => Ok(()),
            // The kernel's client makes both calls at close(2), too.
            FileWork::Write(client, file, _) => {
                client.commit_within(commit_timeout(written), file).map_err(failed("COMMIT"))?;
                client.close(file).map_err(failed("CLOSE"))
            }
        }
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

fn connect(route: &Route<'_>) -> io::Result<TcpStream> {
    let stream = within(route.network, || TcpStream::connect(route.server))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok(stream)
}

/// Name of the calls that move data.
fn call_name(is_write: bool) -> &'static str {
    if is_write { "WRITE" } else { "READ" }
}

/// Adds the call's name to its error.
fn failed<E: std::fmt::Display>(call: &'static str) -> impl FnOnce(E) -> io::Error {
    move |e| io::Error::other(format!("{call}: {e}"))
}

/// Error of a call for which the server did nothing within the limit.
fn silent(call: &str, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{call}: {what} for {SILENCE:?}"))
}

/// Sends a request within the stream's time limit.
fn send(stream: &mut TcpStream, call: &'static str, request: &[u8]) -> io::Result<()> {
    stream.write_all(request).map_err(|e| match e.kind() {
        // The kernel's word for the time limit of a socket.
        io::ErrorKind::WouldBlock => silent(call, "the server takes no request"),
        _ => failed(call)(e),
    })
}

/// Time limit of a COMMIT, after which the server is taken for one that hangs.
fn commit_timeout(bytes: u64) -> Duration {
    SILENCE + Duration::from_secs(bytes / LOWEST_COMMIT_RATE)
}

/// Looks up a file's handle; retries while the server is not ready.
fn handle_of(route: &Route<'_>) -> io::Result<Vec<u8>> {
    client(route)?.handle(text(route.path)?).map_err(failed("LOOKUP"))
}

fn client(route: &Route<'_>) -> io::Result<Client> {
    Client::over(connect(route)?, "").map_err(io::Error::other)
}

fn text(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::Error::other("the path is no text"))
}

/// Makes the file anew and opens it.
fn fresh(route: &Route<'_>) -> io::Result<(Client, Opened)> {
    let no_name = || io::Error::other("the file has no name");
    let dir = text(route.path.parent().ok_or_else(no_name)?)?;
    let name = route.path.file_name().and_then(|name| name.to_str()).ok_or_else(no_name)?;
    let mut client = client(route)?;
    let dir = client.handle(dir).map_err(failed("LOOKUP"))?;
    match client.remove(&dir, name) {
        Ok(()) | Err(NfsError::NOENT) => {}
        Err(e) => return Err(failed("REMOVE")(e)),
    }
    let file = client.open(&dir, name, How::Made).map_err(failed("OPEN"))?;
    Ok((client, file))
}

/// Replies on one connection.
struct Answers {
    stream: TcpStream,
    pace: Option<Pace>,
    block: usize,
    is_write: bool,
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
                    let _nobody_waits = tell.send(Err(failed(call_name(self.is_write))(e)));
                    return;
                }
            };
            if tell.send(failure).is_err() {
                return;
            }
        }
    }

    fn slot(&self, answer: &[u8]) -> io::Result<usize> {
        let reply = if self.is_write { write_reply(answer) } else { read_reply(answer) };
        let call = call_name(self.is_write);
        let (number, len) = reply.map_err(failed(call))?;
        if len != self.block {
            return Err(failed(call)(format!("the server moved {len} bytes instead of {}", self.block)));
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

    use fsstack_lab::cleanup::{self, Entry};
    use fsstack_lab::ganesha::{Ganesha, ROOT};
    use fsstack_lab::needs;

    use super::*;
    use crate::workload::Data;

    const BLOCK: usize = 64 << 10;

    /// Moves blocks through the engine, all in flight at once, and ends the work.
    fn moved(route: &Route<'_>, source: Option<Aligned>, blocks: usize) -> io::Result<()> {
        let mut nfs = Nfs::new(route, BLOCK, source)?;
        for slot in 0..blocks {
            nfs.submit(Io { slot, offset: (slot * BLOCK) as u64, from: slot * BLOCK })?;
        }
        let mut done = Vec::new();
        while done.len() < blocks {
            nfs.reap(1, &mut done)?;
        }
        done.sort_unstable();
        assert_eq!(done, (0..blocks).collect::<Vec<_>>());
        nfs.finish()
    }

    #[test]
    fn a_file_is_written_anew_each_time_and_read_over_several_connections() {
        if let Err(skip) = Ganesha::able() {
            return skip.announce();
        }
        needs!(root());
        let home = cleanup::fresh("bench-nfs").unwrap();
        let _home = Entry::dir(&home).unwrap();
        let shown = home.join("shown");
        let _shown = Entry::dir(&shown).unwrap();
        let server = Ganesha::serve(&shown, &home.join("server"));
        let path = Path::new(ROOT).join("file");
        let route =
            Route { server: server.address(), network: None, path: &path, connections: 2, pace: None };
        for blocks in [8, 3] {
            let source = Aligned::source(Data::Incompressible, BLOCK, blocks as u64);
            let expected = source.bytes()[..blocks * BLOCK].to_vec();
            moved(&route, Some(source), blocks).unwrap();
            assert_eq!(std::fs::read(shown.join("file")).unwrap(), expected);
        }
        moved(&route, None, 3).unwrap();
        let past_the_end = moved(&route, None, 4).unwrap_err().to_string();
        assert!(past_the_end.contains("READ: the server moved 0 bytes instead of 65536"), "{past_the_end}");
        std::fs::remove_file(shown.join("file")).unwrap();
        assert_eq!(moved(&route, None, 1).unwrap_err().to_string(), "LOOKUP: NFS4ERR 2");
    }

    #[test]
    fn a_server_that_takes_no_request_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (server, path) = (listener.local_addr().unwrap(), Path::new("file"));
        let mut stream = connect(&Route { server, network: None, path, connections: 1, pace: None }).unwrap();
        assert_eq!(stream.write_timeout().unwrap(), Some(SILENCE));
        // Nobody waits for the limit here.
        stream.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
        let request = vec![0; 64 << 20];
        let error = send(&mut stream, "WRITE", &request).unwrap_err().to_string();
        assert_eq!(error, "WRITE: the server takes no request for 60s");
    }

    #[test]
    fn a_commit_may_take_longer_for_more_data() {
        assert_eq!(commit_timeout(0), SILENCE);
        assert!(commit_timeout(512 << 20) < commit_timeout(80 << 30));
    }

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
