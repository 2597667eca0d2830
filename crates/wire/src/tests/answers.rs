//! Replies parse as the kernel parses them, and a buffer that is too small is refused.

use std::time::Duration;

use proptest::prelude::*;
use zerocopy::FromBytes;

use crate::*;

const VALID: Duration = Duration::new(3, 250);

fn time(sec: i64) -> Timestamp {
    Timestamp { sec, nsec: 999_999_999 }
}

fn attr() -> Attr {
    Attr {
        ino: 1,
        size: 2,
        blocks: 3,
        atime: time(-4),
        mtime: time(5),
        ctime: time(6),
        mode: 0o100_644,
        nlink: 7,
        uid: 8,
        gid: 9,
        rdev: encode_dev(259, 3),
        blksize: 4096,
        flags: abi::ATTR_SUBMOUNT,
    }
}

fn entry() -> Entry {
    let (entry_valid, attr_valid) = (VALID, Duration::MAX);
    Entry { nodeid: 11, generation: 12, entry_valid, attr_valid, attr: attr() }
}

/// Builds into buffers of every length up to `len`: all shorter ones are refused and left empty.
fn built(len: usize, build: impl Fn(&mut Answer<'_>) -> Result<(), NoRoom>) -> Vec<u8> {
    for room in 0..len {
        let mut buf = vec![0xff; room];
        let mut answer = Answer::new(&mut buf);
        assert_eq!(build(&mut answer), Err(NoRoom));
        assert!(answer.is_empty());
    }
    let mut buf = vec![0xff; len + 5];
    let mut answer = Answer::new(&mut buf);
    build(&mut answer).unwrap();
    assert_eq!(answer.len(), len);
    answer.as_bytes().to_vec()
}

fn read<T: FromBytes>(bytes: &[u8]) -> T {
    T::read_from_bytes(bytes).map_err(|_| "another length").unwrap()
}

#[test]
fn an_entry_carries_attributes_and_timeouts() {
    let out: abi::EntryOut = read(&built(128, |answer| answer.entry(&entry())));
    assert_eq!((out.nodeid, out.generation), (11, 12));
    assert_eq!((out.entry_valid, out.entry_valid_nsec), (3, 250));
    assert_eq!((out.attr_valid, out.attr_valid_nsec), (u64::MAX, 999_999_999));
    assert_eq!((out.attr.ino, out.attr.size, out.attr.blocks), (1, 2, 3));
    assert_eq!((out.attr.atime, out.attr.mtime, out.attr.ctime), (u64::MAX - 3, 5, 6));
    assert_eq!(
        (out.attr.atimensec, out.attr.mtimensec, out.attr.ctimensec),
        (999_999_999, 999_999_999, 999_999_999)
    );
    assert_eq!((out.attr.mode, out.attr.nlink, out.attr.uid, out.attr.gid), (0o100_644, 7, 8, 9));
    assert_eq!((decode_dev(out.attr.rdev), out.attr.blksize, out.attr.flags), ((259, 3), 4096, 1));
}

#[test]
fn a_missing_name_has_no_node_but_a_timeout() {
    let out: abi::EntryOut = read(&built(128, |answer| answer.missing(VALID)));
    assert_eq!(out, abi::EntryOut { entry_valid: 3, entry_valid_nsec: 250, ..abi::EntryOut::default() });
}

#[test]
fn a_creation_is_an_entry_and_a_handle() {
    let opened = Opened { fh: 21, open_flags: abi::FOPEN_PASSTHROUGH, backing_id: 22 };
    let bytes = built(144, |answer| answer.created(&entry(), opened));
    assert_eq!(read::<abi::EntryOut>(&bytes[..128]), abi::EntryOut::from(&entry()));
    let out = abi::OpenOut { fh: 21, open_flags: 128, backing_id: 22 };
    assert_eq!(read::<abi::OpenOut>(&bytes[128..]), out);
    assert_eq!(read::<abi::OpenOut>(&built(16, |answer| answer.opened(opened))), out);
}

#[test]
fn attributes_have_their_timeout() {
    let out: abi::AttrOut = read(&built(104, |answer| answer.attr(&attr(), VALID)));
    assert_eq!((out.attr_valid, out.attr_valid_nsec), (3, 250));
    assert_eq!(out.attr, abi::EntryOut::from(&entry()).attr);
}

#[test]
fn statx_stands_where_statx_stands() {
    let stat = Statx {
        mask: 0xfff,
        mode: 0o100_600,
        ino: 31,
        size: 32,
        btime: time(33),
        rdev_major: 34,
        dev_minor: 35,
        ..Statx::default()
    };
    let bytes = built(288, |answer| answer.statx(&stat, VALID));
    assert_eq!(read::<u64>(&bytes[..8]), 3);
    // The offsets are those of `struct statx` from here on.
    let told = &bytes[32..];
    assert_eq!(read::<u32>(&told[..4]), 0xfff);
    assert_eq!(read::<u16>(&told[0x1c..0x1e]), 0o100_600);
    assert_eq!((read::<u64>(&told[0x20..0x28]), read::<u64>(&told[0x28..0x30])), (31, 32));
    assert_eq!((read::<i64>(&told[0x50..0x58]), read::<u32>(&told[0x58..0x5c])), (33, 999_999_999));
    assert_eq!((read::<u32>(&told[0x80..0x84]), read::<u32>(&told[0x8c..0x90])), (34, 35));
}

#[test]
fn small_answers_read_back() {
    assert_eq!(read::<abi::WriteOut>(&built(8, |answer| answer.written(9))).size, 9);
    assert_eq!(read::<abi::LseekOut>(&built(8, |answer| answer.sought(9))).offset, 9);
    assert_eq!(read::<abi::GetxattrOut>(&built(8, |answer| answer.xattr_size(9))).size, 9);
    assert_eq!(read::<abi::PollOut>(&built(8, |answer| answer.polled(9))).revents, 9);
    assert_eq!(read::<abi::BmapOut>(&built(8, |answer| answer.block(9))).block, 9);
    let lock = FileLock { start: 1, end: 2, kind: 3, pid: 4 };
    let lk = abi::RawFileLock { start: 1, end: 2, kind: 3, pid: 4 };
    assert_eq!(read::<abi::LkOut>(&built(24, |answer| answer.lock(lock))).lk, lk);
}

#[test]
fn a_copys_count_has_the_width_of_its_request() {
    let narrow = built(8, |answer| answer.copied(CopyWidth::Bits32, 9));
    assert_eq!(read::<abi::WriteOut>(&narrow).size, 9);
    let wide = built(8, |answer| answer.copied(CopyWidth::Bits64, 1 << 40));
    assert_eq!(read::<abi::CopyFileRangeOut>(&wide).bytes_copied, 1 << 40);
    let mut buf = [0; 8];
    assert_eq!(Answer::new(&mut buf).copied(CopyWidth::Bits32, 1 << 32), Err(NoRoom));
}

#[test]
fn statfs_reads_back() {
    let told = Statfs { blocks: 1, bfree: 2, bavail: 3, files: 4, ffree: 5, bsize: 6, namelen: 7, frsize: 8 };
    let out: abi::Kstatfs = read(&built(80, |answer| answer.statfs(&told)));
    assert_eq!((out.blocks, out.bfree, out.bavail, out.files, out.ffree), (1, 2, 3, 4, 5));
    assert_eq!((out.bsize, out.namelen, out.frsize, out.spare), (6, 7, 8, [0; 6]));
}

#[test]
fn an_ioctl_has_its_output_behind_it() {
    let bytes = built(19, |answer| answer.ioctl(-1, b"out"));
    assert_eq!(read::<abi::IoctlOut>(&bytes[..16]).result, -1);
    assert_eq!(&bytes[16..], b"out");
}

#[test]
fn data_goes_in_as_it_is_or_is_read_into_place() {
    assert_eq!(built(4, |answer| answer.data(b"data")), b"data");
    let mut buf = [0; 8];
    let mut answer = Answer::new(&mut buf);
    answer.spare()[..3].copy_from_slice(b"abc");
    answer.filled(3).unwrap();
    answer.data(b"de").unwrap();
    assert_eq!(answer.filled(4), Err(NoRoom));
    assert_eq!(answer.filled(usize::MAX), Err(NoRoom));
    assert_eq!(answer.as_bytes(), b"abcde");
    assert_eq!(answer.header(1), OutHeader::answered(1, 5));
}

#[test]
fn headers_say_length_or_error() {
    let told = |header: OutHeader| read::<abi::RawOutHeader>(header.as_bytes());
    assert_eq!(told(OutHeader::answered(7, 100)), abi::RawOutHeader { len: 116, error: 0, unique: 7 });
    assert_eq!(told(OutHeader::refused(7, 28)), abi::RawOutHeader { len: 16, error: -28, unique: 7 });
    for nonsense in [0, -2, 512, i32::MIN] {
        assert_eq!(told(OutHeader::refused(7, nonsense)).error, -5);
    }
    assert_eq!(told(OutHeader::answered(7, usize::MAX)).len, u32::MAX);
}

proptest! {
    #[test]
    fn device_numbers_come_back(major in 0u32..1 << 12, minor in 0u32..1 << 20) {
        prop_assert_eq!(decode_dev(encode_dev(major, minor)), (major, minor));
    }
}

#[test]
fn device_numbers_are_the_kernels() {
    assert_eq!(encode_dev(8, 1), 0x801);
    assert_eq!(encode_dev(259, 0x12345), 0x1231_0345);
}
