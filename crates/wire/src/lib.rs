//! The FUSE protocol (kernel ABI 7.45, Linux only) as types: requests parsed from slices, replies built into one.
//!
//! Pure: no I/O, no `unsafe`, no allocation. Parsing copies only fixed-size numbers; names and data are slices of the
//! caller's buffer, whatever its alignment. INIT is not included: the mounting code negotiates.

pub mod abi;
mod answer;
mod attr;
mod device;
mod dirent;
pub mod encode;
mod extension;
pub mod granted;
mod notice;
mod opcode;
mod operation;
mod parse;
mod request;
#[cfg(test)]
extern crate self as fsstack_wire;
#[cfg(test)]
mod tests;

pub use answer::{Answer, NoRoom, OutHeader, Statfs};
pub use attr::{Attr, Entry, Opened, Statx, Timestamp};
pub use device::{decode_dev, encode_dev};
pub use dirent::DirentWriter;
pub use extension::Groups;
pub use notice::Notice;
pub use opcode::Opcode;
pub use operation::{CopyWidth, Creation, FileLock, Forgets, Lk, Operation, SetAttr, SetTime};
pub use request::{Abi, Header, Refused, Request, Why};
