//! Random requests: one of every operation, from the same random numbers, names and data.

use std::ffi::{CStr, CString};

use proptest::collection::vec;
use proptest::prelude::*;

use crate::*;

/// Random values for a set of requests.
#[derive(Clone, Debug)]
pub(super) struct Seed {
    longs: [u64; 6],
    ints: [u32; 6],
    nsec: u32,
    some: u16,
    name: CString,
    other: CString,
    data: Vec<u8>,
    pub(super) groups: Vec<u32>,
    pub(super) abi: Abi,
}

pub(super) fn seed() -> impl Strategy<Value = Seed> {
    let name = || vec(1u8..=255, 0..40).prop_map(|bytes| CString::new(bytes).unwrap());
    let numbers = (any::<[u64; 6]>(), any::<[u32; 6]>(), 0u32..1_000_000_000, any::<u16>());
    let bytes = (name(), name(), vec(any::<u8>(), 0..100), vec(any::<u32>(), 0..4));
    (numbers, bytes, any::<bool>()).prop_map(|(numbers, bytes, setxattr_ext)| {
        let (longs, ints, nsec, some) = numbers;
        let (name, other, data, groups) = bytes;
        Seed { longs, ints, nsec, some, name, other, data, groups, abi: Abi { setxattr_ext } }
    })
}

impl Seed {
    pub(super) fn header(&self) -> Header {
        let [unique, nodeid, ..] = self.longs;
        let [uid, gid, pid, ..] = self.ints;
        Header { unique, nodeid, uid, gid, pid, ..Header::default() }
    }

    fn maybe<T>(&self, bit: u32, value: T) -> Option<T> {
        (self.some >> bit & 1 == 1).then_some(value)
    }

    fn set_time(&self, bit: u32, sec: u64) -> Option<SetTime> {
        let at = SetTime::At(Timestamp { sec: sec.cast_signed(), nsec: self.nsec });
        self.maybe(bit, self.maybe(bit + 1, SetTime::Now).unwrap_or(at))
    }

    fn setattr(&self) -> SetAttr {
        let [fh, size, lock_owner, atime, mtime, ctime] = self.longs;
        let [mode, uid, gid, ..] = self.ints;
        SetAttr {
            mode: self.maybe(0, mode),
            uid: self.maybe(1, uid),
            gid: self.maybe(2, gid),
            size: self.maybe(3, size),
            atime: self.set_time(4, atime),
            mtime: self.set_time(6, mtime),
            ctime: self.maybe(8, Timestamp { sec: ctime.cast_signed(), nsec: self.nsec }),
            fh: self.maybe(9, fh),
            lock_owner: self.maybe(10, lock_owner),
            kill_suidgid: self.maybe(11, ()).is_some(),
        }
    }

    pub(super) fn operations(&self) -> Vec<Operation<'_>> {
        [self.on_names(&self.name, &self.other), self.on_inodes(), self.on_handles(), self.on_contents()]
            .concat()
    }

    fn on_names<'a>(&'a self, name: &'a CStr, newname: &'a CStr) -> Vec<Operation<'a>> {
        use Operation as Op;
        let [newdir, ..] = self.longs;
        let [mode, rdev, umask, flags, open_flags, size] = self.ints;
        let creation = Creation { name, flags, mode, umask, open_flags };
        let setxattr_flags = if self.abi.setxattr_ext { open_flags } else { 0 };
        vec![
            Op::Lookup { name },
            Op::Symlink { name, target: newname },
            Op::Mknod { name, mode, rdev, umask },
            Op::Mkdir { name, mode, umask },
            Op::Unlink { name },
            Op::Rmdir { name },
            Op::Rename { name, newdir, newname, flags: 0 },
            Op::Rename { name, newdir, newname, flags },
            Op::Link { oldnode: newdir, name },
            Op::Setxattr { name, value: &self.data, flags, setxattr_flags },
            Op::Getxattr { name, size },
            Op::Removexattr { name },
            Op::Create(creation),
            Op::Tmpfile(creation),
        ]
    }

    fn on_inodes(&self) -> Vec<Operation<'_>> {
        use Operation as Op;
        let [nlookup, fh, block, ..] = self.longs;
        let [flags, open_flags, mask, sx_flags, size, blocksize] = self.ints;
        vec![
            Op::Forget { nlookup },
            Op::BatchForget(Forgets::new(&self.data[..self.data.len() / 16 * 16])),
            Op::Getattr { fh: self.maybe(0, fh) },
            Op::Statx { fh: self.maybe(0, fh), sx_flags, mask },
            Op::Setattr(self.setattr()),
            Op::Readlink,
            Op::Open { flags, open_flags },
            Op::Opendir { flags, open_flags },
            Op::Statfs,
            Op::Listxattr { size },
            Op::Access { mask },
            Op::Interrupt { unique: nlookup },
            Op::Bmap { block, blocksize },
            Op::Destroy,
            Op::Syncfs,
        ]
    }

    fn on_handles(&self) -> Vec<Operation<'_>> {
        use Operation as Op;
        let [fh, owner, start, end, offset, kh] = self.longs;
        let [flags, lk_flags, kind, pid, size, events] = self.ints;
        let lk = Lk { fh, owner, lock: FileLock { start, end, kind, pid }, lk_flags };
        vec![
            Op::Release { fh, flags, release_flags: lk_flags, lock_owner: owner },
            Op::Releasedir { fh, flags },
            Op::Fsync { fh, datasync: self.maybe(0, ()).is_some() },
            Op::Fsyncdir { fh, datasync: self.maybe(0, ()).is_some() },
            Op::Flush { fh, lock_owner: owner },
            Op::Readdir { fh, offset, size },
            Op::Readdirplus { fh, offset, size },
            Op::Getlk(lk),
            Op::Setlk(lk),
            Op::Setlkw(lk),
            Op::Poll { fh, kh, flags, events },
        ]
    }

    fn on_contents(&self) -> Vec<Operation<'_>> {
        use Operation as Op;
        let [fh, offset, owner, arg, nodeid_out, length] = self.longs;
        let [flags, io_flags, cmd, size, mode, whence] = self.ints;
        let data = self.data.as_slice();
        let read_owner = (io_flags & abi::READ_LOCKOWNER != 0).then_some(owner);
        let write_owner = (io_flags & abi::WRITE_LOCKOWNER != 0).then_some(owner);
        let copy = |len, width| Op::CopyFileRange {
            fh_in: fh,
            off_in: offset,
            nodeid_out,
            fh_out: owner,
            off_out: arg,
            len,
            flags: length,
            width,
        };
        vec![
            Op::Read { fh, offset, size, read_flags: io_flags, lock_owner: read_owner, flags },
            Op::Write { fh, offset, write_flags: io_flags, lock_owner: write_owner, flags, data },
            Op::Ioctl { fh, flags, cmd, arg, out_size: size, data },
            Op::Fallocate { fh, offset, length, mode },
            Op::Lseek { fh, offset: offset.cast_signed(), whence },
            copy(length & 0xffff_f000, CopyWidth::Bits32),
            copy(length, CopyWidth::Bits64),
        ]
    }
}
