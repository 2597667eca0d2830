//! The kernel's side of the protocol, for tests and fuzzing: requests as bytes.

use std::ffi::CStr;

use zerocopy::{Immutable, IntoBytes};

use crate::abi;
use crate::opcode::Opcode;
use crate::operation::{CopyWidth, Creation, Lk, Operation, SetAttr, SetTime};
use crate::request::{Abi, Header};

/// A request in the three slices that io_uring delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices {
    /// The header's 40 bytes.
    pub header: Vec<u8>,
    /// The operation's own struct.
    pub op_in: Vec<u8>,
    /// Names and data, then the extensions.
    pub rest: Vec<u8>,
}

impl Slices {
    /// The same request in one slice, as /dev/fuse delivers it.
    pub fn contiguous(&self) -> Vec<u8> {
        [self.header.as_slice(), &self.op_in, &self.rest].concat()
    }
}

/// Encodes a request. `len`, `opcode` and `total_extlen` of `header` are computed.
///
/// # Panics
///
/// If data or groups are larger than the protocol allows.
pub fn request(abi: Abi, header: &Header, op: &Operation<'_>, groups: &[u32]) -> Slices {
    let mut made = Made::default();
    let opcode = made.operation(abi, op);
    let extensions = groups_extension(groups);
    made.rest.extend(&extensions);
    let len = Header::LEN + made.op_in.len() + made.rest.len();
    let raw = abi::InHeader {
        len: fitting(len),
        opcode: opcode.raw(),
        unique: header.unique,
        nodeid: header.nodeid,
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        total_extlen: fitting(extensions.len() / abi::RECORD_ALIGN),
        padding: 0,
    };
    Slices { header: raw.as_bytes().to_vec(), op_in: made.op_in, rest: made.rest }
}

/// Encodes the extension with these groups; empty if there are none.
pub fn groups_extension(groups: &[u32]) -> Vec<u8> {
    if groups.is_empty() {
        return Vec::new();
    }
    let used = size_of::<abi::ExtHeader>() + size_of::<u32>() + size_of_val(groups);
    let size = used.next_multiple_of(abi::RECORD_ALIGN);
    let head = abi::ExtHeader { size: fitting(size), kind: abi::EXT_GROUPS };
    let mut bytes = [head.as_bytes(), fitting::<u32>(groups.len()).as_bytes(), groups.as_bytes()].concat();
    bytes.resize(size, 0);
    bytes
}

#[expect(clippy::expect_used, reason = "a test that asks for more than the protocol can say is wrong")]
fn fitting<T: TryFrom<usize>>(len: usize) -> T {
    T::try_from(len).ok().expect("larger than the protocol can say")
}

#[derive(Default)]
struct Made {
    op_in: Vec<u8>,
    rest: Vec<u8>,
}

impl Made {
    fn op(&mut self, opcode: Opcode, op: &(impl IntoBytes + Immutable)) -> Opcode {
        self.op_in = op.as_bytes().to_vec();
        opcode
    }

    fn name(&mut self, name: &CStr) -> &mut Self {
        self.rest.extend(name.to_bytes_with_nul());
        self
    }

    fn data(&mut self, data: &[u8]) -> u32 {
        self.rest.extend(data);
        fitting(data.len())
    }

    #[expect(clippy::too_many_lines, reason = "one arm an operation")]
    fn operation(&mut self, abi: Abi, op: &Operation<'_>) -> Opcode {
        use Operation as Op;
        match *op {
            Op::Readlink => Opcode::Readlink,
            Op::Statfs => Opcode::Statfs,
            Op::Destroy => Opcode::Destroy,
            Op::Syncfs => self.op(Opcode::Syncfs, &abi::SyncfsIn { padding: 0 }),
            Op::Setxattr { name, value, flags, setxattr_flags } => {
                let size = self.name(name).data(value);
                match abi.setxattr_ext {
                    true => {
                        let op = abi::SetxattrIn { size, flags, setxattr_flags, padding: 0 };
                        self.op(Opcode::Setxattr, &op)
                    }
                    false => self.op(Opcode::Setxattr, &abi::SetxattrCompatIn { size, flags }),
                }
            }
            Op::Getxattr { name, size } => {
                self.name(name).op(Opcode::Getxattr, &abi::GetxattrIn { size, padding: 0 })
            }
            Op::Listxattr { size } => self.op(Opcode::Listxattr, &abi::GetxattrIn { size, padding: 0 }),
            Op::Getattr { fh } => {
                let op = abi::GetattrIn { getattr_flags: fh_flag(fh), dummy: 0, fh: fh.unwrap_or(0) };
                self.op(Opcode::Getattr, &op)
            }
            Op::Statx { fh, sx_flags, mask } => {
                let (getattr_flags, fh) = (fh_flag(fh), fh.unwrap_or(0));
                let op = abi::StatxIn { getattr_flags, reserved: 0, fh, sx_flags, sx_mask: mask };
                self.op(Opcode::Statx, &op)
            }
            Op::Setattr(set) => self.op(Opcode::Setattr, &setattr(&set)),
            Op::Forget { nlookup } => self.op(Opcode::Forget, &abi::ForgetIn { nlookup }),
            Op::BatchForget(forgets) => {
                let op = abi::BatchForgetIn { count: fitting(forgets.len()), dummy: 0 };
                for (nodeid, nlookup) in forgets {
                    self.data(abi::ForgetOne { nodeid, nlookup }.as_bytes());
                }
                self.op(Opcode::BatchForget, &op)
            }
            Op::Interrupt { unique } => self.op(Opcode::Interrupt, &abi::InterruptIn { unique }),
            Op::Access { mask } => self.op(Opcode::Access, &abi::AccessIn { mask, padding: 0 }),
            Op::Lookup { name } => self.name(name).bare(Opcode::Lookup),
            Op::Unlink { name } => self.name(name).bare(Opcode::Unlink),
            Op::Rmdir { name } => self.name(name).bare(Opcode::Rmdir),
            Op::Removexattr { name } => self.name(name).bare(Opcode::Removexattr),
            Op::Symlink { name, target } => self.name(name).name(target).bare(Opcode::Symlink),
            Op::Mknod { name, mode, rdev, umask } => {
                self.name(name).op(Opcode::Mknod, &abi::MknodIn { mode, rdev, umask, padding: 0 })
            }
            Op::Mkdir { name, mode, umask } => {
                self.name(name).op(Opcode::Mkdir, &abi::MkdirIn { mode, umask })
            }
            Op::Rename { name, newdir, newname, flags: 0 } => {
                self.name(name).name(newname).op(Opcode::Rename, &abi::RenameIn { newdir })
            }
            Op::Rename { name, newdir, newname, flags } => {
                let op = abi::Rename2In { newdir, flags, padding: 0 };
                self.name(name).name(newname).op(Opcode::Rename2, &op)
            }
            Op::Link { oldnode, name } => {
                self.name(name).op(Opcode::Link, &abi::LinkIn { oldnodeid: oldnode })
            }
            Op::Create(made) => self.creation(Opcode::Create, made),
            Op::Tmpfile(made) => self.creation(Opcode::Tmpfile, made),
            Op::Open { flags, open_flags } => self.op(Opcode::Open, &abi::OpenIn { flags, open_flags }),
            Op::Opendir { flags, open_flags } => self.op(Opcode::Opendir, &abi::OpenIn { flags, open_flags }),
            Op::Release { fh, flags, release_flags, lock_owner } => {
                self.op(Opcode::Release, &abi::ReleaseIn { fh, flags, release_flags, lock_owner })
            }
            Op::Releasedir { fh, flags } => {
                let op = abi::ReleaseIn { fh, flags, ..abi::ReleaseIn::default() };
                self.op(Opcode::Releasedir, &op)
            }
            Op::Flush { fh, lock_owner } => {
                let op = abi::FlushIn { fh, lock_owner, ..abi::FlushIn::default() };
                self.op(Opcode::Flush, &op)
            }
            Op::Fsync { fh, datasync } => self.op(Opcode::Fsync, &fsync(fh, datasync)),
            Op::Fsyncdir { fh, datasync } => self.op(Opcode::Fsyncdir, &fsync(fh, datasync)),
            Op::Getlk(asked) => self.op(Opcode::Getlk, &lk(asked)),
            Op::Setlk(asked) => self.op(Opcode::Setlk, &lk(asked)),
            Op::Setlkw(asked) => self.op(Opcode::Setlkw, &lk(asked)),
            Op::Readdir { fh, offset, size } => {
                let op = abi::ReadIn { fh, offset, size, ..abi::ReadIn::default() };
                self.op(Opcode::Readdir, &op)
            }
            Op::Readdirplus { fh, offset, size } => {
                let op = abi::ReadIn { fh, offset, size, ..abi::ReadIn::default() };
                self.op(Opcode::Readdirplus, &op)
            }
            Op::Read { fh, offset, size, read_flags, lock_owner, flags } => {
                let lock_owner = lock_owner.unwrap_or(0);
                let op = abi::ReadIn { fh, offset, size, read_flags, lock_owner, flags, padding: 0 };
                self.op(Opcode::Read, &op)
            }
            Op::Write { fh, offset, write_flags, lock_owner, flags, data } => {
                let (size, lock_owner) = (self.data(data), lock_owner.unwrap_or(0));
                let op = abi::WriteIn { fh, offset, size, write_flags, lock_owner, flags, padding: 0 };
                self.op(Opcode::Write, &op)
            }
            Op::Bmap { block, blocksize } => {
                self.op(Opcode::Bmap, &abi::BmapIn { block, blocksize, padding: 0 })
            }
            Op::Ioctl { fh, flags, cmd, arg, out_size, data } => {
                let op = abi::IoctlIn { fh, flags, cmd, arg, in_size: self.data(data), out_size };
                self.op(Opcode::Ioctl, &op)
            }
            Op::Poll { fh, kh, flags, events } => {
                self.op(Opcode::Poll, &abi::PollIn { fh, kh, flags, events })
            }
            Op::Fallocate { fh, offset, length, mode } => {
                self.op(Opcode::Fallocate, &abi::FallocateIn { fh, offset, length, mode, padding: 0 })
            }
            Op::Lseek { fh, offset, whence } => {
                let offset = offset.cast_unsigned();
                self.op(Opcode::Lseek, &abi::LseekIn { fh, offset, whence, padding: 0 })
            }
            Op::CopyFileRange { fh_in, off_in, nodeid_out, fh_out, off_out, len, flags, width } => {
                let op = abi::CopyFileRangeIn { fh_in, off_in, nodeid_out, fh_out, off_out, len, flags };
                match width {
                    CopyWidth::Bits32 => self.op(Opcode::CopyFileRange, &op),
                    CopyWidth::Bits64 => self.op(Opcode::CopyFileRange64, &op),
                }
            }
        }
    }

    fn bare(&mut self, opcode: Opcode) -> Opcode {
        opcode
    }

    fn creation(&mut self, opcode: Opcode, made: Creation<'_>) -> Opcode {
        let Creation { name, flags, mode, umask, open_flags } = made;
        self.name(name).op(opcode, &abi::CreateIn { flags, mode, umask, open_flags })
    }
}

fn fh_flag(fh: Option<u64>) -> u32 {
    fh.map_or(0, |_| abi::GETATTR_FH)
}

fn fsync(fh: u64, datasync: bool) -> abi::FsyncIn {
    abi::FsyncIn { fh, fsync_flags: if datasync { abi::FSYNC_FDATASYNC } else { 0 }, padding: 0 }
}

fn lk(asked: Lk) -> abi::LkIn {
    let lock = asked.lock;
    abi::LkIn {
        fh: asked.fh,
        owner: asked.owner,
        lk: abi::RawFileLock { start: lock.start, end: lock.end, kind: lock.kind, pid: lock.pid },
        lk_flags: asked.lk_flags,
        padding: 0,
    }
}

fn setattr(set: &SetAttr) -> abi::SetattrIn {
    let time = |time: Option<SetTime>, set: u32, now: u32| match time {
        None => (0, 0, 0),
        Some(SetTime::Now) => (set | now, 0, 0),
        Some(SetTime::At(at)) => (set, at.sec.cast_unsigned(), at.nsec),
    };
    let (atime_valid, atime, atimensec) = time(set.atime, abi::FATTR_ATIME, abi::FATTR_ATIME_NOW);
    let (mtime_valid, mtime, mtimensec) = time(set.mtime, abi::FATTR_MTIME, abi::FATTR_MTIME_NOW);
    let (ctime_valid, ctime, ctimensec) = time(set.ctime.map(SetTime::At), abi::FATTR_CTIME, 0);
    let flags = [
        (set.mode.is_some(), abi::FATTR_MODE),
        (set.uid.is_some(), abi::FATTR_UID),
        (set.gid.is_some(), abi::FATTR_GID),
        (set.size.is_some(), abi::FATTR_SIZE),
        (set.fh.is_some(), abi::FATTR_FH),
        (set.lock_owner.is_some(), abi::FATTR_LOCKOWNER),
        (set.kill_suidgid, abi::FATTR_KILL_SUIDGID),
    ];
    let given = flags.iter().filter(|(given, _)| *given).fold(0, |valid, (_, flag)| valid | flag);
    abi::SetattrIn {
        valid: given | atime_valid | mtime_valid | ctime_valid,
        fh: set.fh.unwrap_or(0),
        size: set.size.unwrap_or(0),
        lock_owner: set.lock_owner.unwrap_or(0),
        atime,
        mtime,
        ctime,
        atimensec,
        mtimensec,
        ctimensec,
        mode: set.mode.unwrap_or(0),
        uid: set.uid.unwrap_or(0),
        gid: set.gid.unwrap_or(0),
        ..abi::SetattrIn::default()
    }
}
