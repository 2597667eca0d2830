//! A request: its header, operation and caller.

use zerocopy::FromBytes;

use crate::abi;
use crate::extension::Groups;
use crate::opcode::Opcode;
use crate::operation::Operation;

/// Options negotiated at INIT that change the form of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abi {
    /// `FUSE_SETXATTR_EXT`.
    pub setxattr_ext: bool,
}

/// Header of every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole request in bytes, with this header.
    pub len: u32,
    /// Number of the opcode, known or not.
    pub opcode: u32,
    /// Id that the reply must carry.
    pub unique: u64,
    /// The inode it is about.
    pub nodeid: u64,
    /// The caller's file system uid.
    pub uid: u32,
    /// The caller's file system gid.
    pub gid: u32,
    /// The caller's process id; 0 outside the daemon's PID namespace, or for the kernel itself.
    pub pid: u32,
    /// Length of the extensions at the end, in units of 8 bytes.
    pub total_extlen: u16,
}

impl Header {
    /// Bytes of the header.
    pub const LEN: usize = size_of::<abi::InHeader>();

    fn parse(header: &[u8]) -> Option<Self> {
        let (raw, _) = abi::InHeader::read_from_prefix(header).ok()?;
        let abi::InHeader { len, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding: _ } = raw;
        Some(Self { len, opcode, unique, nodeid, uid, gid, pid, total_extlen })
    }

    fn extensions_len(&self) -> usize {
        usize::from(self.total_extlen) * abi::RECORD_ALIGN
    }
}

/// Reason why a request cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// Its bytes do not match its opcode.
    #[error("malformed request")]
    Malformed,
    /// Unknown opcode; ENOSYS makes the kernel stop sending it.
    #[error("unknown opcode {0}")]
    UnknownOpcode(u32),
}

/// A request that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refused {
    /// Id to reply to, if a reply is possible and expected.
    pub unique: Option<u64>,
    /// The fault.
    pub why: Why,
}

impl Refused {
    /// Returns the errno of the reply.
    pub const fn errno(self) -> i32 {
        const EIO: i32 = 5;
        const ENOSYS: i32 = 38;
        match self.why {
            Why::Malformed => EIO,
            Why::UnknownOpcode(_) => ENOSYS,
        }
    }

    fn new(header: &Header, opcode: Opcode, why: Why) -> Self {
        Self { unique: opcode.wants_answer().then_some(header.unique), why }
    }
}

/// A parsed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Caller and inode.
    pub header: Header,
    /// The operation.
    pub op: Operation<'a>,
    /// Supplementary groups of the caller, besides the header's `gid`.
    pub groups: Groups<'a>,
}

impl<'a> Request<'a> {
    /// Parses a request in three slices, as io_uring delivers it. `header` and `op_in` may be longer than their
    /// structs; `rest` must have exactly the delivered length (`payload_sz`).
    pub fn parse(abi: Abi, header: &[u8], op_in: &[u8], rest: &'a [u8]) -> Result<Self, Refused> {
        let (header, opcode) = identify(header)?;
        Self::assemble(abi, header, opcode, op_in, rest)
    }

    /// Parses a request in one slice, as /dev/fuse delivers it; `message` must have exactly the length that was read.
    pub fn parse_contiguous(abi: Abi, message: &'a [u8]) -> Result<Self, Refused> {
        let (header, opcode) = identify(message)?;
        let malformed = Refused::new(&header, opcode, Why::Malformed);
        if usize::try_from(header.len) != Ok(message.len()) {
            return Err(malformed);
        }
        let body = message.get(Header::LEN..).ok_or(malformed)?;
        let (op_in, rest) = body.split_at_checked(opcode.op_len(abi)).ok_or(malformed)?;
        Self::assemble(abi, header, opcode, op_in, rest)
    }

    fn assemble(
        abi: Abi,
        header: Header,
        opcode: Opcode,
        op_in: &[u8],
        rest: &'a [u8],
    ) -> Result<Self, Refused> {
        Groups::split(rest, header.extensions_len())
            .and_then(|(rest, groups)| {
                Ok(Self { header, op: Operation::parse(abi, opcode, op_in, rest)?, groups })
            })
            .map_err(|why| Refused::new(&header, opcode, why))
    }
}

/// Reads the header. An unknown opcode gets a reply, because so far the kernel waits for one to each that it added.
fn identify(bytes: &[u8]) -> Result<(Header, Opcode), Refused> {
    let header = Header::parse(bytes).ok_or(Refused { unique: None, why: Why::Malformed })?;
    let Some(opcode) = Opcode::from_raw(header.opcode) else {
        return Err(Refused { unique: Some(header.unique), why: Why::UnknownOpcode(header.opcode) });
    };
    Ok((header, opcode))
}
