//! Encoding of calls of NFS version 4.0 and their replies (XDR, ONC RPC and compounds).

use super::{NfsError, Told};

const PUTFH: u32 = 22;
const READ: u32 = 25;
const WRITE: u32 = 38;

const CALL: u32 = 0;
const REPLY: u32 = 1;
/// Version of ONC RPC.
const RPC: u32 = 2;
const NFS: u32 = 100_003;
const COMPOUND: u32 = 1;
const AUTH_SYS: u32 = 1;
/// Machine name of the caller.
const MACHINE: &[u8] = b"fsstack";

/// Bit of a record mark: last fragment.
pub const LAST: u32 = 1 << 31;

/// XDR words.
#[derive(Clone, Debug, Default)]
pub(super) struct Words(Vec<u8>);

impl Words {
    pub(super) fn of(words: &[u32]) -> Self {
        Self::default().words(words)
    }

    pub(super) fn words(mut self, words: &[u32]) -> Self {
        words.iter().for_each(|word| self.0.extend_from_slice(&word.to_be_bytes()));
        self
    }

    pub(super) fn long(mut self, long: u64) -> Self {
        self.0.extend_from_slice(&long.to_be_bytes());
        self
    }

    pub(super) fn opaque(mut self, bytes: &[u8]) -> Self {
        // Names, handles, blocks: far below 4 GiB.
        self = self.words(&[u32::try_from(bytes.len()).unwrap_or(u32::MAX)]);
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Returns the record of a compound of `ops` as root, whose reply carries `number`.
pub(super) fn record(number: u32, ops: &[Words]) -> Told<Vec<u8>> {
    let broken = |e: std::num::TryFromIntError| NfsError::Broken(e.to_string());
    let root = Words::of(&[0]).opaque(MACHINE).words(&[0, 0, 0]);
    let count = u32::try_from(ops.len()).map_err(broken)?;
    let call = Words::of(&[LAST, number, CALL, RPC, NFS, 4, COMPOUND, AUTH_SYS]).opaque(&root.0);
    let call = call.words(&[0, 0]).opaque(b"").words(&[0, count]);
    let mut call = ops.iter().fold(call, |call, op| call.raw(&op.0)).0;
    let len = u32::try_from(call.len() - 4).map_err(broken)?;
    call[..4].copy_from_slice(&(len | LAST).to_be_bytes());
    Ok(call)
}

pub(super) fn putfh(handle: &[u8]) -> Words {
    Words::of(&[PUTFH]).opaque(handle)
}

/// Operations that read `len` bytes from `offset`.
pub(super) fn read_of(handle: &[u8], state: &[u8; 16], offset: u64, len: u32) -> [Words; 2] {
    [putfh(handle), Words::of(&[READ]).raw(state).long(offset).words(&[len])]
}

/// Returns the record of a call that reads without an open, for a client with many calls in flight.
///
/// # Errors
/// The handle is too long.
pub fn read_call(number: u32, handle: &[u8], offset: u64, len: u32) -> Told<Vec<u8>> {
    // The all-zero state id means no open.
    record(number, &read_of(handle, &[0; 16], offset, len))
}

/// Parses the reply to [`read_call`]: the number of the call, and the number of bytes read.
///
/// # Errors
/// The server's error, or the reply is malformed.
pub fn read_reply(reply: &[u8]) -> Told<(u32, usize)> {
    let (number, mut reply) = Reply::of(reply)?;
    Ok((number, reply.read()?.len()))
}

/// Operations that write `bytes`, which the server may keep in memory until a COMMIT.
pub(super) fn write_of(handle: &[u8], state: &[u8; 16], offset: u64, bytes: &[u8]) -> [Words; 2] {
    [putfh(handle), Words::of(&[WRITE]).raw(state).long(offset).words(&[0]).opaque(bytes)]
}

/// Parses the reply to a write: the number of the call, and the number of bytes written.
///
/// # Errors
/// The server's error, or the reply is malformed.
pub fn write_reply(reply: &[u8]) -> Told<(u32, usize)> {
    let (number, mut reply) = Reply::of(reply)?;
    reply.operations(2)?;
    Ok((number, reply.len()?))
}

/// A reply being parsed.
#[derive(Debug)]
pub(super) struct Reply<'a>(&'a [u8]);

impl<'a> Reply<'a> {
    /// Parses a reply up to the results of its operations; returns the number of its call too.
    pub(super) fn of(bytes: &'a [u8]) -> Told<(u32, Self)> {
        let mut reply = Self(bytes);
        let number = reply.word()?;
        if (reply.word()?, reply.word()?) != (REPLY, 0) {
            return Err(NfsError::Broken("the server refused the call".into()));
        }
        reply.word()?; // flavour of the verifier
        reply.opaque()?;
        match reply.word()? {
            0 => {}
            why => return Err(NfsError::Broken(format!("the server did not run the call: {why}"))),
        }
        match reply.word()? {
            0 => {}
            status => return Err(NfsError::Status(status)),
        }
        reply.opaque()?; // tag
        reply.word()?; // operations
        Ok((number, reply))
    }

    pub(super) fn raw(&mut self, len: usize) -> Told<&'a [u8]> {
        let short = || NfsError::Broken("the reply is cut short".into());
        let (head, rest) = self.0.split_at_checked(len).ok_or_else(short)?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn fixed<const N: usize>(&mut self) -> Told<[u8; N]> {
        let bytes = self.raw(N)?;
        bytes.try_into().map_err(|_| NfsError::Broken("the reply is cut short".into()))
    }

    pub(super) fn word(&mut self) -> Told<u32> {
        self.fixed().map(u32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Told<u64> {
        self.fixed().map(u64::from_be_bytes)
    }

    pub(super) fn len(&mut self) -> Told<usize> {
        usize::try_from(self.word()?).map_err(|e| NfsError::Broken(e.to_string()))
    }

    pub(super) fn opaque(&mut self) -> Told<&'a [u8]> {
        let len = self.len()?;
        let bytes = self.raw(len)?;
        self.raw(len.next_multiple_of(4) - len)?;
        Ok(bytes)
    }

    /// Skips an attribute bitmap.
    pub(super) fn bitmap(&mut self) -> Told<()> {
        let words = self.len()?;
        self.raw(words * 4).map(drop)
    }

    /// Skips number and status of that many successful operations.
    pub(super) fn operations(&mut self, count: usize) -> Told<()> {
        self.raw(8 * count).map(drop)
    }

    /// Parses the bytes that the operations of [`read_of`] read.
    pub(super) fn read(&mut self) -> Told<&'a [u8]> {
        self.operations(2)?;
        self.word()?; // end of file
        self.opaque()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply to call 7 whose compound says `status`, and whose read says `bytes`.
    fn reply(status: u32, bytes: &[u8]) -> Vec<u8> {
        let head = Words::of(&[7, REPLY, 0, 0]).opaque(b"").words(&[0, status]).opaque(b"");
        head.words(&[2, PUTFH, 0, READ, 0, 1]).opaque(bytes).0
    }

    #[test]
    fn a_reply_tells_what_was_read_or_why_not() {
        assert_eq!(read_reply(&reply(0, b"seven b")), Ok((7, 7)));
        assert_eq!(read_reply(&reply(70, b"")), Err(NfsError::STALE));
        let refused = read_reply(&Words::of(&[7, REPLY, 1, 0]).0).unwrap_err();
        assert!(refused.to_string().contains("refused"));
        let not_run = read_reply(&Words::of(&[7, REPLY, 0, 0]).opaque(b"").words(&[2]).0).unwrap_err();
        assert!(not_run.to_string().contains("not run the call: 2"));
    }

    #[test]
    fn a_reply_to_a_write_tells_how_much_was_written() {
        let head = Words::of(&[7, REPLY, 0, 0]).opaque(b"").words(&[0, 0]).opaque(b"");
        let written = head.words(&[2, PUTFH, 0, WRITE, 0, 4096, 0]).long(1).0;
        assert_eq!(write_reply(&written), Ok((7, 4096)));
        assert_eq!(write_reply(&reply(28, b"")), Err(NfsError::Status(28)));
    }

    #[test]
    fn a_reply_cut_short_anywhere_is_an_error() {
        let whole = reply(0, b"seven b");
        for len in 0..whole.len() {
            assert!(read_reply(&whole[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn a_record_knows_its_length() {
        let call = read_call(3, b"handles", 1 << 40, 4096).unwrap();
        let mark = u32::from_be_bytes([call[0], call[1], call[2], call[3]]);
        assert_eq!(usize::try_from(mark & !LAST).unwrap(), call.len() - 4);
        assert_eq!(call.len() % 4, 0);
        assert_eq!(call[4..8], [0, 0, 0, 3]);
    }
}
