//! A client of NFSv4.0 that keeps raw handles: a few operations, none of them with any state on the server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const LOOKUP: u32 = 15;
const GETATTR: u32 = 9;
const GETFH: u32 = 10;
const PUTFH: u32 = 22;
const PUTROOTFH: u32 = 24;
const READ: u32 = 25;
const READDIR: u32 = 26;

/// The handle's object is gone.
pub(crate) const STALE: u32 = 70;
/// The server is about to be ready.
const DELAY: u32 = 10008;
const GRACE: u32 = 10013;

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Client {
    server: SocketAddr,
}

/// What the server answered instead of the object: an `NFS4ERR_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) u32);

/// Words of XDR.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn u32(mut self, word: u32) -> Self {
        self.0.extend_from_slice(&word.to_be_bytes());
        self
    }

    fn u64(self, word: u64) -> Self {
        self.u32(u32::try_from(word >> 32).unwrap()).u32(u32::try_from(word & 0xffff_ffff).unwrap())
    }

    fn opaque(mut self, bytes: &[u8]) -> Self {
        self = self.u32(u32::try_from(bytes.len()).unwrap());
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

struct Answer<'a>(&'a [u8]);

impl<'a> Answer<'a> {
    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.raw(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.raw(8).try_into().unwrap())
    }

    fn raw(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        head
    }

    fn opaque(&mut self) -> &'a [u8] {
        let len = usize::try_from(self.u32()).unwrap();
        let bytes = self.raw(len);
        self.raw(len.next_multiple_of(4) - len);
        bytes
    }
}

impl Client {
    pub(crate) fn new(server: SocketAddr) -> Self {
        Self { server }
    }

    /// The handle of `path` below the export.
    pub(crate) fn handle(&self, path: &str) -> Result<Vec<u8>, Refused> {
        let names: Vec<&str> =
            std::iter::once("t").chain(path.split('/').filter(|n| !n.is_empty())).collect();
        let mut ops = vec![Words::default().u32(PUTROOTFH)];
        ops.extend(names.iter().map(|name| Words::default().u32(LOOKUP).opaque(name.as_bytes())));
        ops.push(Words::default().u32(GETFH));
        self.compound(&ops, |answer| {
            for _ in 0..=names.len() {
                skip(answer);
            }
            skip(answer);
            answer.opaque().to_vec()
        })
    }

    /// The file id of what the handle leads to.
    pub(crate) fn fileid(&self, handle: &[u8]) -> Result<u64, Refused> {
        let ops = [putfh(handle), Words::default().u32(GETATTR).u32(1).u32(1 << 20)];
        self.compound(&ops, |answer| {
            skip(answer);
            skip(answer);
            let words = answer.u32();
            answer.raw(usize::try_from(words).unwrap() * 4);
            answer.u32(); // length of the values
            answer.u64()
        })
    }

    /// The first bytes of the file.
    pub(crate) fn read(&self, handle: &[u8]) -> Result<String, Refused> {
        let ops = [putfh(handle), Words::default().u32(READ).raw(&[0; 16]).u64(0).u32(4096)];
        self.compound(&ops, |answer| {
            skip(answer);
            skip(answer);
            answer.u32(); // end of file
            String::from_utf8_lossy(answer.opaque()).into_owned()
        })
    }

    /// The names in the directory, from its first page.
    pub(crate) fn list(&self, handle: &[u8]) -> Result<Vec<String>, Refused> {
        let args = Words::default().u32(READDIR).u64(0).u64(0).u32(8192).u32(32768).u32(0);
        self.compound(&[putfh(handle), args], |answer| {
            skip(answer);
            skip(answer);
            answer.u64(); // verifier
            let mut names = Vec::new();
            while answer.u32() == 1 {
                answer.u64(); // cookie
                names.push(String::from_utf8_lossy(answer.opaque()).into_owned());
                let words = answer.u32();
                answer.raw(usize::try_from(words).unwrap() * 4);
                answer.opaque();
            }
            names.sort();
            names
        })
    }

    fn compound<T>(&self, ops: &[Words], parse: impl Fn(&mut Answer<'_>) -> T) -> Result<T, Refused> {
        let began = Instant::now();
        loop {
            let told = self.call(ops);
            let mut answer = Answer(&told);
            match answer.u32() {
                0 => {
                    answer.opaque(); // tag
                    answer.u32(); // operations
                    return Ok(parse(&mut answer));
                }
                DELAY | GRACE if began.elapsed() < Duration::from_secs(60) => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                status => return Err(Refused(status)),
            }
        }
    }

    /// A COMPOUND of `ops` as root; what follows the header of the answer.
    fn call(&self, ops: &[Words]) -> Vec<u8> {
        let credentials = Words::default().u32(0).opaque(b"test").u32(0).u32(0).u32(0);
        let mut call = Words::default().u32(7).u32(0).u32(2).u32(100_003).u32(4).u32(1);
        call = call.u32(1).opaque(&credentials.0).u32(0).u32(0);
        call = call.opaque(b"").u32(0).u32(u32::try_from(ops.len()).unwrap());
        for op in ops {
            call = call.raw(&op.0);
        }
        let mut server = TcpStream::connect(self.server).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mark = u32::try_from(call.0.len()).unwrap() | 1 << 31;
        server.write_all(&mark.to_be_bytes()).unwrap();
        server.write_all(&call.0).unwrap();
        let mut whole = Vec::new();
        loop {
            let mut mark = [0; 4];
            server.read_exact(&mut mark).unwrap();
            let mark = u32::from_be_bytes(mark);
            let mut piece = vec![0; usize::try_from(mark & !(1 << 31)).unwrap()];
            server.read_exact(&mut piece).unwrap();
            whole.extend(piece);
            if mark >> 31 == 1 {
                break;
            }
        }
        let mut answer = Answer(&whole);
        assert_eq!((answer.u32(), answer.u32(), answer.u32()), (7, 1, 0), "the call was not accepted");
        answer.u32(); // verifier
        answer.opaque();
        assert_eq!(answer.u32(), 0, "the call was not run");
        answer.0.to_vec()
    }
}

fn putfh(handle: &[u8]) -> Words {
    Words::default().u32(PUTFH).opaque(handle)
}

/// The number and status of an operation that was done.
fn skip(answer: &mut Answer<'_>) {
    let (op, status) = (answer.u32(), answer.u32());
    assert_eq!(status, 0, "operation {op}");
}
