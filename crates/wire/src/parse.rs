//! Parses an operation from its opcode and bytes.

use std::ffi::CStr;

use zerocopy::FromBytes;

use crate::abi;
use crate::attr::Timestamp;
use crate::opcode::Opcode;
use crate::operation::{CopyWidth, Creation, FileLock, Forgets, Lk, Operation, SetAttr, SetTime};
use crate::request::{Abi, Why};

type Parsed<'a> = Result<Operation<'a>, Why>;

/// Largest count that COPY_FILE_RANGE can report, rounded down to pages so that the caller continues aligned.
const COPY_MAX: u64 = 0xffff_f000;

impl<'a> Operation<'a> {
    /// `rest` without the extensions. Every byte of it must belong to a field.
    pub(crate) fn parse(abi: Abi, opcode: Opcode, op_in: &[u8], rest: &'a [u8]) -> Parsed<'a> {
        let mut body = Body { op_in, rest };
        let op = body.operation(abi, opcode)?;
        if body.rest.is_empty() { Ok(op) } else { Err(Why::Malformed) }
    }
}

/// Rest of a request. Each call removes what it returns from `rest`.
struct Body<'o, 'a> {
    op_in: &'o [u8],
    rest: &'a [u8],
}

impl<'a> Body<'_, 'a> {
    fn op<T: FromBytes>(&self) -> Result<T, Why> {
        T::read_from_prefix(self.op_in).map(|(op, _)| op).map_err(|_| Why::Malformed)
    }

    fn name(&mut self) -> Result<&'a CStr, Why> {
        let name = CStr::from_bytes_until_nul(self.rest).map_err(|_| Why::Malformed)?;
        self.rest = self.rest.get(name.to_bytes_with_nul().len()..).ok_or(Why::Malformed)?;
        Ok(name)
    }

    fn data(&mut self, size: u32) -> Result<&'a [u8], Why> {
        let size = usize::try_from(size).map_err(|_| Why::Malformed)?;
        let (data, rest) = self.rest.split_at_checked(size).ok_or(Why::Malformed)?;
        self.rest = rest;
        Ok(data)
    }

    fn operation(&mut self, abi: Abi, opcode: Opcode) -> Parsed<'a> {
        match opcode {
            Opcode::Lookup => Ok(Operation::Lookup { name: self.name()? }),
            Opcode::Forget => self.forget(),
            Opcode::BatchForget => self.batch_forget(),
            Opcode::Getattr => self.getattr(),
            Opcode::Setattr => self.setattr(),
            Opcode::Readlink => Ok(Operation::Readlink),
            Opcode::Symlink => Ok(Operation::Symlink { name: self.name()?, target: self.name()? }),
            Opcode::Mknod => self.mknod(),
            Opcode::Mkdir => self.mkdir(),
            Opcode::Unlink => Ok(Operation::Unlink { name: self.name()? }),
            Opcode::Rmdir => Ok(Operation::Rmdir { name: self.name()? }),
            Opcode::Rename => self.rename(),
            Opcode::Rename2 => self.rename2(),
            Opcode::Link => self.link(),
            Opcode::Open => self.open(),
            Opcode::Opendir => self.opendir(),
            Opcode::Read => self.read(),
            Opcode::Readdir => self.readdir(),
            Opcode::Readdirplus => self.readdirplus(),
            Opcode::Write => self.write(),
            Opcode::Statfs => Ok(Operation::Statfs),
            Opcode::Release => self.release(),
            Opcode::Releasedir => self.releasedir(),
            Opcode::Fsync => self.fsync(),
            Opcode::Fsyncdir => self.fsyncdir(),
            Opcode::Setxattr if abi.setxattr_ext => self.setxattr_ext(),
            Opcode::Setxattr => self.setxattr(),
            Opcode::Getxattr => self.getxattr(),
            Opcode::Listxattr => Ok(Operation::Listxattr { size: self.op::<abi::GetxattrIn>()?.size }),
            Opcode::Removexattr => Ok(Operation::Removexattr { name: self.name()? }),
            Opcode::Flush => self.flush(),
            Opcode::Getlk => self.lk().map(Operation::Getlk),
            Opcode::Setlk => self.lk().map(Operation::Setlk),
            Opcode::Setlkw => self.lk().map(Operation::Setlkw),
            Opcode::Access => Ok(Operation::Access { mask: self.op::<abi::AccessIn>()?.mask }),
            Opcode::Create => self.creation().map(Operation::Create),
            Opcode::Tmpfile => self.creation().map(Operation::Tmpfile),
            Opcode::Interrupt => Ok(Operation::Interrupt { unique: self.op::<abi::InterruptIn>()?.unique }),
            Opcode::Bmap => self.bmap(),
            Opcode::Destroy => Ok(Operation::Destroy),
            Opcode::Ioctl => self.ioctl(),
            Opcode::Poll => self.poll(),
            Opcode::Fallocate => self.fallocate(),
            Opcode::Lseek => self.lseek(),
            Opcode::CopyFileRange => self.copy_file_range(CopyWidth::Bits32),
            Opcode::CopyFileRange64 => self.copy_file_range(CopyWidth::Bits64),
            Opcode::Syncfs => self.op::<abi::SyncfsIn>().map(|_| Operation::Syncfs),
            Opcode::Statx => self.statx(),
            Opcode::Init | Opcode::NotifyReply | Opcode::SetupMapping | Opcode::RemoveMapping => {
                Err(Why::UnknownOpcode(opcode.raw()))
            }
        }
    }

    fn forget(&self) -> Parsed<'a> {
        Ok(Operation::Forget { nlookup: self.op::<abi::ForgetIn>()?.nlookup })
    }

    fn batch_forget(&mut self) -> Parsed<'a> {
        const ROW: u32 = 16;
        let count = self.op::<abi::BatchForgetIn>()?.count;
        let rows = self.data(count.checked_mul(ROW).ok_or(Why::Malformed)?)?;
        Ok(Operation::BatchForget(Forgets::new(rows)))
    }

    fn getattr(&self) -> Parsed<'a> {
        let op: abi::GetattrIn = self.op()?;
        Ok(Operation::Getattr { fh: given(op.getattr_flags, abi::GETATTR_FH, op.fh) })
    }

    fn statx(&self) -> Parsed<'a> {
        let op: abi::StatxIn = self.op()?;
        let fh = given(op.getattr_flags, abi::GETATTR_FH, op.fh);
        Ok(Operation::Statx { fh, sx_flags: op.sx_flags, mask: op.sx_mask })
    }

    fn setattr(&self) -> Parsed<'a> {
        let op: abi::SetattrIn = self.op()?;
        let time = |set, now, sec, nsec| match () {
            () if op.valid & now != 0 => Ok(Some(SetTime::Now)),
            () if op.valid & set != 0 => Ok(Some(SetTime::At(timestamp(sec, nsec)?))),
            () => Ok(None),
        };
        let ctime = match given(op.valid, abi::FATTR_CTIME, op.ctime) {
            Some(sec) => Some(timestamp(sec, op.ctimensec)?),
            None => None,
        };
        Ok(Operation::Setattr(SetAttr {
            mode: given(op.valid, abi::FATTR_MODE, op.mode),
            uid: given(op.valid, abi::FATTR_UID, op.uid),
            gid: given(op.valid, abi::FATTR_GID, op.gid),
            size: given(op.valid, abi::FATTR_SIZE, op.size),
            atime: time(abi::FATTR_ATIME, abi::FATTR_ATIME_NOW, op.atime, op.atimensec)?,
            mtime: time(abi::FATTR_MTIME, abi::FATTR_MTIME_NOW, op.mtime, op.mtimensec)?,
            ctime,
            fh: given(op.valid, abi::FATTR_FH, op.fh),
            lock_owner: given(op.valid, abi::FATTR_LOCKOWNER, op.lock_owner),
            kill_suidgid: op.valid & abi::FATTR_KILL_SUIDGID != 0,
        }))
    }

    fn mknod(&mut self) -> Parsed<'a> {
        let op: abi::MknodIn = self.op()?;
        Ok(Operation::Mknod { name: self.name()?, mode: op.mode, rdev: op.rdev, umask: op.umask })
    }

    fn mkdir(&mut self) -> Parsed<'a> {
        let op: abi::MkdirIn = self.op()?;
        Ok(Operation::Mkdir { name: self.name()?, mode: op.mode, umask: op.umask })
    }

    fn rename(&mut self) -> Parsed<'a> {
        let op: abi::RenameIn = self.op()?;
        Ok(Operation::Rename { name: self.name()?, newdir: op.newdir, newname: self.name()?, flags: 0 })
    }

    fn rename2(&mut self) -> Parsed<'a> {
        let op: abi::Rename2In = self.op()?;
        Ok(Operation::Rename {
            name: self.name()?,
            newdir: op.newdir,
            newname: self.name()?,
            flags: op.flags,
        })
    }

    fn link(&mut self) -> Parsed<'a> {
        let op: abi::LinkIn = self.op()?;
        Ok(Operation::Link { oldnode: op.oldnodeid, name: self.name()? })
    }

    fn open(&self) -> Parsed<'a> {
        let op: abi::OpenIn = self.op()?;
        Ok(Operation::Open { flags: op.flags, open_flags: op.open_flags })
    }

    fn opendir(&self) -> Parsed<'a> {
        let op: abi::OpenIn = self.op()?;
        Ok(Operation::Opendir { flags: op.flags, open_flags: op.open_flags })
    }

    fn creation(&mut self) -> Result<Creation<'a>, Why> {
        let op: abi::CreateIn = self.op()?;
        let abi::CreateIn { flags, mode, umask, open_flags } = op;
        Ok(Creation { name: self.name()?, flags, mode, umask, open_flags })
    }

    fn read(&self) -> Parsed<'a> {
        let op: abi::ReadIn = self.op()?;
        let abi::ReadIn { fh, offset, size, read_flags, flags, .. } = op;
        let lock_owner = given(read_flags, abi::READ_LOCKOWNER, op.lock_owner);
        Ok(Operation::Read { fh, offset, size, read_flags, lock_owner, flags })
    }

    fn readdir(&self) -> Parsed<'a> {
        let op: abi::ReadIn = self.op()?;
        Ok(Operation::Readdir { fh: op.fh, offset: op.offset, size: op.size })
    }

    fn readdirplus(&self) -> Parsed<'a> {
        let op: abi::ReadIn = self.op()?;
        Ok(Operation::Readdirplus { fh: op.fh, offset: op.offset, size: op.size })
    }

    fn write(&mut self) -> Parsed<'a> {
        let op: abi::WriteIn = self.op()?;
        let abi::WriteIn { fh, offset, size, write_flags, flags, .. } = op;
        let lock_owner = given(write_flags, abi::WRITE_LOCKOWNER, op.lock_owner);
        Ok(Operation::Write { fh, offset, write_flags, lock_owner, flags, data: self.data(size)? })
    }

    fn release(&self) -> Parsed<'a> {
        let op: abi::ReleaseIn = self.op()?;
        let abi::ReleaseIn { fh, flags, release_flags, lock_owner } = op;
        Ok(Operation::Release { fh, flags, release_flags, lock_owner })
    }

    fn releasedir(&self) -> Parsed<'a> {
        let op: abi::ReleaseIn = self.op()?;
        Ok(Operation::Releasedir { fh: op.fh, flags: op.flags })
    }

    fn fsync(&self) -> Parsed<'a> {
        let op: abi::FsyncIn = self.op()?;
        Ok(Operation::Fsync { fh: op.fh, datasync: op.fsync_flags & abi::FSYNC_FDATASYNC != 0 })
    }

    fn fsyncdir(&self) -> Parsed<'a> {
        let op: abi::FsyncIn = self.op()?;
        Ok(Operation::Fsyncdir { fh: op.fh, datasync: op.fsync_flags & abi::FSYNC_FDATASYNC != 0 })
    }

    fn setxattr(&mut self) -> Parsed<'a> {
        let op: abi::SetxattrCompatIn = self.op()?;
        let (name, value) = (self.name()?, self.data(op.size)?);
        Ok(Operation::Setxattr { name, value, flags: op.flags, setxattr_flags: 0 })
    }

    fn setxattr_ext(&mut self) -> Parsed<'a> {
        let op: abi::SetxattrIn = self.op()?;
        let (name, value) = (self.name()?, self.data(op.size)?);
        Ok(Operation::Setxattr { name, value, flags: op.flags, setxattr_flags: op.setxattr_flags })
    }

    fn getxattr(&mut self) -> Parsed<'a> {
        let op: abi::GetxattrIn = self.op()?;
        Ok(Operation::Getxattr { name: self.name()?, size: op.size })
    }

    fn flush(&self) -> Parsed<'a> {
        let op: abi::FlushIn = self.op()?;
        Ok(Operation::Flush { fh: op.fh, lock_owner: op.lock_owner })
    }

    fn lk(&self) -> Result<Lk, Why> {
        let op: abi::LkIn = self.op()?;
        let abi::RawFileLock { start, end, kind, pid } = op.lk;
        let lock = FileLock { start, end, kind, pid };
        Ok(Lk { fh: op.fh, owner: op.owner, lock, lk_flags: op.lk_flags })
    }

    fn bmap(&self) -> Parsed<'a> {
        let op: abi::BmapIn = self.op()?;
        Ok(Operation::Bmap { block: op.block, blocksize: op.blocksize })
    }

    fn ioctl(&mut self) -> Parsed<'a> {
        let op: abi::IoctlIn = self.op()?;
        let abi::IoctlIn { fh, flags, cmd, arg, in_size, out_size } = op;
        Ok(Operation::Ioctl { fh, flags, cmd, arg, out_size, data: self.data(in_size)? })
    }

    fn poll(&self) -> Parsed<'a> {
        let op: abi::PollIn = self.op()?;
        Ok(Operation::Poll { fh: op.fh, kh: op.kh, flags: op.flags, events: op.events })
    }

    fn fallocate(&self) -> Parsed<'a> {
        let op: abi::FallocateIn = self.op()?;
        Ok(Operation::Fallocate { fh: op.fh, offset: op.offset, length: op.length, mode: op.mode })
    }

    fn lseek(&self) -> Parsed<'a> {
        let op: abi::LseekIn = self.op()?;
        Ok(Operation::Lseek { fh: op.fh, offset: op.offset.cast_signed(), whence: op.whence })
    }

    fn copy_file_range(&self, width: CopyWidth) -> Parsed<'a> {
        let op: abi::CopyFileRangeIn = self.op()?;
        let abi::CopyFileRangeIn { fh_in, off_in, nodeid_out, fh_out, off_out, len, flags } = op;
        let len = match width {
            CopyWidth::Bits32 => len.min(COPY_MAX),
            CopyWidth::Bits64 => len,
        };
        Ok(Operation::CopyFileRange { fh_in, off_in, nodeid_out, fh_out, off_out, len, flags, width })
    }
}

/// Returns a field that is valid only if its flag is set.
fn given<T>(flags: u32, flag: u32, value: T) -> Option<T> {
    (flags & flag != 0).then_some(value)
}

/// Nanoseconds of a second or more are refused: `utimensat` takes some such numbers for UTIME_NOW and UTIME_OMIT.
fn timestamp(sec: u64, nsec: u32) -> Result<Timestamp, Why> {
    match nsec {
        0..1_000_000_000 => Ok(Timestamp { sec: sec.cast_signed(), nsec }),
        _ => Err(Why::Malformed),
    }
}
