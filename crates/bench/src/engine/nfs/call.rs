//! Stateless calls of NFS version 4.0 and their replies: handles, and reads with the all-zero state id.

use std::io;
use std::path::{Component, Path};

use super::LAST;

const GETFH: u32 = 10;
const LOOKUP: u32 = 15;
const PUTFH: u32 = 22;
const PUTROOTFH: u32 = 24;
const READ: u32 = 25;

const CALL: u32 = 0;
/// Version of ONC RPC.
const RPC: u32 = 2;
const NFS: u32 = 100_003;
const COMPOUND: u32 = 1;
const AUTH_SYS: u32 = 1;
/// Our machine name.
const MACHINE: &[u8] = b"fsstack-bench";

/// NFS4ERR_DELAY and NFS4ERR_GRACE: the server is not ready yet.
const LATER: [u32; 2] = [10008, 10013];

/// XDR words.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn word(mut self, word: u32) -> Self {
        self.0.extend_from_slice(&word.to_be_bytes());
        self
    }

    fn words(self, words: &[u32]) -> Self {
        words.iter().fold(self, |all, word| all.word(*word))
    }

    fn opaque(mut self, bytes: &[u8]) -> Self {
        // Names and handles: far below 4 GiB.
        self = self.word(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Starts a compound call as root.
    fn compound(number: u32, operations: u32) -> Self {
        let root = Self::default().word(0).opaque(MACHINE).words(&[0, 0, 0]);
        let head = Self::default().word(LAST).words(&[number, CALL, RPC, NFS, 4, COMPOUND]);
        head.word(AUTH_SYS).opaque(&root.0).words(&[0, 0]).opaque(b"").words(&[0, operations])
    }

    /// Completes the record with its length.
    fn record(mut self) -> Vec<u8> {
        let len = u32::try_from(self.0.len() - 4).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&(len | LAST).to_be_bytes());
        self.0
    }
}

/// Calls that return the handle of `path` below the server's root.
pub(super) fn lookup(path: &Path) -> io::Result<Vec<u8>> {
    let names: Vec<_> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.as_encoded_bytes()),
            Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
        })
        .collect();
    let operations = u32::try_from(names.len() + 2).map_err(io::Error::other)?;
    let call = Words::compound(0, operations).word(PUTROOTFH);
    let call = names.into_iter().fold(call, |call, name| call.word(LOOKUP).opaque(name));
    Ok(call.word(GETFH).record())
}

/// Call that reads `len` bytes; its reply carries `number`.
pub(super) fn read(number: u32, handle: &[u8], offset: u64, len: u32) -> Vec<u8> {
    let call = Words::compound(number, 2).word(PUTFH).opaque(handle);
    let [a, b, c, d, e, f, g, h] = offset.to_be_bytes();
    let offset = [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])];
    // The all-zero state id means no open.
    call.word(READ).words(&[0; 4]).words(&offset).word(len).record()
}

/// Effect of a call that a server may get twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status<T> {
    Done(T),
    Later,
}

/// A reply being parsed.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    number: u32,
    left: &'a [u8],
}

impl<'a> Answer<'a> {
    /// Parses a reply up to the compound's status.
    pub(super) fn of(bytes: &'a [u8]) -> io::Result<Self> {
        let mut answer = Self { number: 0, left: bytes };
        answer.number = answer.word()?;
        let (reply, accepted, _flavour) = (answer.word()?, answer.word()?, answer.word()?);
        if (reply, accepted) != (1, 0) {
            return Err(io::Error::other("the server refused the call"));
        }
        answer.opaque()?;
        match answer.word()? {
            0 => Ok(answer),
            why => Err(io::Error::other(format!("the server did not run the call: {why}"))),
        }
    }

    /// Number of the answered call.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Parses the handle from the last operation.
    pub(super) fn handle(mut self) -> io::Result<Status<&'a [u8]>> {
        let Status::Done(operations) = self.compound()? else { return Ok(Status::Later) };
        (0..operations).try_for_each(|_| self.operation())?;
        self.opaque().map(Status::Done)
    }

    /// Parses the number of bytes that the second operation read.
    pub(super) fn read(mut self) -> io::Result<Status<usize>> {
        let Status::Done(_) = self.compound()? else { return Ok(Status::Later) };
        (0..2).try_for_each(|_| self.operation())?;
        let _end_of_file = self.word()?;
        self.opaque().map(|bytes| Status::Done(bytes.len()))
    }

    /// Parses the number of completed operations.
    fn compound(&mut self) -> io::Result<Status<u32>> {
        let status = self.word()?;
        if LATER.contains(&status) {
            return Ok(Status::Later);
        }
        if status != 0 {
            return Err(io::Error::other(format!("the server answered NFS4ERR {status}")));
        }
        self.opaque()?;
        self.word().map(Status::Done)
    }

    /// Skips the number and status of a successful operation.
    fn operation(&mut self) -> io::Result<()> {
        self.word()?;
        self.word().map(drop)
    }

    fn word(&mut self) -> io::Result<u32> {
        let (word, left) = self.left.split_first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
        self.left = left;
        Ok(u32::from_be_bytes(*word))
    }

    fn opaque(&mut self) -> io::Result<&'a [u8]> {
        let len = usize::try_from(self.word()?).map_err(io::Error::other)?;
        let bytes = self.left.get(..len).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.left = self.left.get(len.next_multiple_of(4)..).unwrap_or_default();
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer to call 7 whose compound says `status`.
    fn answer(status: u32) -> Words {
        let head = Words::default().words(&[7, 1, 0, 0]).opaque(b"").word(0);
        head.word(status).opaque(b"").word(2)
    }

    #[test]
    fn an_answer_tells_what_was_read_or_why_not() {
        let whole = answer(0).words(&[PUTFH, 0, READ, 0, 1]).opaque(b"seven b").0;
        let result = Answer::of(&whole).unwrap();
        assert_eq!((result.number(), result.read().unwrap()), (7, Status::Done(7)));
        assert_eq!(Answer::of(&answer(LATER[0]).0).unwrap().read().unwrap(), Status::Later);
        let stale = Answer::of(&answer(70).0).unwrap().read().unwrap_err();
        assert!(stale.to_string().contains("NFS4ERR 70"), "{stale}");
        let refused = Words::default().words(&[7, 1, 1, 0]).0;
        assert!(Answer::of(&refused).unwrap_err().to_string().contains("refused"));
    }

    #[test]
    fn an_answer_cut_short_anywhere_is_an_error() {
        let whole = answer(0).words(&[PUTFH, 0, READ, 0, 1]).opaque(b"12345678").0;
        for len in 0..whole.len() {
            assert!(Answer::of(&whole[..len]).and_then(Answer::read).is_err(), "{len}");
        }
    }

    #[test]
    fn a_record_knows_its_length() {
        for call in [read(3, b"handle", 1 << 40, 4096), lookup(Path::new("t/a/b")).unwrap()] {
            let mark = u32::from_be_bytes([call[0], call[1], call[2], call[3]]);
            assert_eq!(usize::try_from(mark & !LAST).unwrap(), call.len() - 4);
            assert_eq!(call.len() % 4, 0);
        }
    }
}
